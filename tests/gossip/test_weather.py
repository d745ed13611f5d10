"""Two routers, a real Redis, and what may happen to it or on the way there: requests are served as if nothing were,
from what each router knows; it is said once; and when it is over they decide as one again, with nothing left behind.
"""

import asyncio
import logging
import re
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from loadtests.redisserver import RedisServer, redis_server
from router.gossip import redis, talk
from tests.authority import Authority
from tests.e2e.supervised import Crewed, Engine, Stream, eventually, finished
from tests.gossip.test_redis import WITHIN, acquainted, held, link, others, routers, written
from tests.gossip.wire import Wire, wired
from tests.rig import until

KNOWN = "known before " * 100
DELAY = 0.1
"""Seconds each way over a slow network that still serves."""


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of what is said and what is not: a machine that stands still for a second is no weather of Redis."""
    assert talk.TIMEOUT > 4 * DELAY
    for module in (redis, talk):
        monkeypatch.setattr(module, "TIMEOUT", 10.0)
    monkeypatch.setattr(talk, "SILENCE", 30.0)


class Pair:
    """Two routers that know each other over a network that is good so far."""

    def __init__(self, server: RedisServer, wire: Wire, engine: Engine, add: Callable[..., Awaitable[Crewed]]) -> None:
        self.server, self.wire, self.engine, self.add = server, wire, engine, add
        self.both: list[Crewed] = []
        self.home = ""

    async def meet(self, **gossip: Any) -> None:
        """Start the two, and have them know a prompt."""
        self.both = [await self.add(name, **gossip) for name in "ab"]
        await acquainted(*self.both)
        self.home = (await self.both[0].chat(KNOWN)).headers["x-homing-replica"]
        await until(lambda: held(self.both[0]) == held(self.both[1]), WITHIN)

    def all_up(self, up: bool) -> bool:
        """Whether the links of both are so."""
        return all(link(each).up is up for each in self.both)

    async def serves(self) -> None:
        """Both answer, and send what they know home."""
        for number, each in enumerate(self.both):
            answer = await each.chat(KNOWN)
            assert (answer.headers["x-homing-replica"], answer.headers["x-homing-reason"]) == (self.home, "holder")
            assert (await each.chat(f"{number} is new " * 100)).status == 200

    async def agree(self) -> None:
        """They decide as one again."""
        first, second = self.both
        await until(lambda: self.all_up(True), WITHIN)
        await acquainted(first, second)
        for one, other in ((first, second), (second, first)):
            own = await one.requests()
            await until(lambda other=other, own=own: others(other) == own, WITHIN)  # type: ignore[misc]
        await until(lambda: held(first) == held(second), WITHIN)


@asynccontextmanager
async def pair(directory: Path, tls: Authority | None = None, **gossip: Any) -> AsyncIterator[Pair]:
    """Two routers over a wire."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(redis_server())
        wire = await stack.enter_async_context(wired(server.port, None if tls is None else tls.serving()))
        fleet, engine = await stack.enter_async_context(routers(directory, server, 3))
        found = Pair(server, wire, engine, fleet.add)
        scheme = "redis" if tls is None else "rediss"
        trust = {} if tls is None else {"tls": {"ca_file": str(tls.ca)}}
        await found.meet(url=f"{scheme}://127.0.0.1:{wire.port}", **trust, **gossip)
        yield found


# What may happen.


@dataclass(frozen=True, slots=True)
class Weather:
    """How it begins and ends, and a pattern of what the routers say of it.

    `tells`: a line that is tried again hears what others have written, all the same.
    """

    name: str
    begin: Callable[[Pair], Awaitable[None]]
    end: Callable[[Pair], Awaitable[None]]
    said: str
    tls: bool = False
    tells: bool = False


async def heal(pair: Pair) -> None:
    pair.wire.heal()


async def freeze(pair: Pair) -> None:
    pair.server.process.signal(signal.SIGSTOP)


async def thaw(pair: Pair) -> None:
    pair.server.process.signal(signal.SIGCONT)


async def die(pair: Pair) -> None:
    pair.wire.dead = True


async def deafen(pair: Pair) -> None:
    pair.wire.deaf = True


async def slow_down(pair: Pair) -> None:
    pair.wire.delay = 0.7


async def narrow(pair: Pair) -> None:
    pair.wire.rate = 100.0


async def break_off(pair: Pair) -> None:
    pair.wire.refusing = True
    pair.wire.cut()


