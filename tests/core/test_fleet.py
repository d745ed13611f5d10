"""The fleet: who may get an ask and who is cut, what a policy is shown, and what news of a replica changes."""

from collections.abc import Sequence
from random import Random

import pytest

from router.core.fleet import RETRY_AFTER_DOWN, Fleet, FleetSettings
from router.core.member import DEFAULT_KV_TOKENS, ReplicaSpec, Transition
from router.core.policy import Limits, PrefixAffinity
from router.core.types import Ask, EngineSample, Limit, Outcome, Reason, Refusal, RefusalCause, State, Usage, Wait
from tests.core.worlds import MODEL, answered, ask, fleet_of, leased, routed
from tests.fakes import Told

RNG = Random(0)
PROMPT = ask(("a", 8))


def eligible(fleet: Fleet, told: Told, asked: Ask = PROMPT, now: float = 0.0, tried: Sequence[str] = ()) -> list[str]:
    fleet.route(asked, now, RNG, tried)
    return [reading.id for reading in told.view.replicas]


def cuts(fleet: Fleet, now: float = 0.0) -> dict[str, Limit]:
    return dict(routed(fleet, PROMPT, now).cuts)


# Members.


def test_replicas_join_as_starting_in_the_order_they_were_given() -> None:
    fleet = Fleet(PrefixAffinity())
    fleet.join([ReplicaSpec("b"), ReplicaSpec("a")], 5.0)
    assert [replica.id for replica in fleet.replicas] == ["b", "a"]
    assert {replica.state for replica in fleet.replicas} == {State.STARTING}
    assert {(replica.since, replica.reason, replica.last_sign) for replica in fleet.replicas} == {(5.0, "joined", 5.0)}
    assert (list(fleet.ready), list(fleet.models)) == ([], [])
    fleet.join([ReplicaSpec("c")], 6.0)
    assert [replica.id for replica in fleet.replicas] == ["b", "a", "c"]


@pytest.mark.parametrize("twice", [["new", "r0"], ["new", "new"]], ids=["a member", "one of the same call"])
def test_an_id_joins_once_and_a_refused_call_changes_nothing(twice: list[str]) -> None:
    fleet = fleet_of(1)
    member = fleet.replica("r0")
    with pytest.raises(ValueError, match="member already"):
        fleet.join([ReplicaSpec(name) for name in twice], 0.0)
    assert [replica.id for replica in fleet.replicas] == ["r0"]
    assert fleet.replica("r0") is member
    with pytest.raises(KeyError):
        fleet.replica("new")


def test_settings_start_from_what_the_manual_says_and_are_frozen() -> None:
    assert FleetSettings() == FleetSettings(block=512, index_blocks=1_000_000, max_concurrency=None, stall=3.0)
    assert (RETRY_AFTER_DOWN, DEFAULT_KV_TOKENS) == (1.0, 400_000)
    with pytest.raises(AttributeError):
        FleetSettings().stall = 9.0  # type: ignore[misc]
    with pytest.raises(AttributeError):
        ReplicaSpec("a").kv_tokens = 1  # type: ignore[misc]
    with pytest.raises(AttributeError):
        Transition("a", State.READY, State.DOWN, "").new = State.READY  # type: ignore[misc]


def test_an_unknown_id_is_an_error() -> None:
    with pytest.raises(KeyError):
        fleet_of(1).replica("nobody")


def test_survivors_keep_their_state_when_a_replica_joins() -> None:
    fleet = fleet_of(2)
    answered(fleet, PROMPT)
    lease = leased(fleet, PROMPT)
    fleet.join([ReplicaSpec("r2")], 1.0)
    fleet.serves("r2", {MODEL: {}})
    fleet.mark("r2", State.READY, "test", 1.0)
    assert fleet.replica(lease.replica).requests == 1
    assert fleet.residency.depths(PROMPT.chain) == {lease.replica: 8}


def test_a_change_of_state_is_told_once() -> None:
    fleet = fleet_of(1)
    assert fleet.mark("r0", State.DOWN, "no answer", 7.0) == Transition("r0", State.READY, State.DOWN, "no answer")
    member = fleet.replica("r0")
    assert (member.state, member.since, member.reason) == (State.DOWN, 7.0, "no answer")
    assert fleet.mark("r0", State.DOWN, "still no answer", 8.0) is None
    assert (member.since, member.reason) == (7.0, "no answer")


