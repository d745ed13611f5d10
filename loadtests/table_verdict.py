"""Rows of many cells as one table: who is first, where nobody is, and which cells the default policy loses.

Every seed is one play that all arms were given, so arms are compared seed by seed. An arm is better than another in a
figure when it is so for every seed that both have run; when some seeds say one thing and some the other, the range of
the differences holds 0 and there is no difference. Nothing is left out: losing cells are listed by name. Beside that
the cells are counted by the rule of other reports: no difference where two arms' ranges over the seeds overlap.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from loadtests.sim_report import FIGURES, by_arm
from loadtests.sim_rows import Row, spread

OURS = "prefix_affinity"

GAINS: dict[str, float] = {"goodput %": 1.0, "TTFT mean s": -1.0, "TTFT p99 s": -1.0}
"""What arms are judged by, and whether more (1) or less (-1) of it is better. Never written to."""


class Verdict(StrEnum):
    FIRST = "first"
    SAME = "no difference"
    LOSES = "loses"


Cell = tuple[str, str]
"""Workload and load."""


@dataclass(frozen=True, slots=True)
class Judged:
    """One figure in one cell: the verdict on our policy, the baseline with the best median, and who beats ours."""

    verdict: Verdict
    best: str
    beaten_by: tuple[str, ...]


def by_cell(rows: Iterable[Row]) -> dict[Cell, list[Row]]:
    """The rows of each cell, in the order in which cells first come."""
    cells: dict[Cell, list[Row]] = {}
    for row in rows:
        cells.setdefault((row.key.workload, row.key.load), []).append(row)
    return cells


def judge(rows: Sequence[Row], figure: str) -> Judged | None:
    """One figure in one cell; None while there is nothing to compare."""
    arms = by_arm(rows)
    ours = arms.pop(OURS, None)
    if not ours or not arms:
        return None
    take, gain = FIGURES[figure][0], GAINS[figure]
    best = max(arms, key=lambda arm: gain * spread(take(row) for row in arms[arm]).median)
    gains = {arm: differences(ours, own, lambda row: gain * take(row)) for arm, own in arms.items()}
    beaten_by = tuple(arm for arm, values in gains.items() if values and max(values) < 0)
    if beaten_by:
        return Judged(Verdict.LOSES, best, beaten_by)
    first = all(values and min(values) > 0 for values in gains.values())
    return Judged(Verdict.FIRST if first else Verdict.SAME, best, ())


def differences(ours: Iterable[Row], theirs: Iterable[Row], take: Callable[[Row], float]) -> list[float]:
    """How much more ours has, for each seed that both have run."""
    other = {row.key.seed: take(row) for row in theirs}
    return [take(row) - other[row.key.seed] for row in ours if row.key.seed in other]


def by_ranges(rows: Sequence[Row], figure: str) -> Verdict | None:
    """One figure in one cell by the ranges over the seeds: better is only who is so in every seed than in any."""
    arms = by_arm(rows)
    ours = arms.pop(OURS, None)
    if not ours or not arms:
        return None
    take, gain = FIGURES[figure][0], GAINS[figure]
    own = [gain * take(row) for row in ours]
    others = [[gain * take(row) for row in theirs] for theirs in arms.values()]
    if any(min(theirs) > max(own) for theirs in others):
        return Verdict.LOSES
    return Verdict.FIRST if all(max(theirs) < min(own) for theirs in others) else Verdict.SAME


def show(console: Console, rows: Sequence[Row], every_arm: bool) -> None:
    """The table, what is lost, and the sums; with `every_arm` each cell's arms, too."""
    cells = by_cell(rows)
    if every_arm:
        for cell, own in cells.items():
            _show_cell(console, cell, own)
    judged = {cell: {figure: judge(own, figure) for figure in GAINS} for cell, own in cells.items()}
    grid = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in ("workload", "load", "rate", "seeds", "ceiling\n%", "hit\n%", "max/\nmean"):
        grid.add_column(name, no_wrap=True, justify="left" if name in ("workload", "load") else "right")
    for figure in GAINS:
        grid.add_column(f"{figure}: ours\nbest baseline", no_wrap=True)
        grid.add_column("verdict", no_wrap=True)
    for cell, own in cells.items():
        grid.add_row(*_cells(cell, own, judged[cell]))
    console.print(grid)
    for note in [*_sums(judged.values()), *_ranges(cells.values()), *_lost(cells, judged)]:
        console.print(note, highlight=False, soft_wrap=True)


