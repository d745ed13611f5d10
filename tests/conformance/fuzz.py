"""Fuzzing of what reads HTTP (router/proxy/wire.py, responses.py) and of what goes on from there: what must hold for
any bytes, judged by h11, which shares no code with it.

    python -m tests.conformance.fuzz --minutes 5 [--seed N]

tries seed after seed and prints what was tried. A failure tells its seed, with which it comes again. The test command
runs a few hundred, drawn by hypothesis, which makes a failing one small.

Bytes are near to HTTP: messages of good and odd lines, then spoiled in a place or two, then cut anywhere.
"""

import argparse
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import count
from random import Random

import h11
import httptools

from router.proxy.heads import peer, request_head
from router.proxy.relay import Relay
from router.proxy.responses import ResponseReader
from router.proxy.syntax import WireError
from router.proxy.wire import MAX_HEAD, Request, RequestReader
from tests.proxy.wires import cut

MAX_BODY = 4096
PIECE = 8192
CLIENT = peer("192.0.2.7", "http")
Tally = Counter[str]

GOOD_LINES = [
    b"POST /v1/x HTTP/1.1",
    b"GET /?q HTTP/1.1",
    b"PUT http://a/b HTTP/1.1",
    b"HEAD / HTTP/1.1",
    b"QUERY /x HTTP/1.1",
]
ODD_LINES = [
    *(
        b"OPTIONS * HTTP/1.1",
        b"PUT /a HTTP/1.0",
        b"GET  /  HTTP/1.1",
        b"POST / RTSP/1.1",
        b"GET /v1 HTTP/2.0",
        b"GET /x",
    ),
    *(b"CONNECT a:1 HTTP/1.1", b"GET /#f HTTP/1.1", b"get / HTTP/1.1", b"DELETE /a b HTTP/1.1", b"POST /\xe4 HTTP/1.1"),
]
GOOD_STATUSES = [b"HTTP/1.1 200 OK", b"HTTP/1.1 404", b"HTTP/1.1 503 \xe4", b"HTTP/1.0 200 OK", b"HTTP/1.1 206 Part"]
ODD_STATUSES = [
    *(b"HTTP/1.1 204 No Content", b"HTTP/1.1 304 X", b"HTTP/1.1 100 Continue", b"HTTP/1.1 103 Early", b"HTTP/1.1 20 X"),
    *(b"HTTP/1.1 101 Switching", b"HTTP/2.0 200 OK", b"HTTP/1.1 099 X", b"HTTP/1.1 999 X", b"HTTP/1.1  200 OK"),
]
FRAMED = [
    *(
        (b"Content-Length: 5", b"hello"),
        (b"Content-Length: 0", b""),
        (b"X-Length: 5", b""),
        (b"content-length:\t005 ", b"hello"),
    ),
    *((b"Transfer-Encoding: chunked", b"5\r\nhello\r\n0\r\n\r\n"), (b"Transfer-Encoding: CHUNKED", b"0\r\n\r\n")),
    *((b"Transfer-Encoding: chunked", b"5;x=y\r\nhello\r\n2\r\n\r\n\r\n00\r\nX-T: 1\r\nHost: b\r\n\r\n"),),
    *((b"Transfer-Encoding: chunked", b"1\r\na\r\n" * 9 + b"0\r\n\r\n"),),
]
ODD_FRAMED = [
    *(
        (b"Content-Length: 6", b"hello"),
        (b"Content-Length: 4", b"hello"),
        (b"Content-Length: +5", b"hello"),
        (b"X: y", b"hello"),
    ),
    *((b"Content-Length: 5, 5", b"hello"), (b"Content-Length:", b"hello"), (b"Content-Length : 5", b"hello")),
    *((b"Content-Length: 99999999999999999999", b""), (b"Content-Length: 5\r\nContent-Length: 5", b"hello")),
    *(
        (b"Transfer-Encoding: chunked", body)
        for body in (b"5\nhello\n0\n\n", b"5 \r\nhello\r\n0\r\n\r\n", b"0x1\r\na\r\n0\r\n\r\n")
    ),
    *(
        (b"Transfer-Encoding: chunked", body)
        for body in (b"4\r\nhello\r\n0\r\n\r\n", b"5\r\nhello", b"0\r\nContent-Length: 5\r\n\r\n")
    ),
    *(
        (b"Transfer-Encoding: " + coding, b"0\r\n\r\n")
        for coding in (b"gzip", b"gzip, chunked", b"identity", b"\x0bchunked", b"")
    ),
    *(
        (b"Transfer-Encoding: chunked\r\nContent-Length: 5", b"0\r\n\r\n"),
        (b"Transfer-Encoding : chunked", b"0\r\n\r\n"),
    ),
    *((b"Transfer-Encoding: chunked", b"5\r\nhello\r\n0\r\n\r\n\r\n"), (b"Content-Length: 5", b"hello\r\n\n")),
]
FIELDS = [
    *(
        b"X-Y: z",
        b"Connection: keep-alive",
        b"X-Empty:",
        b"Connection: X-Y",
        b"X-High: \x80\xff",
        b"Date: x",
        b"TE: trailers",
    ),
    *(
        b"Connection: Content-Length, Transfer-Encoding, Host",
        b"Upgrade: h2c",
        b"Connection: Upgrade",
        b"Expect: 100-continue",
    ),
    *(
        b"X-Forwarded-For: a",
        b"X-Forwarded-Proto: https",
        b"Trailer: X-T",
        b"X-Request-Id: i",
        b"Via: 1.0 a",
        b"X-Sp:  a  ",
    ),
]
ODD_FIELDS = [
    *(b"Connection: close", b"Expect: x", b"Host: b", b"Host: a b", b" folded", b"\tfolded", b"No colon", b": no name"),
    *(b"X-Nul: \x00", b"X-Cr: a\rb", b"X-Lf: a\nb", b"X Y: z", b"X-\xc3: z", b"Content_Length: 9", b"X-Del: \x7f"),
]
SPOILS = [b"", *(bytes([byte]) for byte in (*range(14), 32, *b"09aZ:;,\"'-+_#/?*", 0x7F, 0x80, 0xA0, 0xFF))]


