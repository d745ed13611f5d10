"""`python -m loadtests.table`: every policy on every kind of traffic at three loads, and who wins where.

A cell is one run: kind, load, policy, seed. Its row is appended to a file when it ends, and what the file has is never
run again, so the whole can be stopped and gone on with. All policies get three seeds; the default policy and those
that are within 10 points of its goodput get two more. Each process simulates; this one writes.
"""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from loadtests import table_verdict
from loadtests.plays import Play
from loadtests.sim_report import by_arm
from loadtests.sim_rows import Key, Row, append, line, parse, read, repair, spread
from loadtests.simulation import RouterPlan, simulate
from loadtests.table_kinds import LOADS, Kind, kinds, search
from loadtests.table_verdict import OURS
from router.config import RoutingConfig
from router.core.baselines import BASELINES

SEARCH = "search"
"""The load of rows that only look for a knee."""

FIRST_SEEDS, MORE_SEEDS = (1, 2, 3), (4, 5)
ROUNDED = 0.1
"""A play has this share of requests more or less than asked for at most, where its talks are whole."""

CLOSE = 0.1
"""A baseline that has this much less goodput than ours is not worth two more seeds."""

_EXISTING = typer.Option(exists=True, dir_okay=False, readable=True, help="A trace in Mooncake's format.")


@dataclass(frozen=True, slots=True)
class Cell:
    """One run to be done."""

    kind: Kind
    load: str
    rate: float
    policy: str
    seed: int
    requests: int

    @property
    def key(self) -> Key:
        return Key(self.kind.name, self.load, self.rate, self.policy, self.seed)


def measure(cell: Cell) -> bytes:
    """Run a cell: a row's line. Raises NothingAnsweredError, OSError, TraceError."""
    play = _play(cell.kind, cell.seed, cell.requests, cell.rate)
    routing = RoutingConfig.model_validate({"policy": cell.policy})
    return line(cell.key, play, cell.kind.plan, simulate(play, cell.kind.plan, RouterPlan(routing.make), cell.seed))


@lru_cache(maxsize=1)
def _play(kind: Kind, seed: int, requests: int, rate: float) -> Play:
    """Kept, because the policies of one seed come one after the other."""
    return kind.play(seed, requests, rate)


class Table:
    """The rows' file, and what is missing in it."""

    def __init__(
        self, path: Path, requests: int, policies: Sequence[str], executor: Executor, console: Console
    ) -> None:
        self._path, self._requests, self._policies = path, requests, policies
        self._executor, self._console = executor, console
        repair(path)
        self._rows = {row.key: row for row in read(path)}

    @property
    def rows(self) -> list[Row]:
        """Those of cells, without those of searches."""
        return [row for row in self._rows.values() if row.key.load != SEARCH]

    def fill(self, chosen: Sequence[Kind]) -> None:
        """Run what is missing: knees, then three seeds of everything, then two more of what is close."""
        for kind in chosen:
            knee = search(kind, lambda rate, kind=kind: self._one(kind, rate).goodput)  # type: ignore[misc]
            loads = [(load, float(f"{knee * share:.3g}")) for load, share in LOADS]
            if kind.closed:
                loads = [(load, float(round(rate))) for load, rate in loads]
            self._run(self._cells(kind, loads, FIRST_SEEDS, self._policies))
            for load, rate in loads:
                self._run(self._cells(kind, [(load, rate)], MORE_SEEDS, self._close(kind, load)))

    def _cells(
        self, kind: Kind, loads: Iterable[tuple[str, float]], seeds: Iterable[int], policies: Sequence[str]
    ) -> Iterator[Cell]:
        for load, rate in loads:
            for seed in seeds:
                for policy in policies:
                    yield Cell(kind, load, rate, policy, seed, self._requests)

    def _close(self, kind: Kind, load: str) -> list[str]:
        """The policies that are worth two more seeds in a cell."""
        arms = by_arm(row for row in self.rows if (row.key.workload, row.key.load) == (kind.name, load))
        goodput = {arm: spread(row.goodput for row in own).median for arm, own in arms.items()}
        least = goodput.get(OURS, 1.0) - CLOSE
        return [policy for policy in self._policies if goodput[policy] >= least]

    def _run(self, cells: Iterable[Cell]) -> None:
        missing = [cell for cell in cells if cell.key not in self._rows]
        for done in as_completed([self._executor.submit(measure, cell) for cell in missing]):
            self._take(done.result())

    def _one(self, kind: Kind, rate: float) -> Row:
        cell = Cell(kind, SEARCH, rate, "round_robin", 1, self._requests)
        if cell.key not in self._rows:
            self._take(self._executor.submit(measure, cell).result())
        return self._rows[cell.key]

    def _take(self, text: bytes) -> None:
        append(self._path, text)
        row = parse(text)
        self._rows[row.key] = row
        key = row.key
        self._console.print(
            f"{key.workload} {key.load} {key.rate:g} {key.arm} {key.seed}: {row.goodput:.1%}, {row.ttft_mean:.3f} s",
            highlight=False,
        )


def main(
    rows: Annotated[Path, typer.Option(dir_okay=False, help="Where rows are, and are added.")],
    conversation: Annotated[Path | None, _EXISTING] = None,
    synthetic: Annotated[Path | None, _EXISTING] = None,
    agents: Annotated[Path | None, _EXISTING] = None,
    only: Annotated[list[str] | None, typer.Option(help="This kind of traffic (may be given again).")] = None,
    policy: Annotated[list[str] | None, typer.Option(help="This policy (may be given again); without: all.")] = None,
    requests: Annotated[int, typer.Option(min=50, help="In each run.")] = 2_000,
    processes: Annotated[int, typer.Option(min=1, help="That simulate.")] = 2,
    show: Annotated[bool, typer.Option("--show", help="Run nothing; print what there is, every policy too.")] = False,
) -> None:
    """Fill in what is missing, and print the table."""
    given = {"conversation": conversation, "synthetic": synthetic, "agents": agents}
    chosen = kinds({name: path for name, path in given.items() if path is not None})
    if only:
        chosen = [kind for kind in chosen if kind.name in only]
        if len(chosen) != len(set(only)):
            raise typer.BadParameter("not a kind of traffic, or its trace is not given", param_hint="--only")
    console = Console(width=200)
    open_loop = {kind.name for kind in chosen if not kind.closed}
    lengths = [row.requests for row in read(rows) if row.key.workload in open_loop]
    if not show and (others := [each for each in lengths if abs(each - requests) > ROUNDED * requests]):
        raise typer.BadParameter(f"has runs of {others[0]} requests; name another file", param_hint="--rows")
    with ProcessPoolExecutor(processes) as executor:
        table = Table(rows, requests, policy or [OURS, *BASELINES], executor, Console(stderr=True))
        if not show:
            table.fill(chosen)
    names = {kind.name for kind in chosen}
    table_verdict.show(console, [row for row in table.rows if row.key.workload in names], every_arm=show)


if __name__ == "__main__":
    typer.run(main)
