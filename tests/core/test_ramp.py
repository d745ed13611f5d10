"""A replica that comes empty: who does, how it is slowed, what it gets all the same; a new fleet is not slowed."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.core.ejection import EjectionSettings
from router.core.fleet import Fleet, FleetSettings
from router.core.lease import Lease
from router.core.member import ReplicaSpec
from router.core.policy import Limits, PrefixAffinity, Weights
from router.core.ramp import SECONDS, Entry, ramping
from router.core.types import Ask, Outcome, Ramping, Reading, ReplicaId, Route, State, Wait
from tests.core.worlds import MODEL, answered, ask, fleet_of, leased, routed
from tests.fakes import FakeView, changed, reading


def joined(fleet: Fleet, replica: ReplicaId, now: float) -> None:
    """A replica joins later than the first, and is ready at once."""
    fleet.join([ReplicaSpec(replica)], now)
    fleet.serves(replica, {MODEL: {}})
    fleet.mark(replica, State.READY, "test", now)


def is_new(fleet: Fleet, replica: ReplicaId, now: float = 0.0) -> bool:
    entry = fleet.replica(replica).entry
    return entry is not None and entry.left(SECONDS, now) > 0


# Who comes empty.


def test_who_joins_later_than_the_first_comes_empty_and_those_that_a_router_begins_with_do_not() -> None:
    fleet = fleet_of(2)
    fleet.join([ReplicaSpec("with them")], 0.0)
    fleet.mark("with them", State.READY, "test", 3.0)
    assert not is_new(fleet, "r0")
    assert not is_new(fleet, "with them", 3.0)
    joined(fleet, "late", 5.0)
    assert is_new(fleet, "late", 5.0)
    assert not is_new(fleet, "late", 5.0 + SECONDS)


@pytest.mark.parametrize("state", [State.READY, State.DOWN, State.DRAINING])
def test_who_has_restarted_comes_empty_when_it_is_ready_and_at_once_where_it_was_never_seen_down(state: State) -> None:
    fleet = fleet_of(2)
    fleet.engine("r0", 1.0, None, 0.0)
    answered(fleet, ask(("a", 4)))
    answered(fleet, ask(("b", 4)))
    fleet.mark("r0", state, "test", 1.0)
    assert fleet.engine("r0", 2.0, None, 3.0)
    assert is_new(fleet, "r0", 3.0) == (state is State.READY)
    fleet.mark("r0", State.READY, "test", 4.0)
    assert is_new(fleet, "r0", 4.0)


def test_who_restarts_while_it_is_ejected_comes_empty_when_it_is_tried_again() -> None:
    fleet = fleet_of(3, settings=FleetSettings(ejection=EjectionSettings(failures=1, first=2.0)))
    fleet.engine("r0", 1.0, None, 0.0)
    asked = ask(("a", 4))
    lease = fleet.lease(routed(fleet, asked)._replace(replica="r0"), asked, 0.0)
    lease.finish(Outcome.FAILED, None, 1.0)
    assert fleet.ended(lease, True, 1.0)
    assert fleet.engine("r0", 2.0, None, 1.5)
    assert not is_new(fleet, "r0", 1.5)
    assert fleet.readmit(3.0)
    assert is_new(fleet, "r0", 3.0)


def test_who_is_back_with_what_it_held_does_not_come_empty() -> None:
    fleet = fleet_of(1)
    answered(fleet, ask(("a", 4)))
    fleet.mark("r0", State.DOWN, "a probe was lost", 1.0)
    fleet.mark("r0", State.READY, "test", 2.0)
    assert not is_new(fleet, "r0", 2.0)


def test_who_was_down_and_has_never_held_anything_comes_empty_unless_a_snapshot_says_otherwise() -> None:
    fleet = fleet_of(2)
    fleet.snapshots.recall("r1", 1.0, [11, 12], 0.0)
    for replica in ("r0", "r1"):
        fleet.mark(replica, State.DOWN, "test", 1.0)
        fleet.mark(replica, State.READY, "test", 2.0)
    assert is_new(fleet, "r0", 2.0)
    assert not is_new(fleet, "r1", 2.0)


def test_an_entry_is_forgotten_when_its_ramp_is_over() -> None:
    fleet = fleet_of(2)
    joined(fleet, "late", 1.0)
    routed(fleet, ask(("a", 4)), SECONDS)
    assert fleet.replica("late").entry is not None
    routed(fleet, ask(("a", 4)), 1.0 + SECONDS)
    assert fleet.replica("late").entry is None
    fleet.mark("r0", State.DOWN, "test", 2.0 + SECONDS)
    assert not is_new(fleet, "late", 2.0 + SECONDS)


# How far it is.


def test_a_ramp_shrinks_with_age_and_with_the_part_of_the_prompts_read_there_that_was_cached() -> None:
    entry = Entry(10.0)
    assert [entry.left(20.0, now) for now in (10.0, 15.0, 29.0, 30.0, 40.0)] == pytest.approx([1, 0.75, 0.05, 0, 0])
    entry.answered(100, 0)
    assert entry.left(20.0, 15.0) == pytest.approx(0.75)
    entry.answered(900, 600)
    assert entry.left(20.0, 15.0) == pytest.approx(0.75 * 0.4)
    assert entry.left(0.0, 10.0) == 0.0


def test_a_prompt_counts_when_its_first_token_comes() -> None:
    fleet = fleet_of(1)
    joined(fleet, "late", 1.0)
    fleet.mark("r0", State.DOWN, "test", 1.0)
    entry = fleet.replica("late").entry
    assert entry is not None
    first, second = leased(fleet, ask(("a", 4))), leased(fleet, ask(("a", 4)))
    assert (entry.tokens, entry.cached) == (0, 0)
    first.first_token(2.0)
    assert (entry.tokens, entry.cached) == (512, 0)
    second.first_token(2.0)
    assert (entry.tokens, entry.cached) == (1024, 512)


def test_of_those_to_choose_from_only_the_differences_count() -> None:
    new = {"a": Entry(0.0), "b": Entry(5.0), "gone": Entry(9.0)}
    two = [reading("a", running=4.0, context=100.0, recent=10.0), reading("b", running=2.0)]
    assert ramping(new, two, 10.0, 6.0) == Ramping({"b": 0.9 - 0.4}, 3.0, 50.0, 5.0)
    three = ramping(new, [*two, reading("old")], 10.0, 6.0)
    assert three is not None
    assert three.left == {"a": pytest.approx(0.4), "b": pytest.approx(0.9)}
    assert ramping(new, two, 10.0, 15.0) is None
    assert ramping({}, two, 10.0, 0.0) is None


# What it does to a score: a prompt of 1,000 tokens at 10,000 a second.


def ramp_of(new: Reading, view: FakeView) -> float:
    return PrefixAffinity(Weights(decode=1.0)).lines(new, view)[4]


def test_a_ramp_adds_its_part_of_what_decoding_costs_beside_the_mean_load() -> None:
    busy, new = reading("a", running=3.0, context=9000.0, recent=10_000.0), reading("b")
    view = FakeView([busy, new], ramping=Ramping({"b": 0.5}, 3.0, 9000.0, 10_000.0))
    policy = PrefixAffinity(Weights(decode=1.0))
    assert policy.lines(busy, view)[4] == 0.0
    assert policy.lines(new, view)[4] == pytest.approx(0.5 * sum(policy.lines(busy, view)[2:4]))
    assert policy.lines(changed(new, recent=5.0), FakeView([busy, new]))[4] == 0.0


def test_what_the_ring_gives_it_is_not_slowed_and_what_has_no_prompt_has_no_home() -> None:
    load = Ramping({"b": 1.0}, 3.0, 9000.0, 0.0)
    new = reading("b", uncached=1.0, cold=1.0)
    assert ramp_of(new, FakeView([reading("a"), new], ramping=load, ring=["b", "a"])) == 0.0
    assert ramp_of(new, FakeView([reading("a"), new], ramping=load, ring=["a", "b"])) > 0.0
    assert ramp_of(new, FakeView([reading("a"), new], tokens=0.0, ramping=load, ring=["b", "a"])) > 0.0


def test_hot_tokens_are_computed_there_as_if_they_cost_nothing() -> None:
    view = FakeView([reading("a"), reading("b")], ramping=Ramping({"b": 1.0}, 0.0, 0.0, 0.0), ring=["a", "b"])
    assert ramp_of(reading("b", cold=200.0), view) == pytest.approx(-0.08)
    assert ramp_of(reading("a", cold=200.0), view) == 0.0


# In a fleet.


def test_who_comes_empty_soon_holds_what_everybody_asks_for_however_well_the_others_bear_it() -> None:
    def places(seconds: float) -> list[ReplicaId]:
        fleet = fleet_of(3, settings=FleetSettings(ramp=seconds))
        told = []
        for number in range(300):
            now = number * 0.1
            if number == 100:
                joined(fleet, "late", now)
            told.append(answered(fleet, ask(("preamble", 100), (f"own {number}", 1)), now).replica)
        return told[100:]

    assert "late" not in places(0.0)
    assert places(SECONDS).index("late") < 40


def test_who_comes_empty_is_not_sent_all_that_is_new() -> None:
    """Everybody runs some long answers, so that who runs none would be the least for each new prompt."""

    def share(seconds: float) -> int:
        fleet = fleet_of(4, settings=FleetSettings(ramp=seconds))
        for number in range(80):
            leased(fleet, ask((f"long {number}", 30))).first_token(0.0)
        joined(fleet, "late", 100.0)
        for member in fleet.replicas:
            fleet.sign_of_life(member.id, 100.0)
        leases = [leased(fleet, ask((f"new {number}", 1)), 100.0) for number in range(20)]
        return [lease.replica for lease in leases].count("late")

    assert share(0.0) >= 15
    assert 1 <= share(SECONDS) <= 10


@given(seed=st.integers(0, 10_000), queued=st.integers(1, 6), most=st.none() | st.integers(1, 6))
@settings(max_examples=25, deadline=None)
def test_who_comes_empty_is_never_above_its_limits(seed: int, queued: int, most: int | None) -> None:
    rng = Random(seed)
    fleet = fleet_of(3, PrefixAffinity(limits=Limits(queued)), FleetSettings(max_concurrency=most))
    now, pending, waited = 0.0, list[Lease](), 0
    for number in range(150):
        now += rng.choice([0.0, 0.01, 0.2])
        if number == 20:
            joined(fleet, "late", now)
        for member in fleet.replicas:
            fleet.sign_of_life(member.id, now)
        asked = ask(("s", rng.choice([0, 40])), (f"own {rng.randrange(40)}", rng.randrange(1, 9)))
        decided = fleet.route(asked, now, rng)
        waited += isinstance(decided, Wait)
        if isinstance(decided, Route):
            pending.append(fleet.lease(decided, asked, now))
        for member in fleet.replicas:
            assert member.unstarted <= queued
            assert most is None or member.requests <= most
        if pending and rng.random() < 0.4:
            lease = pending.pop(rng.randrange(len(pending)))
            lease.first_token(now)
            lease.finish(Outcome.OK, None, now)
    assert waited > 0


@given(seed=st.integers(0, 10_000))
@settings(max_examples=15, deadline=None)
def test_a_fleet_in_which_all_are_new_is_not_slowed_at_all(seed: int) -> None:
    def routes(seconds: float) -> list[Route]:
        rng = Random(seed)
        fleet = Fleet(PrefixAffinity(), FleetSettings(ramp=seconds))
        fleet.join([ReplicaSpec("first")], 0.0)
        for replica in ("a", "b", "c"):
            joined(fleet, replica, 1.0)
            assert fleet.replica(replica).entry is not None
        fleet.leave("first")
        now, told = 1.0, []
        for _ in range(30):
            now += rng.choice([0.0, 0.05])
            asked = ask(("s", rng.choice([0, 9])), (f"own {rng.randrange(6)}", rng.randrange(9)), rest=b"x")
            told.append(routed(fleet, asked, now))
            fleet.lease(told[-1], asked, now)
        return told

    assert routes(SECONDS) == routes(0.0)


def test_an_ask_without_a_prompt_is_slowed_too() -> None:
    fleet = fleet_of(1)
    for _ in range(9):
        leased(fleet, ask(("long", 30))).first_token(0.0)
    joined(fleet, "late", 1.0)
    placed = [leased(fleet, Ask(MODEL), 1.0).replica for _ in range(4)]
    assert placed == ["late"] * 4  # Half of the load of two is not yet the load of one.
