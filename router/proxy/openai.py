"""The endpoint table, body -> Ask, and what the router itself answers, in the API's own shape.

The router never validates what the engine validates: a body that is no JSON, or has an unexpected form, becomes an
ask without a prompt, goes to the least loaded replica, and the engine's own 400 is relayed. Only the fields that
routing needs are decoded; the body is forwarded as it came.
"""

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec

from router.core import prompt
from router.core.blocks import chain
from router.core.types import Ask, Refusal, RefusalCause


class Use(StrEnum):
    """What the router does with an endpoint."""

    PROMPT = "prompt"  # routed by prompt
    MODELS = "models"  # answered: the models of all ready replicas
    HEALTH = "health"  # answered: whether any replica is ready
    LOAD = "load"  # anything else: least loaded


class Fields(msgspec.Struct):
    """The fields of a body that routing needs. Their values are whatever the client sent."""

    model: Any = None
    messages: Any = None
    prompt: Any = None
    input: Any = None
    tools: Any = None
    stream: Any = None
    cache_salt: Any = None
    chat_template_kwargs: Any = None
    reasoning_effort: Any = None


class Endpoint(NamedTuple):
    """`name` for metrics; `read` takes a prompt out of the fields, and is None where there is none to route by."""

    name: str
    use: Use
    read: Callable[[Fields], prompt.Prompt] | None = None


class Answer(NamedTuple):
    """What the router answers itself: a JSON body, and in how many seconds to try again where that helps."""

    status: int
    body: bytes
    retry_after: float | None = None


def _chat(fields: Fields) -> prompt.Prompt:
    tools = msgspec.json.encode(fields.tools) if fields.tools else b""
    return prompt.chat(fields.messages, tools)


def _completion(fields: Fields) -> prompt.Prompt:
    return prompt.completion(fields.prompt)


def _embedding(fields: Fields) -> prompt.Prompt:
    return prompt.completion(fields.input) if fields.messages is None else prompt.chat(fields.messages)


ENDPOINTS: Mapping[str, Endpoint] = {
    "/v1/chat/completions": Endpoint("chat", Use.PROMPT, _chat),
    "/v1/completions": Endpoint("completions", Use.PROMPT, _completion),
    "/v1/embeddings": Endpoint("embeddings", Use.PROMPT, _embedding),
    "/v1/models": Endpoint("models", Use.MODELS),
    "/health": Endpoint("health", Use.HEALTH),
}
OTHER = Endpoint("other", Use.LOAD)

_DECODER = msgspec.json.Decoder(Fields)


def endpoint(path: str) -> Endpoint:
    """The table's row for a path, `OTHER` for one that is not in it."""
    return ENDPOINTS.get(path, OTHER)


class Asker:
    """Body -> Ask. `block` in bytes; `secret` keys the root."""

    def __init__(self, block: int, secret: bytes = prompt.NO_SECRET) -> None:
        self._block = block
        self._secret = secret

    def ask(self, to: Endpoint, body: bytes) -> Ask:
        """What routing needs to know; an ask without a model or a prompt for what cannot be read."""
        if to.read is None:
            return Ask(None)
        try:
            fields = _DECODER.decode(body)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            return Ask(None)
        model = fields.model if isinstance(fields.model, str) else None
        streams = fields.stream is True
        try:
            read = to.read(fields)
        except (prompt.NoPrompt, RecursionError):
            return Ask(model, streams=streams)
        root = prompt.root(
            self._secret, model, fields.cache_salt, fields.chat_template_kwargs, fields.reasoning_effort
        )  # fmt: skip
        hashes, tail = chain(read.data, root, self._block)
        return Ask(model, hashes, tail, len(read.data), streams, read.tokens, read.answers)


def error(status: int, message: str, kind: str, code: str | None, param: str | None = None) -> Answer:
    """An error in OpenAI's shape."""
    body = {"error": {"message": message, "type": kind, "param": param, "code": code}}
    return Answer(status, msgspec.json.encode(body))


def refused(refusal: Refusal, model: str | None) -> Answer:
    """A refusal as the client sees it: 404 for a model nobody serves, 503 when nobody is ready, 429 over capacity."""
    match refusal.cause:
        case RefusalCause.UNKNOWN_MODEL:
            text = (
                f"The model `{model}` does not exist: no replica serves it. GET /v1/models lists those that are served."
            )
            answer = error(404, text, "invalid_request_error", "model_not_found", "model")
        case RefusalCause.NO_REPLICA:
            answer = error(503, "No replica is ready to take this request. Try again.", "server_error", "no_replica")
        case RefusalCause.QUEUE_FULL:
            text = "Every replica is at its limits and the queue is full (routing.queue.max_requests). Try again."
            answer = error(429, text, "rate_limit_error", "queue_full")
        case RefusalCause.QUEUE_TIMEOUT:
            text = "Every replica stayed at its limits (routing.queue.max_seconds). Try again."
            answer = error(429, text, "rate_limit_error", "queue_timeout")
    return answer._replace(retry_after=refusal.retry_after)


def models(cards: Iterable[Mapping[str, object]]) -> Answer:
    """The answer of /v1/models: each model's card once, as the first replica that serves it tells it."""
    seen: dict[object, object] = {}
    for served in cards:
        for name, card in served.items():
            seen.setdefault(name, card)
    return Answer(200, msgspec.json.encode({"object": "list", "data": list(seen.values())}))


def health(ready: int) -> Answer:
    """The answer of /health."""
    return Answer(200, b"") if ready else refused(Refusal(RefusalCause.NO_REPLICA, 1.0), None)
