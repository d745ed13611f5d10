"""What a line between the routers of a fleet is, whatever carries it (redis.py, memory.py): the interface of both.

A line calls its `End` when it can send, when something has come, and when it has just come to life; so what is sent is
always as fresh as can be, and nobody waits for a line. It also keeps values under keys, for those who join: each with
a time to live, written by one router and read by any.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

BEAT = 1.0
"""Seconds between heartbeats; silence of twice as long drops a router (core/peers.py)."""

GAP = 0.01
"""Seconds between two batches: less than half of what a worker leaves between its loads, so that one rarely waits."""


class Store(Protocol):
    """Values under keys. Each method raises OSError or what is one to the line, which then begins anew."""

    async def read(self, keys: Sequence[str]) -> Mapping[str, bytes]:
        """What is there of these."""
        ...

    async def write(self, key: str, value: bytes, seconds: float) -> None:
        """Put a value there for so long."""
        ...

    async def members(self, key: str) -> Sequence[str]:
        """The names in a set."""
        ...

    async def enlist(self, key: str, name: str) -> None:
        """Put a name into a set."""
        ...

    async def strike(self, key: str, names: Sequence[str]) -> None:
        """Take names out of a set."""
        ...


class End(Protocol):
    """Who speaks over a line. Only `join` and `keep` may take their time."""

    def tell(self) -> bytes | None:
        """What there is to send now; None for nothing."""
        ...

    def beat(self) -> bytes:
        """The heartbeat."""
        ...

    def hear(self, news: Sequence[bytes]) -> bool:
        """Something has come, in one go; whether any of it is our own, which shows that the line works both ways."""
        ...

    async def join(self, store: Store) -> None:
        """The line has come to life: what others have sent meanwhile was not heard."""
        ...

    async def keep(self, store: Store) -> None:
        """Write down what those who join will read. Runs for as long as the line lives."""
        ...

    def turned(self, problem: str | None) -> None:
        """The line works from now on (None), or does not, or only in part."""
        ...


class Line(Protocol):
    """A way to the other routers."""

    async def run(self) -> None:
        """Carry, until closed and cancelled."""
        ...

    def wake(self) -> None:
        """There is something to tell."""
        ...

    async def close(self, last: bytes) -> None:
        """Send this, and no more, if that is possible at once."""
        ...
