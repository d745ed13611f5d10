"""Who holds which chain: against a mirror of vLLM's cache so naive that a glance can check it, and rule by rule."""

from collections.abc import Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from router.core.residency import NOTHING, Placement, Residency

REPLICAS = ("a", "b", "c")
ROOM = 100


def path(digits: Sequence[int]) -> list[int]:
    """A chain that commits to its prefix: equal blocks mean equal digits up to them."""
    blocks, block = [], 1
    for digit in digits:
        block = block * 4 + digit
        blocks.append(block)
    return blocks


CHAINS = st.lists(st.integers(0, 1), max_size=7).map(path)


class NaivePlacement:
    """What was pinned, how deep it was held before, and when each of the held ones had been released (0: pinned)."""

    def __init__(self, blocks: list[int], ages: list[int]) -> None:
        self.blocks = blocks
        self.ages = ages


class NaiveShelf:
    """One replica, block by block. `free` is vLLM's free list, oldest first; `confirmed` is what it has computed."""

    def __init__(self) -> None:
        self.pins: dict[int, int] = {}
        self.free: list[int] = []
        self.released: dict[int, int] = {}
        self.confirmed: set[int] = set()
        self.releases = 0
        self.evictions = 0
        self.answers: dict[int, tuple[int, int]] = {}

    @property
    def held(self) -> set[int]:
        return set(self.pins) | set(self.free)

    def depth(self, chain: Sequence[int]) -> int:
        return next((i for i, block in enumerate(chain) if block not in self.held), len(chain))

    def place(self, chain: list[int], capacity: int) -> NaivePlacement:
        ages, placed = [], []
        for block in chain[: self.depth(chain)]:
            ages.append(0 if block in self.pins else self.released[block])
            self.pin(block)
            placed.append(block)
        for block in chain[len(placed) :]:
            if len(self.pins) >= capacity:
                break
            self.evict(capacity - 1)
            self.pin(block)
            placed.append(block)
        if chain:
            self.evict(capacity)
        return NaivePlacement(placed, ages)

    def pin(self, block: int) -> None:
        if block in self.free:
            self.free.remove(block)
        self.pins[block] = self.pins.get(block, 0) + 1

    def evict(self, capacity: int) -> None:
        while len(self.held) > capacity and self.free:
            self.drop(self.free[0])
            self.evictions += 1

    def drop(self, block: int) -> None:
        self.free.remove(block)
        self.confirmed.discard(block)
        self.answers.pop(block, None)

    def release(self, placement: NaivePlacement) -> None:
        self.releases += 1
        for block in reversed(placement.blocks):
            self.pins[block] -= 1
            if not self.pins[block]:
                del self.pins[block]
                self.released[block] = self.releases
                self.free.append(block)
                if block not in self.confirmed:
                    self.drop(block)

    def disproved(self, placement: NaivePlacement, depth: int) -> int:
        if depth >= len(placement.ages):
            return 0
        stale = [block for block in self.free if self.released[block] <= placement.ages[depth]]
        for block in stale:
            self.drop(block)
        return len(stale)

    def forget(self) -> None:
        for block in list(self.free):
            self.drop(block)
        self.confirmed.clear()
        self.answers.clear()


