"""A supervisor with its workers in front of replicas that a test brings, as processes or all in one loop."""

import asyncio
import json
import os
import re
import signal
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from router.app import Worker
from router.control import Control
from router.loading import load
from router.sockets import listen_shared
from router.values import Endpoint
from tests.rig import hired, until
from tests.scripted import HOST, Call, Script, ScriptedReplica

WITHIN = 30.0
"""Seconds for processes to start on a machine that is busy with others."""

TOKEN = "t0ken"
MODEL = "sim"
HOMING = (sys.executable, "-m", "router.cli")


async def eventually(condition: Callable[[], Awaitable[bool]], within: float = WITHIN) -> None:
    """Wait until a condition that is asked over a connection holds. Raises TimeoutError when it does not in time."""
    async with asyncio.timeout(within):
        while not await condition():  # noqa: ASYNC110  A process tells nobody when it has changed.
            await asyncio.sleep(0.02)


class Face:
    """A router as operators and clients see it. Its configuration is the file `config`, which a test may write anew;
    `tls` is how clients speak to it, if by TLS."""

    def __init__(self, directory: Path, tree: Mapping[str, Any]) -> None:
        self.config = directory / "router.yaml"
        self.token_file = directory / "token"
        self.token_file.write_text(TOKEN)
        self.tree = dict(tree)
        self.write()
        self.url = self.admin_url = ""
        self.tls: ssl.SSLContext | None = None

    def write(self, **changes: Any) -> None:
        """Write the configuration, with these sections changed."""
        self.tree |= changes
        self.config.write_text(yaml.safe_dump(self.tree), encoding="utf-8")

    # The admin port.

    async def get(self, path: str) -> tuple[int, str]:
        async with aiohttp.ClientSession() as session, session.get(self.admin_url + path) as response:
            return response.status, await response.text()

    async def post(self, path: str, token: str | None = TOKEN) -> tuple[int, Any]:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        async with aiohttp.ClientSession(headers=headers) as session, session.post(self.admin_url + path) as response:
            return response.status, await response.json()

    async def fleet(self) -> dict[str, Any]:
        """GET /fleet with the replicas by id."""
        told: dict[str, Any] = json.loads((await self.get("/fleet"))[1])
        return told | {"replicas": {replica["id"]: replica for replica in told["replicas"]}}

    async def requests(self) -> dict[str, int]:
        """Open leases by replica, over all workers."""
        return {name: replica["requests"] for name, replica in (await self.fleet())["replicas"].items()}

    async def metric(self, name: str) -> float:
        """The sum of a metric's samples."""
        lines = (await self.get("/metrics"))[1].splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if re.match(rf"{name}[ {{]", line))

    async def ready(self, *replicas: str) -> None:
        """Wait until these are ready, here and for the workers."""

        async def are() -> bool:
            known = (await self.fleet())["replicas"]
            return all(name in known and known[name]["state"] == "ready" for name in replicas)

        await eventually(are)

    # Clients.

    def client(self, timeout: float | None = 300.0) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(limit=0, ssl=self.tls or True)
        return aiohttp.ClientSession(self.url, connector=connector, timeout=aiohttp.ClientTimeout(total=timeout))

    async def chat(self, content: str = "hello") -> aiohttp.ClientResponse:
        """One chat over a connection of its own, read to its end."""
        async with self.client() as session:
            return await chat(session, content)


