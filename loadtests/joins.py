"""`python -m loadtests.joins`: what a replica that comes empty is sent in its first minute, in simulated time.

join      seven replicas at a steady rate, and after a minute an eighth, cold and ready
restart   eight of them, of which one dies ten seconds before that minute is over and is back, empty, at its end

Both are played with the ramp and without, on the same work. A share is the newcomer's part of the work that the fleet
was sent in a stretch of time (prompt tokens that its engine had not cached, and tokens of answers), times the number of
replicas: 1 is fair. Exit code 1: with the ramp the share of its first minute, or of the second half of that, is not
within GOAL, or more requests waited there for a first token than a router's limit allows. Those that first waited in
the router's own queue are counted in, so that above what a fleet can do this says nothing.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from loadtests.plays import Play
from loadtests.records import Record
from loadtests.report import Slo, summarise
from loadtests.sim_gossip import GossipPlan
from loadtests.simulation import Change, FleetPlan, Join, Restart, RouterPlan, simulate
from loadtests.table_kinds import Kind, kinds
from router.core.fleet import FleetSettings
from router.core.policy import Limits, PrefixAffinity
from router.core.ramp import SECONDS

AT_S: Final = 60.0
DOWN_S: Final = 10.0
TAIL_S: Final = 90.0
"""Seconds of traffic before and after somebody comes, and for which one that restarts is away."""

STRETCHES: Final = ((0.0, 5.0), (5.0, 15.0), (15.0, 30.0), (30.0, 60.0), (0.0, 60.0))
"""Seconds since somebody came. GOAL is for the last two."""

GOAL: Final = (0.5, 1.5)

RATES: Final = {
    "chat": 25.0,
    "classifier": 420.0,
    "conversation": 4.0,
    "flash_crowd": 45.0,
    "ladder": 16.0,
    "uniform": 50.0,
    "whale": 60.0,
}
"""Requests a second that a fleet of seven bears, too."""


@dataclass(frozen=True, slots=True)
class Came:
    """What came of one run: `shares` of the newcomer by STRETCHES, the most requests that waited there at a time for
    their first token; of all requests since it came, goodput and TTFT in seconds."""

    shares: tuple[float, ...]
    queued: int
    goodput: float
    ttft_mean: float
    ttft_p99: float

    @property
    def good(self) -> bool:
        """Whether the goal is met."""
        most = Limits().max_queued_requests
        within = all(GOAL[0] <= share <= GOAL[1] for share in self.shares[-2:])
        return within and (most is None or self.queued <= most)


def play(kind: Kind, seed: int, rate: float) -> Play:
    """Traffic for as long as it takes."""
    return kind.play(seed, int(rate * (AT_S + TAIL_S)), rate)


def come(
    work: Play, event: str, profile: str, replicas: int, ramp: float, seed: int, routers: int = 1, news_s: float = 0.0
) -> Came:
    """Play it; the last of the replicas joins or restarts."""
    name = f"r{replicas}"
    joins = event == "join"
    change: Change = Join(AT_S, name) if joins else Restart(AT_S - DOWN_S, name, DOWN_S)
    plan = FleetPlan(profile, (1.0,) * (replicas - joins))
    settings, gossip = FleetSettings(ramp=ramp), GossipPlan(every_s=news_s)
    fleet = RouterPlan(PrefixAffinity, settings, shares=(1.0,) * routers, gossip=gossip)
    outcome = simulate(work, plan, fleet, seed, [change])
    after = [record for record in outcome.records if AT_S <= record.sent_s < AT_S + TAIL_S]
    shares = [replicas * _share([each for each in after if begin <= each.sent_s - AT_S < end], name)
              for begin, end in STRETCHES]  # fmt: skip
    arm = summarise(event, after, outcome.done, Slo())
    if arm.ttft_s is None or arm.goodput is None:
        raise ValueError(f"{work.name}: no request was answered")
    queued = _most_queued([record for record in after if record.replica == name])
    return Came(tuple(shares), queued, arm.goodput, arm.ttft_s.mean, arm.ttft_s.p99)


def _share(records: Sequence[Record], replica: str) -> float:
    whole = sum(_work(record) for record in records)
    return sum(_work(record) for record in records if record.replica == replica) / whole if whole else 0.0


def _work(record: Record) -> int:
    return record.prompt_tokens - record.cached_tokens + record.completion_tokens


def _most_queued(records: Sequence[Record]) -> int:
    """A first token and a request at one moment: the token came first."""
    steps = [(record.sent_s, 1) for record in records]
    steps += [(record.first_token_s, -1) for record in records if record.first_token_s is not None]
    most = queued = 0
    for _, step in sorted(steps):
        queued += step
        most = max(most, queued)
    return most


def _rows(
    found: Sequence[Kind], events: Sequence[str], seeds: int, replicas: int, routers: int, news_s: float
) -> Iterator[bool]:
    """Print a line for each run; what is yielded is whether the goal is met, of runs with the ramp."""
    stretches = " | ".join(f"{begin:g}-{end:g} s" for begin, end in STRETCHES)
    print(f"| work | event, seed | ramp | {stretches} | most queued | goodput % | TTFT mean, s | p99 |")
    print("| --- " * (len(STRETCHES) + 7) + "|")
    for kind in found:
        for seed in range(1, seeds + 1):
            work = play(kind, seed, RATES[kind.name] * replicas / 8)
            for event in events:
                for ramp in (0.0, SECONDS):
                    came = come(work, event, kind.profile, replicas, ramp, seed, routers, news_s)
                    shares = " | ".join(f"{share:.2f}" for share in came.shares)
                    times = f"{100 * came.goodput:.1f} | {came.ttft_mean:.3f} | {came.ttft_p99:.2f}"
                    print(
                        f"| {kind.name} | {event}, {seed} | {ramp:g} s | {shares} | {came.queued} | {times} |",
                        flush=True,
                    )
                    if ramp:
                        yield came.good


def main(
    conversation: Annotated[Path | None, typer.Option(exists=True, dir_okay=False, help="The trace.")] = None,
    only: Annotated[list[str] | None, typer.Option(help=f"{', '.join(RATES)}; may be repeated.")] = None,
    event: Annotated[list[str] | None, typer.Option(help="join, restart; both without.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Repeats, each with other arrivals and homes.")] = 1,
    replicas: Annotated[int, typer.Option(min=2, help="With the newcomer; rates are for eight, and scaled.")] = 8,
    routers: Annotated[int, typer.Option(min=1, help="Each with an equal part of the traffic.")] = 1,
    news: Annotated[float, typer.Option(min=0, help="Seconds for which their news is held back.")] = 0.0,
) -> None:
    """Print shares with the ramp and without."""
    traces = {} if conversation is None else {"conversation": conversation}
    found = [kind for kind in kinds(traces) if kind.name in RATES and (not only or kind.name in only)]
    good = list(_rows(found, event or ("join", "restart"), seeds, replicas, routers, news))
    print(f"goal, {GOAL[0]:g} to {GOAL[1]:g}: met in {sum(good)} of {len(good)} runs with the ramp")
    sys.exit(not all(good))


if __name__ == "__main__":
    typer.run(main)
