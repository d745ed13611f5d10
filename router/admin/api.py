"""The admin port's handlers. A GET never changes anything; errors are JSON, probes answer in text as kubelets log it.

What changes something (mutations: reload, drain, undrain, record) is a POST with `Authorization: Bearer` and the
admin's token. POST /record answers with the traffic, as lines of a trace, for as long as it is read; one at a time.
POST /explain reads a body as a client would send it and changes nothing: it needs no token, and its body is bounded in
size and time, and read after the one before has been answered, since nobody else bounds how many are asked at once.
What is told of load and counts is as fresh as the workers' answers, which are waited for, but not for long.
"""

import asyncio
import hmac
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Protocol

from aiohttp import web

from router.admin.checks import Check, verdict
from router.admin.metrics import Metrics
from router.admin.recording import Recording
from router.admin.report import fleet_report
from router.admin.reports import Reports
from router.core.fleet import Fleet
from router.core.shadow import Counts
from router.core.types import ReplicaId

MAX_EXPLAINED = 32 << 20
"""Bytes of a body to explain: the default of `limits.body`."""

HANDING_OVER = "a new process is taking over: ask again in a few seconds"

DEFAULT_PATH = "/v1/chat/completions"

BODY_SECONDS = 10.0
"""Within which a body to explain must be here: 32 MiB over a line of 30 Mbit/s."""

BEAT = 1.0
"""Seconds after which a recording without traffic says that it goes on, by an empty line. So either side learns that
the other is gone."""

