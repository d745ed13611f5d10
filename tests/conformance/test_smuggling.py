"""Nothing is smuggled past the router (RFC 9112 section 11.2): for whatever is sent, a replica gets as many requests as
the client gets answers, each with the body that its framing gives it, and never one that the router did not see.

The cases of test_lengths and test_chunks say what is refused. Here one field, or one line end, is spoiled by one byte
at a time, for every byte that has ever made two parsers disagree, and the stand-in's record is the judge.
"""

from collections.abc import Iterator

import pytest

from tests.conformance.raw import AGAIN, Bench, Case, came, head, line, table, upstream
from tests.conformance.standin import OK

pytestmark = pytest.mark.asyncio(loop_scope="module")

POST = b"POST /v1/x HTTP/1.1"
NEXT = b"GET /v1/smuggled HTTP/1.1\r\nHost: a\r\n\r\n"
HIDDEN = b"0\r\n\r\n" + NEXT

ODD = [bytes([byte]) for byte in (*range(33), *b'",-.:;_', 0x7F, 0x80, 0x85, 0xA0, 0xFF)]
"""What may stand where nothing, or something else, should: controls, white space, punctuation, Unicode's."""

SPOILED = {
    "before the name": b"%bTransfer-Encoding: chunked",
    "in the name": b"Transfer-%bEncoding: chunked",
    "behind the name": b"Transfer-Encoding%b: chunked",
    "before the value": b"Transfer-Encoding: %bchunked",
    "in the value": b"Transfer-Encoding: chun%bked",
    "behind the value": b"Transfer-Encoding: chunked%b",
    "behind a field before it": b"X: y%bTransfer-Encoding: chunked",
    "behind a line before it": b"X: y\r\n%bTransfer-Encoding: chunked",
}

LENGTHS = {
    "before the name": b"%bContent-Length: 50",
    "in the name": b"Content-%bLength: 50",
    "behind the name": b"Content-Length%b: 50",
    "before the value": b"Content-Length: %b50",
    "in the value": b"Content-Length: 5%b0",
    "behind the value": b"Content-Length: 50%b",
    "behind a field before it": b"X: y%bContent-Length: 50",
}
CHUNKS = {
    "before a size": b"%b5\r\nhello\r\n0\r\n\r\n",
    "behind a size": b"5%b\r\nhello\r\n0\r\n\r\n",
    "behind a size's line end": b"5\r%b\nhello\r\n0\r\n\r\n",
    "behind an extension": b"5;x%b\r\nhello\r\n0\r\n\r\n",
    "in a quoted extension": b'5;x="%b"\r\nhello\r\n0\r\n\r\n',
    "behind the data": b"5\r\nhello%b\r\n0\r\n\r\n",
    "behind the last size": b"5\r\nhello\r\n0%b\r\n\r\n",
    "in a trailer": b"5\r\nhello\r\n0\r\nX%b: y\r\n\r\n",
    "behind the end": b"5\r\nhello\r\n0\r\n%b\r\n",
}


async def judged(on: Bench, sent: bytes, honest: bytes) -> str | None:
    """What is wrong with what comes of these bytes: their first request may reach a replica with the `honest` body, and
    whatever else reaches it was answered to the client too. A last request, which the router answers, ends them."""
    on.standin.reply = OK
    async with line(on.rig) as client:
        await client.send([sent + AGAIN])
        got = await client.through(b'{"version"')
    answered, reaches = got.count(b"x-homing-replica: "), on.standin.taken()
    if answered == len(reaches) and (not reaches or reaches[0].partition(b"\r\n\r\n")[2] == honest):
        return None
    return f"{got!r} {reaches!r}"


def odd(form: bytes) -> Iterator[tuple[bytes, bytes]]:
    return ((byte, form % byte) for byte in ODD)


@pytest.mark.parametrize("form", SPOILED.values(), ids=SPOILED)
async def test_a_coding_spoiled_by_one_byte_hides_no_request_behind_a_length(on: Bench, form: bytes) -> None:
    """One parser sees chunks that end at once, the other a length that goes to the end."""
    length = b"Content-Length: %d" % len(HIDDEN)
    wrong = {}
    for byte, coding in odd(form):
        for fields in ((length, coding), (coding, length)):
            if found := await judged(on, head(POST, b"Host: a", *fields) + HIDDEN, HIDDEN):
                wrong[byte] = found
    assert wrong == {}


@pytest.mark.parametrize("form", SPOILED.values(), ids=SPOILED)
async def test_a_coding_spoiled_by_one_byte_hides_no_request_in_a_chunk(on: Bench, form: bytes) -> None:
    """One parser sees a chunk with a request inside, the other a short length and a request behind it."""
    chunk = b"%x\r\n%b\r\n0\r\n\r\n" % (len(NEXT), NEXT)
    short = chunk.index(NEXT)
    wrong = {}
    for byte, coding in odd(form):
        sent = head(POST, b"Host: a", b"Content-Length: %d" % short, coding) + chunk
        if found := await judged(on, sent, chunk[:short]):
            wrong[byte] = found
    assert wrong == {}


