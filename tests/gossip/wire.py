"""A network between a router and its Redis that can be slow, narrow, dead or elsewhere: a TCP proxy in this loop.

It ends TLS where it is given a context, since redis-server is often built without. What it holds open counts: a
connection is gone when the router has closed it, so a test sees what was left behind.
"""

import asyncio
import contextlib
import ssl
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager

from tests.scripted import HOST

PIECE = 4096


class Wire:
    """`target` is the port that new connections go to. `delay` is seconds each way, `rate` bytes a second of all
    connections together, None: as fast as it goes. While `dead` no byte passes and nobody is told: new connections are
    taken and hang, as do those that were there, and none of them ever wakes. While `deaf` subscribers hear nothing, and
    all else passes. While `refusing`, new connections are reset. `accepted` are the moments of new ones."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.delay = 0.0
        self.rate: float | None = None
        self.dead = self.deaf = self.refusing = False
        self.port = 0
        self.accepted: list[float] = []
        self._open: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._changed = asyncio.Event()
        self._free_at = 0.0

    @property
    def open(self) -> int:
        """Connections that the router has not closed."""
        return len(self._open)

    def heal(self) -> None:
        """Be a good network again, for connections to come at least."""
        self.delay, self.rate = 0.0, None
        self.dead = self.deaf = self.refusing = False
        self._changed.set()
        self._changed = asyncio.Event()

    def cut(self) -> None:
        """Break all connections off, as a machine that goes down with its kernel alive: both sides see a reset."""
        for writer in self._open.values():
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, to its end."""
        self.accepted.append(time.monotonic())
        task = asyncio.current_task()
        assert task is not None
        if self.refusing:
            writer.transport.abort()
            return
        self._open[task] = writer
        try:
            await self._carry(reader, writer)
        except OSError:
            writer.transport.abort()
        finally:
            del self._open[task]

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(HOST, self.target)
        subscribed = asyncio.Event()
        try:
            async with _beside(self._pull(there, writer, subscribed)):
                await self._pump(reader, back, subscribed, lambda: False)  # Until the router has closed it.
        finally:
            back.transport.abort()
            writer.transport.abort()

    async def _pull(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, subscribed: asyncio.Event
    ) -> None:
        """What the server sends, and that it has ended."""
        await self._pump(reader, writer, subscribed, lambda: self.deaf)
        if not self.dead:
            writer.close()

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        subscribed: asyncio.Event,
        deaf: Callable[[], bool],
    ) -> None:
        """Each piece on its own way, so that a delay holds nothing up behind it but its own."""
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        async with _beside(self._deliver(queue, writer, subscribed, deaf)):
            while data := await reader.read(PIECE):
                if b"SUBSCRIBE" in data:
                    subscribed.set()
                await queue.put((loop.time() + self.delay, data))

    async def _deliver(
        self,
        queue: "asyncio.Queue[tuple[float, bytes]]",
        writer: asyncio.StreamWriter,
        subscribed: asyncio.Event,
        deaf: Callable[[], bool],
    ) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due, data = await queue.get()
            if self.rate is not None:
                self._free_at = max(self._free_at, loop.time()) + len(data) / self.rate
                due = max(due, self._free_at)
            await asyncio.sleep(max(0.0, due - loop.time()))
            if self.dead:
                await loop.create_future()  # For ever: a connection that was cut half open stays so.
            while deaf() and subscribed.is_set():
                await self._changed.wait()
            writer.write(data)


@asynccontextmanager
async def _beside(work: Coroutine[None, None, None]) -> AsyncIterator[None]:
    """With a task beside it, which ends with the block; that its connection broke is seen where it is read."""
    task = asyncio.get_running_loop().create_task(work)
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, OSError):
            await task


@asynccontextmanager
async def wired(target: int, tls: ssl.SSLContext | None = None) -> AsyncIterator[Wire]:
    """A network that is good so far, in front of a server on this port."""
    wire = Wire(target)
    server = await asyncio.start_server(wire.serve, HOST, 0, ssl=tls)
    wire.port = server.sockets[0].getsockname()[1]
    try:
        yield wire
    finally:
        server.close()
        wire.heal()
        wire.cut()
        await server.wait_closed()