STALLED = 30.0
"""Seconds that one who records may take nothing. He is gone, or stopped; nobody else can record meanwhile."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Router(Protocol):
    """What the port acts on, beside what it only reads."""

    async def refresh(self) -> None:
        """Have the workers tell what they have not told yet."""
        ...

    async def explain(self, path: str, body: bytes) -> bytes | None:
        """Where a request with this path and body would go, as JSON; None when no worker answers."""
        ...

    async def reload(self) -> tuple[bool, dict[str, Any]]:
        """Read the configuration again and take it; whether that went well, and what to say of it."""
        ...

    def drain(self, replica: ReplicaId, drained: bool) -> dict[str, Any] | None:
        """Let a replica get nothing new, or take part again; what became of it, None for one that is not known."""
        ...

    def record(self) -> Recording | None:
        """Begin to record the traffic; None while somebody does."""
        ...

    def recorded(self, recording: Recording) -> None:
        """It has ended, and costs nothing any more."""
        ...

    @property
    def recording(self) -> Recording | None:
        """The present or last one."""
        ...


@dataclass(frozen=True, slots=True)
class Rights:
    """Who may change something: `mutations` False: nobody; `token` None: nobody can show that he may; `handing_over`:
    nobody now, since the process that takes over would not hear of it."""

    mutations: bool = True
    token: str | None = None
    handing_over: bool = False

    def refusal(self, authorization: str) -> tuple[HTTPStatus, str] | None:
        """Why a request with this Authorization may change nothing; None when it may. Compared in constant time."""
        if not self.mutations:
            return HTTPStatus.FORBIDDEN, "nothing can be changed over this port: admin.mutations is false"
        if self.token is None:
            return HTTPStatus.FORBIDDEN, "nothing can be changed over this port: admin.token_file is not set"
        scheme, _, token = authorization.partition(" ")
        told = token.strip().encode("utf-8", "surrogateescape")  # As aiohttp decodes a header's bytes.
        if scheme.lower() == "bearer" and hmac.compare_digest(told, self.token.encode()):
            return (HTTPStatus.CONFLICT, HANDING_OVER) if self.handing_over else None
        return HTTPStatus.UNAUTHORIZED, "this takes the token of admin.token_file: `Authorization: Bearer TOKEN`"


@dataclass(frozen=True, slots=True)
class Admin:
    """What the port tells of. `started` are the checks of /startupz, `ready` what /readyz wants on top of them."""

    fleet: Fleet
    metrics: Metrics
    reports: Reports
    router: Router
    policy: Callable[[], str]
    workers: Callable[[], int]
    rights: Callable[[], Rights]
    shadow: Callable[[], Counts | None]
    started: Sequence[Check] = ()
    ready: Sequence[Check] = ()
    now: Callable[[], float] = field(default=time.monotonic)


ADMIN = web.AppKey("admin", Admin)
EXPLAINING = web.AppKey("explaining", asyncio.Lock)

PATHS = {
    "/livez": "the event loop turns",
    "/startupz": "the router has started; ?verbose lists the checks",
    "/readyz": "requests can be served; ?verbose lists the checks",
    "/fleet": "replicas with state and load, models, queues, residency (JSON)",
    "/metrics": "Prometheus and OpenMetrics, as Accept asks",
    "/explain": "POST a request's body: where it would go and why; ?path=/v1/... (default: chat)",
    "/reload": "POST, with the token: read the configuration again",
    "/drain": "POST, with the token: ?replica=ID gets nothing new",
    "/undrain": "POST, with the token: ?replica=ID takes part again",
    "/record": "POST, with the token: the traffic as a trace without text, until you leave",
    "/recording": "how the present or last recording stands, and what it left out (JSON)",
}
"""What there is, for people. Never written to."""


def make(admin: Admin) -> web.Application:
    """The admin application."""
    app = web.Application(client_max_size=MAX_EXPLAINED, middlewares=[_errors_as_json])
    app[ADMIN] = admin
    app[EXPLAINING] = asyncio.Lock()
    app.add_routes([
        web.get("/", index), web.get("/livez", livez), web.get("/startupz", startupz), web.get("/readyz", readyz),
        web.get("/fleet", fleet), web.get("/metrics", metrics), web.post("/explain", explain),
        web.post("/reload", reload), web.post("/drain", drain), web.post("/undrain", undrain),
        web.post("/record", record), web.get("/recording", recording),
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
    await admin.router.refresh()
    told = fleet_report(admin.fleet, admin.policy(), admin.workers(), admin.reports, admin.shadow(), admin.now())
    return web.json_response(told)


async def metrics(request: web.Request) -> web.Response:
    """OpenMetrics, or the text format for who does not accept that."""
    await request.app[ADMIN].router.refresh()
    slices, content_type = request.app[ADMIN].metrics.render(request.headers.get("Accept", ""))
    parts = []
    for part in slices:
        parts.append(part)
        await asyncio.sleep(0)  # Workers and probes go on between two slices.
    return web.Response(body=b"".join(parts), headers={"Content-Type": content_type})


async def explain(request: web.Request) -> web.Response:
    """Where a request would go, and why. Nothing is sent."""
    path = request.query.get("path", DEFAULT_PATH)
    if not path.startswith("/"):
        return _error(HTTPStatus.BAD_REQUEST, f"path is a request's path, as {DEFAULT_PATH}; not {path!r}")
    async with request.app[EXPLAINING]:
        try:
            async with asyncio.timeout(BODY_SECONDS):
                body = await request.read()
        except TimeoutError:
            return _error(HTTPStatus.REQUEST_TIMEOUT, f"the body was not here within {BODY_SECONDS:g} s")
        answer = await request.app[ADMIN].router.explain(path, body)
    if answer is None:
        return _error(HTTPStatus.GATEWAY_TIMEOUT, "no worker answers")
    return web.Response(body=answer, content_type="application/json")


async def reload(request: web.Request) -> web.Response:
    """Read the configuration again: 200 with what has changed, or 422 with what is wrong, as `homing check` tells."""
    refusal = _refusal(request)
    if refusal is not None:
        return refusal
    good, told = await request.app[ADMIN].router.reload()
    return web.json_response(told, status=HTTPStatus.OK if good else HTTPStatus.UNPROCESSABLE_ENTITY)


async def drain(request: web.Request) -> web.Response:
    """Let a replica get nothing new."""
    return _drain(request, drained=True)


async def undrain(request: web.Request) -> web.Response:
    """Let a replica take part again."""
    return _drain(request, drained=False)


async def recording(request: web.Request) -> web.Response:
    """How the present or last recording stands."""
    found = request.app[ADMIN].router.recording
    return web.json_response({"running": False} if found is None else found.told())


async def record(request: web.Request) -> web.StreamResponse:
    """Requests from now on, each a line when it has ended, until the client leaves or the router stops."""
    refusal = _refusal(request)
    if refusal is not None:
        return refusal
    router = request.app[ADMIN].router
    begun = router.record()
    if begun is None:
        return _error(HTTPStatus.CONFLICT, "somebody records already; one at a time")
    response = web.StreamResponse(headers={"Content-Type": "application/jsonl"})
    try:
        await response.prepare(request)
        while (lines := await begun.read(BEAT)) is not None:
            async with asyncio.timeout(STALLED):
                await response.write(lines or b"\n")
        await response.write_eof()
    except (ConnectionError, TimeoutError):  # He is gone, or reads nothing: the end of it, as far as he is concerned.
        if request.transport is not None:
            request.transport.abort()
    finally:
        router.recorded(begun)
    return response


def _drain(request: web.Request, drained: bool) -> web.Response:
    refusal = _refusal(request)
    if refusal is not None:
        return refusal
    admin, replica = request.app[ADMIN], request.query.get("replica")
    known = [each.id for each in admin.fleet.replicas]
    if replica is None:
        return _error(HTTPStatus.BAD_REQUEST, "which replica? ?replica=ID", replicas=known)
    told = admin.router.drain(replica, drained)
    if told is None:
        return _error(HTTPStatus.NOT_FOUND, f"no replica {replica!r} here", replicas=known)
    return web.json_response(told)


def _refusal(request: web.Request) -> web.Response | None:
    """The answer to one who may change nothing."""
    refusal = request.app[ADMIN].rights().refusal(request.headers.get("Authorization", ""))
    if refusal is None:
        return None
    response = _error(*refusal)
    if refusal[0] is HTTPStatus.UNAUTHORIZED:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


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
    except ConnectionError:  # Whoever asked is gone, amid the body.
        return _error(HTTPStatus.BAD_REQUEST, "the body broke off")
    except web.HTTPRequestEntityTooLarge:
        return _error(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a body here is at most {MAX_EXPLAINED} bytes")


def _error(status: HTTPStatus, message: str, **more: Any) -> web.Response:
    return web.json_response({"error": {"message": message, **more}}, status=status)
