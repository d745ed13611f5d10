"""Who is believed to hold which chain, how deep: a mirror of each engine's prefix cache, in router blocks.

The mirror does what vLLM does. Blocks of running requests are pinned; when a request ends, its blocks go to the young
end of a free list, tail before head, so that the old end gives up tails before the heads they hang on. Bounds hold at
insert. Because every chain that touches a block touches its parent too, what is resident on a replica is always
prefix-closed: the replicas that hold block i + 1 are among those that hold block i. Lookups rest on that (`runs`).

Placement is believed at dispatch, before any answer ("speculative"): a cold burst lands on one home. Until a first
token confirms it, a failed placement takes its own new blocks back out.

It is a belief (invariant 6). `disproved` corrects it from the engine's own count: since engines evict the least
recently used first, a missing block tells that everything released before it is gone as well. The chain of the
request that told stays: it has just been computed there.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence

from router.core.types import ReplicaId

_PINNED = -1
"""Stamp of a block that was pinned when it was placed again: it says nothing about age."""


class Placement:
    """One lease's pins: the chain as far as it fitted, how deep it was resident before, and its blocks' ages then."""

    __slots__ = ("chain", "depth", "replica", "stamps")

    def __init__(self, replica: ReplicaId, chain: Sequence[int], depth: int, stamps: list[int]) -> None:
        self.replica = replica
        self.chain = chain
        self.depth = depth
        self.stamps = stamps


class _Shelf:
    """One replica's blocks. A block is in `pins` or in `free`, never in both; `fresh` are not yet confirmed."""

    __slots__ = ("answers", "bit", "clock", "free", "fresh", "pins")

    def __init__(self, bit: int) -> None:
        self.bit = bit
        self.clock = 0
        self.pins: dict[int, int] = {}
        self.free: OrderedDict[int, int] = OrderedDict()
        self.fresh: set[int] = set()
        self.answers: dict[int, tuple[int, int]] = {}


def runs(chain: Sequence[int], read: Callable[[int], int]) -> Iterator[tuple[int, int]]:
    """Split a chain into its runs of one value: (end, value) for each, until the value is 0 or the chain ends.

    `read` must only shrink along the chain (a set of holders, a count of requests), so that equal ends mean an equal
    stretch: a chain of 800 blocks costs some ten reads a run instead of 800.
    """
    start, last = 0, len(chain) - 1
    while start <= last:
        value = read(chain[start])
        if not value:
            return
        low, high = start, last
        if read(chain[last]) == value:
            low = last
        while high - low > 1:
            middle = (low + high) // 2
            if read(chain[middle]) == value:
                low = middle
            else:
                high = middle
        start = low + 1
        yield start, value


