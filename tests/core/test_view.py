"""What a policy is shown of a fleet, how much of it is believed cached, and within which bounds."""

from random import Random

import pytest

from router.core.backlog import DEFAULT_KV, DEFAULT_LIN
from router.core.blocks import chain
from router.core.fleet import FleetSettings
from router.core.member import ReplicaSpec
from router.core.prompt import chat
from router.core.recent import RETURNS
from router.core.ring import Ring
from router.core.types import Ask, Outcome, Reason, State, Usage
from tests.core.worlds import MODEL, answered, ask, fleet_of, leased, routed
from tests.fakes import Told

RNG = Random(0)
PROMPT = ask(("a", 8))


# What a policy is shown.


def test_a_view_of_a_cold_prompt_says_that_all_of_it_is_cold_everywhere() -> None:
    told = Told()
    fleet = fleet_of(2, told)
    route = routed(fleet, ask(("a", 8), rest=b"x" * 256))
    view = told.view
    assert (view.tokens, view.cold, view.ready) == (1088.0, 1088.0, 2)
    assert (view.output, view.tau, view.kv, view.lin) == pytest.approx((256.0, 5.0, DEFAULT_KV, DEFAULT_LIN))
    for reading in view.replicas:
        assert (reading.depth, reading.uncached, reading.cold) == (0, 1088.0, 1088.0)
    assert (route.tokens, route.cached, route.reachable, route.reason) == (1088, 0, 0, Reason.POLICY)


def test_a_view_shows_each_replica_what_it_has_of_the_prompt() -> None:
    told = Told("r1")
    fleet = fleet_of(3, told)
    answered(fleet, ask(("a", 6)))
    told.replica = "r0"
    answered(fleet, ask(("a", 2)))
    told.replica = "r2"
    route = routed(fleet, ask(("a", 8), rest=b"x" * 256))
    assert (told.seen("r0").depth, told.seen("r0").uncached) == (2, 1088.0 - 256)
    assert (told.seen("r1").depth, told.seen("r1").uncached) == (6, 1088.0 - 768)
    assert (told.seen("r2").depth, told.seen("r2").uncached) == (0, 1088.0)
    assert (route.cached, route.reachable) == (0, 768)
    told.replica = "r0"
    route = routed(fleet, ask(("a", 8), rest=b"x" * 256))
    assert (route.cached, route.reachable) == (256, 768)


def test_cold_counts_what_is_neither_held_nor_hot() -> None:
    told = Told("r0")
    fleet = fleet_of(2, told)
    answered(fleet, ask(("a", 4), ("b", 4)))  # One of the last spells' requests.
    told.replica = "r1"
    routed(fleet, ask(("a", 4), ("c", 4), rest=b"x" * 40))
    assert told.view.cold == pytest.approx(4 * 128 * 2 / (2 + RETURNS) + 4 * 128 + 10)
    assert told.seen("r0").cold == pytest.approx(4 * 128 + 10)
    assert told.seen("r1").cold == told.view.cold
    for _ in range(20):
        answered(fleet, ask(("a", 4), ("c", 4), rest=b"x" * 40))
    routed(fleet, ask(("a", 4), ("c", 4), rest=b"x" * 40))
    assert told.view.cold == pytest.approx(10)
    assert told.seen("r0").cold == pytest.approx(10)


def test_a_full_hit_leaves_one_token_to_compute() -> None:
    told = Told("r0")
    fleet = fleet_of(1, told)
    answered(fleet, PROMPT)
    routed(fleet, PROMPT)
    assert told.seen("r0").uncached == 1.0


def test_tokens_are_those_that_the_client_sent_where_it_sent_token_ids() -> None:
    told = Told()
    fleet = fleet_of(1, told)
    route = routed(fleet, PROMPT._replace(tokens=3000))
    assert (route.tokens, told.view.tokens) == (3000, 3000.0)
    answered(fleet, PROMPT._replace(tokens=3000))
    assert routed(fleet, PROMPT._replace(tokens=3000)).cached == 3000


