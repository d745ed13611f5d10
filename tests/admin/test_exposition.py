"""The text of /metrics, by prometheus_client's own writer and parsers as judges."""

import math
from collections.abc import Iterator

import pytest
from prometheus_client import exposition as theirs
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as strictly
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from router.admin.exposition import EOF, Head, head, lines

ODD = 'back\\slash, "quotes", new\nline, \u00e9\u4e2d\U0001f600, {braces}, '


class One(Collector):
    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterator[Metric]:
        yield self._metric


def families() -> list[Metric]:
    counter = CounterMetricFamily("a_requests", f"Help with {ODD}", labels=("model", "code"))
    counter.add_metric(("m", "200"), 3)
    counter.add_metric((ODD, "503"), 1e20)
    gauge = GaugeMetricFamily("a_gauge", "Help.")
    gauge.add_metric((), 0.1)
    histogram = HistogramMetricFamily("a_seconds", "Help.", labels=("replica",))
    histogram.add_metric(("r1",), [("0.5", 1), ("+Inf", 3)], 7.25)
    info = InfoMetricFamily("a_build", "Help.")
    info.add_metric((), {"version": "1"})
    return [counter, gauge, histogram, info, GaugeMetricFamily("a_empty", "Help.", labels=("x",))]


def text(metric: Metric, as_openmetrics: bool) -> str:
    return head(Head(metric.name, metric.type, metric.documentation), as_openmetrics) + lines(metric.samples)


@pytest.mark.parametrize("metric", families(), ids=lambda metric: metric.name)
def test_a_family_reads_as_prometheus_clients_writer_has_it(metric: Metric) -> None:
    ours = list(strictly(text(metric, True) + EOF))  # type: ignore[no-untyped-call]
    assert ours == list(strictly(openmetrics.generate_latest(One(metric)).decode()))  # type: ignore[no-untyped-call]
    older = list(text_string_to_metric_families(text(metric, False)))
    assert older == list(text_string_to_metric_families(theirs.generate_latest(One(metric)).decode()))


@pytest.mark.parametrize("value", [0, 1, 0.1, 1e-9, 123456789.25, 2**53, 1e300, -1.5, math.inf, -math.inf])
def test_a_number_is_read_as_it_was(value: float) -> None:
    gauge = GaugeMetricFamily("a_gauge", "Help.")
    gauge.add_metric((), value)
    [family] = strictly(text(gauge, True) + EOF)  # type: ignore[no-untyped-call]
    assert family.samples[0].value == value


def test_what_is_no_number_is_read_as_none() -> None:
    gauge = GaugeMetricFamily("a_gauge", "Help.")
    gauge.add_metric((), math.nan)
    [family] = strictly(text(gauge, True) + EOF)  # type: ignore[no-untyped-call]
    assert math.isnan(family.samples[0].value)
