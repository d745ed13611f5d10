"""Routers that share over a real Redis: what one does the others know, and what Redis does to them is no request's."""

import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec
import pytest

from loadtests.redisserver import RedisServer, redis_server
from router.core import peers
from router.core.types import ReplicaId
from router.gossip import incoming, numbered, snapshot
from router.gossip import link as gossip_link
from router.gossip.messages import Batch, Load, unpacked
from tests.e2e.supervised import Crewed, Engine, Stream, eventually, finished, tree_of
from tests.rig import until
from tests.scripted import ScriptedReplica

SECRET = "a secret of the whole fleet"
WITHIN = 20.0


class Routers:
    """Several routers in front of the same replicas, all in this loop."""

    def __init__(self, stack: AsyncExitStack, directory: Path, replicas: list[ScriptedReplica], server: RedisServer):
        self._stack, self._directory, self._replicas, self._server = stack, directory, replicas, server
        self.engine: Engine

    async def add(self, name: str, prefix_block: int = 512, **gossip: Any) -> Crewed:
        """One more, which serves; `gossip` are settings of that section."""
        directory = self._directory / name
        directory.mkdir(parents=True)
        (directory / "secret").write_text(gossip.pop("secret", SECRET))
        if "password" in gossip:
            (directory / "password").write_text(gossip.pop("password"))
            gossip["password_file"] = "password"
        shared = {"url": self._server.url, "secret_file": "secret"} | gossip
        sections = {"gossip": shared, "routing": {"prefix_block": prefix_block}, "health": {"interval": "1s"}}
        router = Crewed(directory, tree_of(self._replicas) | sections | {"workers": 1})
        await router.start()
        self._stack.push_async_callback(router.stop)
        await router.ready(*(f"r{number}" for number in range(1, len(self._replicas) + 1)))
        return router


@asynccontextmanager
async def routers(directory: Path, server: RedisServer, count: int = 2) -> AsyncIterator[tuple[Routers, Engine]]:
    """None yet, in front of so many replicas."""
    engine = Engine()
    async with AsyncExitStack() as stack:
        replicas = [await stack.enter_async_context(ScriptedReplica(engine)) for _ in range(count)]
        yield Routers(stack, directory, replicas, server), engine
        engine.end()


def link(router: Crewed) -> Any:
    found = router.control._link
    assert found is not None
    return found


def others(router: Crewed) -> dict[ReplicaId, int]:
    """Requests that its worker knows other routers to have."""
    fleet = router.workers[0].fleet
    return {replica.id: replica.others.requests if replica.others else 0 for replica in fleet.replicas}


def held(router: Crewed) -> dict[ReplicaId, int]:
    fleet = router.workers[0].fleet
    return {replica.id: fleet.residency.held(replica.id) for replica in fleet.replicas}


async def acquainted(*all_of_them: Crewed) -> None:
    """Wait until each knows all the others, and their workers do."""
    least = len(all_of_them) - 1
    await until(
        lambda: all(link(each).peers == least and len(each.workers[0].fleet.peers) == least for each in all_of_them),
        WITHIN,
    )


async def test_what_one_router_has_under_way_the_others_know_and_a_finished_one_is_gone(tmp_path: Path) -> None:
    """CASES A19, A78: three of them, and each hears all."""
    async with redis_server() as server, routers(tmp_path, server) as (fleet, engine):
        first, second, third = [await fleet.add(name) for name in "abc"]
        await acquainted(first, second, third)
        streams = [Stream(first, f"{number} " * 400) for number in range(6)]
        await until(lambda: all(stream.chunks for stream in streams), WITHIN)
        for other in (second, third):
            await until(lambda other=other: sum(others(other).values()) == 6, WITHIN)  # type: ignore[misc]
            assert await first.requests() == others(other)
        engine.end()
        await finished(streams)
        await until(lambda: not any(others(second).values()) and not any(others(third).values()), WITHIN)


async def test_a_prompt_goes_to_its_holder_whichever_router_is_asked(tmp_path: Path) -> None:
    """CASES A77: end to end, and not the adapter alone."""
    async with redis_server() as server, routers(tmp_path, server, 3) as (fleet, _):
        first, second = [await fleet.add(name) for name in "ab"]
        await acquainted(first, second)
        for number in range(12):
            prompt = f"{number} " * 800
            sent = (await first.chat(prompt)).headers["x-homing-replica"]
            await until(lambda: held(first) == held(second), WITHIN)
            answer = await second.chat(prompt)
            assert (answer.headers["x-homing-replica"], answer.headers["x-homing-reason"]) == (sent, "holder")


