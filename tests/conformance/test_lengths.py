"""Where a request's body ends (RFC 9112 section 6): one reading, or none.

A length that two parsers could read in two ways is how a second request is smuggled past the first, so everything but
digits is refused, lists of equal lengths too, which section 6.3 would let pass.
"""

import pytest

from tests.conformance.raw import MAX_BODY, Bench, Case, came, head, table, upstream

pytestmark = pytest.mark.asyncio(loop_scope="module")

POST = b"POST /v1/x HTTP/1.1"
NEXT = b"GET /v1/smuggled HTTP/1.1\r\nHost: a\r\n\r\n"


def post(*fields: bytes, body: bytes = b"hello") -> bytes:
    return head(POST, b"Host: a", *fields) + body


def length(value: bytes, body: bytes = b"hello") -> bytes:
    return post(b"Content-Length: " + value, body=body)


def reached(body: bytes = b"hello", *fields: bytes) -> tuple[bytes, ...]:
    return (upstream(b"POST /v1/x", *fields, body=body),)


TAKEN = [
    Case("a length in digits", "9110 8.6", length(b"5"), (200,), True, reached()),
    Case("leading zeros are digits", "9110 8.6", length(b"0005"), (200,), True, reached()),
    Case("a thousand leading zeros are digits", "9110 8.6", length(b"0" * 1000 + b"5"), (200,), True, reached()),
    Case("white space around a length is no part of it", "9110 5.5", length(b" \t5\t "), (200,), True, reached()),
    Case("a length of 0", "9110 8.6", length(b"0", b""), (200,), True, reached(b"")),
    Case("a POST that says nothing has no body", "9112 6.3", post(body=b""), (200,), True, reached(b"")),
    Case(
        "a GET may have a body",
        "9110 9.3.1",
        head(b"GET /v1/x HTTP/1.1", b"Host: a", b"Content-Length: 5") + b"hello",
        (200,),
        True,
        (upstream(b"GET /v1/x", body=b"hello"),),
    ),
    Case(
        "a DELETE may have a body",
        "9110 9.3.5",
        head(b"DELETE /v1/x HTTP/1.1", b"Host: a", b"Content-Length: 5") + b"hello",
        (200,),
        True,
        (upstream(b"DELETE /v1/x", body=b"hello"),),
    ),
    Case(
        "every byte may be in a body",
        "9112 6",
        length(b"256", bytes(range(256))),
        (200,),
        True,
        reached(bytes(range(256))),
    ),
    Case(
        "a body of just the limit",
        "9110 15.5.14",
        length(b"%d" % MAX_BODY, b"x" * MAX_BODY),
        (200,),
        True,
        reached(b"x" * MAX_BODY),
    ),
    Case(
        "a field whose name resembles Content-Length is none",
        "9110 5.1",
        post(b"Content_Length: 3", b"Content-Length: 5"),
        (200,),
        True,
        reached(b"hello", b"Content_Length: 3"),
    ),
]

REFUSED = [
    *(
        Case(f"{name} is no length", "9112 6.3", length(value))
        for name, value in {
            "a plus sign": b"+5",
            "a minus sign": b"-5",
            "a minus zero": b"-0",
            "hexadecimal": b"0x5",
            "a bare hexadecimal digit": b"a",
            "a digit with an underscore": b"0_5",
            "an exponent": b"5e0",
            "a fraction": b"5.0",
            "nothing": b"",
            "white space": b"  ",
            "two digits with a space between": b"0 5",
            "a list of equal lengths": b"5, 5",
            "a list without a space": b"5,5",
            "a list of other lengths": b"5, 6",
            "a list that ends with a comma": b"5,",
            "a quoted length": b'"5"',
            "a length with a parameter": b"5;x=1",
            "a length with a line tabulation": b"\x0b5",
            "a length behind a NUL": b"\x005",
            "a digit of another script": "\u0665".encode(),
            "a full-width digit": "\uff15".encode(),
            "a length beyond 64 bits": b"99999999999999999999",
            "a length that is 5 modulo 2 to the 64th": b"18446744073709551621",
        }.items()
    ),
    Case("two equal lengths in two fields", "9112 6.3", post(b"Content-Length: 5", b"Content-Length: 5")),
    Case(
        "two other lengths in two fields", "9112 6.3", post(b"Content-Length: 5", b"content-length: 6", body=b"hello6")
    ),
    Case(
        "a length of 0 before another",
        "9112 6.3",
        post(b"Content-Length: 0", b"Content-Length: %d" % len(NEXT), body=NEXT),
    ),
    Case("a length with a space before its colon", "9112 5.1", post(b"Content-Length : 5")),
    Case("a length on a continued line", "9112 5.2", post(b"Content-Length:", b" 5")),
    Case("a length continued on a second line", "9112 5.2", post(b"Content-Length: 5", b" 0", body=b"x" * 50)),
    Case("a length behind a bare line feed", "9112 2.2", post(b"X: y\nContent-Length: 5")),
    Case("a length behind a bare carriage return", "9112 2.2", post(b"X: y\rContent-Length: 5")),
]

LIMITED = [
    Case("a length over the limit", "9110 15.5.14", length(b"%d" % (MAX_BODY + 1), b""), (413,)),
    Case("a length of 63 bits", "9110 15.5.14", length(b"9223372036854775807", b""), (413,)),
    Case("a length of 64 bits", "9110 15.5.14", length(b"18446744073709551615", b""), (413,)),
]


@table([*TAKEN, *REFUSED, *LIMITED])
async def test_content_length(on: Bench, case: Case) -> None:
    assert await came(on, case) == case.outcome
