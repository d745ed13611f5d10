"""What a worker holds for its clients at most: bodies, heads, connections; and what one more is told."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from router.proxy import server
from tests.browser import Connection, asked, chat, connected, get, post
from tests.rig import WITHIN, Rig, scripted, until
from tests.scripted import STREAM, Call, ScriptedReplica, hang, sent, whole

MIB = 1 << 20


@asynccontextmanager
async def one_client(*scripts: Any, **settings: Any) -> AsyncIterator[tuple[Rig, list[ScriptedReplica], Connection]]:
    """A router and a connection to it."""
    async with scripted(*scripts, **settings) as (rig, replicas), connected(rig) as client:
        yield rig, replicas, client


def begun(size: int, *fields: str, path: str = "/v1/anything") -> bytes:
    """The head of a request with so large a body."""
    return "\r\n".join([f"POST {path} HTTP/1.1", "Host: homing", f"Content-Length: {size}", *fields, "", ""]).encode()


# Bodies.


async def test_bodies_are_held_up_to_a_bound_and_one_more_is_to_be_sent_again() -> None:
    """Twenty of 1 MiB each, to a replica that takes none of them, where 8 MiB may be held."""
    async with scripted(whole(), limits={"buffered": "8MiB"}, health={"interval": "60s"}) as (rig, [replica]):
        replica.deaf = True
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(connected(rig)) for _ in range(20)]
            held = rig.worker.proxy

            async def upload(client: Connection) -> bool:
                """Whether it was taken."""
                await client.send(begun(MIB))
                for _ in range(16):
                    await client.send(b"x" * (MIB // 16))
                    assert held.buffered <= 8 * MIB
                answering = asyncio.create_task(client.answer())
                done, _ = await asyncio.wait([answering], timeout=1.0)
                if not done:
                    answering.cancel()
                    return True
                answer = answering.result()
                assert (answer.status, answer.code, answer["connection"]) == (503, "buffer_full", "close")
                assert answer["retry-after"] == "1"
                return False

            taken = await asyncio.gather(*map(upload, clients))
            assert 0 < sum(taken) <= 8
            assert held.buffered == sum(taken) * MIB
            rejected = [record for record in rig.records if record.rejected == "buffer_full"]
            assert len(rejected) == 20 - sum(taken)
        await until(lambda: not held.buffered)
        replica.deaf = False
        assert (await asked(rig, post("/v1/anything", b"x" * MIB))).status == 200


async def test_a_body_that_has_no_room_is_refused_before_it_is_sent() -> None:
    async with one_client(hang, limits={"buffered": "2MiB"}) as (rig, [replica], client):
        await client.send(post("/v1/anything", b"x" * (MIB + 1)))
        await until(lambda: replica.calls)
        async with connected(rig) as other:
            answer = await other.asks(begun(MIB, "Expect: 100-continue"))
            assert (answer.status, answer.code) == (503, "buffer_full")
            assert await other.closed()


async def test_what_is_announced_and_does_not_come_takes_no_room() -> None:
    async with one_client(whole(), limits={"buffered": "2MiB"}) as (rig, _, client), connected(rig) as other:
        for idler in (client, other):
            await idler.send(begun(MIB) + b"x")
        await until(lambda: rig.worker.proxy.buffered == 2)
        assert (await asked(rig, post("/v1/anything", b"x" * MIB))).status == 200


async def test_a_chunked_body_counts_as_it_comes() -> None:
    head = b"POST /v1/anything HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with one_client(hang, limits={"buffered": "2MiB"}) as (rig, [replica], client):
        await client.send(post("/v1/anything", b"x" * (MIB + 1)))
        await until(lambda: replica.calls)
        answer = await asked(rig, head + b"100000\r\n" + b"x" * MIB + b"\r\n")
        assert (answer.status, answer.code, rig.worker.proxy.buffered) == (503, "buffer_full", MIB + 1)


async def test_a_request_that_came_in_one_read_is_refused_too_and_its_connection_stays() -> None:
    async with one_client(hang, limits={"buffered": "1MiB"}) as (rig, [replica], client):
        await client.send(post("/v1/anything", b"x" * MIB))
        await until(lambda: replica.calls)
        async with connected(rig) as other:
            answer = await other.asks(post("/v1/messages", b"{}"))
            assert (answer.status, answer["retry-after"], rig.record.rejected) == (503, "1", "buffer_full")
            assert isinstance(answer.json, dict)
            assert answer.json["error"]["type"] == "overloaded_error"
            assert (await other.asks(get("/health"), "GET")).status == 200
            client.leave()
            await until(lambda: not rig.worker.proxy.buffered)


async def test_a_body_that_never_finds_room_is_too_large() -> None:
    """A 503 would have it sent again for ever."""
    async with scripted(whole(), limits={"buffered": "1MiB", "body": "4MiB"}) as (rig, [replica]):
        answer = await asked(rig, post("/v1/anything", b"x" * (2 * MIB)))
        assert (answer.status, answer.code, replica.calls) == (413, "too_large", [])
        assert b"1048576 bytes, the lesser of limits.body and limits.buffered" in answer.body


async def test_a_stream_holds_no_body_once_it_has_begun() -> None:
    async with one_client(sent(STREAM + b"3\r\none\r\n")) as (rig, _, client):
        await client.send(chat("x" * MIB, stream=True))
        data = b""
        while b"one" not in data:
            data += await client.read()
        assert rig.worker.proxy.buffered == 0
        exchange = rig.client._exchange
        assert exchange is not None
        assert exchange._request.body == b""


# Heads.


async def test_the_bound_of_heads_is_set() -> None:
    async with scripted(whole(), limits={"head": "4KiB"}) as (rig, _):
        assert (await asked(rig, get("/health", "X: " + "x" * 5_000), "GET")).status == 431
        assert (await asked(rig, get("/health", "X: " + "x" * 3_000), "GET")).status == 200
    async with scripted(whole()) as (rig, _):
        assert (await asked(rig, get("/health", "X: " + "x" * 60_000), "GET")).status == 200


# Connections.


async def test_a_request_on_one_connection_too_many_is_told_so() -> None:
    async with one_client(whole(), limits={"connections": 1}) as (rig, _, client):
        assert (await client.asks(get("/health"), "GET")).status == 200
        async with connected(rig) as other:
            answer = await other.asks(chat())
            assert (answer.status, answer.code, answer["connection"]) == (503, "connections_full", "close")
            assert (answer["retry-after"], rig.record.rejected) == ("1", "connections_full")
            assert await other.closed()
        assert (await client.asks(chat())).status == 200
        client.leave()
        await until(lambda: not rig.worker.clients)
        assert (await asked(rig, chat())).status == 200


async def test_a_connection_too_many_that_asks_nothing_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "LINGER_SECONDS", 0.1)
    async with one_client(whole(), limits={"connections": 1}) as (rig, _, client):
        assert (await client.asks(get("/health"), "GET")).status == 200
        async with connected(rig) as other:
            assert await other.closed()


async def test_of_many_connections_too_many_the_last_ones_are_closed_without_a_word(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "EXCESS", 1)
    async with one_client(whole(), limits={"connections": 1}) as (rig, _, client):
        assert (await client.asks(get("/health"), "GET")).status == 200
        async with connected(rig) as other:
            await until(lambda: len(rig.worker.clients) == 2)
            async with connected(rig) as third:
                assert await third.closed()
            assert rig.record.rejected == "connections_full"
            assert (await other.asks(chat())).status == 503


# What a reload does.


async def test_bounds_take_effect_on_open_connections() -> None:
    async with one_client(whole()) as (rig, _, client):
        assert (await client.asks(post("/v1/anything", b"x" * 5_000))).status == 200
        proxy = rig.worker.proxy
        proxy.bounds = proxy.bounds._replace(body=4_000)
        rig.worker.clients.adjust()
        assert (await client.asks(post("/v1/anything", b"x" * 5_000))).status == 413


# Clients that close one side.


async def test_a_client_that_closes_its_writing_side_has_left() -> None:
    async with one_client(hang) as (rig, [replica], client):
        await client.send(chat())
        await until(lambda: replica.calls)
        client.shut()
        await asyncio.wait_for(replica.calls[0].gone.wait(), WITHIN)
        await rig.quiet()
        assert rig.record.left is not None


async def test_a_client_that_closes_its_writing_side_gets_all_it_asked_for_where_it_is_let() -> None:
    go_on = asyncio.Event()

    async def script(call: Call) -> None:
        await go_on.wait()
        await whole(b"ok")(call)

    async with one_client(script, proxy={"half_close": True}) as (rig, [replica], client):
        await client.send(chat() + get("/health") + chat())
        await until(lambda: replica.calls)
        client.shut()
        await asyncio.sleep(0.05)
        go_on.set()
        assert [(await client.answer()).body for _ in range(3)] == [b"ok", b"", b"ok"]
        assert await client.closed()
        assert [record.left for record in rig.records] == [None] * 3


@pytest.mark.parametrize("data", [b"", get("/health")[:-1], begun(10) + b"x"], ids=["idle", "head", "body"])
async def test_a_client_that_closes_its_writing_side_within_a_request_has_left(data: bytes) -> None:
    async with one_client(whole(), proxy={"half_close": True}) as (rig, _, client):
        await client.send(data)
        await until(lambda: not rig.client._reader.idle or not data)
        client.shut()
        assert await client.closed()


@pytest.mark.parametrize("data", [get("/health")[:-1], begun(10) + b"x"], ids=["head", "body"])
async def test_and_one_that_does_so_within_a_request_behind_others_is_not_waited_for(data: bytes) -> None:
    go_on = asyncio.Event()

    async def script(call: Call) -> None:
        await go_on.wait()
        await whole(b"ok")(call)

    async with one_client(script, proxy={"half_close": True}) as (rig, [replica], client):
        await client.send(chat())
        await until(lambda: replica.calls)
        await client.send(data)
        await until(lambda: rig.client._ahead_size == len(data))
        client.shut()
        await until(lambda: rig.client._last)
        go_on.set()
        assert (await client.answer()).body == b"ok"
        assert await client.closed()
