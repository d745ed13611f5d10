"""`python -m loadtests.gossip_cost`: what sharing over Redis costs four routers, beside four that share nothing.

Each router is a process of its own (`homing serve`, one worker) in front of the same stand-ins, at 125 requests a
second, open loop: once with prompts of which 80 % are known, once with none that is. Arms with gossip and without are
run in pairs, and change places from pair to pair. The columns:

us/request   CPU of all router processes; of that the supervisors, which speak with Redis, and the workers
p50, p99     of the answers, in ms
MB           memory of a router's processes, at the arm's beginning and its end
msg/s        what a router publishes a second, and its bytes

What counts are the medians of the ratios within pairs. A noisy machine moves p99 more than anything else does: "no
difference" is when the ratios lie on both sides of 1.
"""

import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from loadtests.fleet import HOMING
from loadtests.gossip_cost_bed import Spent, drive, routers, spent
from loadtests.native import NoCompilerError, Tools, build
from loadtests.processes import Interrupted, ProcessError, run_until_signal
from loadtests.report import percentile

MOST_CPU = 1.25
MOST_P50 = 1.10
MOST_P99 = 1.25
MOST_GROWTH = 1.05
"""Of an arm's memory at its beginning, when the index is full."""

_WARM_S, _WARM_KNOWN = 5.0, 0.3
"""So many prompts that are new fill the index of a router that hears of all."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured, and how. `start` begins a router's command line."""

    pairs: int
    seconds: float
    routers: int
    rate: float
    start: Sequence[str]


@dataclass(frozen=True, slots=True)
class Arm:
    """One run. CPU in microseconds per request, times in ms, memory in MB of one router."""

    gossip: bool
    resident: float
    requests: int
    failed: int
    supervisors: float
    workers: float
    p50: float
    p99: float
    memory: tuple[float, float]
    messages: float
    bytes: float

    @property
    def cpu(self) -> float:
        """Of both."""
        return self.supervisors + self.workers


Pair = tuple[Arm, Arm]
"""Without gossip, and with it."""


async def _arm(plan: Plan, tools: Tools, gossip: bool, resident: float, serials: "count[int]") -> Arm:
    async with routers(tools, plan.routers, gossip, plan.start) as all_of_them:
        await drive(all_of_them, plan.rate, _WARM_S, _WARM_KNOWN, next(serials))
        before = await spent(all_of_them)
        answered = await drive(all_of_them, plan.rate, plan.seconds, resident, next(serials))
        after = await spent(all_of_them)
    times = sorted(1000 * one.seconds for one in answered if one.status == 200)
    failed = len(answered) - len(times)
    p50, p99 = percentile(times, 0.5), percentile(times, 0.99)
    if p50 is None or p99 is None:
        raise ProcessError("no request was answered")

    def per_request(of: Callable[[Spent], float]) -> float:
        return 1e6 * (of(after) - of(before)) / len(answered)

    def per_second(of: Callable[[Spent], float]) -> float:
        return (of(after) - of(before)) / plan.seconds / plan.routers

    return Arm(
        gossip,
        resident,
        len(answered),
        failed,
        per_request(lambda each: each.supervisors),
        per_request(lambda each: each.workers),
        p50,
        p99,
        (before.memory / plan.routers, after.memory / plan.routers),
        per_second(lambda each: each.published),
        per_second(lambda each: each.sent),
    )


async def _pairs(plan: Plan, shares: Sequence[float]) -> list[list[Pair]]:
    serials = count(1)
    with tempfile.TemporaryDirectory(prefix="homing-gossip-cost-") as directory:
        tools = await build(Path(directory))
        found: list[list[Pair]] = []
        for resident in shares:
            found.append([])
            for number in range(plan.pairs):
                order = (False, True) if number % 2 == 0 else (True, False)
                arms = {}
                for gossip in order:
                    named = f"gossip {'on' if gossip else 'off'}, {resident:.0%} known"
                    print(f"pair {number + 1} of {plan.pairs}: {named} ...", file=sys.stderr, flush=True)
                    arms[gossip] = await _arm(plan, tools, gossip, resident, serials)
                found[-1].append((arms[False], arms[True]))
    return found


