"""Counts over the last ten seconds: what the retry budget and outlier ejection are judged by. Pure, of fixed size.

Events are counted by the second: however many there are, a window is ten numbers, and adding to it costs the same. The
present second is in it, so it reaches back nine to ten seconds.
"""

SECONDS = 10
"""Long enough that five events a second are a sample, short enough that what was mended is soon forgotten.
Envoy and Finagle judge over ten seconds as well (outlier_detection.interval, RetryBudget's ttl)."""


class Window:
    """How many events there were of late. Times in monotonic seconds, and never earlier than a time before."""

    __slots__ = ("_counts", "_seconds")

    def __init__(self) -> None:
        self._counts = [0] * SECONDS
        self._seconds = [-SECONDS] * SECONDS  # Which second each of the counts is of.

    def add(self, now: float) -> None:
        """Count one."""
        second = int(now)
        at = second % SECONDS
        if self._seconds[at] != second:
            self._seconds[at], self._counts[at] = second, 0
        self._counts[at] += 1

    def total(self, now: float) -> int:
        """All that are not too old."""
        oldest = int(now) - SECONDS
        return sum([count for count, second in zip(self._counts, self._seconds, strict=True) if second > oldest])
