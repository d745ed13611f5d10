"""Fuzzing of router/proxy/wire.py: what must hold for any bytes, judged by h11, which shares no code with it.

    python -m tests.conformance.fuzz --minutes 5 [--seed N]

runs all properties in turn, in rounds with seeds that are told, and prints what was tried; an example that fails is
printed with its bytes, made as small as hypothesis can. The test command runs a hundred examples of each.

Bytes are near to HTTP: messages out of good and odd lines, then spoiled in a few places, then cut anywhere.
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import count

import h11
import httptools
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from router.proxy.heads import peer, request_head
from router.proxy.relay import Relay
from router.proxy.responses import ResponseReader
from router.proxy.syntax import WireError
from router.proxy.wire import MAX_HEAD, Request, RequestReader
from tests.proxy.wires import CUTS, cut

MAX_BODY = 4096
PIECE = 8192
CLIENT = peer("192.0.2.7", "http")
Tally = Counter[str]

LINES = [
    *(b"GET / HTTP/1.1", b"POST /v1/x?q HTTP/1.1", b"HEAD / HTTP/1.1", b"OPTIONS * HTTP/1.1", b"PUT /a HTTP/1.0"),
    *(b"GET http://a/b HTTP/1.1", b"CONNECT a:1 HTTP/1.1", b"GET /#f HTTP/1.1", b"get / HTTP/1.1", b"GET / HTTP/2.0"),
    *(b"GET  /  HTTP/1.1", b"DELETE /a b HTTP/1.1", b"POST /\xe4 HTTP/1.1", b"POST / RTSP/1.0", b"QUERY /x HTTP/1.1"),
]
STATUS_LINES = [
    *(b"HTTP/1.1 200 OK", b"HTTP/1.1 200", b"HTTP/1.1 204 No Content", b"HTTP/1.1 304 X", b"HTTP/1.1 100 Continue"),
    *(b"HTTP/1.0 200 OK", b"HTTP/1.1 503 \xe4", b"HTTP/1.1 103 Early", b"HTTP/1.1 101 Switching", b"HTTP/2.0 200 OK"),
    *(b"HTTP/1.1 099 X", b"HTTP/1.1 999 X", b"HTTP/1.1 20 X", b"HTTP/1.1  200 OK", b"http/1.1 200 OK"),
]
GOOD = [b"Content-Length: 5", b"Transfer-Encoding: chunked", b"X-Y: z", b"Connection: keep-alive", b"X-Empty:"]
ODD = [
    *(
        b"Content-Length: 0",
        b"Content-Length: 6",
        b"Content-Length: 05",
        b"Content-Length: +5",
        b"Content-Length: 5, 5",
    ),
    *(b"Content-Length:", b"Content-Length : 5", b"Content-Length: 99999999999999999999", b"content-length:\t5 "),
    *(b"Transfer-Encoding: gzip", b"Transfer-Encoding: gzip, chunked", b"Transfer-Encoding: identity", b"TE: chunked"),
    *(b"Transfer-Encoding: CHUNKED", b"Transfer-Encoding:\x0bchunked", b"Transfer-Encoding : chunked", b"Trailer: X-T"),
    *(b"Connection: close", b"Connection: Upgrade", b"Connection: Content-Length", b"Connection: Host, X-Y, close"),
    *(b"Upgrade: h2c", b"Expect: 100-continue", b"Expect: x", b"Host: b", b"Host: a b", b" folded", b"\tfolded"),
    *(
        b"No colon",
        b": no name",
        b"X-Nul: \x00",
        b"X-Cr: a\rb",
        b"X-Lf: a\nb",
        b"X-High: \x80\xff",
        b"X Y: z",
        b"Date: x",
    ),
]
BODIES = [
    *(
        b"",
        b"hello",
        b"hell",
        b"hello!",
        b"5\r\nhello\r\n0\r\n\r\n",
        b"0\r\n\r\n",
        b"5;x=y\r\nhello\r\n00\r\nX-T: 1\r\n\r\n",
    ),
    *(
        b"5\nhello\n0\n\n",
        b"5 \r\nhello\r\n0\r\n\r\n",
        b"0x5\r\nhello\r\n0\r\n\r\n",
        b"4\r\nhello\r\n0\r\n\r\n",
        b"5\r\nhello",
    ),
    *(b"5\r\nhello\r\n0\r\n\r\n\r\n", b"1\r\na\r\n" * 9 + b"0\r\n\r\n", b"0\r\nContent-Length: 5\r\n\r\n", b"\r\n\r\n"),
]
SPOILS = [bytes([byte]) for byte in (*range(14), 32, *b"09aZ:;,\"'-+_#/?*", 0x7F, 0x80, 0xA0, 0xFF)]


@st.composite
def messages(draw: st.DrawFn, lines: Sequence[bytes], first: Sequence[bytes], most: int) -> bytes:
    """Messages one behind the other, and a few bytes in them changed, put in or left out."""
    data = b""
    for _ in range(draw(st.integers(1, most))):
        fields = draw(st.lists(st.sampled_from(GOOD) | st.sampled_from(ODD), max_size=4))
        head = [draw(st.sampled_from(lines)), *first, *fields, b"", b""]
        data += b"\r\n".join(head) + draw(st.sampled_from(BODIES))
    for place in draw(st.lists(st.integers(0, 1000), max_size=3)):
        at = place % len(data)
        data = data[:at] + draw(st.sampled_from([b"", *SPOILS])) + data[at + draw(st.integers(0, 1)) :]
    return data


REQUESTS = messages(LINES, [b"Host: a"], 3) | messages(LINES, [], 2) | st.binary(max_size=100)
RESPONSES = messages(STATUS_LINES, [], 2) | st.binary(max_size=100)


def read(pieces: Sequence[bytes]) -> tuple[list[Request], int]:
    """The requests in these pieces, and the status with which the reader refuses what follows them; 0 for none."""
    reader, found = RequestReader(MAX_BODY), []
    try:
        for piece in [*pieces, b""]:
            found += reader.feed(piece)
    except WireError as error:
        return found, error.status
    return found, 0


def any_cut_of_requests_is_the_same_requests(data: bytes, places: list[int], tally: Tally) -> None:
    """Only a WireError leaves, and where the network cuts makes no difference."""
    requests, status = read([data])
    tally.update({"requests taken": len(requests), f"refused with {status}": status > 0, "bytes": len(data)})
    assert read(cut(data, places)) == (requests, status)
    assert read([bytes([byte]) for byte in data]) == (requests, status)


def a_request_that_is_taken_is_one_request_to_the_replica(data: bytes, places: list[int], tally: Tally) -> None:
    """What is written anew, another parser reads as the same request, and as nothing more."""
    for request in read(cut(data, places))[0]:
        head = request_head(request, b"replica", b"", CLIENT, "id")
        judge = h11.Connection(h11.SERVER)
        judge.receive_data(head + request.body)
        got = judge.next_event()
        assert isinstance(got, h11.Request), head
        assert (got.method, got.target) == (request.method, request.target)
        assert _body(judge) == request.body, head
        assert judge.trailing_data[0] == b"", head
        names = {name for name, _ in got.headers}
        assert not names & {b"transfer-encoding", b"upgrade", b"expect", b"connection", b"te"}, head
        tally["requests judged"] += 1


def a_reader_holds_no_more_than_its_bounds(data: bytes, places: list[int], tally: Tally) -> None:
    """However often it is fed the same bytes, none of which may end anything."""
    reader, more = RequestReader(MAX_BODY), data * (1 + PIECE // max(1, len(data)))
    try:
        for piece in [*cut(data, places), *[more] * (2 * MAX_HEAD // PIECE)]:
            reader.feed(piece)
            held = _held(vars(reader))
            assert held <= 64 * (MAX_BODY + MAX_HEAD), held
    except WireError:
        tally["endless, refused"] += 1
    else:
        tally["endless, taken"] += 1


class Client:
    """What a client of a relay gets."""

    def __init__(self) -> None:
        self.data = b""

    def write(self, data: bytes) -> None:
        self.data += data


def relayed(pieces: Sequence[bytes], method: bytes) -> tuple[bytes, bytes] | None:
    """What a client gets of a replica's whole answer, and its body; None where there is no whole answer, or more."""
    request, client, response = Request(method, b"/", [], b"", True, False, None), Client(), ResponseReader()
    response.begin(method == b"HEAD")
    relay: Relay | None = None
    body, rest = b"", list(pieces)
    try:
        while rest and not response.complete:
            data = response.feed(rest.pop(0))
            if response.status:
                relay = relay or Relay(request, response, (), client)
                body += b"".join(response.pieces)
                relay.pass_on(data)
                response.pieces.clear()
    except httptools.HttpParserError:
        return None
    whole = response.complete
    response.eof()
    if relay is not None and response.complete and not whole:
        relay.pass_on(b"")
    more = b"".join(rest).strip(b"\r\n") and method != b"HEAD"  # Whose connection is closed, whatever comes.
    return None if more or not response.complete else (client.data, body)


