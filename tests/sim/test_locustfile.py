"""Locust, as the process that it has to be, against a stand-in server: what it counts and what it times."""

import pytest
from aiohttp import web

from loadtests.locust_compare import Load, run_locust
from loadtests.processes import HOST, free_port
from tests.sim.chat_server import WHOLE, Handler, serving, streamed, text

LOAD = Load(users=3, spawn_rate=3, seconds=1)


async def whole(request: web.Request) -> web.StreamResponse:
    assert (await request.json())["messages"][0]["role"] == "system"
    return await streamed(request, *WHOLE)


async def refused(request: web.Request) -> web.StreamResponse:
    return web.Response(status=503)


async def broken_off(request: web.Request) -> web.StreamResponse:
    response = await streamed(request, text("ye"))
    assert request.transport is not None
    request.transport.close()
    return response


async def unreadable(request: web.Request) -> web.StreamResponse:
    return await streamed(request, b"data: {\n\n")


async def test_whole_answers_are_counted_and_their_first_tokens_timed() -> None:
    async with serving(whole) as url:
        run = await run_locust("p", url, LOAD)
    assert run.requests >= LOAD.users
    assert run.failures == 0
    assert run.ttft_p50_ms is not None
    assert run.ttft_p95_ms is not None
    assert 0 <= run.ttft_p50_ms <= run.ttft_p95_ms


@pytest.mark.parametrize("handler", [refused, broken_off, unreadable])
async def test_what_is_no_whole_answer_is_a_failure_without_a_first_token(handler: Handler) -> None:
    async with serving(handler) as url:
        run = await run_locust("p", url, LOAD)
    assert run.failures == run.requests >= LOAD.users
    assert run.ttft_p50_ms is None


async def test_a_target_that_does_not_exist_fails_every_request() -> None:
    run = await run_locust("p", f"http://{HOST}:{free_port()}", LOAD)
    assert run.failures == run.requests >= LOAD.users