def messages(rng: Random, lines: Sequence[bytes], odd: Sequence[bytes], first: Sequence[bytes]) -> bytes:
    """One to three messages, of which every third or so is odd somewhere, and every third spoiled by a byte or two."""
    data = b""
    for _ in range(rng.choice([1, 1, 2, 3])):
        strange = rng.random()
        line = rng.choice(odd if strange < 0.1 else lines)
        framing, body = rng.choice(ODD_FRAMED if 0.1 <= strange < 0.2 else FRAMED)
        fields = [*rng.sample(FIELDS, rng.choice([0, 1, 2, 4])), *first, framing]
        if 0.2 <= strange < 0.3:
            fields.append(rng.choice(ODD_FIELDS))
        rng.shuffle(fields)
        data += b"\r\n".join([line, *fields, b"", body])
    for _ in range(rng.choice([0, 0, 1, 2])):
        at = rng.randrange(len(data))
        data = data[:at] + rng.choice(SPOILS) + data[at + rng.randrange(2) :]
    return data


def requests(rng: Random) -> bytes:
    return messages(rng, GOOD_LINES, ODD_LINES, [b"Host: a"])


def answers(rng: Random) -> bytes:
    return messages(rng, GOOD_STATUSES, ODD_STATUSES, [])


def places(rng: Random) -> list[int]:
    return [rng.randrange(1000) for _ in range(rng.choice([0, 1, 1, 3, 9]))]


def read(pieces: Sequence[bytes]) -> tuple[list[Request], int]:
    """The requests in these pieces, and the status with which the reader refuses what follows them; 0 for none."""
    reader, found = RequestReader(MAX_BODY), []
    try:
        for piece in [*pieces, b""]:
            found += reader.feed(piece)
    except WireError as error:
        return found, error.status
    return found, 0


def any_cut_of_requests_is_the_same_requests(rng: Random, tally: Tally) -> None:
    """Only a WireError leaves, and where the network cuts makes no difference."""
    data = requests(rng)
    whole = read([data])
    end = f"refused with {whole[1]}" if whole[1] else "not refused"
    tally.update({"requests taken": len(whole[0]), end: 1, "bytes of requests": len(data)})
    assert read(cut(data, places(rng))) == whole, data
    assert read([bytes([byte]) for byte in data]) == whole, data


def a_request_that_is_taken_is_one_request_to_the_replica(rng: Random, tally: Tally) -> None:
    """What is written anew, another parser reads as the same request, and as nothing more."""
    for request in read([requests(rng)])[0]:
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


