"""Who is ejected for its failures, for how long, and how it comes back: by a hand-turned clock, in any order."""

from collections import Counter
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from router.core.baselines import BASELINES
from router.core.ejection import Conduct, EjectionSettings
from router.core.fleet import Fleet, FleetSettings
from router.core.lease import Lease
from router.core.member import Transition
from router.core.policy import PrefixAffinity
from router.core.types import Limit, Outcome, Policy, Refusal, Route, State, Wait
from tests.core.worlds import MODEL, ask, fleet_of, routed
from tests.fakes import Told

PROMPT = ask(("a", 8))


def send(
    fleet: Fleet, replica: str, now: float, *, fails: bool = False, ends: float | None = None
) -> Transition | None:
    """A request to this replica, from `now` to `ends` (default: at once)."""
    route = routed(fleet, PROMPT, now)._replace(replica=replica)
    lease = fleet.lease(route, PROMPT, now)
    ends = now if ends is None else ends
    if not fails:
        lease.first_token(ends)
    lease.finish(Outcome.FAILED if fails else Outcome.OK, None, ends)
    return fleet.ended(lease, fails, ends)


def failing(fleet: Fleet, replica: str, now: float, times: int = 5) -> Transition | None:
    """So many failures at once; what came of the last."""
    for _ in range(times - 1):
        assert send(fleet, replica, now, fails=True) is None
    return send(fleet, replica, now, fails=True)


def states(fleet: Fleet) -> list[State]:
    return [member.state for member in fleet.replicas]


def ids(transitions: list[Transition]) -> list[tuple[str, State, State]]:
    return [(each.replica, each.old, each.new) for each in transitions]


# When.


def test_five_failures_that_are_all_there_is_eject_a_replica() -> None:
    fleet = fleet_of(4)
    told = failing(fleet, "r1", 100.0)
    reason = "5 of the last 5 requests failed, for 5 s"
    assert told == Transition("r1", State.READY, State.EJECTED, reason)
    member = fleet.replica("r1")
    assert (member.state, member.since, member.reason) == (State.EJECTED, 100.0, reason)
    assert [each.id for each in fleet.ready] == ["r0", "r2", "r3"]


def test_four_failures_are_no_volume() -> None:
    fleet = fleet_of(4)
    for second in range(0, 400, 10):
        assert failing(fleet, "r1", float(second), 4) is None
    assert states(fleet) == [State.READY] * 4


@pytest.mark.parametrize(("good", "ejected"), [(5, True), (6, False)])
def test_half_of_the_sends_must_fail_when_some_are_good(good: int, ejected: bool) -> None:
    fleet = fleet_of(4)
    for _ in range(good - 1):
        send(fleet, "r1", 0.0)
    failing(fleet, "r1", 1.0, 4)
    send(fleet, "r1", 1.0)
    assert (send(fleet, "r1", 1.0, fails=True) is not None) is ejected


def test_five_in_a_row_are_enough_however_many_were_good_before() -> None:
    fleet = fleet_of(4)
    for _ in range(1000):
        send(fleet, "r1", 0.0)
    assert failing(fleet, "r1", 1.0) is not None


def test_five_in_a_row_over_a_long_time_are_no_volume() -> None:
    fleet = fleet_of(4)
    for _ in range(100):
        send(fleet, "r1", 0.0)
    for second in range(0, 90, 3):
        assert send(fleet, "r1", float(second), fails=True) is None


def test_a_few_connection_errors_in_much_traffic_eject_nobody() -> None:
    """CASES A42: one per cent over three replicas."""
    fleet, rng = fleet_of(3), Random(1)
    for i in range(30_000):
        assert send(fleet, f"r{i % 3}", i * 0.01, fails=rng.random() < 0.01) is None


def test_what_failed_more_than_ten_seconds_ago_is_forgotten() -> None:
    fleet = fleet_of(4)
    assert failing(fleet, "r1", 0.0, 4) is None
    assert send(fleet, "r1", 10.0, fails=True) is None


def test_without_a_number_of_failures_nobody_is_ejected() -> None:
    fleet = fleet_of(4, settings=FleetSettings(ejection=EjectionSettings(failures=None)))
    for second in range(20):
        assert send(fleet, "r1", float(second), fails=True) is None
    assert states(fleet) == [State.READY] * 4


def test_a_send_from_before_the_present_state_says_nothing_of_it() -> None:
    """Time-outs of what hung before it came back must not take it out again."""
    fleet = fleet_of(4)
    old = [fleet.lease(routed(fleet, PROMPT)._replace(replica="r1"), PROMPT, 0.0) for _ in range(9)]
    failing(fleet, "r1", 1.0)
    for lease in old[:4]:
        assert fleet.ended(lease, True, 2.0) is None
    fleet.readmit(6.0)
    for lease in old[4:]:
        assert fleet.ended(lease, True, 7.0) is None
    assert fleet.replica("r1").conduct.on_trial
    assert fleet.replica("r1").state is State.READY


