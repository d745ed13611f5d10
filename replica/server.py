"""The simulated replica as a server: `SimulatedReplica` for tests, `simulate` for the command line.

It builds engine, driver and handlers, and owns the listening socket and the driver's task. From outside it is a vLLM
behind uvicorn: same paths, heads, keep-alive and shapes. It does no work of its own on a request's path.
"""

import asyncio
import contextlib
import resource
import signal
import socket
import sys
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Annotated, Self

import typer
import uvloop
from aiohttp import web
from aiohttp.typedefs import Middleware

from replica.control import ControlApi
from replica.driver import Driver
from replica.engine import Engine
from replica.faults import SLOWDOWN, Fault, reset
from replica.generations import GenerationLog
from replica.handlers import StateApi, TextApi, not_found
from replica.openai_requests import Model
from replica.pooling import PoolingApi
from replica.profiles import PROFILES
from replica.responses import ResponsesApi
from replica.serving import Handler, Serving
from replica.settings import DEFAULT_PROFILE, ReplicaSettings
from replica.tokens import Tokenizer

_MAX_BODY = 256 * 1024 * 1024  # Bytes; above any body that a router in front would let pass.
_BACKLOG = 2_048  # uvicorn's.
_OPEN_FILES = 65_536
_SHUTDOWN_SECONDS = 0.2  # How long an answer in the making may take to end when the replica stops.


@dataclass(frozen=True, slots=True)
class SeenRequest:
    """A request as it arrived: `path` with query, `headers` in order and undecoded, `body` byte for byte."""

    method: str
    path: str
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes


