"""One router worker in this loop, in front of whatever replicas a test brings, and what must hold when it is done.

After each test: every load quantity is back at 0, nothing is pinned, no connection to a replica is open that is not
idle, nobody waits, the probes still run, and no callback or task has raised.
"""

import asyncio
import gc
import socket
import ssl
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any, Protocol

import yaml

from router.app import Worker
from router.control import Control
from router.core.record import Record
from router.core.types import Ask, State
from router.joining import join
from router.loading import Loaded, load
from router.proxy.server import ClientConnection
from tests.scripted import HOST, Script, ScriptedReplica

WITHIN = 5.0
"""Seconds that anything may take which should take milliseconds: the machine may be busy."""


class Member(Protocol):
    """A replica that listens."""

    @property
    def url(self) -> str: ...


async def until(condition: Callable[[], object], within: float = WITHIN) -> None:
    """Wait until the condition holds. Raises AssertionError when it does not in time."""
    loop = asyncio.get_running_loop()
    end = loop.time() + within
    while not condition():
        assert loop.time() < end, "the condition did not come to hold in time"
        await asyncio.sleep(0.005)


class Rig:
    """A worker that serves, and what it told of each request. `control` is its supervisor's part, in this loop too;
    `tls` is how clients speak to it, if by TLS."""

    def __init__(self, worker: Worker, control: Control, port: int, admin_port: int) -> None:
        self.worker, self.control = worker, control
        self.port, self.admin_port = port, admin_port
        self.url, self.admin_url = f"http://{HOST}:{port}", f"http://{HOST}:{admin_port}"
        self.tls: ssl.SSLContext | None = None
        self.records: list[Record] = []
        self._stopping: asyncio.Task[None] | None = None

    @property
    def record(self) -> Record:
        """What was told of the last request."""
        return self.records[-1]

    def state(self, replica: str) -> State:
        return self.worker.fleet.replica(replica).state

    async def ready(self, *replicas: str) -> None:
        """Wait until these are ready."""
        await until(lambda: all(self.state(replica) is State.READY for replica in replicas))

    def stop(self) -> asyncio.Task[None]:
        """Begin to stop the worker, if nobody has yet."""
        if self._stopping is None:
            self._stopping = asyncio.get_running_loop().create_task(self.worker.stop())
        return self._stopping

    @property
    def stopped(self) -> bool:
        return self._stopping is not None

    @property
    def client(self) -> ClientConnection:
        """The one client's connection, as the worker has it."""
        [connection] = self.worker.clients._open
        assert isinstance(connection, ClientConnection)
        return connection

    async def refuses(self) -> bool:
        """Whether a new client is refused."""
        try:
            _, writer = await asyncio.open_connection(HOST, self.port)
        except ConnectionRefusedError:
            return True
        writer.close()
        return False

    async def quiet(self, within: float = WITHIN) -> None:
        """Wait until nothing is under way. Raises AssertionError that tells what still is."""
        loop = asyncio.get_running_loop()
        end = loop.time() + within
        while busy := self.busy():
            assert loop.time() < end, busy
            await asyncio.sleep(0.005)

    def busy(self) -> list[str]:
        """What is not as it is when nothing is under way."""
        worker, found = self.worker, []
        for replica in worker.fleet.replicas:
            silent = (len(replica._draining), replica._drained_requests, replica._drained_tokens)
            load = (replica.requests, replica.unstarted, replica.backlog_tokens, replica.context_tokens, *silent)
            pinned = worker.fleet.residency._shelves[replica.id].pinned
            pool = worker.pools[replica.id]
            if any(load) or pinned or pool.open != pool.idle:
                found.append(f"{replica.id}: load {load}, pinned {pinned}, {pool.open} open, {pool.idle} idle")
        if worker.waiting:
            found.append(f"waiting: {worker.waiting.depths}")
        if worker.proxy.tasks:
            found.append(f"{len(worker.proxy.tasks)} tasks")
        if worker.proxy.buffered:
            found.append(f"{worker.proxy.buffered} bytes of bodies")
        return found


@asynccontextmanager
async def routing(replicas: Mapping[str, Member | str], *, ready: bool = True, **settings: Any) -> AsyncIterator[Rig]:
    """A worker over these replicas (or URLs); with `ready`, all of them are when the block begins.

    `settings` are sections of the configuration; `members` has settings of replicas by their id.
    """
    loop = asyncio.get_running_loop()
    raised: list[Mapping[str, Any]] = []
    loop.set_exception_handler(lambda _, context: raised.append(context))
    with socket.create_server((HOST, 0), backlog=1024) as clients, socket.create_server((HOST, 0)) as admin:
        loaded = _loaded(replicas, settings)
        control = Control(loaded, loaded.secrets(), admin)
        worker = await hired(control, clients)
        rig = Rig(worker, control, clients.getsockname()[1], admin.getsockname()[1])
        _listen_in(rig)
        await control.start()
        try:
            if ready:
                await rig.ready(*replicas)
            yield rig
            await rig.quiet()
            ended = any(task.done() for task in (*worker._tasks, *control._tasks))
            assert rig.stopped or not ended, "the probes have ended"
        finally:
            await rig.stop()
            await control.stop()
        await until(lambda: not len(worker.clients) and not any(pool.open for pool in worker.pools.values()))
    gc.collect()  # A task whose error nobody asked for tells of it when it goes.
    assert raised == []


async def hired(control: Control, clients: socket.socket, name: str = "0") -> Worker:
    """A worker in this loop, over a real channel, as a process would be."""
    ours, theirs = socket.socketpair()
    worker, _ = await asyncio.gather(join(theirs, [clients]), control.crew.join(name, ours))
    return worker


@asynccontextmanager
async def scripted(
    *scripts: Script | ScriptedReplica, **settings: Any
) -> AsyncIterator[tuple[Rig, list[ScriptedReplica]]]:
    """A worker over scripted replicas r1, r2, ...; `settings` as `routing` takes them."""
    replicas = [script if isinstance(script, ScriptedReplica) else ScriptedReplica(script) for script in scripts]
    async with AsyncExitStack() as stack:
        for replica in replicas:
            await stack.enter_async_context(replica)
        members = {f"r{number}": replica for number, replica in enumerate(replicas, 1)}
        yield await stack.enter_async_context(routing(members, **settings)), replicas


def _listen_in(rig: Rig) -> None:
    proxy = rig.worker.proxy
    proxy.rng = Random(1)
    describe = proxy.describe

    def both(record: Record, ask: Ask) -> None:
        rig.records.append(record)
        describe(record, ask)

    proxy.describe = both


def _loaded(replicas: Mapping[str, Member | str], settings: dict[str, Any]) -> Loaded:
    """The configuration as the command line takes it."""
    extra = settings.pop("members", {})
    members = [
        {"id": name, "url": member if isinstance(member, str) else member.url} | extra.get(name, {})
        for name, member in replicas.items()
    ]
    # Probes are frequent, so that tests are short; their patience is a real one, since the machine may be busy.
    health = {"interval": "100ms", "timeout": "2s"} | settings.pop("health", {})
    tree = {"listen": f"{HOST}:0", "admin": f"{HOST}:0", "replicas": members, "health": health}
    return loaded_of(tree | {"drain": {"timeout": "10s"}} | settings)


def loaded_of(tree: Mapping[str, Any]) -> Loaded:
    """These settings, from a file that is gone then."""
    with tempfile.TemporaryDirectory(prefix="homing-rig-") as directory:
        path = Path(directory) / "router.yaml"
        path.write_text(yaml.safe_dump(dict(tree)), encoding="utf-8")
        return load(path)
