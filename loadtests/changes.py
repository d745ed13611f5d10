"""`python -m loadtests.changes`: what joins, leaves, restarted routers and cold fleets cost, in simulated time.

Three tables, each a comparison with the same traffic when nothing happens. A goal that is missed is printed as such,
and makes the exit code 1. The measures are defined in `placement` and `recovery`, the runs in `changes_cells`. Cells
run in processes of their own; nothing is written.
"""

import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from itertools import chain, repeat
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from loadtests.changes_cells import Cold, Handed, Placed, Traffic, cold, handed, placed, warm_knee
from loadtests.placement import Kept
from loadtests.table_kinds import Kind, kinds

KEPT = 0.95
"""Goal: of the known prefixes that had no reason to move, at least so many stay."""

RATES = {"chat": 15.0, "ladder": 12.0, "whale": 100.0, "conversation": 3.5, "synthetic": 3.5}
"""Requests a second on eight replicas, about two thirds of what they can do."""

ROUTERS = (1, 2, 4)

POLICIES = ("prefix_affinity", "round_robin", "least_requests")
LOADS = (0.4, 0.6, 0.8, 1.0)
SOON_S = 60.0
COLD = ("chat", "conversation")
COLD_PROFILE, COLD_REPLICAS = {"chat": "llama3-70b-4xa100"}, 4
"""Slow replicas and few of them: a rolling deploy of eight fast ones is 100,000 requests."""

_EXISTING = typer.Option(exists=True, dir_okay=False, readable=True, help="A trace in Mooncake's format.")
Row = TypeVar("Row", Placed, Handed, Cold)
app = typer.Typer(add_completion=False, help=__doc__, no_args_is_help=True)

_Trace = Annotated[Path | None, _EXISTING]
_Only = Annotated[list[str] | None, typer.Option(help="This kind of traffic (may be given again).")]
_Scale = Annotated[float, typer.Option(min=0.01, help="Times the usual rates.")]
_Seeds = Annotated[int, typer.Option(min=1, help="Repeats, each with other traffic.")]
_Processes = Annotated[int, typer.Option(min=1, help="That simulate.")]


@app.command()
def replicas(
    conversation: _Trace = None,
    synthetic: _Trace = None,
    only: _Only = None,
    scale: _Scale = 1.0,
    seeds: _Seeds = 1,
    processes: _Processes = 2,
) -> None:
    """One replica of eight more, and one less: which prefixes keep their replica?"""
    cells = [(each, seed) for each in _traffic(conversation, synthetic, only, scale) for seed in range(1, seeds + 1)]
    with ProcessPoolExecutor(processes) as executor:
        rows = _told(chain.from_iterable(executor.map(placed, *zip(*cells, strict=True))))
    _end(*replicas_table(rows))


@app.command()
def routers(
    conversation: _Trace = None,
    synthetic: _Trace = None,
    only: _Only = None,
    scale: _Scale = 1.0,
    seeds: _Seeds = 1,
    processes: _Processes = 2,
) -> None:
    """One router of 1, 2 and 4 restarts: do requests go where they went?"""
    traffic = _traffic(conversation, synthetic, only, scale)
    cells = [(each, count, seed) for each in traffic for count in ROUTERS for seed in range(1, seeds + 1)]
    with ProcessPoolExecutor(processes) as executor:
        rows = _told(chain.from_iterable(executor.map(handed, *zip(*cells, strict=True))))
    _end(*routers_table(rows))


@app.command()
def fleet(
    conversation: _Trace = None,
    only: _Only = None,
    seeds: _Seeds = 1,
    processes: _Processes = 2,
) -> None:
    """A whole fleet comes back cold: when is time to first token what it was, and at which load at all?"""
    found = [_small(each.kind) for each in _traffic(conversation, None, only, 1.0) if only or each.kind.name in COLD]
    with ProcessPoolExecutor(processes) as executor:
        rows = _told(_cold(executor, found, range(1, seeds + 1)))
    Console(width=140).print(fleet_table(rows))
    _end(headroom_table(rows), 0)


def _traffic(
    conversation: Path | None, synthetic: Path | None, only: Sequence[str] | None, scale: float
) -> list[Traffic]:
    """Raises typer.BadParameter for a name that is none."""
    traces = {"conversation": conversation, "synthetic": synthetic}
    given = kinds({name: path for name, path in traces.items() if path is not None})
    known = {kind.name: Traffic(kind, scale * RATES[kind.name]) for kind in given if kind.name in RATES}
    for name in only or ():
        if name not in known:
            raise typer.BadParameter(f"one of {', '.join(known)}, or its trace is not given", param_hint="--only")
    return [known[name] for name in only or known]


def _small(kind: Kind) -> Kind:
    profile = COLD_PROFILE.get(kind.name, kind.profile)
    return Kind(kind.name, kind.workload, kind.trace, kind.closed, profile, (1.0,) * COLD_REPLICAS)


def _cold(executor: Executor, found: Sequence[Kind], seeds: Sequence[int]) -> Iterator[Cold]:
    arms = [(kind, policy) for kind in found for policy in POLICIES]
    knees = list(executor.map(warm_knee, *zip(*arms, strict=True), repeat(1)))
    cells = [
        (kind, policy, deploy, load, knee, seed)
        for (kind, policy), knee in zip(arms, knees, strict=True)
        for deploy in ("once", "rolling")
        for load in LOADS
        for seed in seeds
    ]
    yield from executor.map(cold, *zip(*cells, strict=True))


