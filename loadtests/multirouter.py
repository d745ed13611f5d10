"""`python -m loadtests.multirouter`: do several routers in front of one fleet decide as one?

The same chats, each turn to another router, over 8 simulated replicas, with 1, 2, 4, 8 routers and with one router of
two workers; each once with gossip over a real Redis and once without. The columns:

hit ratio    prompt tokens that the engines had cached, of all
of one's     that, of the hit ratio of one router with one worker
kept         turns of a chat that went to the replica of the turn before
max/mean     requests in flight per replica, averaged over time: the busiest to the mean. The last row is the least that
             these chats can have: one router with `least_requests`, which only spreads
delay ms     from a dispatch to its arrival at a worker of another router, median and 99th percentile
ttft ms      time to first token, 50th and 99th percentile, as clients would see it

`--kill-redis` plays each arm in pairs, one with Redis left alone and one in which it is ended by SIGKILL after a third
of the time and started again 10 s later. Goals: nothing fails; time to first token in those 10 s is that of the other
run's same 10 s (median of the pairs' ratios: p50 within 10 %, p99 within 25 %, or ratios on both sides of 1); 3 s after
its return all routers would send each of the last prompts to one replica. `--rolling` replaces one router after the
other. Goals: nothing fails, and 95 % of the turns since then went to the replica of the turn before. Exit code 1 when a
goal is missed.

Everything runs in one process (multirouter_bed.py), so on a busy machine delays are the machine's.
"""

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from loadtests.multirouter_run import Arm, Plan, Seen, play
from loadtests.processes import Interrupted, ProcessError, run_until_signal
from loadtests.workloads import ChatShape, chat_workload

WIDTH = 120
MOST_P50, MOST_P99, MOST_AGREE_S, LEAST_KEPT = 1.10, 1.25, 3.0, 0.95


@dataclass(frozen=True, slots=True)
class Result:
    """One row of the table. `gap_ttft_ms` is of the requests that came in the ten seconds in which Redis was gone, or
    would have been; `rolled` the share of turns that kept their replica since the first router was replaced."""

    routers: int
    workers: int
    gossip: bool
    policy: str
    requests: int
    failed: int
    hit_ratio: float
    kept: float
    max_to_mean: float
    delay_ms: tuple[float, float] | None
    ttft_ms: tuple[float, float]
    killed: bool = False
    gap_ttft_ms: tuple[float, float] | None = None
    agreed_s: float | None = None
    rolled: float | None = None


def judge(arm: Arm, seen: Seen) -> Result:
    """The figures of an arm."""
    flights = list(seen.in_flight.values())
    mean = sum(flights) / len(flights)
    begin, end = seen.gap
    gap = [ttft for at, ttft in seen.ttfts if begin <= at < end]
    rolled = None if seen.rolled_s is None else [kept for at, kept in seen.turns if at >= seen.rolled_s]
    return Result(
        arm.routers,
        arm.workers,
        arm.gossip,
        arm.policy,
        seen.requests,
        seen.failed,
        seen.cached / max(1, seen.prompt),
        _share([kept for _, kept in seen.turns]),
        max(flights) / mean if mean else 1.0,
        _halves(seen.delays) if seen.delays else None,
        _halves([ttft for _, ttft in seen.ttfts]),
        arm.kill,
        _halves(gap) if gap else None,
        seen.agreed_s,
        None if rolled is None else _share(rolled),
    )


def _share(kept: Sequence[bool]) -> float:
    return sum(kept) / max(1, len(kept))


def _halves(seconds: Sequence[float]) -> tuple[float, float]:
    """Median and 99th percentile, in ms."""
    ordered = sorted(seconds)
    return 1000 * median(ordered), 1000 * ordered[int(0.99 * (len(ordered) - 1))]


def verdicts(results: Sequence[Result]) -> list[tuple[bool, str]]:
    """Whether each goal of a run that is more than a table is reached, and its figure."""
    told = [(each.failed == 0, f"{_name(each)}: {each.failed} failed") for each in results]
    for each in results:
        if each.rolled is not None:
            told.append((each.rolled >= LEAST_KEPT, f"{_name(each)}, rolling: {each.rolled:.1%} kept their replica"))
        if each.agreed_s is not None:
            text = f"{_name(each)}: agreed {each.agreed_s:.2f} s after Redis was back"
            told.append((each.agreed_s <= MOST_AGREE_S, text))
    for name in dict.fromkeys(_name(each) for each in results if each.killed):
        told += _ratios(name, [each for each in results if _name(each) == name])
    return told


def _ratios(name: str, results: Sequence[Result]) -> list[tuple[bool, str]]:
    """Time to first token while Redis was gone, of that beside it; medians over the pairs."""
    alone = [each.gap_ttft_ms for each in results if not each.killed]
    killed = [each.gap_ttft_ms for each in results if each.killed]
    pairs = [(one, other) for one, other in zip(alone, killed, strict=True) if one is not None and other is not None]
    told = []
    for which, percentile, most in ((0, "p50", MOST_P50), (1, "p99", MOST_P99)):
        ratios = [other[which] / one[which] for one, other in pairs]
        shown = ", ".join(f"{other[which]:.0f} / {one[which]:.0f} ms" for one, other in pairs)
        ratio = median(ratios) if ratios else float("nan")
        reached = ratio <= most or min(ratios, default=most) <= 1  # On both sides of 1: no difference.
        told.append((reached, f"{name}, Redis gone: ttft {percentile} {ratio:.2f} of that beside it ({shown})"))
    return told


