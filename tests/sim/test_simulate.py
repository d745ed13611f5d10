"""`homing simulate`: its flags, its rows, its table, and what it says of mistakes."""

import json
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from loadtests import sim_report
from loadtests.plays_made import WORKLOADS
from loadtests.sim_rows import Key, NothingAnsweredError, Row, append, line, parse, read, spread
from loadtests.simulate import PLAIN_WIDTH
from loadtests.simulation import FleetPlan, RouterPlan, simulate
from loadtests.traces import TraceRequest, write
from router.cli import main
from router.core.policy import PrefixAffinity

ROW = Row(Key("w", "-", 1.0, "a", 1), 10, 1, 0.9, 0.5, 0.6, 0.2, 0.3, 0.4, 0.01, 1.1, 0.55, 0.5)


def row(arm: str, goodput: float, p99: float, seed: int = 1, hit: float = 0.5) -> Row:
    return replace(ROW, key=replace(ROW.key, arm=arm, seed=seed), goodput=goodput, ttft_p99=p99, hit_ratio=hit)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "router.yaml"
    path.write_text("replicas:\n  - {id: r1, url: 'http://127.0.0.1:8101'}\n")
    return path


def run(*args: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["simulate", *map(str, args)])
    code = ended.value.code
    assert isinstance(code, int)
    return code


