"""`prefix_affinity` in a whole fleet: bursts, crowds, whales, several routers. Statistics with a seed and no clock.

The names in brackets are the known defects of other routers that a test would show (A7: equal scores choose alike...).
"""

from collections import Counter
from collections.abc import Iterator
from random import Random

import pytest

from router.core.fleet import Fleet, FleetSettings
from router.core.member import ReplicaSpec
from router.core.policy import Limits, PrefixAffinity
from router.core.prompt import root
from router.core.types import Ask, EngineSample, Limit, Outcome, Reason, State, Wait
from tests.core.worlds import MODEL, Arrival, World, answered, ask, fleet_of, leased, routed, spread

RNG = Random(0)
PATIENT = FleetSettings(stall=1e9)
UNLIMITED = PrefixAffinity(limits=Limits(None, None, None))
KV_LIMITED = PrefixAffinity(limits=Limits(max_kv_usage=0.95))


def burst(fleet: Fleet, asks: Iterator[Ask]) -> list[str]:
    """Route and lease each in one tick, before anything is answered; where they went."""
    return [leased(fleet, asked).replica for asked in asks]


def with_prefix(blocks: int, requests: int) -> Iterator[Ask]:
    return (ask(("prefix", blocks), (f"user {who}", 1)) for who in range(requests))


def conversations(requests: int, rate: float, seed: int) -> list[Arrival]:
    """Every request shares its first block; 400 sessions of up to eight turns, each with all that was said before."""
    rng, at, turns, arrivals = Random(seed), 0.0, Counter[int](), []
    for _ in range(requests):
        at += rng.expovariate(rate)
        session = rng.randrange(400)
        turns[session] = turns[session] % 8 + 1
        prompt = ask(("system", 1), (f"session {session}", 2 + 3 * turns[session]))
        arrivals.append(Arrival(at, prompt, rng.randint(20, 120)))
    return arrivals


# Cold prompts.


def test_120_cold_prompts_one_after_another_reach_three_idle_replicas_alike() -> None:
    fleet = fleet_of(3)
    placed = [answered(fleet, ask((f"prompt {who}", 4)), float(who)).replica for who in range(120)]
    assert all(24 <= count <= 56 for count in spread(placed, 3))


def test_a_cold_prompt_goes_home_and_comes_back_to_what_it_left_there() -> None:
    fleet = fleet_of(8)
    for who in range(50):
        prompt, now = ask((f"prompt {who}", 20)), 20.0 * who
        route = routed(fleet, prompt, now)
        assert route.reason is Reason.HOME
        assert answered(fleet, prompt, now).replica == route.replica
        again = routed(fleet, prompt, now + 1.0)
        assert (again.replica, again.reason, again.cached) == (route.replica, Reason.HOLDER, 2560)


def test_a_burst_of_distinct_long_prompts_is_spread_by_what_was_dispatched_and_not_by_what_was_answered() -> None:
    """[A5, B47] 24 prompts of 8k tokens in one tick, no answer yet."""
    fleet = fleet_of(8)
    placed = burst(fleet, (ask((f"prompt {who}", 64)) for who in range(24)))
    assert spread(placed, 8) == [3] * 8


def test_a_burst_of_distinct_short_prompts_leaves_nobody_behind_by_more_than_the_slack() -> None:
    """[B47, A7] 40 prompts of 512 tokens: homes may differ by home_slack, 100 ms, which is some three of them."""
    fleet = fleet_of(4)
    counts = spread(burst(fleet, (ask((f"prompt {who}", 4)) for who in range(40))), 4)
    assert counts[-1] - counts[0] <= 4


