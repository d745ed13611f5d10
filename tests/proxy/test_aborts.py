"""A client that leaves, in whatever phase: the replica stops working for it, and nothing is left behind here."""

import asyncio
import socket
from collections import Counter
from collections.abc import Callable
from random import Random
from types import CoroutineType
from typing import Any

import pytest

from replica.server import SimulatedReplica
from replica.settings import ReplicaSettings
from router.core.record import Phase
from router.core.types import Outcome
from router.proxy.server import ClientConnection
from tests.authority import Authority
from tests.browser import asked, chat, connected, post
from tests.rig import WITHIN, routing, scripted, until
from tests.scripted import HOST, STREAM, Call, ScriptedReplica, chunks, closing, full, hang, sent, whole

ABORT_WITHIN = 2.0
"""Seconds within which an engine must hear that nobody reads any more."""

ONE_SECOND = 1.0

SELDOM = {"interval": "60s"}


async def gone(call: Call) -> None:
    await asyncio.wait_for(call.gone.wait(), ABORT_WITHIN)


async def test_a_client_that_leaves_while_it_uploads_never_became_a_request() -> None:
    async with scripted(whole()) as (rig, [replica]):
        async with connected(rig) as client:
            await client.send(post("/v1/chat/completions", b"x" * 500_000)[:300_000])
            await until(lambda: rig.worker.clients)
        await until(lambda: rig.records)
        assert (rig.record.left, rig.record.status, rig.record.attempts) == (Phase.UPLOADING, 0, [])
        assert replica.calls == []


@pytest.mark.parametrize("stream", [False, True], ids=["whole answer", "stream"])
async def test_a_client_that_leaves_during_prefill_ends_it(stream: bool) -> None:
    async with scripted(hang) as (rig, [replica]):
        async with connected(rig) as client:
            await client.send(chat(stream=stream))
            await until(lambda: replica.calls)
        await gone(replica.calls[0])
        await rig.quiet()
        assert (rig.record.left, rig.record.attempts[0].settled.outcome) == (Phase.WAITING, Outcome.ABORTED)


async def test_a_client_that_leaves_a_stream_ends_it() -> None:
    async with scripted(sent(STREAM + b"3\r\none\r\n")) as (rig, [replica]):
        async with connected(rig) as client:
            await client.send(chat(stream=True))
            data = b""
            while b"one" not in data:
                data += await client.read()
        await gone(replica.calls[0])
        await rig.quiet()
        assert (rig.record.left, rig.record.attempts[0].settled.outcome) == (Phase.STREAMING, Outcome.ABORTED)


async def test_a_client_that_leaves_in_the_queue_is_sent_nowhere() -> None:
    async with scripted(hang, routing={"max_concurrency": 1}) as (rig, [replica]):
        async with connected(rig) as client:
            await client.send(chat())
            await until(lambda: replica.calls)
            async with connected(rig) as late:
                await late.send(chat())
                await until(lambda: rig.worker.waiting.depth("sim"))
            await until(lambda: not rig.worker.waiting)
            assert rig.record.left is Phase.QUEUED
        await rig.quiet()
        assert len(replica.calls) == 1


async def test_a_client_that_leaves_while_the_router_connects_leaves_no_connection() -> None:
    """A socket whose queue is full takes no connection and refuses none."""
    async with scripted(whole(), health=SELDOM) as (rig, [replica]):
        with socket.create_server((HOST, 0), backlog=0) as deaf, socket.create_connection(deaf.getsockname()):
            pool = rig.worker.pools["r1"]
            pool.address = pool.address._replace(port=deaf.getsockname()[1])
            async with connected(rig) as client:
                await client.send(chat())
                await until(lambda: rig.worker.proxy.tasks)
            await rig.quiet(ABORT_WITHIN)
        assert (rig.record.left, replica.calls) == (Phase.WAITING, [])


@pytest.mark.parametrize("turns", range(8))
async def test_a_connection_that_is_given_up_at_any_turn_of_its_making_is_closed(turns: int) -> None:
    async with scripted(whole(), health=SELDOM) as (rig, [replica]):
        pool = rig.worker.pools["r1"]
        made = replica.accepted
        for _ in range(20):
            connecting = asyncio.create_task(pool.connect())
            for _ in range(turns):
                await asyncio.sleep(0)
            if connecting.done():
                connecting.result().abort()
            else:
                connecting.cancel()
            await asyncio.gather(connecting, return_exceptions=True)
        await until(lambda: pool.open == 0)
        await until(lambda: len(replica.connections) <= made)


