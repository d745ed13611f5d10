"""What a replica answers, and every byte that a client gets of it (RFC 9112 section 6, RFC 9110 sections 6, 7 and 15).

Bodies pass as they came, chunk framing and all; what a replica says of its own connection stays here. What is no HTTP
becomes a 502 while nothing has gone to the client, and afterwards a connection that closes without an end.
"""

import pytest

from tests.conformance.raw import Answered, Bench, head, relayed, table
from tests.conformance.standin import End, Reply

pytestmark = pytest.mark.asyncio(loop_scope="module")

OK = b"HTTP/1.1 200 OK"
CHUNKED = b"Transfer-Encoding: chunked"
HELLO = b"5\r\nhello\r\n0\r\n\r\n"
OLD = b"POST /v1/x HTTP/1.0\r\nContent-Length: 0\r\n\r\n"
HEAD = b"HEAD /v1/x HTTP/1.1\r\nHost: a\r\n\r\n"
LAST = b"POST /v1/x HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


def says(*fields: bytes, body: bytes = b"", end: End = End.STAYS, line: bytes = OK) -> Reply:
    return Reply((head(line, *fields) + body,), end)


def length(body: bytes, *fields: bytes) -> bytes:
    return head(OK, *fields, b"Content-Length: %d" % len(body)) + body


def chunks(body: bytes, *fields: bytes) -> bytes:
    """As the router writes it: the framing is its own field."""
    return head(OK, *fields, b"transfer-encoding: chunked") + body


def same(name: str, rfc: str, answer: bytes) -> Answered:
    """It reaches the client as it is."""
    return Answered(name, rfc, Reply((answer,)), answer)


def bad(name: str, rfc: str, answer: bytes, end: End = End.STAYS) -> Answered:
    """It is no answer; nothing of it reaches the client."""
    return Answered(name, rfc, Reply((answer,), end), 502, reused=False)


BODIES = [
    same("a body of a length", "9112 6.3", length(b"hello")),
    same("an empty body", "9112 6.3", length(b"")),
    same("a body of every byte", "9112 6", length(bytes(range(256)))),
    *(
        Answered(name, "9112 7.1", says(CHUNKED, body=body), chunks(body))
        for name, body in {
            "a chunked body": HELLO,
            "a chunked body without chunks": b"0\r\n\r\n",
            "sizes as they came": b"0005\r\nhello\r\nA\r\n0123456789\r\n00\r\n\r\n",
            "extensions": b"5;x=y\r\nhello\r\n0;z\r\n\r\n",
            "trailers": b"5\r\nhello\r\n0\r\nX-Checksum: 1\r\n\r\n",
            "a trailer without a value": b"5\r\nhello\r\n0\r\nX-Checksum:\r\n\r\n",
            "line ends inside a chunk": b"4\r\n\r\n\r\n\r\n0\r\n\r\n",
        }.items()
    ),
    Answered(
        "a body without a length becomes chunks",
        "9112 6.3",
        says(body=b"hello", end=End.CLOSES),
        chunks(HELLO),
        reused=False,
    ),
    Answered(
        "an empty body without a length becomes chunks",
        "9112 6.3",
        says(end=End.CLOSES),
        chunks(b"0\r\n\r\n"),
        reused=False,
    ),
    Answered(
        "a body without a length that is shut becomes chunks",
        "9112 6.3",
        says(body=b"hello", end=End.SHUTS),
        chunks(HELLO),
        reused=False,
    ),
    Answered(
        "an answer of HTTP/1.0 becomes one of HTTP/1.1",
        "9110 2.5",
        says(b"Content-Length: 5", body=b"hello", line=b"HTTP/1.0 200 OK"),
        length(b"hello"),
        reused=False,
    ),
    Answered(
        "an answer of HTTP/1.0 that keeps is kept",
        "9112 9.3",
        says(b"Connection: keep-alive", b"Content-Length: 5", body=b"hello", line=b"HTTP/1.0 200 OK"),
        length(b"hello"),
    ),
    Answered(
        "a body in many pieces", "9112 6.3", Reply(tuple(bytes([byte]) for byte in length(b"hello"))), length(b"hello")
    ),
    Answered(
        "chunks in many pieces",
        "9112 7.1",
        Reply(tuple(bytes([byte]) for byte in head(OK, CHUNKED) + HELLO)),
        chunks(HELLO),
    ),
    Answered(
        "an empty line behind a body is not for the client",
        "9112 2.2",
        says(b"Content-Length: 5", body=b"hello\r\n"),
        length(b"hello"),
    ),
    Answered(
        "empty lines behind chunks are not for the client",
        "9112 2.2",
        says(CHUNKED, body=HELLO + b"\r\n\r\n\n"),
        chunks(HELLO),
    ),
    Answered(
        "an empty line before an answer is skipped", "9112 2.2", Reply((b"\r\n" + length(b"hello"),)), length(b"hello")
    ),
]