def test_misses_go_by_load_and_not_by_the_size_of_a_cache() -> None:
    """[A4, B42] r0 has hardly anything cached and few but heavy requests; r1 is idle and has its cache full."""
    fleet = fleet_of([ReplicaSpec("r0"), ReplicaSpec("r1", kv_tokens=100_000)])
    for who in range(60):
        prompt = ask((f"old {who}", 20))
        route = routed(fleet, prompt)._replace(replica="r1", cached=0)
        lease = fleet.lease(route, prompt, 0.0)
        lease.first_token(0.0)
        lease.finish(Outcome.OK, None, 5.0)
    for who in range(2):
        heavy = ask((f"heavy {who}", 800))
        fleet.lease(routed(fleet, heavy, 50.0)._replace(replica="r0", cached=0), heavy, 50.0)
        fleet.sign_of_life("r0", 50.0)
    assert fleet.residency.held("r1") > 700
    placed = {routed(fleet, ask((f"cold {who}", 8)), 50.0).replica for who in range(30)}
    assert placed == {"r1"}


def test_backlog_is_counted_in_tokens_and_not_in_requests() -> None:
    """[A17] Three requests of 100k tokens against ten of 100."""
    fleet = fleet_of(2, PrefixAffinity(limits=Limits(max_backlog_seconds=None)))
    for who in range(3):
        heavy = ask((f"heavy {who}", 782))
        fleet.lease(routed(fleet, heavy)._replace(replica="r0", cached=0), heavy, 0.0)
    for who in range(10):
        light = ask(rest=b"%d" % who * 400)
        fleet.lease(routed(fleet, light)._replace(replica="r1", cached=0), light, 0.0)
    assert {routed(fleet, ask((f"cold {who}", 8))).replica for who in range(30)} == {"r1"}


def test_a_cached_follow_up_does_not_count_as_its_whole_prompt() -> None:
    """[B51] 100k tokens cached and one new block: neither for where it goes nor for those who come after it."""
    fleet = fleet_of(2)
    holder = answered(fleet, ask(("book", 782))).replica
    for who in range(4):
        other = ask((f"cold {who}", 8))
        fleet.lease(routed(fleet, other, 20.0)._replace(replica=holder, cached=0), other, 20.0)
    fleet.sign_of_life(holder, 20.0)
    route = routed(fleet, ask(("book", 782), ("question", 1)), 20.0)
    assert (route.replica, route.reason, route.tokens - route.cached) == (holder, Reason.HOLDER, 128)
    before = fleet.replica(holder).backlog_tokens
    fleet.lease(route, ask(("book", 782), ("question", 1)), 20.0)
    assert fleet.replica(holder).backlog_tokens - before == 128


def test_conversations_that_share_a_system_prompt_are_told_apart_and_a_continued_one_is_found() -> None:
    """[A13, A14] Neither the first message alone nor the whole body is the key."""
    fleet = fleet_of(8)
    homes = {}
    for who in range(60):
        homes[who] = answered(fleet, ask(("system", 4), (f"user {who}", 8)), float(who)).replica
    assert len(set(homes.values())) == 8
    for who in range(60):
        route = routed(fleet, ask(("system", 4), (f"user {who}", 8), ("more", 3)), 100.0)
        assert (route.replica, route.cached) == (homes[who], 12 * 128)


def test_prompts_of_different_salts_share_nothing() -> None:
    """[B25, B30] Equal text, another root."""
    fleet = fleet_of(2)
    plain = ask(("text", 8))
    answered(fleet, plain)
    for parts in (("m", "salt"), ("adapter", None)):
        salted = plain._replace(chain=[block ^ root(b"s", *parts) for block in plain.chain])
        assert routed(fleet, salted).reachable == 0


# Like prompts at once.


@pytest.mark.parametrize("replicas", [3, 4, 8])
@pytest.mark.parametrize("blocks", [48, 250])
def test_50_identical_cold_requests_in_one_tick_are_spread_as_soon_as_they_are_hot(replicas: int, blocks: int) -> None:
    """[A7, B43] Each is booked before the next is routed, so the first ones alone share a replica."""
    fleet = fleet_of(replicas)
    placed = burst(fleet, (ask(("same", blocks)) for _ in range(50)))
    counts = spread(placed, replicas)
    assert counts[0] >= 3
    assert counts[-1] <= 50 / replicas + 8
    assert len(set(placed[:2])) == 1  # Not yet hot: the second copy would have to be worth its 15-fold price.
    backlogs = [replica.backlog_tokens for replica in fleet.replicas]
    assert max(backlogs) - min(backlogs) < 200