async def test_a_router_that_stops_takes_its_load_along_at_once_and_one_that_dies_after_two_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (incoming, peers):
        monkeypatch.setattr(module, "TTL", 10 * WITHIN)
    async with redis_server() as server, routers(tmp_path, server) as (fleet, _):
        first, second, third = [await fleet.add(name) for name in "abc"]
        await acquainted(first, second, third)
        streams = [Stream(router, f"{router.url} " * 200) for router in (first, second)]
        await until(lambda: sum(others(third).values()) == 2, WITHIN)
        await link(first).stop()
        await until(lambda: link(third).peers == 1 and sum(others(third).values()) == 1, WITHIN)
        monkeypatch.undo()
        for task in link(second)._tasks:  # As if its process had been killed.
            task.cancel()
        await until(lambda: link(third).peers == 0 and not any(others(third).values()), WITHIN)
        for stream in streams:
            stream.task.cancel()


async def test_a_router_that_joins_knows_the_load_of_the_others_before_it_serves(tmp_path: Path) -> None:
    """CASES B60."""
    async with redis_server() as server, routers(tmp_path, server) as (fleet, engine):
        first = await fleet.add("a")
        streams = [Stream(first, f"{number} " * 400) for number in range(4)]
        await until(lambda: all(stream.chunks for stream in streams), WITHIN)
        await told(server, first, 4)
        second = await fleet.add("b")
        assert sum(others(second).values()) == 4
        engine.end()
        await finished(streams)


async def test_a_router_that_joins_sends_known_prompts_where_the_others_do_from_the_first(
    tmp_path: Path,
) -> None:
    """CASES B4: also after the others have gone, as in a rolling restart of all."""
    async with redis_server() as server, routers(tmp_path, server, 4) as (fleet, _):
        first = await fleet.add("a")
        prompts = [f"{number} " * 900 for number in range(40)]
        sent = [(await first.chat(prompt)).headers["x-homing-replica"] for prompt in prompts]
        await written(server, first)
        second = await fleet.add("b")
        assert sum(held(second).values()) == 0
        answers = [await second.chat(prompt) for prompt in prompts]
        assert [answer.headers["x-homing-replica"] for answer in answers] == sent
        assert {answer.headers["x-homing-reason"] for answer in answers} == {"holder"}
        await link(first).stop()
        await written(server, second)
        await link(second).stop()
        third = await fleet.add("c")
        assert [(await third.chat(prompt)).headers["x-homing-replica"] for prompt in prompts] == sent


