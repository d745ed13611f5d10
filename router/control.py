"""What a router has once, however many workers serve: probes, counts, the admin port, the configuration in effect.

It holds a fleet as the workers do, but sends nothing: its members' states are what the probes find, and their load is
what the workers tell. Nothing here is on a request's path. supervisor.py gives it sockets, processes and signals.
"""

import asyncio
import contextlib
import json
import logging
import os
import socket
import time
from collections.abc import Callable, Collection, Sequence
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

from aiohttp import web

from router import parts, render
from router.admin import api, checks
from router.admin.build import build
from router.admin.checks import Check
from router.admin.metrics import Metrics, Setup, Sources
from router.admin.recording import Lines, Recording
from router.admin.shared import Operations
from router.admin.tally import Tally
from router.certificates import expiries
from router.config import Config
from router.core.fleet import Fleet
from router.core.types import ReplicaId, State
from router.crew import Crew
from router.diagnostics import ConfigError, Problem
from router.gossip.snapshot import PERIOD
from router.linking import link
from router.loading import Loaded, Secrets, inspect
from router.members.health import Health, HealthSettings
from router.reloading import Change, change, running

log = logging.getLogger("homing.supervisor")

ADMIN_GRACE = 0.5
"""Seconds that an admin request under way gets at the stop; they answer in milliseconds."""

HOUSEKEEPING = 1.0
"""Seconds between looks at who has fallen silent and who can go."""


