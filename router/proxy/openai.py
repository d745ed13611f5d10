"""The endpoint table, and body -> Ask.

The router never validates what the engine validates: a body that is no JSON, or has an unexpected form, becomes an
ask without a prompt, goes to the least loaded replica, and the engine's own 400 is relayed. Only the fields that
routing needs are decoded; the body is forwarded as it came.
"""

import posixpath
import re
from collections.abc import Callable, Collection, Mapping
from enum import StrEnum
from typing import Any, NamedTuple
from urllib.parse import unquote

import msgspec

from router.core import prompt
from router.core.blocks import chain
from router.core.prompt import NoPrompt, Prompt
from router.core.types import Ask
from router.proxy import shapes
from router.proxy.answers import Style
from router.proxy.condense import BIG, Condenser
from router.proxy.shapes import Fields
from router.proxy.wire import Body


class Use(StrEnum):
    """What the router does with an endpoint."""

    PROMPT = "prompt"  # routed by prompt
    MODEL = "model"  # routed by model and load: no prompt, or none that leaves a KV cache
    STORED = "stored"  # goes to the replica that stored the response whose id the path names
    MODELS = "models"  # answered: the models of all ready replicas
    HEALTH = "health"  # answered: whether any replica is ready
    VERSION = "version"  # answered
    CONTROL = "control"  # refused: engine control
    LOAD = "load"  # anything else: least loaded, whatever its model


class Endpoint(NamedTuple):
    """`name` is for metrics, `style` the shape of errors; `read` takes a prompt out of the fields."""

    name: str
    use: Use
    read: Callable[[Fields, bool], Prompt] | None = None
    style: Style = Style.OPENAI


def _chat(fields: Fields, tools_first: bool) -> Prompt:
    return prompt.chat(fields.messages, _tools(fields), tools_first)


def _completion(fields: Fields, tools_first: bool) -> Prompt:
    return prompt.completion(fields.prompt)


def _responses(fields: Fields, tools_first: bool) -> Prompt:
    turns = [{"role": "user", "content": fields.input}] if isinstance(fields.input, str) else fields.input
    return prompt.chat(_led(fields.instructions, turns), _tools(fields), tools_first)


def _messages(fields: Fields, tools_first: bool) -> Prompt:
    return prompt.chat(_led(fields.system, fields.messages), _tools(fields), tools_first)


def _pooled(fields: Fields, tools_first: bool) -> Prompt:
    """Embeddings and their like: `input`, or `messages` for models with a chat template."""
    if fields.messages is not None:
        return prompt.chat(fields.messages)
    return prompt.completion(fields.input)


def _ranked(fields: Fields, tools_first: bool) -> Prompt:
    """What every pair begins with: the query, or the first text."""
    return prompt.completion(fields.query if fields.text_1 is None else fields.text_1)


def _led(system: Any, turns: Any) -> Any:
    """The turns with the system text in front, where there is one."""
    if not system or not isinstance(turns, list):
        return turns
    return [{"role": "system", "content": system}, *turns]


def _tools(fields: Fields) -> bytes:
    return msgspec.json.encode(fields.tools) if fields.tools else b""


_RANK = Endpoint("rerank", Use.PROMPT, _ranked)
_SCORE = Endpoint("score", Use.PROMPT, _ranked)
_POOLING = Endpoint("pooling", Use.PROMPT, _pooled)
_CLASSIFY = Endpoint("classify", Use.PROMPT, _pooled)
_TOKENS = Endpoint("tokens", Use.MODEL)
_HEALTH = Endpoint("health", Use.HEALTH)
_CONTROL = Endpoint("control", Use.CONTROL)
_STORED = Endpoint("responses", Use.STORED, None, Style.RESPONSES)
_AUDIO = Endpoint("audio", Use.MODEL)

CONTROL_PATHS = (
    *("/sleep", "/wake_up", "/is_sleeping", "/collective_rpc", "/start_profile", "/stop_profile", "/metrics", "/load"),
    *("/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/scale_elastic_ep", "/is_scaling_elastic_ep"),
    "/server_info",
)
"""vLLM's engine control and inside; what begins with /reset_ comes on top."""

ENDPOINTS: Mapping[str, Endpoint] = {
    "/v1/chat/completions": Endpoint("chat", Use.PROMPT, _chat),
    "/v1/completions": Endpoint("completions", Use.PROMPT, _completion),
    "/v1/responses": Endpoint("responses", Use.PROMPT, _responses, Style.RESPONSES),
    "/v1/messages": Endpoint("messages", Use.PROMPT, _messages, Style.ANTHROPIC),
    "/v1/messages/count_tokens": Endpoint("tokens", Use.MODEL, None, Style.ANTHROPIC),
    "/v1/embeddings": Endpoint("embeddings", Use.PROMPT, _pooled),
    "/tokenize": _TOKENS,
    "/detokenize": _TOKENS,
    "/rerank": _RANK,
    "/v1/rerank": _RANK,
    "/v2/rerank": _RANK,
    "/score": _SCORE,
    "/v1/score": _SCORE,
    "/pooling": _POOLING,
    "/classify": _CLASSIFY,
    "/v1/models": Endpoint("models", Use.MODELS),
    "/health": _HEALTH,
    "/ping": _HEALTH,
    "/version": Endpoint("version", Use.VERSION),
} | dict.fromkeys(CONTROL_PATHS, _CONTROL)
OTHER = Endpoint("other", Use.LOAD)

