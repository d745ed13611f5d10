"""A replica that takes down every byte that it is sent, and answers with the bytes that it was told to.

It is the judge of smuggling: where a request ends is for h11 to say, which shares no code with the router. What h11
does not take for a request, and bytes that belong to none, are kept in `strange`, which must stay empty.
"""

import asyncio
import re
from enum import StrEnum
from typing import NamedTuple, Self, cast

import h11

from tests.scripted import HOST

MAX_HEAD = 1 << 20

CALLER = b"x-forwarded-for: 127.0.0.1\r\nx-forwarded-proto: http\r\nvia: 1.1 homing\r\n"
ADDED = re.compile(rb"x-request-id: [0-9a-f]{16}-[0-9a-f]+\r\n" + re.escape(CALLER))
"""What the router adds to a request that brings none of its own."""


class End(StrEnum):
    """What the stand-in does behind an answer."""

    STAYS = "stays"
    CLOSES = "closes"
    SHUTS = "shuts"  # Its writing side only.


class Reply(NamedTuple):
    """An answer: bytes in the pieces in which they are written. An `early` one comes with the request's head, and what
    is left of its body is not read."""

    pieces: tuple[bytes, ...]
    end: End = End.STAYS
    early: bool = False


OK = Reply((b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",))


class _Line(asyncio.Protocol):
    """One connection to the stand-in."""

    def __init__(self, standin: "Standin") -> None:
        self._standin = standin
        self._begin(b"")
        self.transport: asyncio.Transport

    def _begin(self, rest: bytes) -> None:
        self._parser = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD)
        self._taken = bytearray()
        if rest:
            self.data_received(rest)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._standin.lines.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._standin.lines.discard(self)
        if self._taken:
            self._standin.strange.append(bytes(self._taken))

    def data_received(self, data: bytes) -> None:
        self._taken += data
        try:
            self._parser.receive_data(data)
            self._read()
        except h11.RemoteProtocolError:
            self._standin.strange.append(bytes(self._taken))
            self._taken.clear()
            self.transport.abort()

    def _read(self) -> None:
        standin = self._standin
        while True:
            event = self._parser.next_event()
            if event is h11.NEED_DATA or event is h11.PAUSED:
                return
            if isinstance(event, h11.Request) and standin.reply.early:
                standin.requests.append(bytes(self._taken))
                self._taken.clear()
                self.transport.pause_reading()
                self._answer()
                return
            if isinstance(event, h11.EndOfMessage):
                break
        if standin.hangs_up:
            standin.requests.append(bytes(self._taken))
            standin.hangs_up = False
            self._taken.clear()
            self.transport.abort()
            return
        rest = self._parser.trailing_data[0]
        standin.requests.append(bytes(self._taken.removesuffix(rest)))
        self._answer()
        self._begin(rest)

    def _answer(self) -> None:
        """Each piece is a write of its own; what is written at once the kernel may still hand out together."""
        reply = self._standin.reply
        for piece in reply.pieces:
            self.transport.write(piece)
        if reply.end is End.CLOSES:
            self.transport.close()
        elif reply.end is End.SHUTS:
            self.transport.write_eof()


class Standin:
    """`async with Standin() as replica:` listens at `replica.port`. `requests` are the bytes of each request as it
    came, whole; `strange` is what was none. `reply` is what the next one gets; one that `hangs_up` resets instead,
    once."""

    def __init__(self) -> None:
        self.reply = OK
        self.hangs_up = False
        self.requests: list[bytes] = []
        self.strange: list[bytes] = []
        self.lines: set[_Line] = set()
        self.port = 0
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.get_running_loop().create_server(lambda: _Line(self), HOST, 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for line in list(self.lines):
            line.transport.abort()

    def taken(self, whole: bool = True) -> tuple[bytes, ...]:
        """The requests since the last call, without the fields that the router adds. Raises AssertionError for bytes
        that belong to no request, unless what came need not be `whole`."""
        requests, self.requests = self.requests, []
        strange, self.strange = self.strange, []
        assert strange == [] or not whole
        return tuple([ADDED.sub(b"", request, count=1) for request in requests])
