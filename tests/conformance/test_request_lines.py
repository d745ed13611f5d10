"""The first line of a request (RFC 9112 sections 2 and 3): method, target, version."""

import pytest

from tests.conformance.raw import Bench, Case, came, head, table, upstream

pytestmark = pytest.mark.asyncio(loop_scope="module")


def asks(line: bytes, *fields: bytes) -> bytes:
    return head(line, b"Host: a", *fields)


def target(value: bytes) -> bytes:
    return asks(b"GET " + value + b" HTTP/1.1")


def reached(target: bytes, method: bytes = b"GET", length: bool = False) -> tuple[bytes, ...]:
    return (upstream(method + b" " + target, length=length),)


GET = b"GET /v1/x HTTP/1.1"

TARGETS = [
    *(
        Case(f"{name} goes on as it is", "9110 7.1", target(value), (200,), True, reached(value))
        for name, value in {
            "a path": b"/v1/x",
            "the root": b"/",
            "a query": b"/v1/x?a=b&c=d%2F",
            "an empty query": b"/v1/x?",
            "a question mark in a query": b"/v1/x?a?b",
            "a slash twice": b"//v1//x",
            "an escaped letter": b"/v1/%78",
            "an escaped slash": b"/v1%2fx",
            "an escape that is none": b"/v1/%zz",
            "parameters of a segment": b"/v1/x;a=1,2",
            "sub-delimiters": b"/v1/!$&'()*+,;=:@-._~",
            "what browsers send and RFC 3986 does not know": b'/v1/x?a="<>[]{}|\\^`',
            "8,000 bytes": b"/v1/" + b"x" * 8_000,
            "a target in a query": b"/v1/x?u=http://b/c",
        }.items()
    ),
    Case(
        "an absolute target goes on as its path",
        "9112 3.2.2",
        target(b"http://a/v1/x?q"),
        (200,),
        True,
        reached(b"/v1/x?q"),
    ),
    Case(
        "an absolute target counts, and its Host does not",
        "9112 3.2.2",
        target(b"http://b:81/v1/x"),
        (200,),
        True,
        reached(b"/v1/x"),
    ),
    Case("an absolute target may say https", "9112 3.2.2", target(b"https://a/v1/x"), (200,), True, reached(b"/v1/x")),
    Case("a scheme may be in upper case", "9110 4.2.3", target(b"HTTP://a/v1/x"), (200,), True, reached(b"/v1/x")),
    Case(
        "an absolute target without a path is the root", "9110 4.2.3", target(b"http://a"), (200,), True, reached(b"/")
    ),
    Case(
        "an absolute target without a path may have a query",
        "9110 4.2.3",
        target(b"http://a?q"),
        (200,),
        True,
        reached(b"/?q"),
    ),
    Case(
        "an absolute target may have an address of version 6",
        "9110 4.2.1",
        target(b"http://[::1]:80/v1/x"),
        (200,),
        True,
        reached(b"/v1/x"),
    ),
    Case(
        "an asterisk is for OPTIONS", "9112 3.2.4", asks(b"OPTIONS * HTTP/1.1"), (200,), True, reached(b"*", b"OPTIONS")
    ),
    Case(
        "an absolute target of OPTIONS without a path is an asterisk",
        "9112 3.2.4",
        asks(b"OPTIONS http://a HTTP/1.1"),
        (200,),
        True,
        reached(b"*", b"OPTIONS"),
    ),
    *(
        Case(f"{name} is no target", "9112 3.2", target(value))
        for name, value in {
            "an asterisk of GET": b"*",
            "an asterisk with a path": b"*/v1/x",
            "a path without its slash": b"v1/x",
            "an authority": b"a:80",
            "a name": b"a",
            "a query alone": b"?q",
            "nothing": b"",
            "another scheme": b"ftp://a/v1/x",
            "a scheme without slashes": b"http:v1/x",
            "an empty authority": b"http:///v1/x",
            "an empty authority with a port": b"http://:80/v1/x",
            "a fragment": b"/v1/x#y",
            "an absolute target with a fragment": b"http://a/v1/x#y",
            "an absolute target with a user": b"http://u@a/v1/x",
            "a letter beyond ASCII": b"/v1/\xc3\xa4",
            "a NUL": b"/v1/\x00x",
            "a control character": b"/v1/\x01x",
            "a DEL": b"/v1/\x7fx",
            "a tab": b"/v1/\tx",
            "a space": b"/v1/ x",
            "a bare carriage return": b"/v1/\rx",
            "a bare line feed": b"/v1/\nx",
        }.items()
    ),
    Case("a target larger than a head", "9110 15.5.15", target(b"/" + b"x" * 300_000), (414,)),
]

