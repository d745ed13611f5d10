"""The policies to compare with, each as its definition says."""

from collections import Counter
from random import Random

import pytest

from router.core.baselines import BASELINES, ConsistentHash, LeastRequests, RandomChoice, RoundRobin
from router.core.types import Ask, Candidate, Policy, Reason
from tests.core.worlds import ask, fleet_of, leased, routed
from tests.fakes import FakeView, LastChoice, reading

ASK = Ask("m", [1, 2, 3], 3, 4000)


def picks(policy: Policy, view: FakeView, count: int, asked: Ask = ASK) -> list[str]:
    rng = Random(11)
    found = [policy.pick(asked, view, 0.0, rng) for _ in range(count)]
    assert all(isinstance(each, Candidate) and each.reason is Reason.POLICY and not each.cuts for each in found)
    return [each.replica for each in found if isinstance(each, Candidate)]


def view_of(*requests: int) -> FakeView:
    return FakeView([reading(f"r{i}", requests=count) for i, count in enumerate(requests)])


def test_round_robin_takes_turns_from_the_first_on_whatever_the_load() -> None:
    assert picks(RoundRobin(), view_of(99, 0, 5), 7) == ["r0", "r1", "r2", "r0", "r1", "r2", "r0"]


def test_round_robin_goes_on_when_a_replica_leaves() -> None:
    policy = RoundRobin()
    assert picks(policy, view_of(0, 0, 0), 2) == ["r0", "r1"]
    assert picks(policy, view_of(0, 0), 3) == ["r0", "r1", "r0"]


def test_two_round_robins_do_not_share_a_turn() -> None:
    assert picks(RoundRobin(), view_of(0, 0), 1) == picks(RoundRobin(), view_of(0, 0), 1)


def test_random_is_even_and_blind_to_load() -> None:
    counts = Counter(picks(RandomChoice(), view_of(99, 0, 5), 3000))
    assert set(counts) == {"r0", "r1", "r2"}
    assert all(900 < count < 1100 for count in counts.values())


def test_random_draws_from_the_rng_that_it_is_handed() -> None:
    assert RandomChoice().pick(ASK, view_of(0, 0, 0), 0.0, LastChoice()).replica == "r2"


def test_least_requests_takes_the_fewest_in_flight_however_much_they_carry() -> None:
    few, many = reading("a", requests=2, backlog=90_000.0), reading("b", requests=3)
    assert LeastRequests().pick(ASK, FakeView([many, few]), 0.0, LastChoice()).replica == "a"


def test_least_requests_draws_a_tie_among_the_least_only() -> None:
    rng = LastChoice()
    assert LeastRequests().pick(ASK, view_of(1, 0, 2, 0), 0.0, rng).replica == "r3"
    assert rng.drawn == [["r1", "r3"]]


def test_consistent_hash_goes_home_load_or_no_load() -> None:
    view = view_of(0, 0, 99)
    view.ring_at = {1: ["r2", "r0", "r1"], 4: ["r1", "r0", "r2"]}
    assert picks(ConsistentHash(), view, 3) == ["r2"] * 3
    assert picks(ConsistentHash(4), view, 3) == ["r1"] * 3


def test_consistent_hash_walks_on_past_a_replica_that_is_not_eligible() -> None:
    view = view_of(0, 0)
    view.ring_at = {1: ["r7", "r1", "r0"]}
    assert picks(ConsistentHash(), view, 1) == ["r1"]


def test_consistent_hash_keeps_a_fixed_depth_together_however_the_rest_goes_on() -> None:
    fleet = fleet_of(8, ConsistentHash(2))
    homes = {routed(fleet, ask(("head", 2), (f"rest {i}", 3))).replica for i in range(20)}
    assert len(homes) == 1
    others = {routed(fleet, ask(("head", 1), (f"rest {i}", 3))).replica for i in range(40)}
    assert len(others) > 4


def test_consistent_hash_places_a_shorter_prompt_by_all_of_it() -> None:
    fleet = fleet_of(8, ConsistentHash(4))
    assert len({routed(fleet, ask((f"short {i}", 2))).replica for i in range(40)}) > 4
    assert routed(fleet, ask(("short", 2))).replica == routed(fleet, ask(("short", 2))).replica


@pytest.mark.parametrize("name", list(BASELINES))
def test_each_name_of_the_configuration_makes_a_new_policy_that_routes(name: str) -> None:
    policy = BASELINES[name]()
    assert policy is not BASELINES[name]()
    fleet = fleet_of(3, policy)
    placed = Counter(leased(fleet, ask((f"prompt {i}", 2))).replica for i in range(30))
    assert sum(placed.values()) == 30
    assert routed(fleet, ask(("x", 1))).reason is Reason.POLICY


def test_the_names_of_the_configuration_stand_for_these_policies() -> None:
    assert type(BASELINES["round_robin"]()) is RoundRobin
    assert type(BASELINES["random"]()) is RandomChoice
    assert type(BASELINES["least_requests"]()) is LeastRequests
    assert type(BASELINES["consistent_hash"]()) is ConsistentHash