def test_starred_speeds_are_means_over_the_eligible_replicas_that_know_them() -> None:
    told = Told()
    specs = [
        ReplicaSpec("a", 1000, 0.01, kv_seconds_per_token=1e-8),
        ReplicaSpec("b", 500, 0.03, kv_seconds_per_token=3e-8),
        ReplicaSpec("c", 100, 0.09, kv_seconds_per_token=9e-8),
        ReplicaSpec("d", None, None, kv_seconds_per_token=2e-8),
    ]
    fleet = fleet_of(specs, told)
    fleet.mark("c", State.DOWN, "test", 0.0)
    routed(fleet, PROMPT)
    assert (told.view.kv, told.view.lin) == pytest.approx((2e-8, 0.0015))
    assert [told.seen(name).lin for name in "abd"] == [1 / 1000, 1 / 500, told.view.lin]
    assert [told.seen(name).step for name in "abd"] == pytest.approx([0.01, 0.03, 0.02])


def test_a_view_shows_load_and_rates() -> None:
    told = Told("r0")
    spec = ReplicaSpec("r0", prefill_tokens_per_second=5000, step_seconds=0.02, kv_seconds_per_token=7e-8)
    fleet = fleet_of([spec, ReplicaSpec("r1")], told)
    leased(fleet, PROMPT)
    routed(fleet, ask(("b", 1)))
    seen = told.seen("r0")
    assert (seen.requests, seen.queued, seen.backlog, seen.running, seen.context) == (1, 1, 1024.0, 1.0, 1024.0)
    assert (seen.recent, seen.lin, seen.step) == (1024.0, 1 / 5000, 0.02)
    assert told.seen("r1").lin == told.view.lin == 1 / 5000


def test_an_ask_without_a_prompt_has_nothing_cached_and_nothing_cold() -> None:
    told = Told("r0")
    fleet = fleet_of(1, told)
    answered(fleet, PROMPT)
    route = routed(fleet, Ask(MODEL))
    assert (told.view.tokens, told.view.cold, told.seen("r0").depth) == (0.0, 0.0, 0)
    assert (route.tokens, route.cached, route.reachable) == (0, 0, 0)


def test_the_ring_orders_by_the_adaptive_key_and_at_a_fixed_depth() -> None:
    told = Told()
    fleet = fleet_of(8, told)
    ring = Ring([f"r{i}" for i in range(8)])
    asked = ask(("a", 8))
    routed(fleet, asked)
    assert told.view.order() == ring.order(asked.chain[0])
    assert told.view.order_at(3) == ring.order(asked.chain[2])
    assert told.view.order_at(8) == ring.order(asked.chain[7])
    for who in range(40):
        answered(fleet, ask(("a", 3), (f"user {who}", 5)))
    routed(fleet, asked)
    assert told.view.order() == ring.order(asked.chain[3])
    routed(fleet, ask(("a", 3)))
    assert told.view.order() == ring.order(ask(("a", 3)).tail)
    assert told.view.order_at(4) == ring.order(ask(("a", 3)).tail)


def test_the_ring_keeps_a_replica_that_is_down_and_drops_one_that_serves_something_else() -> None:
    told = Told()
    fleet = fleet_of(3, told)
    fleet.mark("r0", State.DOWN, "test", 0.0)
    routed(fleet, PROMPT)
    assert sorted(told.view.order()) == ["r0", "r1", "r2"]
    fleet.serves("r0", {"other": {}})
    routed(fleet, PROMPT)
    assert sorted(told.view.order()) == ["r1", "r2"]
    routed(fleet, PROMPT._replace(model=None))
    assert sorted(told.view.order()) == ["r0", "r1", "r2"]


def test_models_do_not_share_a_window_or_what_was_learned() -> None:
    told = Told()
    fleet = fleet_of(1, told)
    fleet.serves("r0", {MODEL: {}, "other": {}})
    for _ in range(20):
        answered(fleet, PROMPT, usage=Usage(4096, 7, 0))
    other = PROMPT._replace(model="other")
    routed(fleet, other)
    assert (told.view.output, told.view.tokens) == (256.0, 1024.0)
    assert told.view.order() == Ring(["r0"]).order(other.chain[0])
    assert told.view.cold == 1024.0


