"""Bodies of the Responses and the Messages API -> the chat body that asks the same.

vLLM serves both by turning them into chat messages, so one conversation renders to the same tokens through any of the
three APIs and shares its cache. The rules are vLLM's (`construct_input_messages` and `to_chat_completion_request` of
0.32), and the result is what `openai_requests.parse_chat` reads. Known difference: reasoning items and thinking blocks
are dropped, as most chat templates drop them from earlier turns.

Pure. What vLLM would refuse raises BadRequestError; what it would only pass on to the chat template passes here, too.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from replica.errors import BadRequestError

Message = dict[str, object]

_SHARED: Final = ("model", "stream", "cache_salt", "chat_template_kwargs", "ignore_eos")
_BILLING: Final = "x-anthropic-billing-header"  # A client's header with a hash per request; vLLM drops the block.
_ROLES: Final = {"ctx": "user", "msg": "user"}  # What newer clients of the Messages API call a user.


def chat_of_responses(body: Mapping[str, object], history: Sequence[Message] = ()) -> dict[str, object]:
    """`history` is the stored conversation that `previous_response_id` names; its instructions do not carry over."""
    messages: list[Message] = []
    instructions = body.get("instructions")
    if instructions is not None and not isinstance(instructions, str):
        raise BadRequestError("instructions must be a string", "instructions")
    if instructions:
        messages.append({"role": "system", "content": instructions})
    messages += (dict(message) for message in history if message.get("role") != "system")
    for item in _items(body.get("input")):
        _append_item(item, messages)
    reasoning = body.get("reasoning")
    return {
        **_shared(body),
        "messages": messages,
        "tools": [_chat_tool(tool) for tool in _tools(body) if tool.get("type") == "function"],
        "reasoning_effort": reasoning.get("effort") if isinstance(reasoning, dict) else None,
        "max_completion_tokens": body.get("max_output_tokens"),
    }


def messages_of(chat: Mapping[str, object]) -> list[Message]:
    """The messages of a chat body that was made here."""
    return list(_dicts(chat["messages"], "messages"))


def _items(value: object) -> list[dict[str, object]]:
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if not isinstance(value, list) or not value or not all(isinstance(item, dict) for item in value):
        raise BadRequestError("input must be a string or a non-empty list of items", "input")
    return value


def _append_item(item: Mapping[str, object], messages: list[Message]) -> None:
    kind = item.get("type", "message")
    if kind == "message":
        messages.append({**item, "content": _chat_content(item.get("content"))})
    elif kind == "function_call":
        call = _call(item.get("call_id"), item.get("name"), item.get("arguments"))
        _calling_message(messages).append(call)
    elif kind == "function_call_output":
        output = _chat_content(item.get("output"))
        messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": output})
    elif kind != "reasoning":
        raise BadRequestError(f"input items of type {kind} are not supported", "input")


def _calling_message(messages: list[Message]) -> list[object]:
    """The calls of the assistant message that ends the conversation so far; one is begun if none does."""
    if not messages or messages[-1].get("role") != "assistant":
        messages.append({"role": "assistant", "content": None})
    calls = messages[-1].setdefault("tool_calls", [])
    if not isinstance(calls, list):
        raise BadRequestError("tool_calls must be a list", "input")
    return calls


def _chat_content(content: object) -> object:
    """Images become the chat API's; text parts have names of their own that the template knows."""
    if not isinstance(content, list):
        return content
    return [
        {"type": "image_url", "image_url": {"url": part.get("image_url")}}
        if isinstance(part, dict) and part.get("type") == "input_image"
        else part
        for part in content
    ]


def chat_of_messages(body: Mapping[str, object]) -> dict[str, object]:
    """A Messages body as the chat body that vLLM makes of it. Raises ApiError for what it refuses."""
    messages = _dicts(body.get("messages"), "messages")
    converted: list[Message] = []
    if system := "".join(_system_texts(body.get("system"), messages)):
        converted.append({"role": "system", "content": system})
    for message in messages:
        if message.get("role") != "system":
            converted += _turn(message)
    config = body.get("output_config")
    return {
        **_shared(body),
        "messages": converted,
        "tools": [_chat_tool({**tool, "parameters": tool.get("input_schema")}) for tool in _tools(body)],
        "reasoning_effort": config.get("effort") if isinstance(config, dict) else None,
        "max_completion_tokens": body.get("max_tokens"),
    }


