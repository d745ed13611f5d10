"""`python -m loadtests.two_workers`: whether a router with two workers routes as one with a single worker does.

Each request meets one of two workers, as the kernel spreads connections; what the other one knows comes over the hub.
Two kinds of work, each on a fresh fleet in turn, one worker and two, so many times:

chat         the demo's seeded chats: the hit ratio, engine-counted
hot prefix   120 streams that begin at once with the same 4,000 tokens (hot_prefix.py): mean end-to-end time, and how
             they were spread over the replicas

The medians of the ratios of neighbouring runs are what counts.
"""

import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from loadtests import client, hot_prefix
from loadtests.fleet import MODEL, FleetShape, fleet
from loadtests.processes import Interrupted, ProcessError, run_until_signal
from loadtests.report import Arm, Slo, summarise
from loadtests.workloads import ChatShape, Workload, chat_workload
from replica.tokens import Tokenizer

LEAST_HITS = 0.97
"""Least of one worker's hit ratio that two may have."""

MOST_SLOWER = 1.05
"""Most that the hot prefix's mean end-to-end time may be of one worker's, as hot_prefix.py has it for policies."""

TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Pair:
    """The same work with one worker and with two."""

    work: str
    one: Arm
    two: Arm


def hits(pairs: Sequence[Pair]) -> float | None:
    """Median of two workers' hit ratio over one's; None when a run reported none."""
    return _median([_quotient(pair.two.hit_ratio, pair.one.hit_ratio) for pair in pairs])


def slower(pairs: Sequence[Pair]) -> float | None:
    """Median of two workers' mean end-to-end time over one's; None when a run answered nothing."""
    return _median([_quotient(_mean_e2e(pair.two), _mean_e2e(pair.one)) for pair in pairs])


def _mean_e2e(arm: Arm) -> float | None:
    return None if arm.e2e_s is None else arm.e2e_s.mean


def _quotient(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


def _median(ratios: Sequence[float | None]) -> float | None:
    known = [ratio for ratio in ratios if ratio is not None]
    return statistics.median(known) if known and len(known) == len(ratios) else None


def table(pairs: Sequence[Pair]) -> Table:
    """A row for each run."""
    grid = Table(box=SIMPLE)
    for column in ("work", "workers", "sent", "fail", "hits", "max/mean", "E2E s", "by replica"):
        grid.add_column(column, justify="left" if column in {"work", "by replica"} else "right", no_wrap=True)
    for pair in pairs:
        for workers, arm in ((1, pair.one), (2, pair.two)):
            figures = (arm.hit_ratio, arm.max_over_mean, _mean_e2e(arm))
            shown = ["-" if figure is None else f"{figure:.3f}" for figure in figures]
            spread = " ".join(str(count) for count in arm.requests_per_replica.values())
            grid.add_row(pair.work, str(workers), str(arm.requests), str(arm.errors), *shown, spread)
    return grid


async def _arm(workload: Workload, shape: FleetShape, workers: int) -> Arm:
    async with fleet(shape, "prefix_affinity", settings={"workers": workers}) as built:
        target = client.Target(built.url, MODEL, TIMEOUT_S)
        records = await client.run(workload, target, on_record=lambda _: None)
    return summarise(f"{workers} workers", records, shape.ids, Slo())


async def _pair(work: str, workload: Workload, shape: FleetShape) -> Pair:
    print(f"{work}: {workload.requests} requests, with one worker and with two", file=sys.stderr, flush=True)
    return Pair(work, await _arm(workload, shape, 1), await _arm(workload, shape, 2))


async def _pairs(repeats: int, turns: int) -> tuple[list[Pair], list[Pair]]:
    chats, prefixes = [], []
    for seed in range(1, repeats + 1):
        shape = FleetShape(seed=seed)
        chat = ChatShape(turns=turns, bytes_per_token=Tokenizer(MODEL, seed).bytes_per_token)
        chats.append(await _pair("chat", chat_workload(seed, chat), shape))
        prefixes.append(await _pair("hot prefix", hot_prefix.workload(seed), hot_prefix.SHAPE))
    return chats, prefixes


def main(
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each.")] = 3,
    turns: Annotated[int, typer.Option(min=1, help="Of each chat, some four seconds each.")] = 5,
) -> None:
    """Compare two workers with one. Exit code 0 when the hit ratio is at least 0.97 of one worker's, the hot prefix is
    answered within 1.05 of its time, and no request failed.

    Examples:

      python -m loadtests.two_workers

      python -m loadtests.two_workers --repeats 1 --turns 2
    """
    try:
        chats, prefixes = run_until_signal(_pairs(repeats, turns))
    except Interrupted as stopped:
        raise typer.Exit(128 + stopped.number) from None
    except (ProcessError, OSError) as error:
        print(f"two_workers: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    console = Console(highlight=False)
    console.print(table([*chats, *prefixes]))
    hit, time = hits(chats), slower(prefixes)
    for what, ratio, goal in (
        ("Hit ratio", hit, f"at least {LEAST_HITS}"), ("Hot prefix, mean E2E", time, f"at most {MOST_SLOWER}"),
    ):  # fmt: skip
        shown = "none: a run told nothing" if ratio is None else f"{ratio:.3f}"
        console.print(f"{what}, two workers / one, median: {shown} (goal: {goal})", soft_wrap=True)
    failed = sum(arm.errors for pair in (*chats, *prefixes) for arm in (pair.one, pair.two))
    if failed or hit is None or time is None or hit < LEAST_HITS or time > MOST_SLOWER:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