async def test_a_router_that_joins_learns_what_goes_on_from_a_known_chain_just_before_it_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the snapshot did not have yet, and makes no sense to whom it tells that chain at powers of two only: the
    snapshot is read twice."""
    monkeypatch.setattr(snapshot, "PERIOD", 0.5)
    monkeypatch.setattr(gossip_link, "SETTLING", 2.5)
    monkeypatch.setattr(numbered, "KEPT_BEATS", 2)
    async with redis_server() as server, routers(tmp_path, server, 4) as (fleet, _):
        first, second = [await fleet.add(name) for name in "ab"]
        await acquainted(first, second)
        await until(lambda: all(link(each)._joined_at + 2.5 < monotonic() for each in (first, second)), WITHIN)
        known_ones = [f"{number} known before " * 300 for number in range(12)]
        for prompt in known_ones:
            await first.chat(prompt)
        await written(server, first)
        telling = link(first)._outgoing._telling
        await until(lambda: telling.oldest == telling.next > 0, WITHIN)
        prompts = [prompt[: 6 * 512] + "just before " * 100 for prompt in known_ones]
        sent = [(await first.chat(prompt)).headers["x-homing-replica"] for prompt in prompts]
        third = await fleet.add("c")
        known = third.workers[0].fleet.snapshots
        await until(
            lambda: all(
                set(first.workers[0].fleet.snapshots.summary(name).hashes) <= set(known.summary(name).hashes)
                for name in held(first)
            ),
            WITHIN,
        )
        assert [(await third.chat(prompt)).headers["x-homing-replica"] for prompt in prompts] == sent


async def told(server: RedisServer, router: Crewed, requests: int) -> None:
    """Wait until one who joins can read that this router has so many requests under way."""
    sharing = link(router)
    key = sharing._state(sharing.name)

    async def is_there() -> bool:
        async with server.client() as client:
            value = await client.get(key)
        if value is None:
            return False
        batch = msgspec.msgpack.decode(sharing.seal.open(value, key.encode()), type=Batch)
        loads = [each.loads for each in batch.news if isinstance(each, Load)]
        return any(sum(row[0] for row in each.values()) == requests for each in loads)

    await eventually(is_there)


async def written(server: RedisServer, router: Crewed) -> None:
    """Wait until all that this router knows can be read by one who joins."""
    fleet = router.workers[0].fleet

    async def is_there() -> bool:
        found: list[int] = []
        async with server.client() as client:
            for replica in fleet.replicas:
                key = link(router)._part(replica.id)
                value = await client.get(key)
                if value is not None:
                    found += unpacked(
                        link(router)._summaries.decode(link(router).seal.open(value, key.encode())).hashes
                    )
        known = [block for replica in fleet.replicas for block in fleet.snapshots.summary(replica.id).hashes]
        return set(found) >= set(known)

    await eventually(is_there)


async def test_a_snapshot_that_nobody_can_have_written_is_not_believed(tmp_path: Path) -> None:
    async with redis_server() as server, routers(tmp_path, server) as (fleet, _):
        first = await fleet.add("a")
        await first.chat("hello " * 900)
        async with server.client() as client:
            for key in (link(first)._part("r1"), link(first)._part("r2")):
                await client.set(key, link(first).seal.close(b"no summary", key.encode()))
            await client.set(link(first)._part("r2"), b"x" * 50)
            second = await fleet.add("b")
        assert dict(link(second).dropped) == {"malformed": 1, "foreign": 1}
        assert (await second.chat("hello " * 900)).status == 200


def news_dropped(router: Crewed) -> dict[str, int]:
    """Without what was found out of another secret, which comes when it comes."""
    return {flaw: times for flaw, times in link(router).dropped.items() if flaw != "secret"}


async def test_routers_of_two_fleets_have_nothing_in_common(tmp_path: Path) -> None:
    async with redis_server() as server, routers(tmp_path, server) as (fleet, _):
        first = await fleet.add("a")
        second = await fleet.add("b", secret="another secret of another fleet")
        await until(lambda: link(first).up and link(second).up, WITHIN)
        await first.chat("hello " * 400)
        assert link(first).seal.prefix != link(second).seal.prefix
        async with server.client() as client:
            await client.publish(link(first).channel, b"x" * 100)
            await client.publish(link(first).channel, link(second).seal.close(b"not theirs"))
            await client.publish(link(first).channel, b"short")
        await until(lambda: news_dropped(first) == {"foreign": 2, "malformed": 1}, WITHIN)
        assert (link(first).peers, link(second).peers) == (0, 0)
        assert await first.metric("homing_redis_dropped_total") == sum(link(first).dropped.values())


async def test_routers_that_should_share_and_cannot_say_why_and_what_to_do(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with redis_server() as server, routers(tmp_path, server) as (fleet, _):
        first = await fleet.add("a")
        await fleet.add("b", secret="another secret in front of the same replicas")
        await fleet.add("c", prefix_block=1024)

        def said(remedy: str) -> int:
            return sum(record.levelno == logging.WARNING and remedy in record.message for record in caplog.records)

        await until(lambda: link(first).dropped["settings"] >= 2, WITHIN)  # Said once all the same.
        await until(lambda: said("give both the same `gossip.secret_file`") >= 1, WITHIN)
        assert said("`routing.prefix_block`") == 2  # By each of the two.
        assert said("1024 there, 512 here") == 1
        text = (await first.get("/metrics"))[1]
        assert 'homing_redis_dropped_total{reason="settings"}' in text


async def test_nothing_that_is_in_redis_tells_what_was_asked(tmp_path: Path) -> None:
    async with redis_server() as server, routers(tmp_path, server) as (fleet, _), server.client() as client:
        seen = client.pubsub()
        await seen.psubscribe("*")
        first, second = [await fleet.add(name) for name in "ab"]
        await acquainted(first, second)
        await first.chat("tell nobody this sentence " * 100)
        await until(lambda: sum(held(second).values()) > 0, WITHIN)
        await written(server, first)
        values = [await client.get(key) or b"" for key in await client.keys() if await client.type(key) == b"string"]
        news = []
        while (message := await seen.get_message(timeout=0.2)) is not None:
            news.append(message["data"] if isinstance(message["data"], bytes) else b"")
        await seen.aclose()  # type: ignore[no-untyped-call]
        assert len(news) > 4
        assert values
        assert not [data for data in [*news, *values] if b"sentence" in data or SECRET.encode() in data]


async def test_a_router_whose_redis_is_not_there_starts_and_serves(tmp_path: Path) -> None:
    async with redis_server() as server, routers(tmp_path, server) as (fleet, _):
        await server.kill()
        router = await fleet.add("a")
        assert (await router.chat()).status == 200
        assert "efused" in link(router).problem or "onnect" in link(router).problem

        async def degraded() -> bool:
            return "[~]gossip degraded" in (await router.get("/readyz?verbose"))[1]

        await eventually(degraded)
