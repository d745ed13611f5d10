"""Responses without I/O: every split of the same bytes is the same response, and one request has one answer."""

from typing import NamedTuple

import httptools
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.proxy.responses import ResponseReader
from tests.proxy.wires import CUTS, NOISE, Message, cut, halves, messages, survives


class Got(NamedTuple):
    status: int
    phrase: bytes
    fields: list[tuple[bytes, bytes]]
    wire: bytes
    body: bytes
    complete: bool
    keep_alive: bool


def response(*pieces: bytes, to_head: bool = False, eof: bool = False, reader: ResponseReader | None = None) -> Got:
    """What a reader makes of the pieces, the body's bytes on the wire and decoded, each joined."""
    reader = reader or ResponseReader()
    reader.begin(to_head)
    wire = b"".join([reader.feed(piece) for piece in pieces])
    if eof:
        reader.eof()
    fields = [pair[1:] for pair in reader.headers]
    body = b"".join(reader.pieces)
    return Got(reader.status, reader.phrase, fields, wire, body, reader.complete, reader.keep_alive())


WITH_LENGTH = b"HTTP/1.1 200 Fine\r\nContent-Length: 5\r\nSet-Cookie: a=1\r\nset-cookie: b=2\r\n\r\nhello"
STREAM = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n"
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"


def test_a_response_with_a_length() -> None:
    fields = [(b"Content-Length", b"5"), (b"Set-Cookie", b"a=1"), (b"set-cookie", b"b=2")]
    assert response(WITH_LENGTH) == Got(200, b"Fine", fields, b"hello", b"hello", complete=True, keep_alive=True)


def test_a_chunked_response_keeps_its_framing_on_the_wire() -> None:
    got = response(STREAM)
    assert (got.wire, got.body) == (b"3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n", b"hello")
    assert got.complete


@pytest.mark.parametrize(
    "data",
    [
        WITH_LENGTH,
        STREAM,
        INTERIM + WITH_LENGTH,
        INTERIM + STREAM,
        b"HTTP/1.1 204 No Content\r\n\r\n",
        b"\r\n\r\n" + WITH_LENGTH,
    ],
    ids=["length", "chunked", "interim, length", "interim, chunked", "204", "empty lines before"],
)
def test_a_response_cut_in_two_anywhere_is_the_same_response(data: bytes) -> None:
    whole = response(data)
    assert whole.complete
    assert not whole.wire.startswith(b"HTTP")
    for first, second in halves(data):
        assert response(first, second) == whole
    assert response(*(bytes([byte]) for byte in data)) == whole


def test_interim_responses_are_dropped() -> None:
    assert response(INTERIM + WITH_LENGTH) == response(WITH_LENGTH)


def test_an_answer_to_head_ends_with_its_head() -> None:
    got = response(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", to_head=True)
    assert (got.complete, got.body, got.keep_alive) == (True, b"", False)


@pytest.mark.parametrize("status", [204, 304])
def test_some_answers_have_no_body_whatever_their_head_says(status: int) -> None:
    got = response(b"HTTP/1.1 %d X\r\nContent-Length: 0\r\n\r\n" % status)
    assert (got.complete, got.body, got.keep_alive) == (True, b"", True)
    got = response(b"HTTP/1.1 304 X\r\nContent-Length: 7\r\n\r\n")
    assert (got.complete, got.body) == (True, b"")


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
def test_a_body_without_framing_ends_where_the_connection_does(version: bytes) -> None:
    data = b"HTTP/%b 200 OK\r\n\r\nhello" % version
    assert not response(data).complete
    ended = response(data, eof=True)
    assert (ended.complete, ended.body, ended.keep_alive) == (True, b"hello", False)


@pytest.mark.parametrize("data", [WITH_LENGTH, STREAM], ids=["length", "chunked"])
def test_a_framed_body_that_stops_early_is_not_complete(data: bytes) -> None:
    for at in range(len(data)):
        assert not response(data[:at], eof=True).complete


@pytest.mark.parametrize(
    ("fields", "keep_alive"),
    [(b"", True), (b"Connection: close\r\n", False), (b"Connection: keep-alive\r\n", True)],
)
def test_a_replica_says_whether_its_connection_stays(fields: bytes, keep_alive: bool) -> None:
    assert response(b"HTTP/1.1 200 OK\r\n" + fields + b"Content-Length: 0\r\n\r\n").keep_alive is keep_alive


def test_one_reader_serves_one_response_after_the_other() -> None:
    reader = ResponseReader()
    for data in (WITH_LENGTH, STREAM, b"HTTP/1.1 204 X\r\n\r\n", INTERIM + STREAM, WITH_LENGTH):
        assert response(*cut(data, [30]), reader=reader) == response(data)


def test_a_chunk_is_known_to_be_open_from_its_size_line_to_its_end() -> None:
    """Between two chunks, and only there, an event may be put into a client's stream."""
    head, body = STREAM.split(b"\r\n\r\n", 1)
    between = {len(b""), len(b"3\r\nhel\r\n"), len(b"3\r\nhel\r\n2\r\nlo\r\n")}
    for at in range(len(body) - len(b"0\r\n\r\n") + 1):
        for start in (body[:at], *([] if at == 0 else [body[: at - 1]])):
            reader = ResponseReader()
            reader.begin(to_head=False)
            reader.feed(head + b"\r\n\r\n" + start)
            reader.feed(body[len(start) : at])
            assert reader.in_chunk is (at not in between), body[:at]


@pytest.mark.parametrize("data", [WITH_LENGTH, STREAM], ids=["length", "chunked"])
@pytest.mark.parametrize("more", [b"HTTP/1.1 500 X\r\nContent-Length: 3\r\n\r\nbad", b"junk"], ids=["another", "junk"])
def test_more_than_one_answer_is_an_error(data: bytes, more: bytes) -> None:
    """It answers nothing that was asked, so it must reach nobody."""
    with pytest.raises(httptools.HttpParserError):
        response(data + more)


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nab",
        b"HTTP/1.1 200 OK\nContent-Length: 0\n\n",
        b"SSH-2.0-OpenSSH_9.2\r\n",
    ],
    ids=["101", "length and chunked", "two lengths", "bare line feeds", "ssh"],
)
def test_what_is_no_response_is_an_error(data: bytes) -> None:
    with pytest.raises(httptools.HttpParserError):
        response(data)


def test_a_replicas_head_has_a_bound() -> None:
    reader = ResponseReader()
    reader.begin(to_head=False)
    reader.feed(b"HTTP/1.1 200 OK\r\nX: ")
    for _ in range(7):
        reader.feed(b"a" * 8192)
    with pytest.raises(httptools.HttpParserError):
        reader.feed(b"a" * 8192)


@settings(deadline=None, max_examples=150)
@given(messages(b"HTTP/1.1 200 OK", ()), CUTS)
def test_any_split_of_any_response_gives_the_same_response(sent: Message, places: list[int]) -> None:
    got = response(*cut(sent.data, places))
    assert got.complete
    assert got.body == sent.body
    assert got.fields[: len(sent.fields)] == sent.fields  # Behind these, a chunked body's trailers.
    assert sent.data.endswith(b"\r\n\r\n" + got.wire)


@settings(deadline=None, max_examples=300)
@given(NOISE, CUTS, st.booleans())
def test_no_bytes_make_a_response_reader_raise_anything_but_the_parsers_error(
    data: bytes, places: list[int], to_head: bool
) -> None:
    reader = ResponseReader()
    reader.begin(to_head)
    survives(reader.feed, cut(data, places), httptools.HttpParserError)
