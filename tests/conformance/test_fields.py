"""The fields of a request (RFC 9112 section 5, RFC 9110 section 5): their syntax, Host, and what goes on."""

import pytest

from tests.conformance.raw import Bench, Case, came, head, table, upstream

pytestmark = pytest.mark.asyncio(loop_scope="module")

GET = b"GET /v1/x HTTP/1.1"


def asks(*fields: bytes) -> bytes:
    return head(GET, b"Host: a", *fields)


def host(value: bytes) -> bytes:
    return head(GET, b"Host: " + value)


def reached(*fields: bytes) -> tuple[bytes, ...]:
    return (upstream(b"GET /v1/x", *fields, length=False),)


HOSTS = [
    *(
        Case(f"{name} is a Host, and the replica gets its own", "9112 3.2", host(value), (200,), True, reached())
        for name, value in {
            "a name": b"homing",
            "a name with a port": b"homing.example:8080",
            "an address": b"10.0.0.1:8080",
            "an address of version 6": b"[2001:db8::1]:8080",
            "a name with a port that is left out": b"a:",
            "a name with an underscore": b"my_service",
            "a name with an escape": b"caf%C3%A9",
            "nothing": b"",
            "a name of another server": b"evil.example",
        }.items()
    ),
    *(
        Case(f"{name} is no Host", "9112 3.2", host(value))
        for name, value in {
            "a name with a space": b"a b",
            "two names": b"a, b",
            "a name with a path": b"a/v1",
            "a URL": b"http://a",
            "a user": b"u@a",
            "a port of letters": b"a:b",
            "two ports": b"a:80:81",
            "a name with a query": b"a?q",
            "a name with a fragment": b"a#f",
            "a name with a backslash": b"a\\b",
            "a name with a quote": b'a"b',
            "a name beyond ASCII": b"caf\xc3\xa9",
            "half an address of version 6": b"[::1",
        }.items()
    ),
    Case("HTTP/1.1 needs a Host", "9112 3.2", head(GET)),
    Case("HTTP/1.1 needs a Host beside an absolute target", "9112 3.2", head(b"GET http://a/v1/x HTTP/1.1")),
    Case("two Hosts are none", "9112 3.2", head(GET, b"Host: a", b"Host: b")),
    Case("two equal Hosts are none", "9112 3.2", head(GET, b"Host: a", b"host: a")),
    Case("two Hosts are none in HTTP/1.0 either", "9112 3.2", head(b"GET /v1/x HTTP/1.0", b"Host: a", b"Host: b")),
    Case("a Host with a space before its colon", "9112 5.1", head(GET, b"Host : a")),
    Case("a Host on a continued line", "9112 5.2", head(GET, b"Host:", b" a")),
]

