"""A real worker over simulated replicas, on ports of its own."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from replica.server import SimulatedReplica
from replica.settings import ReplicaSettings
from router.app import Worker
from router.control import Control
from tests.rig import hired, loaded_of


@dataclass
class Router:
    """A running worker, its URL for clients, and clients of its two ports."""

    worker: Worker
    url: str
    clients: aiohttp.ClientSession
    admin: aiohttp.ClientSession

    async def total(self, name: str) -> float:
        """The sum of a metric's samples, as Prometheus would see it."""
        return (await self.totals(name))[0]

    async def totals(self, *names: str) -> list[float]:
        """The same for several, of one scrape."""
        async with self.admin.get("/metrics") as response:
            families = text_string_to_metric_families(await response.text())
        samples = [sample for family in families for sample in family.samples]
        return [sum(sample.value for sample in samples if sample.name == name) for name in names]

    async def ready(self) -> bool:
        """Whether it says that it is."""
        async with self.admin.get("/readyz") as response:
            return response.status == 200


@asynccontextmanager
async def replicas_of(count: int, **settings: Any) -> AsyncIterator[list[SimulatedReplica]]:
    """So many fast replicas: 200 times an H100, so that a prompt of 1,000 tokens takes a fraction of a millisecond."""
    each = ReplicaSettings(**{"speed": 200, "blocks": 4_000} | settings)
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(SimulatedReplica(each)) for _ in range(count)]


@asynccontextmanager
async def router_over(replicas: Sequence[SimulatedReplica], **settings: Any) -> AsyncIterator[Router]:
    """A router that knows all of them as ready; `settings` are sections of its configuration."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    urls = ["http://{}:{}".format(*one.getsockname()) for one in sockets]
    values = {
        "listen": "127.0.0.1:0",
        "admin": "127.0.0.1:0",
        "replicas": [{"id": f"r{i}", "url": replica.url} for i, replica in enumerate(replicas)],
        "health": {"interval": "50ms"},
        "ready": {"min_replicas": len(replicas)},
        "drain": {"timeout": "1s"},
    }
    loaded = loaded_of(values | settings)
    control = Control(loaded, loaded.secrets(), sockets[1])
    worker = await hired(control, sockets[0])
    await control.start()
    try:
        async with aiohttp.ClientSession(urls[0]) as clients, aiohttp.ClientSession(urls[1]) as admin:
            router = Router(worker, urls[0], clients, admin)
            await until(router.ready)
            yield router
    finally:
        await worker.stop()
        await control.stop()


async def until(true: Callable[[], Awaitable[object]]) -> None:
    """Ask from outside until it is so; TimeoutError after 10 s."""
    async with asyncio.timeout(10):
        while not await true():  # noqa: ASYNC110  A router tells nobody when it has probed.
            await asyncio.sleep(0.01)
