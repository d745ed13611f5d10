"""A client's connection (RFC 9112 section 9): how long it stays, the order of answers, Expect and Upgrade."""

import asyncio

import pytest

from tests.conformance.raw import Bench, Case, came, head, line, table, upstream
from tests.conformance.standin import OK

pytestmark = pytest.mark.asyncio(loop_scope="module")

GET = b"GET /v1/x HTTP/1.1"
OLD = b"GET /v1/x HTTP/1.0"
POST = b"POST /v1/x HTTP/1.1"
GOT = upstream(b"GET /v1/x", length=False)
POSTED = upstream(b"POST /v1/x", body=b"hello")
BAD = b"GET /v1/x HTTP/1.1\r\nHost : a\r\n\r\n"
VERSION = b"GET /version HTTP/1.1\r\nHost: a\r\n\r\n"


def get(*fields: bytes) -> bytes:
    return head(GET, b"Host: a", *fields)


def post(*fields: bytes, body: bytes = b"hello") -> bytes:
    return head(POST, b"Host: a", *fields, b"Content-Length: 5") + body


STAYS = [
    *(
        Case(f"{name} keeps a connection", "9112 9.3", get(*fields), (200,), True, (GOT,))
        for name, fields in {
            "nothing": (),
            "Connection: keep-alive": (b"Connection: keep-alive",),
            "a Connection that names another field": (b"Connection: X-Y",),
            "an empty Connection": (b"Connection: ",),
            "a word that begins with close": (b"Connection: closed",),
            "Keep-Alive": (b"Keep-Alive: timeout=5, max=100",),
        }.items()
    ),
    *(
        Case(f"{name} closes a connection behind its answer", "9112 9.6", get(*fields), (200,), False, (GOT,))
        for name, fields in {
            "Connection: close": (b"Connection: close",),
            "close in other letters": (b"Connection: Close",),
            "close in a list": (b"Connection: keep-alive, close",),
            "close first in a list": (b"Connection: close, X-Y",),
            "close in Proxy-Connection, which some old clients send": (b"Proxy-Connection: close",),
            "close in a second field": (b"Connection: X-Y", b"Connection: close"),
        }.items()
    ),
    Case("HTTP/1.0 closes", "9112 9.3", head(OLD), (200,), False, (GOT,)),
    Case("HTTP/1.0 with a Host closes", "9112 9.3", head(OLD, b"Host: a"), (200,), False, (GOT,)),
    Case(
        "HTTP/1.0 with keep-alive closes, and says so",
        "9112 9.3",
        head(OLD, b"Connection: keep-alive"),
        (200,),
        False,
        (GOT,),
    ),
    Case(
        "HTTP/1.0 has bodies of a length",
        "9112 6.3",
        head(b"POST /v1/x HTTP/1.0", b"Content-Length: 5") + b"hello",
        (200,),
        False,
        (POSTED,),
    ),
    Case("an answer of the router's own keeps a connection", "9112 9.3", VERSION, (200,), True),
    Case(
        "an answer of the router's own closes where it is asked to",
        "9112 9.6",
        head(VERSION[:-4], b"Connection: close"),
        (200,),
    ),
    Case(
        "a refusal of the router's own keeps a connection",
        "9112 9.3",
        head(b"POST /sleep HTTP/1.1", b"Host: a", b"Content-Length: 5") + b"hello",
        (403,),
        True,
    ),
]

