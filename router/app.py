"""Wiring of one worker: builds each object once, hands it over by constructor, starts and stops in order.

Start: fleet, pools, probes, admin port, clients' port last. Stop: clients' port first, then what is under way, then
probes, admin port and pools.
"""

import asyncio
import logging
import signal
import socket
import sys
import time
from functools import partial
from hashlib import sha256
from importlib.metadata import version as installed
from pathlib import Path as File
from random import Random
from typing import Annotated
from urllib.parse import urlsplit

import typer
import uvloop
from aiohttp import web

from router.admin import api, checks, lag, requestlog
from router.admin.build import build
from router.admin.checks import Check
from router.admin.metrics import Metrics, Sources
from router.admin.requestlog import RequestLog
from router.admin.tally import Tally
from router.config import Config, ReplicaConfig
from router.core.budget import RetryBudget
from router.core.fleet import Fleet
from router.core.record import Record
from router.core.types import State
from router.diagnostics import ConfigError, Path
from router.loading import Loaded, Secrets, load
from router.members.health import Health, HealthSettings
from router.proxy.context import Proxy
from router.proxy.explaining import explain
from router.proxy.openai import Asker
from router.proxy.server import ClientConnection, Clients
from router.proxy.upstream import Address, Pool
from router.proxy.waiting import Waiting
from router.render import MAX_SHOWN, is_colored, problem_text
from router.sockets import CannotListen, listen
from router.values import Endpoint

log = logging.getLogger("homing")

ADMIN_GRACE = 0.5
"""Seconds that an admin request under way gets at the stop; they answer in milliseconds."""


class Worker:
    """One router in one process. `clients` and `admin` are bound sockets, which the worker closes when it stops."""

    def __init__(
        self,
        config: Config,
        secrets: Secrets,
        loop: asyncio.AbstractEventLoop,
        clients: socket.socket,
        admin: socket.socket,
    ) -> None:
        self._loop, self._config, self._clients, self._admin = loop, config, clients, admin
        self.fleet = Fleet(config.routing.make(), config.fleet_settings())
        self.fleet.join([replica.spec() for replica in config.replicas], time.monotonic())
        self.waiting = Waiting(loop, config.routing.queue.max_requests, config.routing.queue.max_seconds)
        self.tally = Tally(self.fleet, config.limits.label_values)
        self._log = RequestLog() if config.log.requests else None
        self._health = self._probes(secrets)
        self.pools = {
            replica.id: Pool(loop, _address(replica), config.timeouts.connect) for replica in config.replicas
        }  # fmt: skip
        self.proxy = Proxy(
            loop,
            self.fleet,
            Asker(config.routing.prefix_block, config.tools_first()),
            self.pools,
            self.waiting,
            Random(),
            self._describe if self._log else self.tally.record,
            self._health.unreachable,
            self._health.ejected,
            RetryBudget(config.retry.budget),
            installed("homing"),
            frozenset(config.proxy.allow_paths),
            config.retry.max_refusals,
            secrets.admin_token.encode() if secrets.admin_token else None,
        )
        self.clients = Clients()
        self._server: asyncio.Server | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Serve. Returns when the clients' port is open."""
        if self._log is not None:
            self._log.start()
        for work in (self._health.run(), lag.sample(self.tally.lag.observe)):
            self._tasks.append(self._loop.create_task(work))
        self._runner = web.AppRunner(api.make(self._admin_api()), access_log=None, shutdown_timeout=ADMIN_GRACE)
        await self._runner.setup()
        await web.SockSite(self._runner, self._admin).start()
        self._server = await self._loop.create_server(
            lambda: ClientConnection(self.proxy, self._config.limits.body, self.clients),
            sock=self._clients,
            backlog=4096,
        )

    async def stop(self) -> None:
        """Take no new connection, let what is under way end within drain.timeout, then close everything."""
        assert self._server is not None
        self._server.close()
        await self.clients.drain(self._config.drain.timeout)
        self.waiting.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._runner.cleanup()
        for pool in self.pools.values():
            pool.close()
        if self._log is not None:
            await self._loop.run_in_executor(None, self._log.close)

    def _probes(self, secrets: Secrets) -> Health:
        health = self._config.health
        return Health(
            self.fleet,
            {replica.id: replica.url for replica in self._config.replicas},
            HealthSettings(health.interval, health.timeout, health.failures, health.models_interval),
            Random(),
            self.waiting.wake,
            self.tally,
            secrets.api_keys,
        )

    def _describe(self, record: Record) -> None:
        """One record feeds the metrics and the log line."""
        self.tally.record(record)
        if self._log is not None:
            self._log.record(record)

    def _admin_api(self) -> api.Admin:
        policy, log_, health = self._config.routing.policy, self._log, self._health
        config_hash = sha256(self._config.model_dump_json().encode()).hexdigest()[:16]
        sources = Sources(
            health.missing,
            lambda: self.waiting.depths,
            lambda: log_.dropped if log_ else 0,
            policy,
            build(),
            config_hash,
        )
        return api.Admin(
            self.fleet,
            policy,
            Metrics(self.fleet, self.tally, sources),
            lambda: self.waiting.depths,
            (Check("listener", self._listening),),
            (checks.replicas(self.fleet, self._config.ready.min_replicas),),
            partial(explain, self.proxy),
        )

    def _listening(self) -> str | None:
        serving = self._server is not None and self._server.is_serving()
        return None if serving else "the clients' port is not open"


