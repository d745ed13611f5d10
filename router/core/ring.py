"""Key -> order of replicas: consistent hashing. The only file that knows uhashring.

uhashring builds the continuum (160 points a replica); the walk over it is ours, because a policy wants an order and
not one node, for a key that is already a 64-bit hash. Points are hashed by replica id, never by list position or
address, so routers agree without talking. A ring is immutable: a change of members makes a new one.
"""

from bisect import bisect
from collections.abc import Iterable, Sequence
from itertools import chain, islice

from uhashring import HashRing
from xxhash import xxh3_64_intdigest

from router.core.types import ReplicaId

MEMO = 4096
"""Orders remembered: one for each stretch of the continuum between two points, so 8 replicas need 1,280."""


def _position(key: int | str) -> int:
    """Chain hashes are uniform already and are their own position; names of points are hashed."""
    return key if isinstance(key, int) else xxh3_64_intdigest(key.encode())


class Ring:
    """An immutable consistent-hash ring over replica ids."""

    def __init__(self, replicas: Iterable[ReplicaId]) -> None:
        continuum = HashRing(sorted(replicas), hash_fn=_position)
        points = continuum.get_points()
        self._points: list[int] = [position for position, _ in points]
        self._owners: list[ReplicaId] = [owner for _, owner in points]
        self._members = len(continuum.get_nodes())
        self._memo: dict[int, tuple[ReplicaId, ...]] = {}

    def order(self, key: int) -> Sequence[ReplicaId]:
        """Every replica once, in the order in which a clockwise walk from `key` (64 bits) meets it; home first."""
        if not self._points:
            return ()
        start = bisect(self._points, key) % len(self._points)
        found = self._memo.get(start)
        if found is None:
            if len(self._memo) >= MEMO:
                self._memo.clear()
            found = self._memo[start] = self._walk(start)
        return found

    def _walk(self, start: int) -> tuple[ReplicaId, ...]:
        met: dict[ReplicaId, None] = {}
        owners = chain(islice(self._owners, start, None), self._owners)
        while len(met) < self._members:
            met[next(owners)] = None
        return tuple(met)
