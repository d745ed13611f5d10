"""A snapshot of residency: who holds which prefix, compactly. Written by who knows, read by who joins. Pure.

A chain is told by its hashes at depths 1, 2, 4, 8, ... and at its tip: ten hashes for a prompt of 400 KB that has 800.
Since a hash commits to everything before it, an ask whose chain has one of them at position i shares i + 1 blocks with
what is held; so who reads a snapshot knows half of a shared depth at least, and all of it where a prompt is a known one
that goes on. Chains with a common head tell it once, and where it ends.

What was read is kept beside the index, not in it: the index needs whole chains. It is only ever asked, and forgotten
after a few minutes, when the index has learned what is still in use.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from router.core.segments import Segment

MAX_HASHES = 262_144
"""Hashes of a whole snapshot, 2 MiB of them; 10,000 prefixes of 32 KB with 1.2 holders each are 96,000."""

MAX_REPLICA = 4096
"""Hashes of one replica's part: two milliseconds to make, and all that 467,000 tokens of KV cache can hold."""


class Summary(NamedTuple):
    """One replica's part, hottest first, heads before tails. `left_out` counts the chains that found no room."""

    hashes: list[int]
    left_out: int


def summarise(segments: Sequence[Segment], most: int, recalled: Sequence[int] = ()) -> Summary:
    """Tell the chains that these segments end, hottest first, in at most so many hashes; then what was itself only
    recalled. A segment that another one goes on from ends no chain."""
    inner = {segment.parent for segment in segments}
    tips = [segment for segment in segments if segment not in inner]
    told: set[Segment] = set()
    hashes: dict[int, None] = {}
    done = 0
    for tip in tips:
        found, path = _chain(tip, told)
        if len(hashes) + len(found) > most:
            break
        hashes.update(dict.fromkeys(found))
        told.update(path)
        done += 1
    hashes.update(dict.fromkeys(recalled[: most - len(hashes)]))
    return Summary(list(hashes), len(tips) - done)


def _chain(tip: Segment, told: set[Segment]) -> tuple[list[int], list[Segment]]:
    """The hashes of a chain that were not told yet, head first, and where it leaves what was; and its segments."""
    path = []
    segment: Segment | None = tip
    while segment is not None and segment not in told:
        path.append(segment)
        segment = segment.parent
    if not path:
        return [], path
    found = [] if segment is None else [segment.hashes[-1]]
    for part in reversed(path):
        found += _marks(part)
    found.append(tip.hashes[-1])
    return found, path


def _marks(segment: Segment) -> Iterator[int]:
    """The segment's blocks at depths that are powers of two."""
    depth = 1 << segment.start.bit_length()
    while depth <= segment.start + len(segment.hashes):
        yield segment.hashes[depth - segment.start - 1]
        depth <<= 1


class Recalled:
    """What was read of snapshots. A replica is a bit, as in residency.py."""

    def __init__(self) -> None:
        self._masks: dict[int, int] = {}
        self._parts: dict[int, list[int]] = {}

    def __len__(self) -> int:
        """Hashes."""
        return len(self._masks)

    def take(self, bit: int, hashes: Iterable[int]) -> None:
        """One replica's part, which takes the place of what was known of it. Beyond the bounds it is left out."""
        self.forget(bit)
        self._parts[bit] = []
        self._add(bit, hashes)

    def grow(self, bit: int, parent: int, hashes: Iterable[int]) -> None:
        """A recalled chain that ends with `parent` goes on there. Nothing happens for a parent that is not known."""
        if self._masks.get(parent, 0) & bit:
            self._add(bit, hashes)

    def _add(self, bit: int, hashes: Iterable[int]) -> None:
        masks, part = self._masks, self._parts[bit]
        for block in hashes:
            if len(part) >= MAX_REPLICA or (len(masks) >= MAX_HASHES and block not in masks):
                return
            mask = masks.get(block, 0)
            if not mask & bit:
                masks[block] = mask | bit
                part.append(block)

    def part(self, bit: int) -> Sequence[int]:
        """What is recalled of one replica, as it was told."""
        return self._parts.get(bit, ())

    def lost(self, bit: int, block: int) -> None:
        """This block is there no more."""
        if self._masks.get(block, 0) & bit:
            self._clear(bit, block)
            self._parts[bit].remove(block)

    def forget(self, bit: int) -> None:
        """Nothing is recalled of this replica any more."""
        for block in self._parts.pop(bit, ()):
            self._clear(bit, block)

    def _clear(self, bit: int, block: int) -> None:
        left = self._masks[block] & ~bit
        if left:
            self._masks[block] = left
        else:
            del self._masks[block]

    def depths(self, chain: Sequence[int]) -> Iterator[tuple[int, int]]:
        """How much of a chain each replica is recalled to hold: (bit, depth). A cold chain costs one look."""
        read = self._masks.get
        left = read(chain[0], 0) if chain else 0
        if not left:
            return
        end = 1  # All that is held to some depth is told at each power of two before that.
        while 2 * end <= len(chain) and read(chain[2 * end - 1], 0) & left:
            end *= 2
        depth = min(len(chain), 2 * end - 1)
        while left:
            found = read(chain[depth - 1], 0) & left
            left ^= found
            while found:
                bit = found & -found
                yield bit, depth
                found ^= bit
            depth -= 1