def table(pairs: Sequence[Pair]) -> Table:
    """A row for each arm."""
    grid = Table(box=SIMPLE)
    for column in ("known", "gossip", "requests", "failed", "us/request", "supervisors", "workers", "p50", "p99", "MB",
                   "msg/s", "KB/s"):  # fmt: skip
        grid.add_column(column, justify="right", no_wrap=True)
    for arm in (arm for pair in pairs for arm in pair):
        grid.add_row(
            f"{arm.resident:.0%}",
            "on" if arm.gossip else "off",
            str(arm.requests),
            str(arm.failed),
            f"{arm.cpu:.0f}",
            f"{arm.supervisors:.0f}",
            f"{arm.workers:.0f}",
            f"{arm.p50:.2f}",
            f"{arm.p99:.2f}",
            "{:.1f} {:.1f}".format(*arm.memory),
            f"{arm.messages:.0f}",
            f"{arm.bytes / 1000:.1f}",
        )
    return grid


@dataclass(frozen=True, slots=True)
class Verdict:
    """What pairs say of one figure: the ratios' median and their range. `most` None: there is no goal."""

    what: str
    ratios: Sequence[float]
    most: float | None
    noise: bool = False

    @property
    def median(self) -> float:
        """Of the ratios."""
        return statistics.median(self.ratios)

    @property
    def missed(self) -> bool:
        """Whether the goal is; with `noise`, ratios on both sides of 1 are no difference."""
        if self.most is None or self.median <= self.most:
            return False
        return not (self.noise and min(self.ratios) <= 1 <= max(self.ratios))

    def __str__(self) -> str:
        goal = "beside it" if self.most is None else f"at most {self.most:g}{' or no difference' if self.noise else ''}"
        shown = f"{self.what}: {self.median:.3f} ({min(self.ratios):.3f} to {max(self.ratios):.3f}; {goal})"
        return f"{shown} MISSED" if self.missed else shown


def verdicts(pairs: Sequence[Pair]) -> list[Verdict]:
    """Of the pairs of one kind; with prompts that are all new there are no goals, the figures are for comparison."""
    goals = pairs[0][0].resident > 0

    def ratios(of: Callable[[Arm], float]) -> list[float]:
        return [of(on) / of(off) for off, on in pairs]

    share = f"{pairs[0][0].resident:.0%} known"
    return [
        Verdict(f"{share}, CPU per request, on / off", ratios(lambda arm: arm.cpu), MOST_CPU if goals else None),
        Verdict(f"{share}, p50, on / off", ratios(lambda arm: arm.p50), MOST_P50 if goals else None),
        Verdict(f"{share}, p99, on / off", ratios(lambda arm: arm.p99), MOST_P99 if goals else None, noise=True),
        Verdict(
            f"{share}, memory with gossip, end / beginning",
            [on.memory[1] / on.memory[0] for _, on in pairs],
            MOST_GROWTH if goals else None,
        ),
    ]


def _start(homing: Path | None) -> Sequence[str]:
    return HOMING if homing is None else (str(homing),)


def main(
    pairs: Annotated[int, typer.Option(min=1, help="Of arms, for each kind of prompts.")] = 5,
    seconds: Annotated[float, typer.Option(min=1, help="Of each arm.")] = 60.0,
    routers: Annotated[int, typer.Option(min=2, help="That share.")] = 4,
    rate: Annotated[float, typer.Option(min=1, help="Requests a second to each.")] = 125.0,
    known: Annotated[str, typer.Option(help="Shares of the prompts that are known, one kind each.")] = "0.8,0",
    homing: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="Another `homing`, as a compiled one.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Two pairs of ten seconds: says little of p99.")] = False,
) -> None:
    """Compare routers that share over Redis with routers that share nothing. Exit code 1 when a goal is missed or a
    request failed.

    Examples:

      python -m loadtests.gossip_cost

      python -m loadtests.gossip_cost --quick --homing .venv-compiled/bin/homing
    """
    plan = Plan(2 if quick else pairs, 10.0 if quick else seconds, routers, rate, _start(homing))
    try:
        found = run_until_signal(_pairs(plan, [float(share) for share in known.split(",")]))
    except Interrupted as stopped:
        raise typer.Exit(128 + stopped.number) from None
    except (NoCompilerError, ProcessError, OSError) as error:
        print(f"gossip_cost: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    console.print(table([pair for kind in found for pair in kind]))
    judged = [verdict for kind in found for verdict in verdicts(kind)]
    for verdict in judged:
        console.print(str(verdict), soft_wrap=True)
    failed = sum(arm.failed for kind in found for pair in kind for arm in pair)
    if failed or any(verdict.missed for verdict in judged):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
