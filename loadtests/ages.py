"""`python -m loadtests.ages`: what old news costs four routers, in simulated time.

The conversation trace, or any of the table's kinds, through one router and then through four that hear one another's
news held back for a time, or not at all: each with as many requests, or seven of ten for one of them. A figure is the
mean time to first token as a multiple of one router's for the same traffic (same seed); goodput beside it, in percent.
Exit code 1: some seed's multiple is above its goal, or news 2 s old is worse in the median than none.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Annotated, Final

import typer

from loadtests.plays import Play
from loadtests.report import Slo, summarise
from loadtests.sim_gossip import GossipPlan
from loadtests.simulation import FleetPlan, RouterPlan, simulate
from loadtests.table_kinds import Kind, kinds
from router.core.policy import PrefixAffinity

SHARES: Final[Mapping[str, tuple[float, ...]]] = MappingProxyType(
    {"even": (1.0, 1.0, 1.0, 1.0), "7, 1, 1, 1": (7.0, 1.0, 1.0, 1.0)}
)

GOALS: Final[Mapping[str, float]] = MappingProxyType({"0.05 s": 1.15, "0.5 s": 1.35, "2 s": 1.55, "dead": 1.7})
"""Of the multiple, by how old news is."""

ALONE: Final = RouterPlan(PrefixAffinity)


@dataclass(frozen=True, slots=True)
class Aged:
    """One run: mean time to first token in seconds, goodput as a share."""

    ttft_mean: float
    goodput: float


def plan(age: str, shares: Sequence[float]) -> RouterPlan:
    """Routers whose news is that old."""
    gossip = GossipPlan(dead=True) if age == "dead" else GossipPlan(every_s=float(age.removesuffix(" s")))
    return RouterPlan(PrefixAffinity, shares=tuple(shares), gossip=gossip)


def run(work: Play, fleet: FleetPlan, routers: RouterPlan, seed: int) -> Aged:
    """Play it. Raises ValueError when nothing was answered."""
    outcome = simulate(work, fleet, routers, seed)
    arm = summarise("", outcome.records, outcome.done, Slo())
    if arm.ttft_s is None or arm.goodput is None:
        raise ValueError(f"{work.name}: no request was answered")
    return Aged(arm.ttft_s.mean, arm.goodput)


def rows(kind: Kind, requests: int, rate: float, seeds: int) -> Iterator[tuple[str, str, list[float], list[float]]]:
    """Traffic, age, and by seed the multiples and the goodputs."""
    plays = [kind.play(seed, requests, rate) for seed in range(1, seeds + 1)]
    alone = [run(work, kind.plan, ALONE, seed) for seed, work in enumerate(plays, 1)]
    yield "one router", "", [1.0] * seeds, [each.goodput for each in alone]
    for traffic, shares in SHARES.items():
        for age in GOALS:
            found = [run(work, kind.plan, plan(age, shares), seed) for seed, work in enumerate(plays, 1)]
            multiples = [each.ttft_mean / one.ttft_mean for each, one in zip(found, alone, strict=True)]
            yield traffic, age, multiples, [each.goodput for each in found]


def missed(multiples: Mapping[tuple[str, str], Sequence[float]]) -> list[str]:
    """What is not as it should be, by (traffic, age)."""
    found = []
    for (traffic, age), values in multiples.items():
        if max(values) > GOALS[age]:
            found.append(f"{traffic}, {age}: {max(values):.2f} is more than {GOALS[age]:g}")
    worse = [each for each in SHARES if median(multiples[each, "2 s"]) > median(multiples[each, "dead"])]
    return found + [f"{traffic}: news 2 s old is worse than none" for traffic in worse]


def main(
    conversation: Annotated[Path | None, typer.Option(exists=True, dir_okay=False, help="The trace.")] = None,
    only: Annotated[str, typer.Option(help="Another kind of traffic.")] = "conversation",
    rate: Annotated[float, typer.Option(min=0.01, help="Requests a second.")] = 4.5,
    requests: Annotated[int, typer.Option(min=1, help="Of each run.")] = 1_500,
    seeds: Annotated[int, typer.Option(min=1, help="Repeats, each with other traffic.")] = 3,
) -> None:
    """Print multiples of one router's time to first token, by the age of news."""
    found = {kind.name: kind for kind in kinds({} if conversation is None else {"conversation": conversation})}
    if only not in found:
        raise typer.BadParameter(f"{only}: there are {', '.join(found)}; conversation takes --conversation FILE")
    print("| traffic | news | TTFT, times one router's | goal | goodput % |")
    print("| --- | --- | --- | --- | --- |")
    multiples: dict[tuple[str, str], list[float]] = {}
    for traffic, age, values, goodputs in rows(found[only], requests, rate, seeds):
        goal = ""
        if age:
            multiples[traffic, age] = values
            goal = f"{GOALS[age]:g}"
        listed = ", ".join(f"{value:.2f}" for value in values)
        print(f"| {traffic} | {age} | {listed} | {goal} | {', '.join(f'{100 * each:.0f}' for each in goodputs)} |")
        sys.stdout.flush()
    problems = missed(multiples)
    print("\n".join(problems) or "all goals are met")
    sys.exit(bool(problems))


if __name__ == "__main__":
    typer.run(main)
