"""Chunked uploads (RFC 9112 sections 6.1 and 7.1). What is taken goes on as one body with its length; extensions and
trailers stay here."""

import pytest

from tests.conformance.raw import MAX_BODY, Bench, Case, came, head, table, upstream

pytestmark = pytest.mark.asyncio(loop_scope="module")

POST = b"POST /v1/x HTTP/1.1"
CHUNKED = b"Transfer-Encoding: chunked"
HELLO = b"5\r\nhello\r\n0\r\n\r\n"
NEXT = b"GET /v1/smuggled HTTP/1.1\r\nHost: a\r\n\r\n"


def coded(*fields: bytes, body: bytes = HELLO) -> bytes:
    return head(POST, b"Host: a", *fields) + body


def chunked(body: bytes) -> bytes:
    return coded(CHUNKED, body=body)


def reached(body: bytes = b"hello", *fields: bytes) -> tuple[bytes, ...]:
    return (upstream(b"POST /v1/x", *fields, body=body),)


WHOLE = chunked(b"3;a=1\r\nhel\r\n02\r\nlo\r\n0\r\nX-T: 1\r\n\r\n")

TAKEN = [
    *(
        Case(name, rfc, chunked(body), (200,), True, reached(meant))
        for name, rfc, body, meant in [
            ("one chunk", "9112 7.1", HELLO, b"hello"),
            ("several chunks", "9112 7.1", b"2\r\nhe\r\n1\r\nl\r\n2\r\nlo\r\n0\r\n\r\n", b"hello"),
            ("no chunk but the last", "9112 7.1", b"0\r\n\r\n", b""),
            ("a size in upper case", "9112 7.1", b"A\r\n0123456789\r\n0\r\n\r\n", b"0123456789"),
            ("a size in lower case", "9112 7.1", b"a\r\n0123456789\r\n0\r\n\r\n", b"0123456789"),
            ("a size with leading zeros", "9112 7.1", b"0005\r\nhello\r\n0\r\n\r\n", b"hello"),
            ("a last chunk of several zeros", "9112 7.1", b"5\r\nhello\r\n000\r\n\r\n", b"hello"),
            ("line ends inside a chunk are data", "9112 7.1", b"7\r\n\r\n0\r\n\r\n\r\n0\r\n\r\n", b"\r\n0\r\n\r\n"),
            ("a request inside a chunk is data", "9112 7.1", b"%x\r\n%b\r\n0\r\n\r\n" % (len(NEXT), NEXT), NEXT),
            ("an extension without a value is ignored", "9112 7.1.1", b"5;x\r\nhello\r\n0\r\n\r\n", b"hello"),
            ("an extension with a value is ignored", "9112 7.1.1", b"5;x=y;z=1\r\nhello\r\n0;l\r\n\r\n", b"hello"),
            ("an extension with a quoted value is ignored", "9112 7.1.1", b'5;x="a;b"\r\nhello\r\n0\r\n\r\n', b"hello"),
            ("a trailer stays here", "9110 6.5.1", b"5\r\nhello\r\n0\r\nX-T: 1\r\nX-U:\r\n\r\n", b"hello"),
            ("a Host in the trailers is not one", "9110 6.5.1", b"5\r\nhello\r\n0\r\nHost: b\r\n\r\n", b"hello"),
            (
                "an Authorization in the trailers is not one",
                "9110 6.5.1",
                b"5\r\nhello\r\n0\r\nAuthorization: x\r\n\r\n",
                b"hello",
            ),
        ]
    ),
    Case("a coding in other letters", "9110 5.6.2", coded(b"tRANSFER-eNCODING: ChunKed"), (200,), True, reached()),
    Case(
        "a coding behind white space", "9110 5.6.3", coded(b"Transfer-Encoding: \t chunked "), (200,), True, reached()
    ),
    Case(
        "a GET may have chunks",
        "9110 9.3.1",
        head(b"GET /v1/x HTTP/1.1", b"Host: a", CHUNKED) + HELLO,
        (200,),
        True,
        (upstream(b"GET /v1/x", body=b"hello"),),
    ),
    Case(
        "fields beside chunks go on",
        "9110 7.6.1",
        coded(CHUNKED, b"X-Y: z"),
        (200,),
        True,
        reached(b"hello", b"X-Y: z"),
    ),
    Case(
        "an underscore is not a hyphen",
        "9110 5.1",
        coded(b"Transfer_Encoding: chunked", b"Content-Length: 5", body=b"hello"),
        (200,),
        True,
        reached(b"hello", b"Transfer_Encoding: chunked"),
    ),
    Case(
        "chunks of one byte each",
        "9112 7.1",
        chunked(b"".join(b"1\r\n%c\r\n" % byte for byte in b"hello " * 99) + b"0\r\n\r\n"),
        (200,),
        True,
        reached(b"hello " * 99),
    ),
    Case("chunks that come byte by byte", "9112 7.1", tuple(bytes([byte]) for byte in WHOLE), (200,), True, reached()),
    *(
        Case(
            f"an upload cut behind byte {at} is the same upload",
            "9112 7.1",
            (WHOLE[:at], WHOLE[at:]),
            (200,),
            True,
            reached(),
        )
        for at in range(1, len(WHOLE))
    ),
]

