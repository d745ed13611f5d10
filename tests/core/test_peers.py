"""Other routers: their load is summed, extrapolated and forgotten; what they learned and believe is taken over."""

from collections.abc import Sequence
from random import Random

import pytest

from router.core.backlog import Learned, LearnedNews, Totals
from router.core.fleet import Fleet, FleetSettings
from router.core.member import ReplicaSpec
from router.core.peers import ASSUMED, TTL, ModelNews, RateNews
from router.core.policy import PrefixAffinity
from router.core.types import Ask, EngineSample, Limit, Outcome, ReplicaId, Route, State, Usage, Wait
from tests.core.worlds import MODEL, answered, ask, fleet_of, leased, routed
from tests.fakes import Told

BUSY = Totals(requests=3, unstarted=2, backlog=5_000, context=9_000, recent=4_000.0)
LEARNED = LearnedNews((50.0, 12), (800.0, 12), (300.0, 12), (2.0, 12), 3_000.0, 10_000.0)


class Notes:
    """types.News that keeps what it is told."""

    def __init__(self) -> None:
        self.leases = 0
        self.placements: list[tuple[ReplicaId, int | None, Sequence[int]]] = []
        self.corrections: list[tuple[ReplicaId, int]] = []
        self.refusals: list[tuple[ReplicaId, float]] = []

    def leased(self) -> None:
        self.leases += 1

    def placed(self, replica: ReplicaId, parent: int | None, hashes: Sequence[int]) -> None:
        self.placements.append((replica, parent, list(hashes)))

    def corrected(self, replica: ReplicaId, block: int) -> None:
        self.corrections.append((replica, block))

    def full(self, replica: ReplicaId, until: float) -> None:
        self.refusals.append((replica, until))


def heard(fleet: Fleet, *loads: tuple[str, Totals], peer: str = "b", sequence: int = 1, now: float = 0.0) -> None:
    fleet.peers.loaded(peer, sequence, dict(loads), False, now)


def telling(fleet: Fleet) -> Notes:
    """A fleet that knows of another router, and notes what it would tell it."""
    notes = Notes()
    fleet.residency.news = notes
    fleet.peers.learned("b", (), (), 0.0)
    return notes


# Load.


def test_the_load_of_others_is_read_with_our_own() -> None:
    told = Told("r0")
    fleet = fleet_of(2, told)
    lease = leased(fleet, ask(("a", 4)))
    heard(fleet, ("r0", BUSY))
    heard(fleet, ("r0", BUSY._replace(drained_requests=1, drained_tokens=1_000.0)), peer="c")
    routed(fleet, ask(("b", 1)))
    seen = told.seen("r0")
    assert (seen.requests, seen.queued, seen.running) == (7, 4, 7.0)
    assert seen.backlog == 512 + 9_000
    assert seen.context == 512 + 18_000
    assert seen.recent == 512 + 8_000
    assert fleet.replica("r0").whole == (7, 5, 10_512, 18_512)
    lease.finish(Outcome.ABORTED, None, 0.0)
    assert fleet.replica("r0").whole == (6, 4, 10_000, 18_000)


def test_news_is_absolute_so_that_losing_and_repeating_it_is_harmless() -> None:
    fleet = fleet_of(1)
    heard(fleet, ("r0", BUSY), sequence=1)
    heard(fleet, ("r0", BUSY._replace(requests=9)), sequence=3)
    heard(fleet, ("r0", BUSY), sequence=2)
    heard(fleet, ("r0", BUSY), sequence=3)
    assert fleet.replica("r0").whole.requests == 9


def test_all_of_a_load_takes_the_place_of_all_that_was_told_before() -> None:
    fleet = fleet_of(2)
    heard(fleet, ("r0", BUSY), ("r1", BUSY))
    fleet.peers.loaded("b", 2, {"r1": BUSY}, True, 0.0)
    assert fleet.replica("r0").others is None
    assert fleet.replica("r1").whole.requests == 3