AHEAD = [
    Case(
        "requests sent ahead are answered one by one",
        "9112 9.3.2",
        get() + post() + get(),
        (200,) * 3,
        True,
        (GOT, POSTED, GOT),
    ),
    Case("a hundred requests may be sent ahead", "9112 9.3.2", get() * 100, (200,) * 100, True, (GOT,) * 100),
    Case(
        "a request behind chunks is a request",
        "9112 9.3.2",
        head(POST, b"Host: a", b"Transfer-Encoding: chunked") + b"5\r\nhello\r\n0\r\n\r\n" + get(),
        (200, 200),
        True,
        (POSTED, GOT),
    ),
    Case(
        "empty lines between requests are skipped",
        "9112 2.2",
        get() + b"\r\n" + post() + b"\r\n\r\n" + get(),
        (200,) * 3,
        True,
        (GOT, POSTED, GOT),
    ),
    Case(
        "what is wrong behind a request is told behind its answer", "9112 9.3.2", get() + BAD, (200, 400), False, (GOT,)
    ),
    Case("what is wrong behind own answers is told behind them", "9112 9.3.2", VERSION * 3 + BAD, (200, 200, 200, 400)),
    Case("nothing is read behind what is wrong", "9112 9.3.2", get() + BAD + get(), (200, 400), False, (GOT,)),
    Case(
        "nothing is read behind the last request", "9112 9.6", get(b"Connection: close") + get(), (200,), False, (GOT,)
    ),
    Case(
        "what is wrong behind the last request is not looked at",
        "9112 9.6",
        get(b"Connection: close") + BAD,
        (200,),
        False,
        (GOT,),
    ),
    Case("nothing is read behind HTTP/1.0", "9112 9.3", head(OLD) + get(), (200,), False, (GOT,)),
    Case(
        "what a request has beyond its length is the next one",
        "9112 6.3",
        post(body=b"hello" + get()),
        (200, 200),
        True,
        (POSTED, GOT),
    ),
    Case(
        "what a request has beyond its length must be one",
        "9112 6.3",
        post(body=b"hello!"),
        (200, 400),
        False,
        (POSTED,),
    ),
    Case(
        "a request without a length that has a body is two, and the second none",
        "9112 6.3",
        head(POST, b"Host: a") + b"hello",
        (200, 400),
        False,
        (upstream(b"POST /v1/x"),),
    ),
    Case(
        "a GET whose length is 0 has no body",
        "9112 6.3",
        get(b"Content-Length: 0") + get(),
        (200, 200),
        True,
        (GOT, GOT),
    ),
]

ASKS = b"Expect: 100-continue"
EXPECTS = [
    Case(
        "a client that waits for a 100 gets it",
        "9110 10.1.1",
        (post(ASKS, body=b""), b"hello"),
        (100, 200),
        True,
        (POSTED,),
    ),
    Case(
        "Expect may be in other letters",
        "9110 10.1.1",
        (post(b"eXPECT: 100-Continue", body=b""), b"hello"),
        (100, 200),
        True,
        (POSTED,),
    ),
    Case(
        "a client that waits with chunks gets a 100",
        "9110 10.1.1",
        (head(POST, b"Host: a", ASKS, b"Transfer-Encoding: chunked"), b"5\r\nhello\r\n0\r\n\r\n"),
        (100, 200),
        True,
        (POSTED,),
    ),
    Case("a client that does not wait gets none", "9110 10.1.1", post(ASKS), (200,), True, (POSTED,)),
    Case("a request without a body gets none", "9110 10.1.1", get(ASKS), (200,), True, (GOT,)),
    Case(
        "a request with a length of 0 gets none",
        "9110 10.1.1",
        head(POST, b"Host: a", ASKS, b"Content-Length: 0"),
        (200,),
        True,
        (upstream(b"POST /v1/x"),),
    ),
    Case(
        "HTTP/1.0 gets none",
        "9110 10.1.1",
        (head(b"POST /v1/x HTTP/1.0", ASKS, b"Content-Length: 5"), b"hello"),
        (200,),
        False,
        (POSTED,),
    ),
    Case(
        "each request that waits gets a 100 of its own",
        "9110 10.1.1",
        (post(ASKS, body=b""), b"hello", post(ASKS, body=b""), b"hello"),
        (100, 200, 100, 200),
        True,
        (POSTED, POSTED),
    ),
    Case(
        "a body over the limit is refused before it is sent",
        "9110 10.1.1",
        head(POST, b"Host: a", ASKS, b"Content-Length: 9999999"),
        (413,),
    ),
    Case(
        "a bad request that waits is refused before its body",
        "9110 10.1.1",
        head(POST, b"Host: a", b"Host: b", ASKS, b"Content-Length: 5"),
        (400,),
    ),
    Case("another expectation is refused", "9110 10.1.1", post(b"Expect: 200-ok"), (417,)),
    Case("another expectation beside this one is refused", "9110 10.1.1", post(b"Expect: 100-continue, x=y"), (417,)),
    Case(
        "another expectation of HTTP/1.0 is ignored", "9110 10.1.1", head(OLD, b"Expect: 200-ok"), (200,), False, (GOT,)
    ),
]

