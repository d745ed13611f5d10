"""One streamed chat completion, without I/O: the body that asks for it, and what its bytes say as they arrive.

Shared by the load client and the Locust users, which live in processes that cannot share more. It reads no clock: the
caller says when bytes came. The first token is the first event that carries text; the chunk that only names the role
does not count (vLLM sends it together with the first token, other engines at once).
"""

import msgspec

from loadtests.workloads import Message


def request_body(model: str, messages: tuple[Message, ...], max_tokens: int) -> bytes:
    """A streaming chat completion of exactly `max_tokens` tokens (`ignore_eos` is vLLM's)."""
    return msgspec.json.encode(
        {
            "model": model,
            "messages": [{"role": message.role, "content": message.text} for message in messages],
            "max_tokens": max_tokens,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    )


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    prompt_tokens_details: _Details | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: object = None


class EventData:
    """Cuts a server-sent event stream into the payloads of its `data:` lines, however the bytes were split."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [line[5:].strip() for line in lines if line.startswith(b"data:")]


class Answer:
    """One response as it arrives: takes bytes and their time and keeps what a record needs."""

    def __init__(self) -> None:
        self._data = EventData()
        self._decoder = msgspec.json.Decoder(_Event)
        self._texts: list[str] = []
        self._last_token_s: float | None = None
        self._done = False
        self._failed = False
        self._usage: _Usage | None = None
        self.first_token_s: float | None = None
        self.gaps_s: list[float] = []

    @property
    def text(self) -> str:
        return "".join(self._texts)

    @property
    def error(self) -> str | None:
        """Why a response that ended without an exception is no whole answer, if so."""
        if self._failed:
            return "error_event"
        if not self._done:
            return "cut_short"
        if self.first_token_s is None:
            return "no_content"
        return "no_usage" if self._usage is None else None

    @property
    def prompt_tokens(self) -> int:
        return self._usage.prompt_tokens if self._usage else 0

    @property
    def completion_tokens(self) -> int:
        return self._usage.completion_tokens if self._usage else 0

    @property
    def cached_tokens(self) -> int:
        """0 also for an engine that reports none (vLLM: `--enable-prompt-tokens-details`)."""
        details = self._usage.prompt_tokens_details if self._usage else None
        return (details.cached_tokens or 0) if details else 0

    def feed(self, data: bytes, now_s: float) -> None:
        """Raises msgspec.DecodeError for an event that is not JSON of the expected form."""
        for payload in self._data.feed(data):
            if payload == b"[DONE]":
                self._done = True
            else:
                self._take(self._decoder.decode(payload), now_s)

    def _take(self, event: _Event, now_s: float) -> None:
        self._failed = self._failed or event.error is not None
        self._usage = event.usage or self._usage
        text = "".join(choice.delta.content or "" for choice in event.choices)
        if not text:
            return
        self._texts.append(text)
        if self._last_token_s is None:
            self.first_token_s = now_s
        else:
            self.gaps_s.append(now_s - self._last_token_s)
        self._last_token_s = now_s