WITHOUT = [
    Answered("204 has no body", "9110 15.3.5", says(line=b"HTTP/1.1 204 No Content"), head(b"HTTP/1.1 204 No Content")),
    Answered(
        "204 says nothing of a length",
        "9110 8.6",
        says(b"Content-Length: 0", line=b"HTTP/1.1 204 No Content"),
        head(b"HTTP/1.1 204 No Content"),
    ),
    Answered(
        "304 may tell a length and has no body",
        "9110 15.4.5",
        says(b"Content-Length: 5", b'ETag: "e"', line=b"HTTP/1.1 304 Not Modified"),
        head(b"HTTP/1.1 304 Not Modified", b"Content-Length: 5", b'ETag: "e"'),
    ),
    Answered(
        "205 has a length of 0",
        "9110 15.3.6",
        says(b"Content-Length: 0", line=b"HTTP/1.1 205 Reset Content"),
        head(b"HTTP/1.1 205 Reset Content", b"Content-Length: 0"),
    ),
    Answered(
        "HEAD tells a length and has no body",
        "9110 9.3.2",
        says(b"Content-Length: 5"),
        head(OK, b"Content-Length: 5"),
        reused=False,
        asked=HEAD,
    ),
    Answered(
        "HEAD tells of chunks and has none",
        "9110 9.3.2",
        says(CHUNKED),
        head(OK, b"transfer-encoding: chunked"),
        reused=False,
        asked=HEAD,
    ),
    Answered("HEAD may tell nothing", "9110 9.3.2", says(), head(OK), reused=False, asked=HEAD),
    Answered(
        "a body of HEAD is not for the client",
        "9112 6.3",
        says(b"Content-Length: 5", body=b"hello"),
        head(OK, b"Content-Length: 5"),
        reused=False,
        asked=HEAD,
    ),
]

OLDER = [
    Answered(
        "HTTP/1.0 gets a body of a length",
        "9112 9.3",
        says(b"Content-Length: 5", body=b"hello"),
        head(OK, b"Content-Length: 5", b"connection: close") + b"hello",
        kept=False,
        asked=OLD,
    ),
    Answered(
        "HTTP/1.0 gets no chunks",
        "9112 7.1.3",
        says(CHUNKED, body=HELLO),
        head(OK, b"connection: close") + b"hello",
        kept=False,
        asked=OLD,
    ),
    Answered(
        "HTTP/1.0 gets no trailers",
        "9112 7.1.3",
        says(CHUNKED, body=b"5\r\nhello\r\n0\r\nX-T: 1\r\n\r\n"),
        head(OK, b"connection: close") + b"hello",
        kept=False,
        asked=OLD,
    ),
    Answered(
        "HTTP/1.0 gets a body without a length as it is",
        "9112 6.3",
        says(body=b"hello", end=End.CLOSES),
        head(OK, b"connection: close") + b"hello",
        kept=False,
        reused=False,
        asked=OLD,
    ),
    Answered(
        "HTTP/1.0 gets no interim answer",
        "9110 15.2",
        Reply((head(b"HTTP/1.1 103 Early Hints", b"Link: </x>") + length(b"hello"),)),
        head(OK, b"Content-Length: 5", b"connection: close") + b"hello",
        kept=False,
        asked=OLD,
    ),
    Answered(
        "who closes is told so",
        "9112 9.6",
        says(b"Content-Length: 5", body=b"hello"),
        head(OK, b"Content-Length: 5", b"connection: close") + b"hello",
        kept=False,
        asked=LAST,
    ),
]

