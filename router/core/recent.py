"""The window of recent requests of one model: block shares, hot blocks, key depth.

A fixed leading block must never be the key: in a real conversation trace every request shares its first 512 tokens,
and a ring over them sends all to one replica. The key is the chain hash at the shallowest power-of-two depth that is
not hot, so it moves past whatever everybody shares.

The window is two generations of counters: the young one counts, the old one only reads, and when the young one is
full (time, requests or blocks) it becomes the old one. So the window spans one to two generations, forgetting costs
one assignment, and memory is bounded at insert. Counts are kept on segments, so a chain seen before costs its few
segments.

A burst on a new prefix is over before a minute of other requests lets it show. So a block's coldness also goes by the
last few requests for each replica: in spells, counted on the same segments.
"""

from bisect import bisect
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from router.core.segments import Segment, Segments

GENERATION_SECONDS = 30.0
GENERATION_REQUESTS = 2048
GENERATION_BLOCKS = 65_536
"""A window of 30 to 60 s and at most some thousand requests (POLICY section 2); a counter's entry costs 100 bytes."""

FLOOR = 20
"""Shares are counted over at least this many requests: 20 like ones make a block hot at once, one says nothing."""

SPELL = 2
"""A spell is so many requests for each replica; the present one and the one before it are looked at. With more of them
chats that come back at their own pace would look like bursts."""

RETURNS = 8.0
"""What was asked for in the last two spells is expected so many times again as often. With 2 bursts are spread late;
with 12 a fleet at its limit computes so much twice that decoding is too slow (loadtests/README.md, Bursts)."""


class Key(NamedTuple):
    """The hash that the ring places, and its depth in blocks; depth 0 is the tail hash, the whole prompt."""

    hash: int
    depth: int


class Coldness:
    """How much of each block is cold, 0 to 1, as prefix sums over the chain's runs of equal share.

    `ends[i]` is where run i ends, `sums[i]` the cold blocks before that end, `rates[i]` its blocks' coldness.
    """

    __slots__ = ("ends", "rates", "sums")

    def __init__(self, ends: list[int], sums: list[float], rates: list[float]) -> None:
        self.ends, self.sums, self.rates = ends, sums, rates

    def before(self, depth: int) -> float:
        """Cold blocks among the first `depth` of the chain."""
        run = bisect(self.ends, depth - 1)
        if run == len(self.ends):
            return self.sums[-1] if self.sums else 0.0
        return self.sums[run] - (self.ends[run] - depth) * self.rates[run]


class _Count(Segment):
    """How many requests of one generation have passed here, and of them in `spell` and in the one before it."""

    __slots__ = ("before", "count", "now", "spell")

    def __init__(self, start: int, hashes: list[int], parent: "_Count | None") -> None:
        super().__init__(start, hashes, parent)
        self.count = self.spell = self.now = self.before = 0

    def head(self, hashes: list[int]) -> "_Count":
        head = _Count(self.start, hashes, self.parent)
        head.count, head.spell, head.now, head.before = self.count, self.spell, self.now, self.before
        return head

    def add(self, spell: int) -> None:
        """One more, in this spell."""
        self.count += 1
        if self.spell != spell:
            self.before = self.now if self.spell == spell - 1 else 0
            self.spell, self.now = spell, 0
        self.now += 1

    def lately(self, spell: int) -> int:
        """Those in this spell and the one before it."""
        if self.spell == spell:
            return self.now + self.before
        return self.now if self.spell == spell - 1 else 0


