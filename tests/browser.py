"""A client of which a test decides every byte, and that reads an answer as strictly as any."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import cast

from replica.faults import reset
from tests.rig import WITHIN, Rig
from tests.scripted import HOST


@dataclass
class Answer:
    """What came. `whole` is False when the connection ended before the answer did."""

    status: int = 0
    fields: list[tuple[str, str]] = field(default_factory=list)
    body: bytes = b""
    whole: bool = False

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.fields if key == name]

    def __getitem__(self, name: str) -> str:
        [value] = self.all(name)
        return value

    @property
    def replica(self) -> str:
        return self["x-homing-replica"]

    @property
    def json(self) -> object:
        return json.loads(self.body)

    @property
    def code(self) -> object:
        """The code of an error in OpenAI's shape."""
        answer = self.json
        assert isinstance(answer, dict)
        return answer["error"]["code"]


class Connection:
    """One connection to the router."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def send_for_ever(self, data: bytes) -> None:
        """Send it again and again. Raises OSError when the router has closed; TimeoutError when it takes all."""
        async with asyncio.timeout(4 * WITHIN):
            while True:
                await self.send(data)

    async def read(self, count: int = 65_536) -> bytes:
        """Bytes as they come; none when the router has closed."""
        async with asyncio.timeout(WITHIN):
            return await self._reader.read(count)

    async def closed(self) -> bool:
        """Wait until the router closes; False when it sends something instead."""
        return await self.read() == b""

    async def answer(self, method: str = "POST", within: float = 4 * WITHIN) -> Answer:
        """The next answer, however it ends. Raises TimeoutError when it neither comes nor ends in time."""
        answer, body = Answer(), bytearray()
        async with asyncio.timeout(within):
            try:
                await self._head(answer)
                await self._body(answer, method, body)
            except (asyncio.IncompleteReadError, ConnectionResetError) as error:
                body += getattr(error, "partial", b"") if answer.status else b""
            else:
                answer.whole = True
        answer.body = bytes(body)
        return answer

    async def _head(self, answer: Answer) -> None:
        head = await self._reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
        answer.status = int(first.split(" ")[1])
        answer.fields = [(name.lower(), value) for name, _, value in (line.partition(": ") for line in lines)]

    async def _body(self, answer: Answer, method: str, body: bytearray) -> None:
        if method == "HEAD" or answer.status in {204, 304}:
            return
        if "chunked" in answer.all("transfer-encoding"):
            while size := int(await self._reader.readuntil(b"\r\n"), 16):
                body += await self._reader.readexactly(size)
                assert await self._reader.readexactly(2) == b"\r\n"
            assert await self._reader.readexactly(2) == b"\r\n"
        elif lengths := answer.all("content-length"):
            body += await self._reader.readexactly(int(lengths[0]))
        else:
            body += await self._reader.read()

    async def asks(self, request: bytes, method: str = "POST") -> Answer:
        await self.send(request)
        return await self.answer(method)

    def shut(self) -> None:
        """Send no more, and go on reading."""
        self._writer.write_eof()

    def close(self) -> None:
        """Go away in order."""
        self._writer.close()

    def leave(self) -> None:
        """Go away as a killed program does."""
        transport = cast(asyncio.Transport, self._writer.transport)
        if not transport.is_closing():
            reset(transport)


@asynccontextmanager
async def connected(rig: Rig, buffer: int | None = None) -> AsyncIterator[Connection]:
    """A connection to the router, by TLS if `rig.tls` says how, cut in the end. `buffer` is what the kernel takes for
    a client that does not read."""
    with socket.socket() as line:
        line.setblocking(False)
        if buffer is not None:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        await asyncio.get_running_loop().sock_connect(line, (HOST, rig.port))
        name = None if rig.tls is None else "localhost"
        reader, writer = await asyncio.open_connection(sock=line, limit=65_536, ssl=rig.tls, server_hostname=name)
        connection = Connection(reader, writer)
        try:
            yield connection
        finally:
            connection.leave()


def post(path: str, body: object, *fields: str) -> bytes:
    """A request; a body that is no bytes is written as JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = [f"POST {path} HTTP/1.1", "Host: homing", f"Content-Length: {len(data)}", *fields]
    return "\r\n".join([*head, "", ""]).encode("latin-1") + data


def chat(content: str = "hello", *fields: str, model: str = "sim", stream: bool = False, **more: object) -> bytes:
    """A chat of one message."""
    body = {"model": model, "messages": [{"role": "user", "content": content}], "stream": stream, **more}
    return post("/v1/chat/completions", body, *fields)


def get(path: str, *fields: str, method: str = "GET") -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: homing", *fields, "", ""]).encode("latin-1")


async def asked(rig: Rig, request: bytes, method: str = "POST") -> Answer:
    """The answer to one request on a connection of its own."""
    async with connected(rig) as connection:
        return await connection.asks(request, method)


async def passes_unchanged(rig: Rig, size: int) -> None:
    """Assert that so large a body comes to a replica, which answers `backwards`, and its answer to the client, as each
    was sent."""
    body = bytes(range(256)) * (size // 256)
    answer = await asked(rig, post("/v1/anything", body))
    assert (answer.status, answer.whole) == (200, True)
    assert answer.body == body[::-1]