def _system_texts(system: object, messages: Sequence[Mapping[str, object]]) -> Iterator[str]:
    """All system text, that of system messages further down included."""
    inline = (message.get("content") for message in messages if message.get("role") == "system")
    for content in (system, *inline):
        blocks = (
            [{"type": "text", "text": content}] if isinstance(content, str) else _dicts(content, "system", empty=True)
        )
        for block in blocks:
            text = block.get("text")
            if block.get("type") == "text" and isinstance(text, str) and not text.startswith(_BILLING):
                yield text


def _turn(message: Mapping[str, object]) -> Iterator[Message]:
    """The chat messages of one message: results of tools come before what else it says."""
    role = _role(message.get("role"))
    content = message.get("content")
    if isinstance(content, str):
        yield {"role": role, "content": content}
        return
    blocks = _dicts(content, "messages")
    for block in blocks:
        if block.get("type") == "tool_result":
            yield from _tool_result(block)
    said: Message = {"role": role, "content": [part for block in blocks if (part := _part(block))] or None}
    if calls := [_use(block) for block in blocks if block.get("type") == "tool_use"]:
        said["tool_calls"] = calls
    if said["content"] or calls or role == "assistant":
        yield said


def _role(value: object) -> str:
    role = _ROLES.get(value, value) if isinstance(value, str) else None
    if role not in ("user", "assistant"):
        raise BadRequestError("a message must have the role user or assistant", "messages")
    return role


def _part(block: Mapping[str, object]) -> dict[str, object] | None:
    """What a block says in the chat API; None for a block that is not content, or empty."""
    match block.get("type"):
        case "text":
            return {"type": "text", "text": block["text"]} if block.get("text") else None
        case "image":
            return _image(block.get("source"))
        case _:
            return None


def _use(block: Mapping[str, object]) -> dict[str, object]:
    return _call(block.get("id"), block.get("name"), json.dumps(block.get("input") or {}))


def _tool_result(block: Mapping[str, object]) -> Iterator[Message]:
    """The result's text as the tool's message; its images follow as the user's."""
    content = block.get("content")
    items = [{"type": "text", "text": content}] if isinstance(content, str) else _dicts(content, "messages", empty=True)
    text = "\n".join(str(item.get("text", "")) for item in items if item.get("type") == "text")
    yield {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": text}
    if images := [_image(item.get("source")) for item in items if item.get("type") == "image"]:
        yield {"role": "user", "content": images}


def _image(source: object) -> dict[str, object]:
    if not isinstance(source, dict):
        raise BadRequestError("an image block needs a source", "messages")
    url = source.get("url") if source.get("type") == "url" else None
    url = url or f"data:{source.get('media_type', 'image/jpeg')};base64,{source.get('data', '')}"
    return {"type": "image_url", "image_url": {"url": url}}


def _call(call_id: object, name: object, arguments: object) -> dict[str, object]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _tools(body: Mapping[str, object]) -> Sequence[Mapping[str, object]]:
    return _dicts(body.get("tools"), "tools", empty=True)


def _chat_tool(tool: Mapping[str, object]) -> dict[str, object]:
    function = {key: tool.get(key) for key in ("name", "description", "parameters")}
    return {"type": "function", "function": function}


def _dicts(value: object, param: str, empty: bool = False) -> Sequence[dict[str, object]]:
    if empty and not value:
        return ()
    if not isinstance(value, list) or not value or not all(isinstance(item, dict) for item in value):
        raise BadRequestError(f"{param} must be a non-empty list of objects", param)
    return value


def _shared(body: Mapping[str, object]) -> dict[str, object]:
    return {key: body[key] for key in _SHARED if key in body}