def test_identical_requests_too_short_to_be_worth_a_copy_stay_together_until_they_are_a_burst() -> None:
    """By the window alone the first fifty left two of four replicas idle, and stopped at a hard limit."""
    fleet = fleet_of(4)
    placed = burst(fleet, (ask(("same", 1)) for _ in range(50)))
    assert len(set(placed[:4])) == 1
    assert spread(placed, 4)[-1] <= 1.25 * 50 / 4


def test_twenty_like_requests_make_a_prefix_free_to_copy_for_the_next_one() -> None:
    def price_of_another_copy(seen: int) -> float:
        fleet = fleet_of(8, UNLIMITED, PATIENT)
        for who in range(seen):
            answered(fleet, ask(("prefix", 48), (f"user {who}", 1)), 100.0 * who)
        holder = routed(fleet, ask(("prefix", 48)), 1e5).replica
        rival = leased(fleet, ask(("prefix", 48), ("long", 40)), 1e5)  # 5k tokens, a third of a second.
        assert rival.replica == holder
        return float(routed(fleet, ask(("prefix", 48), ("x", 1)), 1e5).replica == holder)

    assert price_of_another_copy(1) == 1.0
    window = fleet_of(8, UNLIMITED, PATIENT)
    for who in range(20):
        answered(window, ask(("prefix", 48), (f"user {who}", 1)))
    busy = routed(window, ask(("prefix", 48))).replica
    fleet_load = ask(("heavy", 200))
    window.lease(routed(window, fleet_load)._replace(replica=busy, cached=0), fleet_load, 0.0)
    assert routed(window, ask(("prefix", 48), ("x", 1))).replica != busy


def test_a_flash_crowd_on_one_prefix_gets_as_many_copies_as_it_pays_for() -> None:
    """[B36] 64 requests on one cold prefix of 6k tokens in one tick."""
    fleet = fleet_of(8)
    counts = spread(burst(fleet, with_prefix(48, 64)), 8)
    assert counts[0] >= 5
    assert counts[-1] <= 12
    assert fleet.residency.depths(ask(("prefix", 48)).chain) == {f"r{i}": 48 for i in range(8)}


def test_a_flash_crowd_that_goes_on_keeps_all_replicas_alike_and_its_wait_short() -> None:
    rng, at, arrivals = Random(3), 0.0, []
    for asked in with_prefix(48, 800):
        at += rng.expovariate(100.0)
        arrivals.append(Arrival(at, asked, 64))
    served = World(fleet_of(8, settings=PATIENT)).run(arrivals)
    counts = spread((each.replica for each in served), 8)
    assert counts[-1] <= 1.25 * 100
    waits = sorted(each.ttft for each in served)
    assert waits[400] < 0.05  # 6k tokens take .38 s: nearly all find a copy.
    assert waits[-1] < 1.0


def test_a_prefix_without_demand_gets_no_second_copy() -> None:
    arrivals = [Arrival(float(second), asked, 64) for second, asked in enumerate(with_prefix(48, 60))]
    fleet = fleet_of(8, settings=PATIENT)
    World(fleet).run(arrivals)
    assert len(fleet.residency.depths(ask(("prefix", 48)).chain)) == 1


