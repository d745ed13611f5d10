"""Who is believed to hold which chain, how deep: a mirror of each engine's prefix cache, in router blocks.

The mirror does what vLLM does. Blocks of running requests are pinned; when a request ends, its blocks go to the young
end of a free list, tail before head, so that the old end gives up tails before the heads they hang on. Bounds hold at
insert. Because whatever touches a block touches its parents after it, the oldest is always a leaf, and what is
resident on a replica is prefix-closed: the holders of block i + 1 are among those of block i. Lookups rest on that.

Placement is believed at dispatch, before any answer ("speculative"): a cold burst lands on one home. Until a first
token confirms it, a failed placement takes its own new blocks back out.

What other routers place is learned as if it had been placed, confirmed and released here (`learn`, `lost`).

It is a belief (invariant 6). `disproved` corrects it from the engine's own count: since engines evict the least
recently used first, a missing block tells that everything released before it is gone as well. The chain of the
request that told stays: it has just been computed there.
"""

import math
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain as joined
from itertools import islice
from typing import NamedTuple

from router.core.recalled import Recalled, Summary, summarise
from router.core.segments import Segment, Segments
from router.core.types import News, ReplicaId

_PINNED = -1
"""Age of a segment that was pinned when it was placed again: it says nothing of when it was last used."""


RUNS = 4
"""Runs that a summary looks at for each hash that it may have: most are turns of chats, of which the last tells all."""


class _Run(Segment):
    """Blocks on one replica: how many placements pin them, when they were last released, whether they are confirmed."""

    __slots__ = ("fresh", "pins", "released", "told_at")

    def __init__(self, start: int, hashes: list[int], parent: "_Run | None") -> None:
        super().__init__(start, hashes, parent)
        self.pins = 0
        self.released = _PINNED
        self.fresh = True
        self.told_at = -math.inf  # When routers last told one another that it is in use.

    def head(self, hashes: list[int]) -> "_Run":
        head = _Run(self.start, hashes, self.parent)
        head.pins, head.released, head.fresh = self.pins, self.released, self.fresh
        return head


class Placement:
    """One lease's pins on one replica's shelf.

    `blocks` is how much of the chain was placed, `depth` how much of it was resident before, and `ages` when each
    segment of that, deepest first, had been released: (start, release).
    """

    __slots__ = ("ages", "blocks", "depth", "last", "shelf")

    def __init__(self, shelf: "_Shelf", blocks: int, depth: int, last: _Run | None, ages: list[tuple[int, int]]):
        self.shelf = shelf
        self.blocks = blocks
        self.depth = depth
        self.last = last
        self.ages = ages


class Dropped(NamedTuple):
    """How many blocks were dropped, and the last one of those that had been used last; 0 where there are none."""

    blocks: int
    youngest: int


NOTHING = Dropped(0, 0)


class _Shelf:
    """One replica's runs: `free` are those that nobody pins, oldest first; `pinned` counts the others' blocks.

    `open` are the placements that pin, oldest first. `gone` is the shelf of a replica that has left, which the last of
    its leases may still come back to.
    """

    __slots__ = ("answers", "bit", "clock", "free", "gone", "open", "pinned", "replica", "runs")

    def __init__(self, replica: ReplicaId, bit: int) -> None:
        self.replica = replica
        self.bit = bit
        self.gone = False
        self.clock = 0
        self.pinned = 0
        self.runs = Segments(_Run)
        self.free: OrderedDict[_Run, None] = OrderedDict()
        self.open: dict[Placement, None] = {}
        self.answers: dict[int, tuple[int, int]] = {}


