"""What probes tell of themselves: how long they took, how they failed, what changed."""

import asyncio
import contextlib
import socket
import time
from random import Random

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from router.admin import lag
from router.admin.build import UNKNOWN, build
from router.core.fleet import Fleet
from router.core.member import ReplicaSpec, Transition
from router.core.policy import PrefixAffinity
from router.core.types import ReplicaId, State
from router.members.health import Health, HealthSettings

SETTINGS = HealthSettings(interval=0.01, timeout=0.2, failures=1)


class Told:
    """Keeps what it is told; `changed` is set at the first change of state."""

    def __init__(self) -> None:
        self.probes: list[tuple[ReplicaId, str | None]] = []
        self.turns: list[tuple[State, State, str]] = []
        self.changed = asyncio.Event()

    def probed(self, replica: ReplicaId, seconds: float, failure: str | None) -> None:
        assert seconds >= 0
        self.probes.append((replica, failure))

    def turned(self, transition: Transition, cause: str) -> None:
        self.turns.append((transition.old, transition.new, cause))
        self.changed.set()


async def told_of(url: str) -> Told:
    """Probe this address until its replica's state changes."""
    fleet = Fleet(PrefixAffinity())
    fleet.join([ReplicaSpec("r0")], 0.0)
    told = Told()
    health = Health(fleet, {"r0": url}, SETTINGS, Random(0), lambda replica: None, told)
    task = asyncio.create_task(health.run())
    try:
        async with asyncio.timeout(10):
            await told.changed.wait()
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    return told


async def never(request: web.Request) -> web.Response:
    await asyncio.sleep(60)
    raise AssertionError


async def busy(request: web.Request) -> web.Response:
    return web.Response(status=503)


async def cut(request: web.Request) -> web.Response:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


@pytest.mark.parametrize(("handler", "cause"), [(never, "timeout"), (busy, "status"), (cut, "broken")])
async def test_a_probe_that_fails_says_how_in_one_word(handler: object, cause: str) -> None:
    app = web.Application()
    app.router.add_get("/health", handler)  # type: ignore[arg-type]
    async with TestServer(app, shutdown_timeout=0.1) as server:
        told = await told_of(str(server.make_url("")).rstrip("/"))
    assert told.probes[0] == ("r0", cause)
    assert told.turns == [(State.STARTING, State.DOWN, cause)]


async def test_a_refused_probe_says_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    told = await told_of(f"http://127.0.0.1:{port}")
    assert told.probes == [("r0", "refused")]
    assert told.turns == [(State.STARTING, State.DOWN, "refused")]


async def test_an_address_that_no_packet_is_sent_to_is_unreachable() -> None:
    told = await told_of("http://255.255.255.255:9")
    assert told.probes[0] == ("r0", "unreachable")


async def test_a_probe_that_is_answered_is_no_failure() -> None:
    async def well(request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "m"}]})

    app = web.Application()
    for path in ("/health", "/metrics", "/v1/models"):
        app.router.add_get(path, well)
    async with TestServer(app) as server:
        told = await told_of(str(server.make_url("")).rstrip("/"))
    assert told.probes[0] == ("r0", None)
    assert told.turns == [(State.STARTING, State.READY, "answers")]


async def test_the_lag_of_a_held_loop_is_observed() -> None:
    seen: asyncio.Queue[float] = asyncio.Queue()
    task = asyncio.create_task(lag.sample(seen.put_nowait, period=0.001))
    try:
        async with asyncio.timeout(10):
            assert await seen.get() >= 0
            time.sleep(0.05)  # noqa: ASYNC251  This is what is to be seen.
            assert await seen.get() > 0.04
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def test_the_build_names_what_is_installed() -> None:
    told = build()
    assert set(told) == {"version", "commit", "python"}
    assert told["commit"] == UNKNOWN or len(told["commit"]) == 40
