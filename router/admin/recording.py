"""Live traffic as lines of a trace in Mooncake's format: who records, what is left out, and the bounds.

A line is one request: `timestamp` (ms since the recording began), `input_length` and `output_length` (tokens),
`hash_ids` (one a block of the prompt, the last one partial), `block_size` (tokens of a block), `model`, and what the
engine counted where it told, `prompt_tokens` and `cached_tokens`. Ids are numbers in the order of first appearance:
equal ids mean equal text with equal text before it, and nothing else can be told from them. The router's own hashes
never leave it.

A block here is `routing.prefix_block` bytes, as the router compares prompts. How many tokens that is, is settled for a
model when it first appears, by what the router has learned of its tokens per byte; lengths follow from bytes at that
rate, so that they agree with the blocks. Lines come in the order in which requests ended.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from router.core.trace import LeftOut, Trace

MAX_WAITING = 4 << 20
"""Bytes of lines that may wait for who records: 2,000 requests of 32 KB. What comes then is dropped and counted."""


class Numbers:
    """Hashes -> small numbers, at most `bound` of them, give or take one chain.

    They are kept in two generations. Whatever is used moves to the younger one; when that is half of the bound, the
    older one is forgotten, and what was in it is new when it comes again. Chains move whole, so that a block that is
    known never follows one that is not.
    """

    def __init__(self, bound: int) -> None:
        self._half = bound // 2
        self._young: dict[int, int] = {}
        self._old: dict[int, int] = {}
        self._next = 0
        self.forgotten = 0

    def of(self, chain: Sequence[int]) -> list[int]:
        """The number of each."""
        if len(self._young) + len(chain) > self._half:
            self.forgotten += len(self._old)
            self._young, self._old = {}, self._young
        return [self._number(block) for block in chain]

    def fresh(self, count: int) -> range:
        """Numbers that stand for nothing that will come again."""
        numbers = range(self._next, self._next + count)
        self._next += count
        return numbers

    def _number(self, block: int) -> int:
        number = self._young.get(block)
        if number is None:
            number = self._old.pop(block, None)
            if number is None:
                number = self._next
                self._next += 1
            self._young[block] = number
        return number


class Lines:
    """Requests -> lines. `block` in bytes; `rate` tells what is learned of a model's tokens per byte; `began` in
    monotonic seconds."""

    def __init__(self, block: int, bound: int, rate: Callable[[str | None], float], began: float) -> None:
        self._block, self._rate, self._began = block, rate, began
        self._tokens: dict[tuple[str | None, bool], int] = {}
        self._encoder = msgspec.json.Encoder()
        self.numbers = Numbers(bound)

    def line(self, trace: Trace) -> bytes:
        """One line, its end included."""
        tokens = self._tokens_of(trace)
        blocks = -(-trace.size // self._block)
        last = trace.size - (blocks - 1) * self._block
        told: dict[str, Any] = {
            "timestamp": round((trace.arrived - self._began) * 1_000),
            "input_length": (blocks - 1) * tokens + -(-last * tokens // self._block),
            "output_length": trace.output_tokens,
            "hash_ids": self._ids(trace, blocks),
            "block_size": tokens,
        }
        more = {"model": trace.model, "prompt_tokens": trace.prompt_tokens, "cached_tokens": trace.cached_tokens}
        told |= {name: value for name, value in more.items() if value is not None}
        return self._encoder.encode(told) + b"\n"

    def _ids(self, trace: Trace, blocks: int) -> list[int]:
        """Of the full blocks, of the rest, and in between of what a body over 1 MiB has beyond what is read of it."""
        hashes = [*trace.chain, trace.tail] if blocks > len(trace.chain) else trace.chain
        ids = self.numbers.of(hashes)
        unread = blocks - len(hashes)
        return [*ids[:-1], *self.numbers.fresh(unread), ids[-1]] if unread else ids

    def _tokens_of(self, trace: Trace) -> int:
        """Tokens of a block, the same for all that may share one: at least 1."""
        key = trace.model, trace.tokens is not None
        tokens = self._tokens.get(key)
        if tokens is None:
            rate = self._rate(trace.model) if trace.tokens is None else trace.tokens / trace.size
            tokens = self._tokens[key] = max(1, round(self._block * rate))
        return tokens


class Recording:
    """One recording, from when somebody asks for it until he leaves. `take` never waits; who records reads."""

    def __init__(self, lines: Lines, began: float) -> None:
        self._lines, self._began = lines, began
        self._waiting: list[bytes] = []
        self._bytes = 0
        self._some = asyncio.Event()
        self.ended = False
        self.recorded = self.dropped = 0
        self.left_out: Counter[LeftOut] = Counter()

    def take(self, traces: Iterable[Trace], left_out: Mapping[LeftOut, int]) -> None:
        """What a worker tells."""
        self.left_out.update(left_out)
        for trace in traces:
            if trace.arrived < self._began:
                self.left_out[LeftOut.EARLIER] += 1
            elif self._bytes > MAX_WAITING:
                self.dropped += 1
            else:
                line = self._lines.line(trace)
                self._waiting.append(line)
                self._bytes += len(line)
                self.recorded += 1
        self._some.set()

    def end(self) -> None:
        """Nothing more comes. What waits may still be read."""
        self.ended = True
        self._some.set()

    async def read(self, seconds: float) -> bytes | None:
        """The next lines; none when there are none within so many seconds, None when it has ended."""
        if not self._waiting and not self.ended:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._some.wait()
        self._some.clear()
        waiting, self._waiting, self._bytes = self._waiting, [], 0
        return b"".join(waiting) if waiting or not self.ended else None

    def told(self) -> dict[str, Any]:
        """How it stands, as JSON has it."""
        return {
            "running": not self.ended,
            "recorded": self.recorded,
            "dropped": self.dropped,
            "left_out": {reason.value: self.left_out[reason] for reason in LeftOut},
            "forgotten_blocks": self._lines.numbers.forgotten,
        }