async def test_a_client_that_leaves_while_another_replica_is_looked_for_is_not_followed() -> None:
    async with scripted(full(30), full(30)) as (rig, replicas):
        members = [rig.worker.fleet.replica(name) for name in ("r1", "r2")]
        async with connected(rig) as client:
            members[0].full_until = members[1].full_until = 1e12
            await client.send(chat())
            await until(lambda: rig.worker.waiting)
        await rig.quiet()
        assert [replica.calls for replica in replicas] == [[], []]


async def test_a_client_that_has_sent_much_ahead_can_still_be_seen_to_leave() -> None:
    """More than is kept, so that its connection is not read any more, and a read is what tells of an end."""
    async with scripted(hang) as (rig, [replica]):
        async with connected(rig) as client:
            await client.send(chat())
            await until(lambda: replica.calls)
            await client.send(post("/v1/anything", b"x" * 1_000_000))
            connection = rig.client
            await until(lambda: not connection._transport.is_reading())
        await gone(replica.calls[0])
        await rig.quiet()


async def test_a_client_that_leaves_while_it_is_asked_whether_its_replica_is_gone_is_not_followed() -> None:
    """The connection broke; a fresh one is made, and looked at for a moment, to know whether the process lives."""
    async with scripted(closing(hard=True), health=SELDOM) as (rig, [replica]):
        accepted = replica.accepted
        async with connected(rig) as client:
            await client.send(chat())
            await until(lambda: replica.accepted > accepted + 1)
        await rig.quiet(ABORT_WITHIN)
        assert (rig.record.left, len(replica.calls)) == (Phase.WAITING, 1)
        await until(lambda: rig.worker.pools["r1"].open == 0)


async def test_a_client_that_sends_its_last_and_reads_nothing_has_left() -> None:
    """Its connection would not close in order before all is written, and it reads nothing."""

    async def flood(call: Call) -> None:
        await call.send(STREAM)
        while True:
            await call.send(b"2710\r\n" + b"x" * 10_000 + b"\r\n")

    async with scripted(flood) as (rig, [replica]), connected(rig, buffer=4096) as client:
        await client.send(chat(stream=True))
        await until(lambda: produced(replica)() > 0)
        await until(lambda: rig.client._paused)
        client.shut()
        await gone(replica.calls[0])
        await rig.quiet()
        assert rig.record.left is Phase.STREAMING


async def test_a_client_that_only_shuts_its_writing_side_counts_as_gone() -> None:
    async with scripted(hang) as (rig, [replica]), connected(rig) as client:
        await client.send(chat())
        await until(lambda: replica.calls)
        client.shut()
        await gone(replica.calls[0])
        await rig.quiet()


async def test_a_real_engine_is_idle_when_its_clients_have_left() -> None:
    settings = ReplicaSettings(speed=20)
    async with SimulatedReplica(settings) as replica, routing({"r1": replica}) as rig:
        for stream in (False, True):
            for _ in range(5):
                async with connected(rig) as client:
                    await client.send(chat("word " * 2_000, stream=stream, max_tokens=5_000))
                    await until(lambda: replica.driver.in_flight)
                await until(lambda: not replica.driver.in_flight, ABORT_WITHIN)
        await rig.quiet()
        assert replica.driver.endings["abort"] == 10


