"""From samples to what is said: medians over the rounds, ratios between arms, goals met or missed, table and JSON.

A machine that others use drifts, so figures in microseconds are worth little by themselves. What counts is the ratio of
two arms in the same round, a few seconds apart, and of the rounds' ratios the median; it need not be the ratio of the
medians that stand beside it. Pure but for `machine`.
"""

import json
import os
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from rich.box import SIMPLE_HEAD
from rich.table import Table

from loadtests.bench_cells import ADDED, BESIDE, CHUNK, FIRST_BYTE, Plan, Sample, size_name

SCHEMA = "homing.bench_proxy/1"
STANDIN = "stand-in"
"""The arm that is the replica itself, with nothing in front: what the measurement cannot see below."""
MIN_ROUNDS = 3

Figures = Mapping[str, Mapping[str, Mapping[int, float]]]
"""Arm, cell, round: the value. What could not be measured is left out."""


@dataclass(frozen=True, slots=True)
class Goal:
    """At most this: as a ratio to the same cell of the arm `against`, or in the cell's own unit without one."""

    cell: str
    against: str | None
    at_most: float
    stretch: float | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """A goal and what was measured; None when an arm was not there or a cell failed."""

    goal: Goal
    measured: float | None

    @property
    def word(self) -> str:
        """How it came out."""
        goal, measured = self.goal, self.measured
        if measured is None:
            return "not measured"
        if measured > goal.at_most:
            return "missed"
        return "stretch met" if goal.stretch is not None and measured <= goal.stretch else "met"


def _per_size(against: str, at_most: tuple[float, float, float], stretch: float) -> list[Goal]:
    sizes = zip((0.5, 8, 32), at_most, strict=True)
    return [Goal(size_name(kib), against, most, stretch) for kib, most in sizes]


GOALS = (
    *_per_size("vllm-router", (0.35, 0.35, 0.35), 0.25),
    *_per_size("sglang-router", (0.5, 0.5, 0.7), 0.35),
    *_per_size("nginx", (3.5, 3.5, 6.0), 2.5),
    Goal(CHUNK, "nginx", 1.3, 1.0),
    Goal(ADDED, None, 0.5),
    Goal(FIRST_BYTE, None, 0.7),
    Goal(BESIDE, None, 50.0),
)
"""What Homing sets itself. nginx is the practical limit of a proxy that reads nothing; the two routers do the same work
as Homing. 0.5 ms is a thousandth of a usual time to first token; 50 ms is what one notices."""

TITLES = {
    ADDED: "latency added",
    FIRST_BYTE: "added to first byte",
    BESIDE: "worst beside 16 MiB body",
}
"""What the cells in milliseconds are. Never written to."""


def figures(samples: Iterable[Sample]) -> Figures:
    """The values of samples that have one; arms and cells in the order of the samples, an arm without any value too."""
    of: dict[str, dict[str, dict[int, float]]] = {}
    for sample in samples:
        cells = of.setdefault(sample.arm, {})
        if sample.value is not None:
            cells.setdefault(sample.cell, {})[sample.round] = sample.value
    return of


def middle(of: Figures, arm: str, cell: str) -> float | None:
    """The median over the rounds; None where no round has a value."""
    values = of.get(arm, {}).get(cell, {}).values()
    return median(values) if values else None


def ratio(of: Figures, arm: str, to: str, cell: str) -> float | None:
    """How many times the cell of `to` that of `arm` is, by the median of the rounds that have both; None without any.

    A round in which `to` used nothing that the meter could see has no ratio.
    """
    above, below = of.get(arm, {}).get(cell, {}), of.get(to, {}).get(cell, {})
    ratios = [value / below[number] for number, value in above.items() if below.get(number)]
    return median(ratios) if ratios else None


def judge(of: Figures, arm: str, goals: Iterable[Goal] = GOALS) -> list[Verdict]:
    """Each goal, by what `arm` made of it."""
    return [
        Verdict(goal, middle(of, arm, goal.cell) if goal.against is None else ratio(of, arm, goal.against, goal.cell))
        for goal in goals
    ]