FIELDS = [
    *(
        same(name, rfc, length(b"hello", *fields))
        for name, rfc, fields in [
            (
                "several Set-Cookie stay several",
                "9110 5.3",
                (b"Set-Cookie: a=1", b"Set-Cookie: b=2, c", b"set-cookie: d=3"),
            ),
            (
                "a Content-Encoding is the client's to undo",
                "9110 8.4",
                (b"Content-Encoding: gzip", b"Vary: Accept-Encoding"),
            ),
            (
                "Date and Server are the replica's",
                "9110 10.2.4",
                (b"Date: Sun, 06 Nov 1994 08:49:37 GMT", b"Server: uvicorn"),
            ),
            ("a Content-Type stays", "9110 8.3", (b"Content-Type: text/event-stream; charset=utf-8",)),
            ("caching is not the router's", "9111 5.2", (b"Cache-Control: no-store", b"Age: 3", b'ETag: W/"e"')),
            ("a Retry-After stays", "9110 10.2.3", (b"Retry-After: 7",)),
            ("a Location stays", "9110 10.2.2", (b"Location: http://replica/v1/y",)),
            ("a challenge of the server stays", "9110 11.6.1", (b"WWW-Authenticate: Bearer",)),
            ("a Via stays", "9110 7.6.3", (b"Via: 1.1 inner",)),
            ("a value beyond ASCII stays", "9110 5.5", (b"X-Y: \x80\xe4\xff",)),
            ("an empty value stays", "9110 5.5", (b"X-Y: ",)),
            ("names stay as they are written", "9110 5.1", (b"x-oDD: z",)),
        ]
    ),
    *(
        Answered(
            f"{name} stays here",
            "9110 7.6.1",
            Reply((length(b"hello", *fields, b"X-Kept: 1"),)),
            length(b"hello", b"X-Kept: 1"),
        )
        for name, fields in {
            "Connection: keep-alive of a replica": (b"Connection: keep-alive",),
            "Keep-Alive of a replica": (b"Keep-Alive: timeout=5",),
            "Proxy-Connection of a replica": (b"Proxy-Connection: keep-alive",),
            "Proxy-Authenticate": (b"Proxy-Authenticate: Basic",),
            "a Trailer that announces": (b"Trailer: X-T",),
            "a wish of a replica for another protocol": (b"Connection: Upgrade", b"Upgrade: h2c"),
            "what Connection of a replica names": (b"Connection: X-Own", b"X-Own: 1"),
            "what a list of a replica names": (b"X-Own: 1", b"Connection: keep-alive ,\tx-OWN,, X-More", b"X-More: 2"),
            "what a second Connection of a replica names": (
                b"Connection: keep-alive",
                b"Connection: X-Own",
                b"X-Own: 1",
            ),
        }.items()
    ),
    Answered(
        "a replica that closes closes its own connection",
        "9112 9.6",
        Reply((length(b"hello", b"Connection: close"),)),
        length(b"hello"),
        reused=False,
    ),
    Answered(
        "a Connection that names Content-Length takes it from nobody",
        "9110 7.6.1",
        Reply((length(b"hello", b"Connection: Content-Length"),)),
        length(b"hello"),
    ),
    Answered(
        "a Connection that names Transfer-Encoding takes it from nobody",
        "9110 7.6.1",
        says(b"Connection: Transfer-Encoding", CHUNKED, body=HELLO),
        chunks(HELLO),
    ),
    Answered(
        "a length in the trailers is a trailer",
        "9110 6.5.1",
        says(CHUNKED, body=b"5\r\nhello\r\n0\r\nX-Length: 9\r\n\r\n"),
        chunks(b"5\r\nhello\r\n0\r\nX-Length: 9\r\n\r\n"),
    ),
]

LINES = [
    Answered(
        "a reason with a NUL is replaced",
        "9112 4",
        says(b"Content-Length: 0", line=b"HTTP/1.1 200 O\x00K"),
        length(b""),
    ),
    *(
        same(
            f"a line of {status.decode()!r} passes",
            "9112 4",
            head(b"HTTP/1.1 " + status, b"Content-Length: 5") + b"hello",
        )
        for status in (
            b"200 Fine",
            b"200 \xc3\xa4",
            b"201 Created",
            b"299 Odd",
            b"302 Found",
            b"400 Bad Request",
            b"404 Not Found",
            b"418 I'm a teapot",
            b"422 Unprocessable",
            b"500 Oops",
            b"599 Odd",
            b"999 Odder",
        )
    ),
    Answered(
        "an empty reason is filled in",
        "9112 4",
        says(b"Content-Length: 0", line=b"HTTP/1.1 404 "),
        head(b"HTTP/1.1 404 Not Found", b"Content-Length: 0"),
    ),
    Answered(
        "a reason that is left out is filled in",
        "9112 4",
        says(b"Content-Length: 0", line=b"HTTP/1.1 404"),
        head(b"HTTP/1.1 404 Not Found", b"Content-Length: 0"),
    ),
]

