"""One request's hold on one replica: charged once, discharged once, and what its end teaches."""

from random import Random

import pytest

from router.core.fleet import Fleet
from router.core.lease import MIN_STEP_TOKENS, Lease, Settled
from router.core.member import ReplicaSpec
from router.core.residency import Residency
from router.core.types import Ask, Outcome, Reading, Reason, Usage
from tests.core.worlds import answered, ask, fleet_of, leased, routed

BAD = [outcome for outcome in Outcome if outcome is not Outcome.OK]


def load(fleet: Fleet, now: float = 0.0) -> Reading:
    return fleet.replica("r0").read(now, 5.0, 1e-4, 0.006, 0, 1.0, 1.0)


def counters(fleet: Fleet, replica: str = "r0") -> tuple[int, int, int, int]:
    member = fleet.replica(replica)
    return (member.requests, member.unstarted, member.backlog_tokens, member.context_tokens)


def pinned(residency: Residency, replica: str) -> int:
    """Blocks that stay when everything that may go is made to go."""
    residency.release(residency.place(replica, [-1], 0))
    return residency.held(replica)


def test_a_lease_charges_before_anything_happens_and_names_its_replica() -> None:
    fleet = fleet_of(1)
    lease = leased(fleet, ask(("a", 8)), 1.0)
    assert lease.replica == "r0"
    assert not lease.started
    assert counters(fleet) == (1, 1, 1024, 1024)
    assert fleet.residency.depths(ask(("a", 8)).chain) == {"r0": 8}


def test_only_uncached_tokens_are_backlog() -> None:
    fleet = fleet_of(1)
    answered(fleet, ask(("a", 100)))
    leased(fleet, ask(("a", 100), ("b", 1)))
    assert counters(fleet) == (1, 1, 128, 101 * 128)


def test_a_full_hit_still_prefills_one_token() -> None:
    fleet = fleet_of(1)
    answered(fleet, ask(("a", 4)))
    leased(fleet, ask(("a", 4)))
    assert counters(fleet) == (1, 1, 1, 512)


def test_the_first_token_releases_the_backlog_and_the_end_the_rest() -> None:
    fleet = fleet_of(1)
    lease = leased(fleet, ask(("a", 8)))
    lease.first_token(1.0)
    assert lease.started
    assert counters(fleet) == (1, 0, 0, 1024)
    lease.finish(Outcome.OK, None, 2.0)
    assert counters(fleet) == (0, 0, 0, 0)


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("outcome", list(Outcome))
def test_an_end_without_a_first_token_takes_everything_back(outcome: Outcome, streams: bool) -> None:
    fleet = fleet_of(1)
    lease = leased(fleet, ask(("a", 8), streams=streams))
    lease.finish(outcome, None, 2.0)
    assert counters(fleet) == (0, 0, 0, 0)
    assert fleet.replica("r0").backlog(2.0) == 0
    assert load(fleet, 2.0).queued == 0
    assert fleet.residency.held("r0") == 0


@pytest.mark.parametrize("outcome", list(Outcome))
def test_after_a_first_token_the_chain_stays_however_it_ended(outcome: Outcome) -> None:
    fleet = fleet_of(1)
    lease = leased(fleet, ask(("a", 8)))
    lease.first_token(1.0)
    lease.finish(outcome, None, 2.0)
    assert fleet.residency.depths(ask(("a", 8)).chain) == {"r0": 8}
    assert pinned(fleet.residency, "r0") == 0


def test_the_backlog_of_an_answer_that_does_not_stream_drains_at_the_replicas_speed() -> None:
    fleet = fleet_of([ReplicaSpec("r0", prefill_tokens_per_second=1000), ReplicaSpec("r1")])
    for replica in ("r0", "r1"):  # r1's speed is not known: it is taken to be the mean of the others.
        silent = ask((replica, 8), streams=False)
        lease = fleet.lease(routed(fleet, silent)._replace(replica=replica), silent, 10.0)
        member = fleet.replica(replica)
        assert [member.backlog(at) for at in (10.0, 10.5, 12.0)] == pytest.approx([1024.0, 524.0, 0.0])
        lease.first_token(12.5)
        lease.finish(Outcome.OK, None, 12.5)
        assert member.backlog(12.5) == 0.0
    lease = fleet.lease(routed(fleet, ask(("a", 8)))._replace(replica="r0"), ask(("a", 8)), 20.0)
    assert fleet.replica("r0").backlog(30.0) == 1024.0  # A stream shows its first token: the clock drains nothing.
    lease.finish(Outcome.ABORTED, None, 30.0)


