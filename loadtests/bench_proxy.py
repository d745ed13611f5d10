"""`python -m loadtests.bench_proxy`: what the router itself costs, beside other proxies on this machine.

All arms stand before the same two stand-in replicas for the whole run, and all but one are idle at any time. Each cell
(`bench_cells`) goes through the arms in turn, and so does each round: A B C, A B C, A B C, a few seconds each, so that
what the machine does meanwhile happens to all of them. The stand-in is an arm, too: its figures are the floor of the
measurement itself. Whatever is started here is stopped here, after Ctrl-C as well. A user's mistake ends in one line on
stderr and exit code 1 (2 for a wrong flag).
"""

import asyncio
import contextlib
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import aiohttp
import typer
from rich.console import Console

from loadtests import bench_profile, bench_report
from loadtests.bench_arms import COMPILED, HOMING, Arm, ArmError, Site, choose
from loadtests.bench_cells import Bench, Plan, Sample, Subject, write_bodies
from loadtests.bench_report import STANDIN
from loadtests.meter import Cores, on, split_cores
from loadtests.native import NoCompilerError, build, listening_port
from loadtests.processes import HOST, Interrupted, Process, ProcessError, free_port, run_until_signal, running

_REPLICAS = 2
_READY_WITHIN_S = 60.0  # A router in Python that starts beside others' work takes seconds.
_GRACE_S = 5.0
_NEWS_WITHIN_S = 0.5

QUICK = Plan(rounds=1, seconds=0.8, pairs=3, turn_seconds=0.2)


