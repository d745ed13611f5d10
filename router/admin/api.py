"""The admin port's handlers."""

import time

from aiohttp import web

from router.admin.metrics import Metrics
from router.core.fleet import Fleet
from router.core.member import Replica

FLEET = web.AppKey("fleet", Fleet)
METRICS = web.AppKey("metrics", Metrics)


def make(fleet: Fleet, metrics: Metrics) -> web.Application:
    """The admin application."""
    app = web.Application()
    app[FLEET], app[METRICS] = fleet, metrics
    app.add_routes([
        web.get("/livez", livez), web.get("/readyz", readyz), web.get("/fleet", fleet_), web.get("/metrics", metrics_)
    ])  # fmt: skip
    return app


async def livez(request: web.Request) -> web.Response:
    """The event loop turns."""
    return web.Response(text="ok\n")


async def readyz(request: web.Request) -> web.Response:
    """Whether requests can be served: some replica is ready."""
    ready, all_ = len(request.app[FLEET].ready), len(request.app[FLEET].replicas)
    return web.Response(text=f"{ready} of {all_} replicas are ready\n", status=200 if ready else 503)


async def fleet_(request: web.Request) -> web.Response:
    """Each replica's state and load."""
    now = time.monotonic()
    fleet = request.app[FLEET]
    return web.json_response({"replicas": [_report(fleet, replica, now) for replica in fleet.replicas]})


async def metrics_(request: web.Request) -> web.Response:
    """OpenMetrics, or the text format for who does not accept that."""
    body, content_type = request.app[METRICS].render(request.headers.get("Accept", ""))
    return web.Response(body=body, headers={"Content-Type": content_type})


def _report(fleet: Fleet, replica: Replica, now: float) -> dict[str, object]:
    return {
        "id": replica.id,
        "state": replica.state_now(now),
        "reason": replica.reason,
        "since_seconds": round(now - replica.since, 3),
        "models": sorted(replica.models),
        "requests": replica.requests,
        "without_first_token": replica.unstarted,
        "backlog_tokens": replica.backlog_tokens,
        "context_tokens": replica.context_tokens,
        "kv_tokens": replica.kv_tokens,
        "resident_blocks": fleet.residency.held(replica.id),
        "prefill_tokens_per_second": round(1 / replica.lin, 1) if replica.lin else None,
        "step_seconds": replica.step,
    }