def an_answer_that_is_whole_is_one_answer_to_the_client(
    data: bytes, places: list[int], method: bytes, tally: Tally
) -> None:
    """Only a parser's error leaves; cuts make no difference; what the client gets is one answer with that body."""
    whole = relayed([data], method)
    assert _meant(relayed(cut(data, places), method), method) == _meant(whole, method)
    if whole is None:
        tally["answers refused"] += 1
        return
    tally["answers judged"] += 1
    assert _meant(whole, method) is not None


def _meant(got: tuple[bytes, bytes] | None, method: bytes) -> tuple[int, bytes] | None:
    """The status and the body that a client reads, after all that must hold of what it reads."""
    if got is None:
        return None
    sent, body = got
    judge = h11.Connection(h11.CLIENT)
    judge.send(h11.Request(method=method, target=b"/", headers=[(b"host", b"a")]))
    judge.send(h11.EndOfMessage())
    judge.receive_data(sent)
    head = judge.next_event()
    assert isinstance(head, h11.Response), sent
    got_body = _body(judge)
    assert got_body == (b"" if method == b"HEAD" else body), sent
    assert judge.trailing_data[0] == b"", sent
    return head.status_code, got_body


def _body(judge: h11.Connection) -> bytes:
    """The body that h11 reads, to its end. Raises AssertionError when it has none."""
    body = b""
    while isinstance(event := judge.next_event(), h11.Data):
        body += event.data
    assert isinstance(event, h11.EndOfMessage), event
    return body


