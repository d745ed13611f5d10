"""The window of recent requests of one model: block shares, hot blocks, key depth.

A fixed leading block must never be the key: in a real conversation trace every request shares its first 512 tokens,
and a ring over them sends all to one replica. The key is the chain hash at the shallowest power-of-two depth that is
not hot, so it moves past whatever everybody shares.

The window is two generations of counters: the young one counts, the old one only reads, and when the young one is
full (time, requests or blocks) it becomes the old one. So the window spans one to two generations, forgetting costs
one assignment, and memory is bounded at insert. Counting costs 50 ns a block.
"""

from bisect import bisect
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from router.core.residency import runs

GENERATION_SECONDS = 30.0
GENERATION_REQUESTS = 2048
GENERATION_BLOCKS = 65_536
"""A window of 30 to 60 s and at most some thousand requests (POLICY section 2); a counter's entry costs 100 bytes."""

FLOOR = 20
"""Shares are counted over at least this many requests: 20 like ones make a block hot at once, one says nothing."""


class Key(NamedTuple):
    """The hash that the ring places, and its depth in blocks; depth 0 is the tail hash, the whole prompt."""

    hash: int
    depth: int


class Coldness(NamedTuple):
    """How much of each block is cold, 0 to 1, as prefix sums over the chain's runs of equal share.

    `ends[i]` is where run i ends, `sums[i]` the cold blocks before that end, `rates[i]` its blocks' coldness.
    """

    ends: list[int]
    sums: list[float]
    rates: list[float]

    def before(self, depth: int) -> float:
        """Cold blocks among the first `depth` of the chain."""
        run = bisect(self.ends, depth - 1)
        if run == len(self.ends):
            return self.sums[-1] if self.sums else 0.0
        return self.sums[run] - (self.ends[run] - depth) * self.rates[run]


class Recent:
    """One model's window."""

    def __init__(self) -> None:
        self._young: Counter[int] = Counter()
        self._old: Counter[int] = Counter()
        self._young_requests = self._old_requests = 0
        self._young_since = float("-inf")
        self._hot: set[int] = set()

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
        self._young.update(chain)
        self._young_requests += 1
        threshold = hot_share(max(1, replicas))
        depth = 1
        while depth <= len(chain):
            block = chain[depth - 1]
            share = self.share(block)
            if share > threshold:
                self._hot.add(block)
            elif share < threshold / 2:
                self._hot.discard(block)
                break
            depth *= 2

    def share(self, block: int) -> float:
        """Share of the recent requests whose prompt contains this block."""
        return self._count(block) / max(FLOOR, len(self))

    def key(self, chain: Sequence[int], tail: int) -> Key:
        """The adaptive key of a prompt. A block turns hot above the threshold and cold again below half of it."""
        depth = 1
        while depth <= len(chain):
            block = chain[depth - 1]
            if block not in self._hot:
                return Key(block, depth)
            depth *= 2
        return Key(tail, 0)

    def coldness(self, chain: Sequence[int], replicas: int) -> Coldness:
        """max(0, 1 - N * share) of every block of the chain: what is demanded enough to fill a fair share is free."""
        ends, sums, rates = [], [], []
        total, start = 0.0, 0
        per_count = replicas / max(FLOOR, len(self))
        for end, count in runs(chain, self._count):
            rate = max(0.0, 1.0 - count * per_count)
            total += (end - start) * rate
            start = end
            ends.append(end)
            sums.append(total)
            rates.append(rate)
        if start < len(chain):
            ends.append(len(chain))
            sums.append(total + len(chain) - start)
            rates.append(1.0)
        return Coldness(ends, sums, rates)

    def _count(self, block: int) -> int:
        return self._young.get(block, 0) + self._old.get(block, 0)

    def _turn(self, now: float, replicas: int) -> None:
        self._old, self._young = self._young, Counter()
        self._old_requests, self._young_requests = self._young_requests, 0
        self._young_since = now
        keep = hot_share(max(1, replicas)) / 2
        self._hot = {block for block in self._hot if self.share(block) >= keep}


def hot_share(replicas: int) -> float:
    """The share above which a block is no key: max(1/8, min(2/N, 1/2)) (POLICY section 2)."""
    return max(1 / 8, min(2 / replicas, 1 / 2))
