"""`python -m loadtests.soak`: whether the router's memory grows with what passes through it.

Two rows, each with a fresh router with one worker before two stand-ins. Memory is what of each process is in RAM,
before and after; what comes before that is the warm-up, in which pools, buffers and tables find their size:

small    so many requests of 0.5 KB, as fast as 32 connections bring them
unique   prompts of 32 KB of which none is like another, for so many minutes; the index of believed blocks is bounded to
         what the warm-up fills, which is also longer than the window of recent requests
"""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import aiohttp
import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from loadtests.bench_cells import KIB, MODEL, body, text
from loadtests.fleet import HOMING
from loadtests.meter import resident_mb
from loadtests.native import NoCompilerError
from loadtests.paced import Paced
from loadtests.processes import Interrupted, ProcessError, children, run_until_signal
from loadtests.standins import Site, standins

MOST_MB = 5.0
"""Growth of a process that is taken for none."""

CONNECTIONS = 32
TURN_SECONDS = 5.0
SMALL_BYTES = KIB // 2
PROMPTS = 16
UNIQUE_BYTES = 32 * KIB
INDEX_BLOCKS = 10_000  # 160 of the prompts: what the stand-ins say of their caches is of the same order.
WARM_REQUESTS = 20_000
WARM_SECONDS = 75.0  # The window of recent requests is 60 s long (router/core/recent.py).


class SoakError(RuntimeError):
    """The measurement does not show what it should; the message says why."""


@dataclass(frozen=True, slots=True)
class Memory:
    """MB of the supervisor and of its worker."""

    supervisor: float
    worker: float


@dataclass(frozen=True, slots=True)
class Soaked:
    """One row."""

    name: str
    requests: int
    failed: int
    before: Memory
    after: Memory

    @property
    def growth(self) -> tuple[float, float]:
        """MB, of the supervisor and of the worker."""
        return self.after.supervisor - self.before.supervisor, self.after.worker - self.before.worker

    @property
    def good(self) -> bool:
        """Whether neither grew, and no request failed."""
        return max(self.growth) < MOST_MB and not self.failed


def memory(site: Site) -> Memory:
    """As it is now."""
    [worker] = children(site.router)
    return Memory(resident_mb(site.router), resident_mb(worker))


def unique(number: int, rest: bytes) -> bytes:
    """A request whose prompt differs from all others from its first block on."""
    return b'{"model":"%b","max_tokens":8,"messages":[{"role":"user","content":"%d %b"}]}' % (
        MODEL.encode(), number, rest,
    )  # fmt: skip


async def small(requests: int, start: Sequence[str]) -> Soaked:
    """Raises NoCompilerError and ProcessError."""
    async with standins([MODEL, MODEL], start=start) as site:
        paths = [site.directory / f"small-{number}.json" for number in range(PROMPTS)]
        for number, path in enumerate(paths):
            path.write_bytes(body(SMALL_BYTES, number))
        failed = 0

        async def send(wanted: int) -> int:
            nonlocal failed
            sent = 0
            while sent < wanted:
                load = await site.tools.drive(site.port, CONNECTIONS, TURN_SECONDS, paths)
                sent, failed = sent + load.completed, failed + load.errors
                print(f"small: {sent} of {wanted} requests", flush=True)
            return sent

        await send(min(WARM_REQUESTS, requests))
        before = memory(site)
        sent = await send(requests)
        return Soaked("small", sent, failed, before, memory(site))


async def unlike(minutes: float, rate: float, warm_seconds: float, start: Sequence[str]) -> Soaked:
    """Raises NoCompilerError and ProcessError, and SoakError when the index has not reached its bound."""
    rest = text(UNIQUE_BYTES, "unique").encode()
    settings = {"limits": {"index_blocks": INDEX_BLOCKS}}
    async with standins([MODEL, MODEL], settings, start) as site:
        client = Paced(site.port, lambda number: unique(number, rest))
        print(f"unique: {warm_seconds:g} s of warm-up, then {minutes:g} minutes", flush=True)
        warm = await client.run(rate, warm_seconds)
        if not await _evictions(site):
            raise SoakError(f"the index has not reached its bound in {warm_seconds:g} s: it needs a longer warm-up")
        before = memory(site)
        answered = await client.run(rate, minutes * 60)
        after = memory(site)
        client.close()
        failed = sum(each.status != 200 for each in (*warm, *answered))
        return Soaked("unique", len(answered), failed, before, after)


async def _evictions(site: Site) -> int:
    """Blocks that the bound has pushed out of the index so far."""
    async with aiohttp.ClientSession() as http, http.get(f"{site.fleet.admin_url}/fleet") as response:
        evictions: int = (await response.json())["residency"]["evictions"]
        return evictions


def table(rows: Sequence[Soaked]) -> Table:
    """For people, in MB."""
    grid = Table(box=SIMPLE)
    for column in ("row", "requests", "failed", "supervisor", "worker", "growth, at most", "met"):
        grid.add_column(column, justify="left" if column == "row" else "right")
    for row in rows:
        supervisor = f"{row.before.supervisor:.1f} -> {row.after.supervisor:.1f}"
        worker = f"{row.before.worker:.1f} -> {row.after.worker:.1f}"
        growth = f"{max(row.growth):+.1f}, {MOST_MB:g}"
        met = "yes" if row.good else "NO"
        grid.add_row(row.name, str(row.requests), str(row.failed), supervisor, worker, growth, met)
    return grid


async def _run(requests: int, minutes: float, rate: float, warm_seconds: float, start: Sequence[str]) -> list[Soaked]:
    rows = [await small(requests, start)] if requests else []
    return [*rows, *([await unlike(minutes, rate, warm_seconds, start)] if minutes else [])]


def main(
    requests: Annotated[int, typer.Option(min=0, help="Small ones; 0 leaves the row out.")] = 200_000,
    minutes: Annotated[float, typer.Option(min=0, help="Of unique prompts; 0 leaves the row out.")] = 5.0,
    rate: Annotated[float, typer.Option(min=1, help="Unique prompts per second.")] = 100.0,
    warm: Annotated[float, typer.Option(min=1, help="Seconds of unique prompts before the first look.")] = WARM_SECONDS,
    homing: Annotated[str, typer.Option(help="The router's command [this source].")] = "",
) -> None:
    """Send much, and compare the memory of supervisor and worker before and after. Exit code 0 when neither grew by
    5 MB and no request failed.

    Examples:

      python -m loadtests.soak

      python -m loadtests.soak --requests 50000 --minutes 1 --homing .venv-compiled/bin/homing
    """
    start = shlex.split(homing) or HOMING
    try:
        rows = run_until_signal(_run(requests, minutes, rate, warm, start))
    except Interrupted as stopped:
        raise typer.Exit(128 + stopped.number) from None
    except (ProcessError, NoCompilerError, SoakError, OSError) as error:
        print(f"soak: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    Console(highlight=False).print(table(rows))
    if not all(row.good for row in rows):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
