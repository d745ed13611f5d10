"""The window of recent requests against a list of them, and the key that moves past what everybody shares."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.core.recent import (
    FLOOR,
    GENERATION_BLOCKS,
    GENERATION_REQUESTS,
    GENERATION_SECONDS,
    RETURNS,
    SPELL,
    Coldness,
    Key,
    Recent,
    hot_share,
)

TAIL = -1


def path(digits: Sequence[int]) -> list[int]:
    """A chain that commits to its prefix: equal blocks mean equal digits up to them."""
    blocks, block = [], 1
    for digit in digits:
        block = block * 4 + digit
        blocks.append(block)
    return blocks


def sharing(head: int, length: int, who: int) -> list[int]:
    """A chain whose first `head` blocks everybody has, and whose others nobody else has."""
    return [*range(head), *range((who + 1) * 10_000, (who + 1) * 10_000 + length - head)]


def filled(head: int, length: int, requests: int = 100, replicas: int = 8) -> Recent:
    recent = Recent()
    for who in range(requests):
        recent.add(sharing(head, length, who), 0.0, replicas)
    return recent


class NaiveWindow:
    """The requests themselves, in two lists; those of the last two spells in two more."""

    def __init__(self, replicas: int) -> None:
        self.young: list[list[int]] = []
        self.old: list[list[int]] = []
        self.since = float("-inf")
        self.replicas = replicas
        self.present: list[list[int]] = []
        self.last: list[list[int]] = []

    def add(self, chain: list[int], now: float) -> None:
        if now - self.since >= GENERATION_SECONDS:
            self.old, self.young, self.since = self.young, [], now
        self.young.append(chain)
        if len(self.present) >= SPELL * self.replicas:
            self.last, self.present = self.present, []
        self.present.append(chain)

    def share(self, block: int) -> float:
        requests = self.old + self.young
        return sum(block in chain for chain in requests) / max(FLOOR, len(requests))

    def lately(self, block: int) -> int:
        """Those of the last spells; what a generation that was forgotten had of them no longer counts."""
        kept = self.old + self.young
        return sum(block in chain for chain in self.last + self.present if any(chain is each for each in kept))

    def cold_blocks(self, chain: list[int], depth: int) -> float:
        return sum(self.coldness(block) for block in chain[:depth])

    def coldness(self, block: int) -> float:
        late, n = self.lately(block), self.replicas
        return min(max(0.0, 1.0 - n * self.share(block)), n / (n + RETURNS * late) if n > 1 else 1.0)


CHAINS = st.lists(st.integers(0, 1), max_size=9).map(path)
REQUESTS = st.lists(st.tuples(st.sampled_from([0.0, 1.0, 14.9, 15.1, 31.0]), CHAINS), min_size=1, max_size=40)


@settings(deadline=None, max_examples=80)
@given(requests=REQUESTS, asked=CHAINS, replicas=st.integers(0, 9))
def test_shares_and_coldness_are_those_of_a_list_of_the_requests(
    requests: list[tuple[float, list[int]]], asked: list[int], replicas: int
) -> None:
    recent, naive, now = Recent(), NaiveWindow(replicas), 100.0
    for wait, chain in requests:
        now += wait
        recent.add(chain, now, replicas)
        naive.add([*chain], now)
    assert len(recent) == len(naive.old) + len(naive.young)
    for chain in [asked, *(chain for _, chain in requests)]:
        assert [recent.share(block) for block in chain] == [naive.share(block) for block in chain]
        coldness = recent.coldness(chain, replicas)
        for depth in range(len(chain) + 1):
            assert coldness.before(depth) == pytest.approx(naive.cold_blocks(chain, depth), abs=1e-9)


@settings(deadline=None, max_examples=80)
@given(requests=REQUESTS, replicas=st.integers(1, 20))
def test_the_key_is_the_shallowest_power_of_two_that_few_share(
    requests: list[tuple[float, list[int]]], replicas: int
) -> None:
    recent, now, threshold = Recent(), 100.0, hot_share(replicas)
    for wait, chain in requests:
        now += wait
        recent.add(chain, now, replicas)
        key = recent.key(chain, TAIL)
        depths = [depth for depth in (1, 2, 4, 8) if depth <= len(chain)]
        assert key == (Key(chain[key.depth - 1], key.depth) if key.depth in depths else Key(TAIL, 0))
        if key.depth:
            assert recent.share(key.hash) <= threshold + 1e-12
        shallower = [depth for depth in depths if not key.depth or depth < key.depth]
        assert all(recent.share(chain[depth - 1]) >= threshold / 2 - 1e-12 for depth in shallower)


@pytest.mark.parametrize(
    ("replicas", "share"),
    [(1, 1 / 2), (2, 1 / 2), (3, 1 / 2), (4, 1 / 2), (5, 2 / 5), (8, 1 / 4), (16, 1 / 8), (99, 1 / 8)],
)
def test_the_hot_share_is_two_fair_shares_between_an_eighth_and_a_half(replicas: int, share: float) -> None:
    assert hot_share(replicas) == share


def test_an_empty_window_calls_nothing_hot() -> None:
    recent = Recent()
    assert len(recent) == 0
    assert recent.share(1) == 0.0
    assert recent.key([1, 2, 3], TAIL) == Key(1, 1)
    coldness = recent.coldness([1, 2, 3], 8)
    assert (coldness.ends, coldness.sums, coldness.rates) == ([3], [3.0], [1.0])


def test_a_prompt_without_blocks_is_placed_by_its_tail() -> None:
    recent = Recent()
    recent.add([], 0.0, 8)
    assert recent.key([], TAIL) == Key(TAIL, 0)
    assert recent.coldness([], 8).before(0) == 0.0
    assert len(recent) == 1


def test_shares_are_counted_over_at_least_twenty_requests() -> None:
    recent = Recent()
    for seen in range(1, 41):
        recent.add([1], 0.0, 8)
        assert recent.share(1) == seen / max(20, seen)


def test_twenty_like_requests_make_every_block_hot_at_once() -> None:
    recent = Recent()
    for _ in range(20):
        recent.add([1, 2, 3, 4], 0.0, 1)
    assert recent.share(4) == 1.0
    assert recent.key([1, 2, 3, 4], TAIL) == Key(TAIL, 0)
    assert recent.coldness([1, 2, 3, 4], 1).before(4) == 0.0


def test_a_block_turns_hot_above_the_threshold_and_not_at_it() -> None:
    recent = Recent()
    for _ in range(5):  # 5 of 20 are a quarter, the hot share of eight replicas.
        recent.add([1, 2], 0.0, 8)
        assert recent.key([1, 2], TAIL) == Key(1, 1)
    recent.add([1, 2], 0.0, 8)
    assert recent.key([1, 2], TAIL) == Key(TAIL, 0)


def test_a_hot_block_stays_hot_until_its_share_falls_below_half_the_threshold() -> None:
    recent = Recent()
    for _ in range(6):
        recent.add([1], 0.0, 8)
    for other in range(41):
        recent.add([1000 + other], 0.0, 8)
    recent.add([1], 0.0, 8)  # 7 of 48: more than an eighth.
    assert recent.key([1], TAIL) == Key(TAIL, 0)
    for other in range(15):
        recent.add([2000 + other], 0.0, 8)
    recent.add([1], 0.0, 8)  # 8 of 64: an eighth, still not below it.
    assert recent.key([1], TAIL) == Key(TAIL, 0)
    for other in range(9):
        recent.add([3000 + other], 0.0, 8)
    recent.add([1], 0.0, 8)  # 9 of 74.
    assert recent.key([1], TAIL) == Key(1, 1)


def test_a_block_that_was_never_hot_is_a_key_between_the_two_thresholds() -> None:
    recent = Recent()
    for other in range(34):
        recent.add([1000 + other], 0.0, 8)
    for _ in range(6):
        recent.add([1], 0.0, 8)
    assert 1 / 8 < recent.share(1) < 1 / 4
    assert recent.key([1], TAIL) == Key(1, 1)


@pytest.mark.parametrize(("shared", "depth"), [(0, 1), (1, 2), (2, 4), (4, 8), (7, 8), (40, 64), (64, 128)])
def test_the_key_lies_behind_what_everybody_shares(shared: int, depth: int) -> None:
    recent = filled(shared, 200)
    for who in (0, 50, 99, 12_345):
        chain = sharing(shared, 200, who)
        assert recent.key(chain, TAIL) == Key(chain[depth - 1], depth)


def test_the_key_is_the_tail_when_only_shared_blocks_have_a_depth_that_is_tried() -> None:
    recent = filled(5, 6)
    assert recent.key(sharing(5, 6, 7), TAIL) == Key(TAIL, 0)


def test_what_fills_a_fair_share_of_the_replicas_is_free_and_the_rest_is_cold() -> None:
    recent = filled(40, 60)  # 100 requests: the shared blocks have a share of 1, the others of 1/100.
    coldness = recent.coldness(sharing(40, 60, 3), 8)
    assert coldness.before(40) == 0.0
    assert coldness.before(60) == pytest.approx(20 * (1 - 8 / 100))
    assert coldness.before(50) == pytest.approx(10 * (1 - 8 / 100))
    stranger = recent.coldness(sharing(40, 60, 777), 8)
    assert stranger.before(60) == pytest.approx(20.0)


def test_a_request_is_remembered_for_thirty_seconds_and_forgotten_after_sixty() -> None:
    recent = Recent()
    recent.add([1], 0.0, 8)
    recent.add([2], 29.9, 8)
    assert recent.share(1) == 1 / 20
    recent.add([3], 30.0, 8)
    assert recent.share(1) == recent.share(2) == recent.share(3) == 1 / 20
    recent.add([4], 59.9, 8)
    assert recent.share(1) == 1 / 20
    recent.add([5], 60.0, 8)
    assert recent.share(1) == recent.share(2) == 0.0
    assert recent.share(3) == recent.share(5) == 1 / 20
    assert len(recent) == 3


def test_a_turn_of_the_generation_cools_what_fell_below_half_and_keeps_what_did_not() -> None:
    recent = Recent()
    for _ in range(6):
        recent.add([1], 0.0, 8)
    for other in range(4):
        recent.add([2], 29.0, 8)
        recent.add([100 + other], 29.0, 8)
    assert recent.key([1], TAIL) == Key(TAIL, 0)
    recent.add([3], 30.0, 8)  # The window still holds all: 6 of 20.
    assert recent.key([1], TAIL) == Key(TAIL, 0)
    recent.add([3], 60.0, 8)
    assert recent.key([1], TAIL) == Key(1, 1)


def test_a_turn_keeps_hot_what_is_at_half_the_threshold() -> None:
    recent = Recent()
    for _ in range(6):
        recent.add([1, 2], 0.0, 16)
    for _ in range(6):
        recent.add([7], 30.0, 16)
    for other in range(36):
        recent.add([100 + other], 30.0, 16)
    recent.add([1], 59.0, 16)  # 7 of 49 and 6 of 49: above a sixteenth.
    recent.add([3], 60.0, 16)  # Now 1 of 44 and 6 of 44.
    assert recent.key([1], TAIL) == Key(1, 1)
    assert recent.key([7], TAIL) == Key(TAIL, 0)


@pytest.mark.parametrize(("like", "others", "stays"), [(2, 21, False), (3, 21, True), (3, 22, False)])
def test_half_the_threshold_is_what_a_turn_asks_for(like: int, others: int, stays: bool) -> None:
    """A hot block comes `like` times among `others` in a generation soon to be the only one: hot from an eighth on."""
    recent = Recent()
    for _ in range(6):
        recent.add([1], 0.0, 8)
    for other in range(others):
        recent.add([100 + other], 30.0, 8)
    for _ in range(like):
        recent.add([1], 30.0, 8)
    assert recent.key([1], TAIL) == Key(TAIL, 0)
    recent.add([2], 60.0, 8)
    assert (recent.key([1], TAIL) == Key(TAIL, 0)) == stays


def test_coldness_ends_with_its_chain() -> None:
    coldness = Coldness([2, 5, 6], [1.0, 4.0, 4.5], [0.5, 1.0, 0.5])
    assert [coldness.before(depth) for depth in (0, 1, 2, 4, 5, 6, 7, 99)] == [0.0, 0.5, 1.0, 3.0, 4.0, 4.5, 4.5, 4.5]
    assert Coldness([], [], []).before(3) == 0.0


def test_a_fleet_without_ready_replicas_still_counts() -> None:
    recent = Recent()
    for _ in range(11):
        recent.add([1], 0.0, 0)
    assert recent.key([1], TAIL) == Key(TAIL, 0)  # 11 of 20 are above the half that one replica has.
    recent.add([1], 60.0, 0)
    assert recent.coldness([1], 0).before(1) == 1.0


def test_a_generation_holds_a_bounded_number_of_requests() -> None:
    recent = Recent()
    for who in range(3 * GENERATION_REQUESTS):
        recent.add([who], 0.0, 8)
        assert len(recent) <= 2 * GENERATION_REQUESTS
    assert recent.share(GENERATION_REQUESTS - 1) == 0.0
    assert recent.share(GENERATION_REQUESTS) > 0.0


def test_a_generation_holds_a_bounded_number_of_blocks() -> None:
    recent, size = Recent(), 1000
    for who in range(150):
        recent.add(range(who * size, (who + 1) * size), 0.0, 8)
        assert len(recent._young) <= GENERATION_BLOCKS
        assert len(recent._old) <= GENERATION_BLOCKS
    assert recent.share(0) == 0.0
    assert recent.share(149 * size) > 0.0


def test_a_generation_is_filled_to_its_bound() -> None:
    recent = Recent()
    recent.add(range(GENERATION_BLOCKS - 1), 0.0, 8)
    recent.add([-1], 0.0, 8)
    recent.add([], 0.0, 8)
    assert len(recent._young) == GENERATION_BLOCKS
    assert len(recent._old) == 0


def test_one_prompt_longer_than_a_generation_has_one_to_itself() -> None:
    recent, huge = Recent(), range(GENERATION_BLOCKS + 10)
    recent.add([-1], 0.0, 8)
    recent.add(huge, 0.0, 8)
    assert recent.share(-1) == recent.share(GENERATION_BLOCKS + 9) == 1 / 20
    recent.add([-2], 0.0, 8)
    assert recent.share(-1) == 0.0
    assert len(recent) == 2


def test_hot_blocks_are_few_however_many_prompts_came() -> None:
    recent = Recent()
    for group in range(60):
        for _ in range(60):
            recent.add(range(group * 100, group * 100 + 64), float(group), 8)
    assert len(recent._hot) <= 7 * 2 / (hot_share(8) / 2)


def test_what_is_asked_for_once_only_is_not_expected_again_and_is_until_that_shows() -> None:
    recent = Recent()
    assert recent.returning == 1.0
    for who in range(60):
        recent.add(sharing(0, 4, who), 0.0, 8)
    assert recent.returning == FLOOR / (60 + FLOOR)
    for who in range(60):
        recent.add(sharing(0, 4, who), 1.0, 8)
    assert recent.returning == (60 + FLOOR) / (120 + FLOOR)
    recent.add(sharing(0, 4, 99), 1.0 + GENERATION_SECONDS, 8)
    assert recent.returning == (60 + FLOOR) / (121 + FLOOR)
    recent.add(sharing(0, 4, 98), 1.0 + 2 * GENERATION_SECONDS, 8)
    assert recent.returning == FLOOR / (2 + FLOOR)


def test_a_burst_loses_most_of_its_coldness_in_a_few_requests_and_has_it_back_after_two_spells() -> None:
    recent = filled(0, 4, 200)
    burst = [1, 2, 3, 4]
    coldness = []
    for _ in range(6):
        coldness.append(recent.coldness(burst, 8).before(4) / 4)
        recent.add(burst, 0.0, 8)
    assert coldness == pytest.approx([1, 8 / 16, 8 / 24, 8 / 32, 8 / 40, 8 / 48])
    for who in range(2 * SPELL * 8):
        recent.add(sharing(0, 4, 1_000 + who), 0.0, 8)
    assert recent.coldness(burst, 8).before(4) == pytest.approx(4 * (1 - 8 * 6 / 238))


def test_in_a_small_fleet_a_chats_own_turns_are_no_burst() -> None:
    """Twenty chats take turns on two replicas: who comes back after twenty requests was last seen five spells ago."""
    recent = Recent()
    for turn in range(200):
        recent.add(sharing(0, 4, turn % 20), 0.0, 2)
    assert recent.coldness(sharing(0, 4, 0), 2).before(4) == pytest.approx(4 * (1 - 2 / 20))