# For how long.


def test_each_ejection_is_twice_as_long_up_to_the_longest() -> None:
    conduct, limits = Conduct(), EjectionSettings(5, 5.0, 60.0)
    now, lengths = 0.0, []
    for _ in range(6):
        lengths.append(conduct.eject(limits, now))
        assert conduct.until == now + lengths[-1]
        now = conduct.until + 1.0
    assert lengths == [5.0, 10.0, 20.0, 40.0, 60.0, 60.0]


def test_a_calm_time_takes_one_ejection_back() -> None:
    conduct, limits = Conduct(), EjectionSettings(5, 5.0, 60.0)
    for _ in range(3):
        conduct.eject(limits, conduct.until)
    assert conduct.eject(limits, conduct.until + 60.0) == 20.0, "three, and one is forgotten"
    assert conduct.eject(limits, conduct.until + 10 * 60.0) == 5.0, "no more are forgotten than there were"


def test_a_first_time_longer_than_the_longest_is_the_longest() -> None:
    assert Conduct().eject(EjectionSettings(5, 90.0, 60.0), 0.0) == 60.0


def test_an_ejection_cut_short_does_not_count_as_calm() -> None:
    conduct, limits = Conduct(), EjectionSettings(5, 60.0, 60.0)
    conduct.eject(limits, 0.0)
    assert conduct.eject(limits, 0.0) == 60.0
    assert conduct._ejections == 2


# The way back.


def ejected(replicas: int = 4) -> Fleet:
    """A fleet whose r1 was ejected at 100 for five seconds."""
    fleet = fleet_of(replicas)
    assert failing(fleet, "r1", 100.0) is not None
    return fleet


def test_a_probe_does_not_end_an_ejection() -> None:
    fleet = ejected()
    assert fleet.mark("r1", State.READY, "answers /health", 101.0) is None
    assert fleet.replica("r1").state is State.EJECTED


def test_an_ejected_replica_is_taken_back_when_its_time_is_over_and_not_before() -> None:
    fleet = ejected()
    assert fleet.readmit(104.9) == []
    assert ids(fleet.readmit(105.0)) == [("r1", State.EJECTED, State.READY)]
    assert fleet.readmit(105.0) == []
    assert fleet.replica("r1").reason == "its time is over: on trial"


def cut(fleet: Fleet, now: float) -> Limit | None:
    return routed(fleet, PROMPT, now).cuts.get("r1")


def test_on_trial_it_gets_one_request_at_a_time_until_a_first_token() -> None:
    fleet = ejected()
    fleet.readmit(105.0)
    fleet.sign_of_life("r1", 105.0)
    assert cut(fleet, 105.0) is None
    lease = fleet.lease(routed(fleet, PROMPT, 105.0)._replace(replica="r1"), PROMPT, 105.0)
    assert cut(fleet, 105.0) is Limit.TRIAL
    lease.first_token(105.1)
    assert cut(fleet, 105.1) is None
    assert not fleet.replica("r1").out
    lease.finish(Outcome.ABORTED, None, 106.0)


def test_a_client_that_leaves_leaves_the_trial_to_the_next() -> None:
    fleet = ejected()
    fleet.readmit(105.0)
    lease = fleet.lease(routed(fleet, PROMPT, 105.0)._replace(replica="r1"), PROMPT, 105.0)
    lease.finish(Outcome.ABORTED, None, 106.0)
    assert cut(fleet, 106.0) is None
    assert fleet.replica("r1").conduct.on_trial


def test_a_good_answer_without_a_token_ends_the_trial_too() -> None:
    """A 400: it works, and the request was bad."""
    fleet = ejected()
    fleet.readmit(105.0)
    lease = fleet.lease(routed(fleet, PROMPT, 105.0)._replace(replica="r1"), PROMPT, 105.0)
    lease.finish(Outcome.OK, None, 105.5)
    assert fleet.ended(lease, False, 105.5) is None
    assert not fleet.replica("r1").conduct.on_trial


def test_one_failure_on_trial_ejects_it_for_twice_as_long() -> None:
    fleet = ejected()
    fleet.readmit(120.0)
    told = send(fleet, "r1", 120.0, fails=True)
    assert told == Transition("r1", State.READY, State.EJECTED, "1 of the last 1 requests failed, for 10 s")
    assert fleet.readmit(129.9) == []
    assert len(fleet.readmit(130.0)) == 1


