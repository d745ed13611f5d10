"""Cases as data: the bytes that a client sends, or those that a replica answers, and what has to come of them."""

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

import h11
import pytest

from tests.conformance.standin import OK, Reply, Standin
from tests.rig import WITHIN, Rig, routing
from tests.scripted import HOST, ScriptedReplica, whole

OURS = re.compile(rb"^(?:x-homing-[a-z-]+|date): [^\r\n]*\r\n", re.MULTILINE)
"""What the router adds to an answer."""

SELDOM = {"interval": "60s"}
MAX_BODY = 64 * 1024
AGAIN = b"GET /version HTTP/1.1\r\nHost: a\r\n\r\n"
"""Sent to see whether a connection is kept."""


class Outcome(NamedTuple):
    """What came of a client's bytes."""

    answers: tuple[int, ...]
    kept: bool
    reaches: tuple[bytes, ...]


class Case(NamedTuple):
    """A client's bytes, each piece a write of its own. `answers` are the statuses of what comes back, interim ones
    too; then the connection is `kept` or closed. `reaches` are the requests that the replica gets, byte for byte."""

    name: str
    rfc: str
    sent: bytes | tuple[bytes, ...]
    answers: tuple[int, ...] = (400,)
    kept: bool = False
    reaches: tuple[bytes, ...] = ()

    @property
    def pieces(self) -> tuple[bytes, ...]:
        return (self.sent,) if isinstance(self.sent, bytes) else self.sent

    @property
    def outcome(self) -> Outcome:
        return Outcome(self.answers, self.kept, self.reaches)


class Relayed(NamedTuple):
    """What came of a replica's bytes: every byte that the client got, or the status of an error of the router's own."""

    gets: bytes | int
    kept: bool
    reused: bool


class Answered(NamedTuple):
    """A replica's answer to `asked`, and every byte that the client `gets` of it, or the status of the router's own
    error; then the client's connection is `kept` or closed, and the replica's `reused` or not."""

    name: str
    rfc: str
    reply: Reply
    gets: bytes | int
    kept: bool = True
    reused: bool = True
    asked: bytes = b"POST /v1/x HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"

    @property
    def outcome(self) -> Relayed:
        return Relayed(self.gets, self.kept, self.reused)


def table(cases: Iterable[Case | Answered]) -> pytest.MarkDecorator:
    """The test runs for each case, which is its name."""
    cases = list(cases)
    names = [f"{case.name} (RFC {case.rfc})" for case in cases]
    assert len(set(names)) == len(names), "two cases have one name"
    return pytest.mark.parametrize("case", cases, ids=names)


def head(line: bytes, *fields: bytes) -> bytes:
    """The head of a request, or of an answer."""
    return b"\r\n".join([line, *fields, b"", b""])


def upstream(line: bytes, *fields: bytes, body: bytes = b"", length: bool = True) -> bytes:
    """A request as the replica gets it: its own Host first, then the client's fields, then the length of its body."""
    lines = [line + b" HTTP/1.1", b"host: standin", *fields]
    if length:
        lines.append(b"content-length: %d" % len(body))
    return b"\r\n".join([*lines, b"", b""]) + body


class Bench(NamedTuple):
    """A worker in front of one stand-in."""

    rig: Rig
    standin: Standin


@asynccontextmanager
async def bench(max_body: int = MAX_BODY) -> AsyncIterator[Bench]:
    """Probes go to a scripted replica that is well, everything else to the stand-in."""
    async with ScriptedReplica(whole()) as probed, Standin() as standin:
        limits = {"body": f"{max_body // 1024}KiB"}
        async with routing({"r1": probed}, health=SELDOM, limits=limits) as rig:
            pool = rig.worker.pools["r1"]
            pool.address = pool.address._replace(port=standin.port, authority=b"standin")
            yield Bench(rig, standin)
            assert standin.taken() == (), "something reached the replica after its case"
            assert probed.calls == []


