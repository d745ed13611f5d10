"""`homing demo`: a fleet of simulated replicas to play with, or measured: round robin against Homing.

It shows; what it shows is made elsewhere (`workloads`, `traces`, `fleet`, `compare`, `report`). A user's mistake ends
in one line on stderr and exit code 1 (2 for a wrong flag), never in a traceback.
"""

import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from loadtests.compare import Plan, compare
from loadtests.fleet import MODEL, FleetShape, fleet
from loadtests.processes import Interrupted, PortInUseError, ProcessError, first_failure, require_free, run_until_signal
from loadtests.records import Record
from loadtests.report import SHORT_COLUMNS, Report, notes, table
from loadtests.traces import TraceError, read, trace_workload
from loadtests.workloads import ChatShape, chat_workload
from replica.tokens import Tokenizer

# Two arms of this, each with some seconds to start and stop a fleet, end within 100 s on two cores.
CHAT_SECONDS = 42.0
# A turn: think time (3 s), answer (60 tokens at 6 ms) and what a loaded fleet adds.
TURN_SECONDS = 4.0
# An answer of the demo takes about half a second. Longer than this and something is broken; the demo has to end.
CHAT_TIMEOUT_S = 10.0
TRACE_TIMEOUT_S = 120.0
# The longest prompts of public traces (130,000 tokens) must fit beside others.
TRACE_BLOCKS = 29_000


def demo(
    measure: Annotated[bool, typer.Option("--compare", help="Measure prefix_affinity against round_robin.")] = False,
    out: Annotated[
        Path | None, typer.Option("--json", dir_okay=False, help="With --compare: write the report to this file.")
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(min=1, help="With --compare: no new request after this time in each arm.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the workload and of the replicas.")] = 1,
    trace: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, readable=True, help="With --compare: replay this Mooncake trace."),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="With --trace: only its first requests.")] = None,
    model: Annotated[str | None, typer.Option(help="With --trace: the model whose requests these are.")] = None,
    speed: Annotated[float, typer.Option(min=0.01, help="Of replicas, arrivals and think times.")] = 1.0,
    port: Annotated[int, typer.Option(min=1, max=65535, help="The router's, without --compare.")] = 8080,
    admin_port: Annotated[int, typer.Option(min=1, max=65535, help="Its admin API's, without --compare.")] = 9100,
) -> None:
    """Four simulated replicas and one router; runs until Ctrl-C. No GPU, no network.

    --compare plays one seeded workload through round_robin and then through prefix_affinity, each on a fresh fleet,
    prints a table and ends by itself; exit code 0 when no request failed.

    \b
    Examples:
      homing demo
      homing demo --compare --json out.json
    """
    _require("--compare", measure, {"--json": out, "--seconds": seconds, "--trace": trace})
    _require("--trace", trace is not None, {"--limit": limit, "--model": model})
    if out is not None and not out.absolute().parent.is_dir():
        raise typer.BadParameter(f"no directory {out.absolute().parent}", param_hint="--json")
    shape = FleetShape(speed=speed, seed=seed)
    try:
        if not measure:
            _play(shape, port, admin_port)
        else:
            plan = _trace_plan(shape, trace, limit, seconds, model) if trace else _chat_plan(shape, seconds)
            _measure(plan, out)
    except Interrupted as stopped:
        # Ctrl-C is how the demo ends; cutting a measurement short is not its success.
        raise typer.Exit(0 if not measure and stopped.number == signal.SIGINT else 128 + stopped.number) from None
    except (ProcessError, PortInUseError, TraceError, OSError) as error:
        print(f"homing demo: {error}", file=sys.stderr)
        raise typer.Exit(1) from None


def _require(wanted: str, given: bool, options: dict[str, object]) -> None:
    for flag, value in options.items():
        if value is not None and not given:
            raise typer.BadParameter(f"only together with {wanted}", param_hint=flag)


def _play(shape: FleetShape, port: int, admin_port: int) -> None:
    require_free(port, "--port")
    require_free(admin_port, "--admin-port")
    run_until_signal(_until_stopped(shape, port, admin_port))


async def _until_stopped(shape: FleetShape, port: int, admin_port: int) -> None:
    print(f"Starting {shape.n} simulated replicas and one router ...", flush=True)
    async with fleet(shape, "prefix_affinity", port=port, admin_port=admin_port) as built:
        print(_welcome(built.url, built.admin_url, built.replicas), flush=True)
        raise await first_failure(built.processes)