def test_after_a_trial_passed_it_takes_volume_again() -> None:
    fleet = ejected()
    fleet.readmit(120.0)
    send(fleet, "r1", 120.0)
    assert failing(fleet, "r1", 121.0, 4) is None
    assert send(fleet, "r1", 121.0, fails=True) is not None


@pytest.mark.parametrize("state", [State.DOWN, State.DRAINING, State.GONE])
def test_what_takes_an_ejected_replica_out_for_another_reason_ends_the_ejection(state: State) -> None:
    fleet = ejected()
    assert fleet.mark("r1", state, "no answer", 101.0) == Transition("r1", State.EJECTED, state, "no answer")
    assert fleet.readmit(200.0) == []
    assert fleet.mark("r1", State.READY, "answers /health", 201.0) is not None
    assert not fleet.replica("r1").out


def test_a_replica_that_goes_down_on_trial_comes_back_without_one() -> None:
    fleet = ejected()
    fleet.readmit(105.0)
    fleet.mark("r1", State.DOWN, "no answer", 106.0)
    fleet.mark("r1", State.READY, "answers /health", 107.0)
    assert not fleet.replica("r1").conduct.on_trial


# Never more than half.


@pytest.mark.parametrize(("replicas", "most"), [(1, 0), (2, 1), (3, 1), (4, 2), (5, 2), (8, 4)])
def test_never_more_than_half_are_ejected(replicas: int, most: int) -> None:
    fleet = fleet_of(replicas)
    for _ in range(3):
        for i in range(replicas):
            for _ in range(9):
                send(fleet, f"r{i}", 1.0, fails=True)
    assert states(fleet).count(State.EJECTED) == most


def test_those_that_are_down_do_not_count_as_a_part_of_the_fleet() -> None:
    fleet = fleet_of(4)
    fleet.mark("r2", State.DOWN, "test", 0.0)
    fleet.mark("r3", State.DOWN, "test", 0.0)
    assert failing(fleet, "r0", 1.0) is not None
    assert failing(fleet, "r1", 1.0) is None


def test_at_most_half_of_a_models_replicas_are_ejected() -> None:
    """Two models on two replicas each: half of the fleet would be all of one model."""
    fleet = fleet_of(4)
    for replica, model in (("r0", "a"), ("r1", "a"), ("r2", "b"), ("r3", "b")):
        fleet.serves(replica, {model: {}})
    fails = ask(("a", 8), model=None)
    for replica in ("r0", "r1"):
        for _ in range(9):
            route = routed(fleet, fails, 1.0)._replace(replica=replica)
            lease = fleet.lease(route, fails, 1.0)
            lease.finish(Outcome.FAILED, None, 1.0)
            fleet.ended(lease, True, 1.0)
    assert states(fleet) == [State.EJECTED, State.READY, State.READY, State.READY]


def test_when_the_others_go_the_ejected_are_taken_back_without_a_trial() -> None:
    fleet = fleet_of(4)
    failing(fleet, "r1", 100.0)
    failing(fleet, "r2", 101.0)
    fleet.mark("r0", State.DOWN, "no answer", 102.0)
    assert ids(fleet.readmit(102.0)) == [("r1", State.EJECTED, State.READY)], "who was ejected first, first"
    assert not fleet.replica("r1").conduct.on_trial
    assert fleet.replica("r1").reason == "needed: too few others are ready"
    fleet.mark("r3", State.DOWN, "no answer", 103.0)
    assert fleet.readmit(103.0) == [], "one of two may be out"
    fleet.mark("r1", State.DOWN, "no answer", 104.0)
    assert ids(fleet.readmit(104.0)) == [("r2", State.EJECTED, State.READY)]


def test_one_on_trial_is_not_held_to_one_request_when_it_is_needed() -> None:
    fleet = ejected(2)
    fleet.readmit(105.0)
    fleet.mark("r0", State.DOWN, "no answer", 106.0)
    assert fleet.readmit(106.0) == []
    assert not fleet.replica("r1").conduct.on_trial


def test_the_last_replica_on_trial_may_fail_and_stays() -> None:
    fleet = ejected(2)
    fleet.readmit(105.0)
    fleet.mark("r0", State.DOWN, "no answer", 106.0)  # And nobody has asked who is needed.
    assert send(fleet, "r1", 107.0, fails=True) is None
    assert (fleet.replica("r1").state, fleet.replica("r1").conduct.on_trial) == (State.READY, False)


# What it is for.


