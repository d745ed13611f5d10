"""Answers in the shapes in which vLLM 0.32 writes them: whole bodies and server-sent events.

Pure: the caller says what time it is. A shape is made once per request.
"""

import base64
import json
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

DONE: Final = b"data: [DONE]\n\n"
EMBEDDING_SIZE: Final = 8
_JSON: Final = json.JSONEncoder(separators=(",", ":"))


def encode(value: object) -> bytes:
    return _JSON.encode(value).encode()


def event(value: object) -> bytes:
    return b"data: " + encode(value) + b"\n\n"


def usage(prompt_tokens: int, completion_tokens: int, cached_tokens: int) -> dict[str, object]:
    """`created_cache_tokens` is always 0 in a vLLM without a second cache level."""
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens, "created_cache_tokens": 0},
    }


@dataclass(frozen=True, slots=True)
class Choice:
    """A finished choice; `reason` is the finish_reason."""

    index: int
    text: str
    reason: str


class Shape(Protocol):
    """How one endpoint writes its answers."""

    def opening(self, index: int) -> bytes:
        """The event before the first token of a choice; may be empty."""

    def delta(self, index: int, text: str, reason: str | None) -> bytes:
        """The event of one token; `reason` with the last of its choice."""

    def usage_event(self, used: dict[str, object]) -> bytes:
        """The event after all choices, for `stream_options.include_usage`."""

    def whole(self, choices: Sequence[Choice], used: dict[str, object]) -> bytes:
        """The body of an answer that does not stream."""


class _Frames:
    """The event of one token, cut where its text goes: `fill` costs a string operation, not a serialization."""

    _MARK: Final = "\0text\0"

    def __init__(self, chunk: dict[str, object], choice: Callable[[int, str], dict[str, object]]) -> None:
        self._chunk = chunk
        self._choice = choice
        self._cut: dict[int, tuple[bytes, bytes]] = {}

    def fill(self, index: int, text: str) -> bytes:
        if index not in self._cut:
            whole = event({**self._chunk, "choices": [self._choice(index, self._MARK)]})
            head, _, tail = whole.partition(encode(self._MARK))
            self._cut[index] = head, tail
        head, tail = self._cut[index]
        return head + encode(text) + tail


class ChatShape:
    """`/v1/chat/completions`. The role comes with the first token: after the prefill, not with the head."""

    def __init__(self, request: str, created: int, model: str) -> None:
        self._common: dict[str, object] = {
            "id": f"chatcmpl-{request}",
            "object": "chat.completion",
            "created": created,
            "model": model,
        }
        self._chunk = {**self._common, "object": "chat.completion.chunk"}
        self._frames = _Frames(self._chunk, _chat_delta)

    def opening(self, index: int) -> bytes:
        role = {"role": "assistant", "content": ""}
        choice = {"index": index, "delta": role, "logprobs": None, "finish_reason": None}
        return event({**self._chunk, "choices": [choice], "prompt_token_ids": None})

    def delta(self, index: int, text: str, reason: str | None) -> bytes:
        if reason is None:
            return self._frames.fill(index, text)
        choice = {**_chat_delta(index, text), "finish_reason": reason, "stop_reason": None}
        return event({**self._chunk, "choices": [choice]})

    def usage_event(self, used: dict[str, object]) -> bytes:
        return event({**self._chunk, "choices": [], "usage": used})

    def whole(self, choices: Sequence[Choice], used: dict[str, object]) -> bytes:
        return encode(
            {
                **self._common,
                "choices": [_chat_choice(choice) for choice in choices],
                "service_tier": None,
                "system_fingerprint": None,
                "usage": used,
                "prompt_logprobs": None,
                "prompt_token_ids": None,
                "kv_transfer_params": None,
            }
        )


def _chat_delta(index: int, text: str) -> dict[str, object]:
    return {"index": index, "delta": {"content": text}, "logprobs": None, "finish_reason": None, "token_ids": None}


def _chat_choice(choice: Choice) -> dict[str, object]:
    message: dict[str, object] = {
        "role": "assistant",
        "content": choice.text,
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
        "tool_calls": [],
        "reasoning": None,
    }
    return {
        "index": choice.index,
        "message": message,
        "logprobs": None,
        "finish_reason": choice.reason,
        "stop_reason": None,
        "token_ids": None,
    }


class CompletionShape:
    """`/v1/completions`; an opening event does not exist there."""

    def __init__(self, request: str, created: int, model: str) -> None:
        self._common: dict[str, object] = {
            "id": f"cmpl-{request}",
            "object": "text_completion",
            "created": created,
            "model": model,
        }
        self._frames = _Frames(self._common, _completion_delta)

    def opening(self, index: int) -> bytes:
        return b""

    def delta(self, index: int, text: str, reason: str | None) -> bytes:
        if reason is None:
            return self._frames.fill(index, text)
        choice = {**_completion_delta(index, text), "finish_reason": reason}
        return event({**self._common, "choices": [choice]})

    def usage_event(self, used: dict[str, object]) -> bytes:
        return event({**self._common, "choices": [], "usage": used})

    def whole(self, choices: Sequence[Choice], used: dict[str, object]) -> bytes:
        written = [
            {**_completion_delta(choice.index, choice.text), "finish_reason": choice.reason, "prompt_logprobs": None}
            for choice in choices
        ]
        return encode(
            {
                **self._common,
                "choices": written,
                "service_tier": None,
                "system_fingerprint": None,
                "usage": used,
                "kv_transfer_params": None,
            }
        )


def _completion_delta(index: int, text: str) -> dict[str, object]:
    return {
        "index": index,
        "text": text,
        "logprobs": None,
        "finish_reason": None,
        "stop_reason": None,
        "token_ids": None,
        "prompt_token_ids": None,
    }


def embeddings(
    request: str, created: int, model: str, vectors: Sequence[Sequence[float]], packed: bool, used: dict[str, object]
) -> bytes:
    """`/v1/embeddings`; `packed` is `encoding_format: base64`, little-endian 32-bit floats."""
    data = [
        {
            "index": index,
            "object": "embedding",
            "embedding": base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode() if packed else vector,
        }
        for index, vector in enumerate(vectors)
    ]
    return encode(
        {"id": f"embd-{request}", "object": "list", "created": created, "model": model, "data": data, "usage": used}
    )


def models(names: Sequence[str], created: int, max_model_len: int) -> bytes:
    """`/v1/models`: the model first, then its adapters as its children."""
    cards: list[dict[str, object]] = [
        {
            "id": name,
            "object": "model",
            "created": created,
            "owned_by": "vllm",
            "root": names[0] if index == 0 else name,
            "parent": None if index == 0 else names[0],
            "max_model_len": max_model_len if index == 0 else None,
            "permission": [],
        }
        for index, name in enumerate(names)
    ]
    return encode({"object": "list", "data": cards})