@pytest.mark.parametrize("form", CHUNKS.values(), ids=CHUNKS)
async def test_a_chunk_spoiled_by_one_byte_is_refused_or_the_same_chunk(on: Bench, form: bytes) -> None:
    wrong = {}
    for byte, chunk in odd(form):
        sent = head(POST, b"Host: a", b"Transfer-Encoding: chunked") + chunk
        if found := await judged(on, sent, b"hello"):
            wrong[byte] = found
    assert wrong == {}


@pytest.mark.parametrize("form", LENGTHS.values(), ids=LENGTHS)
async def test_a_length_spoiled_by_one_byte_is_refused_or_the_same_length(on: Bench, form: bytes) -> None:
    wrong = {}
    for byte, length in odd(form):
        if found := await judged(on, head(POST, b"Host: a", b"Content-Length: 5", length) + b"hello", b"hello"):
            wrong[byte] = found
    assert wrong == {}


PROBES = [
    Case(
        "a length of 0 hides no body that is a request",
        "9112 11.2",
        head(b"GET /v1/x HTTP/1.1", b"Host: a", b"Content-Length: 0") + NEXT,
        (200, 200),
        True,
        (upstream(b"GET /v1/x", length=False), upstream(b"GET /v1/smuggled", length=False)),
    ),
    Case(
        "a length in a continued line of another field is none",
        "9112 5.2",
        head(POST, b"Host: a", b"X: y\r\n Content-Length: 5") + b"hello",
    ),
    Case(
        "a request in a field's value is none",
        "9112 11.1",
        head(POST, b"Host: a", b"X: y\r\n\r\nGET /v1/smuggled HTTP/1.1") + b"Host: a\r\n\r\n",
        (200, 400),
        False,
        (upstream(b"POST /v1/x", b"X: y"),),
    ),
    Case(
        "a line end in a target is none",
        "9112 11.1",
        head(b"GET /v1/x?%0d%0aHost:b HTTP/1.1", b"Host: a"),
        (200,),
        True,
        (upstream(b"GET /v1/x?%0d%0aHost:b", length=False),),
    ),
    Case(
        "an escaped NUL and line end in a field stay escaped",
        "9112 11.1",
        head(b"GET /v1/x HTTP/1.1", b"Host: a", b"X: %00%0d%0aY:z"),
        (200,),
        True,
        (upstream(b"GET /v1/x", b"X: %00%0d%0aY:z", length=False),),
    ),
    Case("a method with a line end is none", "9112 11.1", b"GET\r\n/v1/x HTTP/1.1\r\nHost: a\r\n\r\n"),
    Case(
        "a length that Connection takes away still counts",
        "9110 7.6.1",
        head(POST, b"Host: a", b"Connection: content-length", b"Content-Length: %d" % len(NEXT)) + NEXT,
        (200,),
        True,
        (upstream(b"POST /v1/x", body=NEXT),),
    ),
    Case(
        "a body of HEAD is not a request",
        "9110 9.3.2",
        head(b"HEAD /v1/x HTTP/1.1", b"Host: a", b"Content-Length: %d" % len(NEXT), b"Connection: close") + NEXT,
        (200,),
        False,
        (upstream(b"HEAD /v1/x", body=NEXT),),
    ),
    Case(
        "an Upgrade's body is not a request",
        "9110 7.8",
        head(POST, b"Host: a", b"Connection: Upgrade", b"Upgrade: h2c", b"Content-Length: %d" % len(NEXT)) + NEXT,
        (200,),
        True,
        (upstream(b"POST /v1/x", body=NEXT),),
    ),
    Case(
        "an Upgrade's chunk is not a request",
        "9110 7.8",
        head(POST, b"Host: a", b"Connection: Upgrade", b"Upgrade: h2c", b"Transfer-Encoding: chunked")
        + b"%x\r\n%b\r\n0\r\n\r\n" % (len(NEXT), NEXT),
        (200,),
        True,
        (upstream(b"POST /v1/x", body=NEXT),),
    ),
    Case(
        "an Upgrade with a length beside chunks is refused",
        "9112 6.3",
        head(
            POST,
            b"Host: a",
            b"Connection: Upgrade",
            b"Upgrade: h2c",
            b"Content-Length: 5",
            b"Transfer-Encoding: chunked",
        )
        + HIDDEN,
    ),
    Case(
        "a wish for a 100 with a length beside chunks is refused",
        "9112 6.3",
        head(POST, b"Host: a", b"Expect: 100-continue", b"Content-Length: 5", b"Transfer-Encoding: chunked") + HIDDEN,
    ),
    *(
        Case(
            f"engine control that is written as {path.decode()} is seen",
            "9110 4.2.3",
            head(b"POST " + path + b" HTTP/1.1", b"Host: a", b"Content-Length: 0"),
            (403,),
            True,
        )
        for path in (
            b"/sleep",
            b"/sleep?x",
            b"/%73leep",
            b"/%2fsleep",
            b"//sleep",
            b"/./sleep",
            b"/v1/../sleep",
            b"/v1/%2e%2e/sleep",
            b"http://b/sleep",
            b"/reset_prefix_cache",
            b"/%72eset_prefix_cache",
        )
    ),
    Case("engine control with a fragment is no target", "9112 3.2", head(b"POST /sleep#x HTTP/1.1", b"Host: a")),
]


@table(PROBES)
async def test_probe(on: Bench, case: Case) -> None:
    methods = [b"HEAD"] if case.pieces[0].startswith(b"HEAD") else []
    assert await came(on, case, methods) == case.outcome