class ResidencyMachine(RuleBasedStateMachine):
    """Any interleaving of placements, confirmations, releases, disproofs and new epochs."""

    def __init__(self) -> None:
        super().__init__()
        self.residency = Residency()
        self.naive = {replica: NaiveShelf() for replica in REPLICAS}
        for replica in REPLICAS:
            self.residency.join(replica)
        self.open: list[tuple[Placement, NaivePlacement]] = []
        self.seen: list[list[int]] = []  # Each chain once.

    @rule(replica=st.sampled_from(REPLICAS), chain=CHAINS, capacity=st.integers(0, 12))
    def place(self, replica: str, chain: list[int], capacity: int) -> None:
        shelf = self.naive[replica]
        depth, pinned = shelf.depth(chain), len(shelf.pins)
        placement, naive = (self.residency.place(replica, chain, capacity), shelf.place(chain, capacity))
        assert placement.depth == depth == len(naive.ages)
        assert placement.blocks == len(naive.blocks)
        if chain:
            new_pins = len(shelf.pins) - pinned
            assert self.residency.held(replica) <= max(capacity, pinned + new_pins)
            assert len(shelf.pins) <= max(capacity, pinned + depth)
        self.open.append((placement, naive))
        if chain not in self.seen:
            self.seen.append(chain)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def confirm(self, data: st.DataObject) -> None:
        placement, naive = data.draw(st.sampled_from(self.open))
        self.residency.confirm(placement)
        self.naive[placement.shelf.replica].confirmed.update(naive.blocks)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        placement, naive = self.open.pop(data.draw(st.integers(0, len(self.open) - 1)))
        self.residency.release(placement)
        self.naive[placement.shelf.replica].release(naive)

    @precondition(lambda self: self.seen)
    @rule(data=st.data(), replica=st.sampled_from(REPLICAS), new=st.integers(0, 2))
    def placed_elsewhere(self, data: st.DataObject, replica: str, new: int) -> None:
        """Another router goes on, by so many blocks, from a block that is held; it may place that only once more."""
        chain = data.draw(st.sampled_from(self.seen))
        shelf = self.naive[replica]
        held = chain[: shelf.depth(chain)]
        if not held:
            return
        whole = path([block % 4 for block in held] + [0] * new)
        self.residency.learn(replica, held[-1], whole[len(held) :], ROOM, 0.0)
        naive = shelf.place(whole, ROOM)
        shelf.confirmed.update(naive.blocks)
        shelf.release(naive)
        if whole not in self.seen:
            self.seen.append(whole)

    @precondition(lambda self: self.open)
    @rule(data=st.data(), depth=st.integers(0, 7))
    def disproved(self, data: st.DataObject, depth: int) -> None:
        placement, naive = data.draw(st.sampled_from(self.open))
        dropped = self.residency.disproved(placement, depth)
        assert dropped.blocks == self.naive[placement.shelf.replica].disproved(naive, depth)

    @precondition(lambda self: self.seen)
    @rule(data=st.data(), replica=st.sampled_from(REPLICAS), tokens=st.integers(1, 40))
    def answered(self, data: st.DataObject, replica: str, tokens: int) -> None:
        block = data.draw(st.sampled_from([chain[-1] for chain in self.seen if chain] or [1]))
        self.residency.answered(replica, block, 100, tokens)
        if block in self.naive[replica].held:
            self.naive[replica].answers[block] = (100, tokens)

    @rule(replica=st.sampled_from(REPLICAS))
    def forget(self, replica: str) -> None:
        self.residency.forget(replica)
        self.naive[replica].forget()

    @invariant()
    def holds_what_the_naive_one_holds(self) -> None:
        assert len(self.residency) == sum(len(shelf.held) for shelf in self.naive.values())
        assert self.residency.evictions == sum(shelf.evictions for shelf in self.naive.values())
        for replica, shelf in self.naive.items():
            assert self.residency.held(replica) == len(shelf.held)
        for chain in self.seen:
            depths = {replica: shelf.depth(chain) for replica, shelf in self.naive.items()}
            assert self.residency.depths(chain) == {replica: depth for replica, depth in depths.items() if depth}

    @invariant()
    def is_prefix_closed(self) -> None:
        for chain in self.seen:
            for shelf in self.naive.values():
                assert [block in shelf.held for block in chain] == sorted(
                    (block in shelf.held for block in chain), reverse=True
                )

    @invariant()
    def remembers_answers_while_it_holds_their_prompts(self) -> None:
        for chain in self.seen:
            for block in chain[-1:]:
                for replica, shelf in self.naive.items():
                    tokens = shelf.answers.get(block, (0, 0))[1]
                    expected = 100 + min(20, tokens) if tokens else 0
                    assert self.residency.answer_end(replica, block, {100: 120}, 1.0) == expected

    def teardown(self) -> None:
        for placement, naive in self.open:
            self.residency.release(placement)
            self.naive[placement.shelf.replica].release(naive)
        for replica in REPLICAS:
            self.residency.forget(replica)
        assert len(self.residency) == 0
        assert all(self.residency.depths(chain) == {} for chain in self.seen)