def _welcome(url: str, admin_url: str, replicas: dict[str, str]) -> str:
    chat = f"{url}/v1/chat/completions -H 'content-type: application/json'"
    # 1,000 numbers are about 4 KB: long enough that a second request shows what is cached.
    messages = """[{"role":"system","content":"'"$(seq -s ' ' 1000)"'"},{"role":"user","content":"Hello"}]"""
    return f"""
Router    {url}
Admin     {admin_url}
Replicas  {", ".join(f"{name} {address}" for name, address in replicas.items())}

One answer (run it twice: the second comes from the same replica, with cached_tokens above 0):
  curl -si {chat} -d '{{"model":"{MODEL}","max_tokens":20,"messages":{messages}}}'

The same as a stream:
  curl -sN {chat} -d '{{"model":"{MODEL}","max_tokens":20,"stream":true,"messages":{messages}}}'

Ctrl-C stops everything."""


def _chat_plan(shape: FleetShape, seconds: float | None) -> Plan:
    """As many turns as fit in the time at an unhurried pace, so that both arms can do all of the work."""
    chats = ChatShape(bytes_per_token=_bytes_per_token(shape))
    seconds = CHAT_SECONDS if seconds is None else seconds
    turns = int((seconds * shape.speed - chats.stagger_s) / TURN_SECONDS)
    chats = replace(chats, turns=min(max(turns, 1), chats.turns))
    return Plan(chat_workload(shape.seed, chats).at_speed(shape.speed), shape, shape.seed, seconds, CHAT_TIMEOUT_S)


def _trace_plan(
    shape: FleetShape, trace: Path, limit: int | None, seconds: float | None, model: str | None = None
) -> Plan:
    shape = replace(shape, blocks=TRACE_BLOCKS)
    workload = trace_workload(read(trace, limit, model), shape.seed, _bytes_per_token(shape)).at_speed(shape.speed)
    return Plan(workload, shape, shape.seed, seconds, TRACE_TIMEOUT_S)


def _bytes_per_token(shape: FleetShape) -> float:
    """So that the token counts of a workload come out as they are meant: the simulated model's own."""
    return Tokenizer(MODEL, shape.seed).bytes_per_token


def _measure(plan: Plan, out: Path | None) -> None:
    console = Console()
    began = time.monotonic()
    with _progress(console, plan.workload.requests) as progress:
        report, failures = run_until_signal(compare(plan, progress))
    if out is not None:
        report.write(out)
    _show(console, report, failures, time.monotonic() - began)
    if report.errors:
        raise typer.Exit(1)


def _show(console: Console, report: Report, failures: Counter[str], wall_s: float) -> None:
    console.print(table(report, SHORT_COLUMNS))
    for line in notes(report):
        console.print(line, highlight=False)
    if failures:
        console.print("Failed: " + ", ".join(f"{count} {cause}" for cause, count in failures.most_common()))
    console.print(f"Total wall time: {wall_s:.0f} s.", highlight=False)


@contextmanager
def _progress(console: Console, requests: int) -> "Iterator[_Bars | _Lines]":
    if not console.is_terminal:
        yield _Lines(requests)
        return
    columns = (TextColumn("{task.description:<15}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as bars:
        yield _Bars(bars, requests)


class _Bars:
    """One bar per arm."""

    def __init__(self, bars: Progress, requests: int) -> None:
        self._bars = bars
        self._requests = requests
        self._arm = TaskID(0)

    def begin(self, policy: str) -> None:
        self._arm = self._bars.add_task(policy, total=self._requests)

    def record(self, record: Record) -> None:
        self._bars.advance(self._arm)


class _Lines:
    """For what is not a terminal: a line at each quarter of an arm."""

    def __init__(self, requests: int) -> None:
        self._requests = requests
        self._policy = ""
        self._done = 0

    def begin(self, policy: str) -> None:
        self._policy, self._done = policy, 0
        print(f"{policy}: starting a fresh fleet", flush=True)

    def record(self, record: Record) -> None:
        self._done += 1
        if self._done * 4 // self._requests > (self._done - 1) * 4 // self._requests:
            print(f"{self._policy}: {self._done}/{self._requests} requests, {record.end_s:.0f} s", flush=True)
