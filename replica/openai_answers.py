"""Answers of the chat, completion, embedding and model endpoints, as vLLM 0.32 writes them.

Pure: the caller says what time it is. A shape is made once per request.
"""

import base64
import struct
from collections.abc import Sequence
from typing import Final

from replica.answers import Choice, Frame, Usage, encode, event

DONE: Final = b"data: [DONE]\n\n"
EMBEDDING_SIZE: Final = 8


def usage(used: Usage) -> dict[str, object]:
    """In a whole answer, absent details are null. `created_cache_tokens` is 0 without a second cache level."""
    details = {"cached_tokens": used.cached_tokens, "created_cache_tokens": 0} if used.details else None
    return {
        "prompt_tokens": used.prompt_tokens,
        "total_tokens": used.total_tokens,
        "completion_tokens": used.completion_tokens,
        "prompt_tokens_details": details,
    }


def _usage_in_stream(used: Usage) -> dict[str, object]:
    """In a stream, absent details are absent."""
    return {key: value for key, value in usage(used).items() if value is not None}


class ChatShape:
    """`/v1/chat/completions`. The role comes with the first token: after the prefill, not with the head."""

    def __init__(self, request: str, created: int, model: str, include_usage: bool) -> None:
        self._common: dict[str, object] = {
            "id": f"chatcmpl-{request}",
            "object": "chat.completion",
            "created": created,
            "model": model,
        }
        self._chunk = {**self._common, "object": "chat.completion.chunk"}
        self._include_usage = include_usage
        self._frames: dict[int, Frame] = {}

    def prologue(self) -> bytes:
        return b""

    def opening(self, index: int) -> bytes:
        role = {"role": "assistant", "content": ""}
        choice = {"index": index, "delta": role, "logprobs": None, "finish_reason": None}
        return event({**self._chunk, "choices": [choice], "prompt_token_ids": None})

    def delta(self, index: int, text: str, reason: str | None) -> bytes:
        if reason is None:
            if index not in self._frames:
                self._frames[index] = Frame(event({**self._chunk, "choices": [_chat_delta(index, Frame.MARK)]}))
            return self._frames[index].fill(text)
        choice = {**_chat_delta(index, text), "finish_reason": reason, "stop_reason": None}
        return event({**self._chunk, "choices": [choice]})

    def epilogue(self, choices: Sequence[Choice], used: Usage) -> bytes:
        if not self._include_usage:
            return DONE
        return event({**self._chunk, "choices": [], "usage": _usage_in_stream(used)}) + DONE

    def whole(self, choices: Sequence[Choice], used: Usage) -> bytes:
        return encode(
            {
                **self._common,
                "choices": [_chat_choice(choice) for choice in choices],
                "service_tier": None,
                "system_fingerprint": None,
                "usage": usage(used),
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

    def __init__(self, request: str, created: int, model: str, include_usage: bool) -> None:
        self._common: dict[str, object] = {
            "id": f"cmpl-{request}",
            "object": "text_completion",
            "created": created,
            "model": model,
        }
        self._include_usage = include_usage
        self._frames: dict[int, Frame] = {}

    def prologue(self) -> bytes:
        return b""

    def opening(self, index: int) -> bytes:
        return b""

    def delta(self, index: int, text: str, reason: str | None) -> bytes:
        if reason is None:
            if index not in self._frames:
                self._frames[index] = Frame(event({**self._common, "choices": [_completion_delta(index, Frame.MARK)]}))
            return self._frames[index].fill(text)
        choice = {**_completion_delta(index, text), "finish_reason": reason}
        return event({**self._common, "choices": [choice]})

    def epilogue(self, choices: Sequence[Choice], used: Usage) -> bytes:
        if not self._include_usage:
            return DONE
        return event({**self._common, "choices": [], "usage": _usage_in_stream(used)}) + DONE

    def whole(self, choices: Sequence[Choice], used: Usage) -> bytes:
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
                "usage": usage(used),
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
    request: str, created: int, model: str, vectors: Sequence[Sequence[float]], packed: bool, used: Usage
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
        {
            "id": f"embd-{request}",
            "object": "list",
            "created": created,
            "model": model,
            "data": data,
            "usage": usage(used),
        }
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
