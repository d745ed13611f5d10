"""`python -m loadtests.spread`: how evenly are chats spread over replicas, and what is that the work of?

The chats of `loadtests.multirouter`, more and more of them, through one simulated router (simulation.py: the router's
own core on a clock that is turned by hand, so that a busy machine changes nothing), with `prefix_affinity` and, as the
least that such chats can have, with `least_requests`. Columns, medians over the seeds and their range:

in flight    requests on a replica at a time, mean over replicas and time
max/mean     of them, by replica: the busiest to the mean
work         the same of the tokens that each replica computed, of prompts and answers
hit ratio    prompt tokens that engines had cached, of all
ttft         time to first token, 50th and 99th percentile

A chat stays with the replica that it began on, and begins at its preamble's home while waiting there costs at most
`home_slack` more than elsewhere. So a fleet that is short of nothing is as uneven as the ring's shares and so many
throws of dice; load evens it out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from loadtests.multirouter import shape
from loadtests.multirouter_bed import TOKENS
from loadtests.multirouter_run import Plan
from loadtests.plays import Names, Part, Play, Text
from loadtests.sim_rows import spread
from loadtests.simulation import FleetPlan, Outcome, RouterPlan, simulate
from loadtests.workloads import BYTES_PER_TOKEN, Session, Workload, chat_workload
from router.core.baselines import LeastRequests
from router.core.policy import PrefixAffinity

POLICIES = {"prefix_affinity": PrefixAffinity, "least_requests": LeastRequests}


@dataclass(frozen=True, slots=True)
class Spread:
    """The figures of one run. Times in seconds."""

    in_flight: float
    max_to_mean: float
    work: float
    hit_ratio: float
    ttft_p50: float
    ttft_p99: float


def play_of(workload: Workload, seed: int) -> Play:
    """The same chats as names of blocks: equal texts are one text, and answers are as long as they may be."""
    names, ids = Names(seed), dict[str, int]()

    def part(session: Session) -> Part:
        prompt, answers, lines = [text(message.text) for message in session.opening], dict[int, int](), []
        for number, turn in enumerate(session.turns):
            prompt = [*prompt, text(turn.question.text)]
            answer = Text(ids.setdefault(f"{session.id} answers {number}", len(ids)), turn.max_tokens)
            told = names.line(prompt, answer.tokens, [*prompt, answer], turn.think_s, dict(answers))
            answers[told.prompt_tokens] = told.prompt_tokens + answer.tokens
            prompt = [*prompt, answer]
            lines.append(told)
        return Part(session.id, session.start_s, tuple(lines))

    def text(content: str) -> Text:
        return Text(ids.setdefault(content, len(ids)), round(len(content) / BYTES_PER_TOKEN))

    return Play("chats", tuple(part(session) for session in workload.sessions))


def judge(outcome: Outcome, replicas: Sequence[str]) -> Spread:
    """The figures. Raises ValueError where not every request was answered."""
    records = outcome.records
    if any(record.error is not None for record in records):
        raise ValueError("not every request was answered")
    busy = dict.fromkeys(replicas, 0.0)
    for record in records:
        busy[str(record.replica)] += record.end_s - record.sent_s
    mean = sum(busy.values()) / len(busy)
    ttfts = sorted(record.first_token_s - record.sent_s for record in records if record.first_token_s is not None)
    prompts = sum(record.prompt_tokens or 0 for record in records)
    return Spread(
        mean / outcome.seconds,
        max(busy.values()) / mean,
        outcome.work_skew,
        sum(record.cached_tokens or 0 for record in records) / prompts,
        median(ttfts),
        ttfts[int(0.99 * (len(ttfts) - 1))],
    )


def measure(chats: int, turns: int, policy: str, seeds: int) -> list[Spread]:
    """One run for each seed."""
    found = []
    for seed in range(seeds):
        plan = Plan(shape(chats, turns), seed)
        fleet = FleetPlan(plan.profile, (1.0,) * plan.replicas, plan.blocks * TOKENS)
        play = play_of(chat_workload(seed, plan.shape), seed)
        found.append(judge(simulate(play, fleet, RouterPlan(POLICIES[policy]), seed), fleet.ids))
    return found


def row(chats: int, policy: str, found: Sequence[Spread]) -> list[str]:
    """As the table has it."""
    ttft = f"{median(each.ttft_p50 for each in found):.2f} / {median(each.ttft_p99 for each in found):.1f}"
    return [
        str(chats),
        policy,
        spread(each.in_flight for each in found).text(),
        spread(each.max_to_mean for each in found).text(digits=2),
        spread(each.work for each in found).text(digits=2),
        f"{median(each.hit_ratio for each in found):.3f}",
        ttft,
    ]


def main(
    chats: Annotated[str, typer.Option(help="How many, a pair of rows each.")] = "120,240,480,960",
    turns: Annotated[int, typer.Option(min=2, help="Of each chat.")] = 4,
    seeds: Annotated[int, typer.Option(min=1, help="Runs for each row.")] = 3,
) -> None:
    """How evenly chats are spread, by how many there are."""
    grid = Table()
    for name in ("chats", "policy", "in flight", "max/mean", "work", "hit ratio", "ttft s"):
        grid.add_column(name, justify="right", no_wrap=True)
    for count in map(int, chats.split(",")):
        for policy in POLICIES:
            grid.add_row(*row(count, policy, measure(count, turns, policy, seeds)))
    console = Console()
    Console(width=None if console.is_terminal else 120).print(grid)


if __name__ == "__main__":
    typer.run(main)