H2C = (b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA")
UPGRADES = [
    Case(
        "a wish for HTTP/2 is ignored, as Java's client has it by default", "9110 7.8", get(*H2C), (200,), True, (GOT,)
    ),
    Case("a wish for HTTP/2 with a body is ignored", "9110 7.8", post(*H2C), (200,), True, (POSTED,)),
    Case(
        "a wish for HTTP/2 with a body that comes later is ignored",
        "9110 7.8",
        (post(*H2C, body=b"he"), b"llo"),
        (200,),
        True,
        (POSTED,),
    ),
    Case(
        "what follows a wish for HTTP/2 is read as HTTP/1.1",
        "9110 7.8",
        get(*H2C) + post(*H2C) + get(),
        (200,) * 3,
        True,
        (GOT, POSTED, GOT),
    ),
    Case(
        "a WebSocket's request is a request like any",
        "9110 7.8",
        get(b"Connection: Upgrade", b"Upgrade: websocket", b"Sec-WebSocket-Version: 13"),
        (200,),
        True,
        (upstream(b"GET /v1/x", b"Sec-WebSocket-Version: 13", length=False),),
    ),
    Case(
        "an Upgrade that closes closes",
        "9112 9.6",
        get(b"Connection: Upgrade, close", b"Upgrade: h2c"),
        (200,),
        False,
        (GOT,),
    ),
    Case(
        "an Upgrade that waits gets its 100",
        "9110 7.8",
        (post(*H2C, ASKS, body=b""), b"hello"),
        (100, 200),
        True,
        (POSTED,),
    ),
    Case(
        "a Connection: upgrade that names no protocol is ignored",
        "9110 7.8",
        get(b"Connection: upgrade"),
        (200,),
        True,
        (GOT,),
    ),
]


@table([*STAYS, *AHEAD, *EXPECTS, *UPGRADES])
async def test_connection(on: Bench, case: Case) -> None:
    assert await came(on, case) == case.outcome


@pytest.mark.parametrize(
    "sent", [post()[:-1], post()[:20], head(POST, b"Host: a", b"Transfer-Encoding: chunked") + b"5\r\nhello\r\n"]
)
async def test_half_a_request_reaches_nobody(on: Bench, sent: bytes) -> None:
    """RFC 9112 section 8: a client that closes in the middle has asked for nothing."""
    on.standin.reply = OK
    async with line(on.rig) as client:
        await client.send([sent])
        client.shut()
        assert await client.rest() == b""
    assert on.standin.taken() == ()


async def test_the_100_comes_before_the_body_is_sent(on: Bench) -> None:
    """RFC 9110 section 10.1.1."""
    on.standin.reply = OK
    async with line(on.rig) as client:
        await client.send([post(ASKS, body=b"")])
        await client.until(b"HTTP/1.1 100 Continue\r\n\r\n")
        assert client.data == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert on.standin.requests == []
        await client.send([b"hello"])
        assert await client.answer(b"POST") == [100, 200]
    assert on.standin.taken() == (POSTED,)


@pytest.mark.parametrize("first", [get(), VERSION], ids=["relayed", "own"])
async def test_a_client_that_waits_behind_another_request_gets_its_100_behind_that_ones_answer(
    on: Bench, first: bytes
) -> None:
    """RFC 9110 section 10.1.1, where both heads come at once."""
    on.standin.reply = OK
    async with line(on.rig) as client:
        await client.send([first + post(ASKS, body=b"")])
        assert await client.answer(b"GET") == [200]
        await client.until(b"HTTP/1.1 100 Continue\r\n\r\n")
        await client.send([b"hello"])
        assert await client.answer(b"POST") == [100, 200]
    assert on.standin.taken()[-1] == POSTED


async def test_a_request_may_come_byte_by_byte(on: Bench) -> None:
    """RFC 9112 section 2.2: a message is its bytes, however they are cut."""
    on.standin.reply = OK
    async with line(on.rig) as client:
        for byte in get() + post(ASKS) + get():
            await client.send([bytes([byte])])
            await asyncio.sleep(0)
        assert [await client.answer(b"GET") for _ in range(3)] in ([[200], [200], [200]], [[200], [100, 200], [200]])
    assert on.standin.taken() == (GOT, POSTED, GOT)
