"""The JSON that the router reads: a few fields of a request's body, and an answer's usage.

msgspec skips what is not named here without building it. This file is never compiled: msgspec reads the annotations.
"""

from typing import Annotated, Any

import msgspec

from router.core.types import Usage

Tokens = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]


class Fields(msgspec.Struct):
    """The fields of a body that routing needs. Their values are whatever the client sent."""

    model: Any = None
    messages: Any = None
    prompt: Any = None
    input: Any = None
    instructions: Any = None
    system: Any = None
    query: Any = None
    text_1: Any = None
    tools: Any = None
    stream: Any = None
    cache_salt: Any = None
    chat_template_kwargs: Any = None
    reasoning_effort: Any = None
    previous_response_id: Any = None


class _Details(msgspec.Struct):
    cached_tokens: Tokens | None = None


class _Usage(msgspec.Struct):
    """OpenAI's two forms (chat and responses) and Anthropic's."""

    prompt_tokens: Tokens | None = None
    completion_tokens: Tokens | None = None
    prompt_tokens_details: _Details | None = None
    input_tokens: Tokens | None = None
    output_tokens: Tokens | None = None
    input_tokens_details: _Details | None = None
    cache_read_input_tokens: Tokens | None = None
    cache_creation_input_tokens: Tokens | None = None


class _Bare(msgspec.Struct):
    """The fields that routing needs even of a request whose prompt is not read."""

    model: Any = None
    stream: Any = None
    previous_response_id: Any = None


_FIELDS = msgspec.json.Decoder(Fields)
_BARE = msgspec.json.Decoder(_Bare)
_USAGE = msgspec.json.Decoder(_Usage)


def fields(body: bytes | bytearray) -> Fields | None:
    """The fields of a JSON object; None for a body that is none, or that nests beyond what can be read."""
    try:
        return _FIELDS.decode(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None


def bare(body: bytes | bytearray) -> Fields | None:
    """The same without anything that a prompt is made of, which msgspec skips at 1 ms for each MiB."""
    try:
        found = _BARE.decode(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None
    return Fields(found.model, stream=found.stream, previous_response_id=found.previous_response_id)


def usage(data: bytes) -> Usage | None:
    """A usage object; None for one of another form."""
    try:
        of = _USAGE.decode(data)
    except msgspec.MsgspecError:
        return None
    if of.input_tokens is None:
        details = of.prompt_tokens_details
        return Usage(of.prompt_tokens, of.completion_tokens, details.cached_tokens if details else None)
    if of.input_tokens_details is not None:
        return Usage(of.input_tokens, of.output_tokens, of.input_tokens_details.cached_tokens)
    # Anthropic counts what came from the cache, or went into it, apart from the rest.
    prompt = of.input_tokens + (of.cache_read_input_tokens or 0) + (of.cache_creation_input_tokens or 0)
    return Usage(prompt, of.output_tokens, of.cache_read_input_tokens)
