"""Histograms and their boundaries."""

import pytest

from router.admin import histogram
from router.admin.histogram import Histogram


def test_a_value_equal_to_a_bound_is_within_it() -> None:
    counted = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 9.0):
        counted.observe(value)
    assert counted.cumulative() == [2, 4, 5]
    assert counted.total == 14.0


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (histogram.REQUEST, histogram.OTEL_OPERATION),
        (histogram.REQUEST, histogram.OTEL_HTTP),
        (histogram.FIRST_CHUNK, histogram.OTEL_OPERATION),
        (histogram.FIRST_CHUNK, histogram.OTEL_FIRST_TOKEN),
        (histogram.PER_CHUNK, histogram.OTEL_OPERATION),
        (histogram.PER_TOKEN, histogram.OTEL_PER_TOKEN),
        (histogram.REPLICA_FIRST_CHUNK, histogram.OTEL_FIRST_TOKEN),
        (histogram.PROBE, histogram.OTEL_HTTP),
        (histogram.STAGE, histogram.OTEL_HTTP),
        (histogram.LAG, histogram.OTEL_HTTP),
    ],
)
def test_boundaries_contain_those_of_opentelemetry(ours: histogram.Bounds, theirs: histogram.Bounds) -> None:
    assert set(theirs) <= set(ours)
    assert list(ours) == sorted(set(ours))


def test_opentelemetrys_boundaries_are_as_published() -> None:
    """Written out a second way: each doubles, or is a series of round numbers."""
    assert tuple(round(0.01 * 2**i, 2) for i in range(14)) == histogram.OTEL_OPERATION
    assert (0.005, *(round(a * b, 3) for b in (0.01, 0.1, 1) for a in (1, 2.5, 5, 7.5)), 10) == histogram.OTEL_HTTP
    assert len(histogram.OTEL_FIRST_TOKEN) == 16
    assert len(histogram.OTEL_PER_TOKEN) == 13
