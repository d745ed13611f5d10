"""A stand-in chat template: the messages of a request as one run of packed tokens.

Rules:

- Order: system text first, then tools, then the other messages, as the templates of today's models have it.
- Every message opens with control tokens of its role (their number differs from role to role, so message borders fall
  anywhere in an engine block) and ends with one. The prompt ends with the opening of an assistant message: an answer,
  sent back as an assistant message by the next turn, continues the same tokens.
- A tool is its name, description and parameters, a call its id, name and decoded arguments, since templates write both
  as JSON of their own: the same tools share their cache whatever API and spacing brought them.
- An image is a run of tokens made from its URL: two images never share a prefix.
- Whatever changes the rendering beside the messages (`chat_template_kwargs`, `reasoning_effort`) opens the prompt as
  one control token, so that equal messages with other arguments share nothing.

It knows JSON values, not HTTP. What vLLM would refuse raises BadRequestError.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Final

from replica.errors import BadRequestError
from replica.tokens import Tokenizer, special

_IMAGE_TOKENS: Final = 144  # A 336 x 336 image in 28-pixel patches, 12 by 12.
_TEXT_PARTS: Final = frozenset({"text", "input_text", "output_text", "refusal", "thinking"})


def render_chat(body: Mapping[str, object], tokenizer: Tokenizer) -> bytes:
    """The prompt of a chat body, packed. Raises BadRequestError."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BadRequestError("messages must be a non-empty list", "messages")
    runs = [special("begin")]
    arguments = [body.get("chat_template_kwargs"), body.get("reasoning_effort")]
    if any(arguments):
        runs.append(special("arguments", json.dumps(arguments, sort_keys=True)))
    tools = body.get("tools")
    if tools is not None and not isinstance(tools, list):
        raise BadRequestError("tools must be a list", "tools")
    rendered = [b"".join(_message(message, tokenizer)) for message in messages]
    if tools:
        after_system = 1 if messages[0]["role"] == "system" else 0
        written = json.dumps([_tool(tool) for tool in tools])
        rendered.insert(after_system, _opening("tools") + tokenizer.encode(written) + special("end"))
    return b"".join([*runs, *rendered, _opening("assistant")])


def _message(message: object, tokenizer: Tokenizer) -> Iterator[bytes]:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise BadRequestError("a message must be an object with a role", "messages")
    yield _opening(message["role"])
    for key in ("name", "tool_call_id"):
        if isinstance(message.get(key), str):
            yield special(key) + tokenizer.encode(message[key])
    yield from _content(message.get("content"), tokenizer)
    if calls := message.get("tool_calls"):
        written = json.dumps([_call(call) for call in calls] if isinstance(calls, list) else calls)
        yield special("tool_calls") + tokenizer.encode(written)
    yield special("end")


def _tool(tool: object) -> object:
    if not isinstance(tool, dict) or not isinstance(tool.get("function"), dict):
        return tool
    function = tool["function"]
    return {key: function[key] for key in ("name", "description", "parameters") if function.get(key) is not None}


def _call(call: object) -> object:
    if not isinstance(call, dict) or not isinstance(call.get("function"), dict):
        return call
    function = call["function"]
    return {"id": call.get("id"), "name": function.get("name"), "arguments": _decoded(function.get("arguments"))}


def _decoded(arguments: object) -> object:
    """The arguments' JSON value; what is no JSON stays the text that it is."""
    if not isinstance(arguments, str):
        return arguments
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments


def _content(content: object, tokenizer: Tokenizer) -> Iterator[bytes]:
    if content is None:
        return
    if isinstance(content, str):
        content = [content]
    if not isinstance(content, list):
        raise BadRequestError("content must be a string, a list of parts or null", "messages")
    for part in content:
        yield _part(part, tokenizer)


def _part(part: object, tokenizer: Tokenizer) -> bytes:
    if isinstance(part, str):
        return tokenizer.encode(part)
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        raise BadRequestError("a content part must be a string or an object with a type", "messages")
    kind: str = part["type"]
    value = part.get(kind)
    if kind in _TEXT_PARTS:
        text = part.get("text", value)
        if not isinstance(text, str):
            raise BadRequestError(f"a part of type {kind} needs a text", "messages")
        return tokenizer.encode(text)
    if value is None:
        raise BadRequestError(f"a part of type {kind} needs {kind}", "messages")
    return special(kind, json.dumps(value, sort_keys=True), count=_IMAGE_TOKENS)


def _opening(role: str) -> bytes:
    """3 to 6 control tokens; real templates spend that many on a role and its line break."""
    return special("role", role, count=3 + sum(role.encode("utf-8", "surrogatepass")) % 4)
