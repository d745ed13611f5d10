"""`python -m loadtests.scrape`: whether a scrape of a large fleet's metrics delays requests.

50 stand-in replicas that serve 5 models, one router, 200 requests a second. Every other second begins with a
scrape, which another process asks for, so that reading it is not this one's work. Requests are told apart by the second
in which they were due; the noise is how the worst request differs from second to second without any scrape.
"""

import asyncio
import math
import statistics
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from http.client import HTTPConnection
from itertools import product
from multiprocessing import get_context
from time import perf_counter
from typing import Annotated
from urllib.parse import urlsplit

import aiohttp
import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from loadtests.bench_cells import text
from loadtests.native import NoCompilerError
from loadtests.paced import Answered, Paced
from loadtests.processes import Interrupted, ProcessError, run_until_signal
from loadtests.report import percentile
from loadtests.standins import Site, standins

MOST_SERIES = 6_000
"""UX R16."""

ACCEPT = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
"""As Prometheus asks."""

ENDPOINTS = ("chat/completions", "completions", "responses", "messages", "embeddings")
WARM_SECONDS = 5.0
BODY_BYTES = 2_000
PROMPTS = 40


@dataclass(frozen=True, slots=True)
class Scrape:
    """What one brought."""

    series: int
    size: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Seconds:
    """The requests that were due in some of the seconds, in milliseconds; `worsts` has each second's worst."""

    name: str
    requests: int
    failed: int
    p50: float
    p99: float
    worsts: Sequence[float]


def scrape(url: str) -> Scrape:
    """Ask for the metrics as Prometheus does. Run in a process of its own."""
    began = perf_counter()
    connection = HTTPConnection(urlsplit(url).netloc, timeout=10)
    connection.request("GET", "/metrics", headers={"Accept": ACCEPT})
    body = connection.getresponse().read()
    connection.close()
    series = sum(not line.startswith(b"#") for line in body.splitlines())
    return Scrape(series, len(body), perf_counter() - began)


def scraped(second: int) -> bool:
    """Whether a second begins with a scrape."""
    return second % 2 == 1


def summarise(name: str, answered: Sequence[Answered], wanted: Callable[[int], bool]) -> Seconds:
    """Those of the wanted seconds. Raises ValueError when there is none."""
    chosen = [each for each in answered if wanted(int(each.due_s))]
    times = sorted(each.seconds * 1000 for each in chosen)
    worsts: dict[int, float] = {}
    for each in chosen:
        second = int(each.due_s)
        worsts[second] = max(worsts.get(second, 0.0), each.seconds * 1000)
    p50, p99 = percentile(times, 0.5), percentile(times, 0.99)
    if p50 is None or p99 is None:
        raise ValueError("no request was due in these seconds")
    failed = sum(each.status != 200 for each in chosen)
    return Seconds(name, len(chosen), failed, p50, p99, [worsts[second] for second in sorted(worsts)])


def within_noise(without: Seconds, beside: Seconds) -> bool:
    """Whether the worst request of a typical second with a scrape is one of which seconds without have worse.

    A tenth of those may be due to something else on the machine, so that the bound is their 90th percentile.
    """
    noise = percentile(sorted(without.worsts), 0.9)
    assert noise is not None
    return statistics.median(beside.worsts) <= noise


def table(rows: Sequence[Seconds]) -> Table:
    """For people, in milliseconds; `worst` is of a second."""
    grid = Table(box=SIMPLE)
    for column in ("seconds", "sent", "fail", "p50", "p99", "worst: median", "p90", "of all"):
        grid.add_column(column, justify="left" if column == "seconds" else "right", no_wrap=True)
    for row in rows:
        ordered = sorted(row.worsts)
        figures = (row.p50, row.p99, statistics.median(ordered), percentile(ordered, 0.9) or math.nan, ordered[-1])
        grid.add_row(row.name, str(row.requests), str(row.failed), *(f"{figure:.2f}" for figure in figures))
    return grid


def bodies(models: Sequence[str]) -> list[bytes]:
    """Chat requests of BODY_BYTES of prompt, for each model in turn."""
    return [
        b'{"model":"%b","max_tokens":8,"messages":[{"role":"user","content":"%b"}]}'
        % (models[i % len(models)].encode(), text(BODY_BYTES, str(i)).encode())
        for i in range(PROMPTS)
    ]


async def _seen(url: str, models: Sequence[str]) -> None:
    """Have each model asked for on each endpoint, streamed and not, so that their series are there."""
    async with aiohttp.ClientSession() as http:
        for model, endpoint, stream in product(models, ENDPOINTS, (False, True)):
            body = {"model": model, "stream": stream, "max_tokens": 2, "input": "a", "prompt": "a", "messages": []}
            async with http.post(f"{url}/v1/{endpoint}", json=body) as response:
                await response.read()


async def _measure(site: Site, models: Sequence[str], rate: float, seconds: int) -> tuple[list[Answered], list[Scrape]]:
    loop, admin = asyncio.get_running_loop(), site.fleet.admin_url
    prompts = bodies(models)
    client = Paced(site.port, lambda number: prompts[number % len(prompts)])
    scrapes: list[Scrape] = []
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        await _seen(site.fleet.url, models)
        await loop.run_in_executor(pool, scrape, admin)
        await client.run(rate, WARM_SECONDS)
        began = loop.time()
        async with asyncio.TaskGroup() as tasks:
            load = tasks.create_task(client.run(rate, seconds))
            for second in filter(scraped, range(seconds)):
                await asyncio.sleep(began + second - loop.time())
                scrapes.append(await loop.run_in_executor(pool, scrape, admin))
    client.close()
    return load.result(), scrapes


async def _run(replicas: int, models: int, rate: float, seconds: int) -> tuple[list[Answered], list[Scrape]]:
    names = [f"org/model-{number}" for number in range(models)]
    async with standins([names[number % models] for number in range(replicas)]) as site:
        return await _measure(site, names, rate, seconds)


def main(
    seconds: Annotated[int, typer.Option(min=4, help="Half of them with a scrape.")] = 60,
    rate: Annotated[float, typer.Option(min=1, help="Requests per second.")] = 200.0,
    replicas: Annotated[int, typer.Option(min=1, help="Stand-ins.")] = 50,
    models: Annotated[int, typer.Option(min=1, help="Models that they serve.")] = 5,
) -> None:
    """Scrape every other second while requests pass, and compare their latencies. Exit code 0 when none failed, the
    series are within their budget, and the worst requests beside a scrape within noise of the others.

    Examples:

      python -m loadtests.scrape

      python -m loadtests.scrape --seconds 20 --replicas 10
    """
    try:
        answered, scrapes = run_until_signal(_run(replicas, models, rate, seconds))
    except Interrupted as stopped:
        raise typer.Exit(128 + stopped.number) from None
    except (ProcessError, NoCompilerError, OSError) as error:
        print(f"scrape: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    without = summarise("without a scrape", answered, lambda second: not scraped(second))
    beside = summarise("with a scrape", answered, scraped)
    console = Console(highlight=False)
    console.print(table([without, beside]))
    series = max(each.series for each in scrapes)
    took = statistics.median(each.seconds for each in scrapes) * 1000
    console.print(f"{series} series (at most {MOST_SERIES}), {scrapes[-1].size / 1000:.0f} kB, a scrape {took:.0f} ms.")
    good = within_noise(without, beside)
    console.print(f"Worst requests beside a scrape: {'within' if good else 'beyond'} the noise of those without one.")
    if without.failed or beside.failed or series > MOST_SERIES or not good:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
