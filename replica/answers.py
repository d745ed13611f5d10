"""The vocabulary of all answers: JSON bytes, server-sent events, usage, and the Shape that every endpoint fills in.

Pure: the caller says what time it is and which id an answer has. A shape is made once per request.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

_JSON: Final = json.JSONEncoder(separators=(",", ":"))


def encode(value: object) -> bytes:
    return _JSON.encode(value).encode()


def event(value: object) -> bytes:
    return b"data: " + encode(value) + b"\n\n"


def named_event(name: str, value: object) -> bytes:
    return b"event: " + name.encode() + b"\n" + event(value)


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one request. `details` is whether cached tokens are told where vLLM tells them only when started with
    `--enable-prompt-tokens-details`."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    details: bool = True

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class Choice:
    """A finished choice; `reason` is the finish_reason."""

    index: int
    text: str
    reason: str


class Shape(Protocol):
    """How one endpoint writes its answers. A stream is prologue, then opening and deltas of each choice, epilogue."""

    def prologue(self) -> bytes:
        """The events that go out before any token is computed; may be empty."""

    def opening(self, index: int) -> bytes:
        """The events before the first token of a choice; may be empty."""

    def delta(self, index: int, text: str, reason: str | None) -> bytes:
        """The event of one token; `reason` with the last of its choice."""

    def epilogue(self, choices: Sequence[Choice], used: Usage) -> bytes:
        """The events after all choices, up to the mark that ends the stream."""

    def whole(self, choices: Sequence[Choice], used: Usage) -> bytes:
        """The body of an answer that does not stream."""


class Frame:
    """An event serialized once and cut where its text goes: `fill` costs a string operation, not a serialization."""

    MARK: Final = "\0text\0"

    __slots__ = ("_head", "_tail")

    def __init__(self, marked: bytes) -> None:
        """`marked` is the event with `Frame.MARK` for its text."""
        self._head, _, self._tail = marked.partition(encode(self.MARK))

    def fill(self, text: str) -> bytes:
        return self._head + encode(text) + self._tail