class SimulatedReplica:
    """`async with SimulatedReplica(settings) as replica:` serves at `replica.url` until the block ends.

    `engine` and `driver` are open to inspection. `requests_seen` keeps the last `settings.keep_requests` requests.
    """

    def __init__(self, settings: ReplicaSettings | None = None) -> None:
        self.settings = settings = settings or ReplicaSettings()
        profile = PROFILES[settings.profile].at_speed(settings.speed)
        blocks = profile.kv_tokens // settings.block_size if settings.blocks is None else settings.blocks
        self.engine = Engine(profile, blocks, settings.block_size)
        self.engine.prefix_caching = settings.prefix_caching
        self.driver = Driver(self.engine)
        self.requests_seen: deque[SeenRequest] = deque(maxlen=settings.keep_requests)
        self.port = settings.port
        self._fault = Fault.NONE
        self._socket: socket.socket | None = None
        self._connecting: set[asyncio.Task[None]] = set()
        self._driving: asyncio.Task[None] | None = None
        self._runner = web.AppRunner(
            self._application(),
            access_log=None,
            auto_decompress=False,  # Nor does uvicorn: a compressed body is a 400.
            handler_cancellation=True,
            keepalive_timeout=settings.keepalive_seconds,
            shutdown_timeout=_SHUTDOWN_SECONDS,
        )

    def _application(self) -> web.Application:
        settings = self.settings
        model = Model(
            name=settings.model,
            adapters=settings.adapters,
            tokenizer=Tokenizer(settings.model, settings.seed),
            block_size=settings.block_size,
            max_model_len=min(settings.max_model_len, self.engine.capacity),
            seed=settings.seed,
        )
        generations = None if settings.record_ids is None else GenerationLog(settings.record_ids)
        serving = Serving(self.driver, model, lambda: self._fault, settings.prompt_tokens_details, generations)
        responses = ResponsesApi(serving, settings.keep_responses)
        recorders = [_recorder(self.requests_seen)] if settings.keep_requests else []
        app = web.Application(client_max_size=_MAX_BODY, middlewares=recorders)
        for api in (TextApi(serving), responses, PoolingApi(serving), StateApi(serving, settings.metrics)):
            app.add_routes(api.routes())
        app.add_routes(ControlApi(serving).routes())
        app.router.add_route("*", "/{path:.*}", not_found)
        app.on_response_prepare.append(_name_server)
        app.on_cleanup.append(lambda _: responses.close())
        if generations is not None:
            app.on_cleanup.append(_closing(generations))
        return app

    @property
    def url(self) -> str:
        return f"http://{self.settings.host}:{self.port}"

    @property
    def prefix_caching(self) -> bool:
        return self.engine.prefix_caching

    @prefix_caching.setter
    def prefix_caching(self, on: bool) -> None:
        """From the next step on; what was resident before is hit again when it is switched back on."""
        self.engine.prefix_caching = on

    def evict(self) -> None:
        """Drop everything that could be hit, at once and without a word to anybody: no new epoch, no restart."""
        self.engine.cache.forget()

    @property
    def fault(self) -> Fault:
        return self._fault

    @fault.setter
    def fault(self, fault: Fault) -> None:
        """Takes effect at once. Leaving `refuse` listens again on the same port."""
        before, self._fault = self._fault, Fault(fault)
        self.driver.slowdown = SLOWDOWN if self._fault is Fault.SLOW else 1.0
        if self._fault is Fault.REFUSE:
            self._stop_listening()
            self._cut_connections()
        elif before is Fault.REFUSE:
            self._listen()

    async def __aenter__(self) -> Self:
        """Raises OSError when the port cannot be had."""
        await self._runner.setup()
        try:
            self._listen()
        except OSError:
            await self._runner.cleanup()
            raise
        self._driving = asyncio.get_running_loop().create_task(self.driver.run())
        self.fault = self.settings.fault
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop_listening()
        if self._connecting:
            await asyncio.wait(self._connecting)
        await self._runner.cleanup()
        if self._driving is not None:
            self._driving.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._driving

    async def run_until(self, stop: asyncio.Event) -> None:
        """Serve until `stop`; an error of the engine ends it at once and is raised on the way out of the block."""
        if self._driving is None:
            raise RuntimeError("enter the replica first")
        waiting = asyncio.get_running_loop().create_task(stop.wait())
        await asyncio.wait({waiting, self._driving}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()

    def _listen(self) -> None:
        """The kernel takes connections from here on. Our own accept, because asyncio's server starts and stops only
        over several turns of the loop, and a fault must strike at once."""
        listening = socket.create_server((self.settings.host, self.port), backlog=_BACKLOG)
        listening.setblocking(False)
        self._socket = listening
        self.port = listening.getsockname()[1]
        asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        """Take one connection; the loop calls again while there are more."""
        try:
            connection, _ = listening.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return  # The client was gone before its turn.
        connection.setblocking(False)
        task = asyncio.get_running_loop().create_task(self._connect(connection))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connect(self, connection: socket.socket) -> None:
        if self._runner.server is None or self._socket is None:
            connection.close()  # The port was closed between the accept and now.
            return
        await asyncio.get_running_loop().connect_accepted_socket(self._runner.server, connection)

    def _stop_listening(self) -> None:
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None

    def _cut_connections(self) -> None:
        """Reset every connection, as the death of the process would."""
        for connection in self._runner.server.connections if self._runner.server else []:
            if connection.transport is not None:
                reset(connection.transport)


def _recorder(seen: deque[SeenRequest]) -> Middleware:
    @web.middleware
    async def record(request: web.Request, handler: Handler) -> web.StreamResponse:
        body = await request.read()
        seen.append(SeenRequest(request.method, request.raw_path, request.raw_headers, body))
        return await handler(request)

    return record


def _closing(generations: GenerationLog) -> Callable[[web.Application], Awaitable[None]]:
    async def close(_: web.Application) -> None:
        generations.close()

    return close


async def _name_server(_: web.Request, response: web.StreamResponse) -> None:
    response.headers["Server"] = "uvicorn"


def simulate(
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.", min=0, max=65_535)] = 8101,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    id: Annotated[str, typer.Option(help="Name of the replica.")] = "r1",
    model: Annotated[str, typer.Option(help="Name of the model that it serves.")] = "sim",
    profile: Annotated[str, typer.Option(help=f"How fast it is: {', '.join(PROFILES)}.")] = DEFAULT_PROFILE,
    speed: Annotated[float, typer.Option(help="How many times as fast as the profile.")] = 1.0,
    blocks: Annotated[int | None, typer.Option(help="Engine blocks of KV cache; by default the profile's.")] = None,
    block_size: Annotated[int, typer.Option(help="Tokens per engine block.")] = 16,
    max_model_len: Annotated[int, typer.Option(help="Longest prompt and answer together, in tokens.")] = 131_072,
    seed: Annotated[int, typer.Option(help="Makes tokenizer and answers; the same for all of a fleet.")] = 0,
    fail: Annotated[Fault, typer.Option(help="A way to fail on purpose.")] = Fault.NONE,
    fail_on_signal: Annotated[
        bool, typer.Option("--fail-on-signal", help="Begin to fail at SIGUSR1, and end it at SIGUSR2.")
    ] = False,
    record_ids: Annotated[
        Path | None, typer.Option(help="Tell in this file what is generated, by X-Request-Id.", dir_okay=False)
    ] = None,
) -> None:
    """Run one simulated vLLM replica until SIGTERM or Ctrl-C.

    Examples:

      homing replica simulate --port 8101 --id r1

      homing replica simulate --port 8102 --id r2 --profile llama3-70b-4xa100 --speed 10 --fail slow
    """
    try:
        settings = ReplicaSettings(
            id=id,
            host=host,
            port=port,
            model=model,
            profile=profile,
            speed=speed,
            blocks=blocks,
            block_size=block_size,
            max_model_len=max_model_len,
            seed=seed,
            fault=Fault.NONE if fail_on_signal else fail,
            record_ids=record_ids,
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    _allow_many_connections()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(settings, fail if fail_on_signal else None))
    except OSError as error:
        sys.exit(f"homing replica simulate: {error.filename or f'cannot listen on {host}:{port}'}: {error.strerror}")


def _allow_many_connections() -> None:
    """A stream is an open file, and the usual soft limit of 1,024 is less than a load test has streams."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def _serve(settings: ReplicaSettings, later: Fault | None) -> None:
    """`later` is the fault that begins and ends by signal."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for signum in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signum, stop.set)
    async with SimulatedReplica(settings) as replica:
        if later is not None:
            loop.add_signal_handler(signal.SIGUSR1, setattr, replica, "fault", later)
            loop.add_signal_handler(signal.SIGUSR2, setattr, replica, "fault", Fault.NONE)
        typer.echo(f"replica {settings.id} listening on {replica.url}")
        await replica.run_until(stop)