async def test_three_hundred_streams_cancelled_at_random_moments_leave_nothing_behind() -> None:
    rng = Random(11)
    settings = ReplicaSettings(speed=2, blocks=4_000)
    async with (
        SimulatedReplica(settings) as one,
        SimulatedReplica(settings) as other,
        routing({"r1": one, "r2": other}, routing={"max_concurrency": 40}) as rig,
    ):

        async def cancelled(number: int) -> None:
            await asyncio.sleep(rng.random() * 1.5)
            request = chat(f"{number % 7} " * 500, stream=True, max_tokens=rng.randrange(1, 400))
            async with connected(rig) as client:
                await client.send(request[: rng.choice([len(request), len(request), rng.randrange(len(request))])])
                await asyncio.sleep(rng.random() ** 2)

        await asyncio.gather(*map(cancelled, range(300)))
        await rig.quiet()
        await until(lambda: not one.driver.in_flight + other.driver.in_flight, ABORT_WITHIN)
        left = [record.left for record in rig.records]
        assert {Phase.UPLOADING, Phase.WAITING, Phase.STREAMING} <= set(left)
        assert len(left) > 100  # Of the others nothing was seen, or nothing was left to cancel.
        assert (await asked(rig, chat())).status == 200


def ours(before: set["asyncio.Task[Any]"]) -> list[str]:
    """Tasks of the router's that were not there before."""
    coroutines = [task.get_coro() for task in asyncio.all_tasks() - before]
    return [
        one.__qualname__
        for one in coroutines
        if isinstance(one, CoroutineType) and "/router/" in one.cr_code.co_filename
    ]


async def test_a_thousand_streams_cancelled_at_random_moments_leave_nothing_behind() -> None:
    """All of them are open at once: some are still uploaded, some wait here, some at a replica, and some stream."""
    rng, streams = Random(11), 1_000

    async def slow(call: Call) -> None:
        await asyncio.sleep(rng.random() * 3)
        await call.send(STREAM)
        while True:
            await call.send(b"9\r\ndata: x\n\n\r\n")
            await asyncio.sleep(0.5)

    limits = {"max_concurrency": 350, "queue": {"max_requests": streams}}
    async with scripted(slow, slow, routing=limits, health=SELDOM) as (rig, replicas):
        before, all_open = asyncio.all_tasks(), asyncio.Event()

        async def cancelled(number: int) -> None:
            request = chat(f"{number % 7} " * 500, stream=True)
            async with connected(rig) as client:
                await client.send(request[: rng.choice([len(request)] * 9 + [rng.randrange(len(request))])])
                await all_open.wait()
                await asyncio.sleep(rng.random() * 3)
                if rng.random() < 0.5:
                    client.close()

        async with asyncio.TaskGroup() as group:
            for number in range(streams):
                group.create_task(cancelled(number))
            await until(lambda: len(rig.worker.clients) == streams, 4 * WITHIN)
            all_open.set()
        await rig.quiet(ONE_SECOND)
        await until(lambda: not ours(before), ONE_SECOND)
        assert all(pool.open == 0 for pool in rig.worker.pools.values())
        await until(lambda: all(call.gone.is_set() for replica in replicas for call in replica.calls), ONE_SECOND)
        left = Counter(record.left for record in rig.records)
        assert min(left[phase] for phase in Phase) > 50, left
        assert len(rig.records) > 900  # Of the others no byte had been sent.


@pytest.mark.parametrize(("secure", "count"), [(False, 400), (True, 150)], ids=["plain", "TLS"])
async def test_every_way_out_settles_its_lease(authority: Authority, secure: bool, count: int) -> None:
    """Hundreds of requests beside each other, each with a fate drawn for it, over replicas that come and go."""
    rng = Random(23)
    slow = chunks(*[b"data: x\n\n"] * 10, gap=0.01)
    fates = [
        *(whole(), whole(b"x" * 300_000), slow, full(0), whole(b"{}", 500), whole(b"{}", 400), closing(hard=True)),
        *(closing(hard=False), closing(STREAM, hard=True), closing(STREAM + b"3\r\none\r\n", hard=True)),
        *(closing(b"HTTP/1.1 2", hard=False), sent(b"garbage\r\n"), closing(STREAM + b"5\r\non", hard=False)),
    ]

    async def script(call: Call) -> None:
        await rng.choice(fates)(call)

    three = [ScriptedReplica(script, tls=authority.serving() if secure else None) for _ in range(3)]
    pair = authority.pair()
    ours = {"certificate_file": str(pair.certificate), "key_file": str(pair.key)} if secure else {}
    tls = {"replicas": {"ca_file": str(authority.ca)}, **ours}
    async with scripted(*three, tls=tls, health={"interval": "20ms"}) as (rig, replicas):
        rig.tls = authority.trusting() if secure else None

        async def one(number: int) -> None:
            await asyncio.sleep(rng.random())
            async with connected(rig) as client:
                await client.send(chat(f"{number % 5} " * 1_000, stream=bool(number % 2)))
                if rng.random() < 0.3:
                    await asyncio.sleep(rng.random() * 0.05)
                else:
                    await client.answer()

        async def restarts() -> None:
            for _ in range(8):
                replica = rng.choice(replicas)
                replica.die()
                await asyncio.sleep(rng.random() * 0.1)
                await replica.listen()
                await asyncio.sleep(rng.random() * 0.1)

        await asyncio.gather(restarts(), *map(one, range(count)))
        await rig.quiet()
        outcomes = {attempt.settled.outcome for record in rig.records for attempt in record.attempts}
        assert outcomes == set(Outcome)
        assert len(rig.records) > count * 3 / 4  # Who left before it was accepted was not seen.


