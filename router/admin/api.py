"""The admin port's handlers. A GET never changes anything; errors are JSON, probes answer in text as kubelets log it.

POST /explain reads a body as a client would send it and changes nothing either: it needs no token, and its body is
bounded.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from aiohttp import web

from router.admin.checks import Check, verdict
from router.admin.metrics import Metrics
from router.admin.report import fleet_report
from router.core.fleet import Fleet

MAX_EXPLAINED = 32 << 20
"""Bytes of a body to explain: the default of `limits.body`."""

DEFAULT_PATH = "/v1/chat/completions"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Explain = Callable[[str, bytes], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Admin:
    """What the port tells of. `started` are the checks of /startupz, `ready` what /readyz wants on top of them;
    `explain` answers for a request's path and body where it would go."""

    fleet: Fleet
    policy: str
    metrics: Metrics
    queued: Callable[[], Mapping[str | None, int]]
    started: Sequence[Check] = ()
    ready: Sequence[Check] = ()
    explain: Explain | None = None
    now: Callable[[], float] = field(default=time.monotonic)


ADMIN = web.AppKey("admin", Admin)

PATHS = {
    "/livez": "the event loop turns",
    "/startupz": "the router has started; ?verbose lists the checks",
    "/readyz": "requests can be served; ?verbose lists the checks",
    "/fleet": "replicas with state and load, models, queues, residency (JSON)",
    "/metrics": "Prometheus and OpenMetrics, as Accept asks",
    "/explain": "POST a request's body: where it would go and why; ?path=/v1/... (default: chat)",
}
"""What there is, for people. Never written to."""


def make(admin: Admin) -> web.Application:
    """The admin application."""
    app = web.Application(client_max_size=MAX_EXPLAINED, middlewares=[_errors_as_json])
    app[ADMIN] = admin
    app.add_routes([
        web.get("/", index), web.get("/livez", livez), web.get("/startupz", startupz), web.get("/readyz", readyz),
        web.get("/fleet", fleet), web.get("/metrics", metrics), web.post("/explain", explain),
    ])  # fmt: skip
    return app


async def index(request: web.Request) -> web.Response:
    """What there is."""
    return web.Response(text="".join(f"{path:<10} {text}\n" for path, text in PATHS.items()))


async def livez(request: web.Request) -> web.Response:
    """The event loop turns."""
    return _probe(request, "livez", ())


async def startupz(request: web.Request) -> web.Response:
    """The router has started."""
    return _probe(request, "startupz", request.app[ADMIN].started)


async def readyz(request: web.Request) -> web.Response:
    """Requests can be served."""
    admin = request.app[ADMIN]
    return _probe(request, "readyz", (*admin.started, *admin.ready))


async def fleet(request: web.Request) -> web.Response:
    """The fleet as JSON (report.py)."""
    admin = request.app[ADMIN]
    return web.json_response(fleet_report(admin.fleet, admin.policy, admin.queued(), admin.now()))


async def metrics(request: web.Request) -> web.Response:
    """OpenMetrics, or the text format for who does not accept that."""
    slices, content_type = request.app[ADMIN].metrics.render(request.headers.get("Accept", ""))
    parts = []
    for part in slices:
        parts.append(part)
        await asyncio.sleep(0)  # Requests go on between two slices.
    return web.Response(body=b"".join(parts), headers={"Content-Type": content_type})


async def explain(request: web.Request) -> web.Response:
    """Where a request would go, and why. Nothing is sent."""
    answer = request.app[ADMIN].explain
    if answer is None:
        return _error(HTTPStatus.NOT_IMPLEMENTED, "this router does not explain")
    path = request.query.get("path", DEFAULT_PATH)
    if not path.startswith("/"):
        return _error(HTTPStatus.BAD_REQUEST, f"path is a request's path, as {DEFAULT_PATH}; not {path!r}")
    return web.json_response(answer(path, await request.read()))


def _probe(request: web.Request, name: str, checks: Sequence[Check]) -> web.Response:
    good, text = verdict(name, checks, "verbose" in request.query)
    return web.Response(text=text, status=HTTPStatus.OK if good else HTTPStatus.SERVICE_UNAVAILABLE)


@web.middleware
async def _errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except web.HTTPNotFound:
        return _error(HTTPStatus.NOT_FOUND, f"no {request.path} here", paths=list(PATHS))
    except web.HTTPMethodNotAllowed as error:
        allowed = sorted(error.allowed_methods)
        response = _error(HTTPStatus.METHOD_NOT_ALLOWED, f"{request.path} takes {' and '.join(allowed)}")
        response.headers["Allow"] = ",".join(allowed)
        return response
    except web.HTTPRequestEntityTooLarge:
        return _error(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a body here is at most {MAX_EXPLAINED} bytes")


def _error(status: HTTPStatus, message: str, **more: Any) -> web.Response:
    return web.json_response({"error": {"message": message, **more}}, status=status)
