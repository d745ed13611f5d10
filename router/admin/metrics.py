"""/metrics. The only file that knows prometheus.

A custom collector: counters are counted per record, gauges are read from the fleet at the moment of the scrape, so
nothing is kept twice and a replica that is gone has no series.
"""

import platform
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from importlib.metadata import version

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from router.core.fleet import Fleet
from router.core.record import Record
from router.core.types import ReplicaId, State

_TOKENS = ("", "_reachable", "_predicted_cached", "_reported_cached")
"""The locality ledger's four counters: homing_prompt_tokens{}_total."""


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
        self._requests: Counter[tuple[str, str, str, str]] = Counter()
        self._decisions: Counter[tuple[str, str, str]] = Counter()
        self._tokens: dict[str, Counter[str]] = {name: Counter() for name in _TOKENS}
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def record(self, record: Record) -> None:
        """Count one finished request."""
        model = record.model or ""
        self._requests[model, record.endpoint, str(record.status), "true" if record.streams else "false"] += 1
        if record.reason is not None:
            self._decisions[model, self._policy, record.reason.value] += 1
        settled = record.settled
        if settled is not None:
            told = (settled.prompt_tokens, settled.reachable, settled.predicted, settled.reported or 0)
            for name, tokens in zip(_TOKENS, told, strict=True):
                self._tokens[name][model] += tokens

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
        requests = CounterMetricFamily(
            "homing_requests", "Requests answered.", labels=["model", "endpoint", "code", "stream"]
        )
        for labels, count in self._requests.items():
            requests.add_metric(labels, count)
        yield requests
        decisions = CounterMetricFamily(
            "homing_decisions", "Requests routed, by reason.", labels=["model", "policy", "reason"]
        )
        for why, count in self._decisions.items():
            decisions.add_metric(why, count)
        yield decisions
        for name, counts in self._tokens.items():
            tokens = CounterMetricFamily(
                f"homing_prompt_tokens{name}", "Prompt tokens: the locality ledger.", labels=["model"]
            )
            for model, count in counts.items():
                tokens.add_metric([model], count)
            yield tokens

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