class Control:
    """One router's. `admin` is a listening socket, which it closes when it stops; `wanted` workers make it ready.

    `pids` are all processes of the router, its own first; `restarts` is how often a worker was replaced. `broken` ends
    with an error when the router cannot go on. While it is `handing_over` to a new process, which has been told what
    was so far, nobody can change anything here.
    """

    def __init__(
        self,
        loaded: Loaded,
        secrets: Secrets,
        admin: socket.socket,
        wanted: int = 1,
        pids: Callable[[], Sequence[int]] = lambda: (os.getpid(),),
        restarts: Callable[[], int] = lambda: 0,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._file = Path(loaded.document.source.name)
        self._running = running(loaded, secrets)
        self._admin, self._wanted = admin, wanted
        config = loaded.config
        self.fleet = Fleet(config.routing.make(), config.fleet_settings())
        self.fleet.join([replica.spec() for replica in config.replicas], time.monotonic())
        self.operations = Operations()
        self.tally = Tally(self.fleet, config.limits.label_values)
        self.crew = Crew(self.fleet, self.tally, self._running, time.monotonic, self._refused, self._ejected)
        self._health = Health(
            self.fleet,
            _urls(config),
            _probes(config),
            Random(),
            self._probed,
            self.tally,
            secrets.api_keys,
            parts.trust(config, secrets.pems),
        )
        self._setup = Setup(config.routing.policy, _hash(config), True, time.time(), expiries(secrets.pems))
        self._link = link(config, secrets, self._file.parent, self.fleet, self.crew, self.operations.observe)
        self.crew.link = self._link
        self.crew.shadowing.adjust(config, secrets.shadow)
        self._metrics = Metrics(self.fleet, self.tally, self._sources(pids, restarts))
        self._reloading = asyncio.Lock()
        self._changed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._runner: web.AppRunner | None = None
        self.broken: asyncio.Future[None] = self._loop.create_future()
        self.draining = self.handing_over = False

    def _sources(self, pids: Callable[[], Sequence[int]], restarts: Callable[[], int]) -> Sources:
        return Sources(
            self._setup,
            self._health.missing,
            self.crew.reports,
            lambda: self.crew.hub.dropped,
            lambda: len(self.crew.serving),
            pids,
            restarts,
            build(),
            self.operations,
            lambda: self._link,
            lambda: self.crew.snapshot.hashes,
            lambda: self.crew.snapshot.left_out,
            lambda: self.crew.shadowing.counts,
        )

    @property
    def config(self) -> Config:
        """What is in effect."""
        return self._running.config

    @property
    def drained(self) -> Collection[ReplicaId]:
        """The replicas that an operator lets get nothing new."""
        return self._health.drained

    async def start(self, drained: Collection[ReplicaId] = ()) -> None:
        """Probe, and answer on the admin port. `drained` are replicas that were so before this process, if known."""
        for replica in _urls(self.config).keys() & set(drained):
            self._health.drain(replica)
        for work in (self._health.run(), self._keep_house(), self.crew.keep_snapshot()):
            task = self._loop.create_task(work)
            task.add_done_callback(self._ended)
            self._tasks.append(task)
        self._runner = web.AppRunner(api.make(self._api()), access_log=None, shutdown_timeout=ADMIN_GRACE)
        await self._runner.setup()
        await web.SockSite(self._runner, self._admin).start()
        if self._link is not None:
            await self._link.start()

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Probes and housekeeping go on until they are cancelled. Without them the router would go by what it knew last
        for ever, and nobody would see it: `broken` takes their error."""
        if not task.cancelled() and not self.broken.done():
            self.broken.set_exception(task.exception() or RuntimeError("a task has ended that never does"))

    async def stop(self) -> None:
        """Close everything; workers must have stopped, or stop when they see it."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._link is not None:
            await self._link.stop()
        await self.close_admin()
        self.crew.hub.close()

    async def close_admin(self) -> None:
        """Answer no more on the admin port. Who records is told that this is the end."""
        if self.crew.recording is not None:
            self.crew.recording.end()
        if self._runner is not None:
            runner, self._runner = self._runner, None
            await runner.cleanup()

    async def probed(self, seconds: float) -> None:
        """Returns when each replica was found well or not, at the latest after so many seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while any(replica.state is State.STARTING for replica in self.fleet.replicas):
                    self._changed.clear()
                    await self._changed.wait()

    # api.Router: what operators ask.

    async def refresh(self) -> None:
        await self.crew.refresh()

    async def explain(self, path: str, body: bytes) -> bytes | None:
        return await self.crew.explain(path, body)

    def drain(self, replica: ReplicaId, drained: bool) -> dict[str, Any] | None:
        if replica not in _urls(self.config):
            return None
        if drained:
            self._health.drain(replica)
        else:
            self._health.undrain(replica)
        member = self.fleet.replica(replica)
        log.info("replica %s: %s by an operator", replica, "drained" if drained else "undrained")
        return {"replica": replica, "state": member.state, "requests": member.whole.requests}

    def record(self) -> Recording | None:
        if self.crew.recording is not None and not self.crew.recording.ended:
            return None
        config, now = self.config, time.monotonic()
        lines = Lines(config.routing.prefix_block, config.limits.index_blocks, self.crew.snapshot.tokens_per_byte, now)
        recording = Recording(lines, now)
        self.crew.record(recording)
        log.info("an operator records the traffic")
        return recording

    def recorded(self, recording: Recording) -> None:
        recording.end()
        self.crew.stop_recording()
        log.info("the recording has ended: %d requests, %d dropped", recording.recorded, recording.dropped)

    @property
    def recording(self) -> Recording | None:
        return self.crew.recording

    async def reload(self) -> tuple[bool, dict[str, Any]]:
        async with self._reloading:  # Two at a time would compare with the same old one.
            loaded, secrets, problems = await self._loop.run_in_executor(None, _read, self._file)
            if loaded is None or secrets is None:
                self._setup.reloaded = False
                for problem in problems:
                    log.error("not reloaded: %s", render.problem_text(problem))
                told: dict[str, Any] = json.loads(render.as_json(problems, str(self._file)))
                return False, told
            for problem in problems:
                log.warning("%s", render.problem_text(problem))
            found = change(self._running, loaded, secrets)
            await self._take(found)
            return True, {"changed": found.changed, "needs_restart": found.needs_restart}

    async def _take(self, found: Change) -> None:
        """Put a valid configuration into effect. No await before all of the supervisor has it."""
        self._running = found.running
        config, now = found.running.config, time.monotonic()
        known = {replica.id for replica in self.fleet.replicas}
        self.fleet.join([each.spec() for each in config.replicas if each.id not in known], now)
        for each in config.replicas:
            self.fleet.replica(each.id).respec(each.spec())
        secrets = found.running.secrets
        self._health.adjust(_urls(config), _probes(config), secrets.api_keys, parts.trust(config, secrets.pems))
        self.tally.labels.bound = config.limits.label_values
        setup = self._setup
        setup.policy, setup.config_hash, setup.reloaded = config.routing.policy, _hash(config), True
        setup.reloaded_at = time.time()
        setup.certificates = expiries(secrets.pems)
        log.info("reloaded: %s", "; ".join(found.changed) or "nothing has changed")
        if found.needs_restart:
            log.warning("needs a restart (or SIGUSR2): %s", "; ".join(found.needs_restart))
        logging.getLogger().setLevel(config.log.level.upper())
        self.crew.shadowing.adjust(config, found.running.secrets.shadow)
        await self.crew.adjust(found.running)

    # What happens.

    def _probed(self, replica: ReplicaId) -> None:
        """A replica was probed, or has changed."""
        self._changed.set()
        self.crew.changed(replica)

    def _refused(self, replica: ReplicaId) -> None:
        """A worker's connection was refused."""
        if replica in _urls(self.config):
            self._health.unreachable(replica)

    def _ejected(self, replica: ReplicaId, reason: str, seconds: float) -> None:
        """A worker has ejected a replica."""
        now = time.monotonic()
        transition = self.fleet.told_ejected(replica, reason, now + seconds, now)
        if transition is not None:
            self._health.ejected(transition)

    async def _keep_house(self) -> None:
        """Let go of workers that are silent, and of removed replicas whose last answer is out."""
        while True:
            await asyncio.sleep(HOUSEKEEPING)
            for peer in self.fleet.peers.expire(time.monotonic()):
                log.warning("worker %s has been silent for too long; its load counts no more", peer)
            self.crew.watch()
            listed = _urls(self.config)
            for replica in list(self.fleet.replicas):
                if replica.id not in listed and not replica.whole.requests:
                    self.fleet.leave(replica.id)
                    self.crew.snapshot.forget(replica.id)

    async def renew_snapshot(self) -> bytes:
        """All parts, renewed if that is possible soon, for the process that takes over."""
        end = time.monotonic() + PERIOD
        for replica in list(self.fleet.replicas):
            if time.monotonic() < end:
                await self.crew.summarise(replica.id)
        return self.crew.snapshot.dump()

    def _api(self) -> api.Admin:
        return api.Admin(
            self.fleet,
            self._metrics,
            self.crew.reports,
            self,
            lambda: self.config.routing.policy,
            lambda: len(self.crew.serving),
            lambda: api.Rights(
                self.config.admin.mutations, self._running.secrets.admin_token, handing_over=self.handing_over
            ),
            lambda: self.crew.shadowing.counts,
            (Check("workers", self._short_of_workers),),
            (
                Check("draining", lambda: "draining" if self.draining else None),
                checks.replicas(self.fleet, lambda: self.config.ready.min_replicas),
                *([] if self._link is None else [Check("gossip", self._link_problem, False)]),
            ),
        )

    def _link_problem(self) -> str | None:
        return None if self._link is None else self._link.problem

    def _short_of_workers(self) -> str | None:
        serving = len(self.crew.serving)
        return None if serving >= self._wanted else f"{serving} of {self._wanted} serve"


def _read(file: Path) -> tuple[Loaded | None, Secrets | None, list[Problem]]:
    """The configuration and its secrets, with warnings, or what is wrong with them."""
    loaded, problems = inspect(file)
    if loaded is None:
        return None, None, problems
    try:
        return loaded, *loaded.examined()
    except ConfigError as error:
        return loaded, None, error.problems


def _urls(config: Config) -> dict[ReplicaId, str]:
    return {replica.id: replica.url for replica in config.replicas}


def _probes(config: Config) -> HealthSettings:
    health = config.health
    return HealthSettings(health.interval, health.timeout, health.failures, health.models_interval)


def _hash(config: Config) -> str:
    return sha256(config.model_dump_json().encode()).hexdigest()[:16]