def test_routing_changes_nothing_and_leasing_counts_the_request() -> None:
    told = Told("r0")
    fleet = fleet_of(1, told)
    for _ in range(5):
        routed(fleet, PROMPT)
    assert told.view.cold == 1024.0
    assert fleet.residency.held("r0") == 0
    leased(fleet, PROMPT).finish(Outcome.FAILED, None, 0.0)
    routed(fleet, PROMPT)
    assert told.view.cold == pytest.approx(1024.0 * 0.95)


def test_a_request_that_is_sent_again_counts_once_in_the_window() -> None:
    told = Told("r0")
    fleet = fleet_of(2, told)
    leased(fleet, PROMPT).finish(Outcome.NOT_REACHED, None, 0.0)
    told.replica = "r1"
    route = routed(fleet, PROMPT, tried=["r0"])
    fleet.lease(route, PROMPT, 0.0).finish(Outcome.OK, None, 0.0)
    routed(fleet, PROMPT)
    assert told.view.cold == pytest.approx(1024.0 * 2 / (2 + RETURNS))


def test_a_request_without_a_prompt_is_not_in_the_window() -> None:
    told = Told("r0")
    fleet = fleet_of(1, told)
    for _ in range(40):
        answered(fleet, Ask(MODEL))
    for _ in range(10):
        answered(fleet, PROMPT)
    routed(fleet, PROMPT)
    assert told.view.cold == pytest.approx(1024.0 * 0.5)


# Capacity.


def test_a_placement_is_bounded_by_the_replicas_cache_less_the_outputs_in_flight() -> None:
    fleet = fleet_of([ReplicaSpec("r0", kv_tokens=128 * 100)])
    answered(fleet, ask(("a", 300)))
    assert fleet.residency.held("r0") == 100
    leases = [leased(fleet, ask(("b", 1))) for _ in range(10)]
    assert fleet.residency.held("r0") == 100 - 9 * 2  # Nine were out when the last came: 256 tokens, two blocks, each.
    for lease in leases:
        lease.finish(Outcome.ABORTED, None, 0.0)


def test_more_output_in_flight_than_cache_leaves_no_room() -> None:
    fleet = fleet_of([ReplicaSpec("r0", kv_tokens=512)])
    for _ in range(4):
        leased(fleet, ask(("a", 1)))
    assert fleet.residency.held("r0") == 1


def test_capacity_in_blocks_follows_the_prompts_density() -> None:
    fleet = fleet_of([ReplicaSpec("r0", kv_tokens=12_800)])
    answered(fleet, ask(("a", 300))._replace(tokens=300 * 64))
    assert fleet.residency.held("r0") == 200
    answered(fleet, ask(("b", 300))._replace(tokens=1))
    assert fleet.residency.held("r0") == 500


def test_the_index_is_bounded_over_all_replicas_at_insert() -> None:
    fleet = fleet_of(4, settings=FleetSettings(index_blocks=1000))
    for who in range(100):
        answered(fleet, ask((f"unique {who}", 60)))
        assert len(fleet.residency) <= 1000
    assert [fleet.residency.held(f"r{i}") for i in range(4)] == [250] * 4


def test_a_request_without_a_prompt_costs_nobody_its_cache() -> None:
    fleet = fleet_of(1)
    answered(fleet, PROMPT)
    answered(fleet, Ask(MODEL))
    answered(fleet, Ask(None))
    answered(fleet, ask(rest=b"too short for a block"))
    assert fleet.residency.depths(PROMPT.chain) == {"r0": 8}


def test_the_block_is_a_setting() -> None:
    told = Told("r0")
    fleet = fleet_of([ReplicaSpec("r0", kv_tokens=64)], told, FleetSettings(block=64))
    hashes, tail = chain(b"x" * 640, 0, 64)
    asked = Ask(MODEL, hashes, tail, 640, streams=True)
    answered(fleet, asked)
    assert fleet.residency.held("r0") == 4  # 64 tokens are 256 bytes.
    assert routed(fleet, asked).cached == 64


# Answers.


