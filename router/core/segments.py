"""Chains as a tree of segments: what residency and the recent window are both built on.

A segment is a run of blocks that always come together; a chain is a path of segments from the root. Because a block's
hash commits to everything before it, one look at a hash tells whether the whole path up to it is the same, and which
segment holds it. So touching a chain costs its few segments (a preamble, a chat's turns) and not its 64 or 800 blocks;
only blocks that were never seen cost something each. A segment is split where a chain leaves it or ends in it, which
keeps what is noted on segments exact for every chain.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain as joined
from typing import Generic, Self, TypeVar


class Segment:
    """Blocks `start` to `start + len(hashes)` of every chain that passes here; `parent` is what comes before."""

    __slots__ = ("hashes", "parent", "start")

    def __init__(self, start: int, hashes: list[int], parent: Self | None) -> None:
        self.start = start
        self.hashes = hashes
        self.parent = parent

    def head(self, hashes: list[int]) -> Self:
        """A new segment for the first `hashes` of this one, with the same notes on it."""
        raise NotImplementedError


S = TypeVar("S", bound=Segment)


class Segments(Generic[S]):
    """The tree. `make(start, hashes, parent)` makes a segment for blocks that are new."""

    def __init__(self, make: Callable[[int, list[int], S | None], S]) -> None:
        self._make = make
        self._where: dict[int, S] = {}

    def __len__(self) -> int:
        """Blocks."""
        return len(self._where)

    def __contains__(self, block: int) -> bool:
        return block in self._where

    def __iter__(self) -> Iterator[S]:
        """Every segment once."""
        return iter({id(segment): segment for segment in self._where.values()}.values())

    def blocks(self) -> Iterable[int]:
        """Every block."""
        return self._where.keys()

    def path(self, block: int) -> list[int]:
        """The chain that ends with a block that is here."""
        segment: S | None = self._where[block]
        assert segment is not None
        parts = [segment.hashes[: segment.hashes.index(block) + 1]]
        while (segment := segment.parent) is not None:
            parts.append(segment.hashes)
        return list(joined.from_iterable(reversed(parts)))

    def get(self, block: int) -> S | None:
        """The segment that holds a block."""
        return self._where.get(block)

    def depth(self, chain: Sequence[int]) -> int:
        """How many leading blocks of a chain are here: one look when all or none are, else a bisection."""
        where = self._where
        high = len(chain)
        if not high or chain[0] not in where:
            return 0
        if chain[-1] in where:
            return high
        low = 1
        while high - low > 1:
            middle = (low + high) // 2
            if chain[middle - 1] in where:
                low = middle
            else:
                high = middle
        return low

    def end_at(self, chain: Sequence[int], depth: int) -> S | None:
        """The segment that ends with the block at `depth` - 1, split off if need be; None for depth 0."""
        if not depth:
            return None
        segment = self._where[chain[depth - 1]]
        length = depth - segment.start
        if length == len(segment.hashes):
            return segment
        head = segment.head(segment.hashes[:length])
        for block in head.hashes:
            self._where[block] = head
        segment.start = depth
        segment.hashes = segment.hashes[length:]
        segment.parent = head
        return head

    def extend(self, chain: Sequence[int], depth: int, end: int) -> S | None:
        """Add blocks `depth` to `end` behind the first `depth`, which are here; the segment that ends at `end`."""
        parent = self.end_at(chain, depth)
        if end == depth:
            return parent
        segment = self._make(depth, list(chain[depth:end]), parent)
        where = self._where
        for block in segment.hashes:
            where[block] = segment
        return segment

    def cut(self, segment: S, count: int) -> list[int]:
        """Take so many of a segment's last blocks out, all where it has no more. Nothing may hang on the segment.
        Returns the blocks."""
        blocks = segment.hashes[-count:]
        del segment.hashes[-count:]
        where = self._where
        for block in blocks:
            del where[block]
        return blocks
