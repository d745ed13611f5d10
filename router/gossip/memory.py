"""The line within one process: for routers that are objects of one loop, as in tests and simulations.

It does what Redis does, a turn of the loop later and without failing: what is published reaches everybody, the sender
too, and values live for as long as they were given.
"""

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence

from router.gossip.lines import BEAT, GAP, End


class Exchange:
    """What stands in Redis' place: who listens, and the values."""

    def __init__(self) -> None:
        self.ends: list[End] = []
        self._values: dict[str, tuple[bytes, float]] = {}
        self._sets: dict[str, set[str]] = {}

    def publish(self, data: bytes) -> None:
        """To all that listen."""
        loop = asyncio.get_running_loop()
        for end in self.ends:
            loop.call_soon(end.hear, [data])

    async def read(self, keys: Sequence[str]) -> Mapping[str, bytes]:
        now = time.monotonic()
        return {key: self._values[key][0] for key in keys if key in self._values and self._values[key][1] > now}

    async def write(self, key: str, value: bytes, seconds: float) -> None:
        self._values[key] = (value, time.monotonic() + seconds)

    async def members(self, key: str) -> Sequence[str]:
        return sorted(self._sets.get(key, ()))

    async def enlist(self, key: str, name: str) -> None:
        self._sets.setdefault(key, set()).add(name)

    async def strike(self, key: str, names: Sequence[str]) -> None:
        self._sets.get(key, set()).difference_update(names)


class MemoryLine:
    """lines.Line."""

    def __init__(self, exchange: Exchange, end: End) -> None:
        self._exchange, self._end = exchange, end
        self._wanted = asyncio.Event()

    def wake(self) -> None:
        self._wanted.set()

    async def run(self) -> None:
        exchange, end = self._exchange, self._end
        exchange.ends.append(end)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._speak())
                await end.join(exchange)
                end.turned(None)
                await end.keep(exchange)
        finally:
            exchange.ends.remove(end)

    async def close(self, last: bytes) -> None:
        self._exchange.publish(last)

    async def _speak(self) -> None:
        due = 0.0
        while True:
            now = time.monotonic()
            self._wanted.clear()
            data = self._end.beat() if now >= due else self._end.tell()
            due = now + BEAT if now >= due else due
            if data is not None:
                self._exchange.publish(data)
                await asyncio.sleep(GAP)
            else:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(due - now):  # wait_for can lose a cancellation.
                        await self._wanted.wait()