async def kill(pair: Pair) -> None:
    await pair.server.kill()


async def start(pair: Pair) -> None:
    await pair.server.start()


async def lock(pair: Pair) -> None:
    async with pair.server.client() as client:
        await client.config_set("requirepass", "another")
    pair.wire.cut()


async def unlock(pair: Pair) -> None:
    async with pair.server.client("another") as client:
        await client.config_set("requirepass", "")


WEATHERS = {
    weather.name: weather
    for weather in (
        Weather("frozen", freeze, thaw, "no answer within 1 s"),
        Weather("half-open", die, heal, "no answer within 1 s"),
        Weather("half-open over TLS", die, heal, "no answer within 1 s", tls=True),
        Weather("deaf", deafen, heal, "nothing that was sent has come back for 3 s|no answer within 1 s", tells=True),
        Weather("slow", slow_down, heal, "no answer within 1 s"),
        Weather("narrow", narrow, heal, "no answer within 1 s"),
        Weather("broken off", break_off, heal, ""),
        Weather("killed and back empty", kill, start, ""),
        Weather("locked", lock, unlock, ""),
    )
}


@pytest.mark.parametrize("name", WEATHERS)
async def test_what_befalls_redis_is_no_requests_and_when_it_is_over_they_agree(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """CASES B63."""
    caplog.set_level(logging.INFO, "homing.gossip")
    weather = WEATHERS[name]
    async with pair(tmp_path, Authority(tmp_path) if weather.tls else None) as two:
        tasks = len(asyncio.all_tasks())
        caplog.clear()
        await through(weather, two)
        await until(lambda: len(asyncio.all_tasks()) <= tasks, WITHIN)
    warned = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    # One each; a machine that is starved may lose and find the line once more.
    assert 2 <= len(warned) <= 4, caplog.text
    assert len(caplog.records) == 2 * len(warned), caplog.text
    assert any(re.search(weather.said, message) for message in warned), warned


async def through(weather: Weather, two: Pair) -> None:
    """From good weather into bad and out again."""
    first, second = two.both
    connections = two.wire.open
    await weather.begin(two)
    try:
        await two.serves()  # At once, before anybody has noticed.
        await until(lambda: two.all_up(False), WITHIN)
        await two.serves()
        stream = Stream(first, "while it lasts " * 100)
        await until(lambda: stream.chunks > 0, WITHIN)
        await degraded(first)
        if not weather.tells:
            await until(lambda: link(second).peers == 0 and not any(others(second).values()), WITHIN)
    finally:
        await weather.end(two)
    await two.agree()
    assert sum(others(second).values()) == 1
    await recovered(first)
    two.engine.end()
    await finished([stream])
    await until(lambda: two.wire.open <= connections, WITHIN)


async def degraded(router: Crewed) -> None:
    """It says so, and is ready all the same."""
    status, text = await router.get("/readyz?verbose")
    assert status == 200
    assert "[~]gossip degraded: " in text
    assert await router.metric("homing_redis_up") == 0
    age = await router.metric("homing_peer_view_age_seconds")
    await until(lambda: link(router).view_age() > age, WITHIN)


async def recovered(router: Crewed) -> None:
    """It says nothing any more."""
    assert (await router.get("/readyz"))[1] == "ok"
    assert await router.metric("homing_redis_up") == 1
    assert await router.metric("homing_peers") == 1
    await eventually(lambda: is_of_late(router))
    assert await router.metric("homing_redis_dropped_total") == 0


async def is_of_late(router: Crewed) -> bool:
    return await router.metric("homing_peer_view_age_seconds") < 3


# What is no outage, and what takes somebody to mend it.


@pytest.mark.usefixtures("patience")
async def test_a_slow_network_makes_news_later_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with pair(tmp_path) as two:
        await written(two.server, two.both[0])
        two.wire.delay = DELAY
        beats = link(two.both[0]).received
        stream = Stream(two.both[0], "over a slow network " * 100)
        await until(lambda: sum(others(two.both[1]).values()) == 1, WITHIN)
        third = await two.add("c", url=f"redis://127.0.0.1:{two.wire.port}")
        assert sum(others(third).values()) == 1
        answer = await third.chat(KNOWN)
        assert (answer.headers["x-homing-replica"], answer.headers["x-homing-reason"]) == (two.home, "holder")
        await until(lambda: link(third).peers == 2, WITHIN)
        assert link(two.both[0]).received > beats
        assert two.all_up(True)
        two.engine.end()
        await finished([stream])
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_another_server_behind_the_address_is_taken_up_when_the_old_one_becomes_its_copy(tmp_path: Path) -> None:
    """The old one takes what is published still, and nothing that is written: sessions with it must end."""
    async with pair(tmp_path) as two, redis_server() as new:
        old = len(two.wire.accepted)
        two.wire.target = new.port  # For connections to come; those that are there stay.
        async with two.server.client() as client:
            await client.replicaof("127.0.0.1", str(new.port))
        await until(lambda: len(two.wire.accepted) > old, WITHIN)
        await two.serves()
        await two.agree()
        channel = link(two.both[0]).channel
        async with new.client() as client, asyncio.timeout(WITHIN):
            while await client.pubsub_numsub(channel) != [(channel.encode(), 2)]:  # noqa: ASYNC110 - Redis tells none.
                await asyncio.sleep(0.01)


@pytest.mark.usefixtures("patience")
async def test_redis_over_tls_is_trusted_by_its_authority_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ours, strangers = Authority(tmp_path), Authority(tmp_path, "strangers")
    async with pair(tmp_path, ours) as two:
        url = f"rediss://127.0.0.1:{two.wire.port}"
        third = await two.add("c", url=url, tls={"ca_file": str(strangers.ca)})
        assert (await third.chat(KNOWN)).status == 200

        async def has_tried() -> bool:
            return await third.metric("homing_redis_operation_duration_seconds_count") >= 3

        await eventually(has_tried)
        assert "(see `gossip.tls.ca_file`)" in link(third).problem
        assert two.all_up(True)
    assert [record.levelname for record in caplog.records].count("WARNING") == 1, caplog.text


@pytest.mark.usefixtures("patience")
async def test_a_wrong_password_is_said_once_and_the_right_one_ends_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "homing.gossip")
    async with redis_server("--requirepass", "right") as server, routers(tmp_path, server) as (fleet, _):
        router = await fleet.add("a", password="wrong")
        assert (await router.chat()).status == 200
        async with server.client("right") as client:

            async def has_tried() -> bool:
                entries: list[Any] = await client.acl_log()
                return sum(int(entry["count"]) for entry in entries) >= 4

            await eventually(has_tried)
            assert "`gossip.password_file`" in link(router).problem
            await client.config_set("requirepass", "wrong")
        await until(lambda: link(router).up, WITHIN)
    said = [(record.levelname, record.message) for record in caplog.records if record.name == "homing.gossip"]
    assert [level for level, _ in said] == ["WARNING", "INFO"]
    assert "wrong" not in re.sub("WRONGPASS", "", said[0][1])


