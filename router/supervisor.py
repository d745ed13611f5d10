"""`homing serve`: owns the sockets, starts the workers, obeys signals. It serves no client itself.

    SIGTERM, SIGINT   drain (UX R27), a second one ends at once     SIGHUP   reload
    SIGUSR2           a new supervisor takes over the sockets; once it serves, this one drains

A worker that ends by itself is replaced (processes.py). Each listens on a socket of its own at the same address
(SO_REUSEPORT), made once here and never closed while this process serves. What cannot be mended from here, as workers
that never serve, ends the process, drained and with exit code 1, so that whoever started it knows.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import tempfile
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from importlib.metadata import version as installed
from pathlib import Path as File
from typing import Annotated, Any

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
from router.processes import CannotServe, Slot, python
from router.render import MAX_SHOWN, is_colored, problem_text
from router.sockets import CannotListen, allow_descriptors, is_at, listen, listen_shared
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
        crew = self._control.crew
        # A process that had more workers leaves more sockets than there are now; each must be served by somebody.
        self._slots = [Slot(i, clients[i::wanted], crew.join, lambda: crew.has_served) for i in range(wanted)]
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._stop = asyncio.Event()
        self._told_to_stop = self._serves = self._replacing = self._replaced = False
        self._reloading = self._reload_again = self._reload_next = False

    async def run(self, inherited: Inherited | None) -> bool:
        """Serve until a signal says otherwise, or it cannot be done any more, and drain. Returns when all workers have
        ended: False when something was wrong, which the log has."""
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._on_stop)
        self._loop.add_signal_handler(signal.SIGHUP, lambda: self._spawn(self._reload()))
        self._loop.add_signal_handler(signal.SIGUSR2, lambda: self._spawn(self._replace()))
        if inherited is not None:
            self._control.crew.snapshot.load(inherited.snapshot)
        await self._control.start(inherited.drained if inherited is not None else ())
        stop = self._loop.create_task(self._stop.wait())
        if inherited is not None:
            probed = self._loop.create_task(self._control.probed(PROBED))
            await asyncio.wait((probed, stop), return_when=asyncio.FIRST_COMPLETED)
        ended = [self._loop.create_task(slot.run()) for slot in self._slots]
        self._spawn(self._say_serving(inherited))
        ends: list[asyncio.Future[Any]] = [stop, self._control.broken, *ended]
        done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        errors = [error for task in done if (error := task.exception()) is not None]
        for error in errors:
            log.critical("this router cannot go on: %s", error, exc_info=_unforeseen(error))
        self._stop.set()
        await self._drain(ended)
        return not errors

    async def _say_serving(self, inherited: Inherited | None) -> None:
        await self._control.crew.complete(len(self._slots))
        if self._stop.is_set():
            return
        self._serves = True
        states = {replica.id: replica.state for replica in self._control.fleet.replicas}
        print(_banner(self._loaded, states, self._clients[0], self._admin), file=sys.stderr, flush=True)  # noqa: T201
        if inherited is not None:
            inherited.tell_ready()

    # Signals.

    def _on_stop(self) -> None:
        if self._told_to_stop:
            log.warning("told to stop once more: ending at once")
            for slot in self._slots:
                slot.kill()
        self._told_to_stop = True
        self._stop.set()

    async def _reload(self) -> None:
        """One at a time; however many are asked for meanwhile are one more. A process that takes over may have read
        the file before it was changed, so it is told in its turn."""
        self._reload_again, self._reload_next = True, True
        if self._reloading:
            return
        self._reloading = True
        try:
            while self._reload_again:
                self._reload_again = False
                await self._control.reload()
        finally:
            self._reloading = False

    async def _replace(self) -> None:
        if self._replacing or self._stop.is_set() or not self._serves:
            log.warning("SIGUSR2: this process does not serve yet, is being replaced already, or is to stop")
            return
        self._replacing = self._control.handing_over = True
        self._reload_next = False
        try:
            self._replaced = await self._successor()
        except OSError as error:
            log.error("no new process can be started (%s); this one goes on", error)  # noqa: TRY400  No bug of ours.
        finally:
            self._replacing, self._control.handing_over = False, self._replaced
        if self._replaced:
            self._stop.set()

    async def _successor(self) -> bool:
        """Start a new supervisor on our sockets; whether it serves. One that is not wanted any more is told to stop.

        Raises OSError.
        """
        ours, theirs = os.pipe()
        try:
            process = await self._start_successor(theirs)
        except OSError:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        log.info("process %d is to take over", process.pid)
        stop, ready = (self._loop.create_task(each) for each in (self._stop.wait(), _told_ready(ours)))
        serves = False
        try:
            await asyncio.wait((stop, ready), return_when=asyncio.FIRST_COMPLETED)
            serves = not stop.done() and ready.result()
        finally:
            stop.cancel()
            ready.cancel()
            if not serves or self._reload_next:
                with contextlib.suppress(ProcessLookupError):  # It may have ended by itself.
                    process.send_signal(signal.SIGHUP if serves else signal.SIGTERM)
        if serves:
            log.info("process %d has taken over; this one ends with its last answer", process.pid)
        else:
            what = "is not wanted any more" if self._stop.is_set() else "does not serve; this one goes on"
            log.error("process %d %s", process.pid, what)
            self._control.handing_over = False
            await self._gone(process)
        return serves

    async def _gone(self, process: Process) -> None:
        """Wait until a new process that was told to stop has ended, and no longer than it has for that."""
        try:
            async with asyncio.timeout(self._control.config.drain.timeout + GRACE):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()

    async def _start_successor(self, ready: int) -> Process:
        with tempfile.TemporaryFile(prefix="homing-") as snapshot:
            snapshot.write(await self._control.renew_snapshot())
            snapshot.flush()
            inheritance, descriptors = handover.told(ready, snapshot, self._admin, self._clients, self._control.drained)
            command, environment = python("-m", "router.cli", "serve", "--config", self._loaded.document.source.name)
            return await asyncio.create_subprocess_exec(
                *command, stdin=DEVNULL, pass_fds=descriptors, env=environment | inheritance
            )

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
        await asyncio.gather(*ended, return_exceptions=True)  # `run` has told of the first; others fail alike.
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
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a signal's work has failed; this process goes on", exc_info=error)

    def _pids(self) -> list[int]:
        return [os.getpid(), *(pid for slot in self._slots for pid in slot.pids)]

    def _restarts(self) -> int:
        return sum(slot.restarts for slot in self._slots)


def _unforeseen(error: BaseException) -> BaseException | None:
    """An error whose traceback helps; what a worker's end is due to is not in here."""
    return None if isinstance(error, CannotServe) else error


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
        f"  listening on {_url(clients, 'https' if config.tls.certificate_file else 'http')}",
        f"  admin port   {_url(admin)}",
        f"  workers      {workers(loaded)}",
        f"  replicas     {shown}",
        *(["  not default"] if changes else []),
        *changes,
    ])  # fmt: skip


def _url(listening: socket.socket, scheme: str = "http") -> str:
    host, port = listening.getsockname()[:2]
    return f"{scheme}://{Endpoint(host, port)}"


async def _serve(loaded: Loaded, secrets: Secrets, inherited: Inherited | None) -> bool:
    clients, admin = _sockets(loaded, workers(loaded), inherited)
    allow_descriptors(loaded.config.limits.connections)
    with contextlib.ExitStack() as sockets:
        for one in (*clients, admin):
            sockets.enter_context(one)
        return await Supervisor(loaded, secrets, clients, admin).run(inherited)


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
        logging.basicConfig(level=loaded.config.log.level.upper(), format=LOG_FORMAT)
        secrets, warnings = loaded.examined()
        for problem in warnings:
            log.warning("%s", problem_text(problem))
        well = uvloop.run(_serve(loaded, secrets, handover.inherited(os.environ)))
    except ConfigError as error:
        for problem in error.problems[:MAX_SHOWN]:
            print(problem_text(problem, is_colored(sys.stderr)), file=sys.stderr)  # noqa: T201
        raise SystemExit(1) from error
    if not well:
        raise SystemExit(1)
