"""Joins, leaves, restarted routers, cold fleets: what is measured, and one small row of each in simulated time."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from rich.table import Table

from loadtests import changes, changes_cells
from loadtests.changes_cells import Cold, Traffic, cold, handed, placed, warm_knee
from loadtests.placement import Kept, Member, Prefix, Routes, asks, chosen, compare, first, kept, reach, went
from loadtests.plays import Names, Part, Play, Text
from loadtests.records import Record
from loadtests.recovery import Recovery, recovery
from loadtests.sim_around import figures, moments
from loadtests.sim_router import SimRouter
from loadtests.simulation import Change, FleetPlan, Look, RouterPlan, RouterRestart, simulate
from loadtests.table_kinds import Kind
from router.core.policy import PrefixAffinity
from router.core.types import Reason, Route
from tests.sim.records import BLANK

FOUR = (1.0,) * 4
ROUTERS = RouterPlan(PrefixAffinity)


def route(replica: str, cached: int = 100) -> Route:
    return Route(replica, Reason.HOLDER, 100, cached, cached)


def family(*starts: float, groups: int = 1) -> Play:
    """Requests of `groups` prefixes of 6,400 tokens in turn, 640 own."""
    names = Names(1)
    lines = [names.line([Text(-1 - i % groups, 6_400), Text(i, 640)], 10) for i in range(len(starts))]
    return Play(
        "made", tuple(Part(f"s{i}", at, (each,)) for i, (at, each) in enumerate(zip(starts, lines, strict=True)))
    )


# Measures.


def test_what_left_or_was_a_newcomers_fair_share_is_excused_and_nothing_else() -> None:
    moves = [("a", "a"), ("a", "b"), ("b", "new"), ("ab", "b")]
    prefixes = [Prefix(0, frozenset(before), now) for before, now in moves]
    assert compare(prefixes) == Kept(4, 2, 0)
    assert compare(prefixes, Member(left="a")) == Kept(4, 2, 2), "the last one had another place"
    assert compare(prefixes, Member(None, "new", 0.1)) == Kept(4, 2, 0.4), "more than its share is taken from others"
    assert compare(prefixes, Member(None, "new", 0.5)) == Kept(4, 2, 1)
    assert compare(prefixes, Member(None, "new", 0.5)).share == pytest.approx(2 / 3)
    assert Kept(0, 0, 0).share == 1.0


def test_a_prompt_counts_where_half_of_it_was_known_and_one_without_a_route_has_not_stayed() -> None:
    before = Routes(a=route("r1"), b=route("r2", 49), c=route("r2", 50))
    assert kept(before, Routes(a=route("r1", 0), b=route("r1"))) == Kept(2, 1, 0)


def test_prompts_that_another_goes_on_from_are_not_asked_for() -> None:
    names = Names(1)
    talk = [Text(1, 640), Text(2, 640)]
    lines = (names.line(talk[:1], 10), names.line(talk, 10))
    play = Play("talk", (Part("s", 0.0, lines),))
    records = simulate(play, FleetPlan("llama3-8b-h100", FOUR), ROUTERS, 1).records
    assert list(asks(play, records, 512)) == ["s/1"]


def test_choices_are_those_of_an_idle_fleet_and_asking_changes_nothing() -> None:
    play = family(*[index / 200 for index in range(120)], groups=6)
    plan = FleetPlan("llama3-8b-h100", FOUR)
    untouched = simulate(play, plan, ROUTERS, 1)
    early = [each for each in untouched.records if each.sent_s < 0.3]
    seen: list[Routes] = []

    def look(routers: Sequence[SimRouter]) -> None:
        seen.append(chosen(routers[0], ROUTERS, asks(play, early, 512)))

    looked: list[Change] = [Look(0.3, look), Look(0.3, look)]
    assert simulate(play, plan, ROUTERS, 1, looked).sha256() == untouched.sha256()
    assert seen[0] == seen[1]
    assert len(seen[0]) == len(early)
    by_group: dict[int, set[str]] = {}
    for name, each in seen[0].items():
        by_group.setdefault(int(name[1:].split("/")[0]) % 6, set()).add(each.replica)
    assert all(len(replicas) <= 2 for replicas in by_group.values()), "queues spill, an idle fleet does not"


def test_a_request_stayed_where_a_replica_had_its_deepest_known_block() -> None:
    play = family(0.0, 1.0, 2.0, 3.0)
    outcome = simulate(play, FleetPlan("llama3-8b-h100", FOUR), ROUTERS, 1)
    made, resident = outcome.records, reach(outcome)
    assert resident["s0", 0] == 0.0
    assert resident["s1", 0] == pytest.approx(6_400 / 7_040)
    moved = [replace(each, replica="elsewhere") if each.session == "s3" else each for each in made]
    found = went(play, moved, 512, (2.0, 9.0), resident)
    assert [name for name, _ in found] == [("s2", 0), ("s3", 0)]
    assert compare([prefix for _, prefix in found]) == Kept(2, 1, 0)
    assert compare(first(found)) == Kept(1, 1, 0), "both are for one prefix"
    assert went(play, made, 512, (0.0, 9.0), resident) == [], "before the first one nothing was known"


def test_what_was_evicted_meanwhile_has_no_place_to_keep() -> None:
    play = family(0.0, 1.0, 2.0, 3.0)
    outcome = simulate(play, FleetPlan("llama3-8b-h100", FOUR), ROUTERS, 1)
    moved = [replace(each, replica="elsewhere") if each.session in {"s2", "s3"} else each for each in outcome.records]
    resident = {**reach(outcome), ("s2", 0): 0.0}
    assert went(play, moved, 512, (2.0, 9.0), resident) == [], "the third one computed it anew, the fourth follows"


def test_back_is_the_first_window_that_is_as_good_as_its_pairs() -> None:
    def run(slow_until: float, by: float) -> list[Record]:
        return [
            replace(
                BLANK, sent_s=float(at), first_token_s=at + (by if 100 <= at < slow_until else 1.0), session=f"s{at}"
            )
            for at in range(200)
        ]

    calm = run(0, 1.0)
    assert recovery(run(0, 1.0), calm, 100.0, 100.0) == Recovery(0.0, 1.0, 1.0, 0)
    found = recovery(run(120, 2.0), calm, 100.0, 100.0)
    assert found.seconds == 17.0, "3 of 30 s are still twice as slow"
    assert found.worst == pytest.approx(5 / 3)
    assert recovery(run(200, 2.0), calm, 100.0, 100.0).seconds is None
    deploy = recovery(run(120, 2.0), calm, 100.0, 130.0)
    assert deploy.seconds == 0.0
    assert deploy.worst == pytest.approx(5 / 3), "what lies between is the worst"
    with pytest.raises(ValueError, match="nothing was sent after 300"):
        recovery(calm, calm, 100.0, 300.0)


def test_a_request_that_failed_is_not_back_and_is_counted() -> None:
    calm = [replace(BLANK, sent_s=float(at), first_token_s=at + 1.0, session=f"s{at}") for at in range(100)]
    struck = [replace(each, error="no_replica") if each.sent_s == 40 else each for each in calm]
    assert recovery(struck, calm, 20.0, 20.0) == Recovery(21.0, 1.0, 1.0, 1)


def test_events_are_told_by_what_was_sent_around_them() -> None:
    sent = [replace(BLANK, sent_s=at, first_token_s=at + at / 10, end_s=at + 5) for at in (10.0, 20.0, 40.0)]
    sent.append(replace(BLANK, sent_s=25.0, end_s=31.0, error="replica_lost"))
    (found,) = moments("a", sent, [("join@30", 30.0), ("late@99", 99.0)], 60.0)
    assert (found.event, found.before.ttft, found.after.ttft) == ("join@30", 1.5, 4.0)
    assert (found.before.failed, found.after.failed) == (0, 1)
    assert figures([], 0.0, 1.0).ttft is None


# Rows.


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("AT_S", 30.0), ("AFTER_S", 20.0), ("DOWN_S", 5.0), ("EVERY_S", 40.0), ("TAIL_S", 60.0)):
        monkeypatch.setattr(changes_cells, name, seconds)


@pytest.mark.usefixtures("short")
def test_after_a_join_and_a_leave_prefixes_stay_where_they_were() -> None:
    rows = placed(Traffic(Kind("chat", "chat", speeds=FOUR), 12.0), 1)
    assert [row.change for row in rows] == ["join", "leave"]
    assert all(changes.placed_well(row) for row in rows)
    assert all(row.kept.known > 20 and row.went.known > 20 for row in rows)
    assert rows[0].share is not None
    assert rows[0].share > 0


@pytest.mark.usefixtures("short")
def test_a_router_with_its_predecessors_snapshot_goes_on_and_one_without_does_not() -> None:
    # So many prefixes that a request or two, which chance sends elsewhere, do not decide.
    none, snapshot, without = handed(Traffic(Kind("ladder", "ladder", speeds=FOUR), 8.0), 2, 2)
    assert (none.arm, snapshot.arm, without.arm) == ("none", "snapshot", "without")
    assert changes.handed_well(snapshot, none)
    assert without.went.share < 0.9 * snapshot.went.share


@pytest.mark.usefixtures("short")
def test_a_cold_fleet_comes_back() -> None:
    kind = Kind("chat", "chat", profile="llama3-70b-4xa100", speeds=(1.0, 1.0))
    for deploy in ("once", "rolling"):
        row = cold(kind, "prefix_affinity", deploy, 0.5, 8.0, 1)
        assert row.recovery.seconds is not None
        assert (row.recovery.failed > 0) == (deploy == "once"), "nobody is there for 5 s"


def test_the_warm_knee_is_a_rate_at_which_goodput_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = Kind("uniform", "uniform", speeds=(1.0,))
    looked: list[float] = []

    def search(_kind: Kind, goodput: Callable[[float], float]) -> float:
        looked.extend(goodput(rate) for rate in (4.0, 100.0))
        return 1.0

    monkeypatch.setattr(changes_cells, "search", search)
    assert warm_knee(kind, "round_robin", 1, 10.0) == 1.0
    assert looked[0] > 0.9 > looked[1]


# Tables.


def test_tables_sum_over_seeds_and_name_what_was_missed() -> None:
    well, bad = Kept(100, 97, 0), Kept(100, 92, 0)
    join = changes_cells.Placed("chat", "join", well, well, well, 1.0, (0.1, 0.1, 0.1))
    leave = replace(join, change="leave", kept=bad, share=None)
    table, missed = changes.replicas_table([join, replace(join, kept=bad, share=0.5), leave])
    assert cells(table, "goal") == ["MISSED", "MISSED"]
    assert (cells(table, "kept %"), cells(table, "share"), missed) == (["94.5", "92.0"], ["0.75", ""], 2)


def test_a_restart_without_a_snapshot_has_no_goal_to_miss() -> None:
    none = changes_cells.Handed("chat", 1, "none", Kept(0, 0, 0), Kept(9, 9, 0), (0.9, 0.9), (0.1, 0.1))
    snapshot = replace(none, arm="snapshot", kept=Kept(100, 97, 0))
    without = replace(none, arm="without", kept=Kept(100, 7, 0))
    table, missed = changes.routers_table([none, snapshot, without])
    assert (cells(table, "goal"), missed) == (["", "met", ""], 0)
    assert changes.routers_table([none, replace(snapshot, went=Kept(9, 8, 0))])[1] == 1


def test_what_never_came_back_is_said() -> None:
    table = changes.fleet_table([Cold("chat", "p", "once", 0.8, 10.0, 1, Recovery(None, 2.0, 1.0, 3))])
    assert [cells(table, name) for name in ("back, s", "worst TTFT s", "failed")] == [["never"], ["2.00 (1.00)"], ["3"]]


def test_headroom_ends_at_the_first_load_that_is_not_back_soon() -> None:
    row = Cold("chat", "p", "once", 0.4, 10.0, 1, Recovery(10.0, 2.0, 1.0, 3))
    late, luck = replace(row, load=0.6, recovery=Recovery(61.0, 2.0, 1.0, 3)), replace(row, load=0.8)
    never = replace(row, deploy="rolling", recovery=Recovery(None, 2.0, 1.0, 3))
    table = changes.headroom_table([row, late, luck, never])
    assert cells(table, "back in 60 s up to") == ["0.4 of its knee", "none"]
    assert cells(table, "requests/s") == ["4", ""]


def cells(table: Table, name: str) -> list[object]:
    return next(list(column.cells) for column in table.columns if column.header == name)


def test_a_router_that_restarts_with_its_snapshot_is_told_who_holds_what() -> None:
    play = family(*[index / 4 for index in range(60)], groups=20)
    plan = FleetPlan("llama3-8b-h100", FOUR)
    hits = {}
    for snapshot in (True, False):
        outcome = simulate(play, plan, ROUTERS, 1, [RouterRestart(10.0, 1, snapshot)])
        after = [each.cached_tokens for each in outcome.records if each.sent_s > 10.0]
        hits[snapshot] = sum(cached > 0 for cached in after) / len(after)
    assert hits[True] == 1.0
    assert hits[False] < 1.0


def test_the_old_process_ends_what_it_has_and_then_says_goodbye() -> None:
    play = family(*[index / 4 for index in range(60)], groups=4)
    two = replace(ROUTERS, shares=(1.0, 1.0))
    outcome = simulate(play, FleetPlan("llama3-8b-h100", FOUR), two, 1, [RouterRestart(7.0, 2), RouterRestart(9.0, 2)])
    assert all(each.error is None for each in outcome.records)
    assert set(outcome.routers) == {1, 2}
    assert math.isclose(sum(outcome.routers) / 60, 1.5, abs_tol=0.3)
