"""`homing simulate`: what a configuration, and a setting's values, would make of traffic, in simulated time.

It reads a router's YAML as `homing serve` does; a swept setting is set as its environment variable would set it. What
is printed and drawn is made of rows (sim_rows) alone. A user's mistake ends in a few lines on stderr and exit code 1 (2
for a wrong flag), never in a traceback.
"""

import os
import sys
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from loadtests import sim_around, sim_events, sim_plot, sim_report
from loadtests.plays import Play
from loadtests.plays_made import WORKLOADS
from loadtests.sim_around import Moment
from loadtests.sim_events import Events
from loadtests.sim_gossip import GossipPlan
from loadtests.sim_rows import Key, NothingAnsweredError, Row, append, line, parse
from loadtests.simulation import FleetPlan, RouterPlan, simulate
from loadtests.trace_plays import trace_play
from loadtests.traces import TraceError, TraceRequest, read
from replica.profiles import PROFILES
from router import render
from router.config import Config, tree
from router.diagnostics import ConfigError
from router.loading import load, variable
from router.settings import Setting, title, walk

WORKLOAD_REQUESTS = 2_000
PLAIN_WIDTH = 160  # Of a table in a file or a pipe: its ranges fit.


def run(
    config: Annotated[Path, typer.Option("--config", "-c", help="The router's YAML file.", metavar="FILE")],
    trace: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, readable=True, help="A trace in Mooncake's format, or:")
    ] = None,
    workload: Annotated[str | None, typer.Option(help=f"{', '.join(WORKLOADS)}.")] = None,
    rate: Annotated[
        float | None,
        typer.Option(
            min=0.001,
            help="Requests a second; a trace is sped up or slowed down to it.",
        ),
    ] = None,
    model: Annotated[str | None, typer.Option(help="Of a trace for several: whose requests.")] = None,
    requests: Annotated[int | None, typer.Option(min=1, help="How many; without: 2,000, or all of a trace.")] = None,
    replicas: Annotated[int, typer.Option(min=1, max=10_000, help="How many.")] = 8,
    profile: Annotated[str, typer.Option(help=f"{', '.join(PROFILES)}.")] = "llama3-8b-h100",
    routers: Annotated[str, typer.Option(help="How many, or their shares of the traffic: 7,1,1,1.", metavar="N")] = "1",
    news: Annotated[str, typer.Option(help="How old their news grows: seconds, or dead.", metavar="AGE")] = "0",
    sweep: Annotated[
        str | None, typer.Option(help="A setting of `routing` and its values.", metavar="SETTING=V,V,...")
    ] = None,
    event: Annotated[
        list[str] | None,
        typer.Option(
            help="A change amid it: join, leave 2, restart 2 (for 30) (drained), restart all, slow 2 x0.5, router 1 "
            "(cold); then @ and the second. May be given again.",
            metavar="WHAT@S",
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, max=100, help="Repeats, each with other arrivals and homes.")] = 1,
    out: Annotated[Path | None, typer.Option("--json", dir_okay=False, help="Append a line for each run.")] = None,
    plot: Annotated[
        Path | None,
        typer.Option(dir_okay=False, help="Draw it, as .png, .svg, ..."),
    ] = None,
) -> None:
    """Simulate a fleet behind this configuration: no socket, no GPU, seconds instead of hours.

    Policy and limits are the file's; the replicas are simulated ones of the profile, not those of the file.

    \b
    Examples:
      homing simulate -c router.yaml --trace conversation.jsonl --profile qwen3-32b-2xh100
      homing simulate -c router.yaml --workload whale --rate 60 --sweep spill.max_backlog_seconds=0.5,1,2,5,18
      homing simulate -c router.yaml --workload chat --rate 50 --event "restart 2@30" --event join@60
    """
    _check(trace, workload, rate, profile)
    try:
        if plot is not None:
            sim_plot.require(plot)
        shares, gossip = _shares(routers), GossipPlan(dead=True) if news == "dead" else GossipPlan(every_s=float(news))
        events = sim_events.read(event or (), replicas, len(shares))
        work = _Work(workload, rate, requests, None if trace is None else read(trace, requests, model))
        arms = {name: _routers(each, shares, gossip) for name, each in _arms(config, sweep).items()}
        rows, moments = _run(work, FleetPlan(profile, (1.0,) * replicas), arms, seeds, events, out)
        console = Console() if Console().is_terminal else Console(width=PLAIN_WIDTH)
        sim_report.show(console, rows)
        _show_events(console, events, moments)
        if plot is not None:
            sim_plot.draw(rows, plot)
    except sim_events.EventError as error:
        raise typer.BadParameter(str(error), param_hint="--event") from None
    except ConfigError as error:
        for problem in error.problems[: render.MAX_SHOWN]:
            print(render.problem_text(problem, render.is_colored(sys.stderr)), file=sys.stderr)
        raise typer.Exit(1) from None
    except (TraceError, NothingAnsweredError, sim_plot.NoPlotError, ValueError, OSError) as error:
        print(f"homing simulate: {error}", file=sys.stderr)
        raise typer.Exit(1) from None


