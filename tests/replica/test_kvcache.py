"""The prefix cache against a model so naive that it can be read at a glance, and its rules one by one."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from replica.kvcache import PrefixCache

BLOCKS = 8
# Chains that share heads, as prompts do: a name commits to all before it, so heads are shared and tails are not.
CHAINS = ([1, 2, 3, 4, 5], [1, 2, 30, 40], [1, 20, 21], [7, 8, 9, 10, 11, 12])


class NaiveCache:
    """Blocks as one list of (name, holders); the free list as a list of indexes. Everything by linear search."""

    def __init__(self) -> None:
        self.names: list[int | None] = [None] * BLOCKS
        self.holders = [0] * BLOCKS
        self.free = list(range(BLOCKS))

    def lookup(self, names: list[int]) -> list[int]:
        hits: list[int] = []
        for name in names:
            if name not in self.names:
                return hits
            hits.append(self.names.index(name))
        return hits

    def hold(self, hits: list[int], extra: int) -> list[int] | None:
        if len([block for block in self.free if block not in hits]) < extra:
            return None
        for block in hits:
            self.free = [other for other in self.free if other != block]
            self.holders[block] += 1
        taken, self.free = self.free[:extra], self.free[extra:]
        for block in taken:
            self.names[block] = None
            self.holders[block] = 1
        return hits + taken

    def release(self, table: list[int]) -> None:
        for block in table[::-1]:
            self.holders[block] -= 1
            if self.holders[block] == 0:
                self.free.append(block)


class CacheMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.cache = PrefixCache(BLOCKS)
        self.naive = NaiveCache()
        self.held: list[tuple[list[int], list[int], list[int]]] = []

    @rule(chain=st.sampled_from(CHAINS), limit=st.integers(0, 6), extra=st.integers(0, 5))
    def hold(self, chain: list[int], limit: int, extra: int) -> None:
        hits = self.cache.lookup(chain, limit)
        assert hits == self.naive.lookup(chain[:limit])
        table = self.cache.hold(hits, extra)
        expected = self.naive.hold(hits, extra)
        assert table == expected
        if table is not None and expected is not None:
            self.held.append((table, expected, chain))

    @precondition(lambda self: self.held)
    @rule(data=st.data(), extra=st.integers(0, 3))
    def extend(self, data: st.DataObject, extra: int) -> None:
        table, naive_table, _ = data.draw(st.sampled_from(self.held))
        taken = self.naive.hold([], extra)
        assert self.cache.extend(table, extra) == (taken is not None)
        naive_table.extend(taken or [])
        assert table == naive_table

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        table, _, chain = data.draw(st.sampled_from(self.held))
        stop = min(len(table), len(chain))
        self.cache.publish(table, chain, 0, stop)
        for block, name in zip(table[:stop], chain[:stop], strict=True):
            if name not in self.naive.names:
                self.naive.names[block] = name

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.held) - 1))
        table, naive_table, _ = self.held.pop(index)
        self.cache.release(table)
        self.naive.release(naive_table)
        assert table == []

    @rule()
    def forget(self) -> None:
        self.cache.forget()
        self.naive.names = [None] * BLOCKS

    @invariant()
    def agrees_with_the_naive_model(self) -> None:
        held = {block for table, _, _ in self.held for block in table}
        assert self.cache.free == len(self.naive.free) == BLOCKS - len(held)
        assert self.cache.resident == len([name for name in self.naive.names if name is not None])
        assert self.cache.usage == pytest.approx(len(held) / BLOCKS)
        for chain in CHAINS:
            assert self.cache.lookup(chain, len(chain)) == self.naive.lookup(chain)


CacheMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestCacheAgainstNaiveModel = CacheMachine.TestCase


def compute(cache: PrefixCache, chain: list[int]) -> list[int]:
    table = cache.hold(hits := cache.lookup(chain, len(chain)), len(chain) - len(hits))
    assert table is not None
    cache.publish(table, chain, len(hits), len(chain))
    return table


def test_a_block_can_be_hit_while_its_first_request_still_runs() -> None:
    cache = PrefixCache(4)
    table = compute(cache, [1, 2])
    assert cache.lookup([1, 2, 3], 3) == table


def test_a_freed_prompt_loses_its_tail_before_its_head() -> None:
    cache = PrefixCache(4)
    cache.release(compute(cache, [1, 2, 3, 4]))
    compute(cache, [9, 8])
    assert len(cache.lookup([1, 2, 3, 4], 4)) == 2


def test_the_least_recently_freed_prompt_is_evicted_first() -> None:
    cache = PrefixCache(4)
    cache.release(compute(cache, [1, 2]))
    cache.release(compute(cache, [3, 4]))
    cache.release(compute(cache, [1, 2]))
    compute(cache, [5, 6])
    assert len(cache.lookup([1, 2], 2)) == 2
    assert cache.lookup([3, 4], 2) == []


def test_a_block_in_use_is_never_evicted() -> None:
    cache = PrefixCache(3)
    compute(cache, [1, 2])
    assert cache.hold([], 2) is None
    assert len(cache.lookup([1, 2], 2)) == 2


def test_a_hit_on_the_free_list_needs_a_free_block_too() -> None:
    cache = PrefixCache(2)
    cache.release(compute(cache, [1]))
    assert cache.hold(cache.lookup([1], 1), 2) is None
    assert cache.free == 2


def test_the_second_copy_of_a_block_stays_nameless_and_is_forgotten() -> None:
    cache = PrefixCache(4)
    first, second = cache.hold([], 1), cache.hold([], 1)
    assert first is not None
    assert second is not None
    cache.publish(first, [1], 0, 1)
    cache.publish(second, [1], 0, 1)
    cache.release(second)
    assert cache.lookup([1], 1) == first
    assert cache.resident == 1


def test_a_cache_without_blocks_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one block"):
        PrefixCache(0)


def test_repeats_in_a_trace_of_block_ids_are_counted_exactly() -> None:
    """Requests in Mooncake's form: ids of blocks, equal ids for equal prefixes. 8 of 17 references are repeats."""
    trace = [[0, 1, 2, 3], [0, 1, 4], [0, 1, 2, 3, 5], [6, 7], [0, 1, 8]]
    cache = PrefixCache(sum(map(len, trace)))
    hits = 0
    for chain in trace:
        hits += len(cache.lookup(chain, len(chain)))
        cache.release(compute(cache, chain))
    assert hits == 2 + 4 + 0 + 2
    assert cache.resident == len({block for chain in trace for block in chain})