def test_load_on_a_replica_that_is_no_member_is_passed_over() -> None:
    fleet = fleet_of(1)
    heard(fleet, ("r0", BUSY), ("r9", BUSY))
    assert fleet.replica("r0").whole.requests == 3


def test_what_others_sent_of_late_decays() -> None:
    told = Told("r0")
    fleet = fleet_of(1, told)
    heard(fleet, ("r0", BUSY), now=10.0)
    heard(fleet, ("r0", Totals()), peer="c", now=15.0)
    fleet.sign_of_life("r0", 20.0)
    routed(fleet, ask(("a", 1)), now=20.0)
    assert told.seen("r0").recent == pytest.approx(4_000 * 2.718281828**-2)


def test_a_router_that_says_goodbye_or_falls_silent_takes_its_load_with_it() -> None:
    fleet = fleet_of(1)
    heard(fleet, ("r0", BUSY))
    heard(fleet, ("r0", BUSY), peer="c", now=1.5)
    assert len(fleet.peers) == 2
    assert fleet.peers.expire(TTL) == []
    assert fleet.peers.expire(TTL + 0.1) == ["b"]
    assert fleet.replica("r0").whole.requests == 3
    fleet.peers.bye("c", 3.0)
    fleet.peers.bye("never heard of", 3.0)
    assert fleet.replica("r0").others is None
    assert len(fleet.peers) == 0


def test_a_heartbeat_keeps_a_silent_routers_load() -> None:
    fleet = fleet_of(1)
    heard(fleet, ("r0", BUSY))
    fleet.peers.learned("b", (), (), 2.0)
    assert fleet.peers.expire(3.0) == []
    assert len(fleet.peers) == 1


def test_limits_count_the_leases_of_all_routers() -> None:
    fleet = fleet_of(1, settings=FleetSettings(max_concurrency=4))
    heard(fleet, ("r0", BUSY))
    lease = leased(fleet, ask(("a", 1)))
    told = fleet.route(ask(("a", 1)), 0.0, Random(0))
    assert isinstance(told, Wait)
    assert told.limit is Limit.MAX_CONCURRENCY
    lease.finish(Outcome.ABORTED, None, 0.0)


def test_a_replica_that_keeps_another_router_waiting_is_cut_here_too() -> None:
    fleet = fleet_of(1)
    heard(fleet, ("r0", BUSY._replace(quiet=9.0)), now=9.0)
    told = fleet.route(ask(("a", 1)), 9.0, Random(0))
    assert isinstance(told, Wait)
    assert told.limit is Limit.STALL
    heard(fleet, ("r0", BUSY._replace(quiet=0.5)), sequence=2, now=9.0)
    assert fleet.replica("r0").last_sign == 8.5
    assert isinstance(fleet.route(ask(("a", 1)), 9.0, Random(0)), Route)


def test_an_engines_gauges_are_compared_with_the_leases_of_all_routers_and_never_added() -> None:
    told = Told("r0")
    fleet = fleet_of(1, told)
    heard(fleet, ("r0", BUSY))
    fleet.sampled("r0", EngineSample(0.0, running=1, waiting=2, own_requests=3, own_unstarted=2))
    routed(fleet, ask(("a", 1)))
    assert (told.seen("r0").running, told.seen("r0").queued, told.seen("r0").backlog) == (3, 2, 5_000)


def test_what_a_request_waits_for_includes_what_others_sent() -> None:
    fleet = fleet_of(1)
    heard(fleet, ("r0", BUSY._replace(drained_tokens=1_000.0)))
    assert fleet.replica("r0").backlog(0.0) == 4_000


def test_a_step_is_learned_of_a_request_that_is_alone_among_all_routers() -> None:
    for others, known in ((Totals(), True), (BUSY, False)):
        fleet = fleet_of(1)
        heard(fleet, ("r0", others))
        lease = leased(fleet, ask(("a", 1)))
        lease.first_token(0.1)
        lease.finish(Outcome.OK, Usage(128, 11, 0), 1.1)
        assert (fleet.replica("r0").known_step is not None) == known