METHODS = [
    *(
        Case(
            f"{name.decode()} goes on",
            "9110 9",
            asks(name + b" /v1/x HTTP/1.1"),
            (200,),
            True,
            reached(b"/v1/x", name, length),
        )
        for name, length in {
            b"GET": False,
            b"POST": True,
            b"PUT": True,
            b"PATCH": True,
            b"DELETE": False,
            b"OPTIONS": False,
        }.items()
    ),
    Case("HEAD goes on", "9110 9.3.2", asks(b"HEAD /v1/x HTTP/1.1"), (200,), True, reached(b"/v1/x", b"HEAD")),
    Case("CONNECT is not for this server", "9110 9.3.6", asks(b"CONNECT a:443 HTTP/1.1"), (501,)),
    Case("CONNECT of a path is not either", "9110 9.3.6", asks(b"CONNECT /v1/x HTTP/1.1"), (501,)),
    Case("TRACE would give away what the router adds", "9110 9.3.8", asks(b"TRACE /v1/x HTTP/1.1"), (501,)),
    *(
        Case(f"{name} is no method", "9110 9.1", asks(line + b" /v1/x HTTP/1.1"))
        for name, line in {
            "a method in lower case": b"get",
            "a method in mixed case": b"Post",
            "a word that nobody knows": b"FOO",
            "a method with more behind it": b"GETX",
            "a method with a NUL": b"GE\x00T",
            "nothing": b"",
            "a quoted method": b'"GET"',
            "a method of RTSP": b"PLAY",
            "the method of HTTP/2's preface": b"PRI",
        }.items()
    ),
]

LINES = [
    *(
        Case(f"{name} before a request is skipped", "9112 2.2", line + asks(GET), (200,), True, reached(b"/v1/x"))
        for name, line in {"an empty line": b"\r\n", "two empty lines": b"\r\n\r\n"}.items()
    ),
    *(
        Case(f"{name} is no version", "9112 2.3", asks(b"GET /v1/x " + version))
        for name, version in {
            "a version in lower case": b"http/1.1",
            "1.1 alone": b"1.1",
            "HTTP alone": b"HTTP",
            "HTTP with a slash": b"HTTP/",
            "half a version": b"HTTP/1.",
            "a version with two digits": b"HTTP/1.10",
            "a version with a zero in front": b"HTTP/01.1",
            "a version with a comma": b"HTTP/1,1",
            "a version with three parts": b"HTTP/1.1.1",
            "a version and a space": b"HTTP/1.1 ",
            "a version and a word": b"HTTP/1.1 x",
            "HTTPS": b"HTTPS/1.1",
            "HTTP/3": b"HTTP/3.0",
            "a minor version that does not exist": b"HTTP/1.2",
            "ICE": b"ICE/1.0",
            "a version of letters": b"HTTP/a.b",
        }.items()
    ),
    *(
        Case(f"HTTP/{version} is not spoken", "9110 15.6.6", asks(b"GET /v1/x HTTP/" + version.encode()), (505,))
        for version in ("0.9", "2.0")
    ),
    Case("a line without a version is HTTP/0.9, which is not spoken", "9112 2.3", b"GET /v1/x\r\n\r\n", (505,)),
    Case(
        "spaces between the parts of a line may be several",
        "9112 3",
        asks(b"GET   /v1/x  HTTP/1.1"),
        (200,),
        True,
        reached(b"/v1/x"),
    ),
    *(
        Case(f"{name} is no request", rfc, data)
        for name, rfc, data in [
            ("a tab between method and target", "9112 3", asks(b"GET\t/v1/x HTTP/1.1")),
            ("a tab between target and version", "9112 3", asks(b"GET /v1/x\tHTTP/1.1")),
            ("a space before the method", "9112 3", asks(b" GET /v1/x HTTP/1.1")),
            ("a line that ends with a bare line feed", "9112 2.2", b"GET /v1/x HTTP/1.1\nHost: a\r\n\r\n"),
            ("a line that ends with a bare carriage return", "9112 2.2", b"GET /v1/x HTTP/1.1\rHost: a\r\n\r\n"),
            ("a line that ends with two carriage returns", "9112 2.2", b"GET /v1/x HTTP/1.1\r\r\nHost: a\r\n\r\n"),
            ("line feeds alone", "9112 2.2", b"GET /v1/x HTTP/1.1\nHost: a\n\n"),
            ("a space before the first field", "9112 2.2", b"GET /v1/x HTTP/1.1\r\n Host: a\r\n\r\n"),
            ("a mark of the byte order before it", "9112 3", b"\xef\xbb\xbf" + asks(GET)),
            ("an answer", "9112 2.1", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"),
            ("a greeting of TLS", "9112 2.1", bytes.fromhex("16030100a1010000")),
            ("a greeting of SOCKS", "9112 2.1", b"\x05\x01\x00"),
            ("a header of the PROXY protocol", "9112 2.1", b"PROXY TCP4 1.2.3.4 5.6.7.8 9 10\r\n" + asks(GET)),
        ]
    ),
    Case("RTSP/1.1 is read as HTTP/1.1", "9112 2.3", asks(b"GET /v1/x RTSP/1.1"), (200,), True, reached(b"/v1/x")),
    Case("HTTP/2's preface is not spoken", "9113 3.4", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
]


@table([*TARGETS, *METHODS, *LINES])
async def test_request_line(on: Bench, case: Case) -> None:
    methods = [b"HEAD"] if case.pieces[0].startswith(b"HEAD") else []
    assert await came(on, case, methods) == case.outcome