def _cells(cell: Cell, rows: Sequence[Row], judged: Mapping[str, Judged | None]) -> list[str]:
    arms = by_arm(rows)
    ours = arms.get(OURS, [])
    rate, seeds = rows[0].key.rate, len({row.key.seed for row in ours})
    shown = [*cell, f"{rate:.3g}", str(seeds), _text(rows, "ceiling")]
    shown += [_median(ours, "hit %"), _median(ours, "max/ mean")]
    for figure, found in judged.items():
        best = "-" if found is None else f"{_median(arms[found.best], figure)} {found.best}"
        shown += [f"{_median(ours, figure)}\n{best}", "-" if found is None else found.verdict.value]
    return shown


def _text(rows: Sequence[Row], name: str) -> str:
    return f"{spread(getattr(row, name) for row in rows).median * 100:.1f}"


def _median(rows: Sequence[Row], figure: str) -> str:
    take, scale, digits = FIGURES[figure]
    return f"{spread(take(row) for row in rows).median * scale:.{digits}f}" if rows else "-"


def _sums(judged: Iterable[Mapping[str, Judged | None]]) -> list[str]:
    cells = list(judged)
    lines = ["Medians over seeds. Arms are compared seed by seed: first or loses when every seed says so."]
    lines += [_count(figure, [each.verdict for cell in cells if (each := cell[figure])]) for figure in GAINS]
    return lines


def _ranges(cells: Iterable[Sequence[Row]]) -> list[str]:
    own = list(cells)
    lines = ["By the ranges over the seeds alone:"]
    lines += [_count(figure, [each for rows in own if (each := by_ranges(rows, figure))]) for figure in GAINS]
    return lines


def _count(figure: str, verdicts: Sequence[Verdict]) -> str:
    counts = Counter(verdicts)
    parts = ", ".join(f"{verdict.value} {counts[verdict]}" for verdict in Verdict)
    return f"{figure}: {parts} of {counts.total()} cells."


def _lost(cells: Mapping[Cell, Sequence[Row]], judged: Mapping[Cell, Mapping[str, Judged | None]]) -> list[str]:
    lines = []
    for cell, own in cells.items():
        arms = by_arm(own)
        for figure, found in judged[cell].items():
            if found is not None and found.beaten_by:
                ours = _median(arms[OURS], figure)
                by = ", ".join(f"{arm} ({_median(arms[arm], figure)} against {ours})" for arm in found.beaten_by)
                lines.append(f"Lost: {cell[0]} {cell[1]}, {figure}: by {by}")
    return lines


def _show_cell(console: Console, cell: Cell, rows: Sequence[Row]) -> None:
    grid = Table(title=f"{cell[0]}, {cell[1]}: {rows[0].key.rate:.3g}", title_justify="left", box=SIMPLE_HEAD)
    for name in ("arm", "seeds", "fail", *FIGURES):
        grid.add_column(name, no_wrap=True, justify="left" if name == "arm" else "right")
    for arm, own in sorted(by_arm(rows).items(), key=lambda item: -spread(row.goodput for row in item[1]).median):
        fails = str(sum(row.errors for row in own))
        figures = [spread(take(row) for row in own).text(scale, digits) for take, scale, digits in FIGURES.values()]
        grid.add_row(arm, str(len(own)), fails, *figures)
    console.print(grid)
