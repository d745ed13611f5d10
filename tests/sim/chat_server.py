"""A stand-in for an engine's chat endpoint: a test says what each request gets, byte by byte."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from loadtests import client
from loadtests.processes import HOST

ROLE = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}
USAGE = {"prompt_tokens": 30, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 16}}
DONE = b"data: [DONE]\n\n"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def event(data: object) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\n\n"


def text(content: str) -> bytes:
    return event({"choices": [{"index": 0, "delta": {"content": content}}], "usage": None})


WHOLE = [event(ROLE), text("ye"), text("s"), event({"choices": [], "usage": USAGE}), DONE]


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[str]:
    """A server whose chat endpoint is `handler`; yields its base URL."""
    app = web.Application()
    app.router.add_post("/v1/chat/completions", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, HOST, 0).start()
        yield f"http://{HOST}:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def streamed(request: web.Request, *chunks: bytes) -> web.StreamResponse:
    response = web.StreamResponse(headers={client.REPLICA_HEADER: "r7"})
    await response.prepare(request)
    for chunk in chunks:
        await response.write(chunk)
    return response
