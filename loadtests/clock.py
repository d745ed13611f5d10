"""A clock turned by hand: events in order of time, and those of one moment in order of their making.

Production objects that want an event loop for its timers (`gossip.news`, `proxy.waiting`) get this one instead: it has
the time and the timers of a loop and nothing else. It never reads a real clock and never sleeps.
"""

import asyncio
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any, NamedTuple, cast


class _Event(NamedTuple):
    """`number` is unique, so that a heap never compares calls."""

    at: float
    number: int
    call: Callable[..., object]
    args: tuple[Any, ...]


class Timer:
    """What `call_later` answers: a call that can be taken back."""

    __slots__ = ("_args", "_call")

    def __init__(self, call: Callable[..., object], args: tuple[Any, ...]) -> None:
        self._call: Callable[..., object] | None = call
        self._args = args

    def cancel(self) -> None:
        self._call = None

    def fire(self) -> None:
        """Call, unless that was taken back."""
        if self._call is not None:
            self._call(*self._args)


class Clock:
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

    # What of a loop is here.

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """Itself, for who asks for a loop and uses its timers only."""
        return cast("asyncio.AbstractEventLoop", self)

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, call: Callable[..., object], *args: Any) -> Timer:
        timer = Timer(call, args)
        self.at(self.now + delay, timer.fire)
        return timer