ResidencyMachine.TestCase.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
TestResidencyAgainstANaiveOne = ResidencyMachine.TestCase


@pytest.fixture
def residency() -> Residency:
    residency = Residency()
    for replica in REPLICAS:
        residency.join(replica)
    return residency


def hold(residency: Residency, replica: str, chain: list[int], capacity: int = ROOM) -> Placement:
    """A request that came, was answered and went."""
    placement = residency.place(replica, chain, capacity)
    residency.confirm(placement)
    residency.release(placement)
    return placement


def test_a_placement_is_believed_before_any_answer(residency: Residency) -> None:
    residency.place("a", [1, 2, 3], ROOM)
    assert residency.depths([1, 2, 3, 4]) == {"a": 3}
    assert residency.depths([1, 9]) == {"a": 1}
    assert residency.depths([9]) == {}
    assert residency.depths([]) == {}


def test_every_holder_is_seen_with_its_own_depth() -> None:
    many = [f"replica-{i}" for i in range(70)]
    residency = Residency()
    chain = list(range(1, 81))
    for depth, replica in enumerate(many, start=1):
        residency.join(replica)
        residency.place(replica, chain[:depth], ROOM)
    assert residency.depths(chain) == {replica: depth for depth, replica in enumerate(many, start=1)}


def test_joining_again_changes_nothing(residency: Residency) -> None:
    hold(residency, "a", [1, 2])
    residency.join("a")
    assert residency.depths([1, 2]) == {"a": 2}


def test_tails_go_before_the_heads_they_hang_on(residency: Residency) -> None:
    hold(residency, "a", [1, 2, 3, 4], 6)
    hold(residency, "a", [10, 11, 12, 13], 6)
    assert residency.depths([1, 2, 3, 4]) == {"a": 2}
    assert residency.evictions == 2


def test_the_least_recently_used_goes_first_and_a_touch_makes_young(residency: Residency) -> None:
    hold(residency, "a", [1, 2], 4)
    hold(residency, "a", [10, 11], 4)
    hold(residency, "a", [1, 2], 4)
    hold(residency, "a", [20, 21], 4)
    assert residency.depths([1, 2]) == {"a": 2}
    assert residency.depths([10, 11]) == {}


def test_a_running_request_keeps_its_blocks_however_old(residency: Residency) -> None:
    residency.place("a", [1, 2], 4)
    for first in range(10, 60, 10):
        hold(residency, "a", [first, first + 1], 4)
        assert residency.depths([1, 2]) == {"a": 2}
        assert residency.held("a") == 4


def test_what_does_not_fit_beside_running_requests_is_left_out(residency: Residency) -> None:
    residency.place("a", [1, 2, 3], 5)
    second = residency.place("a", [10, 11, 12, 13], 5)
    assert second.blocks == 2
    assert residency.depths([10, 11, 12, 13]) == {"a": 2}
    third = residency.place("a", [20], 5)
    assert third.blocks == 0
    assert residency.held("a") == 5
    for placement in (second, third):
        residency.confirm(placement)
        residency.release(placement)
    assert residency.held("a") == 5


def test_a_capacity_that_shrinks_evicts_at_the_next_placement(residency: Residency) -> None:
    hold(residency, "a", [1, 2, 3, 4, 5])
    residency.place("a", [1], 3)
    assert residency.held("a") == 3
    assert residency.depths([1, 2, 3, 4, 5]) == {"a": 3}


