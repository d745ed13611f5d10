"""The open client connections of one worker: how many, when the last is gone, and the sweep for what takes too long."""

import asyncio
import contextlib
import time
from typing import Protocol

from router.proxy.context import Proxy
from router.proxy.departures import Departures

PARTING = 0.5
"""Seconds in which a client takes the error that ends its answer; one that does not read it would never."""

EXCESS = 256
"""Connections over limits.connections that are told so, at a time; any more are closed without a word, because a bound
that grows with those who come is none."""


class OpenConnection(Protocol):
    """One client's."""

    def sweep(self, now: float) -> None:
        """End what takes too long."""
        ...

    def adjust(self) -> None:
        """The bounds have changed."""
        ...

    def close_when_idle(self) -> None: ...

    def break_off(self) -> bool:
        """End in order what has not ended in its time, and close; whether a request was under way."""
        ...

    def cut(self) -> None: ...


class Clients:
    """While it is `leaving`, each request that begins is its connection's last, and its answer says so."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._open: set[OpenConnection] = set()
        self._none = asyncio.Event()
        self._none.set()
        self._sweeping: asyncio.TimerHandle | None = None
        self.departures = Departures(proxy.loop)
        self.leaving = False

    def __len__(self) -> int:
        return len(self._open)

    @property
    def excess(self) -> int:
        """Open connections over the bound."""
        return len(self._open) - self._proxy.bounds.connections

    def add(self, connection: OpenConnection) -> None:
        self._open.add(connection)
        self._none.clear()

    def remove(self, connection: OpenConnection) -> None:
        self._open.remove(connection)
        if not self._open:
            self._none.set()

    def give_way(self, connection: OpenConnection) -> None:
        """Another takes its place, in this turn of the loop."""
        self._open.remove(connection)

    def adjust(self) -> None:
        """The bounds have changed."""
        for connection in self._open:
            connection.adjust()

    def sweep(self) -> None:
        """End what takes too long, now and from now on."""
        self._sweeping = self._proxy.loop.call_later(self._proxy.times.interval, self.sweep)
        now = time.monotonic()
        for connection in list(self._open):
            connection.sweep(now)

    async def gone(self, seconds: float) -> None:
        """Returns when no connection is open any more, at the latest after `seconds`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._none.wait()

    async def drain(self, seconds: float) -> int:
        """Close the idle ones at once, the others when their answer is out, all that are left after `seconds`: how many
        requests that has broken off."""
        for connection in list(self._open):
            connection.close_when_idle()
        await self.gone(seconds)
        broken = sum(connection.break_off() for connection in list(self._open))
        await self.gone(PARTING)
        self.cut()
        if self._sweeping is not None:
            self._sweeping.cancel()
        self.departures.close()
        return broken

    def cut(self) -> None:
        """Close all at once, whatever is under way."""
        for connection in list(self._open):
            connection.cut()
