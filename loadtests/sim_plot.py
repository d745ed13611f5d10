"""Rows of simulated runs as a drawing: hit ratio against TTFT p99 and against goodput, a point for each arm.

Points are medians over seeds, bars their ranges; the points of a sweep over amounts are joined in its order. Arms that
fall on one point have one label. The knee is ringed where there is one (sim_report). Only this file imports matplotlib,
and only when something is drawn.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from loadtests.sim_report import FIGURES, by_arm, knee, of, setting_of, work_of
from loadtests.sim_rows import Row, Spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ONE_POINT = 0.02
"""Share of the width and of the height within which points have one label: the height of a letter."""

EDGE = 0.85
"""Share of the width beyond which a label stands on the left of its point, to be within the frame."""

MOST = 105.0
"""Where the axes of shares end at the latest, in %: a point at 100 has room for its label."""

LEAST = -0.04
"""Where an axis begins at the earliest, as a share of where it ends: nothing is negative."""

AGAINST = ("TTFT p99 s", "goodput %")


class NoPlotError(RuntimeError):
    """There is nothing to draw with, or nowhere to draw to."""


class _Point(NamedTuple):
    """One arm's place, with the ranges over seeds."""

    x: Spread
    y: Spread


def require(path: Path) -> None:
    """Raises NoPlotError when a drawing could not be written there: to be asked before an hour is simulated."""
    try:
        from matplotlib.backend_bases import FigureCanvasBase
    except ModuleNotFoundError:
        raise NoPlotError("--plot takes matplotlib: pip install 'homing[plot]'") from None
    kinds = sorted(FigureCanvasBase.get_supported_filetypes())
    if path.suffix.removeprefix(".") not in kinds:
        raise NoPlotError(f"--plot {path}: the name ends in one of {', '.join(kinds)}")
    if not path.absolute().parent.is_dir():
        raise NoPlotError(f"--plot {path}: no directory {path.absolute().parent}")


def draw(rows: Sequence[Row], path: Path) -> None:
    """Draw them. Raises NoPlotError as `require` does, OSError when the file cannot be written."""
    require(path)
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 5), layout="constrained")
    figure.suptitle(work_of(rows), fontsize="medium")
    for axes, name in zip(figure.subplots(1, 2), AGAINST, strict=True):
        points = {arm: _Point(_scaled(own, "hit %"), _scaled(own, name)) for arm, own in by_arm(rows).items()}
        _draw_points(axes, list(points.values()), joined=setting_of(rows) not in {"", "policy", "routing.policy"})
        axes.set_xlim(_within(axes.get_xlim(), MOST))
        axes.set_ylim(_within(axes.get_ylim(), MOST if name.endswith("%") else math.inf))
        _draw_knee(axes, points, knee(rows))
        _draw_labels(axes, points)
        axes.set_xlabel("hit ratio, %")
        axes.set_ylabel(name.replace(" s", ", s").replace(" %", ", %"))
    figure.savefig(path)


def _draw_points(axes: "Axes", points: Sequence[_Point], joined: bool) -> None:
    if joined:
        axes.plot([x.median for x, _ in points], [y.median for _, y in points], color="lightgray", zorder=1)
    for x, y in points:
        axes.errorbar(x.median, y.median, _bars(y), _bars(x), fmt="o", color="tab:blue", capsize=2, zorder=2)
    axes.margins(0.15)


def _draw_knee(axes: "Axes", points: Mapping[str, _Point], marked: str | None) -> None:
    if marked is not None:
        x, y = points[marked]
        axes.plot([x.median], [y.median], "o", color="tab:red", markersize=14, fillstyle="none", label="the knee")
    elif len(points) > 1:
        axes.plot([], [], " ", label="no difference: no knee")
    if marked is not None or len(points) > 1:
        axes.legend(loc="best")


def _draw_labels(axes: "Axes", points: Mapping[str, _Point]) -> None:
    """A label for each place; arms that are nearer to one than a letter's height share it."""
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    labels: list[tuple[float, float, list[str]]] = []
    for arm, (x, y) in points.items():
        name = arm.rpartition("=")[2]
        for at_x, at_y, names in labels:
            if abs(x.median - at_x) < ONE_POINT * (right - left) and abs(y.median - at_y) < ONE_POINT * (top - bottom):
                names.append(name)
                break
        else:
            labels.append((x.median, y.median, [name]))
    for at_x, at_y, names in labels:
        on_the_right = at_x > left + EDGE * (right - left)
        axes.annotate(
            ", ".join(names),
            (at_x, at_y),
            textcoords="offset points",
            xytext=(-8 if on_the_right else 8, 8),
            horizontalalignment="right" if on_the_right else "left",
        )


def _within(limits: tuple[float, float], bound: float) -> tuple[float, float]:
    most = min(limits[1], bound)
    return max(limits[0], LEAST * most), most


def _bars(spread: Spread) -> list[list[float]]:
    """How far a range reaches below and above its median."""
    return [[spread.median - spread.least], [spread.most - spread.median]]


def _scaled(rows: Sequence[Row], name: str) -> Spread:
    scale, found = FIGURES[name][1], of(rows, name)
    return Spread(found.median * scale, found.least * scale, found.most * scale)
