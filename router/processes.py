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
"""Quick ends in a row after which this will not mend itself: the log says so, and a router that has never served ends,
so that whoever started it knows."""

PARTING = 1.0
"""Seconds in which a worker whose channel is lost has ended, if that is why."""


def python(*arguments: str) -> tuple[list[str], dict[str, str]]:
    """A command for this interpreter with this package, and its environment."""
    home = str(Path(__file__).parents[1])
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and path != home]
    return [sys.executable, "-P", *arguments], os.environ | {"PYTHONPATH": os.pathsep.join([home, *paths])}


class CannotServe(RuntimeError):
    """No worker has ever served, and those that were started have ended."""


class Slot:
    """One worker's place. `join` takes each process's name and its channel, and answers with what is set when that is
    lost; `clients` are the sockets it serves; `served` says whether any worker of this router ever has."""

    def __init__(
        self,
        number: int,
        clients: Sequence[socket.socket],
        join: Callable[[PeerId, socket.socket], Awaitable[asyncio.Event]],
        served: Callable[[], bool],
    ) -> None:
        self._number, self._clients, self._join, self._served = number, clients, join, served
        self._process: Process | None = None
        self._leaving: dict[Process, asyncio.Task[int]] = {}
        self._quick = 0
        self._stopping = asyncio.Event()
        self.restarts = 0

    @property
    def pids(self) -> list[int]:
        """The worker's process id, and those of former ones that still end what they had begun."""
        return [process.pid for process in self._processes()]

    async def run(self) -> None:
        """Keep a worker in this place, until it is told to stop and all have ended. Raises CannotServe."""
        while not self._stopping.is_set():
            started = time.monotonic()
            how = await self._one()
            if not self._stopping.is_set():
                self.restarts += 1
                pause = self._pause(how, time.monotonic() - started)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._stopping.wait()
        await asyncio.gather(*self._leaving.values())

    def stop(self) -> None:
        """Start no other worker. The one that is there ends when it is told over its channel."""
        self._stopping.set()

    def kill(self) -> None:
        """End the worker at once, and the former ones."""
        for process in self._processes():
            process.kill()

    def _processes(self) -> list[Process]:
        """Those that have not ended."""
        known = [*self._leaving, *([self._process] if self._process is not None else [])]
        return [process for process in known if process.returncode is None]

    async def _one(self) -> str:
        """One worker, until it has ended or is on its own; how that was, in words.

        One that has lost its channel obeys nobody and hears of nothing: it drains by itself, and another one serves
        its sockets meanwhile. Nobody else would: they would fill, and their clients wait.
        """
        try:
            process, lost = await self._start()
        except OSError as error:
            return f"cannot be started: {error}"
        if self._stopping.is_set():  # Since then: it was not there yet to be told.
            process.kill()
        loop = asyncio.get_running_loop()
        ended, alone = loop.create_task(process.wait()), loop.create_task(lost.wait())
        await asyncio.wait((ended, alone), return_when=asyncio.FIRST_COMPLETED)
        alone.cancel()
        await asyncio.wait((ended,), timeout=PARTING)
        self._process = None
        if ended.done():
            return _how(ended.result())
        self._leaving[process] = ended
        ended.add_done_callback(lambda _: self._leaving.pop(process))
        return "its channel was lost, and it drains"

    async def _start(self) -> tuple[Process, asyncio.Event]:
        ours, theirs = socket.socketpair()
        with theirs:
            descriptors = [theirs.fileno(), *(one.fileno() for one in self._clients)]
            command, environment = python("-m", "router.joining", *map(str, descriptors))
            try:
                process = await asyncio.create_subprocess_exec(
                    *command, stdin=DEVNULL, pass_fds=descriptors, env=environment
                )
            except OSError:
                ours.close()
                raise
        self._process = process
        return process, await self._join(f"{self._number}.{process.pid}", ours)

    def _pause(self, how: str, lived: float) -> float:
        """Seconds to wait before the next one; says what happened. Raises CannotServe."""
        self._quick = self._quick + 1 if lived < QUICK else 0
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (self._quick - 1)) if self._quick else 0.0
        log.error("worker %d has ended after %.1f s (%s); another one takes its place", self._number, lived, how)
        if self._quick >= COMPLAIN_AFTER:
            told = f"worker {self._number} has ended {self._quick} times in a row soon after its start"
            if not self._served():
                raise CannotServe(f"{told}, and none has ever served: what it wrote above should say why")
            log.error("%s: what it wrote above should say why; trying again in %g s", told, pause)
        return pause


def _how(code: int) -> str:
    """An exit code in words."""
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
