"""A clock turned by hand: events in order of time, and those of one moment in order of their making.

To production objects that want timers (`gossip.news`, `proxy.waiting`) it is an event loop of which only the time and
the timers work; anything else of a loop raises NotImplementedError, as asyncio's abstract one does. It never reads a
real clock and never sleeps.
"""

import asyncio
from collections.abc import Callable
from contextvars import Context
from heapq import heappop, heappush
from typing import Any, NamedTuple


class _Event(NamedTuple):
    """`number` is unique, so that a heap never compares calls."""

    at: float
    number: int
    call: Callable[..., object]
    args: tuple[Any, ...]


class Clock(asyncio.AbstractEventLoop):
    """Time in seconds from 0."""

    def __init__(self) -> None:
        self.now = 0.0
        self.events = 0
        self._heap: list[_Event] = []

    def at(self, when: float, call: Callable[..., object], *args: Any) -> None:
        """Call at a time that is not in the past; it cannot be taken back."""
        self.events += 1
        heappush(self._heap, _Event(when, self.events, call, args))

    def run(self, goes_on: Callable[[], bool]) -> None:
        """Turn the clock from event to event while there is one and `goes_on` says so."""
        heap = self._heap
        while heap and goes_on():
            self.now, _, call, args = heappop(heap)
            call(*args)

    # What of asyncio's loops is here.

    def time(self) -> float:
        return self.now

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self.at(when, self._fire, handle, callback, args)
        return handle

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.now + delay, callback, *args, context=context)

    def get_debug(self) -> bool:
        return False

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """asyncio's own loops clean up here; ours finds the handle cancelled when its time comes."""

    @staticmethod
    def _fire(handle: asyncio.TimerHandle, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        if not handle.cancelled():
            callback(*args)