def test_a_lease_ends_once() -> None:
    fleet = fleet_of(1)
    lease = leased(fleet, ask(("a", 8)))
    lease.finish(Outcome.ABORTED, None, 1.0)
    before = counters(fleet)
    with pytest.raises(RuntimeError, match="ends once"):
        lease.finish(Outcome.OK, None, 2.0)
    assert counters(fleet) == before == (0, 0, 0, 0)


def test_a_lease_sees_one_first_token_and_none_after_its_end() -> None:
    fleet = fleet_of(1)
    lease = leased(fleet, ask(("a", 8)))
    lease.first_token(1.0)
    with pytest.raises(RuntimeError, match="one first token"):
        lease.first_token(1.5)
    assert counters(fleet) == (1, 0, 0, 1024)
    lease.finish(Outcome.OK, None, 2.0)
    with pytest.raises(RuntimeError, match="one first token"):
        lease.first_token(2.5)
    other = leased(fleet, ask(("b", 8)))
    other.finish(Outcome.FAILED, None, 3.0)
    with pytest.raises(RuntimeError, match="none after its end"):
        other.first_token(3.5)
    assert counters(fleet) == (0, 0, 0, 0)


def test_a_settled_lease_tells_what_it_was() -> None:
    fleet = fleet_of(1)
    answered(fleet, ask(("a", 4)))
    lease = leased(fleet, ask(("a", 8)), 10.0)
    lease.first_token(10.5)
    settled = lease.finish(Outcome.OK, Usage(1100, 20, 480), 12.0)
    assert settled == Settled("r0", Outcome.OK, 1100, 512, 512, 480, 20, 0.5, 2.0, 0)


def test_a_settled_lease_without_usage_or_first_token_tells_that_too() -> None:
    fleet = fleet_of(1)
    settled = leased(fleet, ask(("a", 8)), 10.0).finish(Outcome.REFUSED, None, 10.25)
    assert settled == Settled("r0", Outcome.REFUSED, 1024, 0, 0, None, None, None, 0.25, 0)


def test_reachable_is_what_the_best_replica_had_and_predicted_what_the_chosen_one_had() -> None:
    fleet = fleet_of(2)
    answered(fleet, ask(("a", 8)))
    holder = fleet.residency.depths(ask(("a", 8)).chain).popitem()[0]
    other = "r1" if holder == "r0" else "r0"
    route = routed(fleet, ask(("a", 8)))._replace(replica=other, cached=0)
    settled = fleet.lease(route, ask(("a", 8)), 0.0).finish(Outcome.OK, None, 1.0)
    assert (settled.replica, settled.reachable, settled.predicted) == (other, 1024, 0)


# What an end teaches.


def finished(
    fleet: Fleet, asked: Ask, at: float, first: float, end: float, usage: Usage | None, outcome: Outcome = Outcome.OK
) -> Settled:
    lease = leased(fleet, asked, at)
    lease.first_token(first)
    return lease.finish(outcome, usage, end)


def learned_means(fleet: Fleet) -> tuple[float, float, float, float, float]:
    learned = fleet._groups["m"].learned
    return (
        learned.tau.value, learned.output.value, learned.prompt.value, learned.uncached.value, learned.tokens_per_byte,
    )  # fmt: skip


def test_an_answer_teaches_times_and_sizes() -> None:
    fleet = fleet_of(1)
    finished(fleet, ask(("a", 8)), 0.0, 0.2, 3.2, Usage(1200, 50, 300))
    tau, output, prompt, uncached, rate = learned_means(fleet)
    assert (tau, output, prompt, uncached) == pytest.approx((3.0, 50.0, 1200.0, 900.0))
    assert rate == pytest.approx((0.95 * 1024 + 1200) / (0.95 * 4096 + 4096))


def test_a_prompt_without_a_word_of_its_cache_counts_as_uncached() -> None:
    fleet = fleet_of(1)
    finished(fleet, ask(("a", 8)), 0.0, 0.2, 3.2, Usage(1200))
    _, output, prompt, uncached, _ = learned_means(fleet)
    assert (output, prompt, uncached) == (256.0, 1200.0, 1200.0)


def test_means_never_take_less_than_a_token() -> None:
    fleet = fleet_of(1)
    finished(fleet, ask(("a", 8)), 0.0, 0.2, 0.2, Usage(1200, 0, 1200))
    tau, output, _, uncached, _ = learned_means(fleet)
    assert (tau, output, uncached) == pytest.approx((0.001, 1.0, 1.0))