def test_a_sweep_over_a_trace_is_a_row_for_each_value_and_a_marked_knee(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, out = tmp_path / "trace.jsonl", tmp_path / "rows.jsonl"
    write(trace, [TraceRequest(i * 10, 900 + i, 5, (0, 1 + i)) for i in range(30)])
    flags = ("--replicas", 2, "--seeds", 2, "--json", out, "--sweep", "max_concurrency=1,null")
    assert run("-c", config, "--trace", trace, *flags) == 0
    said = capsys.readouterr().out
    assert "30 requests" in said
    assert "2 repeats: indicative." in said
    assert said.count("*") == 2, "the knee, and what that means"
    arms = ["max_concurrency=1", "max_concurrency=null"]
    rows = read(out)
    assert [(each.key.arm, each.key.seed) for each in rows] == [(arm, seed) for seed in (1, 2) for arm in arms]
    report = json.loads(out.read_text().splitlines()[0])["report"]
    assert report["schema"] == "homing.report/1"
    assert report["replicas"] == {"n": 2, "profile": "llama3-8b-h100", "blocks": 7296, "block_size": 64, "speed": 1.0}
    assert report["arms"][0]["policy"] == arms[0]


@pytest.mark.parametrize("age", ["0.5", "dead"])
def test_a_workload_runs_behind_several_routers(age: str, config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--rate", 20, "--requests", 40, "--replicas", 2, "--routers", "3,1", "--news", age)
    assert run("-c", config, "--workload", "whale", *flags) == 0
    assert "prefix_affinity" in capsys.readouterr().out


def test_events_change_the_fleet_and_are_told_beside_the_table(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "rows.jsonl"
    flags = ("--rate", 20, "--requests", 400, "--replicas", 2, "--event", "restart 2 for 2@5", "--event", "join@8")
    assert run("-c", config, "--workload", "uniform", *flags, "--event", "leave 1@600", "--json", out) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "restart 2 for 2@5 prefix_affinity" in said
    assert "join@8 prefix_affinity" in said
    assert "leave 1@600: everything was over before." in said
    (told,) = (json.loads(text) for text in out.read_text().splitlines())
    assert told["key"]["load"] == "restart 2 for 2@5, join@8, leave 1@600"
    assert set(told["report"]["arms"][0]["requests_per_replica"]) == {"r1", "r2", "r3"}


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        ((), "one of --trace and --workload"),
        (("--workload", "wale"), "one of ladder"),
        (("--workload", "whale"), "needed by --workload"),
        (("--workload", "whale", "--rate", "9", "--profile", "tpu"), "one of llama3-8b-h100"),
        (("--workload", "whale", "--rate", "9", "--event", "jion@5"), "--event: 'jion@5': no such event: did you mean"),
        (("--workload", "whale", "--rate", "9", "--event", "leave 9@5"), "no replica r9 at 5 s: there are r1, r2"),
    ],
)
def test_wrong_flags_are_named(
    flags: tuple[str, ...], complaint: str, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("-c", config, *flags) == 2
    assert complaint in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (("--sweep", "spill.max_backlog_secnds=1"), "did you mean `spill.max_backlog_seconds`?"),
        (("--sweep", "spill=1"), "no setting `spill` in `routing`"),
        (("--sweep", "spill.max_backlog_seconds=1,x"), "max_backlog_seconds=x: `max_backlog_seconds` is a number"),
        (("--sweep", "spill.max_backlog_seconds"), "SETTING=VALUE,VALUE"),
        (("--sweep", "prefix_block=100"), "multiple of 256"),
        (("--routers", "two"), "two"),
        (("--routers", "0"), "at least one share"),
        (("--news", "-1"), "not negative"),
        (("--replicas", "1", "--profile", "llama3-8b-h100", "--json", "/nowhere/rows"), "/nowhere/rows"),
    ],
)
def test_mistakes_are_told_without_a_traceback(
    flags: tuple[str, ...], complaint: str, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("-c", config, "--workload", "uniform", "--rate", "9", "--requests", "5", *flags) == 1
    said = capsys.readouterr().err
    assert complaint in said
    assert "Traceback" not in said
    assert "HOMING__" not in said, "nobody has set a variable"


def test_a_run_survives_being_written_and_read_and_a_cut_last_line_is_left_out(tmp_path: Path) -> None:
    play, plan = WORKLOADS["whale"](1, 40, 20.0), FleetPlan("llama3-8b-h100", (1.0, 1.0))
    text = line(ROW.key, play, plan, simulate(play, plan, RouterPlan(PrefixAffinity), 1))
    path = tmp_path / "rows"
    assert read(path) == []
    append(path, text)
    append(path, text[: len(text) // 2])
    assert read(path) == [parse(text)]
    told = parse(text)
    assert (told.requests, told.errors) == (40, 0)
    assert told.hit_ratio <= told.ceiling
    assert told.predicted <= told.reachable


def test_a_run_in_which_nothing_was_answered_has_no_row() -> None:
    play, plan = WORKLOADS["whale"](1, 5, 20.0), FleetPlan("llama3-8b-h100", (1.0,), kv_tokens=640)
    with pytest.raises(NothingAnsweredError, match="no request was answered"):
        line(ROW.key, play, plan, simulate(play, plan, RouterPlan(PrefixAffinity), 1))


def test_the_knee_is_the_most_goodput_and_among_equals_the_least_ttft() -> None:
    rows = [row("x=1", 0.80, 0.1), row("x=2", 0.900, 3.0), row("x=3", 0.899, 2.0), row("x=4", 0.89, 1.0)]
    assert sim_report.knee(rows) == "x=3"


def test_ranges_that_overlap_are_no_difference() -> None:
    rows = [row("a", 0.8, 1.0), row("a", 0.9, 2.0, 2), row("b", 0.85, 3.0), row("b", 0.95, 4.0, 2)]
    said = sim_report.notes(rows, "b")
    assert "goodput %: no difference (the ranges overlap)." in said
    assert not any(note.startswith("TTFT p99 s: no") for note in said)


def test_a_spread_is_median_and_range() -> None:
    assert spread([3.0, 1.0, 2.0]).text() == "2.0 [1.0, 3.0]"
    assert spread([0.5]).text(100, 0) == "50"


def test_a_knee_that_is_no_other_than_all_the_rest_is_none() -> None:
    same = [row("x=1", 0.9, 1.0), row("x=2", 0.9, 1.0)]
    assert sim_report.knee(same) is None
    assert "*" not in shown(same, 160)
    overlapping = [row("x=1", 0.8, 1.0), row("x=1", 0.9, 2.0, 2), row("x=2", 0.85, 1.5), row("x=2", 0.95, 4.0, 2)]
    assert sim_report.knee(overlapping) is None
    assert sim_report.knee([*overlapping, row("x=3", 0.5, 1.5)]) == "x=2"
    assert sim_report.knee([row("a", 0.9, 1.0)]) is None


def shown(rows: list[Row], width: int) -> str:
    said = StringIO()
    sim_report.show(Console(width=width, file=said), rows)
    return said.getvalue()


def test_the_table_fits_eighty_columns() -> None:
    rows = [row("spill.max_backlog_seconds=0.5", 0.8, 1.0), row("spill.max_backlog_seconds=1", 0.9, 2)]
    assert "…" not in shown(rows, 80)


def test_ranges_over_seeds_are_shown_whole_in_a_pipe_and_on_a_narrow_terminal() -> None:
    rows = [row(f"x={arm}", 0.8 + seed / 100, 50.123 + seed, seed) for arm in (1, 2) for seed in (1, 2, 3)]
    for width in (PLAIN_WIDTH, 100):
        said = shown(rows, width)
        assert "…" not in said
        assert all(figure in said for figure in ("82.0", "81.0,", "83.0]", "52.12", "51.12,", "53.12]"))