class Residency:
    """The belief for all replicas. Chains are sequences of 64-bit hashes; capacities are in blocks."""

    def __init__(self) -> None:
        self._holders: dict[int, int] = {}
        self._shelves: dict[ReplicaId, _Shelf] = {}
        self._by_bit: dict[int, ReplicaId] = {}
        self._recalled = Recalled()
        self.evictions = 0
        self.news: News | None = None

    def __len__(self) -> int:
        """Blocks held over all replicas: what `limits.index_blocks` bounds."""
        return sum(len(shelf.runs) for shelf in self._shelves.values())

    def join(self, replica: ReplicaId) -> None:
        """Make room for a replica; nothing happens to one that is known."""
        if replica not in self._shelves:
            bit = 1
            while bit in self._by_bit:  # The lowest that nobody has, so that masks stay as small as the fleet.
                bit <<= 1
            self._shelves[replica] = _Shelf(replica, bit)
            self._by_bit[bit] = replica

    def leave(self, replica: ReplicaId) -> None:
        """Forget a replica for good. Placements that are open there end in silence."""
        shelf = self._shelves.pop(replica)
        del self._by_bit[shelf.bit]
        self._vacate(shelf.runs.blocks(), shelf.bit)
        self._recalled.forget(shelf.bit)
        shelf.gone = True

    def forget(self, replica: ReplicaId) -> None:
        """A new epoch: free blocks go at once, pinned ones when their requests end unless a first token confirms."""
        shelf = self._shelves[replica]
        for run in shelf.free:
            self._drop(shelf, run)
        shelf.free.clear()
        shelf.answers.clear()
        self._recalled.forget(shelf.bit)
        for run in shelf.runs:
            run.fresh = True

    def held(self, replica: ReplicaId) -> int:
        """Blocks believed resident on one replica."""
        return len(self._shelves[replica].runs)

    def empty(self, replica: ReplicaId) -> bool:
        """Whether nothing is believed to be there, by a snapshot neither."""
        shelf = self._shelves[replica]
        return not shelf.runs and not self._recalled.part(shelf.bit)

    def depths(self, chain: Sequence[int]) -> dict[ReplicaId, int]:
        """The holders of this chain and how deep, in blocks. A replica that holds nothing is not in it."""
        depths: dict[ReplicaId, int] = {}
        read = self._holders.get
        start, last = 0, len(chain) - 1
        while start <= last and (mask := read(chain[start])):
            # Holders only get fewer along the chain, so equal ends mean an equal stretch: bisect for where it ends.
            low, high = (last, last) if read(chain[last]) == mask else (start, last)
            while high - low > 1:
                middle = (low + high) // 2
                if read(chain[middle]) == mask:
                    low = middle
                else:
                    high = middle
            start = low + 1
            while mask:
                bit = mask & -mask
                depths[self._by_bit[bit]] = start
                mask ^= bit
        if self._recalled:
            for bit, depth in self._recalled.depths(chain):
                replica = self._by_bit[bit]
                if depth > depths.get(replica, 0):
                    depths[replica] = depth
        return depths

    # Snapshots.

    def summary(self, replica: ReplicaId, most: int) -> Summary:
        """What is held there, in at most so many hashes: what is in use, then what was used last."""
        shelf = self._shelves[replica]
        used = [placement.last for placement in reversed(shelf.open) if placement.last is not None]
        runs = list(islice(joined(used, reversed(shelf.free)), RUNS * most))
        told = summarise(runs, most, self._recalled.part(shelf.bit))
        return Summary(told.hashes, told.left_out + len(used) + len(shelf.free) - len(runs))

    def recall(self, replica: ReplicaId, hashes: Sequence[int]) -> None:
        """Believe another's summary of a replica, beside what is known here."""
        self._recalled.take(self._shelves[replica].bit, hashes)

    def forget_recalled(self) -> None:
        """Believe only what is known here."""
        self._recalled = Recalled()

    def answered(self, replica: ReplicaId, last: int, size: int, tokens: int) -> None:
        """Remember that a prompt of `size` bytes whose last full block is `last` was answered with `tokens` tokens.

        Nothing happens for a replica that has left.
        """
        shelf = self._shelves.get(replica)
        if shelf is not None and last in shelf.runs:
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
        """Pin a chain, evicting the oldest free blocks; what does not fit beside the pinned ones is left out.

        An empty chain, as of a request without a prompt, changes nothing: its `capacity` says nothing either.
        """
        shelf = self._shelves[replica]
        if not chain:
            return self._opened(Placement(shelf, 0, 0, None, []))
        runs, free = shelf.runs, shelf.free
        depth = runs.depth(chain)
        run = last = runs.end_at(chain, depth)
        ages = []
        while run is not None:
            ages.append((run.start, _PINNED if run.pins else run.released))
            if not run.pins:
                free.pop(run, None)  # A head just split off was never there.
                shelf.pinned += len(run.hashes)
            run.pins += 1
            run = run.parent
        end = min(len(chain), depth + max(0, capacity - shelf.pinned))
        self._evict(shelf, len(runs) + end - depth - capacity)
        if end > depth:
            last = runs.extend(chain, depth, end)
            assert last is not None
            last.pins = 1
            shelf.pinned += end - depth
            holders, bit = self._holders, shelf.bit
            for block in last.hashes:
                holders[block] = holders.get(block, 0) | bit
        return self._opened(Placement(shelf, end, depth, last, ages))

    def _opened(self, placement: Placement) -> Placement:
        placement.shelf.open[placement] = None
        return placement

    def confirm(self, placement: Placement) -> None:
        """The replica has computed this chain. A confirmed run's parents are confirmed."""
        run = placement.last
        while run is not None and run.fresh:
            run.fresh = False
            run = run.parent

    def release(self, placement: Placement) -> None:
        """Unpin. Blocks that nobody confirmed and nobody else pins go, the others become the youngest free ones."""
        shelf = placement.shelf
        del shelf.open[placement]
        if shelf.gone:
            return
        shelf.clock += 1
        run = placement.last
        while run is not None:
            parent = run.parent
            run.pins -= 1
            if not run.pins:
                shelf.pinned -= len(run.hashes)
                if run.fresh:
                    self._drop(shelf, run)
                else:
                    run.released = shelf.clock
                    shelf.free[run] = None
            run = parent

    def disproved(self, placement: Placement, depth: int) -> Dropped:
        """The engine had only `depth` blocks of this chain when the request came; returns what that drops.

        Nothing follows when the block was pinned at the time: the engine may just not have reached it.
        """
        if depth >= placement.depth or placement.shelf.gone:
            return NOTHING
        age = next(released for start, released in placement.ages if start <= depth)
        return self._drop_until(placement.shelf, age)

    # What other routers tell.

    def learn(self, replica: ReplicaId, parent: int | None, hashes: Sequence[int], capacity: int, now: float) -> None:
        """Another router placed `hashes` behind the block `parent` (None: at a chain's start); none: it used that.
        All routers hear it, so none needs to tell of it for a while.

        Where the parent is not known here nothing is learned: a chain counts from its start or not at all.
        """
        chain = hashes
        if parent is not None:
            shelf = self._shelves[replica]
            run = shelf.runs.get(parent)
            if run is None:
                self._recalled.grow(shelf.bit, parent, hashes)
                return
            if not hashes and run.hashes[-1] == parent:  # As nearly all that are not new: nothing is looked up.
                self._touch(shelf, run, now)
                return
            chain = [*shelf.runs.path(parent), *hashes]
        placement = self.place(replica, chain, capacity)
        if placement.last is not None:
            placement.last.told_at = now
        self.confirm(placement)
        self.release(placement)

    def _touch(self, shelf: _Shelf, last: _Run, now: float) -> None:
        """What placing the chain that ends with this run, confirming and releasing it comes to."""
        last.told_at = now
        shelf.clock += 1
        run: _Run | None = last
        while run is not None:
            run.fresh = False
            if not run.pins:
                run.released = shelf.clock
                shelf.free.move_to_end(run)
            run = run.parent

    def lost(self, replica: ReplicaId, block: int) -> int:
        """Another router heard from the engine that this block is gone; returns how many blocks that drops here: with
        it all that were last used before it, as there."""
        shelf = self._shelves[replica]
        self._recalled.lost(shelf.bit, block)
        run = shelf.runs.get(block)
        return 0 if run is None or run.pins else self._drop_until(shelf, run.released).blocks

    def _drop_until(self, shelf: _Shelf, age: int) -> Dropped:
        """Drop the free blocks that were released at `age` or before."""
        stale = []
        for run in shelf.free:
            if run.released > age:
                break
            stale.append(run)
        if not stale:
            return NOTHING
        before, youngest = len(shelf.runs), stale[-1].hashes[-1]
        for run in stale:
            del shelf.free[run]
            self._drop(shelf, run)
        return Dropped(before - len(shelf.runs), youngest)

    def _evict(self, shelf: _Shelf, surplus: int) -> None:
        while surplus > 0 and shelf.free:
            run = next(iter(shelf.free))
            evicted = self._cut(shelf, run, surplus)
            self.evictions += evicted
            surplus -= evicted
            if not run.hashes:
                del shelf.free[run]

    def _drop(self, shelf: _Shelf, run: _Run) -> None:
        self._cut(shelf, run, len(run.hashes))

    def _cut(self, shelf: _Shelf, run: _Run, count: int) -> int:
        """Take so many of a run's last blocks out, all where it has no more; returns how many these were."""
        blocks = shelf.runs.cut(run, count)
        self._vacate(blocks, shelf.bit)
        if shelf.answers:
            for block in blocks:
                shelf.answers.pop(block, None)
        return len(blocks)

    def _vacate(self, blocks: Iterable[int], bit: int) -> None:
        holders = self._holders
        for block in blocks:
            left = holders[block] ^ bit
            if left:
                holders[block] = left
            else:
                del holders[block]