def test_own_totals_are_what_others_should_hear() -> None:
    fleet = fleet_of(1)
    lease = leased(fleet, ask(("a", 4), streams=False), now=1.0)
    lin = 1 / 16_000
    halfway = fleet.replica("r0").totals(1.0 + 256 * lin, 0.5)
    assert halfway[:5] == (1, 1, 512, 512, 0)
    assert halfway.drained_tokens == pytest.approx(256)
    assert halfway.recent == pytest.approx(512, rel=0.01)
    assert halfway.quiet == 0.5
    done = fleet.replica("r0").totals(9.0, 0.0)
    assert (done.drained_requests, done.drained_tokens) == (1, 512)
    lease.finish(Outcome.OK, None, 9.0)
    assert fleet.replica("r0").totals(9.0, 0.0)[:6] == (0, 0, 0, 0, 0, 0.0)


# What others are assumed to have added.


def test_others_are_assumed_to_add_what_we_add_until_they_say_otherwise() -> None:
    told = Told("r0")
    fleet = fleet_of(2, told)
    telling(fleet)
    heard(fleet, ("r1", Totals()))
    lease = leased(fleet, ask(("a", 4)), now=0.01)
    routed(fleet, ask(("b", 1)), now=0.02)
    seen = told.seen("r0")
    assert (seen.requests, seen.running, seen.backlog, seen.context) == (1, 2.0, 1024.0, 1024.0)
    assert seen.recent == pytest.approx(1024, rel=0.01)
    assert told.seen("r1").running == 0
    heard(fleet, ("r1", Totals()), sequence=1, now=0.03)  # Nothing sent since.
    routed(fleet, ask(("b", 1)), now=0.03)
    assert told.seen("r0").running == 1
    lease.finish(Outcome.ABORTED, None, 0.03)


def test_news_ends_what_was_assumed_before_it() -> None:
    fleet = fleet_of(1)
    telling(fleet)
    heard(fleet, ("r0", Totals()))
    fleet.peers.sent("r0", 100, 200, 0.01)
    fleet.peers.sent("r0", 10, 20, 0.03)
    assert fleet.peers.assumed() == {"r0": (2.0, 110.0, 220.0)}
    heard(fleet, ("r0", BUSY), sequence=2, now=0.02)
    assert fleet.peers.assumed() == {"r0": (1.0, 10.0, 20.0)}


def test_each_of_several_routers_is_assumed_to_add_by_its_own_news_and_share() -> None:
    fleet = fleet_of(1)
    answered(fleet, ask(("a", 1)))
    heard(fleet, peer="b", now=0.0)
    heard(fleet, peer="c", now=0.02)
    fleet.peers.learned("c", [ModelNews(MODEL, 0, (), LEARNED)], (), 0.02)
    fleet.peers.sent("r0", 100, 200, 0.01)
    fleet.peers.sent("r0", 100, 200, 0.03)
    assert fleet.peers.assumed() == {"r0": (2.0, 200.0, 400.0)}


def test_a_busier_router_is_assumed_to_add_no_more_than_we_do() -> None:
    fleet = fleet_of(1)
    answered(fleet, ask(("a", 1)))
    heard(fleet)
    fleet.peers.learned("b", [ModelNews(MODEL, 500, (), LEARNED)], (), 0.0)
    fleet.peers.sent("r0", 100, 200, 0.01)
    assert fleet.peers.assumed() == {"r0": (1.0, 100.0, 200.0)}


def test_what_is_remembered_to_assume_from_is_bounded() -> None:
    fleet = fleet_of(1)
    heard(fleet)
    for i in range(ASSUMED + 100):
        fleet.peers.sent("r0", 1, 1, 1.0 + i)
    assert fleet.peers.assumed()["r0"].requests == ASSUMED


