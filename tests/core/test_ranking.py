"""A large fleet is searched, not scored whole: the choice is the same, and only some replicas are read for it."""

from collections.abc import Iterable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.core.baselines import LeastRequests
from router.core.fleet import Fleet, FleetSettings
from router.core.lease import Lease
from router.core.member import Replica, ReplicaSpec
from router.core.policy import Limits, PrefixAffinity
from router.core.ranking import ASKS, LEAST, SECONDS
from router.core.types import (
    Ask,
    Candidate,
    EngineSample,
    Few,
    Limit,
    Outcome,
    Reading,
    Reason,
    ReplicaId,
    Rng,
    Route,
    State,
    Usage,
    View,
    Wait,
)
from tests.core.worlds import MODEL, ask, fleet_of, leased, routed
from tests.fakes import FakeView, reading

PROMPTS = ([("s", 2), ("a", 3)], [("s", 2), ("b", 1)], [("c", 9)], [("s", 2), ("a", 3), ("t", 4)], [("d", 40)])


class Whole:
    """A view with nobody left out."""

    def __init__(self, view: View) -> None:
        self._view = view
        self.replicas = view.replicas
        self.ready, self.tokens = view.ready, view.tokens
        self.cold, self.returning, self.running = view.cold, view.returning, view.running
        self.lin, self.kv, self.output, self.tau = view.lin, view.kv, view.output, view.tau
        self.ramping = view.ramping

    def few(self) -> Few | None:
        return None

    def read(self, replica: ReplicaId) -> Reading | None:
        raise AssertionError("all have been read")

    def order(self) -> Iterable[ReplicaId]:
        return self._view.order()

    def order_at(self, depth: int) -> Iterable[ReplicaId]:
        return self._view.order_at(depth)


class Watching(PrefixAffinity):
    """It also decides by the whole fleet, and compares; `read` is how many replicas the last search looked at, and
    `ramped` how many searches knew somebody who had come empty."""

    searched = 0
    ramped = 0
    read = 0

    def pick(self, ask: Ask, view: View, now: float, rng: Rng) -> Candidate | Wait:
        picked = super().pick(ask, view, now, rng)
        few = view.few()
        if few is not None and ask.size:
            self.searched += 1
            self.ramped += view.ramping is not None
            self.read = len(self._search(few, view)[0])
        if ask.size:
            assert picked == super().pick(ask, Whole(view), now, rng)
        return picked


def settled(fleet: Fleet, now: float) -> None:
    for member in fleet.replicas:
        fleet.sign_of_life(member.id, now)


def befall(member: Replica, fleet: Fleet, now: float, rng: Random) -> None:
    """Something comes from a replica itself."""
    match rng.choice(["sample"] * 4 + ["refusal", "restart", "probe", "probe"]):
        case "sample":
            usage, waiting = rng.choice([0.2, 0.96]), rng.choice([0, 0, 3, 40])
            fleet.sampled(member.id, EngineSample(now, 5, waiting, usage, member.requests, member.unstarted))
        case "refusal":
            fleet.full(member.id, now + 0.05)
        case "restart":
            fleet.engine(member.id, now, None, now)
        case _:
            fleet.mark(member.id, rng.choice([State.READY, State.READY, State.DOWN]), "test", now)


def busy(seed: int, replicas: int, policy: PrefixAffinity, seconds: float = 2.0) -> Fleet:
    """A fleet of unequal speed with some seconds behind it: leases, tokens, ends, silent answers, gauges, refusals,
    restarts."""
    rng = Random(seed)
    specs = [ReplicaSpec(f"r{i}", rng.choice([None, 8000.0, 16_000.0, 17_000.0])) for i in range(replicas)]
    fleet = fleet_of(specs, policy, FleetSettings(max_concurrency=rng.choice([None, 9])))
    for spec in specs:
        fleet.engine(spec.id, 0.0, None, 0.0)
    now, pending = 0.0, list[Lease]()
    while now < seconds:
        now += rng.choice([0.0, 0.001, 0.004, 0.03])
        settled(fleet, now - rng.choice([0.0, 0.0, 2.95]))
        event = rng.random()
        if event < 0.5:
            asked = ask(
                *rng.choice(PROMPTS), (f"own {rng.randrange(30)}", rng.randrange(0, 20)), streams=rng.random() < 0.95
            )
            route = fleet.route(asked, now, rng)
            if isinstance(route, Route):
                pending.append(fleet.lease(route, asked, now))
        elif event < 0.85 and pending:
            lease = pending[rng.randrange(len(pending))]
            if lease.started:
                pending.remove(lease)
                lease.finish(rng.choice([Outcome.OK, Outcome.ABORTED]), Usage(900, rng.randrange(1, 900), 0), now)
            else:
                lease.first_token(now)
        else:
            befall(fleet.replicas[rng.randrange(replicas)], fleet, now, rng)
    return fleet


@given(seed=st.integers(0, 10_000), replicas=st.integers(LEAST + 12, LEAST + 40))
@settings(max_examples=6, deadline=None)
def test_a_search_decides_as_a_look_at_everybody_does(seed: int, replicas: int) -> None:
    policy = Watching(limits=Limits(max_backlog_seconds=4.0))
    busy(seed, replicas, policy)
    assert policy.searched > 5


