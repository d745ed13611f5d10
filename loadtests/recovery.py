"""How long a fleet that came back cold takes until time to first token is what it would have been. Pure.

Requests are paired by session and turn with those of a run of the same play in which nothing happened, so that neither
the traffic's own ups and downs nor the sizes of prompts count. Back is the first second from which on the mean TTFT of
the requests sent within WINDOW_S is at most BACK times that of their pairs. A request that failed is not back.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from loadtests.records import Record

BACK = 1.1
WINDOW_S = 30.0


@dataclass(frozen=True, slots=True)
class Recovery:
    """`seconds` until back, None for never while traffic went on; the worst window's mean TTFT beside its pairs', in
    seconds (infinite where requests failed); and how many requests failed that would not have."""

    seconds: float | None
    worst: float
    usual: float
    failed: int


def recovery(struck: Sequence[Record], calm: Sequence[Record], at: float) -> Recovery:
    """From `at` on, when all replicas were back, or the first one of several went. Raises ValueError where nothing was
    sent after it."""
    usual = {(record.session, record.turn): record.ttft_s for record in calm if record.error is None}
    pairs = sorted(
        (record.sent_s, math.inf if record.error or record.ttft_s is None else record.ttft_s, known)
        for record in struck
        if (known := usual.get((record.session, record.turn))) is not None
    )
    last = pairs[-1][0] if pairs else at
    seconds: float | None = None
    worst = known = 0.0
    second = 0
    while at + second + WINDOW_S <= last:
        begin = at + second
        window = [(ttft, own) for sent_s, ttft, own in pairs if begin <= sent_s < begin + WINDOW_S]
        mean, own = (sum(each) / len(window) for each in zip(*window, strict=True)) if window else (0.0, 0.0)
        if seconds is None and mean <= BACK * own:
            seconds = float(second)
        if mean > worst and math.isfinite(mean):
            worst, known = mean, own
        second += 1
    if not second:
        raise ValueError(f"nothing was sent after {at:g} s")
    failed = sum(math.isinf(ttft) for _, ttft, _ in pairs)
    return Recovery(seconds, worst, known, failed)