INTERIM = [
    *(
        Answered(name, "9110 15.2", Reply((interim + length(b"hello"),)), length(b"hello"))
        for name, interim in {
            "a 100 that nobody asked for is not for the client": b"HTTP/1.1 100 Continue\r\n\r\n",
            "several 100 are not for the client": b"HTTP/1.1 100 Continue\r\n\r\n" * 3,
            "a 102 is not for the client": b"HTTP/1.1 102 Processing\r\n\r\n",
            "a 103 is not for the client": b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n",
        }.items()
    ),
    Answered(
        "an interim answer in pieces",
        "9110 15.2",
        Reply((b"HTTP/1.1 103 Early", b" Hints\r\nLink: </x>\r\n\r", b"\n" + length(b"hello"))),
        length(b"hello"),
    ),
    bad(
        "a 101 that nobody asked for",
        "9110 15.2.2",
        head(b"HTTP/1.1 101 Switching Protocols", b"Connection: Upgrade", b"Upgrade: h2c") + length(b"hello"),
    ),
    bad("a 101 without an Upgrade", "9110 15.2.2", head(b"HTTP/1.1 101 Switching Protocols") + length(b"hello")),
    bad("an interim answer and no more", "9110 15.2", head(b"HTTP/1.1 100 Continue"), End.CLOSES),
    bad("interim answers without an end", "9110 15.2", head(b"HTTP/1.1 100 Continue") * 10_000),
]