def test_some_of_those_searches_know_who_has_come_empty() -> None:
    ramped = []
    for seed in range(4):
        policy = Watching(limits=Limits(max_backlog_seconds=4.0))
        busy(seed, LEAST + 20, policy)
        ramped.append(policy.ramped)
    assert max(ramped) > 5, ramped


def test_who_has_come_empty_is_read_for_every_ask_of_a_window() -> None:
    fleet = fleet_of(LEAST)
    fleet.join([ReplicaSpec("late")], 1.0)
    fleet.serves("late", {MODEL: {}})
    fleet.mark("late", State.READY, "test", 1.0)
    routed(fleet, ask(("a", 4)), 1.0)
    group = fleet._group(MODEL)
    assert group is not None
    assert group.ranking is not None
    assert [member.id for member in group.ranking.watched] == ["late"]


def test_only_a_part_of_a_large_fleet_is_read() -> None:
    policy = Watching()
    fleet = fleet_of(200, policy)
    reads = []
    for who in range(ASKS - 8):
        leased(fleet, ask((f"prompt {who}", 20)))
        reads.append(policy.read)
    assert max(reads[1:]) < 60


def test_a_window_ends_with_its_time_its_asks_and_the_fleet_that_it_is_of() -> None:
    fleet = fleet_of(LEAST)
    group = fleet._group(MODEL)
    assert group is not None

    def ranking(now: float) -> object:
        routed(fleet, ask(("a", 4)), now)
        return group.ranking

    first = ranking(1.0)
    assert ranking(1.0 + 0.9 * SECONDS) is first
    second = ranking(1.0 + SECONDS)
    assert second is not first
    assert [ranking(1.0 + SECONDS) is second for _ in range(LEAST // 8 + 1)] == [True] * (LEAST // 8) + [False]
    third = group.ranking
    fleet.mark("r0", State.DOWN, "test", 1.2)
    fleet.mark("r0", State.READY, "test", 1.2)
    assert ranking(1.15) is not third
    fourth = group.ranking
    fleet.adjust(PrefixAffinity(), FleetSettings())
    assert ranking(1.15) is not fourth


def test_a_small_fleet_has_no_ranking_and_a_retry_reads_everybody() -> None:
    small, large = fleet_of(LEAST - 1), fleet_of(LEAST)
    routed(small, ask(("a", 4)))
    routed(large, ask(("a", 4)), tried=["r0"])
    for fleet in (small, large):
        group = fleet._group(MODEL)
        assert group is not None
        assert group.ranking is None


def test_a_policy_that_does_not_score_sees_all_of_a_large_fleet() -> None:
    fleet = fleet_of(LEAST, LeastRequests())
    placed = {leased(fleet, ask((f"prompt {who}", 4))).replica for who in range(LEAST)}
    assert len(placed) == LEAST


def test_a_request_without_a_prompt_goes_to_the_least_loaded_of_a_large_fleet() -> None:
    fleet = fleet_of(LEAST)
    for who in range(LEAST - 1):
        prompt = ask((f"heavy {who}", 20))
        fleet.lease(routed(fleet, prompt)._replace(replica=f"r{who}", cached=0), prompt, 0.0)
    assert routed(fleet, Ask(MODEL)).replica == f"r{LEAST - 1}"


def test_whom_a_limit_cuts_is_told_of_a_large_fleet_too() -> None:
    fleet = fleet_of(LEAST, PrefixAffinity(limits=Limits(max_kv_usage=0.95)))
    fleet.sampled("r3", EngineSample(0.0, kv_usage=0.97))
    fleet.full("r4", 1.0)
    assert routed(fleet, ask(("a", 4))).cuts == {"r3": Limit.MAX_KV_USAGE, "r4": Limit.FULL}


def test_a_large_fleet_that_is_full_waits() -> None:
    fleet = fleet_of(LEAST)
    for member in fleet.replicas:
        fleet.full(member.id, 1.0)
    told = fleet.route(ask(("a", 4)), 0.5, Random(0))
    assert told == Wait(Limit.FULL, 0.5, {f"r{i}": Limit.FULL for i in range(LEAST)})
    assert isinstance(fleet.route(ask(("a", 4)), 1.0, Random(0)), Route)


@pytest.mark.parametrize("silent", [1, LEAST])
def test_who_drains_by_the_clock_is_read_for_every_ask(silent: int) -> None:
    policy = Watching()
    fleet = fleet_of(LEAST, policy)
    for who in range(silent):
        prompt = ask((f"silent {who}", 40), streams=False)
        fleet.lease(routed(fleet, prompt)._replace(replica=f"r{who}", cached=0), prompt, 0.0)
    route = routed(fleet, ask(("a", 4)), 0.2)
    group = fleet._group(MODEL)
    assert group is not None
    assert group.ranking is not None
    assert {member.id for member in group.ranking.watched} == {f"r{who}" for who in range(silent)}
    assert route.reason in {Reason.HOME, Reason.SPILL}


class FewView(FakeView):
    """The first replica is read at once, the others are in order."""

    def few(self) -> Few:
        return Few(self.replicas[:1], [(0.0, each.id) for each in self.replicas[1:]], self.replicas[1])


def test_a_ring_that_knows_none_of_a_large_fleet_is_an_error() -> None:
    view = FewView([reading("a"), reading("b"), reading("c")], ring=["x", "y"])
    with pytest.raises(ValueError, match="ring knows none"):
        PrefixAffinity().pick(ask(("a", 2)), view, 0.0, Random(0))
