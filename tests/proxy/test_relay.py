"""One response on its way to a client: what the client can read of it, whatever the pieces in which it came."""

import json
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.core.types import Usage
from router.proxy.answers import Style
from router.proxy.relay import TAIL, Relay, read_usage
from router.proxy.responses import ResponseReader
from router.proxy.wire import Request
from tests.proxy.wires import CUTS, Message, cut, halves, messages

USAGE = Usage(30, 2, 16)
COUNTED = {"prompt_tokens": 30, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 16}}
SSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def asked(method: bytes = b"POST", keep_alive: bool = True, http_1_0: bool = False) -> Request:
    return Request(method, b"/v1/chat/completions", [], b"", keep_alive, http_1_0, None)


class Client:
    """The client's side: what was written, and what a client makes of it."""

    def __init__(self) -> None:
        self.data = b""

    def write(self, data: bytes) -> None:
        self.data += data

    def reads(self, eof: bool = False, to_head: bool = False) -> ResponseReader:
        reader = ResponseReader()
        reader.begin(to_head)
        reader.feed(self.data)
        if eof:
            reader.eof()
        return reader

    @property
    def fields(self) -> list[bytes]:
        return self.data.partition(b"\r\n\r\n")[0].split(b"\r\n")[1:]

    @property
    def body(self) -> bytes:
        return b"".join(self.reads().pieces)


class Sent:
    """A response from a replica, relayed as upstream.py does it: pieces are forgotten after each turn."""

    def __init__(self, request: Request, extra: tuple[bytes, ...] = ()) -> None:
        self.client = Client()
        self.response = ResponseReader()
        self.response.begin(to_head=request.method == b"HEAD")
        self._request, self._extra = request, extra
        self._relay: Relay | None = None

    @property
    def relay(self) -> Relay:
        assert self._relay is not None
        return self._relay

    def feed(self, pieces: Iterable[bytes]) -> "Sent":
        for piece in pieces:
            body = self.response.feed(piece)
            if self.response.has_head():
                self._pass_on(body)
        return self

    def eof(self) -> "Sent":
        self.response.eof()
        if self.response.complete:
            self._pass_on(b"")
        return self

    def broken(self, style: Style = Style.OPENAI) -> "Sent":
        self.relay.broken("gone", "replica_lost", style)
        return self

    def _pass_on(self, body: bytes) -> None:
        if self._relay is None:
            self._relay = Relay(self._request, self.response, self._extra, self.client)
        self._relay.pass_on(body)
        self.response.pieces.clear()


def relayed(*pieces: bytes, request: Request | None = None, extra: tuple[bytes, ...] = ()) -> Sent:
    return Sent(request or asked(), extra).feed(pieces)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(value: object) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


# Bodies.


@settings(deadline=None, max_examples=150)
@given(messages(b"HTTP/1.1 200 OK", ()), CUTS)
def test_a_client_gets_the_body_that_the_replica_sent_byte_for_byte(sent: Message, places: list[int]) -> None:
    client = relayed(*cut(sent.data, places)).client
    assert client.data.partition(b"\r\n\r\n")[2] == sent.data.partition(b"\r\n\r\n")[2]
    assert (client.reads().complete, client.body) == (True, sent.body)


@settings(deadline=None, max_examples=60)
@given(messages(b"HTTP/1.1 200 OK", ()), CUTS)
def test_a_client_of_http_1_0_gets_no_chunks_and_its_connection_closes(sent: Message, places: list[int]) -> None:
    old = relayed(*cut(sent.data, places), request=asked(keep_alive=False, http_1_0=True))
    assert not old.relay.keep_alive
    assert b"connection: close" in old.client.fields
    assert not [line for line in old.client.fields if line.lower().startswith(b"transfer-encoding")]
    assert old.client.data.partition(b"\r\n\r\n")[2] == sent.body


@settings(deadline=None, max_examples=60)
@given(st.binary(max_size=80), CUTS, st.sampled_from([b"1.0", b"1.1"]))
def test_a_body_that_ends_with_its_connection_becomes_chunks(body: bytes, places: list[int], version: bytes) -> None:
    sent = relayed(*cut(b"HTTP/" + version + b" 200 OK\r\nX: y\r\n\r\n" + body, places))
    assert not sent.client.reads(eof=True).complete
    sent.eof()
    assert (sent.client.reads().complete, sent.client.body) == (True, body)
    assert sent.relay.keep_alive
    old = relayed(b"HTTP/1.0 200 OK\r\n\r\n" + body, request=asked(keep_alive=False, http_1_0=True)).eof()
    assert old.client.data.partition(b"\r\n\r\n")[2] == body


