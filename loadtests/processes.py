"""Child processes that never outlive their parent's work.

Every child runs in its own session, so a terminal's Ctrl-C reaches only the parent, which stops its children in its own
order. Every wait has a bound. A child that does not leave within its grace is killed with all that it started.
Whatever ends the parent's work, an exception, a cancellation or a signal (under `run_until_signal`), `running` stops
what it started, even when cancelled again meanwhile; only SIGKILL of the parent itself leaves children behind.
"""

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

HOST = "127.0.0.1"

_POLL_S = 0.05
_TAIL_LINES = 12
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_T = TypeVar("_T")


class ProcessError(RuntimeError):
    """A child did not get ready or ended by itself; the message carries the last lines that it wrote."""


class PortInUseError(RuntimeError):
    """Somebody else listens where we must."""


class Interrupted(Exception):
    """A signal asked the program to end; all that it had started has been stopped."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(number.name)
        self.number = number


class Process:
    """One child; start it by `running`. Its output, errors included, goes to the file `log`."""

    def __init__(self, name: str, command: Sequence[str], log: Path) -> None:
        self.name = name
        self._command = command
        self._log = log
        self._child: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        return self._started().pid

    async def start(self) -> None:
        """Raises OSError when there is nothing to execute."""
        with self._log.open("wb") as output:
            self._child = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )

    def output(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")

    async def ready(self, probe: Callable[[], Awaitable[_T | None]], within_s: float) -> _T:
        """The first answer of `probe` that is not None. Raises ProcessError when the child ends or time is up first."""
        child = self._started()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within_s
        while (answer := await probe()) is None:
            if child.returncode is not None:
                raise self._error(f"ended with code {child.returncode} before it was ready")
            if loop.time() > deadline:
                raise self._error(f"was not ready within {within_s:g} s")
            await asyncio.sleep(_POLL_S)
        return answer

    async def finish(self, within_s: float) -> None:
        """Waits until the child has done its work. Raises ProcessError for a code other than 0 or when time is up."""
        try:
            async with asyncio.timeout(within_s):
                code = await self._started().wait()
        except TimeoutError:
            raise self._error(f"did not end within {within_s:g} s") from None
        if code:
            raise self._error(f"ended with code {code}")

    async def failure(self) -> ProcessError:
        """Waits until a child that should run on has ended; what to say about it."""
        return self._error(f"ended with code {await self._started().wait()}")

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal. One that has ended gets none."""
        self._started().send_signal(number)

    async def stop(self, grace_s: float) -> None:
        """SIGTERM, then after `grace_s` seconds SIGKILL to the child and all that it started. It may have ended."""
        child = self._child
        if child is None or child.returncode is not None:
            return
        child.terminate()
        try:
            async with asyncio.timeout(grace_s):
                await child.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):  # It left between the time-out and the kill.
                os.killpg(child.pid, signal.SIGKILL)
            await child.wait()

    def _started(self) -> asyncio.subprocess.Process:
        if self._child is None:
            raise RuntimeError(f"{self.name} was not started")
        return self._child

    def _error(self, what: str) -> ProcessError:
        tail = self.output().splitlines()[-_TAIL_LINES:] or ["(none)"]
        return ProcessError("\n".join([f"{self.name} {what}; its last output:", *(f"  {line}" for line in tail)]))


@contextlib.asynccontextmanager
async def running(processes: Sequence[Process], grace_s: float) -> AsyncIterator[None]:
    """Starts the processes together and stops them together, each with `grace_s` seconds to leave by itself."""
    try:
        for process in processes:
            await process.start()
        yield
    finally:
        await _to_its_end(_stop_all(processes, grace_s))


async def first_failure(processes: Sequence[Process]) -> ProcessError:
    """Waits until any of them ends by itself; what to say about it."""
    loop = asyncio.get_running_loop()
    waits = [loop.create_task(process.failure()) for process in processes]
    try:
        done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
    return done.pop().result()


def run_until_signal(main: Coroutine[Any, Any, _T]) -> _T:
    """`asyncio.run` in which SIGINT, SIGTERM and SIGHUP cancel `main` once; raises Interrupted when it has ended.

    Further signals change nothing: the clean-up that the first one began is bounded already.
    """
    return asyncio.run(_until_signal(main))


def require_free(port: int, flag: str) -> None:
    """Raises PortInUseError, which names the flag that chooses another port, when `port` is taken."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise PortInUseError(
                f"cannot listen on {HOST}:{port}: {error.strerror}; choose another with {flag}"
            ) from error


def children(pid: int, proc: Path = Path("/proc")) -> list[int]:
    """The children of a process; of a router, its workers. Raises OSError where the system does not tell."""
    return [int(child) for child in (proc / f"{pid}/task/{pid}/children").read_text(encoding="ascii").split()]


def free_port() -> int:
    """A port for a server that is told which, and that the kernel gives to nobody who asks for any.

    A connection that has ended there (TIME_WAIT) keeps it so for a minute, and hinders no server that sets
    SO_REUSEADDR, as servers do.
    """
    with socket.create_server((HOST, 0)) as server:
        port: int = server.getsockname()[1]
        with socket.create_connection((HOST, port)) as client:
            accepted, _ = server.accept()
            accepted.close()  # TIME_WAIT is on the side that closes first.
            client.recv(1)
        return port


async def _stop_all(processes: Sequence[Process], grace_s: float) -> None:
    await asyncio.gather(*(process.stop(grace_s) for process in processes))


async def _to_its_end(work: Coroutine[Any, Any, None]) -> None:
    """Awaits `work` whole; a cancellation that arrives meanwhile is raised afterwards."""
    task = asyncio.get_running_loop().create_task(work)
    cancelled = False
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            cancelled = True
    task.result()
    if cancelled:
        raise asyncio.CancelledError


async def _until_signal(main: Coroutine[Any, Any, _T]) -> _T:
    loop = asyncio.get_running_loop()
    task = loop.create_task(main)
    received: list[signal.Signals] = []

    def stop(number: signal.Signals) -> None:
        received.append(number)
        if len(received) == 1:
            task.cancel()

    for number in _STOP_SIGNALS:
        loop.add_signal_handler(number, stop, number)
    try:
        await asyncio.wait([task])
    finally:
        for number in _STOP_SIGNALS:
            loop.remove_signal_handler(number)
    if task.cancelled() and received:
        raise Interrupted(received[0])
    return task.result()
