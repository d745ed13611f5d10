"""How long a fleet that came back cold takes until time to first token is what it would have been. Pure.

Requests are paired by session and turn with those of a run of the same play in which nothing happened, so that neither
the traffic's own ups and downs nor the sizes of prompts count. Back is the first second from which on the mean TTFT of
the requests sent within WINDOW_S is at most BACK times that of their pairs. A request that failed is not back.
"""

import math
from bisect import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from loadtests.records import Record

BACK = 1.1
WINDOW_S = 30.0


@dataclass(frozen=True, slots=True)
class Recovery:
    """`seconds` until back, None for never while traffic went on; the worst window's mean TTFT beside its pairs', in
    seconds; and how many requests failed that would not have."""

    seconds: float | None
    worst: float
    usual: float
    failed: int


def recovery(struck: Sequence[Record], calm: Sequence[Record], since: float, at: float) -> Recovery:
    """Of a fleet that was first struck at `since` and whole again `at`; windows with failures are no worst ones.

    Raises ValueError where nothing was sent after that.
    """
    usual = {(record.session, record.turn): record.ttft_s for record in calm if record.error is None}
    pairs = sorted(
        (record.sent_s, math.inf if record.error or record.ttft_s is None else record.ttft_s, known)
        for record in struck
        if (known := usual.get((record.session, record.turn))) is not None
    )
    seconds: float | None = None
    worst = (0.0, 0.0)
    for begin, mean, own in _windows(pairs, since):
        if seconds is None and begin >= at and mean <= BACK * own:
            seconds = begin - at
        if math.isfinite(mean):
            worst = max(worst, (mean, own))
    if not pairs or pairs[-1][0] < at + WINDOW_S:
        raise ValueError(f"nothing was sent after {at:g} s, or not for as long as it takes to tell")
    return Recovery(seconds, *worst, sum(math.isinf(ttft) for _, ttft, _ in pairs))


def _windows(pairs: Sequence[tuple[float, float, float]], since: float) -> Iterator[tuple[float, float, float]]:
    """Each second from `since` on: the mean TTFT of what was sent within WINDOW_S, and that of its pairs."""
    begin = since
    while pairs and begin + WINDOW_S <= pairs[-1][0]:
        window = pairs[bisect(pairs, (begin,)) : bisect(pairs, (begin + WINDOW_S,))]
        if window:
            _, ttfts, usual = zip(*window, strict=True)
            yield begin, sum(ttfts) / len(window), sum(usual) / len(window)
        begin += 1.0