_NO_SALTS = None, None, None
MAX_PLAIN = 1024
"""Models whose root is remembered: 100 KB, and more than a fleet serves."""

_UNREAD = frozenset((Use.STORED, Use.LOAD))

_PREFIXES = (("/v1/responses/", _STORED), ("/v1/audio/", _AUDIO), ("/reset_", _CONTROL))

_MULTIPART_MODEL = re.compile(rb'name="model"[^\r\n]{0,256}\r\n(?:[^\r\n]{1,256}\r\n){0,8}\r\n([^\r\n]{1,256})\r\n')
"""Every part bounded, so that a hostile body is looked through once and not once for each of its lines."""
_STORED_ID = re.compile(r"/v1/responses/([^/]+)")


def endpoint(path: str, allowed: Collection[str] = ()) -> Endpoint:
    """The table's row for a path, `OTHER` for one that is not in it, or that is engine control but allowed."""
    found = ENDPOINTS.get(path)
    if found is None:
        path = _plain(path)
        found = ENDPOINTS.get(path) or next((row for prefix, row in _PREFIXES if path.startswith(prefix)), OTHER)
    return OTHER if found.use is Use.CONTROL and path in allowed else found


def _plain(path: str) -> str:
    """A path as a replica may read it: without escapes, empty segments and dots. `/%73leep` is `/sleep`."""
    if "%" in path or "//" in path or "/." in path:
        return "/" + posixpath.normpath(unquote(path)).lstrip("/")
    return path


def stored_id(path: str) -> str | None:
    """The response id that a path names."""
    found = _STORED_ID.match(path)
    return found[1] if found else None


def is_big(to: Endpoint, body: Body) -> bool:
    """Whether a body takes so long to read that it is condensed before: a JSON object, since nothing else is read."""
    return len(body) > BIG and to.use not in _UNREAD and body[:64].lstrip().startswith(b"{")


class Reading:
    """An ask, and the id of the stored response that the request goes on from, if it names one."""

    __slots__ = ("ask", "previous")

    def __init__(self, ask: Ask, previous: str | None = None) -> None:
        self.ask, self.previous = ask, previous


class Asker:
    """Body -> Ask. `block` in bytes; `tools_first` names the models whose template puts tools before the system text;
    `secret` keys the root."""

    def __init__(
        self, block: int, tools_first: Collection[str] = frozenset(), secret: bytes = prompt.NO_SECRET
    ) -> None:
        self._block = block
        self._tools_first = tools_first
        self._secret = secret
        self._plain: dict[str | None, int] = {}  # Roots of requests that name nothing but their model.

    def read(self, to: Endpoint, body: Body) -> Reading:
        """What routing needs to know; an ask without a model or a prompt for what cannot be read."""
        if to.use is Use.LOAD:
            return Reading(Ask(None))
        if is_big(to, body):
            condenser = Condenser(body)
            for _ in condenser.slices():
                pass
            return self.read_condensed(to, body, condenser)
        fields = shapes.fields(body)
        return Reading(Ask(_multipart_model(body))) if fields is None else self._reading(to, fields)

    def read_condensed(self, to: Endpoint, body: Body, condenser: Condenser) -> Reading:
        """The same for a big body that a condenser has gone through."""
        small = condenser.body
        fields = shapes.bare(body) if small is None else shapes.fields(small)
        return Reading(Ask(None)) if fields is None else self._reading(to, fields, condenser.omitted)

    def _reading(self, to: Endpoint, fields: Fields, omitted: int = 0) -> Reading:
        model = fields.model if isinstance(fields.model, str) else None
        previous = fields.previous_response_id if isinstance(fields.previous_response_id, str) else None
        return Reading(self._ask(to, fields, model, omitted), previous)

    def _ask(self, to: Endpoint, fields: Fields, model: str | None, omitted: int) -> Ask:
        streams = fields.stream is True
        if to.read is None:
            return Ask(model, streams=streams)
        try:
            read = to.read(fields, model in self._tools_first)
            root = self._root(model, fields)
        except (NoPrompt, RecursionError, msgspec.MsgspecError):
            return Ask(model, streams=streams)
        hashes, tail = chain(read.data, root, self._block)
        return Ask(model, hashes, tail, len(read.data) + omitted, streams, read.tokens, read.answers)

    def _root(self, model: str | None, fields: Fields) -> int:
        salts = fields.cache_salt, fields.chat_template_kwargs, fields.reasoning_effort
        if salts != _NO_SALTS:
            return prompt.root(self._secret, model, *salts)
        root = self._plain.get(model)
        if root is None:
            if len(self._plain) >= MAX_PLAIN:  # Clients can name as many models as they like.
                self._plain.clear()
            root = self._plain[model] = prompt.root(self._secret, model, *salts)
        return root


def _multipart_model(body: Body) -> str | None:
    """The `model` field of a form, which is peeked at; the form itself is forwarded as it came."""
    found = _MULTIPART_MODEL.search(body)
    return found[1].decode("utf-8", "replace") if found else None
