"""Worker processes: started with what they inherit, and replaced when they end by themselves.

A worker is a new interpreter that imports this package from where this process has it, whatever the working directory
holds. It inherits one end of a socket pair, its channel to the supervisor, and its slot's listening sockets. These stay
open here while the supervisor lives: a connection that arrives while a worker is being replaced waits in the kernel.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import time
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from router.core.peers import PeerId

log = logging.getLogger("homing.supervisor")

QUICK = 10.0
"""Seconds within which a worker's end looks like one that the next will meet, too."""

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 10.0
"""Seconds before a worker is started again after a quick end, doubling; one that had worked for a while is replaced
at once."""

COMPLAIN_AFTER = 3
"""Quick ends in a row after which the log says that this will not mend itself."""


def python(*arguments: str) -> tuple[list[str], dict[str, str]]:
    """A command for this interpreter with this package, and its environment."""
    home = str(Path(__file__).parents[1])
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and path != home]
    return [sys.executable, "-P", *arguments], os.environ | {"PYTHONPATH": os.pathsep.join([home, *paths])}


class Slot:
    """One worker's place. `join` takes each process's name and its channel; `clients` are the sockets it serves."""

    def __init__(
        self, number: int, clients: Sequence[socket.socket], join: Callable[[PeerId, socket.socket], Awaitable[None]]
    ) -> None:
        self._number, self._clients, self._join = number, clients, join
        self._process: Process | None = None
        self._quick = 0
        self._stopping = asyncio.Event()
        self.restarts = 0

    @property
    def pid(self) -> int | None:
        """The worker's process id; None between two workers."""
        return None if self._process is None else self._process.pid

    async def run(self) -> None:
        """Keep a worker in this place, until it is told to stop and the last one has ended."""
        while not self._stopping.is_set():
            started = time.monotonic()
            process = self._process = await self._start()
            if self._stopping.is_set():  # Since then: it was not there yet to be told.
                self.kill()
            code = await process.wait()
            self._process = None
            if not self._stopping.is_set():
                self.restarts += 1
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), self._pause(code, time.monotonic() - started))

    def stop(self) -> None:
        """Start no other worker. The one that is there ends when it is told over its channel."""
        self._stopping.set()

    def kill(self) -> None:
        """End the worker at once."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    async def _start(self) -> Process:
        ours, theirs = socket.socketpair()
        with theirs:
            descriptors = [theirs.fileno(), *(one.fileno() for one in self._clients)]
            command, environment = python("-m", "router.joining", *map(str, descriptors))
            process = await asyncio.create_subprocess_exec(
                *command, stdin=DEVNULL, pass_fds=descriptors, env=environment
            )
        await self._join(f"{self._number}.{process.pid}", ours)
        return process

    def _pause(self, code: int, lived: float) -> float:
        """Seconds to wait before the next one; says what happened."""
        self._quick = self._quick + 1 if lived < QUICK else 0
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (self._quick - 1)) if self._quick else 0.0
        log.error("worker %d has ended after %.1f s (%s); another one takes its place", self._number, lived, _how(code))
        if self._quick >= COMPLAIN_AFTER:
            log.error(
                "worker %d has ended %d times in a row soon after its start: what it wrote above should say why; "
                "trying again in %g s",
                self._number,
                self._quick,
                pause,
            )
        return pause


def _how(code: int) -> str:
    """An exit code in words."""
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
