"""The table of policies: its kinds, its knees, its verdicts, and that nothing is run twice."""

from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from typer import Typer
from typer.testing import CliRunner

from loadtests import table
from loadtests.plays_made import WORKLOADS
from loadtests.sim_rows import Key, Row, read
from loadtests.table_kinds import Kind, agents, kinds, search, window
from loadtests.table_verdict import OURS, Verdict, by_ranges, judge, show
from loadtests.traces import TraceRequest, write

ROW = Row(Key("whale", "at", 9.0, OURS, 1), 10, 0, 0.9, 0.5, 0.6, 0.2, 0.3, 0.4, 0.01, 1.1, 0.55, 0.5)

SESSIONS = [
    TraceRequest(turn, 600, 9, (session * 10, session * 10 + 1 + turn), f"s{session}", turn, 1.0)
    for session in range(3)
    for turn in range(4)
]


def rows(arm: str, *goodputs: float) -> list[Row]:
    return [
        replace(ROW, key=replace(ROW.key, arm=arm, seed=seed), goodput=goodput) for seed, goodput in enumerate(goodputs)
    ]


def verdict(*more: list[Row]) -> Verdict:
    found = judge([*rows(OURS, 0.7, 0.8, 0.9), *[row for own in more for row in own]], "goodput %")
    assert found is not None
    return found.verdict


def test_who_is_better_for_every_seed_is_first_though_the_seeds_differ_more_than_the_arms() -> None:
    assert verdict(rows("a", 0.69, 0.79, 0.89), rows("b", 0.1, 0.2)) is Verdict.FIRST
    assert verdict(rows("a", 0.69, 0.79, 0.91)) is Verdict.SAME
    assert verdict(rows("a", 0.7, 0.8, 0.9)) is Verdict.SAME
    assert verdict(rows("a", 0.71, 0.81, 0.91), rows("b", 0.1, 0.2)) is Verdict.LOSES


@pytest.mark.parametrize(
    ("others", "found"),
    [((0.1, 0.6), Verdict.FIRST), ((0.1, 0.7), Verdict.SAME), ((0.9, 1.0), Verdict.SAME), ((0.91, 1.0), Verdict.LOSES)],
)
def test_by_ranges_arms_differ_that_do_not_overlap(others: tuple[float, float], found: Verdict) -> None:
    ours = rows(OURS, 0.7, 0.8, 0.9)
    assert by_ranges([*ours, *rows("a", *others), *rows("b", 0.1)], "goodput %") is found
    assert by_ranges(ours, "goodput %") is None
    assert by_ranges(rows("a", 0.1), "goodput %") is None


def test_less_time_is_better() -> None:
    slower = [replace(row, ttft_mean=0.3) for row in rows("a", 1.0, 1.0, 1.0)]
    found = judge([*rows(OURS, 0.7, 0.8, 0.9), *slower], "TTFT mean s")
    assert found is not None
    assert (found.verdict, found.best) == (Verdict.FIRST, "a")


def test_without_ours_or_without_others_there_is_no_verdict() -> None:
    assert judge(rows("a", 1.0), "goodput %") is None
    assert judge(rows(OURS, 1.0), "goodput %") is None


def test_lost_cells_are_printed() -> None:
    console = Console(width=200, record=True)
    show(console, [*rows(OURS, 0.7, 0.8), *rows("a", 0.9, 0.95)], every_arm=True)
    said = console.export_text()
    assert "Lost: whale at, goodput %: by a (92.5 against 75.0)" in said
    assert "goodput %: first 0, no difference 0, loses 1 of 1 cells." in said
    assert said.count("whale, at: 9") == 1


@pytest.mark.parametrize("truth", [0.3, 7.0, 31.0, 900.0])
def test_the_knee_is_found_wherever_it_is(truth: float) -> None:
    knee = search(Kind("uniform", workload="uniform"), lambda rate: 1.0 if rate <= truth else 0.5)
    assert truth / 1.06 <= knee <= truth


def test_a_knee_in_sessions_is_a_whole_number() -> None:
    kind = Kind("agents", trace=Path("nowhere"), closed=True)
    assert search(kind, lambda rate: 1.0 if rate <= 7.0 else 0.5) == 7.0


def test_every_workload_is_a_kind_and_traces_bring_their_own() -> None:
    without = {kind.name for kind in kinds({})}
    assert without == {*WORKLOADS, "slow_chat"}
    paths = {name: Path(name) for name in ("conversation", "synthetic", "agents")}
    assert {kind.name for kind in kinds(paths)} - without == {"conversation", "slow", "synthetic", "agents"}


def test_a_kind_from_a_trace_is_a_window_of_it_at_the_rate_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    write(path, [TraceRequest(i * 1_000, 600, 9, (0, i + 1)) for i in range(50)])
    kind = Kind("conversation", trace=path)
    play = kind.play(1, 20, 4.0)
    assert play.requests == 20
    assert play.rate == pytest.approx(4.0)
    assert kind.play(2, 20, 4.0).sha256() != play.sha256()
    assert window(range(5), 1, 9) == list(range(5))  # type: ignore[arg-type, comparison-overlap]


def test_agents_are_whole_sessions_up_to_their_share_and_copies_share_nothing(tmp_path: Path) -> None:
    chosen = agents(SESSIONS, 1, 15, 5)
    sizes: dict[str | None, int] = {}
    for request in chosen:
        sizes[request.session_id] = sizes.get(request.session_id, 0) + 1
    assert sorted(sizes.values()) == [3] * 5
    ids = {session: {i for r in chosen if r.session_id == session for i in r.hash_ids} for session in sizes}
    assert len(set.union(*ids.values())) == sum(len(own) for own in ids.values())
    path = tmp_path / "trace"
    write(path, SESSIONS)
    parts = Kind("agents", trace=path, closed=True).play(1, 15, 5.0).parts
    assert [part.start_s for part in parts] == [0.0, 24.0, 48.0, 72.0, 96.0]


def run(*args: object) -> str:
    app = Typer()
    app.command()(table.main)
    result = CliRunner().invoke(app, [str(arg) for arg in args])
    assert result.exit_code == 0, result.output
    return result.output


def test_what_is_in_the_file_is_not_run_again(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    flags = ("--rows", path, "--only", "whale", "--policy", OURS, "--policy", "round_robin", "--requests", 50)
    said = run(*flags, "--processes", 1)
    lines = path.read_bytes().splitlines(keepends=True)
    cells = [row.key for row in read(path) if row.key.load != table.SEARCH]
    assert len(cells) == len(set(cells)) >= 18
    path.write_bytes(b"".join(lines[:-3]) + lines[-3][:40])
    assert run(*flags, "--processes", 1).splitlines()[-6:] == said.splitlines()[-6:]
    assert sorted(path.read_bytes().splitlines()) == sorted(line.rstrip() for line in lines)
    assert "whale, at" in run(*flags, "--show")


def test_runs_of_another_length_are_not_mixed_in(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(table.measure(table.Cell(Kind("whale", workload="whale"), "at", 99.0, "round_robin", 1, 50)))
    app = Typer()
    app.command()(table.main)
    refused = CliRunner().invoke(app, ["--rows", str(path), "--only", "whale", "--requests", "60"])
    assert refused.exit_code == 2
    assert "has runs of 50 requests" in refused.output