def _address(replica: ReplicaConfig) -> Address:
    url = urlsplit(replica.url)
    assert url.hostname is not None
    base = url.path.rstrip("/").encode()
    return Address(url.hostname, url.port or 80, base, url.netloc.encode())


def _open(loaded: Loaded, path: Path, endpoint: Endpoint) -> socket.socket:
    """A bound socket. Raises ConfigError when the address that a setting names cannot be had."""
    try:
        return listen(endpoint)
    except CannotListen as error:
        raise ConfigError([loaded.problem("H128", path, f"cannot listen: {error}", error.remedy)]) from error


async def _serve(loaded: Loaded, secrets: Secrets) -> None:
    config = loaded.config
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    with (
        _open(loaded, ("listen",), config.listen) as clients,
        _open(loaded, ("admin", "listen"), config.admin.listen) as admin,
    ):
        worker = Worker(config, secrets, loop, clients, admin)
        await worker.start()
        print(_banner(loaded, clients, admin), file=sys.stderr, flush=True)  # noqa: T201
        await stop.wait()
        log.info("stopping: %d connections are open", len(worker.clients))
        await worker.stop()


MAX_CHANGES = 8
"""Settings other than the default that the start-up lines name; `homing config show` has all."""


def _banner(loaded: Loaded, clients: socket.socket, admin: socket.socket) -> str:
    """At most 15 lines: version, where it listens, replicas with their state, what is not the default and why."""
    config = loaded.config
    names = [f"{replica.id} {State.STARTING}" for replica in config.replicas]
    shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    changes = [f"    {row.name}: {row.value} ({row.origin})" for row in loaded.rows() if row.changed]
    if len(changes) > MAX_CHANGES:
        changes[MAX_CHANGES:] = [f"    and {len(changes) - MAX_CHANGES} more: homing config show --origin"]
    return "\n".join([
        f"homing {installed('homing')}, policy {config.routing.policy}",
        f"  listening on {_url(clients)}",
        f"  admin port   {_url(admin)}",
        f"  replicas     {shown}",
        *(["  not default"] if changes else []),
        *changes,
    ])  # fmt: skip


def _url(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://{Endpoint(host, port)}"


def serve(config: Annotated[File, typer.Option("--config", "-c", help="The YAML file.", metavar="FILE")]) -> None:
    """Run the router until SIGTERM or Ctrl-C.

    Variables named HOMING__SECTION__KEY override the file.

    Examples:

      homing serve -c router.yaml

      HOMING__LOG__LEVEL=debug homing serve --config router.yaml
    """
    try:
        loaded = load(config)
        secrets = loaded.secrets()
        level = loaded.config.log.level.upper()
        logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        if loaded.config.log.requests:
            requestlog.to(sys.stdout)
        uvloop.run(_serve(loaded, secrets))
    except ConfigError as error:
        for problem in error.problems[:MAX_SHOWN]:
            print(problem_text(problem, is_colored(sys.stderr)), file=sys.stderr)  # noqa: T201
        raise SystemExit(1) from error


def version() -> None:
    """Print the version.

    Examples:

      homing version

      homing --version
    """
    print(installed("homing"))  # noqa: T201
