"""A replica whose every byte a test decides: it hangs, lies, drips, resets, and counts what it generated.

Probes (/health, /v1/models, /metrics) are answered by themselves unless it is `stalled`; each other request runs the
`script`, which writes the answer through its Call.
"""

import asyncio
import json
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import repeat
from typing import Self, cast

from replica.faults import reset

HOST = "127.0.0.1"
FULL = b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


class Call:
    """One request as it arrived, whole. `number` counts the requests of its connection, from 1."""

    def __init__(self, replica: "ScriptedReplica", line: "_Connection", number: int, head: bytes, body: bytes) -> None:
        first, *fields = head.decode("latin-1").split("\r\n")
        self.method, self.target, _ = first.split(" ")
        self.fields = [(name.lower(), value) for name, _, value in (field.partition(": ") for field in fields)]
        self.body = body
        self.number = number
        self.sent = 0
        self.gone = asyncio.Event()
        self._replica = replica
        self._line = line

    def field(self, name: str) -> str | None:
        """The value of a field that is there at most once."""
        values = [value for key, value in self.fields if key == name]
        assert len(values) < 2
        return values[0] if values else None

    def generate(self) -> None:
        """Do the work that must not be done twice."""
        self._replica.generated += 1

    async def send(self, data: bytes) -> None:
        """Returns when the kernel has taken it, or all but a buffer of it."""
        self._line.transport.write(data)
        await self._line.writable.wait()
        self.sent += len(data)

    def close(self) -> None:
        """Close the connection after what was sent."""
        self._line.transport.close()

    def reset(self) -> None:
        """Cut the connection as the kernel of a dead process does, if it is still there."""
        if self._line.transport.get_extra_info("socket") is not None:
            reset(self._line.transport)


Script = Callable[[Call], Awaitable[None]]