def turn(messages: list[dict[str, str]]) -> Ask:
    read = chat(messages)
    hashes, tail = chain(read.data, 1)
    return Ask(MODEL, hashes, tail, len(read.data), True, None, read.answers)


QUESTION = [{"role": "user", "content": "Tell me all. " * 200}]
ANSWER = {"role": "assistant", "content": "All is well. " * 300}
NEXT = [*QUESTION, ANSWER, {"role": "user", "content": "And then? " * 60}]


def test_the_next_turn_of_a_chat_counts_the_answer_as_cached() -> None:
    fleet = fleet_of(2)
    first, second = turn(QUESTION), turn(NEXT)
    answered(fleet, first, usage=Usage(None, 2000, 0))
    before_reply = len(first.chain) * 512
    reply_end = second.answers[first.size]
    route = routed(fleet, second)
    assert route.cached == reply_end // 512 * 128 > before_reply // 4 + 700
    settled = answered(fleet, second)
    assert settled.predicted == route.cached


def test_an_answer_counts_no_further_than_its_tokens_reach() -> None:
    fleet = fleet_of(2)
    first, second = turn(QUESTION), turn(NEXT)
    answered(fleet, first, usage=Usage(None, 300, 0))
    assert routed(fleet, second).cached == (first.size + 1200) // 512 * 128


def test_the_answer_to_a_prompt_of_one_block_is_remembered_too() -> None:
    question = [{"role": "user", "content": "Tell me all. " * 40}]
    first, second = turn(question), turn([*question, ANSWER, {"role": "user", "content": "And then?"}])
    assert len(first.chain) == 1
    fleet = fleet_of(1)
    answered(fleet, first, usage=Usage(None, 2000, 0))
    assert routed(fleet, second).cached == second.answers[first.size] // 512 * 128


def test_an_answer_of_unknown_length_counts_as_nothing() -> None:
    fleet = fleet_of(2)
    first, second = turn(QUESTION), turn(NEXT)
    answered(fleet, first, usage=None)
    assert routed(fleet, second).cached == len(first.chain) * 128


def test_a_reply_that_is_not_the_one_given_counts_as_nothing() -> None:
    fleet = fleet_of(2)
    first = turn(QUESTION)
    answered(fleet, first, usage=Usage(None, 2000, 0))
    other = turn([*QUESTION, {"role": "user", "content": "Never mind, say this: " * 90}])
    assert routed(fleet, other).cached == len(first.chain) * 128


def test_an_answer_never_takes_back_what_is_resident() -> None:
    fleet = fleet_of(1)
    first, second = turn(QUESTION), turn(NEXT)
    answered(fleet, first, usage=Usage(None, 1, 0))
    assert routed(fleet, second).cached == len(first.chain) * 128


def test_a_replica_without_the_prompt_has_not_the_answer_either() -> None:
    told = Told("r0")
    fleet = fleet_of(2, told)
    first, second = turn(QUESTION), turn(NEXT)
    answered(fleet, first, usage=Usage(None, 2000, 0))
    routed(fleet, second)
    assert told.seen("r0").depth == second.answers[first.size] // 512
    assert told.seen("r1").depth == 0


def test_an_answer_of_a_prompt_that_did_not_fit_is_not_remembered() -> None:
    fleet = fleet_of([ReplicaSpec("r0", kv_tokens=128 * 4 + 10)])
    first, second = turn(QUESTION), turn(NEXT)
    answered(fleet, first, usage=Usage(None, 2000, 0))
    assert routed(fleet, second).cached == 4 * 128


# Families.


def test_a_family_is_the_prompts_that_one_key_places_and_unknown_models_have_a_window_of_their_own() -> None:
    fleet = fleet_of(8)
    for who in range(60):
        answered(fleet, ask(("system", 4), (f"user {who}", 8)), float(who))
    one, same, other = (ask(("system", 4), *rest) for rest in ([("u", 8)], [("u", 8), ("more", 8)], [("v", 8)]))
    assert fleet.family(one) == fleet.family(same) != fleet.family(other)
    assert fleet.family(one._replace(model="nobody's")) == one.chain[0]
