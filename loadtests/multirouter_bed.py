"""Several routers as objects of one process, over simulated replicas: all of a router that takes part in a decision.

A router is a supervisor's crew with its hub and its link to the others, over a real Redis, and workers with their
channels, as `homing serve` builds them. What is left out is HTTP, on both sides: an ask is read from a real body, is
routed and leased, and its work goes to an engine (replica/engine.py) that runs in real time. So what is seen is the
deciding and the gossip, and 16 routers fit on two cores.
"""

import asyncio
import socket
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from loadtests.fleet import MODEL
from loadtests.processes import HOST
from loadtests.redisserver import RedisServer
from replica.driver import Driver
from replica.engine import Engine
from replica.profiles import PROFILES
from router.admin.tally import Tally
from router.app import Worker
from router.core.fleet import Fleet
from router.core.types import ReplicaId, State
from router.crew import Crew
from router.joining import join
from router.linking import link
from router.loading import load
from router.reloading import running

BLOCK = 512
TOKENS = 128
"""Tokens of an engine block, which is a router's block of 512 bytes, so that both count the same."""

SECRET = "a secret of the load test's fleet"  # noqa: S105 - It guards nothing.


class Replicas:
    """Engines in real time, by id."""

    def __init__(self, count: int, blocks: int, profile: str) -> None:
        self.drivers: dict[ReplicaId, Driver] = {
            f"r{number}": Driver(Engine(PROFILES[profile], blocks, TOKENS)) for number in range(1, count + 1)
        }

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Engines that work."""
        tasks = [asyncio.get_running_loop().create_task(driver.run()) for driver in self.drivers.values()]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


@dataclass(frozen=True, slots=True)
class Spec:
    """How a router is set: its workers, where its Redis is (None: it shares nothing), its policy."""

    workers: int
    redis: RedisServer | None
    policy: str = "prefix_affinity"


class Router:
    """One of them. Built by `router`."""

    def __init__(self, fleet: Fleet, crew: Crew, workers: list[Worker]) -> None:
        self.fleet, self.crew, self.workers = fleet, crew, workers

    @property
    def name(self) -> str:
        """What the others know it by."""
        return self.crew.link.name if self.crew.link is not None else ""


@asynccontextmanager
async def router(spec: Spec, replicas: Replicas) -> AsyncIterator[Router]:
    """A router that knows all replicas as ready and serves; it says goodbye in the end."""
    loop = asyncio.get_running_loop()
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="homing-router-")))
        loaded = load(_file(spec, replicas, directory), {})
        secrets = loaded.secrets()
        fleet = Fleet(loaded.config.routing.make(), loaded.config.fleet_settings())
        fleet.join([each.spec() for each in loaded.config.replicas], time.monotonic())
        for replica, driver in replicas.drivers.items():
            fleet.engine(replica, 1.0, driver.engine.capacity, 0.0)
            fleet.serves(replica, {MODEL: {}})
            fleet.mark(replica, State.READY, "is always well", time.monotonic())
        crew = Crew(fleet, Tally(fleet, 100), running(loaded, secrets), time.monotonic, lambda _: None, _ignore)
        found = crew.link = link(loaded.config, secrets, directory, fleet, crew, _ignore)
        if found is not None:
            await found.start()
            stack.push_async_callback(found.stop)
        workers = [await _hired(crew, str(number)) for number in range(spec.workers)]
        for worker in workers:
            stack.push_async_callback(worker.stopped.wait)
            stack.callback(worker.drain, 0.0, 0.0, 0.0)
        keeping = loop.create_task(crew.keep_snapshot())
        stack.callback(keeping.cancel)
        yield Router(fleet, crew, workers)


async def _hired(crew: Crew, name: str) -> Worker:
    ours, theirs = socket.socketpair()
    worker, _ = await asyncio.gather(join(theirs, []), crew.join(name, ours))
    return worker


def _file(spec: Spec, replicas: Replicas, directory: Path) -> Path:
    """Its configuration. Nobody listens at the replicas' addresses."""
    members = [{"id": name, "url": f"http://{HOST}:{port}"} for port, name in enumerate(replicas.drivers, 1)]
    routing = {"prefix_block": BLOCK, "policy": spec.policy}
    tree: dict[str, object] = {"replicas": members, "routing": routing, "drain": {"timeout": "1s"}}
    if spec.redis is not None:
        (directory / "secret").write_text(SECRET)
        tree["gossip"] = {"url": spec.redis.url, "secret_file": "secret"}
    path = directory / "router.yaml"
    path.write_text(yaml.safe_dump(tree), encoding="utf-8")
    return path


def _ignore(*_: object) -> None:
    """Nothing is sent over HTTP here, and so nothing fails."""
