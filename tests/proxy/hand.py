"""A loop whose clock the test turns, and transports whose other end the test plays."""

import asyncio
import heapq
from collections import deque
from collections.abc import Callable
from typing import Any, cast


class HandLoop:
    """Timers and callbacks only. Nothing runs but in `turn` and `advance`; an error in a callback is the test's.

    `connections` says what becomes of each `create_connection`: an error to raise, or a transport to hand out.
    """

    def __init__(self) -> None:
        self.now = 1000.0
        self.connections: list[FakeTransport | OSError] = []
        self._timers: list[asyncio.TimerHandle] = []
        self._ready: deque[asyncio.Handle] = deque()

    @property
    def port(self) -> asyncio.AbstractEventLoop:
        """The loop as those see it who use no more of one than is here."""
        return cast(asyncio.AbstractEventLoop, self)

    @property
    def waiting(self) -> int:
        """Timers that will run."""
        return sum(not timer.cancelled() for timer in self._timers)

    def turn(self) -> None:
        """Run what is due now, and what that makes due."""
        while self._ready or (self._timers and self._timers[0].when() <= self.now):
            handle = self._ready.popleft() if self._ready else heapq.heappop(self._timers)
            if not handle.cancelled():
                handle._run()

    def advance(self, seconds: float) -> None:
        """Turn the clock, stopping at each timer on the way."""
        end = self.now + seconds
        while self._timers and self._timers[0].when() <= end:
            self.now = max(self.now, self._timers[0].when())
            self.turn()
        self.now = end
        self.turn()

    # What asyncio's loops offer.

    def time(self) -> float:
        return self.now

    def get_debug(self) -> bool:
        return False

    def call_soon(self, callback: Callable[..., object], *args: Any) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self.port)
        self._ready.append(handle)
        return handle

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> asyncio.TimerHandle:
        return self.call_at(self.now + delay, callback, *args)

    def call_at(self, when: float, callback: Callable[..., object], *args: Any) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self.port)
        heapq.heappush(self._timers, handle)
        return handle

    async def create_connection(
        self, factory: Callable[[], asyncio.Protocol], host: str, port: int
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        transport = self.connections.pop(0)
        if isinstance(transport, OSError):
            raise transport
        protocol = transport.protocol = factory()
        protocol.connection_made(transport)
        return transport, protocol

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        raise context["exception"]

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Called by asyncio.TimerHandle."""


class FakeSocket:
    """A socket whose options are of no effect."""

    def setsockopt(self, level: int, name: int, value: int, /) -> None:
        """Taken."""


class FakeTransport(asyncio.Transport):
    """One end of a connection. `written` is what the protocol wrote; the test calls the protocol for the other end."""

    def __init__(self, loop: HandLoop) -> None:
        super().__init__({"socket": FakeSocket()})
        self.protocol: asyncio.Protocol
        self.written = b""
        self.reading = True
        self.ended: str | None = None
        self._loop = loop

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """What is written leaves when the test says so, by the protocol's pause_writing and resume_writing."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert self.ended is None
        self.written += data

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_closing(self) -> bool:
        return self.ended is not None

    def close(self) -> None:
        self._end("close")

    def abort(self) -> None:
        self._end("abort")

    def lose(self, error: Exception | None = None) -> None:
        """The other end is gone."""
        self.ended = self.ended or "lost"
        self.protocol.connection_lost(error)

    def _end(self, how: str) -> None:
        if self.ended is None:
            self.ended = how
            self._loop.call_soon(self.protocol.connection_lost, None)