@pytest.mark.parametrize("outcome", BAD)
def test_an_answer_that_did_not_end_well_teaches_nothing_but_its_first_token(outcome: Outcome) -> None:
    fleet = fleet_of(1)
    before, step = learned_means(fleet), fleet.replica("r0").step
    settled = finished(fleet, ask(("a", 8)), 0.0, 0.1, 3.0, Usage(5000, 50, 0), outcome)
    assert learned_means(fleet) == before
    assert fleet.replica("r0").step == step
    assert settled.prompt_tokens == 5000


def test_an_end_without_a_first_token_teaches_nothing() -> None:
    fleet = fleet_of(1)
    before = learned_means(fleet)
    leased(fleet, ask(("a", 8))).finish(Outcome.OK, Usage(5000, 50, 0), 3.0)
    assert learned_means(fleet) == before
    assert fleet.replica("r0").lin is None


def test_the_time_to_first_token_teaches_prefill_speed_behind_the_backlog_of_its_dispatch() -> None:
    fleet = fleet_of([ReplicaSpec("r0", prefill_tokens_per_second=10_000)])
    leased(fleet, ask(("a", 16)), 0.0)
    second = leased(fleet, ask(("b", 16)), 0.0)
    second.first_token(4096 / 8000)
    lin = fleet.replica("r0").lin
    assert lin == pytest.approx(1 / 8000)


def test_a_first_token_without_a_stream_or_a_prompt_teaches_no_speed() -> None:
    fleet = fleet_of(1)
    leased(fleet, ask(("a", 16), streams=False)).first_token(0.3)
    leased(fleet, Ask("m", streams=True)).first_token(0.3)
    assert fleet.replica("r0").lin is None


def test_an_answer_that_does_not_stream_teaches_no_time_of_decoding() -> None:
    fleet = fleet_of(1)
    finished(fleet, ask(("a", 8), streams=False), 0.0, 3.0, 3.001, Usage(1024, 50, 0))
    tau, output, _, _, _ = learned_means(fleet)
    assert (tau, output) == (5.0, 50.0)
    assert fleet.replica("r0").step == 0.006


def test_an_unknown_speed_starts_from_the_mean_of_the_others() -> None:
    fleet = fleet_of([ReplicaSpec("r0", prefill_tokens_per_second=1000), ReplicaSpec("r1")])
    route = routed(fleet, ask(("a", 16)))._replace(replica="r1")
    fleet.lease(route, ask(("a", 16)), 0.0).first_token(2048 / 900)
    lin = fleet.replica("r1").lin
    assert lin == pytest.approx(1 / 900)


def test_a_lone_answer_teaches_the_decode_step_less_its_contexts_share() -> None:
    fleet = fleet_of([ReplicaSpec("r0", kv_seconds_per_token=1e-6)])
    finished(fleet, ask(("a", 8)), 0.0, 0.1, 0.1 + 99 * (0.01 + 1024e-6), Usage(1024, 100, 0))
    assert fleet.replica("r0").step == pytest.approx(0.01)


def test_a_short_answer_teaches_no_decode_step() -> None:
    fleet = fleet_of(1)
    finished(fleet, ask(("a", 8)), 0.0, 0.1, 9.0, Usage(1024, MIN_STEP_TOKENS - 1, 0))
    assert fleet.replica("r0").step == 0.006
    finished(fleet, ask(("a", 8)), 10.0, 10.1, 10.17, Usage(1024, MIN_STEP_TOKENS, 0))
    assert fleet.replica("r0").step == pytest.approx(0.01, rel=0.01)


def test_an_answer_that_shared_its_replica_teaches_no_decode_step() -> None:
    fleet = fleet_of(1)
    other = leased(fleet, ask(("b", 1)))
    finished(fleet, ask(("a", 8)), 0.0, 0.1, 9.0, Usage(1024, 100, 0))
    other.finish(Outcome.ABORTED, None, 9.0)
    early = leased(fleet, ask(("c", 8)), 10.0)
    early.first_token(10.1)
    fleet.sign_of_life("r0", 10.1)
    leased(fleet, ask(("d", 1)), 10.2).finish(Outcome.ABORTED, None, 10.3)
    early.finish(Outcome.OK, Usage(1024, 100, 0), 19.0)
    assert fleet.replica("r0").step == 0.006


def test_token_ids_teach_nothing_of_tokens_per_byte() -> None:
    fleet = fleet_of(1)
    tokens = ask(("a", 8))._replace(tokens=1024)
    finished(fleet, tokens, 0.0, 0.1, 1.0, Usage(1024, 5, 0))
    _, _, prompt, _, rate = learned_means(fleet)
    assert (prompt, rate) == (1024.0, 0.25)


def test_a_request_without_a_prompt_teaches_only_its_output() -> None:
    fleet = fleet_of(1)
    before = learned_means(fleet)
    finished(fleet, Ask("m", streams=True), 0.0, 0.1, 1.1, Usage(5000, 30, 0))
    assert learned_means(fleet) == (1.0, 30.0, *before[2:])


