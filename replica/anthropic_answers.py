"""Answers of the Messages API, as vLLM 0.32 writes them (`message_stream_converter` and `_build_anthropic_usage`).

Pure. What a reader of usage must know:

- vLLM's prompt tokens are the whole prompt; here they are split: `input_tokens` + `cache_read_input_tokens` +
  `cache_creation_input_tokens` (always 0) is the whole. Without `--enable-prompt-tokens-details` the cache fields are
  absent and `input_tokens` is the whole.
- In a stream usage comes twice. That of `message_start` does not know of the cache yet: its `input_tokens` is the whole
  prompt. That of `message_delta`, the last event but one, is the true one.
- `message_start` comes with the first token, not before: no event precedes the generation. There is no ping and no
  [DONE].
"""

from collections.abc import Sequence
from typing import Final

from replica.answers import Choice, Frame, Usage, encode, named_event

_STOP_REASONS: Final = {"stop": "end_turn", "length": "max_tokens"}


class MessagesShape:
    """`/v1/messages`; `prompt_tokens` is known before the first token."""

    def __init__(self, request: str, model: str, prompt_tokens: int) -> None:
        self._id = f"chatcmpl-{request}"  # vLLM hands the id of the chat completion on.
        self._model = model
        self._prompt_tokens = prompt_tokens
        delta = {"type": "text_delta", "text": Frame.MARK}
        self._frame = Frame(_event("content_block_delta", delta=delta, index=0))

    def prologue(self) -> bytes:
        return b""

    def opening(self, index: int) -> bytes:
        message: dict[str, object] = {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "content": [],
            "model": self._model,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage(Usage(self._prompt_tokens, 0, 0, details=False)),
        }
        block = {"type": "text", "text": ""}
        return _event("message_start", message=message) + _event("content_block_start", content_block=block, index=0)

    def delta(self, index: int, text: str, reason: str | None) -> bytes:
        return self._frame.fill(text)

    def epilogue(self, choices: Sequence[Choice], used: Usage) -> bytes:
        (choice,) = choices
        delta = {"stop_reason": _STOP_REASONS[choice.reason]}
        ends = _event("content_block_stop", index=0), _event("message_delta", delta=delta, usage=usage(used))
        return b"".join((*ends, _event("message_stop")))

    def whole(self, choices: Sequence[Choice], used: Usage) -> bytes:
        (choice,) = choices
        return encode(
            {
                "id": self._id,
                "type": "message",
                "role": "assistant",
                "content": [{"type": "text", "text": choice.text}],
                "model": self._model,
                "stop_reason": _STOP_REASONS[choice.reason],
                "usage": usage(used),
            }
        )


def _event(kind: str, **fields: object) -> bytes:
    return named_event(kind, {"type": kind, **fields})


def usage(used: Usage) -> dict[str, object]:
    """Usage as vLLM tells it in the Messages API: what came from the cache is counted apart."""
    if not used.details:
        return {"input_tokens": used.prompt_tokens, "output_tokens": used.completion_tokens}
    return {
        "input_tokens": used.prompt_tokens - used.cached_tokens,
        "output_tokens": used.completion_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": used.cached_tokens,
    }


def count_tokens(tokens: int) -> bytes:
    return encode({"input_tokens": tokens, "context_management": {"original_input_tokens": tokens}})
