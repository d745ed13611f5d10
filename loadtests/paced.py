"""A client at a steady rate: a request goes out when it is due, however the earlier ones fare.

It costs as little as Python can (one write and one or two reads for each request, no parsing beyond the status and the
length), so that what it sees is the router's doing. Chat requests whose answers come in one piece; connections are
kept, and another one is opened when all are busy.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from loadtests.processes import HOST

BROKEN = 0
"""The status of a request whose connection ended before its answer."""


@dataclass(frozen=True, slots=True)
class Answered:
    """One request: when it was due, in seconds since the run began, and the seconds from its first byte to the answer's
    last one."""

    due_s: float
    seconds: float
    status: int


class _Connection(asyncio.Protocol):
    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._answer = b""
        self._status: asyncio.Future[int] | None = None
        self.transport: asyncio.Transport

    async def send(self, request: bytes) -> int:
        """The answer's status, when all of it has come."""
        self._answer, self._status = b"", self._loop.create_future()
        self.transport.write(request)
        return await self._status

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._answer += data
        head, end, body = self._answer.partition(b"\r\n\r\n")
        if end and self._status is not None and len(body) >= _length(head):
            self._end(int(head[9:12]))

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(BROKEN)

    def _end(self, status: int) -> None:
        if self._status is not None and not self._status.done():
            self._status.set_result(status)


def _length(head: bytes) -> int:
    """Raises ValueError for an answer that does not come in one piece."""
    _, found, rest = head.lower().partition(b"\r\ncontent-length:")
    if not found:
        raise ValueError("an answer without a Content-Length")
    return int(rest.partition(b"\r\n")[0])


class Paced:
    """One client of the router at a port of this machine. `body` gives the body of each request by its number."""

    def __init__(self, port: int, body: Callable[[int], bytes]) -> None:
        self._port, self._body = port, body
        self._loop = asyncio.get_running_loop()
        self._idle: list[_Connection] = []
        self._count = 0

    async def run(self, rate: float, seconds: float) -> list[Answered]:
        """So many requests a second for this time; returns when all are answered, in the order of their answers.

        Raises OSError when nobody listens.
        """
        answered: list[Answered] = []
        began = self._loop.time()
        async with asyncio.TaskGroup() as tasks:
            for number in range(round(rate * seconds)):
                due_s = number / rate
                await asyncio.sleep(began + due_s - self._loop.time())
                tasks.create_task(self._one(due_s, answered))
        return answered

    def close(self) -> None:
        """Close all connections."""
        for connection in self._idle:
            connection.transport.close()

    async def _one(self, due_s: float, answered: list[Answered]) -> None:
        body = self._body(self._count)
        self._count += 1
        request = (
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: router\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
        )
        connection = await self._connection()
        sent = self._loop.time()
        status = await connection.send(request)
        answered.append(Answered(due_s, self._loop.time() - sent, status))
        if status != BROKEN:
            self._idle.append(connection)

    async def _connection(self) -> _Connection:
        while self._idle:
            connection = self._idle.pop()
            if not connection.transport.is_closing():
                return connection
        _, connection = await self._loop.create_connection(_Connection, HOST, self._port)
        return connection