def test_two_routers_with_news_of_twenty_milliseconds_do_not_herd() -> None:
    """CASES B43, B44: a burst within one news period through two routers is spread as well as through one."""
    fleets = [fleet_of(4) for _ in range(2)]
    for fleet, other in zip(fleets, "ba", strict=True):
        telling(fleet)
        fleet.peers.loaded(other, 1, {}, True, 0.0)
    placed = [leased(fleets[i % 2], ask((f"p{i}", 8)), now=0.001 + i / 10_000).replica for i in range(40)]
    assert max(placed.count(f"r{i}") for i in range(4)) <= 13


# What others have learned.


def test_means_and_rates_are_taken_over_while_they_are_hardly_known_here() -> None:
    fleet = fleet_of(1)
    news = ModelNews(MODEL, 10, (), LEARNED)
    rates = [RateNews("r0", 1e-4, 12, 0.02, 12), RateNews("r9", 1e-4, 12, 0.02, 12)]
    fleet.peers.learned("b", [news, news._replace(model="nobody's")], rates, 0.0)
    [told] = fleet.learned()
    assert told.learned == LEARNED
    assert fleet.replica("r0").rates() == (1e-4, 12, 0.02, 12)
    later = news._replace(learned=LEARNED._replace(output=(999.0, 99)))
    fleet.peers.learned("b", [later], [RateNews("r0", 9.0, 99, 9.0, 99)], 1.0)
    assert fleet.learned() == [told]
    assert fleet.replica("r0").rates() == (1e-4, 12, 0.02, 12)


def test_a_router_that_knows_nothing_teaches_nothing() -> None:
    fleet = fleet_of(1)
    fleet.peers.learned("b", [ModelNews(MODEL, 0, (), Learned().told())], [RateNews("r0", None, 0, None, 0)], 0.0)
    assert fleet.learned()[0].learned == Learned().told()
    assert fleet.replica("r0").rates() == (None, 0, None, 0)


def keys_agree(fleets: Sequence[Fleet], asks: Sequence[Ask]) -> float:
    """Share of these asks whose key is the same for both."""
    same = 0
    for each in asks:
        one, other = (fleet.explain(each, 60.0, Random(0)).key for fleet in fleets)
        same += one == other
    return same / len(asks)


def test_routers_with_halves_of_one_trace_agree_on_homes() -> None:
    """POLICY section 2: the same home for at least 95 % of cold keys."""
    rng = Random(3)
    fleets = [fleet_of(8) for _ in range(2)]
    groups = [1 / (i + 1) for i in range(40)]
    for i in range(800):
        [group] = rng.choices(range(40), groups)
        answered(fleets[i % 2], ask(("system", 2), (f"group{group}", 6), (f"user{i}", 2)), now=i / 20)
        if i % 20 == 0:
            for fleet, other, name in ((fleets[0], fleets[1], "b"), (fleets[1], fleets[0], "a")):
                fleet.peers.learned(name, other.learned(), (), i / 20)
    cold = [ask(("system", 2), (f"group{rng.randrange(40)}", 6), (f"other{i}", 2)) for i in range(200)]
    assert keys_agree(fleets, cold) >= 0.95


def test_what_is_hot_for_another_router_is_no_key_here_until_it_leaves() -> None:
    fleet = fleet_of(8)
    asked = ask(("a", 4))
    assert fleet.explain(asked, 0.0, Random(0)).key.depth == 1
    fleet.peers.learned("b", [ModelNews(MODEL, 10, [asked.chain[0]], LEARNED)], (), 0.0)
    assert fleet.explain(asked, 0.0, Random(0)).key.depth == 2
    fleet.peers.bye("b", 0.0)
    assert fleet.explain(asked, 0.0, Random(0)).key.depth == 1


# What others believe.


