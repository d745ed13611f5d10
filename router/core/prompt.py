"""Parsed request -> root and the prompt's bytes in template order.

The bytes are not what the chat template renders, they only have to be equal where its rendering is: text is taken
decoded, so JSON escaping and white space do not matter, and `content` as a string equals the same text in parts. An
image or audio part contributes a hash of what it carries, in which a hash stands for each long string, so that
proxy/condense can take those out before anything is decoded. Values are whatever a JSON decoder gives; a form that no
prompt can be read from raises `NoPrompt`, and the request then goes by load: the engine is the one to refuse it.

This file must change in step with tests/golden: other bytes are other keys, which throw away a fleet's cache.
"""

import json
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

from xxhash import xxh3_128_hexdigest

NO_SECRET = b"homing"
"""Key of the root while nothing is gossiped; golden files need a constant one."""

TURN, FIELD = "\x1e", "\x1f"
"""Before each message, and between its fields: control characters that text does not contain by accident."""

SYSTEM_ROLES = ("system", "developer")

LONG = 4096
"""Length from which on a string in a part that is no text is hashed alone: no URL is longer, images in base64 are."""


class NoPrompt(ValueError):
    """No prompt can be read from this request."""


class Prompt(NamedTuple):
    """`data` is the prompt in template order; `answers` maps the first byte of each assistant message to its end;
    `tokens` is the exact count where the client sent token ids."""

    data: bytes
    answers: dict[int, int]
    tokens: int | None = None


def root(secret: bytes, *parts: object) -> int:
    """64 bits over everything that makes equal text another KV cache: model, adapter, salts, template arguments."""
    text = json.dumps(parts, sort_keys=True, default=str) if any(parts[1:]) else f'["{parts[0]}"]'
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8, key=secret).digest(), "big")


def chat(messages: Any, tools: bytes = b"", tools_first: bool = False) -> Prompt:
    """A conversation: leading system message, tools, then the other messages; or the tools first.

    `tools` is the request's tool list in compact JSON. Raises NoPrompt unless `messages` is a list of objects.
    """
    if not isinstance(messages, list) or not messages:
        raise NoPrompt("messages is not a list, or an empty one")
    turns = [_turn(message) for message in messages]
    if tools:
        turn = (False, TURN.encode() + tools)
        system_leads = not tools_first and messages[0].get("role") in SYSTEM_ROLES
        turns.insert(1 if system_leads else 0, turn)
    answers: dict[int, int] = {}
    end = 0
    for is_answer, data in turns:
        start, end = end, end + len(data)
        if is_answer:
            answers[start] = end
    return Prompt(b"".join([data for _, data in turns]), answers)


def completion(prompt: Any) -> Prompt:
    """A prompt as text or as token ids; of a list of prompts the first one, whose home serves all."""
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return Prompt(prompt.encode("utf-8", "surrogatepass"), {})
    if isinstance(prompt, list) and prompt:
        return Prompt(token_bytes(prompt), {}, len(prompt))
    raise NoPrompt("prompt is neither text nor token ids")


def token_bytes(tokens: Sequence[Any]) -> bytes:
    """Token ids as four bytes each, so that a block holds 128 of them. Raises NoPrompt for what is no token id."""
    try:
        return b"".join([token.to_bytes(4, "little") for token in tokens])
    except (AttributeError, OverflowError, TypeError) as error:
        raise NoPrompt("a token id is not an integer of 32 bits") from error


def _turn(message: Any) -> tuple[bool, bytes]:
    if not isinstance(message, dict):
        raise NoPrompt("a message is not an object")
    role = message.get("role") or message.get("type")
    fields = [f"{TURN}{role}"]
    if name := message.get("name"):
        fields.append(str(name))
    content = message.get("content")
    fields.append(content if isinstance(content, str) else "\n".join(_parts(content)))
    if calls := message.get("tool_calls"):
        fields.extend(_calls(calls))
    # `arguments` and `output` stand in the Responses API's call items.
    fields.extend([_text(message[key]) for key in ("tool_call_id", "arguments", "output") if message.get(key)])
    return role == "assistant", FIELD.join(fields).encode("utf-8", "surrogatepass")


def _parts(content: Any) -> Iterable[str]:
    """Text parts as they are, of every other part a hash. Null content, as beside tool calls, is no part."""
    if content is None:
        return
    for part in content if isinstance(content, list) else [content]:
        text = part if isinstance(part, str) else part.get("text") if isinstance(part, dict) else None
        yield text if isinstance(text, str) else digest(_canonical(_brief(part)))


def _calls(calls: Any) -> Iterable[str]:
    """Name and arguments of each call; what has another form counts as it stands."""
    for call in calls if isinstance(calls, list) else [calls]:
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            yield str(function.get("name"))
            yield _text(function.get("arguments"))
        else:
            yield _canonical(call).decode()


def digest(data: bytes | memoryview) -> str:
    """A hash that stands for these bytes: 32 characters."""
    return xxh3_128_hexdigest(data)


def _brief(value: Any) -> Any:
    """The value with hashes in place of its long strings: JSON takes 40 ms to write 16 MiB, a hash of them 1 ms."""
    if isinstance(value, str):
        return digest(value.encode("utf-8", "surrogatepass")) if len(value) > LONG else value
    if isinstance(value, dict):
        return {key: _brief(inner) for key, inner in value.items()}
    return [_brief(inner) for inner in value] if isinstance(value, list) else value


def _text(value: Any) -> str:
    return value if isinstance(value, str) else _canonical(value).decode()


def _canonical(value: Any) -> bytes:
    """One text for equal values, in whatever order a client wrote their keys."""
    return json.dumps(value, ensure_ascii=True, sort_keys=True, separators=(",", ":"), default=str).encode()