@pytest.mark.usefixtures("patience")
async def test_a_redis_whose_memory_is_full_still_carries_news(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "homing.gossip")
    async with pair(tmp_path) as two:
        first, second = two.both
        caplog.clear()
        async with two.server.client() as client:
            await client.config_set("maxmemory-policy", "noeviction")
            await client.config_set("maxmemory", "1")
        await until(lambda: all("memory" in (link(each).problem or "") for each in two.both), WITHIN)
        stream = Stream(first, "hello " * 400)
        await until(lambda: sum(others(second).values()) == 1 and held(first) == held(second), WITHIN)
        await two.serves()
        assert link(second).peers == 1
        assert "[~]gossip degraded: " in (await first.get("/readyz?verbose"))[1]
        async with two.server.client() as client:
            await client.config_set("maxmemory", "0")
        await two.agree()
        await recovered(first)
        two.engine.end()
        await finished([stream])
    said = Counter(record.levelname for record in caplog.records if record.name == "homing.gossip")
    assert said == {"WARNING": 2, "INFO": 2}, caplog.text


async def test_who_is_refused_tries_again_ever_more_slowly(tmp_path: Path) -> None:
    async with wired(1) as wire, redis_server() as server, routers(tmp_path, server) as (fleet, _):
        wire.refusing = True
        router = await fleet.add("a", url=f"redis://127.0.0.1:{wire.port}")
        assert (await router.chat()).status == 200
        await until(lambda: len(wire.accepted) >= 5, WITHIN)
        gaps = [later - sooner for sooner, later in pairwise(wire.accepted)]
        for gap, pause in zip(gaps, (0.2, 0.4, 0.8, 0.8), strict=False):
            assert gap > 0.5 * pause
        assert wire.open == 0