def test_a_placement_is_told_when_it_changes_a_belief_and_again_after_a_second() -> None:
    fleet = fleet_of(1)
    notes = telling(fleet)
    first, longer = ask(("a", 2)), ask(("a", 2), ("b", 1))
    answered(fleet, first, now=0.0)
    answered(fleet, first, now=0.5)
    assert notes.placements == [("r0", None, first.chain)]
    answered(fleet, longer, now=0.6)
    assert notes.placements[1:] == [("r0", longer.chain[1], [longer.chain[2]])]
    answered(fleet, longer, now=1.5)
    answered(fleet, longer, now=1.7)
    assert notes.placements[2:] == [("r0", longer.chain[2], [])]
    answered(fleet, Ask(MODEL), now=9.0)
    assert (len(notes.placements), notes.leases) == (3, 6)


def test_a_touch_that_another_router_has_told_is_not_told_again_for_a_second() -> None:
    fleet = fleet_of(1)
    notes = telling(fleet)
    asked = ask(("a", 2))
    fleet.placed("r0", None, asked.chain, 0.0)
    answered(fleet, asked, now=0.9)
    assert notes.placements == []
    fleet.placed("r0", asked.chain[-1], [], 1.0)
    answered(fleet, asked, now=1.9)
    assert notes.placements == []
    answered(fleet, asked, now=2.1)
    assert notes.placements == [("r0", asked.chain[-1], [])]


def test_a_placement_of_nothing_teaches_nothing() -> None:
    fleet = fleet_of(1)
    fleet.placed("r0", None, [], 0.0)
    assert len(fleet.residency) == 0


def test_without_another_router_only_the_load_is_told() -> None:
    fleet = fleet_of(1)
    notes = Notes()
    fleet.residency.news = notes
    answered(fleet, ask(("a", 2)))
    assert (notes.leases, notes.placements) == (1, [])


def test_what_one_router_places_the_other_believes() -> None:
    here, there = fleet_of(4), fleet_of(4)
    notes = telling(here)
    longer = ask(("a", 3), ("b", 1), ("c", 1))
    home = answered(here, ask(("a", 3))).replica
    answered(here, ask(("a", 3), ("b", 1)))
    answered(here, longer)
    for told in notes.placements:
        there.placed(*told, now=0.0)
    route = routed(there, longer)
    assert (route.replica, route.cached) == (home, 5 * 128)


def test_a_placement_behind_what_is_not_known_here_teaches_nothing() -> None:
    fleet = fleet_of(1)
    fleet.placed("r0", 12345, [1, 2], 0.0)
    fleet.placed("r9", None, [1, 2], 0.0)
    assert len(fleet.residency) == 0


def test_a_touch_keeps_a_chain_from_being_evicted() -> None:
    fleet = Fleet(PrefixAffinity(), FleetSettings(index_blocks=6))
    fleet.join([ReplicaSpec("r0")], 0.0)
    fleet.placed("r0", None, [1, 2], 0.0)
    fleet.placed("r0", None, [3, 4], 0.0)
    fleet.placed("r0", 2, [], 0.0)
    fleet.placed("r0", None, [5, 6, 7], 0.0)
    assert fleet.residency.depths([1, 2]) == {"r0": 2}
    assert fleet.residency.depths([3, 4]) == {"r0": 1}


def test_a_correction_is_told_with_what_was_computed_anew() -> None:
    fleet = fleet_of(1)
    notes = telling(fleet)
    asked, other = ask(("a", 8)), ask(("b", 8))
    older = ask(("older", 2))
    answered(fleet, older, now=0.0)
    answered(fleet, asked, now=0.1, usage=Usage(1024, 10, 0))
    answered(fleet, asked, now=0.2, usage=Usage(1024, 10, 256))
    assert notes.corrections == [("r0", older.chain[1])]
    parent: int | None = asked.chain[1]
    assert notes.placements[-1] == ("r0", parent, asked.chain[2:])
    answered(fleet, other, now=0.3)
    answered(fleet, other, now=0.4, usage=Usage(1024, 10, 0))
    assert notes.corrections[-1] == ("r0", asked.chain[7])
    parent = None
    assert notes.placements[-1] == ("r0", parent, other.chain)