def cpu_table(of: Figures, judged: str, cells: Sequence[str]) -> Table:
    """Microseconds, a row for each arm; behind a peer's figure, how many times it the judged arm takes."""

    def figure(arm: str, cell: str) -> str:
        value, times = middle(of, arm, cell), ratio(of, judged, arm, cell)
        told = "" if times is None or arm in {judged, STANDIN} else f" ({times:.2f}x)"
        return "-" if value is None else f"{value:.{0 if value >= 100 else 1}f}{told}"

    return _grid(of, cells, figure)


def latency_table(of: Figures, cells: Sequence[str]) -> Table:
    """Milliseconds, a row for each arm."""

    def figure(arm: str, cell: str) -> str:
        value = middle(of, arm, cell)
        return "-" if value is None else f"{value:.3f}"

    return _grid(of, cells, figure)


def _grid(of: Figures, cells: Sequence[str], figure: Callable[[str, str], str]) -> Table:
    grid = Table(box=SIMPLE_HEAD)
    for name in ("arm", *cells):
        grid.add_column(name, justify="left" if name == "arm" else "right", no_wrap=True)
    for arm in of:
        grid.add_row(arm, *(figure(arm, cell) for cell in cells))
    return grid


def goals_table(verdicts: Sequence[Verdict]) -> Table:
    """A row for each goal."""
    grid = Table(box=SIMPLE_HEAD)
    for name in ("goal", "at most", "stretch", "measured", "verdict"):
        grid.add_column(name, justify="left" if name in {"goal", "verdict"} else "right", no_wrap=True)
    for verdict in verdicts:
        goal = verdict.goal
        unit = " ms" if goal.against is None else "x"
        stretch = "" if goal.stretch is None else f"{goal.stretch:g}{unit}"
        measured = "-" if verdict.measured is None else f"{verdict.measured:.2f}{unit}"
        grid.add_row(_title(goal), f"{goal.at_most:g}{unit}", stretch, measured, verdict.word)
    return grid


def _title(goal: Goal) -> str:
    if goal.against is not None:
        return f"{goal.cell} over {goal.against}"
    return TITLES[goal.cell]


def notes(samples: Sequence[Sample], plan: Plan) -> list[str]:
    """What a reader of the table must know beside it: failures, and how far it can be trusted."""
    lines = [f"{sample.arm}, {sample.cell}, round {sample.round}: {sample.problem}" for sample in samples
             if sample.problem]  # fmt: skip
    if plan.rounds < MIN_ROUNDS or plan.seconds < Plan().seconds:
        lines.append(f"{plan.rounds} rounds of {plan.seconds:g} s: indicative. The default is {Plan().rounds} rounds "
                     f"of {Plan().seconds:g} s.")  # fmt: skip
    return lines


@dataclass(frozen=True, slots=True)
class Machine:
    """Where it was measured; `load` is the load average of the minute before, others' work included."""

    cpu: str
    cores: int
    kernel: str
    python: str
    load: float


def machine(cpuinfo: Path = Path("/proc/cpuinfo")) -> Machine:
    """This machine, now. Reads `cpuinfo` for the CPU's name, which some kernels do not tell."""
    lines = cpuinfo.read_text().splitlines()
    name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
    cores = len(os.sched_getaffinity(0))
    return Machine(name, cores, platform.release(), platform.python_version(), round(os.getloadavg()[0], 2))


def to_json(samples: Sequence[Sample], judged: str, plan: Plan, where: Machine) -> str:
    """The whole run: every sample, the medians, and the goals with their verdicts."""
    of = figures(samples)
    verdicts = [{**asdict(verdict.goal), "measured": verdict.measured, "verdict": verdict.word}
                for verdict in judge(of, judged)]  # fmt: skip
    whole = {
        "schema": SCHEMA,
        "machine": asdict(where),
        "plan": asdict(plan),
        "judged": judged,
        "medians": {arm: {cell: middle(of, arm, cell) for cell in cells} for arm, cells in of.items()},
        "goals": verdicts,
        "samples": [asdict(sample) for sample in samples],
    }
    return json.dumps(whole, indent=2, allow_nan=False) + "\n"