@pytest.mark.parametrize("policy", [PrefixAffinity, *BASELINES.values()])
def test_a_replica_that_fails_fast_does_not_attract_the_traffic(policy: type[Policy]) -> None:
    """One of four answers 500 in a millisecond, so that its load is always the least; the others take half a second.

    Twenty requests a second for a minute, half of them with a prefix that the broken one holds.
    """
    fleet, rng = fleet_of(4, policy()), Random(0)
    open_leases: list[tuple[float, Lease]] = []
    sent = Counter[bool]()
    shared = ask(("a", 8))
    fleet.lease(routed(fleet, shared)._replace(replica="r1"), shared, 0.0).finish(Outcome.ABORTED, None, 0.0)
    for i in range(1200):
        now = i * 0.05
        while open_leases and open_leases[0][0] <= now:
            at, lease = open_leases.pop(0)
            lease.finish(Outcome.OK, None, at)
            fleet.ended(lease, False, at)
        for replica in fleet.replicas:
            fleet.sign_of_life(replica.id, now)
        fleet.readmit(now)
        asked = ask(("a", 8), (f"q{i}", 2)) if i % 2 else ask((f"q{i}", 4))
        decision = fleet.route(asked, now, rng)
        assert isinstance(decision, Route)
        lease = fleet.lease(decision, asked, now)
        if decision.replica == "r1":
            lease.finish(Outcome.FAILED, None, now + 0.001)
            fleet.ended(lease, True, now + 0.001)
        else:
            lease.first_token(now + 0.05)
            open_leases.append((now + 0.5, lease))
        sent[decision.replica == "r1"] += 1
    assert sent[True] / 1200 < 0.01
    assert sent[True] <= 5 + 4, "five eject it; then one at 5, 15, 35 s and none before 75 s"


# Any order of events.

REPLICAS = ("r0", "r1", "r2", "r3", "r4")


class Failures(RuleBasedStateMachine):
    """Five replicas of two models that fail, go and come back. As the proxy does, readmit follows every mark."""

    def __init__(self) -> None:
        super().__init__()
        self.told = Told()
        self.fleet = fleet_of(5, self.told)
        for replica in REPLICAS[:3]:
            self.fleet.serves(replica, {MODEL: {}, "other": {}})
        self.now = 0.0
        self.known = dict.fromkeys(REPLICAS, State.READY)

    def tell(self, transition: Transition | None) -> None:
        """Every change of state is told, once, with the state that was before."""
        if transition is not None:
            assert self.known[transition.replica] is transition.old
            self.known[transition.replica] = transition.new

    @rule(replica=st.sampled_from(REPLICAS), fails=st.sampled_from([True, True, True, False]), times=st.integers(1, 8))
    def sends(self, replica: str, fails: bool, times: int) -> None:
        for _ in range(times):
            self.told.replica = replica
            match self.fleet.route(PROMPT, self.now, Random(0)):
                case Route() as route:
                    lease = self.fleet.lease(route, PROMPT, self.now)
                    lease.finish(Outcome.FAILED if fails else Outcome.OK, None, self.now)
                    self.tell(self.fleet.ended(lease, fails, self.now))
                case Wait() | Refusal():
                    assert not self.fleet.ready

    @rule(replica=st.sampled_from(REPLICAS), state=st.sampled_from([State.READY, State.READY, State.DOWN]))
    def mark(self, replica: str, state: State) -> None:
        self.tell(self.fleet.mark(replica, state, "test", self.now))
        self.readmit()

    @rule(seconds=st.sampled_from([0.5, 3.0, 20.0, 100.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.readmit()

    def readmit(self) -> None:
        for transition in self.fleet.readmit(self.now):
            self.tell(transition)

    @invariant()
    def at_most_half_of_those_alive_are_out_in_the_fleet_and_of_each_model(self) -> None:
        for model in (None, MODEL, "other"):
            members = [each for each in self.fleet.replicas if model is None or model in each.models]
            alive = [each for each in members if each.state in {State.READY, State.EJECTED}]
            out = [each for each in alive if each.state is State.EJECTED or each.conduct.on_trial]
            assert len(out) <= len(alive) / 2
            ready = [each for each in alive if each.state is State.READY and not each.conduct.on_trial]
            assert ready or not alive, "the last one serves"

    @invariant()
    def every_change_was_told(self) -> None:
        assert {member.id: member.state for member in self.fleet.replicas} == self.known

    def teardown(self) -> None:
        """Whoever is ejected comes back."""
        self.now += EjectionSettings().longest
        self.readmit()
        assert State.EJECTED not in self.known.values()
        assert {each.id for each in self.fleet.ready} == {
            id for id, state in self.known.items() if state is State.READY
        }


Failures.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestFailures = Failures.TestCase