def _held(value: object) -> int:
    """Bytes of memory that a value holds, its parts' too."""
    size = sys.getsizeof(value, 0)
    if isinstance(value, dict):
        return size + sum(map(_held, value.values()))
    if isinstance(value, list | tuple):
        return size + sum(map(_held, value))
    return size


Property = Callable[[Tally], Callable[[], None]]


def properties(tally: Tally, examples: int) -> list[Callable[[], None]]:
    """Each as a function that tries so many examples. Raises whatever a property raises."""
    with_settings = settings(
        max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )

    def of(holds: Callable[[bytes, list[int], Tally], None]) -> Callable[[], None]:
        @with_settings
        @given(REQUESTS, CUTS)
        def tried(data: bytes, places: list[int]) -> None:
            tally[holds.__name__] += 1
            holds(data, places, tally)

        return tried

    @with_settings
    @given(RESPONSES, CUTS, st.sampled_from([b"POST", b"POST", b"HEAD"]))
    def answers(data: bytes, places: list[int], method: bytes) -> None:
        tally["an_answer_that_is_whole_is_one_answer_to_the_client"] += 1
        an_answer_that_is_whole_is_one_answer_to_the_client(data, places, method, tally)

    return [
        of(any_cut_of_requests_is_the_same_requests),
        of(a_request_that_is_taken_is_one_request_to_the_replica),
        of(a_reader_holds_no_more_than_its_bounds),
        answers,
    ]


def main() -> None:
    options = argparse.ArgumentParser(description="Fuzz router/proxy/wire.py.")
    options.add_argument("--minutes", type=float, default=5.0)
    options.add_argument("--seed", type=int, default=1)
    chosen = options.parse_args()
    tally: Tally = Counter()
    end = time.monotonic() + 60 * chosen.minutes
    for number in count(chosen.seed):
        for tried in properties(tally, 1000):
            seed(number)(tried)()
        if time.monotonic() > end:
            break
    print(f"seeds {chosen.seed} to {number}: no property failed")  # noqa: T201
    for name, times in sorted(tally.items()):
        print(f"{times:12,}  {name.replace('_', ' ')}")  # noqa: T201


if __name__ == "__main__":
    main()
