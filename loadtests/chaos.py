"""`python -m loadtests.chaos`: what clients see when a replica fails, and what is generated twice.

For each row a fresh fleet of simulated replicas, each a process of its own, and one router. Requests come at a steady
rate, half of them streams; in the middle something strikes one replica (chaos_rows.py). The table counts:

sent             requests
nothing          failed before a byte of an answer: an error, or none in time
midway           failed after that, and the client can see it: the connection breaks off, or the stream says `error`
unseen           a part of an answer that ends as if it were the whole
generated twice  requests that were begun on more than one replica, less those that died with their process
slowest s        the longest that a whole answer took

A generation counts as soon as it is begun, whole or not: the replicas tell by request id (`--record-ids`). Exit code 1
when a goal is missed.
"""

import asyncio
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from loadtests import chaos_client
from loadtests.chaos_client import End, Pace, Sent
from loadtests.chaos_rows import STRIKE_S, Life, OfItsOwn, Row, Victim, read_ids, recording, rows
from loadtests.fleet import Fleet, FleetShape, fleet
from loadtests.processes import Interrupted, ProcessError, run_until_signal

SECONDS = 8.0
SLACK_S = 0.05  # Between the clocks by which requests are sent and by which something strikes.
SETTLE_S = 1.0  # For what a replica still does when the last client has its answer.
VICTIM = "r4"  # The one with the most requests: the prompts and the ring are the same each time.


@dataclass(frozen=True, slots=True)
class Result:
    """One row of the table. The struck replica was given `given` requests in the STRIKE_S before, and had `connections`
    (None: the system does not tell); in all, `under_way` were then. `missed` names the goals that were not met."""

    name: str
    sent: int = 0
    nothing: int = 0
    midway: int = 0
    unseen: int = 0
    twice: int = 0
    slowest_s: float | None = None
    given: int = 0
    connections: int | None = None
    missed: Sequence[str] = ()
    under_way: int = 0


def twice(lives: Iterable[Life]) -> int:
    """Generations beyond the first of each request."""
    counts = Counter(id for life in lives for id in life.generated)
    return sum(count - 1 for count in counts.values())


def judge(row: Row, sent: Sequence[Sent], generated_twice: int, connections: int | None) -> Result:
    """The figures of a row, and which of its goals they miss."""
    ends = Counter(each.end for each in sent)
    given = sum(each.replica == VICTIM and each.sent_s < STRIKE_S for each in sent)
    under_way = sum(each.sent_s < STRIKE_S + SLACK_S and each.end_s > STRIKE_S - SLACK_S for each in sent)
    own = {OfItsOwn.REQUESTS: given, OfItsOwn.CONNECTIONS: connections, OfItsOwn.UNDER_WAY: under_way}
    wanted = (
        ("failed before a first byte", ends[End.NOTHING], row.most_nothing),
        ("failed", ends[End.NOTHING] + ends[End.MIDWAY], row.most_failed),
        ("ended unseen", ends[End.UNSEEN], 0),
        ("generated twice", generated_twice, row.most_twice),
    )
    goals = [(what, count, own[most] if isinstance(most, OfItsOwn) else most) for what, count, most in wanted]
    return Result(
        name=row.name,
        sent=len(sent),
        nothing=ends[End.NOTHING],
        midway=ends[End.MIDWAY],
        unseen=ends[End.UNSEEN],
        twice=generated_twice,
        slowest_s=max((each.end_s - each.sent_s for each in sent if each.end is End.WHOLE), default=None),
        given=given,
        connections=connections,
        under_way=under_way,
        missed=[f"{what}: {count}, at most {most}" for what, count, most in goals if most is not None and count > most],
    )


def table(results: Sequence[Result]) -> Table:
    """For people."""
    grid = Table()
    for name in ("row", "sent", "nothing", "midway", "unseen", "generated twice", "slowest s", "goals"):
        grid.add_column(name, justify="left" if name in {"row", "goals"} else "right")
    for each in results:
        slowest = "-" if each.slowest_s is None else f"{each.slowest_s:.1f}"
        counts = (each.sent, each.nothing, each.midway, each.unseen, each.twice)
        grid.add_row(each.name, *map(str, counts), slowest, "; ".join(each.missed) or "met")
    return grid


async def play(row: Row, shape: FleetShape, policy: str, rate: float) -> Result:
    """One row on a fleet of its own. Raises ProcessError when it does not start."""
    with tempfile.TemporaryDirectory(prefix="homing-chaos-") as name:
        directory = Path(name)
        others = {id: directory / f"{id}.ids" for id in shape.ids if id != VICTIM}
        victim = Victim(VICTIM, shape, row.fault, directory)
        flags = {VICTIM: victim.flags()} | {id: recording(path) for id, path in others.items()}
        async with fleet(shape, policy, flags=flags, settings={"workers": row.workers}) as built:
            victim.router = built.processes[-1]
            victim.lives(built.processes[shape.ids.index(VICTIM)], built.replicas[VICTIM])
            try:
                sent, connections = await _strike(row, victim, built, Pace(rate, SECONDS, row.timeout_s))
            finally:
                await victim.close()
        lives = [*victim.told(), *(read_ids(path) for path in others.values())]
        return judge(row, sent, twice(lives), connections)


async def _strike(row: Row, victim: Victim, built: Fleet, pace: Pace) -> tuple[list[Sent], int | None]:
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(chaos_client.run(built.url, pace))
        tasks.create_task(row.strike(victim))
    await asyncio.sleep(SETTLE_S)
    return running.result(), victim.connections


async def _all(chosen: Sequence[Row], shape: FleetShape, policy: str, rate: float) -> list[Result]:
    results = []
    for row in chosen:
        print(f"{row.name} ...", flush=True)
        results.append(await play(row, shape, policy, rate))
    return results


def chaos(
    out: Annotated[Path | None, typer.Option("--json", dir_okay=False, help="Write the table to this file.")] = None,
    rate: Annotated[float, typer.Option(min=1, help="Requests per second.")] = 20.0,
    row: Annotated[list[str] | None, typer.Option(help="Only this row; may be given several times.")] = None,
    policy: Annotated[str, typer.Option(help="The router's.")] = "prefix_affinity",
    seed: Annotated[int, typer.Option(help="Of the replicas.")] = 0,
) -> None:
    """Strike one replica of four while requests go on, in one way after the other, and count what clients see.

    Examples:

      homing bench chaos --json out.json

      homing bench chaos --row killed --rate 60
    """
    shape = FleetShape(seed=seed)
    known = {each.name: each for each in rows(SECONDS)}
    unknown = [name for name in row or () if name not in known]
    if unknown:
        raise typer.BadParameter(f"no row {unknown[0]!r}; there are {', '.join(known)}", param_hint="--row")
    chosen = [known[name] for name in row or known]
    try:
        results = run_until_signal(_all(chosen, shape, policy, rate))
    except Interrupted as stopped:
        raise typer.Exit(128 + stopped.number) from None
    except (ProcessError, OSError) as error:
        print(f"chaos: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    if out is not None:
        out.write_bytes(msgspec.json.format(msgspec.json.encode([asdict(each) for each in results]), indent=2))
    Console().print(table(results))
    if any(each.missed for each in results):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(chaos)