@pytest.mark.parametrize("state", [state for state in State if state is not State.READY])
def test_only_ready_replicas_get_new_requests(state: State) -> None:
    told = Told()
    fleet = fleet_of(3, told)
    fleet.mark("r1", state, "test", 0.0)
    assert eligible(fleet, told) == ["r0", "r2"]
    assert told.view.ready == 2
    assert [replica.id for replica in fleet.ready] == ["r0", "r2"]
    assert cuts(fleet) == {}
    fleet.mark("r1", State.DOWN, "test", 0.0)  # An ejection would outlast a good probe.
    fleet.mark("r1", State.READY, "test", 0.0)
    assert eligible(fleet, told) == ["r0", "r1", "r2"]


def test_a_replica_is_asked_only_for_the_models_that_it_serves() -> None:
    told = Told()
    fleet = fleet_of(3, told)
    fleet.serves("r1", {"other": {"id": "other"}})
    assert eligible(fleet, told) == ["r0", "r2"]
    assert eligible(fleet, told, PROMPT._replace(model="other")) == ["r1"]
    assert eligible(fleet, told, PROMPT._replace(model=None)) == ["r0", "r1", "r2"]
    assert fleet.models == [MODEL, "other"]
    assert fleet.replica("r1").models == {"other": {"id": "other"}}
    fleet.serves("r1", {MODEL: {}, "other": {}})
    assert eligible(fleet, told) == ["r0", "r1", "r2"]


def test_a_model_that_nobody_serves_any_more_is_unknown() -> None:
    fleet = fleet_of(1)
    fleet.serves("r0", {"other": {}})
    assert fleet.models == ["other"]
    assert fleet.route(PROMPT, 0.0, RNG) == Refusal(RefusalCause.UNKNOWN_MODEL, None)


def test_a_card_may_change_without_a_change_of_the_group() -> None:
    fleet = fleet_of(1)
    answered(fleet, ask(("a", 8)), usage=Usage(4096, 5, 0))
    fleet.serves("r0", {MODEL: {"max_model_len": 9}})
    assert fleet.replica("r0").models == {MODEL: {"max_model_len": 9}}
    assert routed(fleet, PROMPT).tokens > 1024


# Refusals.


def test_an_unknown_model_is_not_the_same_as_nobody_ready() -> None:
    fleet = fleet_of(2)
    assert fleet.route(PROMPT._replace(model="x"), 0.0, RNG) == Refusal(RefusalCause.UNKNOWN_MODEL, None)
    for replica in ("r0", "r1"):
        fleet.mark(replica, State.DOWN, "test", 0.0)
    down = Refusal(RefusalCause.NO_REPLICA, RETRY_AFTER_DOWN)
    assert fleet.route(PROMPT, 0.0, RNG) == down
    assert fleet.route(PROMPT._replace(model="x"), 0.0, RNG) == Refusal(RefusalCause.UNKNOWN_MODEL, None)
    assert fleet.route(Ask(None), 0.0, RNG) == down


def test_while_no_replica_has_said_what_it_serves_no_model_is_unknown() -> None:
    fleet = Fleet(PrefixAffinity())
    refusal = Refusal(RefusalCause.NO_REPLICA, RETRY_AFTER_DOWN)
    assert fleet.route(PROMPT, 0.0, RNG) == refusal
    fleet.join([ReplicaSpec("r0")], 0.0)
    assert fleet.route(PROMPT, 0.0, RNG) == refusal
    assert fleet.route(Ask(None), 0.0, RNG) == refusal


def test_a_replica_that_was_tried_is_not_asked_again() -> None:
    told = Told()
    fleet = fleet_of(3, told)
    assert eligible(fleet, told, tried=["r0"]) == ["r1", "r2"]
    assert routed(fleet, PROMPT).reason is Reason.POLICY
    assert routed(fleet, PROMPT, tried=["r0"]).reason is Reason.RETRY
    assert cuts(fleet) == {}
    tried = ["r0", "r1", "r2"]
    assert fleet.route(PROMPT, 0.0, RNG, tried) == Refusal(RefusalCause.NO_REPLICA, RETRY_AFTER_DOWN)


def test_an_ask_for_one_replica_only_goes_there_or_nowhere() -> None:
    told = Told()
    fleet = fleet_of(3, told)
    only = PROMPT._replace(only="r1")
    assert eligible(fleet, told, only) == ["r1"]
    fleet.full("r1", 5.0)
    assert fleet.route(only, 1.0, RNG) == Wait(Limit.FULL, 1.0, {"r1": Limit.FULL})
    fleet.mark("r1", State.DOWN, "test", 6.0)
    assert fleet.route(only, 6.0, RNG) == Refusal(RefusalCause.NO_REPLICA, RETRY_AFTER_DOWN)