def test_a_correction_drops_what_was_used_before_the_block_that_is_gone() -> None:
    fleet = fleet_of(1)
    for chain in ([1, 2, 3, 4], [5, 6], [7, 8], [9, 10]):
        fleet.placed("r0", None, chain, 0.0)
    fleet.placed("r0", 8, [], 0.0)
    fleet.corrected("r0", 6)
    fleet.corrected("r0", 99)
    fleet.corrected("r9", 8)
    assert fleet.residency.depths([1]) == fleet.residency.depths([5, 6]) == {}
    assert fleet.residency.depths([7, 8]) == fleet.residency.depths([9, 10]) == {"r0": 2}


def test_a_correction_drops_at_another_router_what_it_drops_here_and_no_more() -> None:
    """The chain that tells is in use again when it does: who has heard that must not take all else for older."""
    ours, theirs = fleet_of(1), fleet_of(1)
    ours.residency.news = notes = telling(theirs)
    ours.peers.learned("b", (), (), 0.0)
    chats = [ask((f"chat {number}", 8)) for number in range(6)]

    def tell() -> None:
        for replica, parent, hashes in notes.placements:
            theirs.placed(replica, parent, hashes, 0.0)
        for replica, block in notes.corrections:
            theirs.corrected(replica, block)
        notes.placements.clear()
        notes.corrections.clear()

    for number, chat in enumerate(chats):
        answered(ours, chat, now=10.0 * number)
        tell()
    lease = leased(ours, chats[2], 100.0)
    tell()
    lease.first_token(100.0)
    lease.finish(Outcome.OK, Usage(1024, 10, 0), 101.0)
    assert notes.corrections
    tell()
    for fleet in (ours, theirs):
        held = [bool(fleet.residency.depths(chat.chain)) for chat in chats]
        assert held == [False, False, True, True, True, True]


def test_a_correction_drops_nothing_that_is_in_use() -> None:
    fleet = fleet_of(1)
    asked = ask(("a", 3))
    lease = leased(fleet, asked)
    assert fleet.residency.lost("r0", asked.chain[1]) == 0
    lease.first_token(0.1)
    lease.finish(Outcome.OK, None, 0.2)
    assert fleet.residency.depths(asked.chain) == {"r0": 3}


# Refusals.


def test_a_refusal_is_told_and_one_that_is_heard_is_not_told_again() -> None:
    fleet = fleet_of(2)
    notes = telling(fleet)
    fleet.full("r0", 5.0)
    fleet.told_full("r1", 7.0)
    fleet.told_full("r9", 7.0)
    assert notes.refusals == [("r0", 5.0)]
    assert [replica.state_now(6.0) for replica in fleet.replicas] == [State.READY, State.FULL]


# Ejections.


def test_a_replica_that_another_router_ejected_is_out_here_for_as_long_and_then_on_trial() -> None:
    fleet = fleet_of(3)
    transition = fleet.told_ejected("r1", "5 of the last 5 requests failed", 5.0, 0.0)
    assert transition is not None
    assert (transition.new, transition.reason) == (State.EJECTED, "5 of the last 5 requests failed")
    assert fleet.told_ejected("r1", "again", 8.0, 1.0) is None
    assert fleet.readmit(7.9) == []
    assert [turn.replica for turn in fleet.readmit(8.0)] == ["r1"]
    assert fleet.replica("r1").conduct.on_trial


def test_no_more_than_half_are_out_whoever_has_ejected_them() -> None:
    fleet = fleet_of(3)
    assert fleet.told_ejected("r0", "why", 5.0, 0.0) is not None
    assert fleet.told_ejected("r1", "why", 5.0, 0.0) is None
    assert fleet.told_ejected("r9", "why", 5.0, 0.0) is None
    fleet.mark("r2", State.DOWN, "test", 0.0)
    assert fleet.told_ejected("r2", "why", 5.0, 0.0) is None
    assert [replica.state for replica in fleet.replicas] == [State.EJECTED, State.READY, State.DOWN]


# Members that come and go.