SYNTAX = [
    *(
        Case(f"{name} goes on as it came", rfc, asks(field), (200,), True, reached(field))
        for name, rfc, field in [
            ("a field", "9110 5.1", b"X-Y: z"),
            ("a name in odd letters", "9110 5.1", b"x-oDD: z"),
            ("a name of every token character", "9110 5.6.2", b"!#$%&'*+-.^_`|~09azAZ: z"),
            ("an empty value", "9110 5.5", b"X-Y: "),
            ("a value beyond ASCII", "9110 5.5", b"X-Y: \x80\xe4\xff"),
            ("a value with a tab and spaces inside", "9110 5.5", b"X-Y: a \t b"),
            ("a value with colons", "9110 5.5", b"X-Y: a: b:c"),
            ("a value with quotes", "9110 5.6.4", b'X-Y: "a\\"b", c'),
            ("a value of 16,000 bytes", "9110 5.4", b"X-Y: " + b"z" * 16_000),
            ("a trace context", "9110 5.1", b"traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
            ("an Authorization", "9110 11.6.2", b"Authorization: Bearer k"),
            ("a Cookie", "9110 5.1", b"Cookie: a=b; c=d"),
            ("an Accept-Encoding", "9110 12.5.3", b"Accept-Encoding: gzip, br"),
            ("a Range", "9110 14.2", b"Range: bytes=0-1"),
            ("an If-None-Match", "9110 13.1.2", b'If-None-Match: "e"'),
            ("a Via", "9110 7.6.3", b"Via: 1.1 edge"),
        ]
    ),
    Case(
        "white space before a value is no part of it", "9112 5.1", asks(b"X-Y: \t z"), (200,), True, reached(b"X-Y: z")
    ),
    Case(
        "white space behind a value goes on, and is no part of it there either",
        "9112 5.1",
        asks(b"X-Y: z \t"),
        (200,),
        True,
        reached(b"X-Y: z \t"),
    ),
    Case("a value needs no white space", "9112 5.1", asks(b"X-Y:z"), (200,), True, reached(b"X-Y: z")),
    Case(
        "fields of one name go on in their order",
        "9110 5.3",
        asks(b"X-Y: 1", b"X-Z: 2", b"x-y: 3"),
        (200,),
        True,
        reached(b"X-Y: 1", b"X-Z: 2", b"x-y: 3"),
    ),
    Case(
        "five hundred fields go on",
        "9110 5.4",
        asks(*[b"X-%d: y" % n for n in range(500)]),
        (200,),
        True,
        reached(*[b"X-%d: y" % n for n in range(500)]),
    ),
    *(
        Case(f"{name} is no field", rfc, asks(field))
        for name, rfc, field in [
            ("a space before the colon", "9112 5.1", b"X-Y : z"),
            ("a tab before the colon", "9112 5.1", b"X-Y\t: z"),
            ("an empty name", "9110 5.1", b": z"),
            ("a line without a colon", "9112 5", b"X-Y"),
            ("a name with a space", "9110 5.6.2", b"X Y: z"),
            ("a name with a parenthesis", "9110 5.6.2", b"X(Y): z"),
            ("a name with a slash", "9110 5.6.2", b"X/Y: z"),
            ("a name with an at sign", "9110 5.6.2", b"X@Y: z"),
            ("a name in quotes", "9110 5.6.2", b'"X-Y": z'),
            ("a name beyond ASCII", "9110 5.6.2", b"X-\xc3\xa4: z"),
            ("a name with a NUL", "9110 5.6.2", b"X-\x00Y: z"),
            ("a name with a DEL", "9110 5.6.2", b"X-\x7fY: z"),
            ("a value with a NUL", "9110 5.5", b"X-Y: a\x00b"),
            ("a value with a bell", "9110 5.5", b"X-Y: a\x07b"),
            ("a value with an escape", "9110 5.5", b"X-Y: a\x1b[0mb"),
            ("a value with a DEL", "9110 5.5", b"X-Y: a\x7fb"),
            ("a value with a bare carriage return", "9112 2.2", b"X-Y: a\rb"),
            ("a value with a bare line feed", "9112 2.2", b"X-Y: a\nb"),
            ("a value with a bare line feed and a field", "9112 2.2", b"X-Y: a\nX-Z: b"),
            ("a continued line", "9112 5.2", b"X-Y: a\r\n b"),
            ("a line continued by a tab", "9112 5.2", b"X-Y: a\r\n\tb"),
            ("a continued line that is empty", "9112 5.2", b"X-Y: a\r\n "),
            ("a line that ends with two carriage returns", "9112 2.2", b"X-Y: a\r"),
        ]
    ),
    Case("a head that ends with bare line feeds", "9112 2.2", b"GET /v1/x HTTP/1.1\r\nHost: a\r\n\n"),
    Case("a field larger than a head may be", "9110 5.4", asks(b"X-Y: " + b"z" * 70_000), (431,)),
    Case("a name larger than a head may be", "9110 5.4", asks(b"X" * 70_000 + b": y"), (431,)),
    Case("more fields than a head may hold", "9110 5.4", asks(*[b"X-%d: y" % n for n in range(20_000)]), (431,)),
    Case("a head without an end", "9110 5.4", b"GET /v1/x HTTP/1.1\r\n" + b"X-Y: z\r\n" * 40_000, (431,)),
]


HOPS = [
    *(
        Case(f"{name} stays here", "9110 7.6.1", asks(field, b"X-Kept: 1"), (200,), True, reached(b"X-Kept: 1"))
        for name, field in {
            "Connection: keep-alive": b"Connection: keep-alive",
            "Keep-Alive": b"Keep-Alive: timeout=5",
            "Proxy-Connection": b"Proxy-Connection: keep-alive",
            "Proxy-Authorization": b"Proxy-Authorization: Basic k",
            "TE": b"TE: trailers",
            "Trailer": b"Trailer: X-T",
            "an Upgrade that Connection does not name": b"Upgrade: h2c",
            "what Connection names": b"Connection: X-Own\r\nX-Own: 1\r\nx-own: 2",
            "what Connection names in other letters": b"Connection: x-OWN\r\nX-Own: 1",
            "what a list in Connection names": b"Connection: keep-alive ,\tX-Own,, X-More\r\nX-Own: 1\r\nX-More: 2",
            "what a second Connection names": b"Connection: keep-alive\r\nX-Own: 1\r\nConnection: X-Own",
            "what Connection names that comes before it": b"X-Own: 1\r\nConnection: X-Own",
            "what asks for the router's explanation": b"X-Homing-Debug: 1\r\nX-Homing-Token: t",
        }.items()
    ),
    Case(
        "a Connection that names Host takes nothing", "9110 7.6.1", asks(b"Connection: Host"), (200,), True, reached()
    ),
    Case(
        "a Connection that names Content-Length takes nothing",
        "9110 7.6.1",
        head(b"POST /v1/x HTTP/1.1", b"Host: a", b"Connection: Content-Length", b"Content-Length: 5") + b"hello",
        (200,),
        True,
        (upstream(b"POST /v1/x", body=b"hello"),),
    ),
    Case(
        "a Connection that names Transfer-Encoding takes nothing",
        "9110 7.6.1",
        head(b"POST /v1/x HTTP/1.1", b"Host: a", b"Connection: Transfer-Encoding", b"Transfer-Encoding: chunked")
        + b"5\r\nhello\r\n0\r\n\r\n",
        (200,),
        True,
        (upstream(b"POST /v1/x", body=b"hello"),),
    ),
]


@table([*HOSTS, *SYNTAX, *HOPS])
async def test_fields(on: Bench, case: Case) -> None:
    assert await came(on, case) == case.outcome
