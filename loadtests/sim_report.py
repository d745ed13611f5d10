"""Rows of simulated runs as a table. It computes nothing that is not in the rows."""

from collections.abc import Callable, Iterable, Sequence
from itertools import combinations

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from loadtests.report import Slo
from loadtests.sim_rows import Row, Spread, spread

SAME = 0.005
"""Goodputs that differ by no more than this count as one when the knee is looked for: 10 requests of 2,000."""

ENOUGH_SEEDS = 5


Take = Callable[[Row], float]

FIGURES: dict[str, tuple[Take, float, int]] = {
    "goodput %": (lambda row: row.goodput, 100, 1),
    "TTFT mean s": (lambda row: row.ttft_mean, 1, 3),
    "TTFT p90 s": (lambda row: row.ttft_p90, 1, 2),
    "TTFT p99 s": (lambda row: row.ttft_p99, 1, 2),
    "TPOT mean ms": (lambda row: row.tpot_mean, 1_000, 1),
    "hit %": (lambda row: row.hit_ratio, 100, 1),
    "reach. %": (lambda row: row.reachable, 100, 1),
    "max/ mean": (lambda row: row.work_skew, 1, 2),
}
"""Heading, with its unit -> what of a row, times what, to how many digits. Never written to."""

VERDICTS = ("goodput %", "TTFT mean s", "TTFT p99 s")
"""By which arms are compared."""

KNEE = ("goodput %", "TTFT p99 s")
"""By which the knee is found."""


def by_arm(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """The rows of each arm, in the order in which arms first come."""
    arms: dict[str, list[Row]] = {}
    for row in rows:
        arms.setdefault(row.key.arm, []).append(row)
    return arms


def knee(rows: Iterable[Row]) -> str | None:
    """The arm with the most goodput; of those that are as good within SAME, the one with the least TTFT p99. None where
    it is no other than each of the others in both: their ranges over seeds overlap."""
    arms = by_arm(rows)
    goodput = {arm: of(own, "goodput %").median for arm, own in arms.items()}
    best = max(goodput.values())
    near = [arm for arm in arms if goodput[arm] >= best - SAME]
    found = min(near, key=lambda arm: of(arms[arm], "TTFT p99 s").median)
    alike = (_overlap(of(own, name) for own in (arms[found], arms[arm])) for arm in arms for name in KNEE)
    return None if all(alike) else found


def setting_of(rows: Sequence[Row]) -> str:
    """The setting whose values are the arms; empty where they are policies."""
    return rows[0].key.arm.rpartition("=")[0]


def work_of(rows: Sequence[Row]) -> str:
    """On what they were run, how often, and what of: one line for a heading."""
    first, setting = rows[0], setting_of(rows)
    of_what = f"routing.{setting.removeprefix('routing.')} on " if setting else ""
    return f"{of_what}{first.key.workload}: {first.requests} requests, {first.key.rate:.2f} a second; {_repeats(rows)}"


def show(console: Console, rows: Sequence[Row]) -> None:
    """Arms as rows: median [least, most] over seeds; the knee marked where there are several."""
    arms = by_arm(rows)
    marked = knee(rows)
    grid = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    setting = setting_of(rows)
    for name in ("value" if setting else "arm", "ok", "fail", *FIGURES):
        grid.add_column("\n".join(name.split()), justify="right", no_wrap=name in {"value", "arm", "ok", "fail"})
    for arm, own in arms.items():
        counts = (str(sum(row.requests - row.errors for row in own)), str(sum(row.errors for row in own)))
        figures = [
            of(own, name).text(scale, digits).replace(" [", "\n[") for name, (_, scale, digits) in FIGURES.items()
        ]
        name = arm.removeprefix(f"{setting}=")
        grid.add_row(f"* {name}" if arm == marked else name, *counts, *figures)
    console.print(grid)
    for note in notes(rows, marked):
        console.print(note, highlight=False, soft_wrap=True)


def notes(rows: Sequence[Row], marked: str | None) -> list[str]:
    """What a reader must know beside the table."""
    first, slo, arms, setting = rows[0], Slo(), by_arm(rows), setting_of(rows)
    lines = [
        *([f"Values of routing.{setting.removeprefix('routing.')}."] if setting else []),
        f"{first.key.workload}: {first.requests} requests, {first.key.rate:.2f} a second. "
        f"Hit ratio of one infinite cache: {first.ceiling:.1%}.",
        f"Goodput: TTFT <= {slo.ttft_s:g} s + {slo.ttft_s_per_1k_prompt_tokens * 1_000:g} ms per 1,000 prompt tokens, "
        f"TPOT <= {slo.tpot_s * 1_000:g} ms.",
        f"{_repeats(rows)}.",
    ]
    lines.append("reach.: what the best replica was believed to have. max/mean: of the tokens that replicas computed.")
    if marked is not None:
        lines.append(f"* the knee: most goodput, and of those within {SAME:.1%} of it the least TTFT p99.")
    if len(arms) > 1:
        alike = [name for name in VERDICTS if _overlap([of(own, name) for own in arms.values()])]
        lines += [f"{name}: no difference (the ranges overlap)." for name in alike]
    return lines


def _repeats(rows: Iterable[Row]) -> str:
    seeds = len({row.key.seed for row in rows})
    return f"{seeds} repeat{'' if seeds == 1 else 's'}" + (": indicative" if seeds < ENOUGH_SEEDS else "")


def of(rows: Iterable[Row], name: str) -> Spread:
    """A figure's spread over seeds, in the rows' own unit."""
    take = FIGURES[name][0]
    return spread(take(row) for row in rows)


def _overlap(spreads: Iterable[Spread]) -> bool:
    """Whether each two of them do."""
    return all(a.least <= b.most and b.least <= a.most for a, b in combinations(spreads, 2))
