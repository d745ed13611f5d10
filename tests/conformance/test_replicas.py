"""A replica's connection as bytes: what comes before it was asked for, an answer that does not wait for the request, a
body that is not read, and when a connection is used again."""

import asyncio

import pytest

from tests.conformance.raw import AGAIN, Bench, bench, head, line, upstream
from tests.conformance.standin import OK, End, Reply
from tests.rig import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

GET = head(b"GET /v1/x HTTP/1.1", b"Host: a")
GOT = upstream(b"GET /v1/x", length=False)
EVIL = head(b"HTTP/1.1 200 OK", b"Content-Length: 4") + b"evil"

LARGE = 16 << 20
"""More than the kernel's buffers on the way to a replica that does not read."""


def post(size: int) -> bytes:
    return head(b"POST /v1/x HTTP/1.1", b"Host: a", b"Content-Length: %d" % size) + b"x" * size


async def asked(on: Bench, request: bytes) -> tuple[list[int], bytes]:
    """The statuses and the body of its answer."""
    async with line(on.rig) as client:
        await client.send([request])
        data = await client.through(b"\r\n\r\n")
        body = data.partition(b"\r\n\r\n")[2]
        return await client.answer(b"POST"), body


async def test_an_answer_that_nobody_asked_for_is_given_to_nobody(on: Bench) -> None:
    """RFC 9112 section 6.3: it would be taken for the answer to the next request."""
    pool = on.rig.worker.pools["r1"]
    on.standin.reply = OK
    assert await asked(on, GET) == ([200], b"ok")
    [used] = list(on.standin.lines)
    used.transport.write(EVIL)
    await until(lambda: pool.open == 0)
    assert await asked(on, GET) == ([200], b"ok")
    assert on.standin.taken() == (GOT, GOT)


async def test_an_answer_may_come_while_the_request_is_still_written() -> None:
    """RFC 9112 section 9.5: the client gets it; the connection, on which half a request stands, is not used again."""
    answer = head(b"HTTP/1.1 413 Too Large", b"Content-Length: 3") + b"big"
    async with bench(LARGE) as on, line(on.rig) as client:
        on.standin.reply = Reply((answer,), early=True)
        await client.send([post(LARGE)])
        assert await client.answer(b"POST") == [413]
        assert on.rig.worker.pools["r1"].idle == 0
        on.standin.reply = OK
        assert await client.kept()
        on.standin.taken(whole=False)


async def test_connections_are_used_again_newest_first(on: Bench) -> None:
    """RFC 9112 section 9.3: a connection carries one request after the other."""
    on.standin.reply = OK
    await asked(on, GET)
    before = set(on.standin.lines)
    for _ in range(5):
        assert await asked(on, GET) == ([200], b"ok")
    assert set(on.standin.lines) == before
    assert on.standin.taken() == (GOT,) * 6


@pytest.mark.parametrize("end", [End.CLOSES, End.SHUTS])
async def test_a_connection_that_the_replica_closed_is_not_used_again(on: Bench, end: End) -> None:
    """RFC 9112 section 9.6."""
    on.standin.reply = Reply(OK.pieces, end)
    for _ in range(3):
        assert await asked(on, GET) == ([200], b"ok")
        await until(lambda: on.rig.worker.pools["r1"].open == 0)
    assert on.standin.taken() == (GOT,) * 3


async def test_a_request_lost_with_an_idle_connection_goes_out_again_once(on: Bench) -> None:
    """RFC 9112 section 9.3.1: the replica closed it just when it was taken, and nothing of an answer had come."""
    on.standin.reply = OK
    await asked(on, GET)
    on.standin.hangs_up = True
    assert await asked(on, GET) == ([200], b"ok")
    assert on.standin.taken() == (GOT,) * 3
    assert not on.standin.hangs_up


async def test_an_answer_that_never_ends_ends_with_its_client(on: Bench) -> None:
    pool = on.rig.worker.pools["r1"]
    on.standin.reply = Reply((head(b"HTTP/1.1 200 OK", b"Transfer-Encoding: chunked") + b"5\r\nhello\r\n",))
    async with line(on.rig) as client:
        await client.send([GET])
        await client.through(b"hello")
        assert pool.open - pool.idle == 1
    await until(lambda: pool.open == pool.idle)
    assert on.standin.taken() == (GOT,)


async def test_a_client_that_sends_ahead_gets_one_answer_before_the_next_request_goes_out(on: Bench) -> None:
    """RFC 9112 section 9.3.2: a replica never has two requests of one client, so that no answers change places."""
    on.rig.worker.pools["r1"].drop_idle()
    await until(lambda: not on.standin.lines)
    on.standin.reply = Reply((head(b"HTTP/1.1 200 OK", b"Content-Length: 2") + b"o",))
    async with line(on.rig) as client:
        await client.send([GET * 3 + AGAIN])
        await client.through(b"\r\n\r\no")
        assert len(on.standin.requests) == 1
        on.standin.reply = OK
        [busy] = list(on.standin.lines)
        busy.transport.write(b"k")
        for _ in range(4):
            assert await client.answer(b"GET") == [200]
    await asyncio.sleep(0)
    assert on.standin.taken() == (GOT,) * 3