# Back-pressure.


def produced(replica: ScriptedReplica) -> Callable[[], int]:
    return lambda: replica.calls[0].sent if replica.calls else 0


async def settled(value: Callable[[], int]) -> int:
    """The value when it has stopped growing."""
    seen = -1
    while seen < value():
        seen = value()
        await asyncio.sleep(0.2)
    return seen


@pytest.mark.parametrize("framing", ["chunked", "length"])
async def test_a_client_that_reads_nothing_holds_its_replica_back(framing: str) -> None:
    """50 MB are there to be had. What the replica can write is what the kernel and bounded buffers take."""
    piece = b"x" * 10_000

    async def flood(call: Call) -> None:
        await call.send(STREAM if framing == "chunked" else b"HTTP/1.1 200 OK\r\nContent-Length: 50000000\r\n\r\n")
        for _ in range(5_000):
            await call.send(b"2710\r\n" + piece + b"\r\n" if framing == "chunked" else piece)
        if framing == "chunked":
            await call.send(b"0\r\n\r\n")

    async with scripted(flood, whole()) as (rig, [replica, _]):
        rig.worker.fleet.replica("r2").full_until = 1e12
        async with connected(rig, buffer=4096) as client:
            await client.send(chat(stream=True))
            await until(lambda: produced(replica)() > 0)
            assert await settled(produced(replica)) < 12_000_000
            connection = rig.client
            assert connection._transport.get_write_buffer_size() < 1 << 20
            answer = await client.answer()
            assert (answer.whole, len(answer.body)) == (True, 50_000_000)


async def test_a_client_that_reads_nothing_can_still_be_seen_to_leave() -> None:
    async def flood(call: Call) -> None:
        await call.send(STREAM)
        while True:
            await call.send(b"2710\r\n" + b"x" * 10_000 + b"\r\n")

    async with scripted(flood) as (rig, [replica]):
        async with connected(rig, buffer=4096) as client:
            await client.send(chat(stream=True))
            await until(lambda: produced(replica)() > 0)
            await settled(produced(replica))
        await gone(replica.calls[0])
        await rig.quiet()


async def test_a_slow_client_does_not_hold_up_the_next_request_of_its_replicas_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An answer that is whole here leaves its connection free, though the client's buffer is full of it."""
    write = ClientConnection.write

    def fill(client: ClientConnection, data: bytes) -> None:
        write(client, data)
        client.pause_writing()  # As a transport does inside its write.

    monkeypatch.setattr(ClientConnection, "write", fill)
    async with scripted(whole(b"ok"), health=SELDOM) as (rig, [replica]):
        before = replica.accepted
        assert [(await asked(rig, chat())).body for _ in range(3)] == [b"ok"] * 3
        assert replica.accepted == before + 1


async def test_a_replica_that_reads_nothing_holds_its_client_back_no_more_than_a_body() -> None:
    """The body is read whole, for routing; it is not read twice."""
    async with scripted(whole(), limits={"body": "16MiB"}, health=SELDOM) as (rig, [replica]):
        replica.deaf = True
        async with connected(rig) as client:
            await client.send(post("/v1/anything", b"x" * (8 << 20)))
            await until(lambda: replica.unread)
        await rig.quiet()
        assert rig.record.left is Phase.WAITING