@pytest.mark.parametrize("framing", [b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b""])
def test_an_answer_to_head_is_a_head(framing: bytes) -> None:
    sent = relayed(b"HTTP/1.1 200 OK\r\n" + framing + b"\r\n", request=asked(method=b"HEAD"))
    assert sent.client.data.endswith(b"\r\n\r\n")
    assert sent.client.data.count(b"\r\n\r\n") == 1
    assert sent.client.reads(to_head=True).complete
    assert (framing.lower() in sent.client.data.lower()) or not framing


@pytest.mark.parametrize("status", [204, 304])
def test_an_answer_without_a_body_stays_without_one(status: int) -> None:
    client = relayed(b"HTTP/1.1 %d X\r\nETag: 1\r\n\r\n" % status).client
    assert client.fields == [b"ETag: 1"]
    assert client.data.endswith(b"\r\n\r\n")
    assert client.reads().complete


@pytest.mark.parametrize("count", [1, 7, 1000], ids=lambda count: f"{count} bytes a piece")
def test_an_empty_line_behind_an_answer_is_not_for_the_client(count: int) -> None:
    data = b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n" + b"x" * 20
    late = data + b"\r\n"
    assert relayed(*(late[at : at + count] for at in range(0, len(late), count))).client.data == data


# Heads.


def test_the_replicas_head_goes_on_with_what_the_router_adds() -> None:
    ours = (b"x-homing-replica: r1\r\nx-homing-reason: home\r\n",)
    head = (
        b"HTTP/1.1 418 Short\r\nServer: uvicorn\r\nDate: now\r\nSet-Cookie: a=1\r\nset-cookie: b=2\r\n"
        b"Connection: keep-alive, X-Hop\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\nProxy-Authenticate: Basic\r\n"
        b"Content-Length: 0\r\n\r\n"
    )
    client = relayed(head, extra=ours).client
    assert client.data.startswith(b"HTTP/1.1 418 Short\r\n")
    assert client.fields == [
        *(b"Server: uvicorn", b"Date: now", b"Set-Cookie: a=1", b"set-cookie: b=2", b"Content-Length: 0"),
        *(b"x-homing-replica: r1", b"x-homing-reason: home"),
    ]  # fmt: skip


