"""Any interleaving of asks, leases, tokens, ends and news leaves every counter where a list of the open leases says."""

from random import Random
from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from router.core.fleet import FleetSettings
from router.core.lease import Lease
from router.core.types import Ask, EngineSample, Outcome, Refusal, Route, State, Usage, Wait
from tests.core.worlds import MODEL, ask, fleet_of

REPLICAS = ("r0", "r1", "r2")
PROMPTS = ([("s", 2), ("a", 3)], [("s", 2), ("b", 1)], [("c", 9)], [("s", 2), ("a", 3), ("t", 4)], [("d", 40)])


class Open(NamedTuple):
    """A lease, and what it must have charged."""

    lease: Lease
    tokens: int
    uncached: int


class Accounts(RuleBasedStateMachine):
    """Three replicas of 30 blocks each, so that placements evict, do not fit, and fail."""

    def __init__(self) -> None:
        super().__init__()
        self.fleet = fleet_of(3, settings=FleetSettings(index_blocks=90, max_concurrency=6))
        self.now = 0.0
        self.open: list[Open] = []
        self.rng = Random(0)

    @rule(prompt=st.sampled_from(PROMPTS), streams=st.booleans(), tried=st.sets(st.sampled_from(REPLICAS), max_size=2))
    def route_and_lease(self, prompt: list[tuple[str, int]], streams: bool, tried: set[str]) -> None:
        self.take(ask(*prompt, streams=streams), tried)

    @rule(model=st.sampled_from([MODEL, None]), streams=st.booleans())
    def route_and_lease_without_a_prompt(self, model: str | None, streams: bool) -> None:
        self.take(Ask(model, streams=streams), set())

    def take(self, asked: Ask, tried: set[str]) -> None:
        before = self.counters()
        match self.fleet.route(asked, self.now, self.rng, tried):
            case Route() as route:
                assert route.replica not in tried
                assert 0 <= route.cached <= route.reachable <= route.tokens
                assert self.counters() == before
                lease = self.fleet.lease(route, asked, self.now)
                self.open.append(Open(lease, route.tokens, max(1, route.tokens - route.cached)))
            case Wait() | Refusal():
                assert self.counters() == before

    @precondition(lambda self: any(not each.lease.started for each in self.open))
    @rule(data=st.data())
    def first_token(self, data: st.DataObject) -> None:
        each = data.draw(st.sampled_from([each for each in self.open if not each.lease.started]))
        each.lease.first_token(self.now)

    @precondition(lambda self: self.open)
    @rule(
        data=st.data(),
        outcome=st.sampled_from(Outcome),
        usage=st.none() | st.builds(Usage, *(st.none() | st.integers(0, 3000) for _ in range(3))),
    )
    def finish(self, data: st.DataObject, outcome: Outcome, usage: Usage | None) -> None:
        each = self.open.pop(data.draw(st.integers(0, len(self.open) - 1)))
        each.lease.finish(outcome, usage, self.now)
        try:
            each.lease.finish(outcome, usage, self.now)
        except RuntimeError:
            return
        raise AssertionError("a lease ended twice")

    @rule(seconds=st.sampled_from([0.001, 0.1, 1.0, 5.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        for replica in REPLICAS:
            self.fleet.sign_of_life(replica, self.now)

    @rule(replica=st.sampled_from(REPLICAS), running=st.integers(0, 9), waiting=st.integers(0, 9))
    def sample(self, replica: str, running: int, waiting: int) -> None:
        member = self.fleet.replica(replica)
        self.fleet.sampled(
            replica, EngineSample(self.now, running, waiting, 0.5, member.requests, member.unstarted)
        )  # fmt: skip

    @rule(replica=st.sampled_from(REPLICAS))
    def restart(self, replica: str) -> None:
        self.fleet.engine(replica, 0.0, None, self.now)
        assert self.fleet.engine(replica, self.now + 1.0, None, self.now)

    @rule(replica=st.sampled_from(REPLICAS), state=st.sampled_from([State.READY, State.READY, State.DOWN]))
    def mark(self, replica: str, state: State) -> None:
        self.fleet.mark(replica, state, "test", self.now)

    @rule(replica=st.sampled_from(REPLICAS), seconds=st.sampled_from([0.0, 0.05, 2.0]))
    def refuse(self, replica: str, seconds: float) -> None:
        self.fleet.full(replica, self.now + seconds)

    def counters(self) -> list[tuple[int, int, int, int]]:
        members = [self.fleet.replica(replica) for replica in REPLICAS]
        return [(each.requests, each.unstarted, each.backlog_tokens, each.context_tokens) for each in members]

    def expected(self) -> list[tuple[int, int, int, int]]:
        counters = []
        for replica in REPLICAS:
            here = [each for each in self.open if each.lease.replica == replica]
            waiting = [each for each in here if not each.lease.started]
            counters.append(
                (len(here), len(waiting), sum(each.uncached for each in waiting), sum(each.tokens for each in here))
            )
        return counters

    @invariant()
    def counters_are_sums_over_the_open_leases(self) -> None:
        assert self.counters() == self.expected()
        assert all(type(value) is int for counters in self.counters() for value in counters)

    @invariant()
    def estimates_are_never_negative_and_the_index_stays_bounded(self) -> None:
        for replica in REPLICAS:
            member = self.fleet.replica(replica)
            reading = member.read(self.now, 5.0, 1e-4, 0.006, 0, 1.0, 1.0)
            assert reading.backlog >= -1e-6
            assert member.backlog(self.now) >= -1e-6
            assert 0 <= member.unstarted <= member.requests
            assert reading.queued >= 0
            assert self.fleet.residency.held(replica) <= 30

    def teardown(self) -> None:
        for each in self.open:
            each.lease.finish(Outcome.ABORTED, None, self.now)
        assert self.counters() == [(0, 0, 0, 0)] * 3
        assert all(type(value) is int for counters in self.counters() for value in counters)
        later = self.now + 1000.0  # Samples are forgotten by then.
        for replica in REPLICAS:
            member = self.fleet.replica(replica)
            assert member.backlog(later) == 0.0
            idle = member.read(later, 5.0, 1e-4, 0.006, 0, 1.0, 1.0)
            assert (idle.requests, idle.queued, idle.backlog, idle.running, idle.context) == (0, 0, 0.0, 0.0, 0.0)
            self.fleet.residency.release(self.fleet.residency.place(replica, [-1], 0))
            assert self.fleet.residency.held(replica) == 0  # Nothing is pinned: all of it could be evicted.


Accounts.TestCase.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
TestAccounts = Accounts.TestCase
