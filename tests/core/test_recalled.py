"""A snapshot: what is told of many chains in few hashes, and what who reads it believes."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from router.core import recalled
from router.core.fleet import FleetSettings
from router.core.member import ReplicaSpec
from router.core.recalled import MAX_HASHES, MAX_REPLICA, Recalled
from router.core.residency import Residency
from router.core.types import State
from tests.core.worlds import answered, ask, fleet_of, leased, routed

R0, R1 = 1, 2


def chain(name: int, length: int, shared: int = 0) -> list[int]:
    """Hashes that tell their depth; the first `shared` are those of every chain."""
    return [depth if depth <= shared else name * 10_000 + depth for depth in range(1, length + 1)]


def holding(*chains: Sequence[int], capacity: int = 100_000) -> Residency:
    """A residency with one replica, where these were computed, one after the other."""
    residency = Residency()
    residency.join("r0")
    for each in chains:
        residency.learn("r0", None, each, capacity, 0.0)
    return residency


def summary(residency: Residency, most: int = 1000) -> list[int]:
    return residency.summary("r0", most).hashes


def reader(hashes: Sequence[int]) -> Residency:
    residency = holding()
    residency.recall("r0", hashes)
    return residency


# What is told.


def test_a_chain_is_told_at_powers_of_two_and_at_its_tip() -> None:
    assert [block % 10_000 for block in summary(holding(chain(1, 13)))] == [1, 2, 4, 8, 13]
    assert [block % 10_000 for block in summary(holding(chain(1, 8)))] == [1, 2, 4, 8]
    assert len(summary(holding(chain(1, 800)))) == 11
    assert summary(holding()) == []


def test_what_was_used_last_is_told_first_and_what_is_in_use_before_that() -> None:
    residency = holding(chain(1, 1), chain(2, 1), chain(3, 1), chain(1, 1))
    residency.place("r0", chain(2, 1), 100)
    assert [block // 10_000 for block in summary(residency)] == [2, 1, 3]


def test_what_two_requests_have_in_use_is_told_once() -> None:
    residency = holding(chain(1, 5))
    for _ in range(2):
        residency.place("r0", chain(1, 5), 100)
    told = residency.summary("r0", 100)
    assert ([block % 10_000 for block in told.hashes], told.left_out) == ([1, 2, 4, 5], 0)


def test_a_common_head_is_told_once_and_where_it_ends() -> None:
    told = summary(holding(chain(1, 12, shared=6), chain(2, 12, shared=6), chain(3, 9, shared=6)))
    assert sorted(told) == sorted({1, 2, 4, 6, 10_008, 10_012, 20_008, 20_012, 30_008, 30_009})


def test_a_chat_of_many_turns_is_one_chain() -> None:
    residency = holding(*(chain(1, 3 * turn) for turn in range(1, 21)))
    assert [block % 10_000 for block in summary(residency)] == [1, 2, 4, 8, 16, 32, 60]


def test_what_finds_no_room_is_left_out_coldest_first_and_counted() -> None:
    residency = holding(*(chain(name, 8) for name in range(1, 11)))
    told = residency.summary("r0", 18)
    assert [block // 10_000 for block in told.hashes] == [10, 10, 10, 10, 9, 9, 9, 9, 8, 8, 8, 8, 7, 7, 7, 7]
    assert told.left_out == 6


def test_ten_thousand_prefixes_over_a_hundred_replicas_are_less_than_two_megabytes() -> None:
    """CASES A26: 1.2 holders each, of prompts of 32 KB."""
    specs = [ReplicaSpec(f"r{number}", kv_tokens=10_000_000) for number in range(100)]
    fleet = fleet_of(specs, settings=FleetSettings(index_blocks=1_000_000))
    for name in range(12_000):
        fleet.placed(f"r{(name + name // 10_000) % 100}", None, chain(name % 10_000, 64), 0.0)
    told = [fleet.snapshots.summary(f"r{number}") for number in range(100)]
    assert sum(8 * len(each.hashes) for each in told) == 12_000 * 7 * 8 < 2_000_000
    assert sum(each.left_out for each in told) == 0


# What is believed.


def test_who_reads_it_knows_a_prompt_that_goes_on_to_its_whole_depth_and_half_of_any_other() -> None:
    there = reader(summary(holding(chain(1, 13))))
    assert there.depths(chain(1, 20)) == {"r0": 13}
    assert there.depths(chain(1, 12)) == {"r0": 8}
    assert there.depths(chain(1, 8)) == {"r0": 8}
    assert there.depths(chain(2, 20)) == {}
    assert there.depths([]) == {}


@given(
    lengths=st.lists(st.tuples(st.integers(0, 12), st.integers(1, 40)), min_size=1, max_size=12),
    asked=st.tuples(st.integers(0, 12), st.integers(1, 40)),
)
def test_never_more_is_believed_than_is_held_and_never_less_than_half(
    lengths: list[tuple[int, int]], asked: tuple[int, int]
) -> None:
    held = [chain(name, length, shared=min(name, 5)) for name, length in lengths]
    wanted = chain(asked[0], asked[1], shared=min(asked[0], 5))
    there = holding(*held)
    true = there.depths(wanted).get("r0", 0)
    believed = reader(summary(there)).depths(wanted).get("r0", 0)
    assert true / 2 <= believed <= true


def test_what_is_known_here_and_what_is_recalled_are_read_as_one() -> None:
    there = reader(summary(holding(chain(1, 13))))
    there.join("r1")
    there.learn("r0", None, chain(1, 2), 100, 0.0)
    there.learn("r1", None, chain(1, 5), 100, 0.0)
    assert there.depths(chain(1, 20)) == {"r0": 13, "r1": 5}
    there.learn("r0", None, chain(1, 16), 100, 0.0)
    assert there.depths(chain(1, 20)) == {"r0": 16, "r1": 5}


def test_a_recalled_chain_that_another_router_lengthens_is_known_to_its_new_end() -> None:
    there = reader(summary(holding(chain(1, 13))))
    there.learn("r0", chain(1, 13)[-1], chain(1, 17)[13:], 100, 0.0)
    assert there.depths(chain(1, 20)) == {"r0": 17}
    there.learn("r0", 999, [1000], 100, 0.0)
    assert there.depths([999, 1000]) == {}


def test_what_is_told_to_be_lost_is_recalled_no_more() -> None:
    there = reader(summary(holding(chain(1, 13))))
    there.lost("r0", chain(1, 13)[-1])
    there.lost("r0", 12345)
    assert there.depths(chain(1, 20)) == {"r0": 8}


def test_a_new_epoch_or_leaving_ends_it() -> None:
    for end in (Residency.forget, Residency.leave):
        there = reader(summary(holding(chain(1, 13))))
        there.join("r1")
        there.recall("r1", summary(holding(chain(1, 4))))
        end(there, "r0")
        assert there.depths(chain(1, 20)) == {"r1": 4}
    there.forget_recalled()
    assert there.depths(chain(1, 20)) == {}


def test_what_was_only_recalled_is_told_on_after_what_is_known() -> None:
    there = reader(summary(holding(chain(1, 8), chain(2, 8))))
    there.learn("r0", None, chain(3, 2), 100, 0.0)
    assert [block // 10_000 for block in summary(there)] == [3, 3, 2, 2, 2, 2, 1, 1, 1, 1]
    assert len(summary(there, 5)) == 5


def test_a_second_summary_takes_the_place_of_the_first() -> None:
    there = reader(summary(holding(chain(1, 8))))
    there.recall("r0", summary(holding(chain(2, 8))))
    assert there.depths(chain(1, 8)) == {}
    assert there.depths(chain(2, 8)) == {"r0": 8}


def test_bounds_hold_at_insert() -> None:
    some = Recalled()
    some.take(R0, range(MAX_REPLICA + 10))
    assert len(some) == MAX_REPLICA
    for number in range(1, MAX_HASHES // MAX_REPLICA + 2):
        some.take(1 << number, range(number * MAX_REPLICA, (number + 1) * MAX_REPLICA))
    assert len(some) == MAX_HASHES
    some.take(R1, [0, 0])  # One that is there takes no room.
    assert list(some.depths([0])) == [(R0, 1), (R1, 1)]


# A fleet.


def test_a_fleet_that_recalls_sends_a_known_prompt_where_it_is() -> None:
    one, other = fleet_of(4), fleet_of(4)
    asks = [ask((f"p{number}", 6)) for number in range(20)]
    homes = {each.chain[0]: answered(one, each).replica for each in asks}
    for replica in one.replicas:
        other.snapshots.recall(replica.id, replica.epoch, one.snapshots.summary(replica.id).hashes, 0.0)
    for each in asks:
        route = routed(other, each)
        assert (route.replica, route.reason) == (homes[each.chain[0]], "holder")
        assert route.cached > 0


def test_what_is_recalled_counts_for_as_long_as_the_engine_lives() -> None:
    fleet = fleet_of(2)
    fleet.engine("r0", 5.0, None, 0.0)
    fleet.snapshots.recall("r0", 4.0, chain(1, 4), 0.0)  # Of an earlier life.
    fleet.snapshots.recall("r9", 4.0, chain(1, 4), 0.0)  # Of a stranger.
    assert fleet.residency.depths(chain(1, 4)) == {}
    fleet.snapshots.recall("r0", 5.0, chain(1, 4), 0.0)
    fleet.snapshots.recall("r1", None, chain(1, 2), 0.0)
    assert fleet.residency.depths(chain(1, 4)) == {"r0": 4, "r1": 2}
    fleet.snapshots.recall("r1", 7.0, chain(1, 2), 0.0)
    assert fleet.engine("r1", 8.0, None, 0.0)  # Not known yet when it was recalled: it has restarted since.
    assert fleet.residency.depths(chain(1, 4)) == {"r0": 4}


def test_what_is_recalled_is_forgotten_after_some_minutes() -> None:
    fleet = fleet_of(1)
    fleet.snapshots.recall("r0", None, chain(1, 4), 10.0)
    fleet.snapshots.tidy(310.0)
    assert fleet.residency.depths(chain(1, 4)) == {"r0": 4}
    fleet.snapshots.tidy(310.1)
    fleet.snapshots.tidy(999.0)
    assert fleet.residency.depths(chain(1, 4)) == {}


def test_a_lease_on_a_recalled_chain_ends_as_any_other() -> None:
    fleet = fleet_of(2)
    asked = ask(("p", 4))
    fleet.snapshots.recall("r1", None, asked.chain, 0.0)
    lease = leased(fleet, asked)
    assert lease.replica == "r1"
    lease.first_token(0.1)
    fleet.mark("r1", State.READY, "test", 0.1)
    assert recalled.summarise([], 5).hashes == []
    assert fleet.snapshots.summary("r1").hashes[:3] == [asked.chain[0], asked.chain[1], asked.chain[3]]
