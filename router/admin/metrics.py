"""/metrics. The only file that knows prometheus.

A custom collector: counters are counted per record, gauges are read from the fleet at the moment of the scrape, so
nothing is kept twice and a replica that is gone has no series.
"""

import platform
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from importlib.metadata import version

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from router.core.fleet import Fleet
from router.core.record import Record
from router.core.types import Reason, ReplicaId, State

_LEDGER = {
    "tokens": ("homing_prompt_tokens", "Prompt tokens."),
    "reachable": ("homing_prompt_tokens_reachable", "Of these, believed cached on the best eligible replica."),
    "predicted": ("homing_prompt_tokens_predicted_cached", "Of these, believed cached on the replica chosen."),
    "reported": ("homing_prompt_tokens_reported_cached", "Of these, cached as the engine told."),
}
"""The locality ledger: field of a tally -> its counter's name and help. Never written to."""


class _Tally:
    """Sums over the requests that are alike in every label."""

    __slots__ = ("predicted", "reachable", "reported", "requests", "tokens")

    def __init__(self) -> None:
        self.requests = self.tokens = self.reachable = self.predicted = self.reported = 0


def _counter(name: str, text: str, labels: Sequence[str], counts: Mapping[tuple[str, ...], int]) -> Metric:
    metric = CounterMetricFamily(name, text, labels=labels)
    for values, count in counts.items():
        metric.add_metric(values, count)
    return metric


class Metrics(Collector):
    """Counts records and renders them beside the fleet's state.

    `missing` tells for each replica the engine metrics that it lacks, `queued` how many requests wait for each model.
    """

    def __init__(
        self,
        fleet: Fleet,
        policy: str,
        missing: Mapping[ReplicaId, Collection[str]],
        queued: Callable[[], Mapping[str | None, int]],
    ) -> None:
        self._fleet, self._policy, self._missing, self._queued = fleet, policy, missing, queued
        self._tallies: dict[tuple[str | None, str, int, bool, Reason | None], _Tally] = {}
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def record(self, record: Record) -> None:
        """Count one finished request."""
        key = (record.model, record.endpoint, record.status, record.streams, record.reason)
        tally = self._tallies.get(key)
        if tally is None:
            tally = self._tallies[key] = _Tally()
        tally.requests += 1
        for settled, _ in record.attempts[-1:]:
            tally.tokens += settled.prompt_tokens
            tally.reachable += settled.reachable
            tally.predicted += settled.predicted
            tally.reported += settled.reported or 0

    def render(self, accept: str) -> tuple[bytes, str]:
        """The exposition that `accept` prefers, and its content type."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type

    def collect(self) -> Iterator[Metric]:
        """prometheus_client's Collector."""
        info = InfoMetricFamily("homing_build", "The router's version.")
        info.add_metric([], {"version": version("homing"), "python": platform.python_version()})
        yield info
        yield from self._counters()
        yield from self._gauges()

    def _counters(self) -> Iterator[Metric]:
        requests: Counter[tuple[str, ...]] = Counter()
        decisions: Counter[tuple[str, ...]] = Counter()
        tokens: dict[str, Counter[tuple[str, ...]]] = {field: Counter() for field in _LEDGER}
        for (name, endpoint, status, streams, reason), tally in self._tallies.items():
            model = name or ""
            requests[model, endpoint, str(status), "true" if streams else "false"] += tally.requests
            if reason is not None:
                decisions[model, self._policy, reason.value] += tally.requests
            for field, counts in tokens.items():
                counts[(model,)] += getattr(tally, field)
        yield _counter("homing_requests", "Requests answered.", ("model", "endpoint", "code", "stream"), requests)
        yield _counter("homing_decisions", "Requests routed, by reason.", ("model", "policy", "reason"), decisions)
        for field, counts in tokens.items():
            yield _counter(*_LEDGER[field], ("model",), counts)

    def _gauges(self) -> Iterator[Metric]:
        queue = GaugeMetricFamily("homing_queue_depth", "Requests that wait for a limit to lift.", labels=["model"])
        for model, depth in self._queued().items():
            queue.add_metric([model or ""], depth)
        yield queue
        state = GaugeMetricFamily("homing_replica_state", "1 for the current state.", labels=["replica", "state"])
        in_flight = GaugeMetricFamily("homing_replica_in_flight", "Open leases.", labels=["replica"])
        for replica in self._fleet.replicas:
            for one in State:
                state.add_metric([replica.id, one.value], float(replica.state is one))
            in_flight.add_metric([replica.id], replica.requests)
        yield state
        yield in_flight
        missing = GaugeMetricFamily(
            "homing_engine_metric_missing", "Replicas whose /metrics lacks this one.", labels=["metric"]
        )
        for metric, replicas in Counter(name for names in self._missing.values() for name in names).items():
            missing.add_metric([metric], replicas)
        yield missing