def test_the_replicas_word_on_its_own_connection_is_not_for_the_client() -> None:
    sent = relayed(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
    assert sent.relay.keep_alive
    assert sent.client.fields == [b"Content-Length: 0"]


def test_a_client_that_wants_its_connection_closed_is_told_so() -> None:
    sent = relayed(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", request=asked(keep_alive=False))
    assert not sent.relay.keep_alive
    assert b"connection: close" in sent.client.fields


# Usage.


def stream(*parts: object) -> bytes:
    return SSE + b"".join([chunk(event(part)) for part in parts]) + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


WITH_USAGE = stream({"choices": [{"delta": {"content": "hi"}}], "usage": None}, {"choices": [], "usage": COUNTED})


@pytest.mark.parametrize("usage", [b'{"prompt_tokens":1}', b'{ "prompt_tokens" : 1 , "prompt_tokens_details":null}'])
def test_usage_may_be_short(usage: bytes) -> None:
    assert read_usage(b'{"id":"x","usage" : ' + usage + b"}") == Usage(1, None, None)


@pytest.mark.parametrize(
    "tail",
    [
        b"",
        b'{"usage":null}',
        b'{"usage":[]}',
        b'{"usage":{"prompt_tokens":"30"}}',
        b'{"usage":{"prompt_tokens":-30}}',
        b'{"usage":{"prompt_tokens":1.5}}',
        b'{"usage":{"prompt_tokens":30,"prompt_tokens_details":7}}',
        b'{"usage":{"prompt_tokens":30,"prompt_tokens_details":{"cached_tokens":-1}}}',
        b'{"usage":{"prompt_tokens":99999999999999999999999}}',
        b'{"usage":' * 5_000,
        b'{"usage":{"a":{"a":{"a":{}}}}}',
    ],
)
def test_usage_of_another_form_is_none(tail: bytes) -> None:
    assert read_usage(tail) is None


def test_the_last_usage_counts() -> None:
    assert read_usage(b'{"usage":{"prompt_tokens":1}}{"usage":{"prompt_tokens":2}}') == Usage(2, None, None)


def test_text_that_speaks_of_usage_is_not_usage() -> None:
    said = json.dumps({"content": '{"usage":{"prompt_tokens":9}}'}).encode()
    assert read_usage(said) is None


@pytest.mark.parametrize("count", [1, 3, 1000], ids=lambda count: f"{count} bytes a piece")
def test_usage_is_found_in_a_stream_cut_into_pieces(count: int) -> None:
    pieces = [WITH_USAGE[at : at + count] for at in range(0, len(WITH_USAGE), count)]
    assert relayed(*pieces).relay.usage() == USAGE


def test_usage_is_found_wherever_a_stream_is_cut_in_two() -> None:
    for first, second in halves(WITH_USAGE):
        assert relayed(first, second).relay.usage() == USAGE


@pytest.mark.parametrize("after", ["", "x" * (TAIL // 2)], ids=["at the end", "before other fields"])
def test_usage_is_found_at_the_end_of_a_long_answer(after: str) -> None:
    body = json.dumps({"choices": ["a" * 300_000], "usage": COUNTED, "prompt_logprobs": after}).encode()
    data = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    assert relayed(*(data[at : at + 1000] for at in range(0, len(data), 1000))).relay.usage() == USAGE


def test_an_answer_without_usage_has_none() -> None:
    assert relayed(stream({"choices": []})).relay.usage() is None


# Breaking off.


BROKEN_CHUNKS = SSE + chunk(event({"n": 1})) + chunk(event({"n": 2}))


def test_a_stream_that_breaks_between_two_chunks_ends_with_an_error_event_and_without_an_end() -> None:
    client = relayed(BROKEN_CHUNKS).broken().client
    assert not client.reads(eof=True).complete
    first, second, last = client.body.decode().removesuffix("\n\n").split("\n\n")
    assert (first, second) == ('data: {"n": 1}', 'data: {"n": 2}')
    error = json.loads(last.removeprefix("data: "))["error"]
    assert (error["message"], error["code"]) == ("gone", "replica_lost")


@pytest.mark.parametrize(
    ("style", "kind"), [(Style.RESPONSES, '{"type":"error"'), (Style.ANTHROPIC, '{"type":"error","error":{')]
)
def test_the_error_event_has_the_streams_own_form(style: Style, kind: str) -> None:
    last = relayed(BROKEN_CHUNKS).broken(style).client.body.decode().split("\n\n")[-2]
    assert last.startswith("event: error\ndata: " + kind)


def test_a_stream_that_breaks_anywhere_else_just_stops() -> None:
    """An event put into a chunk, or into a chunk's size line, would be taken for a part of it."""
    start = len(SSE)
    between = {start, start + len(chunk(event({"n": 1}))), len(BROKEN_CHUNKS)}
    for at in range(start, len(BROKEN_CHUNKS) + 1):
        whole = relayed(BROKEN_CHUNKS[:at])
        before = whole.client.data
        after = whole.broken().client.data
        assert (after != before) is (at in between), BROKEN_CHUNKS[start:at]
        assert not whole.client.reads(eof=True).complete


def test_a_stream_with_its_last_chunk_half_sent_gets_no_event_behind_it() -> None:
    sent = relayed(BROKEN_CHUNKS + b"0\r\n")
    before = sent.client.data
    assert sent.broken().client.data == before


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 50\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n",
    ],
    ids=["length", "json"],
)
def test_what_is_no_chunked_stream_just_stops(head: bytes) -> None:
    sent = relayed(head)
    before = sent.client.data
    assert sent.broken().client.data == before


def test_a_client_of_http_1_0_sees_the_error_event_without_framing() -> None:
    sent = relayed(BROKEN_CHUNKS, request=asked(keep_alive=False, http_1_0=True)).broken()
    assert sent.client.data.split(b"\n\n")[-2].startswith(b'data: {"error":')
