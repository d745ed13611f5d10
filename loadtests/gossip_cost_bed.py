"""Routers in front of stand-ins, sharing over a real Redis or not at all, as processes of their own; and their load.

What is measured of a router is read from /proc: CPU and memory of its supervisor and of its worker, each by itself.
"""

import asyncio
import contextlib
import re
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random

import aiohttp
import msgspec

from loadtests.fleet import GRACE_S, Fleet, router_yaml, routing
from loadtests.meter import cpu_seconds, resident_mb
from loadtests.native import Tools, listening_port
from loadtests.paced import Answered, Paced
from loadtests.processes import HOST, Process, children, free_port, running
from loadtests.redisserver import redis_server

REPLICAS = 4
MODEL = "bench"
BODY = 8_000
"""Bytes of a prompt, the middle of bench_proxy's three sizes."""

KNOWN = 64
"""Prompts that come again and again: each some six times a second, at 500 requests a second."""

INDEX = 15_000
"""Blocks that a router remembers, about what four H100s hold for 70B models (467,000 tokens each): so the index is full
before anything is measured, as it is in any fleet that has run for a while, and what grows is something else."""

SECRET = "a secret of the load test's fleet"  # noqa: S105 - It guards nothing.
_INTERVAL_MS = 1
_MEET_WITHIN_S = 20.0


_TEXT = ("what is computed once need not be computed again " * BODY)[:BODY]


def prompt(number: int) -> bytes:
    """A request of its own: no block of it is another's, since a chain commits to its beginning."""
    message = {"role": "user", "content": f"{number} {_TEXT}"}
    return msgspec.json.encode({"model": MODEL, "messages": [message]})


class Prompts:
    """One client's: the share `resident` of them is what all clients ask again and again, the rest was never seen.
    `serial` is a number that no other client has."""

    def __init__(self, serial: int, resident: float) -> None:
        self._rng, self._first, self._resident = Random(serial), (serial + 1) * 1_000_000, resident

    def body(self, number: int) -> bytes:
        """The next one, `number` of this client."""
        known = self._rng.random() < self._resident
        return prompt(self._rng.randrange(KNOWN) if known else self._first + number)


@dataclass(frozen=True, slots=True)
class Spent:
    """Readings of all routers: CPU seconds and MB of supervisors and of workers, messages published, bytes sent."""

    supervisors: float
    workers: float
    memory: float
    published: float
    sent: float


@dataclass(frozen=True, slots=True)
class Router:
    """One of them, ready."""

    process: Process
    fleet: Fleet

    @property
    def port(self) -> int:
        """Where clients connect."""
        return int(self.fleet.url.rpartition(":")[2])

    async def spent(self) -> Spent:
        """What it has used so far."""
        pid = self.process.pid
        workers = children(pid)
        worked = sum(map(cpu_seconds, workers))
        text = await self.metrics()
        return Spent(
            cpu_seconds(pid) - worked,
            worked,
            sum(map(resident_mb, [pid, *workers])),
            _value(text, 'homing_redis_operation_duration_seconds_count{op="publish",outcome="ok"}'),
            _value(text, 'homing_redis_bytes_total{direction="sent"}'),
        )

    async def metrics(self) -> str:
        """The page of that name."""
        async with aiohttp.ClientSession() as http, http.get(f"{self.fleet.admin_url}/metrics") as page:
            return await page.text()


def _value(text: str, sample: str) -> float:
    """Of a sample, 0 when it is not there."""
    found = re.search(rf"^{re.escape(sample)} (\S+)$", text, re.MULTILINE)
    return float(found[1]) if found else 0.0


async def spent(routers: Sequence[Router]) -> Spent:
    """The sum over all of them."""
    each = [await router.spent() for router in routers]
    return Spent(*[sum(column) for column in zip(*[_row(one) for one in each], strict=True)])


def _row(one: Spent) -> tuple[float, ...]:
    return one.supervisors, one.workers, one.memory, one.published, one.sent


@contextlib.asynccontextmanager
async def routers(tools: Tools, count: int, gossip: bool, start: Sequence[str]) -> AsyncIterator[list[Router]]:
    """So many routers that serve, and know one another where they share; gone after the block.

    `start` begins a router's command line. Raises ProcessError when something does not get ready.
    """
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="homing-routers-")))
        (directory / "secret").write_text(SECRET, encoding="utf-8")
        replicas = [tools.replica(f"r{number}", _INTERVAL_MS, MODEL) for number in range(1, REPLICAS + 1)]
        await stack.enter_async_context(running(replicas, GRACE_S))
        urls = {each.name: f"http://{HOST}:{await listening_port(each)}" for each in replicas}
        settings: dict[str, object] = {"limits": {"index_blocks": INDEX}}
        if gossip:
            server = await stack.enter_async_context(redis_server())
            settings["gossip"] = {"url": server.url, "secret_file": "secret"}
        built = [_built(directory, number, urls, settings, start) for number in range(count)]
        await stack.enter_async_context(running([each.process for each in built], GRACE_S))
        for each in built:
            await routing(each.process, each.fleet)
            if gossip:
                await each.process.ready(lambda each=each: _met(each, count - 1), _MEET_WITHIN_S)  # type: ignore[misc]
        yield built


def _built(
    directory: Path, number: int, urls: dict[str, str], settings: dict[str, object], start: Sequence[str]
) -> Router:
    config = directory / f"{number}.yaml"
    process = Process(f"router {number}", (*start, "serve", "-c", str(config)), directory / f"{number}.log")
    front, admin = (f"http://{HOST}:{free_port()}" for _ in range(2))
    fleet = Fleet(front, admin, urls, (process,))
    config.write_text(router_yaml(fleet, "prefix_affinity", settings), encoding="utf-8")
    return Router(process, fleet)


async def _met(router: Router, others: int) -> bool | None:
    return _value(await router.metrics(), "homing_peers") >= others or None


async def drive(routers: Sequence[Router], rate: float, seconds: float, resident: float, serial: int) -> list[Answered]:
    """So many requests a second to each router for this time; all that was answered. Each call has a `serial` of its
    own, by which its new prompts are new."""
    loads = [
        _client(router, rate, seconds, number / len(routers), Prompts(serial * len(routers) + number, resident))
        for number, router in enumerate(routers)
    ]
    return [one for answered in await asyncio.gather(*loads) for one in answered]


async def _client(router: Router, rate: float, seconds: float, turn: float, prompts: Prompts) -> list[Answered]:
    """One router's; clients take turns, each `turn` of the time between two requests after the first of them."""
    client = Paced(router.port, prompts.body)
    await asyncio.sleep(turn / rate)
    try:
        return await client.run(rate, seconds)
    finally:
        client.close()