def bench_proxy(
    quick: Annotated[bool, typer.Option("--quick", help="One short round, about a minute: indicative.")] = False,
    rounds: Annotated[int | None, typer.Option(min=1, help="How often each arm is measured.")] = None,
    seconds: Annotated[float | None, typer.Option(min=0.1, help="Length of each load.")] = None,
    connections: Annotated[int | None, typer.Option(min=1, max=1024, help="Of the loads for CPU.")] = None,
    prompts: Annotated[int | None, typer.Option(min=1, max=1024, help="Different ones of each size.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="Measure this arm, and others named so. (Repeatable.)")] = None,
    peer: Annotated[
        list[str] | None, typer.Option(metavar="NAME=COMMAND", help="Where a peer is. (Repeatable; README has more.)")
    ] = None,
    compiled: Annotated[
        Path | None, typer.Option(metavar="PATH", help="`homing` of the compiled build [.venv-compiled/bin/homing].")
    ] = None,
    pin: Annotated[bool, typer.Option("--pin", help="One core for the proxy, the others for all else.")] = False,
    out: Annotated[Path | None, typer.Option("--json", dir_okay=False, help="Write the run to this file.")] = None,
    profile: Annotated[bool, typer.Option("--profile", help="The router by stages, without sockets.")] = False,
) -> None:
    """CPU and latency that the router adds, beside nginx and other routers where they are installed.

    Examples:

      homing bench proxy --quick

      homing bench proxy --peer vllm-router=/opt/peers/bin/vllm-router --json out.json
    """
    if out is not None and not out.absolute().parent.is_dir():
        raise typer.BadParameter(f"no directory {out.absolute().parent}", param_hint="--json")
    plan = _plan(quick, rounds=rounds, seconds=seconds, connections=connections, prompts=prompts)
    try:
        if profile:
            bench_profile.show(Console(), out)
        else:
            _measure(plan, choose(compiled, peer or (), only or ()), pin, out)
    except Interrupted as stopped:
        raise typer.Exit(128 + stopped.number) from None
    except (ArmError, NoCompilerError, ProcessError, OSError, ValueError) as error:
        _end(str(error))


def _end(why: str) -> None:
    print(f"bench_proxy: {why}", file=sys.stderr)
    raise typer.Exit(1)


def _plan(quick: bool, **asked: Any) -> Plan:
    """The plan with what was asked for, None for what was not; turns of pairs are no longer than a load."""
    plan = replace(QUICK if quick else Plan(), **{name: value for name, value in asked.items() if value is not None})
    return replace(plan, turn_seconds=min(plan.turn_seconds, plan.seconds))


def _measure(plan: Plan, arms: Sequence[Arm], pin: bool, out: Path | None) -> None:
    if not sys.platform.startswith("linux"):
        _end("it needs Linux: the meter reads /proc, the stand-in waits by epoll")
    cores = split_cores() if pin else None
    where = bench_report.machine()
    names = [arm.name for arm in arms]
    judged = COMPILED if COMPILED in names else HOMING if HOMING in names else names[0]
    print(f"{where.cpu}, {where.cores} cores, load average {where.load}; arms: {', '.join(names)}", flush=True)
    began = time.monotonic()
    samples = run_until_signal(_run(plan, arms, cores))
    if out is not None:
        out.write_text(bench_report.to_json(samples, judged, plan, where), encoding="utf-8")
    _show(Console(), samples, judged, plan, time.monotonic() - began)
    if any(sample.errors for sample in samples):
        raise typer.Exit(1)


def _show(console: Console, samples: Sequence[Sample], judged: str, plan: Plan, wall_s: float) -> None:
    of = bench_report.figures(samples)
    rounds = f"median of {plan.rounds} rounds" if plan.rounds > 1 else "one round"
    console.print(f"CPU in us per request and chunk, {plan.connections} connections, {rounds};", highlight=False)
    console.print(f"in brackets how many times that {judged} takes:", highlight=False)
    console.print(bench_report.cpu_table(of, judged, plan.cpu_cells))
    console.print("Latency in ms, added at one connection, and the worst while big bodies pass:", highlight=False)
    console.print(bench_report.latency_table(of, plan.latency_cells))
    if judged in {HOMING, COMPILED}:
        console.print(f"Goals, by {judged}:", highlight=False)
        console.print(bench_report.goals_table(bench_report.judge(of, judged)))
    for line in bench_report.notes(samples, plan):
        console.print(line, highlight=False)
    console.print(f"Total wall time: {wall_s:.0f} s.", highlight=False)


@dataclass(frozen=True, slots=True)
class _Room:
    """What all arms of a run share."""

    directory: Path
    bench: Bench
    urls: Sequence[str]
    cores: Cores | None
    probe: bytes


async def _run(plan: Plan, arms: Sequence[Arm], cores: Cores | None) -> list[Sample]:
    """Raises NoCompilerError, ProcessError when a stand-in does not start, OSError when an arm cannot be executed."""
    with tempfile.TemporaryDirectory(prefix="homing-bench-") as name, on(cores.rest if cores else None):
        directory = Path(name)
        tools = await build(directory)
        replicas = [tools.replica(f"{STANDIN}-{number}", plan.interval_ms) for number in range(1, _REPLICAS + 1)]
        bodies = write_bodies(plan, directory)
        async with running(replicas, _GRACE_S):
            ports = [await listening_port(replica) for replica in replicas]
            urls = [f"http://{HOST}:{port}" for port in ports]
            probe = bodies.short_streams[0].read_bytes()
            room = _Room(directory, Bench(tools, plan, bodies, ports[0]), urls, cores, probe)
            return await _measured(room, plan, arms, Subject(STANDIN, replicas[0], ports[0]))


async def _measured(room: _Room, plan: Plan, arms: Sequence[Arm], standin: Subject) -> list[Sample]:
    samples, subjects = [], [standin]
    async with contextlib.AsyncExitStack() as stack:
        for arm in arms:
            try:
                subjects.append(await stack.enter_async_context(_started(room, arm)))
            except ProcessError as error:  # What the others cost can still be told.
                samples.append(_lost(arm.name, 0, "start", error))
        for number in range(1, plan.rounds + 1):
            for cell in (*plan.cpu_cells, *plan.latency_cells):
                row = [await _sample(room.bench, subject, number, cell) for subject in subjects]
                told = (f"{sample.arm} {'-' if sample.value is None else f'{sample.value:.2f}'}" for sample in row)
                print(f"{cell}, round {number}: {', '.join(told)}", flush=True)
                samples += row
                ended = {sample.arm for sample in row if sample.ended}
                subjects = [subject for subject in subjects if subject.name not in ended]
    return samples


async def _sample(bench: Bench, subject: Subject, number: int, cell: str) -> Sample:
    """One cell of one arm; when the arm has ended meanwhile, that."""
    sample = await bench.measure(subject, number, cell)
    if sample.value is None:
        # The news of an end may come a moment after the connections broke.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_NEWS_WITHIN_S):
                return _lost(subject.name, number, cell, await subject.process.failure())
    return sample


def _lost(arm: str, number: int, cell: str, error: ProcessError) -> Sample:
    """An arm that did not start, or ended by itself: its last words go to stderr, what it was to the notes."""
    print(error, file=sys.stderr, flush=True)
    return Sample(arm, number, cell, None, errors=1, problem=str(error).partition(";")[0], ended=True)


@contextlib.asynccontextmanager
async def _started(room: _Room, arm: Arm) -> AsyncIterator[Subject]:
    """The arm, answering, within the block. Raises ProcessError when it does not get ready, OSError when it cannot."""
    directory = room.directory / arm.name
    directory.mkdir(exist_ok=True)
    site = Site(directory, free_port(), free_port(), room.urls)
    process = Process(arm.name, arm.command(site), directory / "output.log")
    async with contextlib.AsyncExitStack() as stack:
        with on(room.cores.proxy if room.cores else None):
            await stack.enter_async_context(running([process], _GRACE_S))
        await _answering(process, site.port, room.probe)
        yield Subject(arm.name, process, site.port)


async def _answering(process: Process, port: int, request: bytes) -> None:
    """Waits for the first 200 to a chat request."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2.0)) as http:

        async def answers() -> bool | None:
            headers = {"content-type": "application/json"}
            try:
                url = f"http://{HOST}:{port}/v1/chat/completions"
                async with http.post(url, data=request, headers=headers) as response:
                    await response.read()
                    return response.status == 200 or None
            except (aiohttp.ClientError, TimeoutError):
                return None  # Not there yet; whether it still can be is `Process.ready`'s to judge.

        await process.ready(answers, _READY_WITHIN_S)


if __name__ == "__main__":
    typer.run(bench_proxy)