class Residency:
    """The belief for all replicas. Chains are sequences of 64-bit hashes; capacities are in blocks."""

    def __init__(self) -> None:
        self._holders: dict[int, int] = {}
        self._shelves: dict[ReplicaId, _Shelf] = {}
        self._by_bit: dict[int, ReplicaId] = {}
        self.evictions = 0

    def __len__(self) -> int:
        """Blocks held over all replicas: what `limits.index_blocks` bounds."""
        return sum(len(shelf.pins) + len(shelf.free) for shelf in self._shelves.values())

    def join(self, replica: ReplicaId) -> None:
        """Make room for a replica; nothing happens to one that is known."""
        if replica not in self._shelves:
            bit = 1
            while bit in self._by_bit:
                bit <<= 1
            self._shelves[replica] = _Shelf(bit)
            self._by_bit[bit] = replica

    def forget(self, replica: ReplicaId) -> None:
        """A new epoch: free blocks go at once, pinned ones when their requests end unless a first token confirms."""
        shelf = self._shelves[replica]
        for block in shelf.free:
            self._clear(shelf, block)
        shelf.free.clear()
        shelf.answers.clear()
        shelf.fresh.update(shelf.pins)

    def held(self, replica: ReplicaId) -> int:
        """Blocks believed resident on one replica."""
        shelf = self._shelves[replica]
        return len(shelf.pins) + len(shelf.free)

    def depths(self, chain: Sequence[int]) -> dict[ReplicaId, int]:
        """The holders of this chain and how deep, in blocks. A replica that holds nothing is not in it."""
        depths: dict[ReplicaId, int] = {}
        deeper = 0
        for end, mask in reversed(list(runs(chain, lambda block: self._holders.get(block, 0)))):
            here = mask & ~deeper
            deeper = mask
            while here:
                bit = here & -here
                depths[self._by_bit[bit]] = end
                here ^= bit
        return depths

    def answered(self, replica: ReplicaId, last: int, size: int, tokens: int) -> None:
        """Remember that a prompt of `size` bytes whose last full block is `last` was answered with `tokens` tokens."""
        shelf = self._shelves[replica]
        if last in shelf.pins or last in shelf.free:
            shelf.answers[last] = (size, tokens)

    def answer_end(self, replica: ReplicaId, last: int, answers: Mapping[int, int], bytes_per_token: float) -> int:
        """Bytes cached there when a prompt goes on where `last` was answered; 0 when it does not.

        `answers` maps where the new prompt's assistant messages begin to where they end. The answer's own bytes count
        as far as its tokens reach (DESIGN section 6).
        """
        known = self._shelves[replica].answers.get(last)
        if known is None:
            return 0
        size, tokens = known
        end = answers.get(size)
        return 0 if end is None else size + min(end - size, int(tokens * bytes_per_token))

    def place(self, replica: ReplicaId, chain: Sequence[int], capacity: int) -> Placement:
        """Pin a chain, evicting the oldest free blocks; what does not fit beside the pinned ones is left out."""
        shelf = self._shelves[replica]
        pins, free = shelf.pins, shelf.free
        stamps: list[int] = []
        for block in chain:
            count = pins.get(block)
            if count is not None:
                pins[block] = count + 1
                stamps.append(_PINNED)
                continue
            stamp = free.pop(block, None)
            if stamp is None:
                break
            pins[block] = 1
            stamps.append(stamp)
        depth = len(stamps)
        new = chain[depth : depth + max(0, capacity - len(pins))]
        self._evict(shelf, len(pins) + len(new) + len(free) - capacity)
        holders, bit = self._holders, shelf.bit
        for block in new:
            pins[block] = 1
            holders[block] = holders.get(block, 0) | bit
        shelf.fresh.update(new)
        return Placement(replica, chain if depth + len(new) == len(chain) else chain[: depth + len(new)], depth, stamps)

    def confirm(self, placement: Placement) -> None:
        """The replica has computed this chain."""
        fresh = self._shelves[placement.replica].fresh
        if fresh:
            fresh.difference_update(placement.chain)

    def release(self, placement: Placement) -> None:
        """Unpin. Blocks that nobody confirmed and nobody else pins go, the others become the youngest free ones."""
        shelf = self._shelves[placement.replica]
        shelf.clock += 1
        pins, free, fresh, clock = shelf.pins, shelf.free, shelf.fresh, shelf.clock
        for block in reversed(placement.chain):
            count = pins[block]
            if count > 1:
                pins[block] = count - 1
                continue
            del pins[block]
            if block in fresh:
                fresh.discard(block)
                self._clear(shelf, block)
            else:
                free[block] = clock

    def disproved(self, placement: Placement, depth: int) -> int:
        """The engine had only `depth` blocks of this chain when the request came; returns how many blocks that drops.

        Nothing follows when the block was pinned at the time: the engine may just not have reached it.
        """
        if depth >= placement.depth:
            return 0
        stamp = placement.stamps[depth]
        shelf = self._shelves[placement.replica]
        stale = []
        for block, released in shelf.free.items():
            if released > stamp:
                break
            stale.append(block)
        for block in stale:
            del shelf.free[block]
            self._clear(shelf, block)
        return len(stale)

    def _evict(self, shelf: _Shelf, surplus: int) -> None:
        for _ in range(min(surplus, len(shelf.free))):
            block, _ = shelf.free.popitem(last=False)
            self._clear(shelf, block)
            self.evictions += 1

    def _clear(self, shelf: _Shelf, block: int) -> None:
        left = self._holders[block] & ~shelf.bit
        if left:
            self._holders[block] = left
        else:
            del self._holders[block]
        if shelf.answers:
            shelf.answers.pop(block, None)