# Cuts.


def test_a_full_replica_is_passed_over_until_its_retry_after_and_no_failure_is_counted() -> None:
    told = Told()
    fleet = fleet_of(2, told)
    fleet.full("r0", 10.0)
    member = fleet.replica("r0")
    assert eligible(fleet, told, now=9.9) == ["r1"]
    assert cuts(fleet, 9.9) == {"r0": Limit.FULL}
    assert (member.state, member.state_now(9.9)) == (State.READY, State.FULL)
    assert eligible(fleet, told, now=10.0) == ["r0", "r1"]
    assert member.state_now(10.0) is State.READY
    assert cuts(fleet, 10.0) == {}


def test_a_replica_that_is_down_is_not_shown_as_full() -> None:
    fleet = fleet_of(1)
    fleet.full("r0", 10.0)
    fleet.mark("r0", State.DOWN, "test", 1.0)
    assert fleet.replica("r0").state_now(1.0) is State.DOWN


def test_a_refused_request_goes_to_the_next_candidate_and_leaves_nothing_behind() -> None:
    fleet = fleet_of(2)
    answered(fleet, PROMPT)
    first = routed(fleet, PROMPT)
    fleet.lease(first, PROMPT, 1.0).finish(Outcome.REFUSED, None, 1.0)
    fleet.full(first.replica, 2.0)
    second = routed(fleet, PROMPT, 1.0, [first.replica])
    assert second.replica != first.replica
    assert (second.reason, second.cuts) == (Reason.RETRY, {})
    assert fleet.replica(first.replica).requests == 0
    assert routed(fleet, PROMPT, 2.0).replica == first.replica


def test_a_replica_with_open_leases_and_no_sign_of_life_is_stalled() -> None:
    told = Told("r0")
    fleet = fleet_of(2, told, FleetSettings(stall=3.0))
    lease = leased(fleet, PROMPT)
    told.replica = None
    assert eligible(fleet, told, now=3.0) == ["r0", "r1"]
    assert eligible(fleet, told, now=3.1) == ["r1"]
    assert cuts(fleet, 3.1) == {"r0": Limit.STALL}
    fleet.sign_of_life("r0", 3.1)
    assert eligible(fleet, told, now=3.1) == ["r0", "r1"]
    lease.finish(Outcome.ABORTED, None, 3.1)
    assert eligible(fleet, told, now=100.0) == ["r0", "r1"]  # An idle one owes no sign.


@pytest.mark.parametrize(
    ("spec", "fleet_wide", "most"), [(None, 2, 2), (3, None, 3), (1, 2, 1), (3, 2, 3)],
    ids=["the fleet's", "its own", "its own lower one", "its own higher one"],
)  # fmt: skip
def test_a_replica_takes_as_many_requests_as_its_limit_says(
    spec: int | None, fleet_wide: int | None, most: int
) -> None:
    told = Told("r0")
    specs = [ReplicaSpec("r0", max_concurrency=spec), ReplicaSpec("r1", max_concurrency=9)]
    fleet = fleet_of(specs, told, FleetSettings(max_concurrency=fleet_wide))
    for _ in range(most):
        lease = leased(fleet, PROMPT)
    told.replica = None
    assert eligible(fleet, told) == ["r1"]
    assert cuts(fleet) == {"r0": Limit.MAX_CONCURRENCY}
    lease.finish(Outcome.OK, None, 0.0)
    assert eligible(fleet, told) == ["r0", "r1"]


def test_without_a_limit_concurrency_cuts_nobody() -> None:
    told = Told("r0")
    fleet = fleet_of(2, told)
    for _ in range(200):
        leased(fleet, PROMPT)
    assert cuts(fleet) == {}


def test_when_every_ready_replica_is_cut_the_ask_waits_for_the_limit_that_cut_the_most() -> None:
    fleet = fleet_of(3, Told("r2"), FleetSettings(max_concurrency=1))
    leased(fleet, PROMPT)
    fleet.full("r0", 10.0)
    fleet.full("r1", 10.0)
    cut = {"r0": Limit.FULL, "r1": Limit.FULL, "r2": Limit.MAX_CONCURRENCY}
    assert fleet.route(PROMPT, 1.0, RNG) == Wait(Limit.FULL, 1.0, cut)