class _Connection(asyncio.Protocol):
    def __init__(self, replica: "ScriptedReplica") -> None:
        self._replica = replica
        self._data = bytearray()  # A big body comes in thousands of pieces: each is appended, and nothing copied.
        self._calls = 0
        self._call: Call | None = None
        self._task: asyncio.Task[None] | None = None
        self.writable = asyncio.Event()
        self.writable.set()
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._replica.connections.add(self)
        self._replica.accepted += 1
        self._replica.on_accept(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._replica.connections.discard(self)
        if self._call is not None:
            self._call.gone.set()
        if self._task is not None:
            self._task.cancel()

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def data_received(self, data: bytes) -> None:
        if self._replica.deaf:
            self.transport.pause_reading()
            self._replica.unread += 1
            return
        self._data += data
        end = self._data.find(b"\r\n\r\n")
        if end < 0 or self._task is not None:
            return
        head, start = bytes(self._data[:end]), end + 4
        length = next((int(line[15:]) for line in head.lower().split(b"\r\n") if line[:15] == b"content-length:"), 0)
        if len(self._data) < start + length:
            return
        body = bytes(self._data[start : start + length])
        del self._data[: start + length]
        self._calls += 1
        self._call = Call(self._replica, self, self._calls, head, body)
        self._task = asyncio.get_running_loop().create_task(self._replica.answer(self._call))
        self._task.add_done_callback(self._answered)

    def _answered(self, task: "asyncio.Task[None]") -> None:
        self._task = self._call = None
        if not task.cancelled() and (error := task.exception()) is not None:
            self._replica.errors.append(error)
        if self._data:
            self.data_received(b"")


class ScriptedReplica:
    """`async with ScriptedReplica(script) as replica:` listens at `replica.url`. All that can be set, takes effect at
    the next request: `script`, `health` (what /health answers, one status after the other), `models` and `metrics`
    (None: 404), `lies` (bytes to answer a probe with), `deaf` (what comes is not read; `unread` counts the
    connections). `stalled` is a stopped process: nothing is answered until it goes on. `on_probe` hears of each path.
    """

    def __init__(
        self, script: Script, models: Sequence[str] | None = ("sim",), tls: ssl.SSLContext | None = None
    ) -> None:
        self.script = script
        self.health: Iterator[int] = repeat(200)
        self.models = models
        self.tls = tls
        self.metrics: str | None = None
        self.lies: dict[str, bytes] = {}
        self.on_probe: Callable[[str], None] = lambda _: None
        self.deaf = False
        self._awake = asyncio.Event()
        self._awake.set()
        self.calls: list[Call] = []
        self.probes: list[str] = []
        self.generated = 0
        self.accepted = self.unread = 0
        self.errors: list[BaseException] = []
        self.connections: set[_Connection] = set()
        self.on_accept: Callable[[_Connection], None] = lambda _: None
        self.port = 0
        self._server: asyncio.Server | None = None

    @property
    def stalled(self) -> bool:
        return not self._awake.is_set()

    @stalled.setter
    def stalled(self, stalled: bool) -> None:
        if stalled:
            self._awake.clear()
        else:
            self._awake.set()

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://{HOST}:{self.port}"

    async def __aenter__(self) -> Self:
        await self.listen()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.die()
        for connection in list(self.connections):
            connection.transport.abort()
        assert self.errors == []

    async def listen(self, host: str = HOST) -> None:
        """Take connections (again)."""
        listening = socket.create_server((host, self.port))
        self.port = listening.getsockname()[1]
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), sock=listening, ssl=self.tls)

    def die(self) -> None:
        """As a process that is killed: every connection is reset and new ones are refused."""
        self.stop_listening()
        for connection in list(self.connections):
            if not connection.transport.is_closing():
                reset(connection.transport)

    def stop_listening(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    async def answer(self, call: Call) -> None:
        if call.target not in {"/health", "/metrics", "/v1/models"}:
            self.calls.append(call)
            await self._awake.wait()
            await self.script(call)
            return
        self.probes.append(call.target)
        self.on_probe(call.target)
        await self._awake.wait()
        if call.target in self.lies:
            await call.send(self.lies[call.target])
            call.close()
            return
        status, body = self._probe(call.target)
        await call.send(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n" % (status, len(body)) + body)

    def _probe(self, path: str) -> tuple[int, bytes]:
        if path == "/health":
            return next(self.health), b""
        if path == "/metrics":
            return (404, b"") if self.metrics is None else (200, self.metrics.encode())
        if self.models is None:
            return 404, b""
        cards = [{"id": name, "object": "model"} for name in self.models]
        return 200, json.dumps({"object": "list", "data": cards}).encode()


# Scripts.


def whole(body: bytes = b"{}", status: int = 200, *fields: bytes) -> Script:
    """An answer in one piece."""
    lines = b"".join([field + b"\r\n" for field in fields])

    async def script(call: Call) -> None:
        if status < 400:
            call.generate()
        await call.send(b"HTTP/1.1 %d X\r\n%bContent-Length: %d\r\n\r\n" % (status, lines, len(body)) + body)

    return script


async def backwards(call: Call) -> None:
    """The request's body, last byte first."""
    await whole(call.body[::-1])(call)


def full(retry_after: int | None = 1, status: int = 503) -> Script:
    """No room: an answer before any work."""
    return whole(b'{"full":true}', status, *([] if retry_after is None else [b"Retry-After: %d" % retry_after]))


def chunks(*pieces: bytes, gap: float = 0.0) -> Script:
    """A stream of these chunks, `gap` seconds apart, and its end."""

    async def script(call: Call) -> None:
        call.generate()
        await call.send(STREAM)
        for piece in pieces:
            await call.send(b"%x\r\n%b\r\n" % (len(piece), piece))
            await asyncio.sleep(gap)
        await call.send(b"0\r\n\r\n")

    return script


def sent(data: bytes) -> Script:
    """These bytes, and then nothing."""

    async def script(call: Call) -> None:
        call.generate()
        await call.send(data)
        await call.gone.wait()

    return script


async def hang(call: Call) -> None:
    """Work on it for ever."""
    call.generate()
    await call.gone.wait()


def first(*scripts: Script) -> Script:
    """One script for each request in turn, the last one for all others."""
    left = list(scripts)

    async def script(call: Call) -> None:
        await (left.pop(0) if len(left) > 1 else left[0])(call)

    return script


def closing(data: bytes = b"", *, hard: bool) -> Script:
    """These bytes, and then the connection ends, by a reset or in order."""

    async def script(call: Call) -> None:
        call.generate()
        if data:
            await call.send(data)
            await asyncio.sleep(0.02)  # A reset destroys what the other side's kernel has not handed out yet.
        if hard:
            call.reset()
        else:
            call.close()

    return script
