"""The two C programs of bench_proxy, built when they are needed: the stand-in replica and the load generator.

In Python either would cost more than the proxies that it is there to measure. Both go into a directory of the caller's
and are gone with it: nothing is installed, and nothing is built before somebody measures.
"""

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from loadtests.processes import HOST, Process, running

COMPILERS = ("cc", "gcc", "clang")
_BUILD_WITHIN_S = 60.0
_LISTEN_WITHIN_S = 10.0
_GRACE_S = 2.0
# What the load generator waits for answers after its time, and some for its own start.
_OVERTIME_S = 15.0


class NoCompilerError(RuntimeError):
    """There is no C compiler; the message says what to install."""


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Microseconds, over the answers that were whole."""

    p50: float
    p90: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True)
class Load:
    """What the load generator saw; `seconds` from the first request to the last answer."""

    completed: int
    errors: int
    last_error: str
    events: int
    seconds: float
    latency_us: Percentiles
    first_byte_us: Percentiles


@dataclass(frozen=True, slots=True)
class Tools:
    """The built programs; logs and what they print go to `directory`."""

    directory: Path
    standin: Path
    loadgen: Path

    def replica(self, name: str, interval_ms: int, model: str = "bench") -> Process:
        """A stand-in replica on a port of its choice, whose streams have an event each `interval_ms`; not started."""
        return Process(name, [str(self.standin), "0", str(interval_ms), model], self.directory / f"{name}.log")

    async def drive(self, port: int, connections: int, seconds: float, bodies: Sequence[Path]) -> Load:
        """Send the bodies in turn over so many connections, closed loop, for this time.

        Raises ProcessError when nobody listens, or requests only fail.
        """
        words = [str(self.loadgen), str(port), str(connections), str(seconds), *map(str, bodies)]
        process = Process(f"load on port {port}", words, self.directory / f"load-{port}-{connections}.log")
        async with running([process], _GRACE_S):
            await process.finish(seconds + _OVERTIME_S)
        return msgspec.json.decode(process.output(), type=Load)


def compiler(environment: Mapping[str, str] = os.environ) -> str:
    """The system's C compiler: $CC, or the first known one on the path. Raises NoCompilerError."""
    named = environment.get("CC")
    for name in [named] if named else COMPILERS:
        found = shutil.which(name, path=environment.get("PATH", os.defpath))
        if found is not None:
            return found
    raise NoCompilerError(
        f"the stand-in replica and the load generator are C, and there is no {named or 'C compiler'} on the PATH: "
        "install one (Debian and Ubuntu: apt install gcc libc6-dev; Alpine: apk add gcc musl-dev linux-headers; "
        "Fedora: dnf install gcc), or name yours by CC=..."
    )


async def build(directory: Path) -> Tools:
    """Compile both into `directory`. Raises NoCompilerError, and ProcessError with what the compiler said."""
    cc = compiler()
    tools = Tools(directory, directory / "standin", directory / "loadgen")
    builds = [_compilation(cc, target) for target in (tools.standin, tools.loadgen)]
    async with running(builds, _GRACE_S):
        for process in builds:
            await process.finish(_BUILD_WITHIN_S)
    return tools


async def listening_port(replica: Process) -> int:
    """The port that a started stand-in says it listens on. Raises ProcessError when it does not."""

    async def said() -> int | None:
        found = re.search(rf"listening on http://{re.escape(HOST)}:(\d+)\n", replica.output())
        return int(found[1]) if found else None

    return await replica.ready(said, _LISTEN_WITHIN_S)


def _compilation(cc: str, target: Path) -> Process:
    source = Path(__file__).with_name(f"{target.name}.c")
    words = [cc, "-O2", "-std=gnu11", "-Wall", "-Wextra", "-o", str(target), str(source)]
    return Process(f"the C compiler, of {source.name},", words, target.with_suffix(".log"))