class Router(Face):
    """A supervisor with its workers, as processes."""

    def __init__(self, directory: Path, tree: Mapping[str, Any]) -> None:
        super().__init__(directory, tree)
        self.log = directory / "router.log"
        self.process: asyncio.subprocess.Process
        self.pid = 0

    async def start(self) -> None:
        with self.log.open("wb") as output:
            self.process = await asyncio.create_subprocess_exec(
                *HOMING, "serve", "-c", str(self.config), stdout=output, stderr=output, stdin=asyncio.subprocess.DEVNULL
            )
        self.pid = self.process.pid
        await self.said(r"admin port")
        self.url, self.admin_url = re.findall(r"(?:listening on|admin port) +(https?://\S+)", self.output())[:2]

    def output(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    async def said(self, pattern: str, times: int = 1) -> None:
        """Wait until the log has it so many times."""
        await until(lambda: len(re.findall(pattern, self.output())) >= times, WITHIN)

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    async def ended(self) -> int:
        """The exit code of the process that was started first."""
        async with asyncio.timeout(WITHIN):
            return await self.process.wait()

    def workers(self, pid: int | None = None) -> list[int]:
        """The process ids of a supervisor's children."""
        found = Path(f"/proc/{pid or self.pid}/task/{pid or self.pid}/children")
        return [int(child) for child in found.read_text().split()] if found.exists() else []

    async def command(self, *arguments: str) -> tuple[int, str]:
        """Another command to its end: its exit code and all that it printed."""
        process = await asyncio.create_subprocess_exec(
            *HOMING, *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        output, _ = await process.communicate()
        return process.returncode or 0, output.decode()


async def chat(session: aiohttp.ClientSession, content: str = "hello") -> aiohttp.ClientResponse:
    """One chat, read to its end."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": content}]}
    async with session.post("/v1/chat/completions", json=body) as response:
        await response.read()
        return response


class Stream:
    """A streamed chat under way. `chunks` are those that have come; `whole` when its end has come in good order."""

    def __init__(self, router: Face, content: str) -> None:
        self._router, self._content = router, content
        self.chunks = 0
        self.whole = False
        self.replica = ""
        self.headers: Mapping[str, str] = {}
        self.task = asyncio.get_running_loop().create_task(self._read())

    async def _read(self) -> None:
        body = {"model": MODEL, "stream": True, "messages": [{"role": "user", "content": self._content}]}
        async with (
            self._router.client(timeout=None) as session,
            session.post("/v1/chat/completions", json=body) as response,
        ):
            self.headers = response.headers
            self.replica = response.headers.get("x-homing-replica", "")
            async for line in response.content:
                self.chunks += line.startswith(b"data: ")
                self.whole = self.whole or line == b"data: [DONE]\n"


async def streaming(router: Face, count: int) -> list[Stream]:
    """So many streams, each with a first chunk."""
    streams = [Stream(router, f"{i} " * 200) for i in range(count)]
    await until(lambda: all(stream.chunks for stream in streams), WITHIN)
    return streams


async def finished(streams: list[Stream]) -> None:
    """Wait for the end of all, however they end."""
    await asyncio.gather(*(stream.task for stream in streams), return_exceptions=True)


def chunk(text: str) -> bytes:
    event = b"data: " + json.dumps({"choices": [{"delta": {"content": text}}]}).encode() + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(event), event)


class Engine:
    """A script for replicas: streams go on until `end` is called, other requests are answered at once."""

    def __init__(self) -> None:
        self._over = asyncio.Event()

    def end(self) -> None:
        """Let all streams end in good order."""
        self._over.set()

    async def __call__(self, call: Call) -> None:
        call.generate()
        if b'"stream": true' not in call.body:
            await call.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
            return
        await call.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        await call.send(chunk("first"))
        await self._over.wait()
        await call.send(chunk("last") + b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")


@asynccontextmanager
async def supervised(
    directory: Path, script: Script, replicas: int = 2, **settings: Any
) -> AsyncIterator[tuple[Router, list[ScriptedReplica]]]:
    """Processes that know their replicas as ready. Whatever is left of them in the end is killed."""
    async with AsyncExitStack() as stack:
        scripted = [await stack.enter_async_context(ScriptedReplica(script)) for _ in range(replicas)]
        router = Router(directory, tree_of(scripted) | settings)
        try:
            await router.start()
            await router.ready(*(replica["id"] for replica in router.tree["replicas"]))
            yield router, scripted
        finally:
            await killed(router)


class Crewed(Face):
    """A supervisor's part and its workers, all in this loop: as processes, but quick."""

    def __init__(self, directory: Path, tree: Mapping[str, Any]) -> None:
        super().__init__(directory, tree)
        self.control: Control
        self.workers: list[Worker] = []

    async def start(self) -> None:
        loaded = load(self.config)
        clients = listen_shared(Endpoint(HOST, 0), loaded.config.workers)
        admin = socket.create_server((HOST, 0))
        self.url, self.admin_url = ("http://{}:{}".format(*one.getsockname()) for one in (clients[0], admin))
        if loaded.config.tls.certificate_file is not None:
            self.url = self.url.replace("http:", "https:")
        self.control = Control(loaded, loaded.secrets(), admin, len(clients))
        for number, one in enumerate(clients):
            self.workers.append(await hired(self.control, one, str(number)))
        await self.control.start()

    async def stop(self) -> None:
        for worker in self.workers:
            worker.drain(0.0, 0.0, 0.0)
        for worker in self.workers:
            await worker.stopped.wait()
        await self.control.stop()


@asynccontextmanager
async def crewed(
    directory: Path, script: Script, replicas: int = 2, **settings: Any
) -> AsyncIterator[tuple[Crewed, list[ScriptedReplica]]]:
    """Two workers, unless told otherwise, that know their replicas as ready."""
    async with AsyncExitStack() as stack:
        scripted = [await stack.enter_async_context(ScriptedReplica(script)) for _ in range(replicas)]
        router = Crewed(directory, tree_of(scripted) | {"workers": 2} | settings)
        await router.start()
        stack.push_async_callback(router.stop)
        await router.ready(*(replica["id"] for replica in router.tree["replicas"]))
        yield router, scripted


def tree_of(replicas: list[ScriptedReplica]) -> dict[str, Any]:
    """A configuration over these."""
    return {
        "listen": f"{HOST}:0",
        "admin": {"listen": f"{HOST}:0", "token_file": "token"},
        "replicas": listed(replicas),
        "health": {"interval": "100ms"},
        "drain": {"timeout": "20s"},
    }


def listed(replicas: list[ScriptedReplica], first: int = 1) -> list[dict[str, str]]:
    """The configuration's list."""
    return [{"id": f"r{number}", "url": replica.url} for number, replica in enumerate(replicas, first)]


async def killed(router: Router) -> None:
    """End what this test has started, its successor and workers included, by their ids."""
    started = {router.process.pid, router.pid}
    for pid in [*started, *(child for each in started for child in router.workers(each))]:
        if _is_ours(pid):
            os.kill(pid, signal.SIGKILL)
    await router.process.wait()


def _is_ours(pid: int) -> bool:
    """Whether there is still such a process, and not another that got its number."""
    try:
        return b"router." in Path(f"/proc/{pid}/cmdline").read_bytes()
    except FileNotFoundError:
        return False
