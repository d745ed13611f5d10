"""What a recording of live traffic keeps of one request: lengths and a chain, and nothing of what was said. Pure.

It is made only while somebody records. The chain is the one that routing hashed anyway.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from router.core.record import Record
from router.core.types import Ask


class LeftOut(StrEnum):
    """Why a request is not in a recording."""

    EARLIER = "earlier"  # it had arrived before the recording began
    NO_PROMPT = "no_prompt"  # no prompt was read: another endpoint, or a body that is none
    NOT_ANSWERED = "not_answered"  # no good answer began: refused, failed, or its client left before


class Trace(NamedTuple):
    """One request that was answered, as far as it was.

    `arrived` in monotonic seconds; `chain`, `tail`, `size` and `tokens` as in its Ask. `prompt_tokens` and
    `cached_tokens` are what the engine counted, None where it told nothing. `output_tokens` is what it counted, or
    where it told nothing the reads in which a stream came, of which there is one a token while nobody is slow; at
    least 1. A stream that broke off counts as far as it came.
    """

    arrived: float
    model: str | None
    chain: Sequence[int]
    tail: int
    size: int
    tokens: int | None
    prompt_tokens: int | None
    cached_tokens: int | None
    output_tokens: int


def trace(ask: Ask, record: Record, now: float) -> Trace | LeftOut:
    """What to keep of a request that has ended `now`, or why nothing."""
    if not ask.size:
        return LeftOut.NO_PROMPT
    if not 200 <= record.status < 300 or not record.chunks or not record.attempts:
        return LeftOut.NOT_ANSWERED
    settled = record.attempts[-1].settled
    output = settled.completion_tokens
    # Where nothing was told, `settled` has the router's own estimate of the prompt.
    told = output is not None or settled.reported is not None
    if output is None:
        output = record.chunks if record.streams else 1
    return Trace(
        now - record.seconds,
        ask.model,
        ask.chain,
        ask.tail,
        ask.size,
        ask.tokens,
        settled.prompt_tokens if told else None,
        settled.reported,
        max(1, output),
    )
