"""A decision laid open, as JSON: for `homing explain`, and for a live request whose caller has the admin's token."""

import time
from typing import Any

import msgspec

from router.core.explain import Explained, Explanation
from router.core.types import Ask, Refusal, Route, Wait
from router.proxy import local, openai
from router.proxy.context import Proxy
from router.proxy.openai import Endpoint, Reading, Use

LINES = ("prefill", "cold", "context", "interruption", "ramp")
"""The names of prefix_affinity's score lines, in order (core/policy.py)."""

MAX_HEADER = 4096
"""Bytes of an x-homing-explain header. Clients take 8 KB of headers in all; a larger explanation is cut to its head."""


def explain(proxy: Proxy, path: str, body: bytes) -> dict[str, Any]:
    """Where a request with this body would go now, and why. Nothing is sent. `unexplained` says why the rest is of no
    use: the request is none that is routed, or none whose prompt can be read."""
    endpoint = openai.endpoint(path, proxy.allow_paths)
    ask = proxy.stored.ask(_read(proxy, endpoint, path, body))
    why = _unexplained(endpoint, path, ask)
    return {"endpoint": endpoint.name, "model": ask.model, "unexplained": why, **_told(_explained(proxy, ask))}


def _read(proxy: Proxy, endpoint: Endpoint, path: str, body: bytes) -> Reading:
    """As an exchange reads it."""
    if endpoint.use is Use.STORED:
        return Reading(Ask(None), openai.stored_id(path))
    return proxy.asker.read(endpoint, body)


def _unexplained(endpoint: Endpoint, path: str, ask: Ask) -> str | None:
    if endpoint.use is Use.CONTROL:
        return f"{path} controls an engine, and the router refuses it (proxy.allow_paths)"
    if endpoint.use in local.ANSWERED:
        return f"the router answers {path} itself: no replica is chosen for it"
    if endpoint.use is Use.PROMPT and not ask.size:
        what = f"no prompt can be read from the body: it is no JSON object, or not what {path} takes"
        return f"{what}. It would go to the least loaded replica, whose engine is to refuse it"
    return None


def header(proxy: Proxy, ask: Ask) -> bytes:
    """The same for a live request, as a header line."""
    told = _told(_explained(proxy, ask))
    value = msgspec.json.encode(told)
    if len(value) > MAX_HEADER:
        told["candidates"] = (
            f"{len(told['candidates'])} candidates, left out: POST /explain on the admin port shows them"
        )
        value = msgspec.json.encode(told)
    return b"x-homing-explain: %b\r\n" % value


def _explained(proxy: Proxy, ask: Ask) -> Explanation:
    return proxy.fleet.explain(ask, time.monotonic(), proxy.rng)


def _told(explanation: Explanation) -> dict[str, Any]:
    ask, key = explanation.ask, explanation.key
    return {
        "prompt": {"bytes": ask.size, "tokens": explanation.tokens, "blocks": len(ask.chain)},
        "key": {"hash": f"{key.hash:016x}", "depth_blocks": key.depth},
        "ring_order": list(explanation.order),
        "candidates": [_candidate(candidate) for candidate in explanation.candidates],
        "decision": _decision(explanation.decision),
    }


def _candidate(candidate: Explained) -> dict[str, Any]:
    told: dict[str, Any] = {"replica": candidate.replica, "state": candidate.state.value, "cut": candidate.cut}
    reading = candidate.reading
    if reading is not None:
        told |= {
            "cached_tokens": candidate.cached,
            "uncached_tokens": round(reading.uncached),
            "cold_tokens": round(reading.cold),
            "backlog_tokens": round(reading.backlog),
            "context_tokens": round(reading.context),
            "requests": reading.requests,
            "queued": reading.queued,
            "running": round(reading.running),
            "kv_usage": reading.kv_usage,
            "prefill_tokens_per_second": round(1 / reading.lin, 1),
        }
    if candidate.lines is not None:
        lines = {name: round(seconds, 6) for name, seconds in zip(LINES, candidate.lines, strict=True)}
        told["score_seconds"] = lines | {"total": round(sum(candidate.lines), 6)}
    return told


def _decision(decision: Route | Wait | Refusal) -> dict[str, Any]:
    match decision:
        case Route():
            return {"answer": "route", "replica": decision.replica, "reason": decision.reason.value}
        case Wait():
            return {"answer": "wait", "limit": decision.limit.value}
        case Refusal():
            return {"answer": "refusal", "cause": decision.cause.value, "retry_after_seconds": decision.retry_after}