def test_no_room_at_all_leaves_only_what_is_pinned(residency: Residency) -> None:
    hold(residency, "a", [1, 2, 3])
    residency.place("a", [1, 2], -7)
    assert residency.held("a") == 2


def test_a_request_without_a_prompt_evicts_nothing(residency: Residency) -> None:
    hold(residency, "a", [1, 2, 3])
    placement = residency.place("a", [], 0)
    residency.confirm(placement)
    residency.release(placement)
    assert residency.depths([1, 2, 3]) == {"a": 3}
    assert residency.evictions == 0


def test_a_failed_placement_takes_its_own_new_blocks_back(residency: Residency) -> None:
    hold(residency, "a", [1, 2])
    failed = residency.place("a", [1, 2, 3, 4], ROOM)
    assert residency.depths([1, 2, 3, 4]) == {"a": 4}
    residency.release(failed)
    assert residency.depths([1, 2, 3, 4]) == {"a": 2}
    assert residency.evictions == 0


def test_a_failed_placement_leaves_what_another_request_computed_meanwhile(residency: Residency) -> None:
    failed = residency.place("a", [1, 2, 3, 4], ROOM)
    other = residency.place("a", [1, 2, 9], ROOM)
    residency.confirm(other)
    residency.release(failed)
    assert residency.depths([1, 2, 3, 4]) == {"a": 2}
    assert residency.depths([1, 2, 9]) == {"a": 3}


def test_a_failed_placement_leaves_what_another_request_is_still_computing(residency: Residency) -> None:
    failed, other = (residency.place("a", [1, 2, 3], ROOM), residency.place("a", [1, 2], ROOM))
    residency.release(failed)
    assert residency.depths([1, 2, 3]) == {"a": 2}
    residency.release(other)
    assert residency.depths([1, 2, 3]) == {}


def test_a_new_epoch_forgets_at_once_what_no_request_holds(residency: Residency) -> None:
    hold(residency, "a", [1, 2])
    hold(residency, "b", [1, 2])
    residency.forget("a")
    assert residency.depths([1, 2]) == {"b": 2}
    assert residency.held("a") == 0


def test_a_new_epoch_forgets_a_running_request_when_it_ends_unless_a_first_token_confirms(residency: Residency) -> None:
    dies, lives = (residency.place("a", [1, 2], ROOM), residency.place("a", [10, 11], ROOM))
    residency.confirm(dies)
    residency.confirm(lives)
    residency.forget("a")
    residency.confirm(lives)
    residency.release(dies)
    residency.release(lives)
    assert residency.depths([1, 2]) == {}
    assert residency.depths([10, 11]) == {"a": 2}


def test_a_missing_block_tells_that_everything_released_before_it_is_gone(residency: Residency) -> None:
    hold(residency, "a", [10, 11])
    hold(residency, "a", [1, 2, 3])
    hold(residency, "a", [20, 21])
    asked = residency.place("a", [1, 2, 3], ROOM)
    assert (
        residency.disproved(asked, 2).blocks == 2
    )  # Block 3 was gone, so 10 and 11 are: they were released before it.
    assert residency.depths([10, 11]) == {}
    assert residency.depths([20, 21]) == {"a": 2}
    assert residency.depths([1, 2, 3]) == {"a": 3}  # It has just been computed there.


def test_blocks_released_at_the_same_time_are_gone_together(residency: Residency) -> None:
    hold(residency, "a", [1, 2, 3, 4])
    asked = residency.place("a", [1, 2], ROOM)
    assert residency.disproved(asked, 0).blocks == 2
    assert residency.depths([1, 2, 3, 4]) == {"a": 2}


def test_the_missing_block_itself_counts_and_not_the_youngest_of_its_chain(residency: Residency) -> None:
    hold(residency, "a", [1, 2, 3, 4])
    hold(residency, "a", [30, 31])
    hold(residency, "a", [1, 2])
    asked = residency.place("a", [1, 2, 3, 4], ROOM)
    assert residency.disproved(asked, 3).blocks == 0
    assert residency.disproved(asked, 2).blocks == 0
    assert residency.disproved(asked, 1).blocks == 2  # Block 2 was touched after 30 and 31.


