"""What the router answers itself, in the shape of the API that was asked: errors, refusals, models, health."""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple

import msgspec

from router.core.types import Refusal, RefusalCause
from router.proxy.bounds import Late
from router.proxy.heads import response_head


class Style(StrEnum):
    """Whose shapes an endpoint's errors and stream events have."""

    OPENAI = "openai"
    RESPONSES = "responses"
    ANTHROPIC = "anthropic"


class Answer(NamedTuple):
    """A JSON body, and in how many seconds to try again where that helps."""

    status: int
    body: bytes
    retry_after: float | None = None


_ANTHROPIC_KINDS = {400: "invalid_request_error", 401: "authentication_error", 403: "permission_error"} | {
    404: "not_found_error",
    408: "invalid_request_error",
    413: "request_too_large",
    414: "request_too_large",
    431: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""Anthropic's error types by status; any other is an api_error. Never written to."""


def written(answer: Answer, request_id: str, date: bytes, keep_alive: bool, to_head: bool = False) -> bytes:
    """An answer on the wire, `date` being its line; without its body `to_head`."""
    lines = [
        b"content-type: application/json\r\ncontent-length: %d\r\n" % len(answer.body),
        b"x-homing-request-id: %b\r\n" % request_id.encode("latin-1"),
        date,
    ]
    if answer.retry_after is not None:
        lines.append(b"retry-after: %d\r\n" % max(1, round(answer.retry_after)))
    if not keep_alive:
        lines.append(b"connection: close\r\n")
    return response_head(answer.status, b"", lines) + (b"" if to_head else answer.body)


def error(
    status: int, message: str, code: str, style: Style = Style.OPENAI, param: str | None = None, kind: str | None = None
) -> Answer:
    """An error; `code` is for programs, `message` names what to do, `kind` is OpenAI's coarse type."""
    if style is Style.ANTHROPIC:
        of = {"type": _ANTHROPIC_KINDS.get(status, "api_error"), "message": message}
        return Answer(status, msgspec.json.encode({"type": "error", "error": of}))
    if kind is None:
        kind = "rate_limit_error" if status == 429 else "invalid_request_error" if status < 500 else "server_error"
    of_openai = {"message": message, "type": kind, "param": param, "code": code}
    return Answer(status, msgspec.json.encode({"error": of_openai}))


_MIDWAY = {Late.FIRST_BYTE.value: 504, Late.IDLE.value: 504, Late.REQUEST.value: 504, Late.DRAINING.value: 503}
"""The status that an answer would have had, were it not under way. Never written to."""


def broken_event(message: str, code: str, style: Style) -> bytes:
    """The event that ends a stream whose replica is gone or late, in the stream's own format."""
    if style is Style.RESPONSES:
        event = {"type": "error", "code": code, "message": message, "param": None}
        return b"event: error\ndata: %b\n\n" % msgspec.json.encode(event)
    body = error(_MIDWAY.get(code, 502), message, code, style).body
    return b"event: error\ndata: %b\n\n" % body if style is Style.ANTHROPIC else b"data: %b\n\n" % body


def refused(refusal: Refusal, model: str | None, style: Style = Style.OPENAI) -> Answer:
    """A refusal as the client sees it: 404 for a model nobody serves, 503 when nobody is ready, 429 over capacity."""
    match refusal.cause:
        case RefusalCause.UNKNOWN_MODEL:
            text = (
                f"The model `{model}` does not exist: no replica serves it. GET /v1/models lists those that are served."
            )
            answer = error(404, text, "model_not_found", style, "model")
        case RefusalCause.NO_REPLICA:
            answer = error(503, "No replica is ready to take this request. Try again.", "no_replica", style)
        case RefusalCause.QUEUE_FULL:
            text = "Every replica is at its limits and the queue is full (routing.queue.max_requests). Try again."
            answer = error(429, text, "queue_full", style)
        case RefusalCause.QUEUE_TIMEOUT:
            text = "Every replica stayed at its limits (routing.queue.max_seconds). Try again."
            answer = error(429, text, "queue_timeout", style)
    return answer._replace(retry_after=refusal.retry_after)


BUFFER_FULL = "This router holds as many bytes of requests as it may (limits.buffered). Try again."
CONNECTIONS_FULL = "This router has as many connections as it may (limits.connections). Try again."
FULL_SECONDS = 1.0
"""Retry-After of the two, which are over as soon as some of the requests under way have ended, and of a router that
stops: another one may be there already."""


def late(message: str, why: Late, style: Style) -> Answer:
    """The answer to who has waited in vain. Of a router that stops the port is closed: the next one is another's."""
    if why is Late.DRAINING:
        return error(503, message, why.value, style)._replace(retry_after=FULL_SECONDS)
    return error(504, message, why.value, style)


def buffer_full(style: Style) -> Answer:
    """A body that would be one too many. 503, not 413: the request is good, and clients' libraries send it again by
    themselves after a 503 and not after a 413."""
    return error(503, BUFFER_FULL, "buffer_full", style)._replace(retry_after=FULL_SECONDS)


def forbidden(path: str) -> Answer:
    """Engine control, which one client could use to harm all others."""
    text = (
        f"{path} controls an engine and is not passed on: it would reach one replica of the fleet, whichever it is. "
        "Call the replica itself, or allow it in the router's configuration: proxy.allow_paths."
    )
    return error(403, text, "forbidden_path", kind="permission_error")


def models(cards: Iterable[Mapping[str, object]]) -> Answer:
    """The answer of /v1/models: each model's card once, as the first replica that serves it tells it."""
    seen: dict[object, object] = {}
    for served in cards:
        for name, card in served.items():
            seen.setdefault(name, card)
    return Answer(200, msgspec.json.encode({"object": "list", "data": list(seen.values())}))


def health(ready: int) -> Answer:
    """The answer of /health and /ping."""
    return Answer(200, b"") if ready else refused(Refusal(RefusalCause.NO_REPLICA, 1.0), None)


def version(version: str) -> Answer:
    """The answer of /version."""
    return Answer(200, msgspec.json.encode({"version": version}))
