"""A histogram that costs one bisection and two additions, and the boundaries that are in use. Pure.

Boundaries are supersets of OpenTelemetry's for the quantity, so that both kinds of panels agree to the bucket:
semantic-conventions-genai, gen-ai-metrics (operation duration, first chunk and per chunk; time to first token; time
per output token) and semantic-conventions, http-metrics (server and client request duration).
"""

from bisect import bisect_left
from itertools import accumulate

OTEL_OPERATION = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
OTEL_FIRST_TOKEN = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
OTEL_PER_TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
OTEL_HTTP = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)

Bounds = tuple[float, ...]


def union(*bounds: Bounds) -> Bounds:
    """All of them, ascending."""
    return tuple(sorted({bound for some in bounds for bound in some}))


REQUEST = union(OTEL_OPERATION, OTEL_HTTP, (163.84, 327.68, 655.36))
"""Long answers stream for minutes: OpenTelemetry's doubling goes on."""

FIRST_CHUNK = union(OTEL_OPERATION, OTEL_FIRST_TOKEN)
PER_CHUNK = union(OTEL_OPERATION, OTEL_PER_TOKEN, (0.001, 0.0025, 0.005))
PER_TOKEN = union(OTEL_PER_TOKEN, (0.001, 0.0025, 0.005))
"""A small model decodes a token in 1 to 10 ms, where OpenTelemetry has one bucket."""

REPLICA_FIRST_CHUNK = union(OTEL_FIRST_TOKEN, (20.0, 40.0, 80.0))
"""One for each replica, so no more of them than a queue on one replica needs."""

PROBE = OTEL_HTTP
STAGE = union(OTEL_HTTP, (1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 0.001, 0.0025), (30.0, 60.0, 120.0, 300.0))
"""From a pick (tens of microseconds) to a body (minutes)."""

REDIS = union(OTEL_HTTP[:9], (1e-4, 2.5e-4, 5e-4, 0.001, 0.0025))
"""Beside it a command takes some 0.2 ms; one that takes a second is given up (gossip/redis.py)."""

LAG = union(OTEL_HTTP, (0.001, 0.0025))
ERROR_RATIO = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0)


class Histogram:
    """Counts by bucket (a value equal to a bound is below it, as Prometheus has it) and their sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def cumulative(self) -> list[int]:
        """For each bound, and at last for infinity, how many values are at most that."""
        return list(accumulate(self.counts))