class Recent:
    """One model's window."""

    def __init__(self) -> None:
        self._young, self._old = Segments(_Count), Segments(_Count)
        self._young_requests = self._old_requests = 0
        self._young_again = self._old_again = 0  # Those whose first cold block had been asked for before.
        self._young_since = float("-inf")
        self._spell, self._spell_requests = 1, 0
        self._hot: set[int] = set()
        self._others_hot: frozenset[int] = frozenset()

    def __len__(self) -> int:
        """Requests in the window."""
        return self._young_requests + self._old_requests

    def add(self, chain: Sequence[int], now: float, replicas: int) -> None:
        """Count one request's chain; `replicas` is N, which the hot threshold depends on."""
        if (
            now - self._young_since >= GENERATION_SECONDS
            or self._young_requests >= GENERATION_REQUESTS
            or len(self._young) + len(chain) > GENERATION_BLOCKS
        ):
            self._turn(now, replicas)
        if self._spell_requests >= SPELL * replicas:
            self._spell, self._spell_requests = self._spell + 1, 0
        young, hot, spell = self._young, self._hot, self._spell
        segment = young.extend(chain, young.depth(chain), len(chain))
        while segment is not None:
            segment.add(spell)
            segment = segment.parent
        self._young_requests += 1
        self._spell_requests += 1
        enough = hot_share(max(1, replicas)) * max(FLOOR, len(self))
        depth = 1
        while depth <= len(chain):
            block = chain[depth - 1]
            count = self._count(block)
            if count > enough:
                hot.add(block)
            elif count < enough / 2:
                hot.discard(block)
                if count > 1:
                    self._young_again += 1
                break
            depth *= 2

    def share(self, block: int) -> float:
        """Share of the recent requests whose prompt contains this block."""
        return self._count(block) / max(FLOOR, len(self))

    @property
    def returning(self) -> float:
        """How likely it is, 0 to 1, that the first cold block of a prompt is asked for again. As long as there is
        little to go by it is likely."""
        return (self._young_again + self._old_again + FLOOR) / (len(self) + FLOOR)

    def key(self, chain: Sequence[int], tail: int) -> Key:
        """The adaptive key of a prompt. A block turns hot above the threshold and cold again below half of it.

        What is hot for any router is no key for all of them, so that they agree on homes.
        """
        hot, others = self._hot, self._others_hot
        depth = 1
        while depth <= len(chain):
            block = chain[depth - 1]
            if block not in hot and block not in others:
                return Key(block, depth)
            depth *= 2
        return Key(tail, 0)

    @property
    def hot(self) -> frozenset[int]:
        """The blocks that are no key by this window's own count; only depths 1, 2, 4, 8, ... are looked at."""
        return frozenset(self._hot)

    def others(self, hot: frozenset[int]) -> None:
        """What is hot by the windows of other routers."""
        self._others_hot = hot

    def coldness(self, chain: Sequence[int], replicas: int) -> Coldness:
        """How much each block's demand leaves of what a copy of it costs others, by the window or by the last spells,
        whichever is less.

        By the window: max(0, 1 - N * share), so that what is demanded enough to fill a fair share is free. By the
        spells: N / (N + RETURNS * count), the copy's cost over the uses that each of N replicas would have of it.
        """
        ends: list[int] = []
        sums: list[float] = []
        rates: list[float] = []
        total, start = 0.0, 0
        per_count = replicas / max(FLOOR, len(self))
        spell = self._spell
        for end, count, late in _merged(
            _counts(self._young, chain, spell), _counts(self._old, chain, spell), len(chain)
        ):
            rate = max(0.0, 1.0 - count * per_count)
            if late and replicas > 1:
                rate = min(rate, replicas / (replicas + RETURNS * late))
            total += (end - start) * rate
            start = end
            ends.append(end)
            sums.append(total)
            rates.append(rate)
        return Coldness(ends, sums, rates)

    def _count(self, block: int) -> int:
        young, old = self._young.get(block), self._old.get(block)
        return (young.count if young else 0) + (old.count if old else 0)

    def _turn(self, now: float, replicas: int) -> None:
        self._old, self._young = self._young, Segments(_Count)
        self._old_requests, self._young_requests = self._young_requests, 0
        self._old_again, self._young_again = self._young_again, 0
        self._young_since = now
        keep = hot_share(max(1, replicas)) / 2
        self._hot = {block for block in self._hot if self.share(block) >= keep}


def _counts(generation: Segments[_Count], chain: Sequence[int], spell: int) -> list[tuple[int, int, int]]:
    """One generation's counts along a chain, deepest run first: (end, count, count of late)."""
    end = generation.depth(chain)
    counts = []
    segment = generation.get(chain[end - 1]) if end else None
    while segment is not None:
        counts.append((end, segment.count, segment.lately(spell)))
        end = segment.start
        segment = segment.parent
    return counts


def _merged(
    one: list[tuple[int, int, int]], other: list[tuple[int, int, int]], length: int
) -> Iterator[tuple[int, int, int]]:
    """The sum of two generations' counts along a chain of `length` blocks, shallowest run first. Empties both lists."""
    start = 0
    while start < length:
        first, one_count, one_late = one[-1] if one else (length, 0, 0)
        second, other_count, other_late = other[-1] if other else (length, 0, 0)
        start = min(first, second)
        if one and first == start:
            one.pop()
        if other and second == start:
            other.pop()
        yield start, one_count + other_count, one_late + other_late


def hot_share(replicas: int) -> float:
    """The share above which a block is no key: max(1/8, min(2/N, 1/2)) (POLICY section 2)."""
    return max(1 / 8, min(2 / replicas, 1 / 2))
