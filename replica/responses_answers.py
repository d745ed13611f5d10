"""Answers of the Responses API, as vLLM 0.32 writes them (`ResponsesResponse` and its streaming events).

Pure but for `keep`, which is told of the final response before a byte of it is written: a client may name it in its
next request as soon as it has read it.

- Every field of a response is always there, in vLLM's order; `usage` is null until the end. The tools of the request
  are echoed, so a key named `usage` can come before the real one.
- Inside an event the keys are in alphabetical order, with `type` last: a reader that wants the kind early looks at the
  `event:` line.
- The stream ends with `response.completed`, also when the answer was cut by its length; there is no [DONE].
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Final

from replica.answers import Choice, Frame, Usage, encode, named_event

Response = dict[str, object]
Keep = Callable[[Response, str], None]
"""The final response and what was said in it."""

_NUMBER: Final = -1  # A sequence number that stands for the one to come; no event has it.


class ResponsesShape:
    """One response, from `queued` to its end. `body` is the request's; the answer has at most `max_tokens`."""

    def __init__(
        self,
        response_id: str,
        created: int,
        model: str,
        body: Mapping[str, object],
        max_tokens: int,
        keep: Keep,
    ) -> None:
        self._id = response_id
        self._item = f"msg_{response_id.removeprefix('resp_')}"
        self._created = created
        self._model = model
        self._body = body
        self._max_tokens = max_tokens
        self._keep = keep
        self._numbers = count()
        self._delta = self._cut_delta()

    def prologue(self) -> bytes:
        response = self.response("in_progress")
        return self._event("response.created", response=response) + self._event(
            "response.in_progress", response=response
        )

    def opening(self, index: int) -> bytes:
        item = self._message("in_progress", [])
        part = {**_text(""), "logprobs": []}
        return self._event("response.output_item.added", item=item, output_index=0) + self._event(
            "response.content_part.added", content_index=0, item_id=self._item, output_index=0, part=part
        )

    def delta(self, index: int, text: str, reason: str | None) -> bytes:
        head, middle, tail = self._delta
        return b"".join((head, encode(text), middle, str(next(self._numbers)).encode(), tail))

    def epilogue(self, choices: Sequence[Choice], used: Usage) -> bytes:
        (choice,) = choices
        at = {"content_index": 0, "item_id": self._item, "output_index": 0}
        done = (
            self._event("response.output_text.done", **at, logprobs=[], text=choice.text),
            self._event("response.content_part.done", **at, part=_text(choice.text)),
            self._event(
                "response.output_item.done", item=self._message("completed", [_text(choice.text)]), output_index=0
            ),
            self._event("response.completed", response=self._final(choice, used)),
        )
        return b"".join(done)

    def whole(self, choices: Sequence[Choice], used: Usage) -> bytes:
        (choice,) = choices
        return encode(self._final(choice, used))

    def _final(self, choice: Choice, used: Usage) -> Response:
        status = "incomplete" if choice.reason == "length" else "completed"
        response = self.response(status, [self._message("completed", [_text(choice.text)])], used)
        self._keep(response, choice.text)
        return response

    def response(self, status: str, output: Sequence[object] = (), used: Usage | None = None) -> Response:
        """The response object in vLLM's order of fields."""
        body = self._body
        return {
            "id": self._id,
            "created_at": self._created,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": body.get("instructions"),
            "metadata": body.get("metadata"),
            "model": self._model,
            "object": "response",
            "output": list(output),
            "parallel_tool_calls": body.get("parallel_tool_calls") is not False,
            "temperature": body.get("temperature", 1.0),
            "tool_choice": body.get("tool_choice", "auto"),
            "tools": body.get("tools") or [],
            "top_p": body.get("top_p", 1.0),
            "background": body.get("background") is True,
            "max_output_tokens": self._max_tokens,
            "max_tool_calls": body.get("max_tool_calls"),
            "previous_response_id": body.get("previous_response_id"),
            "prompt": None,
            "reasoning": body.get("reasoning"),
            "service_tier": body.get("service_tier", "auto"),
            "status": status,
            "text": body.get("text"),
            "top_logprobs": None,
            "truncation": body.get("truncation", "disabled"),
            "usage": None if used is None else usage(used),
            "user": body.get("user"),
            "presence_penalty": body.get("presence_penalty", 0.0),
            "frequency_penalty": body.get("frequency_penalty", 0.0),
            "kv_transfer_params": None,
            "input_messages": None,
            "output_messages": None,
        }

    def _message(self, status: str, content: Sequence[object]) -> dict[str, object]:
        return {"id": self._item, "content": content, "role": "assistant", "status": status, "type": "message"}

    def _event(self, kind: str, **fields: object) -> bytes:
        fields["sequence_number"] = next(self._numbers)
        return named_event(kind, dict(sorted(fields.items())) | {"type": kind})

    def _cut_delta(self) -> tuple[bytes, bytes, bytes]:
        """The event of a token, serialized once: what comes before its text, between text and number, and after."""
        kind = "response.output_text.delta"
        fields = {
            "content_index": 0,
            "delta": Frame.MARK,
            "item_id": self._item,
            "logprobs": [],
            "output_index": 0,
            "sequence_number": _NUMBER,
            "type": kind,
        }
        head, _, rest = named_event(kind, fields).partition(encode(Frame.MARK))
        middle, _, tail = rest.rpartition(b":-1,")
        return head, middle + b":", b"," + tail


def _text(text: str) -> dict[str, object]:
    return {"annotations": [], "text": text, "type": "output_text", "logprobs": None}


def usage(used: Usage) -> dict[str, object]:
    """Cached tokens are always told here; vLLM needs no flag for it. The per-turn lists are for its built-in tools."""
    return {
        "input_tokens": used.prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": used.cached_tokens,
            "input_tokens_per_turn": [],
            "cached_tokens_per_turn": [],
        },
        "output_tokens": used.completion_tokens,
        "output_tokens_details": {
            "reasoning_tokens": 0,
            "tool_output_tokens": 0,
            "output_tokens_per_turn": [],
            "tool_output_tokens_per_turn": [],
        },
        "total_tokens": used.total_tokens,
    }
