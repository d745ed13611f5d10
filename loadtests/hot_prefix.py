"""`python -m loadtests.hot_prefix`: what a prefix that everybody shares costs with prefix_affinity.

120 streams begin at once with the same 4,000 tokens and decode 200 each, on three fresh replicas. A policy that sends
them all to the one holder decodes 120 side by side there; least_requests spreads them evenly and prefills three times.
Both policies get the same work in turn, each time on a fresh fleet. The ratio of their mean end-to-end times is taken
per pair of neighbouring runs, since the machine's noise is alike in both; the median of the ratios is what counts.
"""

import random
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from loadtests import client
from loadtests.fleet import MODEL, FleetShape, fleet
from loadtests.processes import Interrupted, ProcessError, run_until_signal
from loadtests.report import Arm, Slo, summarise
from loadtests.workloads import BYTES_PER_TOKEN, Message, Session, Turn, Workload, pseudo_text

STREAMS = 120
PREFIX_TOKENS = 4_000
QUESTION_TOKENS = 20
OUTPUT_TOKENS = 200
SHAPE = FleetShape(n=3)
GOAL = 1.05
"""Most that the median ratio may be: affinity must not cost more than it saves."""

_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Pair:
    """Two neighbouring runs of the same work."""

    affinity: Arm
    least: Arm

    @property
    def ratio(self) -> float | None:
        """Mean end-to-end time of prefix_affinity over that of least_requests; None when a run answered nothing."""
        if self.affinity.e2e_s is None or self.least.e2e_s is None:
            return None
        return self.affinity.e2e_s.mean / self.least.e2e_s.mean


def workload(seed: int) -> Workload:
    """One turn in each of STREAMS sessions, all at second 0, with the same opening and questions of their own."""
    rng = random.Random(seed)
    prefix = Message("system", (pseudo_text(rng, round(PREFIX_TOKENS * BYTES_PER_TOKEN)),))
    size = round(QUESTION_TOKENS * BYTES_PER_TOKEN)
    questions = [Message("user", (pseudo_text(rng, size),)) for _ in range(STREAMS)]
    return Workload(
        tuple(
            Session(f"stream-{number}", 0.0, (prefix,), (Turn(question, OUTPUT_TOKENS),))
            for number, question in enumerate(questions)
        )
    )


def table(pairs: Sequence[Pair]) -> Table:
    """A row for each run, in the order in which they ran; 80 columns hold it."""
    grid = Table(box=SIMPLE)
    for name in ("run", "arm", "fail", "replicas", "max/mean", "mean TTFT s", "mean E2E s"):
        grid.add_column(name, justify="left" if name == "arm" else "right", no_wrap=True)
    for number, pair in enumerate(pairs, 1):
        for arm in (pair.affinity, pair.least):
            used = sum(count > 0 for count in arm.requests_per_replica.values())
            means = ["-" if part is None else f"{part.mean:.3f}" for part in (arm.ttft_s, arm.e2e_s)]
            imbalance = "-" if arm.max_over_mean is None else f"{arm.max_over_mean:.2f}"
            grid.add_row(str(number), arm.policy, str(arm.errors), str(used), imbalance, *means)
    return grid


def median_ratio(pairs: Sequence[Pair]) -> float | None:
    """None when a run answered nothing."""
    ratios = [pair.ratio for pair in pairs]
    whole = [ratio for ratio in ratios if ratio is not None]
    return statistics.median(whole) if len(whole) == len(ratios) else None


async def _run(policy: str, seed: int) -> Arm:
    async with fleet(SHAPE, policy) as built:
        target = client.Target(built.url, MODEL, _TIMEOUT_S)
        records = await client.run(workload(seed), target, on_record=lambda _: None)
    return summarise(policy, records, SHAPE.ids, Slo())


async def _pairs(repeats: int) -> list[Pair]:
    pairs = []
    for seed in range(1, repeats + 1):
        print(f"run {seed} of {repeats}", file=sys.stderr, flush=True)
        pairs.append(Pair(await _run("prefix_affinity", seed), await _run("least_requests", seed)))
    return pairs


def main(repeats: Annotated[int, typer.Option(help="Runs of each policy.", min=1)] = 3) -> None:
    """Compare prefix_affinity with least_requests on one hot prefix. Exit code 0 when no request failed and the median
    ratio is within the goal.

    Examples:

      python -m loadtests.hot_prefix

      python -m loadtests.hot_prefix --repeats 5
    """
    try:
        pairs = run_until_signal(_pairs(repeats))
    except Interrupted as stopped:
        raise typer.Exit(128 + stopped.number) from stopped
    except ProcessError as error:
        print(f"hot_prefix: {error}", file=sys.stderr)
        raise typer.Exit(1) from error
    console = Console()
    console.print(table(pairs))
    median = median_ratio(pairs)
    shown = "none: a run answered nothing" if median is None else f"{median:.3f} (goal: at most {GOAL})"
    console.print(
        f"Median ratio of mean E2E, prefix_affinity / least_requests: {shown}", highlight=False, soft_wrap=True
    )
    failed = sum(arm.errors for pair in pairs for arm in (pair.affinity, pair.least))
    if failed or median is None or median > GOAL:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