NO_ANSWER = [
    *(
        bad(f"{name} is no answer", rfc, answer)
        for name, rfc, answer in [
            ("a length beside chunks", "9112 6.3", head(OK, b"Content-Length: 5", CHUNKED) + HELLO),
            ("chunks beside a length", "9112 6.3", head(OK, CHUNKED, b"Content-Length: 5") + HELLO),
            ("two other lengths", "9112 6.3", head(OK, b"Content-Length: 5", b"Content-Length: 6") + b"hello!"),
            ("two equal lengths", "9112 6.3", head(OK, b"Content-Length: 5", b"Content-Length: 5") + b"hello"),
            ("a list of lengths", "9112 6.3", head(OK, b"Content-Length: 5, 5") + b"hello"),
            ("a length with a sign", "9112 6.3", head(OK, b"Content-Length: +5") + b"hello"),
            ("a negative length", "9112 6.3", head(OK, b"Content-Length: -5") + b"hello"),
            ("a hexadecimal length", "9112 6.3", head(OK, b"Content-Length: 0x5") + b"hello"),
            ("an empty length", "9112 6.3", head(OK, b"Content-Length:") + b"hello"),
            ("a length beyond 64 bits", "9112 6.3", head(OK, b"Content-Length: 99999999999999999999") + b"hello"),
            ("a body longer than its length", "9112 6.3", head(OK, b"Content-Length: 4") + b"hello"),
            ("a second answer behind the first", "9112 6.3", length(b"hello") * 2),
            ("a second answer behind chunks", "9112 6.3", head(OK, CHUNKED) + HELLO + length(b"evil")),
            ("a body of 204", "9112 6.3", head(b"HTTP/1.1 204 No Content", b"Content-Length: 5") + b"hello"),
            ("a chunk of 204", "9112 6.3", head(b"HTTP/1.1 204 No Content", CHUNKED) + b"0\r\n\r\n"),
            ("a body of 304", "9112 6.3", head(b"HTTP/1.1 304 Not Modified", b"Content-Length: 5") + b"hello"),
            ("a coding that is not understood", "9112 6.1", head(OK, b"Transfer-Encoding: gzip") + b"hello"),
            ("a coding before chunked", "9112 6.1", head(OK, b"Transfer-Encoding: gzip, chunked") + HELLO),
            ("chunked before a coding", "9112 6.1", head(OK, b"Transfer-Encoding: chunked, gzip") + HELLO),
            ("chunked twice", "9112 6.1", head(OK, CHUNKED, CHUNKED) + HELLO),
            ("an empty coding", "9112 6.1", head(OK, b"Transfer-Encoding:") + HELLO),
            ("identity", "9112 7", head(OK, b"Transfer-Encoding: identity") + b"hello"),
            ("chunks in HTTP/1.0", "9112 6.1", head(b"HTTP/1.0 200 OK", CHUNKED) + HELLO),
            ("garbage", "9112 2.1", b"garbage\r\n\r\n"),
            ("a greeting of TLS", "9112 2.1", bytes.fromhex("15030100020250")),
            ("a request", "9112 2.1", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"),
            ("a body without a head", "9112 2.1", b'{"error": "x"}'),
            ("HTTP/2", "9113 3.4", bytes.fromhex("000012040000000000")),
            ("another version", "9112 2.3", head(b"HTTP/2.0 200 OK", b"Content-Length: 0")),
            ("an older version", "9112 2.3", head(b"HTTP/0.9 200 OK", b"Content-Length: 0")),
            ("a status of two digits", "9112 4", head(b"HTTP/1.1 20 OK", b"Content-Length: 0")),
            ("a status of four digits", "9112 4", head(b"HTTP/1.1 2000 OK", b"Content-Length: 0")),
            ("a status below 100", "9110 15", head(b"HTTP/1.1 099 OK", b"Content-Length: 0")),
            ("a status of letters", "9112 4", head(b"HTTP/1.1 abc OK", b"Content-Length: 0")),
            ("no status", "9112 4", head(b"HTTP/1.1", b"Content-Length: 0")),
            ("a continued line", "9112 5.2", head(OK, b"X-Y: a", b" b", b"Content-Length: 0")),
            ("a space before a colon", "9112 5.1", head(OK, b"X-Y : a", b"Content-Length: 0")),
            ("a line without a colon", "9112 5", head(OK, b"X-Y", b"Content-Length: 0")),
            ("an empty name", "9112 5", head(OK, b": a", b"Content-Length: 0")),
            ("a NUL in a value", "9110 5.5", head(OK, b"X-Y: a\x00b", b"Content-Length: 0")),
            ("a bare carriage return in a value", "9112 2.2", head(OK, b"X-Y: a\rb", b"Content-Length: 0")),
            ("a bare line feed in a value", "9112 2.2", head(OK, b"X-Y: a\nX-Z: b", b"Content-Length: 0")),
            ("lines that end with bare line feeds", "9112 2.2", b"HTTP/1.1 200 OK\nContent-Length: 0\n\n"),
            ("a head larger than one may be", "9110 5.4", head(OK, b"X-Y: " + b"z" * 300_000, b"Content-Length: 0")),
            ("fields without an end", "9110 5.4", OK + b"\r\n" + b"X-Y: z\r\n" * 40_000),
        ]
    ),
    bad("a connection that is closed is no answer", "9112 8", b"", End.CLOSES),
    bad("half a line is no answer", "9112 8", b"HTTP/1.1 2", End.CLOSES),
    bad("half a head is no answer", "9112 8", OK + b"\r\nContent-Le", End.CLOSES),
]

BROKEN = [
    Answered(f"{name} ends without its end", "9112 8", Reply((before, after), end), before, kept=False, reused=False)
    for name, before, after, end in [
        ("a body shorter than its length", head(OK, b"Content-Length: 9") + b"hello", b"", End.CLOSES),
        ("a body of no byte", head(OK, b"Content-Length: 9"), b"", End.CLOSES),
        ("chunks without the last", chunks(b"5\r\nhello\r\n"), b"", End.CLOSES),
        ("a chunk without its end", chunks(b"9\r\nhello"), b"", End.CLOSES),
        ("a last chunk without its trailers", chunks(b"5\r\nhello\r\n0\r\n"), b"", End.CLOSES),
    ]
]


@table([*BODIES, *WITHOUT, *OLDER, *FIELDS, *LINES, *INTERIM, *NO_ANSWER, *BROKEN])
async def test_answer(on: Bench, case: Answered) -> None:
    assert await relayed(on, case) == case.outcome