def test_a_policys_own_wait_and_cuts_are_told_with_the_fleets() -> None:
    told = Told()
    fleet = fleet_of(2, told)
    fleet.full("r0", 10.0)
    told.wait = Wait(Limit.MAX_KV_USAGE, 4.0, {"r1": Limit.MAX_KV_USAGE})
    cut = {"r0": Limit.FULL, "r1": Limit.MAX_KV_USAGE}
    assert fleet.route(PROMPT, 4.0, RNG) == Wait(Limit.MAX_KV_USAGE, 4.0, cut)


def test_a_route_names_the_fleets_and_the_policys_cuts() -> None:
    fleet = fleet_of(3, PrefixAffinity(limits=Limits(max_kv_usage=0.95)))
    fleet.full("r0", 10.0)
    fleet.sampled("r1", EngineSample(0.0, kv_usage=0.99))
    assert cuts(fleet) == {"r0": Limit.FULL, "r1": Limit.MAX_KV_USAGE}


# News of a replica.


def test_counters_change_by_requests_only_whatever_the_health_loop_does() -> None:
    fleet = fleet_of(2)
    leases = [leased(fleet, ask((f"p{i}", 4))) for i in range(6)]
    before = [(replica.requests, replica.backlog_tokens) for replica in fleet.replicas]
    for _ in range(3):
        for replica in ("r0", "r1"):
            fleet.mark(replica, State.DOWN, "probe", 1.0)
            fleet.sign_of_life(replica, 2.0)
            fleet.mark(replica, State.READY, "probe", 2.0)
            fleet.sampled(replica, EngineSample(2.0, 0, 0, 0.1, 3, 3))
            fleet.serves(replica, {MODEL: {}})
    assert [(replica.requests, replica.backlog_tokens) for replica in fleet.replicas] == before
    for lease in leases:
        lease.finish(Outcome.OK, None, 3.0)
    assert [replica.requests for replica in fleet.replicas] == [0, 0]


def test_a_blip_keeps_what_is_resident() -> None:
    fleet = fleet_of(1)
    answered(fleet, PROMPT)
    fleet.engine("r0", 100.0, None, 0.0)
    fleet.mark("r0", State.DOWN, "no answer", 1.0)
    fleet.mark("r0", State.READY, "answers", 2.0)
    assert fleet.engine("r0", 100.0, None, 0.0) is False
    assert fleet.residency.depths(PROMPT.chain) == {"r0": 8}


def test_a_new_epoch_forgets_what_was_resident_and_the_first_one_seen_does_not() -> None:
    fleet = fleet_of(2)
    answered(fleet, PROMPT)
    holder = next(iter(fleet.residency.depths(PROMPT.chain)))
    assert fleet.engine(holder, 100.0, None, 0.0) is False
    assert fleet.residency.depths(PROMPT.chain) == {holder: 8}
    assert fleet.engine(holder, None, None, 0.0) is False
    assert fleet.replica(holder).epoch == 100.0
    assert fleet.engine(holder, 200.0, None, 0.0) is True
    assert fleet.residency.depths(PROMPT.chain) == {}
    assert fleet.replica(holder).epoch == 200.0
    assert fleet.engine(holder, 200.0, None, 0.0) is False


def test_what_an_engine_says_of_its_cache_replaces_what_the_configuration_said() -> None:
    fleet = fleet_of([ReplicaSpec("a", kv_tokens=5000), ReplicaSpec("b")])
    assert [replica.kv_tokens for replica in fleet.replicas] == [5000, DEFAULT_KV_TOKENS]
    fleet.engine("a", 1.0, 7000, 0.0)
    assert fleet.replica("a").kv_tokens == 7000
    fleet.engine("a", 1.0, None, 0.0)
    assert fleet.replica("a").kv_tokens == 7000


def test_an_engines_gauges_are_sized_by_what_its_model_has_learned() -> None:
    told = Told("r0")
    fleet = fleet_of(1, told)
    answered(fleet, PROMPT, usage=Usage(1024, 5, 24))
    fleet.sampled("r0", EngineSample(0.0, 1, 2))
    routed(fleet, ask(("b", 1)))
    assert (told.seen("r0").backlog, told.seen("r0").context) == (2000.0, 3 * 1024.0)


def test_an_engine_that_has_not_said_what_it_serves_may_be_sampled() -> None:
    told = Told()
    fleet = fleet_of(1, told)
    fleet.serves("r0", {})
    fleet.sampled("r0", EngineSample(0.0, 1, 2))
    routed(fleet, Ask(None))
    assert told.seen("r0").backlog == 2048.0