def test_a_replica_that_leaves_is_gone_from_everything() -> None:
    fleet = fleet_of(3)
    answered(fleet, ask(("a", 4)))
    heard(fleet, *((f"r{i}", BUSY) for i in range(3)))
    fleet.leave("r1")
    assert [replica.id for replica in fleet.replicas] == ["r0", "r2"]
    assert {routed(fleet, ask((f"p{i}", 2))).replica for i in range(40)} == {"r0", "r2"}
    with pytest.raises(KeyError):
        fleet.leave("r1")
    fleet.peers.bye("b", 0.0)


def test_a_model_goes_with_its_last_replica() -> None:
    fleet = fleet_of(1)
    fleet.leave("r0")
    assert (fleet.models, len(fleet.residency)) == ([], 0)


def test_leases_on_a_replica_that_has_left_end_as_they_would_have() -> None:
    fleet = fleet_of(2)
    asked = ask(("a", 4))
    leases = [leased(fleet, asked) for _ in range(3)]
    [home] = {lease.replica for lease in leases}
    member = fleet.replica(home)
    leases[0].first_token(0.1)
    fleet.leave(home)
    fleet.join([ReplicaSpec(home)], 0.2)
    leases[0].finish(Outcome.OK, Usage(512, 20, 0), 0.3)
    leases[1].first_token(0.3)
    leases[1].finish(Outcome.OK, Usage(512, 20, 0), 0.4)
    leases[2].finish(Outcome.ABORTED, None, 0.4)
    assert member.whole == (0, 0, 0, 0)
    assert member.state is State.GONE
    assert (fleet.residency.held(home), fleet.residency.depths(asked.chain)) == (0, {})


def test_who_joins_takes_the_place_of_who_left_and_nothing_of_its_belief() -> None:
    fleet = fleet_of(3)
    fleet.placed("r0", None, [1, 2], 0.0)
    fleet.placed("r1", None, [1, 2, 3], 0.0)
    fleet.leave("r0")
    fleet.join([ReplicaSpec("r7")], 0.0)
    assert fleet.residency.depths([1, 2, 3]) == {"r1": 3}
    fleet.placed("r7", None, [1], 0.0)
    assert fleet.residency.depths([1, 2, 3]) == {"r1": 3, "r7": 1}


def test_other_settings_and_another_policy_take_effect_at_the_next_route() -> None:
    fleet = fleet_of(2)
    told = Told("r1")
    fleet.adjust(told, FleetSettings(max_concurrency=1))
    lease = leased(fleet, ask(("a", 1)))
    fleet.adjust(None, FleetSettings(max_concurrency=1))
    routed(fleet, ask(("a", 1)), now=0.1)
    assert [reading.id for reading in told.view.replicas] == ["r0"]
    lease.finish(Outcome.ABORTED, None, 0.2)


def test_a_changed_replica_keeps_what_it_learned_where_the_configuration_has_not_changed() -> None:
    fleet = fleet_of([ReplicaSpec("r0", prefill_tokens_per_second=1_000.0, kv_tokens=5_000)])
    member = fleet.replica("r0")
    member.lin = 0.5
    member.respec(ReplicaSpec("r0", 1_000.0, kv_tokens=5_000))
    assert (member.lin, member.kv_tokens) == (0.5, 5_000)
    member.respec(ReplicaSpec("r0", 2_000.0, 0.02, 1e-7, 6_000, 9))
    assert (member.lin, member.step, member.kv, member.kv_tokens) == (1 / 2_000, 0.02, 1e-7, 6_000)
    assert member.spec.max_concurrency == 9
    member.respec(ReplicaSpec("r0"))
    assert (member.lin, member.kv, member.kv_tokens) == (1 / 2_000, 3.9e-8, 400_000)


def test_a_router_that_shares_tells_of_placements_also_while_it_hears_nobody() -> None:
    told = []
    for shares in (False, True):
        fleet = fleet_of(2, settings=FleetSettings(shares=shares))
        notes = fleet.residency.news = Notes()
        leased(fleet, ask(("a", 2)))
        told.append(len(notes.placements))
    assert told == [0, 1]
