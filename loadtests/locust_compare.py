"""`make load`: Locust, headless, against a fresh demo fleet with round_robin and then with prefix_affinity.

Locust runs as a process of its own (it patches sockets at import) and leaves its figures in a JSON file, which is all
that is read here. (Its CSV files are written once a second and lack what came last.) Both runs have the same users, the
same chats and the same time.
"""

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from loadtests.compare import POLICIES
from loadtests.fleet import GRACE_S, FleetShape, fleet
from loadtests.processes import Interrupted, Process, ProcessError, run_until_signal, running
from loadtests.report import percentile

_STOP_TIMEOUT_S = 5  # For the last answers to end.
_OVERTIME_S = 30.0  # For Locust to start and to stop.


@dataclass(frozen=True, slots=True)
class Load:
    """How many users, how many of them start per second, and for how long they work."""

    users: int = 40
    spawn_rate: int = 8
    seconds: int = 30


@dataclass(frozen=True, slots=True)
class Run:
    """One Locust run; times in ms, as Locust rounds them. TTFT is None when no answer had a first token."""

    policy: str
    requests: int
    failures: int
    requests_per_s: float
    ttft_p50_ms: float | None
    ttft_p95_ms: float | None


def main() -> int:
    """Exit code 0 when no request failed in either run."""
    try:
        runs = run_until_signal(_runs(Load()))
    except Interrupted as stopped:
        return 128 + stopped.number
    except ProcessError as error:
        print(f"load: {error}", file=sys.stderr)
        return 1
    Console().print(table(runs))
    return 1 if any(run.failures or not run.requests for run in runs) else 0


class _Entry(msgspec.Struct):
    """What Locust's JSON says of one kind of event; `response_times` counts events by their time in ms."""

    method: str
    num_requests: int
    num_failures: int
    response_times: dict[int, int]


def read_stats(policy: str, stats: bytes, seconds: float) -> Run:
    """A run of `seconds` from what Locust's `--json-file` holds. Raises msgspec.DecodeError for anything else."""
    entries = {entry.method: entry for entry in msgspec.json.decode(stats, type=list[_Entry])}
    nothing = _Entry("", 0, 0, {})
    posts, ttft = entries.get("POST", nothing), entries.get("TTFT", nothing)
    times_ms = sorted(time_ms for time_ms, count in ttft.response_times.items() for _ in range(count))
    return Run(
        policy=policy,
        requests=posts.num_requests,
        failures=posts.num_failures,
        requests_per_s=posts.num_requests / seconds,
        ttft_p50_ms=percentile(times_ms, 0.5),
        ttft_p95_ms=percentile(times_ms, 0.95),
    )


def table(runs: Sequence[Run]) -> Table:
    """Both runs, side by side."""
    grid = Table()
    for name in ("arm", "requests", "failures", "req/s", "TTFT p50 ms", "TTFT p95 ms"):
        grid.add_column(name, justify="left" if name == "arm" else "right", no_wrap=True)
    for run in runs:
        ttft = ("-" if value is None else f"{value:.0f}" for value in (run.ttft_p50_ms, run.ttft_p95_ms))
        grid.add_row(run.policy, str(run.requests), str(run.failures), f"{run.requests_per_s:.2f}", *ttft)
    return grid


async def run_locust(policy: str, url: str, load: Load) -> Run:
    """One headless run of the locustfile. Raises ProcessError when Locust itself fails."""
    with tempfile.TemporaryDirectory(prefix="homing-load-") as name:
        directory = Path(name)
        locust = Process("locust", _command(url, load, directory), directory / "locust.log")
        async with running([locust], GRACE_S):
            await locust.finish(load.seconds + _OVERTIME_S)
        return read_stats(policy, (directory / "run.json").read_bytes(), load.seconds)


async def _runs(load: Load) -> list[Run]:
    runs = []
    for policy in POLICIES:
        print(f"{policy}: {load.users} users for {load.seconds} s", flush=True)
        async with fleet(FleetShape(), policy) as built:
            runs.append(await run_locust(policy, built.url, load))
    return runs


def _command(url: str, load: Load, directory: Path) -> Sequence[str]:
    flags = {
        "--locustfile": str(Path(__file__).with_name("locustfile.py")),
        "--host": url,
        "--users": str(load.users),
        "--spawn-rate": str(load.spawn_rate),
        "--run-time": f"{load.seconds}s",
        "--stop-timeout": str(_STOP_TIMEOUT_S),
        "--json-file": str(directory / "run"),
        # Failed requests are in the figures; another exit code than 0 then means that Locust itself failed.
        "--exit-code-on-error": "0",
    }
    words = (word for pair in flags.items() for word in pair)
    return (sys.executable, "-m", "locust", "--headless", "--only-summary", *words)


if __name__ == "__main__":
    sys.exit(main())
