"""What strikes in a chaos test: one function for each row, on one replica of the fleet (in the last row, on one of the
router's workers), while requests go on.

Each waits STRIKE_S, so that caches, connections and learned rates are as in operation, strikes, and returns when
nothing more is to come. The replica is a process of its own: what it does then, its kernel does, not we.
"""

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from loadtests.fleet import GRACE_S, FleetShape, replica_command
from loadtests.processes import Process, children, running
from replica.faults import Fault

STRIKE_S = 3.0
FLAP_S = 2.0


class Life(NamedTuple):
    """One process of a replica: what it began to generate and what it ended, by request id."""

    begun: Sequence[str]
    ended: Sequence[str]
    killed: bool

    @property
    def generated(self) -> Sequence[str]:
        """What it did or goes on doing; what it had begun when it was killed is not done by anybody."""
        return self.ended if self.killed else self.begun


class Victim:
    """The replica that is struck, through all of its lives. `fault` is what it does from SIGUSR1 on."""

    def __init__(self, name: str, shape: FleetShape, fault: Fault, directory: Path) -> None:
        self.name = name
        self._shape, self._fault, self._directory = shape, fault, directory
        self._process: Process | None = None
        self._port = 0
        self._killed: list[bool] = [False]
        self.connections: int | None = None
        self.router: Process | None = None
        self._stack = AsyncExitStack()

    def flags(self) -> Sequence[str]:
        """Words for the command of its present life."""
        return (*recording(self._ids(len(self._killed) - 1)), "--fail", self._fault, "--fail-on-signal")

    def lives(self, process: Process, url: str) -> None:
        """It runs, as part of a fleet."""
        self._process = process
        self._port = int(url.rpartition(":")[2])

    def signal(self, number: signal.Signals) -> None:
        """Strike it; `connections` is how many there were to it just before, where the system tells."""
        assert self._process is not None
        self.connections = established(self._port)
        self._process.signal(number)

    def kill(self) -> None:
        """As the kernel does when memory runs out."""
        self.signal(signal.SIGKILL)
        self._killed[-1] = True

    async def revive(self) -> None:
        """Start it again, on the same port; it takes a second until it listens. Cleaned up by `close`."""
        self._killed.append(False)
        command = replica_command(self.name, self._shape, self.flags(), self._port)
        log = self._directory / f"{self.name}.{len(self._killed)}.log"
        self._process = Process(f"replica {self.name}", command, log)
        await self._stack.enter_async_context(running([self._process], GRACE_S))

    async def close(self) -> None:
        await self._stack.aclose()

    def told(self) -> list[Life]:
        """All of its lives."""
        return [read_ids(self._ids(life), killed) for life, killed in enumerate(self._killed)]

    def _ids(self, life: int) -> Path:
        return self._directory / f"{self.name}.{life}.ids"


def recording(path: Path) -> Sequence[str]:
    """Flags with which a replica tells in this file what it generates."""
    return ("--record-ids", str(path))


def read_ids(path: Path, killed: bool = False) -> Life:
    """One life, from what the process told. One that never got to listening has told nothing."""
    lines = path.read_text(encoding="ascii").splitlines() if path.exists() else []
    events = [line.split(" ", 1) for line in lines]
    begun, ended = ([id for event, id in events if event == which] for which in ("begin", "end"))
    return Life(list(begun), list(ended), killed)


def established(port: int, sockets: Path = Path("/proc/net/tcp")) -> int | None:
    """Connections to a port of this machine, counted at the clients' side; None where there is no such file."""
    if not sockets.exists():
        return None
    rows = [line.split() for line in sockets.read_text(encoding="ascii").splitlines()[1:]]
    return sum(remote.endswith(f":{port:04X}") and state == "01" for _, _, remote, state, *_ in rows)


Strike = Callable[[Victim], Coroutine[Any, Any, None]]


async def killed(victim: Victim) -> None:
    """SIGKILL, and nothing comes in its place."""
    await asyncio.sleep(STRIKE_S)
    victim.kill()


def stopped(seconds: float) -> Strike:
    """SIGSTOP, and SIGCONT so much later: connections stay open, and nothing answers."""

    async def strike(victim: Victim) -> None:
        await asyncio.sleep(STRIKE_S)
        victim.signal(signal.SIGSTOP)
        await asyncio.sleep(seconds)
        victim.signal(signal.SIGCONT)
        await asyncio.sleep(1.0)  # For what it does when it wakes: that is what is looked for.

    return strike


async def flapping(victim: Victim) -> None:
    """Killed and started again, three times, every two seconds."""
    await asyncio.sleep(STRIKE_S - FLAP_S)
    for _ in range(3):
        await asyncio.sleep(FLAP_S)
        victim.kill()
        await victim.revive()


async def faulty(victim: Victim) -> None:
    """Its fault begins."""
    await asyncio.sleep(STRIKE_S)
    victim.signal(signal.SIGUSR1)


async def worker_killed(victim: Victim) -> None:
    """SIGKILL to one of the router's workers, which the router is to replace. Linux only."""
    await asyncio.sleep(STRIKE_S)
    assert victim.router is not None
    os.kill(children(victim.router.pid)[0], signal.SIGKILL)


class OfItsOwn(StrEnum):
    """A goal that depends on what the struck replica had, or on what there was."""

    UNDER_WAY = "the requests that were under way, of all replicas and workers"
    REQUESTS = "the requests that it was given in as long a time before"
    CONNECTIONS = "the connections that there were to it"


@dataclass(frozen=True, slots=True)
class Row:
    """`timeout_s`: when a client gives up. The rest are goals: at most so many requests that fail before a byte of an
    answer (`most_nothing`), that fail at all, that are generated twice; None where there is none. `workers`: of the
    router."""

    name: str
    strike: Strike
    fault: Fault = Fault.NONE
    timeout_s: float = 15.0
    most_nothing: int | None = None
    most_failed: int | OfItsOwn | None = None
    most_twice: int | OfItsOwn | None = None
    workers: int = 1


def rows(seconds: float) -> Sequence[Row]:
    """The table, for requests that come for so long.

    A stopped replica is out after `health.stall`, 3 s, which is STRIKE_S: it may cost what it got in as long before.
    """
    patience = 5.0
    beyond = seconds + patience - STRIKE_S + 1.0  # Nobody waits any more when it wakes.
    return (
        Row("killed", killed, most_nothing=0, most_twice=0),
        Row("stopped", stopped(beyond), timeout_s=patience, most_failed=OfItsOwn.REQUESTS, most_twice=0),
        Row("stopped for 4 s", stopped(4.0), most_failed=0, most_twice=0),
        Row("slow", faulty, Fault.SLOW, most_failed=0, most_twice=0),
        Row("flapping", flapping, most_nothing=0, most_twice=0),
        Row("resetting before headers", faulty, Fault.RESET, most_twice=OfItsOwn.CONNECTIONS),
        Row("resetting midway", faulty, Fault.RESET_MIDWAY, most_twice=0),
        Row("answering 500 in 1 ms", faulty, Fault.FAST_500, most_twice=0),
        Row("503 + Retry-After", faulty, Fault.FULL, most_failed=0, most_twice=0),
        Row("lying /health", faulty, Fault.HANG, timeout_s=patience, most_twice=0),
        Row("a worker killed", worker_killed, most_failed=OfItsOwn.UNDER_WAY, most_twice=0, workers=2),
    )