def _check(trace: Path | None, workload: str | None, rate: float | None, profile: str) -> None:
    if (trace is None) == (workload is None):
        raise typer.BadParameter("give one of --trace and --workload")
    if workload is not None and workload not in WORKLOADS:
        raise typer.BadParameter(f"one of {', '.join(WORKLOADS)}", param_hint="--workload")
    if workload is not None and rate is None:
        raise typer.BadParameter("needed by --workload", param_hint="--rate")
    if profile not in PROFILES:
        raise typer.BadParameter(f"one of {', '.join(PROFILES)}", param_hint="--profile")


@dataclass(frozen=True, slots=True)
class _Work:
    """A workload by name, or the requests of a trace."""

    workload: str | None
    rate: float | None
    requests: int | None
    trace: list[TraceRequest] | None

    def play(self, seed: int) -> Play:
        if self.trace is not None:
            return trace_play("trace", self.trace, seed).at_rate(self.rate)
        assert self.workload is not None
        assert self.rate is not None
        return WORKLOADS[self.workload](seed, self.requests or WORKLOAD_REQUESTS, self.rate)


def _arms(config: Path, sweep: str | None) -> dict[str, Config]:
    """The configuration for each value of the sweep, by how it is called. Raises ConfigError, ValueError."""
    if sweep is None:
        found = load(config).config
        return {found.routing.policy: found}
    setting, equals, values = sweep.partition("=")
    if not equals or not all(values.split(",")):
        raise ValueError(f"--sweep takes SETTING=VALUE,VALUE,..., not {sweep!r}")
    _require_setting(setting)
    load(config)  # What is wrong with the file itself is told as such.
    return {f"{setting}={value}": _swept(config, setting, value) for value in values.split(",")}


def _swept(config: Path, setting: str, value: str) -> Config:
    """Raises ValueError, in terms of the flag and not of the variable that stands for it."""
    path = ("routing", *setting.removeprefix("routing.").split("."))
    try:
        return load(config, {**os.environ, variable(path): value}).config
    except ConfigError as error:
        problem = error.problems[0]
        hint = "" if problem.suggestion is None else f"; did you mean {problem.suggestion}?"
        raise ValueError(f"--sweep {setting}={value}: {problem.message}{hint}") from None


def _require_setting(setting: str) -> None:
    """Raises ValueError for what is no setting of `routing`, with the nearest one."""
    names = [
        title(path).removeprefix("routing.")
        for path, node in walk(tree())
        if path[0] == "routing" and isinstance(node, Setting)
    ]
    if setting.removeprefix("routing.") not in names:
        near = get_close_matches(setting, names, n=1)
        raise ValueError(
            f"--sweep: no setting `{setting}` in `routing`" + (f"; did you mean `{near[0]}`?" if near else "")
        )


def _shares(routers: str) -> tuple[float, ...]:
    """Raises ValueError for what is neither a number of routers nor their shares."""
    if "," not in routers:
        return (1.0,) * int(routers)
    return tuple(float(share) for share in routers.split(","))


def _routers(config: Config, shares: tuple[float, ...], gossip: GossipPlan) -> RouterPlan:
    queue = config.routing.queue
    settings = config.fleet_settings()
    return RouterPlan(config.routing.make, settings, queue.max_requests, queue.max_seconds, shares, gossip)


def _run(
    work: _Work, plan: FleetPlan, arms: dict[str, RouterPlan], seeds: int, events: Events, out: Path | None
) -> tuple[list[Row], list[Moment]]:
    """Every arm on the same work, for each seed. Raises OSError when the file cannot be written."""
    rows: list[Row] = []
    moments: list[Moment] = []
    for seed in range(1, seeds + 1):
        play = work.play(seed)
        for arm, routers in arms.items():
            outcome = simulate(play, plan, routers, seed, events.changes)
            text = line(Key(play.name, events.name, play.rate, arm, seed), play, plan, outcome)
            if out is not None:
                append(out, text)
            rows.append(parse(text))
            moments += sim_around.moments(arm, outcome.records, events.told, outcome.seconds)
            print(f"{arm}, seed {seed}: goodput {rows[-1].goodput:.1%}", file=sys.stderr)
    return rows, moments


def _show_events(console: Console, events: Events, moments: list[Moment]) -> None:
    if moments:
        console.print(sim_around.table(moments))
        seconds = f"{sim_around.WINDOW_S:g} s"
        console.print(f"Of the requests sent in the {seconds} before and after each event; failed: that ended so.")
    for text, _ in events.told:
        if all(moment.event != text for moment in moments):
            console.print(f"{text}: everything was over before. More --requests, or an earlier event.", highlight=False)
