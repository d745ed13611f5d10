"""The drawing of simulated runs: what is in it, and what is said before an hour is simulated in vain."""

import sys
from pathlib import Path

import pytest

from loadtests import sim_plot
from loadtests.sim_plot import NoPlotError
from loadtests.sim_rows import Row
from tests.sim.test_simulate import row

SWEEP = [
    row("spill.max_backlog_seconds=0.5", 0.70, 9.0, hit=0.40),
    row("spill.max_backlog_seconds=0.5", 0.72, 9.5, 2, hit=0.42),
    row("spill.max_backlog_seconds=1", 0.90, 2.0, hit=0.60),
    row("spill.max_backlog_seconds=1", 0.92, 2.2, 2, hit=0.61),
    row("spill.max_backlog_seconds=5", 0.80, 3.0, hit=0.65),
    row("spill.max_backlog_seconds=5", 0.82, 3.3, 2, hit=0.66),
    row("spill.max_backlog_seconds=18", 0.80, 3.0, hit=0.65),
    row("spill.max_backlog_seconds=18", 0.82, 3.3, 2, hit=0.66),
]


def drawn(rows: list[Row], tmp_path: Path) -> str:
    """The drawing's texts and shapes: SVG with text as text."""
    import matplotlib as mpl

    path = tmp_path / "plot.svg"
    with mpl.rc_context({"svg.fonttype": "none"}):
        sim_plot.draw(rows, path)
    return path.read_text()


def test_without_matplotlib_there_is_a_table_and_no_drawing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(NoPlotError, match=r"pip install 'homing\[plot\]'"):
        sim_plot.require(tmp_path / "plot.png")


@pytest.mark.parametrize(
    ("name", "complaint"),
    [("plot.xyz", "ends in one of .*png"), ("plot", "ends in one of"), ("nowhere/plot.png", "no directory")],
)
def test_a_drawing_that_could_not_be_written_is_refused_first(name: str, complaint: str, tmp_path: Path) -> None:
    with pytest.raises(NoPlotError, match=complaint):
        sim_plot.require(tmp_path / name)


def test_a_sweep_is_drawn_with_its_knee_and_one_label_for_each_place(tmp_path: Path) -> None:
    said = drawn(SWEEP, tmp_path)
    for text in ("hit ratio, %", "TTFT p99, s", "goodput, %", "the knee", "2 repeats: indicative"):
        assert f">{text}<" in said or text in said
    assert said.count(">5, 18<") == 2, "one in each panel"
    assert said.count(">1<") == 2


def test_arms_that_do_not_differ_have_no_knee(tmp_path: Path) -> None:
    said = drawn([row("x=1", 1.0, 1.0), row("x=2", 1.0, 1.0)], tmp_path)
    assert ">the knee<" not in said
    assert "no difference" in said
    assert said.count(">1, 2<") == 2


def test_one_arm_is_a_point(tmp_path: Path) -> None:
    said = drawn([row("prefix_affinity", 0.9, 1.0)], tmp_path)
    assert said.count(">prefix_affinity<") == 2
    assert "knee" not in said
