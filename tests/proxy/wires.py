"""Bytes of HTTP to read: any message, in any number of pieces, and noise that looks like one."""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from hypothesis import strategies as st

from router.proxy.wire import Request, RequestReader

MAX_BODY = 4096


def read(*pieces: bytes, max_body: int = MAX_BODY) -> list[Request]:
    """The requests in these pieces."""
    reader = RequestReader(max_body)
    return [request for piece in pieces for request in reader.feed(piece)]


def halves(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The data cut in two at every place."""
    return ((data[:at], data[at:]) for at in range(len(data) + 1))


def cut(data: bytes, places: Sequence[int]) -> list[bytes]:
    """The data cut at these places, each taken modulo its length."""
    at = sorted({place % (len(data) + 1) for place in places} | {0, len(data)})
    return [data[start:stop] for start, stop in pairwise(at)]


CUTS = st.lists(st.integers(0, 10_000), max_size=8)


TOKEN = st.from_regex(rb"\A[A-Za-z][A-Za-z0-9-]{0,11}\Z").map(lambda name: b"X-" + name)
VALUE = st.from_regex(rb"\A([!-~\xa0-\xff]([ -~\xa0-\xff]{0,20}[!-~\xa0-\xff])?)?\Z")
FIELDS = st.lists(st.tuples(TOKEN, VALUE), max_size=5)
BODY = st.binary(max_size=60)


class Message(NamedTuple):
    """Bytes on the wire, the fields of the head, and the body that they carry."""

    data: bytes
    fields: list[tuple[bytes, bytes]]
    body: bytes


def chunked(body: bytes, places: Sequence[int], trailers: Sequence[tuple[bytes, bytes]]) -> bytes:
    chunks = [b"%x\r\n%b\r\n" % (len(piece), piece) for piece in cut(body, places) if piece]
    return b"".join([*chunks, b"0\r\n", *(b"%b: %b\r\n" % pair for pair in trailers), b"\r\n"])


@st.composite
def messages(draw: st.DrawFn, start: bytes, first: tuple[tuple[bytes, bytes], ...]) -> Message:
    fields, body = [*first, *draw(FIELDS)], draw(BODY)
    if draw(st.booleans()):
        fields.append((b"Transfer-Encoding", b"chunked"))
        framed = chunked(body, draw(CUTS), draw(FIELDS))
    else:
        fields.append((b"Content-Length", b"%d" % len(body)))
        framed = body
    lines = b"".join(b"%b: %b\r\n" % pair for pair in fields)
    return Message(start + b"\r\n" + lines + b"\r\n" + framed, fields, body)


NOISE = st.binary(max_size=200) | st.lists(
    st.sampled_from([
        *(b"GET / HTTP/1.1\r\n", b"POST / HTTP/1.1\r\n", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 100 \r\n", b"\r\n", b"\n"),
        *(b"Host: a\r\n", b"Content-Length: 3\r\n", b"Transfer-Encoding: chunked\r\n", b"Connection: close\r\n"),
        *(b"Upgrade: x\r\n", b"Connection: upgrade\r\n", b"abc", b"3\r\nabc\r\n", b"0\r\n\r\n", b"\x00", b": ", b"X"),
    ]),
    max_size=12,
).map(b"".join)  # fmt: skip


def survives(feed: Callable[[bytes], object], pieces: Sequence[bytes], error: type[Exception]) -> None:
    for piece in pieces:
        try:
            feed(piece)
        except error:
            return