def test_a_full_hit_and_a_deeper_one_disprove_nothing(residency: Residency) -> None:
    hold(residency, "a", [10])
    hold(residency, "a", [1, 2])
    asked = residency.place("a", [1, 2, 3], ROOM)
    assert asked.depth == 2
    assert residency.disproved(asked, 2) == residency.disproved(asked, 3) == NOTHING
    assert residency.depths([10]) == {"a": 1}


def test_a_block_that_was_pinned_when_it_was_asked_for_disproves_nothing(residency: Residency) -> None:
    hold(residency, "a", [10])
    residency.place("a", [1, 2], ROOM)
    asked = residency.place("a", [1, 2], ROOM)
    assert residency.disproved(asked, 0).blocks == 0
    assert residency.depths([10]) == {"a": 1}


def test_another_replica_is_not_touched_by_a_disproof(residency: Residency) -> None:
    hold(residency, "b", [10, 11])
    hold(residency, "a", [10, 11])
    hold(residency, "a", [1])
    assert residency.disproved(residency.place("a", [1], ROOM), 0).blocks == 2
    assert residency.depths([10, 11]) == {"b": 2}


def test_an_answer_is_cached_as_far_as_its_tokens_reach(residency: Residency) -> None:
    hold(residency, "a", [1, 2])
    residency.answered("a", 2, 1000, 30)
    assert residency.answer_end("a", 2, {1000: 1200}, 4.0) == 1120
    assert residency.answer_end("a", 2, {1000: 1100}, 4.0) == 1100
    assert residency.answer_end("a", 2, {999: 1100}, 4.0) == 0
    assert residency.answer_end("a", 1, {1000: 1100}, 4.0) == 0
    assert residency.answer_end("b", 2, {1000: 1100}, 4.0) == 0


def test_an_answer_is_remembered_only_where_its_prompt_is_held(residency: Residency) -> None:
    residency.answered("a", 2, 1000, 30)
    hold(residency, "a", [1, 2])
    assert residency.answer_end("a", 2, {1000: 1200}, 4.0) == 0


def test_an_answer_goes_with_its_prompt(residency: Residency) -> None:
    hold(residency, "a", [1, 2], 2)
    residency.answered("a", 2, 1000, 30)
    hold(residency, "a", [10], 2)
    hold(residency, "a", [1, 2], 3)
    assert residency.answer_end("a", 2, {1000: 1200}, 4.0) == 0


def test_an_answer_goes_with_its_replicas_epoch(residency: Residency) -> None:
    running = residency.place("a", [1, 2], ROOM)
    residency.answered("a", 2, 1000, 30)
    residency.forget("a")
    residency.confirm(running)
    residency.release(running)
    assert residency.depths([1, 2]) == {"a": 2}
    assert residency.answer_end("a", 2, {1000: 1200}, 4.0) == 0


@pytest.mark.parametrize("replica", ["nobody", ""])
def test_an_unknown_replica_is_an_error(residency: Residency, replica: str) -> None:
    with pytest.raises(KeyError):
        residency.place(replica, [1], ROOM)


def test_unique_prompts_in_a_burst_never_exceed_the_bound(residency: Residency) -> None:
    for who in range(500):
        hold(residency, "a", list(range(who * 100, who * 100 + 40)), 1000)
        assert residency.held("a") <= 1000
    assert len(residency) == 1000


def test_a_touch_of_a_chain_that_is_in_use_leaves_it_pinned() -> None:
    residency = Residency()
    residency.join("a")
    ours = residency.place("a", [1, 2], ROOM)
    residency.confirm(ours)
    residency.learn("a", 2, [], ROOM, 1.0)
    assert residency.lost("a", 2) == 0
    residency.release(ours)
    residency.learn("a", 2, [], ROOM, 2.0)
    assert residency.lost("a", 2) == 2
