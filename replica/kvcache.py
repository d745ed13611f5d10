"""The paged prefix cache of a vLLM V1 engine: engine blocks, names, reference counts, one LRU list of free blocks.

Rules, all of them vLLM's (its `BlockPool` and `KVCacheManager`):

- Every block is either held by at least one request or on the free list, never both and never neither.
- Blocks that were never used come first on the free list. They are only counted, so that a big cache costs nothing
  before it is used.
- A free block keeps its name, and so can still be hit, until it is taken from the head of the free list.
- A request's blocks return to the free list tail first, so that the tail of a prompt is evicted before its head:
  a head without its tail is still a hit, a tail without its head is not.
- A block gets its name when it is *scheduled* to be computed, not when its request ends: a second request can hit it
  one step later.
- Two requests may compute the same block side by side. The first copy keeps the name; the second stays nameless, takes
  its memory all the same, and is forgotten when it is freed.

This file never reads a clock, never does I/O, and knows nothing of tokens: a caller counts in blocks. Every operation
costs O(1) per block that it touches.
"""

from collections import OrderedDict
from collections.abc import Sequence
from itertools import islice


class PrefixCache:
    """`blocks` engine blocks, all free and nameless at first.

    A *table* is a list of block ids in prompt order, one reference each; it belongs to the request that got it from
    `hold` and must come back through `release` exactly once.
    """

    __slots__ = ("_free", "_names", "_references", "_resident", "blocks")

    def __init__(self, blocks: int) -> None:
        if blocks < 1:
            raise ValueError(f"a cache needs at least one block, not {blocks}")
        self.blocks = blocks
        self._references: list[int] = []
        self._names: list[int | None] = []
        self._free: OrderedDict[int, None] = OrderedDict()
        self._resident: dict[int, int] = {}

    @property
    def free(self) -> int:
        """Blocks that no request holds; named ones among them can still be hit."""
        return len(self._free) + self.blocks - len(self._references)

    @property
    def usage(self) -> float:
        """Share of the blocks that requests hold, 0 to 1 (`vllm:kv_cache_usage_perc`)."""
        return 1 - self.free / self.blocks

    @property
    def resident(self) -> int:
        """Blocks that can be hit, held or free."""
        return len(self._resident)

    def lookup(self, names: Sequence[int], limit: int) -> list[int]:
        """The ids of the longest leading run of `names`, at most `limit`, that is resident. Changes nothing."""
        resident = self._resident
        hits: list[int] = []
        for name in islice(names, limit):
            block = resident.get(name)
            if block is None:
                break
            hits.append(block)
        return hits

    def hold(self, hits: Sequence[int], extra: int) -> list[int] | None:
        """A new table: one more reference to each of `hits` (from `lookup`), then `extra` fresh blocks.

        None, and nothing changed, when there are too few free blocks; a hit that is itself on the free list counts,
        since holding it takes it away from there.
        """
        references, free = self._references, self._free
        if extra + [references[block] for block in hits].count(0) > self.free:
            return None
        for block in hits:
            if not references[block]:
                del free[block]
            references[block] += 1
        table = list(hits)
        self._take(table, extra)
        return table

    def extend(self, table: list[int], extra: int) -> bool:
        """Append `extra` fresh blocks to a table; False, and nothing changed, when there are too few."""
        if extra > self.free:
            return False
        self._take(table, extra)
        return True

    def publish(self, table: Sequence[int], names: Sequence[int], start: int, stop: int) -> None:
        """Name the blocks `start` to `stop` of a table, so that others can hit them from now on."""
        for index in range(start, stop):
            block, name = table[index], names[index]
            if self._resident.setdefault(name, block) == block:
                self._names[block] = name

    def release(self, table: list[int]) -> None:
        """Give every reference of a table back and empty it."""
        references, free = self._references, self._free
        for block in reversed(table):
            references[block] -= 1
            if not references[block]:
                free[block] = None
        table.clear()

    def forget(self) -> None:
        """Drop every name: nothing can be hit until it is computed again. Held blocks stay held."""
        self._resident.clear()
        self._names = [None] * len(self._names)

    def _take(self, table: list[int], count: int) -> None:
        references, names = self._references, self._names
        unused = min(count, self.blocks - len(references))
        if unused:
            table.extend(range(len(references), len(references) + unused))
            references.extend([1] * unused)
            names.extend([None] * unused)
        for _ in range(count - unused):
            block, _ = self._free.popitem(last=False)
            name = names[block]
            if name is not None:
                del self._resident[name]
                names[block] = None
            references[block] = 1
            table.append(block)