def _told(rows: Iterable[Row]) -> list[Row]:
    """All of them, each said as soon as it is there: a table takes minutes."""
    found = []
    for row in rows:
        print(row, file=sys.stderr, flush=True)
        found.append(row)
    return found


def summed(rows: Iterable[Placed] | Iterable[Handed]) -> list[tuple[int, Any]]:
    """The rows of several seeds as one each, with how many they were."""
    found: dict[Any, tuple[int, Any]] = {}
    for row in rows:
        before = found.get(row.of)
        found[row.of] = (1, row) if before is None else (before[0] + 1, before[1] + row)
    return list(found.values())


# Verdicts.


def placed_well(row: Placed) -> bool:
    """At once by the rule, and after that by where requests go, beside what moves anyhow."""
    return row.kept.share >= KEPT and row.went.share >= KEPT * row.usual.share


def handed_well(row: Handed, usual: Handed) -> bool:
    """The same; `usual` is the row of the arm `none`."""
    return row.kept.share >= KEPT and row.went.share >= KEPT * usual.went.share


# Tables. Each answers with how many goals were missed, too.


def replicas_table(rows: Sequence[Placed]) -> tuple[Table, int]:
    """A row for each change of each traffic."""
    grid = _grid(
        "traffic", "change", "seeds", "known", "kept %", "asked", "went %", "usual %", "share", "TTFT ms", "goal"
    )
    missed = 0
    for seeds, row in summed(rows):
        before, after, usual = (f"{each / seeds * 1_000:.0f}" for each in row.ttft)
        missed += not placed_well(row)
        grid.add_row(
            row.traffic, row.change, str(seeds), str(row.kept.known), _percent(row.kept), str(row.went.known),
            _percent(row.went), _percent(row.usual), "" if row.share is None else f"{row.share / seeds:.2f}",
            f"{before} > {after} ({usual})", _word(placed_well(row)),
        )  # fmt: skip
    return grid, missed


def routers_table(rows: Sequence[Handed]) -> tuple[Table, int]:
    """A row for each number of routers and way to restart one, of each traffic."""
    grid = _grid(
        "traffic", "routers", "restart", "seeds", "known", "kept %", "asked", "went %", "hit %", "TTFT ms", "goal"
    )
    missed = 0
    totals = {row.of: (seeds, row) for seeds, row in summed(rows)}
    for seeds, row in totals.values():
        well = handed_well(row, totals[row.traffic, row.routers, "none"][1])
        missed += row.arm == "snapshot" and not well
        hit, ttft = ([each / seeds for each in pair] for pair in (row.hit_ratio, row.ttft))
        grid.add_row(
            row.traffic, str(row.routers), row.arm, str(seeds), str(row.kept.known or ""),
            _percent(row.kept) if row.kept.known else "", str(row.went.known), _percent(row.went),
            f"{hit[0] * 100:.1f} > {hit[1] * 100:.1f}", f"{ttft[0] * 1_000:.0f} > {ttft[1] * 1_000:.0f}",
            _word(well) if row.arm == "snapshot" else "",
        )  # fmt: skip
    return grid, missed


def fleet_table(rows: Sequence[Cold]) -> Table:
    """A row for each run: seconds until back; the worst window's mean TTFT beside its usual one; what failed."""
    grid = _grid("traffic", "policy", "knee /s", "deploy", "load", "seed", "back, s", "worst TTFT s", "failed")
    for row in rows:
        found = row.recovery
        back = "never" if found.seconds is None else f"{found.seconds:.0f}"
        grid.add_row(
            row.traffic, row.policy, f"{row.knee:g}", row.deploy, f"{row.load:g}", str(row.seed), back,
            f"{found.worst:.2f} ({found.usual:.2f})", str(found.failed),
        )  # fmt: skip
    return grid


def headroom_table(rows: Sequence[Cold]) -> Table:
    """Up to which load time to first token is back within SOON_S, at every load below and for every seed, too."""
    grid = _grid("traffic", "policy", "deploy", f"back in {SOON_S:g} s up to", "requests/s")
    slow: dict[tuple[str, str, str], float] = {}
    for row in rows:
        late = row.recovery.seconds is None or row.recovery.seconds > SOON_S
        key = row.traffic, row.policy, row.deploy
        slow[key] = min(slow.get(key, math.inf), row.load if late else math.inf)
    for key, first_slow in slow.items():
        own = [row for row in rows if (row.traffic, row.policy, row.deploy) == key]
        load = max((row.load for row in own if row.load < first_slow), default=None)
        told = ("none", "") if load is None else (f"{load:g} of its knee", f"{load * own[0].knee:.3g}")
        grid.add_row(*key, *told)
    return grid


def _grid(*names: str) -> Table:
    grid = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in names:
        grid.add_column(name, no_wrap=True)
    return grid


def _percent(kept: Kept) -> str:
    return f"{kept.share * 100:.1f}"


def _word(well: bool) -> str:
    return "met" if well else "MISSED"


def _end(table: Table, missed: int) -> None:
    Console(width=140).print(table)
    if missed:
        raise typer.Exit(1)


if __name__ == "__main__":
    app()