REFUSED = [
    *(
        Case(f"{name} is no chunked body", "9112 7.1", chunked(body))
        for name, body in {
            "a size with 0x": b"0x5\r\nhello\r\n0\r\n\r\n",
            "a size with a plus": b"+5\r\nhello\r\n0\r\n\r\n",
            "a size with a minus": b"-5\r\nhello\r\n0\r\n\r\n",
            "a size with an underscore": b"0_5\r\nhello\r\n0\r\n\r\n",
            "a size that is a word": b"hello\r\nhello\r\n0\r\n\r\n",
            "an empty size": b"\r\nhello\r\n0\r\n\r\n",
            "an extension without a size": b";x\r\nhello\r\n0\r\n\r\n",
            "a size behind a space": b" 5\r\nhello\r\n0\r\n\r\n",
            "a size before a space": b"5 \r\nhello\r\n0\r\n\r\n",
            "a size before a tab": b"5\t\r\nhello\r\n0\r\n\r\n",
            "a size of 17 digits": b"10000000000000005\r\nhello\r\n0\r\n\r\n",
            "a size of 64 bits and one": b"fffffffffffffffff\r\nhello\r\n0\r\n\r\n",
            "a size that ends with a bare line feed": b"5\nhello\r\n0\r\n\r\n",
            "a size that ends with a bare carriage return": b"5\rhello\r\n0\r\n\r\n",
            "an extension that ends with a bare line feed": b"5;x\nhello\r\n0\r\n\r\n",
            "an extension with a bare carriage return": b"5;x\ry\r\nhello\r\n0\r\n\r\n",
            "an extension with a NUL": b"5;x\x00\r\nhello\r\n0\r\n\r\n",
            "data longer than its size": b"4\r\nhello\r\n0\r\n\r\n",
            "data shorter than its size": b"6\r\nhello\r\n0\r\n\r\n",
            "data that ends with a bare line feed": b"5\r\nhello\n0\r\n\r\n",
            "data that ends with a bare carriage return": b"5\r\nhello\r0\r\n\r\n",
            "data without a line end": b"5\r\nhello0\r\n\r\n",
            "a last chunk with a bare line feed": b"5\r\nhello\r\n0\n\r\n",
            "a trailer without a colon": b"5\r\nhello\r\n0\r\nX\r\n\r\n",
            "a trailer with a space before its colon": b"5\r\nhello\r\n0\r\nX : y\r\n\r\n",
            "a trailer with a NUL": b"5\r\nhello\r\n0\r\nX: \x00\r\n\r\n",
            "a trailer that ends with a bare line feed": b"5\r\nhello\r\n0\r\nX: y\n\r\n",
            "a request where the trailers are": b"5\r\nhello\r\n0\r\n" + NEXT,
            "a Content-Length in the trailers": b"5\r\nhello\r\n0\r\nContent-Length: 5\r\n\r\n",
            "a Transfer-Encoding in the trailers": b"5\r\nhello\r\n0\r\nTransfer-Encoding: chunked\r\n\r\n",
        }.items()
    ),
    *(
        Case(name, rfc, coded(*fields))
        for name, rfc, fields in [
            ("a length beside chunks", "9112 6.3", (b"Content-Length: 5", CHUNKED)),
            ("chunks beside a length", "9112 6.3", (CHUNKED, b"Content-Length: 15")),
            ("chunks beside a length of 0", "9112 6.3", (CHUNKED, b"Content-Length: 0")),
            ("a coding that is not chunked", "9112 6.3", (b"Transfer-Encoding: gzip",)),
            ("chunked that is not the last coding", "9112 6.3", (b"Transfer-Encoding: chunked, gzip",)),
            ("identity, which is no coding any more", "9112 7", (b"Transfer-Encoding: identity",)),
            ("identity behind chunked", "9112 6.3", (b"Transfer-Encoding: chunked, identity",)),
            ("identity in a second field", "9112 6.3", (CHUNKED, b"Transfer-Encoding: identity")),
            ("chunked twice in a list", "9112 6.1", (b"Transfer-Encoding: chunked, chunked",)),
            ("chunked twice in two fields", "9112 6.1", (CHUNKED, CHUNKED)),
            ("chunked with a parameter", "9112 7", (b"Transfer-Encoding: chunked;q=1",)),
            ("a word that ends with chunked", "9112 6.3", (b"Transfer-Encoding: xchunked",)),
            ("a word that begins with chunked", "9112 6.3", (b"Transfer-Encoding: chunkedx",)),
            ("chunked in quotes", "9112 7", (b'Transfer-Encoding: "chunked"',)),
            ("chunked before a comma", "9112 6.3", (b"Transfer-Encoding: chunked,",)),
            ("chunked behind a comma", "9112 6.3", (b"Transfer-Encoding: , chunked",)),
            ("an empty coding", "9112 6.3", (b"Transfer-Encoding:",)),
            ("an empty coding beside a length", "9112 6.3", (b"Transfer-Encoding:", b"Content-Length: 15")),
            ("chunked behind a line tabulation", "9110 5.5", (b"Transfer-Encoding: \x0bchunked",)),
            ("chunked before a tab", "9112 6.3", (b"Transfer-Encoding: chunked\t",)),
            ("chunked behind a NUL", "9110 5.5", (b"Transfer-Encoding: \x00chunked",)),
            ("chunked behind a no-break space", "9110 5.5", (b"Transfer-Encoding: \xa0chunked",)),
            ("a coding with a space before its colon", "9112 5.1", (b"Transfer-Encoding : chunked",)),
            ("a coding with a tab before its colon", "9112 5.1", (b"Transfer-Encoding\t: chunked",)),
            ("a coding behind a space", "9112 5.2", (b" Transfer-Encoding: chunked",)),
            ("a coding on a continued line", "9112 5.2", (b"Transfer-Encoding:", b" chunked")),
            ("a coding behind a bare line feed", "9112 2.2", (b"X: y\nTransfer-Encoding: chunked",)),
            ("a coding behind a bare carriage return", "9112 2.2", (b"X: y\rTransfer-Encoding: chunked",)),
        ]
    ),
    Case("chunks in HTTP/1.0", "9112 6.1", head(b"POST /v1/x HTTP/1.0", b"Host: a", CHUNKED) + HELLO),
    Case(
        "chunks beside a length in HTTP/1.0",
        "9112 6.1",
        head(b"POST /v1/x HTTP/1.0", b"Content-Length: 15", CHUNKED) + HELLO,
    ),
    Case(
        "a coding that is not understood before chunked", "9112 6.1", coded(b"Transfer-Encoding: gzip, chunked"), (501,)
    ),
    Case(
        "a coding that is not understood in a field before",
        "9112 6.1",
        coded(b"Transfer-Encoding: gzip", CHUNKED),
        (501,),
    ),
]

LIMITED = [
    Case(
        "one chunk over the limit", "9110 15.5.14", chunked(b"%x\r\n" % (MAX_BODY + 1) + b"x" * (MAX_BODY + 1)), (413,)
    ),
    Case("many chunks over the limit", "9110 15.5.14", chunked(b"400\r\n%b\r\n" % (b"x" * 1024) * 65), (413,)),
    Case("an extension without an end", "9112 7.1.1", chunked(b"5;" + b"x" * 400_000), (431,)),
    Case("trailers without an end", "9110 15.5.16", chunked(b"0\r\n" + b"X: y\r\n" * 60_000), (431,)),
]


@table([*TAKEN, *REFUSED, *LIMITED])
async def test_chunked_upload(on: Bench, case: Case) -> None:
    assert await came(on, case) == case.outcome
