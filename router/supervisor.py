"""`homing serve`: owns the sockets, starts the workers, obeys signals. It serves no client itself.

    SIGTERM, SIGINT   drain (UX R27), a second one ends at once     SIGHUP   reload
    SIGUSR2           a new supervisor takes over the sockets; once it serves, this one drains

A worker that ends by itself is replaced (processes.py). Each listens on a socket of its own at the same address
(SO_REUSEPORT), made once here and never closed while this process serves.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from importlib.metadata import version as installed
from pathlib import Path as File
from typing import Annotated

import typer
import uvloop

from router import handover
from router.control import Control
from router.core.types import ReplicaId, State
from router.diagnostics import ConfigError, Path
from router.gossip.messages import Drain
from router.handover import READY, Inherited
from router.joining import LOG_FORMAT
from router.loading import Loaded, Secrets, load
from router.processes import Slot, python
from router.render import MAX_SHOWN, is_colored, problem_text
from router.sockets import CannotListen, is_at, listen, listen_shared
from router.values import Endpoint

log = logging.getLogger("homing.supervisor")

GRACE = 2.0
"""Seconds beyond what they were given in which workers close what is left and end; they take milliseconds."""

IDLE = 5.0
"""Seconds after a handover in which a client's open connection may bring one more request, whose answer then tells the
client to close it: closing it at once would cross with a request on its way. uvicorn closes idle ones after as long."""

TAKEOVER = 60.0
"""Seconds within which a new supervisor must serve: an interpreter's start, a worker's, and the first probes."""

PROBED = 10.0
"""Seconds that a new supervisor waits for the first probes, so that its workers know the fleet before they serve."""

MAX_CHANGES = 8
"""Settings other than the default that the start-up lines name; `homing config show` has all."""


class Supervisor:
    """One router's processes. It closes the sockets when it stops."""

    def __init__(
        self, loaded: Loaded, secrets: Secrets, clients: Sequence[socket.socket], admin: socket.socket
    ) -> None:
        self._loaded, self._clients, self._admin = loaded, clients, admin
        wanted = workers(loaded)
        self._control = Control(loaded, secrets, admin, wanted, self._pids, self._restarts)
        # A process that had more workers leaves more sockets than there are now; each must be served by somebody.
        self._slots = [Slot(i, clients[i::wanted], self._control.crew.join) for i in range(wanted)]
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._stop = asyncio.Event()
        self._replacing = self._replaced = False

    async def run(self, inherited: Inherited | None) -> None:
        """Serve until a signal says otherwise, then drain. Returns when all workers have ended."""
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._on_stop)
        self._loop.add_signal_handler(signal.SIGHUP, lambda: self._spawn(self._reload()))
        self._loop.add_signal_handler(signal.SIGUSR2, lambda: self._spawn(self._replace()))
        await self._control.start()
        if inherited is not None:
            await self._control.probed(PROBED)
        ended = [self._loop.create_task(slot.run()) for slot in self._slots]
        self._spawn(self._say_serving(inherited))
        stop = self._loop.create_task(self._stop.wait())
        done, _ = await asyncio.wait([stop, *ended], return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()  # A slot ends only by an error before it is told to.
        await self._drain(ended)

    async def _say_serving(self, inherited: Inherited | None) -> None:
        await self._control.crew.complete(len(self._slots))
        states = {replica.id: replica.state for replica in self._control.fleet.replicas}
        print(_banner(self._loaded, states, self._clients[0], self._admin), file=sys.stderr, flush=True)  # noqa: T201
        if inherited is not None:
            inherited.tell_ready()

    # Signals.

    def _on_stop(self) -> None:
        if self._stop.is_set():
            log.warning("told to stop once more: ending at once")
            for slot in self._slots:
                slot.kill()
        self._stop.set()

    async def _reload(self) -> None:
        await self._control.reload()

    async def _replace(self) -> None:
        if self._replacing or self._stop.is_set():
            log.warning("SIGUSR2: this process is being replaced already, or has been told to stop")
            return
        self._replacing = True
        self._replaced = await self._successor()
        self._replacing = False
        if self._replaced:
            self._stop.set()

    async def _successor(self) -> bool:
        """Start a new supervisor on our sockets; whether it serves."""
        ours, theirs = os.pipe()
        inheritance, descriptors = handover.told(theirs, self._admin, self._clients)
        command, environment = python("-m", "router.cli", "serve", "--config", self._loaded.document.source.name)
        process = await asyncio.create_subprocess_exec(
            *command, stdin=DEVNULL, pass_fds=descriptors, env=environment | inheritance
        )
        os.close(theirs)
        log.info("process %d takes over", process.pid)
        if await _told_ready(ours):
            return True
        log.error("process %d does not serve; this one goes on", process.pid)
        with contextlib.suppress(ProcessLookupError):  # It may have ended by itself.
            process.terminate()
        await process.wait()
        return False

    # The end.

    async def _drain(self, ended: Sequence[asyncio.Task[None]]) -> None:
        """Let the workers end in their time, and then in none."""
        for slot in self._slots:
            slot.stop()
        settings = self._control.config.drain
        order = Drain(settings.accept, 0.0, settings.timeout)
        if self._replaced:
            order = Drain(0.0, IDLE, settings.timeout)
            await self._control.close_admin()
        log.info("stopping: answers under way have %g s", order.timeout)
        self._control.draining = settings.readiness == "fail"
        self._control.crew.drain(order)
        closing = self._loop.call_later(min(order.accept, order.timeout), self._close)
        _, late = await asyncio.wait(ended, timeout=order.timeout + GRACE)
        if late:
            log.error("%d workers have not ended in time and are killed", len(late))
            for slot in self._slots:
                slot.kill()
            await asyncio.wait(late)
        closing.cancel()
        self._close()
        await self._control.stop()

    def _close(self) -> None:
        """Part with the clients' sockets: nobody waits in them any more for a worker to come."""
        for one in self._clients:
            one.close()

    # Small things.

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _pids(self) -> list[int]:
        return [os.getpid(), *(slot.pid for slot in self._slots if slot.pid is not None)]

    def _restarts(self) -> int:
        return sum(slot.restarts for slot in self._slots)


async def _told_ready(pipe: int) -> bool:
    """Whether the word comes over the pipe; it ends without when the new process does."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(pipe, "rb"))
    try:
        async with asyncio.timeout(TAKEOVER):
            return await reader.read() == READY
    except TimeoutError:
        return False
    finally:
        transport.close()


def workers(loaded: Loaded) -> int:
    """How many processes serve clients."""
    return loaded.config.workers or (os.cpu_count() or 1 if sys.platform != "linux" else len(os.sched_getaffinity(0)))


# Sockets.


def _sockets(loaded: Loaded, count: int, inherited: Inherited | None) -> tuple[list[socket.socket], socket.socket]:
    """The clients' sockets, at least `count`, and the admin port's: what was inherited where that is what is set.

    Raises ConfigError when an address that a setting names cannot be had.
    """
    config = loaded.config
    clients: list[socket.socket] = []
    admin: socket.socket | None = None
    if inherited is not None:
        clients = [one for one in inherited.clients if is_at(one, config.listen)]
        admin = inherited.admin if is_at(inherited.admin, config.admin.listen) else None
        for one in (inherited.admin, *inherited.clients):
            if one is not admin and one not in clients:
                one.close()
    endpoint = Endpoint(config.listen.host, clients[0].getsockname()[1]) if clients else config.listen
    missing = count - len(clients)
    with _told(loaded, ("listen",)):
        clients += listen_shared(endpoint, missing, joining=bool(clients)) if missing > 0 else []
    with _told(loaded, ("admin", "listen")):
        return clients, admin or listen(config.admin.listen)


@contextlib.contextmanager
def _told(loaded: Loaded, path: Path) -> Iterator[None]:
    """Tell of an address that cannot be had as of any other mistake in a setting."""
    try:
        yield
    except CannotListen as error:
        raise ConfigError([loaded.problem("H128", path, f"cannot listen: {error}", error.remedy)]) from error


def _banner(loaded: Loaded, states: Mapping[ReplicaId, State], clients: socket.socket, admin: socket.socket) -> str:
    """At most 15 lines: version, where it listens, replicas with their state, what is not the default and why."""
    config = loaded.config
    names = [f"{replica} {state}" for replica, state in states.items()]
    shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    changes = [f"    {row.name}: {row.value} ({row.origin})" for row in loaded.rows() if row.changed]
    if len(changes) > MAX_CHANGES:
        changes[MAX_CHANGES:] = [f"    and {len(changes) - MAX_CHANGES} more: homing config show --origin"]
    return "\n".join([
        f"homing {installed('homing')}, policy {config.routing.policy}",
        f"  listening on {_url(clients)}",
        f"  admin port   {_url(admin)}",
        f"  workers      {workers(loaded)}",
        f"  replicas     {shown}",
        *(["  not default"] if changes else []),
        *changes,
    ])  # fmt: skip


def _url(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://{Endpoint(host, port)}"


async def _serve(loaded: Loaded, secrets: Secrets, inherited: Inherited | None) -> None:
    clients, admin = _sockets(loaded, workers(loaded), inherited)
    with contextlib.ExitStack() as sockets:
        for one in (*clients, admin):
            sockets.enter_context(one)
        await Supervisor(loaded, secrets, clients, admin).run(inherited)


def serve(config: Annotated[File, typer.Option("--config", "-c", help="The YAML file.", metavar="FILE")]) -> None:
    """Run the router until SIGTERM or Ctrl-C.

    Variables named HOMING__SECTION__KEY override the file. SIGHUP reloads both; SIGUSR2 puts a new process in this
    one's place without refusing a connection.

    Examples:

      homing serve -c router.yaml

      HOMING__LOG__LEVEL=debug homing serve --config router.yaml
    """
    try:
        loaded = load(config)
        secrets = loaded.secrets()
        logging.basicConfig(level=loaded.config.log.level.upper(), format=LOG_FORMAT)
        uvloop.run(_serve(loaded, secrets, handover.inherited(os.environ)))
    except ConfigError as error:
        for problem in error.problems[:MAX_SHOWN]:
            print(problem_text(problem, is_colored(sys.stderr)), file=sys.stderr)  # noqa: T201
        raise SystemExit(1) from error


def version() -> None:
    """Print the version.

    Examples:

      homing version

      homing --version
    """
    print(installed("homing"))  # noqa: T201