def requests_are_those_that_another_parser_reads(rng: Random, tally: Tally) -> None:
    """h11 takes what is refused here, and refuses a little that is taken here; what both take is the same, and where it
    refuses nothing, nothing more is taken here."""
    data = requests(rng)
    ours, (theirs, refused) = read([data])[0], _read_by_h11(data)
    for mine, other in zip(ours, theirs, strict=False):
        assert (mine.method, _path(mine.target), mine.body) == (other[0], _path(other[1]), other[2]), data
        tally["requests compared"] += 1
    assert refused or len(ours) <= len(theirs), data


def a_reader_holds_no_more_than_its_bounds(rng: Random, tally: Tally) -> None:
    """However long it is fed one part of a message, which may never end anything."""
    data = requests(rng)
    at = rng.randrange(len(data))
    part = data[at : at + rng.randrange(1, 20)]
    reader, more = RequestReader(MAX_BODY), part * (1 + PIECE // len(part))
    try:
        for piece in [data[: at + len(part)], *[more] * (2 * MAX_HEAD // PIECE)]:
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


def an_answer_that_is_whole_is_one_answer_to_the_client(rng: Random, tally: Tally) -> None:
    """Only a parser's error leaves; cuts make no difference; what the client gets is one answer with that body."""
    data, method = answers(rng), rng.choice([b"POST", b"POST", b"HEAD"])
    whole = _meant(relayed([data], method), method)
    tally.update({"answers taken": whole is not None, "answers refused": whole is None, "bytes of answers": len(data)})
    assert _meant(relayed(cut(data, places(rng)), method), method) == whole, (data, method)
    assert _meant(relayed([bytes([byte]) for byte in data], method), method) == whole, (data, method)


Meant = tuple[int, list[tuple[bytes, bytes]], bytes]


def _meant(got: tuple[bytes, bytes] | None, method: bytes) -> Meant | None:
    """The status, fields and body that a client reads, after all that must hold of what it reads."""
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
    return head.status_code, list(head.headers), got_body


def _read_by_h11(data: bytes) -> tuple[list[tuple[bytes, bytes, bytes]], bool]:
    """Method, target and body of the requests that h11 reads, and whether it refused what follows them."""
    found: list[tuple[bytes, bytes, bytes]] = []
    judge = h11.Connection(h11.SERVER)
    judge.receive_data(data)
    try:
        while isinstance(head := judge.next_event(), h11.Request):
            body = b""
            while isinstance(event := judge.next_event(), h11.Data):
                body += event.data
            if not isinstance(event, h11.EndOfMessage):
                return found, False
            found.append((head.method, head.target, body))
            judge.send(h11.Response(status_code=200, headers=[(b"content-length", b"0")]))
            judge.send(h11.EndOfMessage())
            judge.start_next_cycle()
    except (h11.RemoteProtocolError, h11.LocalProtocolError):  # Local: it will not go on behind a last request.
        return found, True
    return found, False


def _path(target: bytes) -> bytes:
    path = re.sub(rb"(?i)\Ahttps?://[^/?]*", b"", target)
    return path if path[:1] in {b"/", b"*"} else b"/" + path


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


PROPERTIES: Sequence[Callable[[Random, Tally], None]] = (
    any_cut_of_requests_is_the_same_requests,
    a_request_that_is_taken_is_one_request_to_the_replica,
    requests_are_those_that_another_parser_reads,
    a_reader_holds_no_more_than_its_bounds,
    an_answer_that_is_whole_is_one_answer_to_the_client,
)


def main() -> None:
    options = argparse.ArgumentParser(description="Fuzz router/proxy/wire.py and responses.py.")
    options.add_argument("--minutes", type=float, default=5.0)
    options.add_argument("--seed", type=int, default=0)
    chosen = options.parse_args()
    tally: Tally = Counter()
    end = time.monotonic() + 60 * chosen.minutes
    for number in count(chosen.seed):
        for holds in PROPERTIES:
            if holds is not a_reader_holds_no_more_than_its_bounds or number % 20 == 0:  # It takes the time of twenty.
                try:
                    holds(Random(number), tally)
                except BaseException:
                    print(f"seed {number}: {holds.__name__.replace('_', ' ')}")  # noqa: T201
                    raise
        if time.monotonic() > end:
            break
    print(f"seeds {chosen.seed} to {number}: nothing failed")  # noqa: T201
    for name, times in sorted(tally.items()):
        print(f"{times:14,}  {name}")  # noqa: T201


if __name__ == "__main__":
    main()