def _name(result: Result) -> str:
    return f"{result.routers} routers"


def table(results: Sequence[Result]) -> Table:
    """For people. The first row is what the others are compared with."""
    grid = Table()
    for name in ("routers", "workers", "gossip", "requests", "failed", "hit ratio", "of one's", "kept", "max/mean",
                 "delay ms", "ttft ms"):  # fmt: skip
        grid.add_column(name, justify="right")
    for each in results:
        delay = "-" if each.delay_ms is None else "{:.1f} / {:.1f}".format(*each.delay_ms)
        shared = "killed" if each.killed else "on" if each.gossip else "off"
        grid.add_row(
            str(each.routers),
            str(each.workers),
            shared if each.policy == "prefix_affinity" else each.policy,
            str(each.requests),
            str(each.failed),
            f"{each.hit_ratio:.3f}",
            f"{each.hit_ratio / results[0].hit_ratio:.3f}",
            f"{each.kept:.3f}",
            f"{each.max_to_mean:.2f}",
            delay,
            "{:.0f} / {:.0f}".format(*each.ttft_ms),
        )
    return grid


def arms(counts: Sequence[int], workers: int, off: bool) -> list[Arm]:
    """The table's rows: one router of two workers after them, and the floor."""
    found = [Arm(count, workers, on) for count in counts for on in ((True, False) if off and count > 1 else (True,))]
    if workers == 1 and 1 in counts:
        found.append(Arm(1, 2, True))
    return [*found, Arm(1, 1, False, "least_requests")]


def struck(counts: Sequence[int], workers: int, kill: bool, rolling: bool, pairs: int) -> list[Arm]:
    """The arms of which something befalls; with `kill` each beside one that is left alone, in turn."""
    found = [Arm(count, workers, True, rolling=rolling) for count in counts]
    return [twin for arm in found for _ in range(pairs) for twin in (arm, replace(arm, kill=True))] if kill else found


async def _all(chosen: Sequence[Arm], plan: Plan) -> list[Result]:
    workload = chat_workload(plan.seed, plan.shape)
    results = []
    for arm in chosen:
        what = "Redis killed" if arm.kill else f"gossip {'on' if arm.gossip else 'off'}"
        print(f"{arm.routers} routers of {arm.workers}, {what}, {arm.policy} ...", flush=True)
        results.append(judge(arm, await play(arm, plan, workload)))
    return results


def multirouter(
    routers: Annotated[str, typer.Option(help="How many, one arm pair each.")] = "1,2,4,8",
    workers: Annotated[int, typer.Option(min=1, help="Of each router; 1 adds an arm of one router with two.")] = 1,
    sessions: Annotated[int, typer.Option(min=1, help="Chats, five to four preambles.")] = 480,
    turns: Annotated[int, typer.Option(min=2, help="Of each chat, one in some 12 s.")] = 4,
    kill_redis: Annotated[bool, typer.Option("--kill-redis", help="kill -9, and back after 10 s, in pairs.")] = False,
    pairs: Annotated[int, typer.Option(min=1, help="Of runs, for --kill-redis.")] = 3,
    rolling: Annotated[bool, typer.Option("--rolling", help="Replace one router after the other.")] = False,
    off: Annotated[bool, typer.Option(help="Also without gossip.")] = True,
    out: Annotated[Path | None, typer.Option("--json", dir_okay=False, help="Write the table to this file.")] = None,
    seed: Annotated[int, typer.Option(help="Of the chats.")] = 0,
) -> None:
    """The same chats through more and more routers."""
    plan = Plan(shape(sessions, turns), seed)
    counts = [int(count) for count in routers.split(",")]
    special = kill_redis or rolling
    chosen = struck(counts, workers, kill_redis, rolling, pairs) if special else arms(counts, workers, off)
    try:
        results = run_until_signal(_all(chosen, plan))
    except Interrupted as stopped:
        raise typer.Exit(128 + stopped.number) from None
    except (ProcessError, OSError) as error:
        print(f"multirouter: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    if out is not None:
        out.write_bytes(msgspec.json.format(msgspec.json.encode([asdict(each) for each in results]), indent=2))
    console = Console()
    Console(width=None if console.is_terminal else WIDTH).print(table(results))
    told = verdicts(results)
    for reached, text in told if special else []:
        print(f"{'ok    ' if reached else 'MISSED'} {text}")
    if not all(reached for reached, _ in told):
        raise typer.Exit(1)


def shape(sessions: int, turns: int) -> ChatShape:
    """Chats as people have them: a preamble that some share, questions with something pasted in, answers of a paragraph
    or two, some seconds of reading. Twelve begin each second, which takes 90 % of the replicas' prefill until all have,
    and half of it on the whole."""
    return ChatShape(
        preambles=4 * sessions // 5,
        preamble_tokens=3_000,
        sessions=sessions,
        turns=turns,
        question_tokens=(300, 1_100),
        answer_tokens=(100, 300),
        think_s=(4.0, 8.0),
        stagger_s=sessions / 12,
    )


if __name__ == "__main__":
    typer.run(multirouter)