# What an end corrects.


@pytest.mark.parametrize(("reported", "dropped"), [(20, 0), (18, 0), (17, 5), (0, 5)])
def test_a_count_short_of_the_belief_by_more_than_a_tenth_drops_what_is_older(reported: int, dropped: int) -> None:
    fleet = fleet_of(1)
    answered(fleet, ask(("old", 5)))
    answered(fleet, ask(("a", 20)))
    answered(fleet, ask(("young", 3)))
    usage = Usage(2560, 10, reported * 128)
    settled = answered(fleet, ask(("a", 20)), usage=usage)
    assert (settled.predicted, settled.reported, settled.dropped_blocks) == (2560, reported * 128, dropped)
    assert fleet.residency.depths(ask(("old", 5)).chain) == ({} if dropped else {"r0": 5})
    assert fleet.residency.depths(ask(("young", 3)).chain) == {"r0": 3}
    assert fleet.residency.depths(ask(("a", 20)).chain) == {"r0": 20}


def test_a_short_belief_may_be_wrong_by_one_block() -> None:
    fleet = fleet_of(1)
    answered(fleet, ask(("old", 5)))
    answered(fleet, ask(("a", 2)))
    assert answered(fleet, ask(("a", 2)), usage=Usage(256, 10, 128)).dropped_blocks == 0
    answered(fleet, ask(("a", 2)))
    assert answered(fleet, ask(("a", 2)), usage=Usage(256, 10, 0)).dropped_blocks == 5


def test_a_share_is_taken_of_what_the_engine_counted_and_not_of_what_was_believed() -> None:
    fleet = fleet_of(1)
    answered(fleet, ask(("old", 5)))
    answered(fleet, ask(("a", 20)))
    assert answered(fleet, ask(("a", 20)), usage=Usage(5120, 10, 5120)).dropped_blocks == 0
    assert answered(fleet, ask(("a", 20)), usage=Usage(5120, 10, 2560)).dropped_blocks == 5


def test_an_engine_that_does_not_report_its_cache_corrects_nothing() -> None:
    fleet = fleet_of(1)
    answered(fleet, ask(("old", 5)))
    answered(fleet, ask(("a", 20)))
    assert answered(fleet, ask(("a", 20)), usage=Usage(2560, 10, None)).dropped_blocks == 0
    assert answered(fleet, ask(("a", 20)), usage=Usage(None, 10, 0)).dropped_blocks == 0
    assert answered(fleet, ask(("a", 20)), usage=Usage(0, 10, 0)).dropped_blocks == 0
    assert fleet.residency.depths(ask(("old", 5)).chain) == {"r0": 5}


# Convergence.


def test_what_is_learned_converges_to_a_hidden_truth_in_spite_of_outliers() -> None:
    lin, step, kv, rate = 1 / 9000, 0.011, 5e-8, 0.31
    rng = Random(7)
    fleet = fleet_of([ReplicaSpec("r0", kv_seconds_per_token=kv)])
    now = 0.0
    for who in range(200):
        asked = ask((f"user {who}", rng.randint(8, 40)))
        prompt, output = (round(asked.size * rate * rng.gauss(1, 0.05)), rng.randint(40, 200))
        first = now + lin * prompt * rng.gauss(1, 0.1) * (8 if rng.random() < 0.05 else 1)
        stall = 5 if rng.random() < 0.05 else 1
        end = first + (output - 1) * (step + kv * prompt) * rng.gauss(1, 0.1) * stall
        finished(fleet, asked, now, first, end, Usage(prompt, output, 0))
        now = end + 1.0
    replica = fleet.replica("r0")
    assert replica.lin == pytest.approx(lin, rel=0.1)
    assert replica.step == pytest.approx(step, rel=0.1)
    assert fleet._groups["m"].learned.tokens_per_byte == pytest.approx(rate, rel=0.1)
    assert routed(fleet, ask(("stranger", 20)), now).tokens == pytest.approx(20 * 512 * rate, rel=0.1)


def test_a_lease_of_a_model_that_left_meanwhile_is_still_settled() -> None:
    fleet = fleet_of(1)
    route = routed(fleet, ask(("a", 8)))
    fleet.serves("r0", {})
    lease: Lease = fleet.lease(route, ask(("a", 8)), 0.0)
    lease.first_token(0.1)
    assert lease.finish(Outcome.OK, Usage(1024, 10, 0), 1.0).outcome is Outcome.OK
    assert counters(fleet) == (0, 0, 0, 0)
    assert route.reason is Reason.ONLY