class Line:
    """One client connection, read as strictly as h11 reads."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.data = b""

    async def send(self, pieces: Sequence[bytes]) -> None:
        for piece in pieces:
            self._writer.write(piece)
            await self._writer.drain()
            if len(pieces) > 1:
                await asyncio.sleep(0.001)  # So that the next piece is a segment of its own.

    async def answer(self, method: bytes) -> list[int]:
        """The statuses of the next answer: interim ones and the final one. What is behind it stays in `data`. A
        connection that ends first leaves out the final one."""
        parser = h11.Connection(h11.CLIENT, max_incomplete_event_size=1 << 20)
        parser.send(h11.Request(method=method, target=b"/", headers=[(b"host", b"a")]))
        parser.send(h11.EndOfMessage())
        if self.data:
            parser.receive_data(self.data)
        statuses: list[int] = []
        while True:
            event = parser.next_event()
            if event is h11.NEED_DATA:
                more = await self.more()
                if not more and parser.their_state is h11.SEND_RESPONSE:
                    return statuses
                self.data += more
                parser.receive_data(more)
            elif isinstance(event, h11.InformationalResponse | h11.Response):
                statuses.append(event.status_code)
            elif isinstance(event, h11.EndOfMessage):
                self.data = parser.trailing_data[0]
                return statuses

    async def rest(self) -> bytes:
        """All that comes until the router closes."""
        while more := await self.more():
            self.data += more
        return self.data

    async def until(self, data: bytes) -> None:
        """Read until so many bytes are there as in `data`, or the router closes."""
        while len(_without_ours(self.data)) < len(data) and (more := await self.more()):
            self.data += more

    async def through(self, mark: bytes) -> bytes:
        """All that comes until these bytes have, or the router closes."""
        while mark not in self.data and (more := await self.more()):
            self.data += more
        return self.data

    async def kept(self) -> bool:
        """Whether the router answers on this connection still; False where it has closed it without another byte."""
        if self.data:
            raise AssertionError(f"more came than was asked for: {self.data!r}")
        try:
            await self.send([AGAIN])
            answered = await self.answer(b"GET")
        except ConnectionError:
            return False
        return answered == [200]

    def shut(self) -> None:
        """Send no more."""
        self._writer.write_eof()

    def leave(self) -> None:
        self._writer.transport.abort()

    async def more(self) -> bytes:
        """Bytes as they come; none when the router has closed."""
        async with asyncio.timeout(WITHIN):
            return await self._reader.read(65_536)


@asynccontextmanager
async def line(rig: Rig) -> AsyncIterator[Line]:
    """A connection to the router."""
    with socket.socket() as raw:
        raw.setblocking(False)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.get_running_loop().sock_connect(raw, (HOST, rig.port))
        client = Line(*await asyncio.open_connection(sock=raw))
        try:
            yield client
        finally:
            client.leave()


def _without_ours(data: bytes) -> bytes:
    head, end, body = data.partition(b"\r\n\r\n")
    return OURS.sub(b"", head + end) + body


async def came(on: Bench, case: Case, methods: Sequence[bytes] = ()) -> Outcome:
    """Send a case's bytes; what comes of them. `methods` are those of its requests, where an answer depends on it."""
    on.standin.reply = OK
    async with line(on.rig) as client:
        await client.send(case.pieces)
        got: list[int] = []
        for method in [*methods, *[b"GET"] * len(case.answers)]:
            if len(got) < len(case.answers):
                got += await client.answer(method)
        kept = await client.kept()
    return Outcome(tuple(got), kept, on.standin.taken())


async def relayed(on: Bench, case: Answered) -> Relayed:
    """Let the replica answer; what comes of it."""
    on.standin.reply = case.reply
    pool = on.rig.worker.pools["r1"]
    pool.drop_idle()
    gets: bytes | int
    async with line(on.rig) as client:
        await client.send([case.asked])
        if isinstance(case.gets, int):
            [gets] = await client.answer(b"POST")
        else:
            await (client.until(case.gets) if case.kept else client.rest())
            gets, client.data = _without_ours(client.data), b""
        on.standin.reply = OK
        kept = await client.kept()
        reused = pool.idle > 0
    on.standin.taken()
    return Relayed(gets, kept, reused)
