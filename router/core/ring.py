"""Key -> order of replicas: consistent hashing. The only file that knows uhashring.

uhashring builds the continuum (160 points a replica); the walk over it is ours, because a policy wants an order and
not one node, for a key that is already a 64-bit hash. Points are hashed by replica id, never by list position or
address, so routers agree without talking. A ring is immutable: a change of members makes a new one.
"""

from bisect import bisect
from collections.abc import Iterable, Iterator, Sequence

from uhashring import HashRing
from xxhash import xxh3_64_intdigest

from router.core.types import ReplicaId

MEMO = 4096
"""Orders remembered: one for each stretch of the continuum between two points, so 8 replicas need 1,280. Of a ring with
more stretches than that, next to none would be asked for twice: it is walked as far as somebody looks."""


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
            found = self._memo[start] = tuple(self._meet(start))
        return found

    def walk(self, key: int) -> Iterable[ReplicaId]:
        """The same, for who does not look at all of it."""
        if len(self._points) <= MEMO:
            return self.order(key)
        return self._meet(bisect(self._points, key) % len(self._points))

    def _meet(self, start: int) -> Iterator[ReplicaId]:
        owners, met, step = self._owners, set[ReplicaId](), start
        while len(met) < self._members:
            owner = owners[step % len(owners)]
            step += 1
            if owner not in met:
                met.add(owner)
                yield owner
