"""The bounded FIFO of each model: asks that every replica's limits cut wait here until one lifts.

Nobody overtakes: a new ask of a model that has a queue goes behind it. The head is tried again when a lease ends, when
a replica becomes eligible, and every 100 ms, because some limits lift by themselves (a gauge, a Retry-After).
"""

import asyncio
import math
from collections import OrderedDict
from typing import Protocol

from router.core.backlog import Mean
from router.core.types import Refusal, RefusalCause

TICK = 0.1
"""Seconds between looks at limits that lift by themselves: a tenth of an engine gauge's period."""


class Waiter(Protocol):
    """A parked request."""

    def try_route(self) -> bool:
        """Route again; False when it must go on waiting."""
        ...

    def refuse(self, refusal: Refusal) -> None: ...


class Waiting:
    """All queues. `max_requests` per model, `max_seconds` for each request."""

    def __init__(self, loop: asyncio.AbstractEventLoop, max_requests: int, max_seconds: float) -> None:
        self._loop = loop
        self._max_requests = max_requests
        self._max_seconds = max_seconds
        self._queues: dict[str | None, OrderedDict[Waiter, asyncio.TimerHandle]] = {}
        self._between = Mean(1.0)
        self._left_at = 0.0  # When somebody last got through, or began to wait where nobody did.
        self._tick: asyncio.TimerHandle | None = None
        self._waking = self._again = False

    def adjust(self, max_requests: int, max_seconds: float) -> None:
        """Other bounds, for whoever begins to wait from now on."""
        self._max_requests, self._max_seconds = max_requests, max_seconds

    def __bool__(self) -> bool:
        """Whether anybody waits."""
        return bool(self._queues)

    def depth(self, model: str | None) -> int:
        """Requests that wait for this model."""
        return len(self._queues.get(model, ()))

    @property
    def depths(self) -> dict[str | None, int]:
        """The same for every model that has a queue."""
        return {model: len(queue) for model, queue in self._queues.items()}

    def park(self, model: str | None, waiter: Waiter) -> Refusal | None:
        """Put a request at the end of its model's queue; the refusal when that is full."""
        length = self.depth(model)
        if length >= self._max_requests:
            return Refusal(RefusalCause.QUEUE_FULL, self._retry_after(length))
        if not self:
            self._left_at = self._loop.time()
        queue = self._queues.setdefault(model, OrderedDict())
        queue[waiter] = self._loop.call_later(self._max_seconds, self._expire, model, waiter)
        if self._tick is None:
            self._tick = self._loop.call_later(TICK, self._on_tick)
        return None

    def leave(self, model: str | None, waiter: Waiter) -> None:
        """Take a request out whose client left. Raises KeyError when it does not wait."""
        self._take(model, waiter)

    def wake(self) -> None:
        """Something changed: let each queue's head try, and the next while they get through.

        A request that gets through may end at once and wake again from inside: that only asks for one more round.
        """
        self._again = True
        if self._waking:
            return
        self._waking = True
        try:
            while self._again:
                self._again = False
                for model in list(self._queues):
                    self._drain(model)
        finally:
            self._waking = False

    def close(self) -> None:
        """Stop all timers; the waiting requests are their connections' to end."""
        if self._tick is not None:
            self._tick.cancel()
        for queue in self._queues.values():
            for timer in queue.values():
                timer.cancel()

    def _drain(self, model: str | None) -> None:
        while queue := self._queues.get(model):
            head, timer = queue.popitem(last=False)
            if not head.try_route():
                queue[head] = timer
                queue.move_to_end(head, last=False)
                return
            timer.cancel()
            if not queue:
                del self._queues[model]
            now = self._loop.time()
            self._between.add(min(self._max_seconds, now - self._left_at))
            self._left_at = now

    def _take(self, model: str | None, waiter: Waiter) -> int:
        queue = self._queues[model]
        queue.pop(waiter).cancel()
        length = len(queue)
        if not queue:
            del self._queues[model]
        return length

    def _expire(self, model: str | None, waiter: Waiter) -> None:
        left = self._take(model, waiter)
        waiter.refuse(Refusal(RefusalCause.QUEUE_TIMEOUT, self._retry_after(left + 1)))

    def _on_tick(self) -> None:
        self._tick = None
        self.wake()
        if self._queues:
            self._tick = self._loop.call_later(TICK, self._on_tick)

    def _retry_after(self, length: int) -> float:
        """Queue length over drain rate, between a second and the longest wait."""
        return min(self._max_seconds, max(1.0, math.ceil(length * self._between.value)))