def test_a_whale_spreads_and_does_not_stand_in_front_of_the_others() -> None:
    """Seven of ten requests are one tenant's, with a preamble of 15k tokens; 40 small tenants share the rest."""
    rng, at, arrivals = Random(4), 0.0, []
    for who in range(1000):
        at += rng.expovariate(60.0)
        tenant = f"tenant {rng.randrange(40)}"
        whale = rng.random() < 0.7
        prompt = ask(("whale", 120), (f"whale {who}", 2)) if whale else ask((tenant, 4), (f"{tenant} {who}", 3))
        arrivals.append(Arrival(at, prompt, 64))
    served = World(fleet_of(8, settings=PATIENT)).run(arrivals)
    whales = spread((each.replica for each in served if len(each.arrival.ask.chain) > 100), 8)
    assert whales[-1] <= 1.25 * sum(whales) / 8
    waits = sorted(each.ttft for each in served if len(each.arrival.ask.chain) < 100)
    assert waits[len(waits) // 2] < 0.06  # 384 new tokens take 24 ms.
    assert waits[len(waits) * 95 // 100] < 0.5
    assert waits[-1] < 1.0  # The preamble once, .95 s.


def test_few_distinct_prefixes_do_not_pile_up_on_one_replica() -> None:
    """[B39] Three prefixes on eight replicas."""
    rng, at, arrivals = Random(6), 0.0, []
    for who in range(900):
        at += rng.expovariate(120.0)
        arrivals.append(Arrival(at, ask((f"prefix {rng.randrange(3)}", 24), (f"user {who}", 3)), 64))
    served = World(fleet_of(8, settings=PATIENT)).run(arrivals)
    counts = spread((each.replica for each in served), 8)
    assert counts[-1] <= 1.5 * 900 / 8
    assert counts[0] >= 0.5 * 900 / 8


@pytest.mark.parametrize("shared", [1, 4, 32])
def test_sessions_that_share_a_long_system_prompt_do_not_collapse_onto_one_replica(shared: int) -> None:
    """[B38] 400 sessions with the same first blocks and 2.5k tokens of their own, at half of what the fleet can do."""
    rng, at, arrivals = Random(8), 0.0, []
    for who in range(400):
        at += rng.expovariate(25.0)
        arrivals.append(Arrival(at, ask(("system", shared), (f"session {who}", 20)), 64))
    served = World(fleet_of(8, settings=PATIENT)).run(arrivals)
    counts = spread((each.replica for each in served), 8)
    assert counts[-1] <= 1.3 * 400 / 8
    assert counts[0] >= 0.7 * 400 / 8


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_a_trace_in_which_all_share_their_first_block_is_spread_within_a_quarter(replicas: int) -> None:
    served = World(fleet_of(replicas, settings=PATIENT)).run(conversations(2000, 8.0 * replicas, 5))
    counts = spread((each.replica for each in served), replicas)
    assert counts[-1] <= 1.25 * 2000 / replicas
    hits = sum(each.predicted for each in served) / sum(each.arrival.ask.size / 4 for each in served)
    assert hits > (0.6 if replicas > 1 else 0.4)


def test_two_routers_fed_halves_of_a_trace_agree_on_cold_prompts() -> None:
    trace = conversations(1600, 20.0, 9)
    routers = [World(fleet_of(8, settings=PATIENT)) for _ in range(2)]
    for half, router in enumerate(routers):
        router.run(trace[half::2])
    now = trace[-1].at + 20.0  # What they have sent of late tells their replicas apart until then.
    for world in routers:
        for replica in world.fleet.ready:
            world.fleet.sign_of_life(replica.id, now)
    cold = [ask(("system", 1), (f"stranger {who}", 6)) for who in range(1000)]
    one, other = ([routed(router.fleet, asked, now).replica for asked in cold] for router in routers)
    assert sum(a == b for a, b in zip(one, other, strict=True)) >= 950
    assert spread(one, 8)[0] > 60


def test_a_router_and_its_successor_agree_without_talking() -> None:
    old, new = fleet_of(5), fleet_of([ReplicaSpec(f"r{i}") for i in (3, 1, 4, 0, 2)])
    for who in range(100):
        prompt = ask((f"prompt {who}", 6))
        assert routed(old, prompt).replica == routed(new, prompt).replica


# Limits and refusals.


def test_gauges_that_lag_do_not_hide_what_was_dispatched_since() -> None:
    """[A9, B45] r0 says that it is empty and r1 has one waiting; then eight come at once."""
    fleet = fleet_of(2)
    fleet.sampled("r0", EngineSample(0.0, running=0, waiting=0))
    fleet.sampled("r1", EngineSample(0.0, running=0, waiting=1))
    counts = Counter(burst(fleet, (ask((f"prompt {who}", 16)) for who in range(8))))
    assert 3 <= counts["r1"] <= counts["r0"] <= 5


def test_three_of_four_over_a_limit_leave_everything_to_the_fourth_and_all_over_it_is_a_wait() -> None:
    """[B57]"""
    fleet = fleet_of(4, KV_LIMITED)
    for replica in ("r0", "r1", "r2"):
        fleet.sampled(replica, EngineSample(0.0, kv_usage=0.97))
    assert {routed(fleet, ask((f"prompt {who}", 4))).replica for who in range(20)} == {"r3"}
    fleet.sampled("r3", EngineSample(0.0, kv_usage=0.97))
    cut = {f"r{i}": Limit.MAX_KV_USAGE for i in range(4)}
    assert fleet.route(ask(("a", 4)), 2.0, RNG) == Wait(Limit.MAX_KV_USAGE, 2.0, cut)
    for member in fleet.replicas:
        fleet.sign_of_life(member.id, 3.5)
    assert len({routed(fleet, ask((f"prompt {who}", 4)), 3.5).replica for who in range(20)}) == 4


def test_a_full_holder_is_passed_over_at_once_and_taken_again_after_its_retry_after() -> None:
    """[A47]"""
    fleet = fleet_of(3)
    holder = answered(fleet, ask(("a", 20))).replica
    fleet.full(holder, 12.0)
    route = routed(fleet, ask(("a", 20)), 11.0)
    assert route.replica != holder
    assert route.cuts == {holder: Limit.FULL}
    assert fleet.replica(holder).state is State.READY
    assert routed(fleet, ask(("a", 20)), 12.0).replica == holder


def test_answers_that_refuse_a_prompt_make_no_replica_less_ready() -> None:
    """[A41] A 400 is an answer to its end."""
    fleet = fleet_of(1)
    for _ in range(20):
        lease = leased(fleet, ask(("too long", 40)))
        lease.first_token(0.0)
        lease.finish(Outcome.OK, None, 0.0)
    assert fleet.replica("r0").state is State.READY
    assert routed(fleet, ask(("a", 4))).cuts == {}


def test_unique_prompts_never_grow_the_index_beyond_its_bound() -> None:
    """[A22, A24] No timer has to run in between."""
    fleet = fleet_of(2, settings=FleetSettings(index_blocks=3000))
    for who in range(60):
        answered(fleet, ask((f"unique {who}", 200)))
        assert len(fleet.residency) <= 3000
    assert len(fleet.residency) == 3000


def test_more_holders_than_a_row_of_ten_are_all_seen() -> None:
    """[B18]"""
    fleet = fleet_of(12)
    prompt = ask(("system", 8))
    for replica in fleet.replicas:
        lease = fleet.lease(routed(fleet, prompt)._replace(replica=replica.id), prompt, 0.0)
        lease.first_token(0.0)
        lease.finish(Outcome.OK, None, 5.0)
    assert fleet.residency.depths(prompt.chain) == {f"r{i}": 8 for i in range(12)}


def test_a_request_without_a_prompt_goes_to_the_least_loaded_of_all_models() -> None:
    fleet = fleet_of(3)
    fleet.serves("r2", {"other": {}})
    for replica in ("r0", "r1"):
        heavy = ask(("heavy", 100))
        fleet.lease(routed(fleet, heavy)._replace(replica=replica, cached=0), heavy, 0.0)
    route = routed(fleet, Ask(None))
    assert (route.replica, route.reason) == ("r2", Reason.PASSTHROUGH)
    assert routed(fleet, Ask(MODEL)).replica in {"r0", "r1"}
