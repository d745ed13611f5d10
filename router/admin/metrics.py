"""/metrics: the catalogue, and what fills it. The only file that knows prometheus.

A custom collector: counts come from the tally, gauges from the fleet at the moment of the scrape, so nothing is kept
twice and a replica that is gone has no series. Histograms are labelled by model or by replica, never by both. Names,
types and labels are the catalogue of the project's UX page; a golden list in the tests holds them.

The supervisor renders, so a scrape delays no request; but 6,000 series take it some 30 ms, in which it would hear no
worker and answer no probe. So a scrape is rendered in slices of some 2 ms, and other things go on between two of them.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from time import monotonic, time
from typing import Any, NamedTuple

from prometheus_client import ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from router.admin import counts, exposition, shared
from router.admin.exposition import Head
from router.admin.gauges import INDEX_BLOCK_BYTES, Gauges, missing
from router.admin.histogram import Histogram
from router.admin.labels import Labels
from router.admin.reports import Reports
from router.admin.shared import Operations, Shared
from router.admin.tally import Tally
from router.core.fleet import Fleet
from router.core.shadow import Counts
from router.core.types import ReplicaId

Row = tuple[Sequence[str], "float | Histogram | Mapping[str, str]"]
Make = type[CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily | InfoMetricFamily]

INFO, COUNTER, GAUGE, HISTOGRAM = InfoMetricFamily, CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily


SLICE = 500
"""Samples rendered at once, at some 4 us each."""

DROPPABLE = (
    "Heard",
    "Load",
    "Placed",
    "Learned",
    "Corrected",
    "Full",
    "Bye",
    "Records",
    "Shadowed",
    "Refused",
    "Members",
)
"""Messages that are sent for what they are worth (gossip/messages.py)."""

OF_ONE = frozenset(("process_start_time_seconds", "process_max_fds"))


class Family(NamedTuple):
    """One metric: how it is made (a counter's samples end in _total), its help, its labels."""

    make: Make
    text: str
    labels: Sequence[str] = ()


_WAY = ("model", "stream")
_OF = ("replica", "model")

CATALOGUE: Mapping[str, Family] = {
    "homing_build": Family(INFO, "The router's version, commit and Python."),
    "homing_config": Family(INFO, "Hash of the effective configuration: equal on routers that are set alike."),
    "homing_config_last_reload_successful": Family(GAUGE, "Whether the configuration read last could be used."),
    "homing_config_last_reload_success_timestamp_seconds": Family(GAUGE, "When the one in use was read."),
    "homing_tls_certificate_expiry_timestamp_seconds": Family(
        GAUGE, "Until when the certificate is valid that clients or replicas are shown.", ("shown_to",)
    ),
    "homing_workers": Family(GAUGE, "Processes that serve clients."),
    "homing_worker_restarts": Family(COUNTER, "Workers that had ended by themselves and were replaced."),
    "homing_gossip_dropped": Family(
        COUNTER, "Messages between the processes that one of them did not take in time.", ("message",)
    ),
    "homing_requests": Family(
        COUNTER,
        "Requests answered; code client_closed: the client left first.",
        ("model", "endpoint", "code", "stream"),
    ),
    "homing_request_duration_seconds": Family(
        HISTOGRAM, "From arrival to the answer's last byte, of requests that went to a replica.", _WAY
    ),
    "homing_time_to_first_chunk_seconds": Family(
        HISTOGRAM, "From arrival to the answer's first body byte, of answers that were generated.", _WAY
    ),
    "homing_time_per_output_chunk_seconds": Family(
        HISTOGRAM, "(last - first) / (chunks - 1), one observation for each whole streamed answer.", _WAY
    ),
    "homing_time_per_output_token_seconds": Family(
        HISTOGRAM, "(end - first chunk) / (completion tokens - 1), of streamed answers whose usage tells them.", _WAY
    ),
    "homing_stage_duration_seconds": Family(HISTOGRAM, "Time in each stage of a request; they add up.", ("stage",)),
    "homing_decisions": Family(COUNTER, "Requests routed, by reason.", ("model", "policy", "reason")),
    "homing_limit_cuts": Family(COUNTER, "Ready replicas cut from a choice by a limit.", ("limit",)),
    "homing_requests_in_flight": Family(GAUGE, "Requests on a replica, by the replica's model.", ("model",)),
    "homing_queue_depth": Family(GAUGE, "Requests that wait for a limit to lift.", ("model",)),
    "homing_prompt_tokens": Family(COUNTER, "Prompt tokens of answers that were generated.", ("model",)),
    "homing_prompt_tokens_reachable": Family(
        COUNTER, "Of these, believed cached on the best eligible replica.", ("model",)
    ),
    "homing_prompt_tokens_predicted_cached": Family(
        COUNTER, "Of these, believed cached on the replica chosen.", ("model",)
    ),
    "homing_prompt_tokens_reported_cached": Family(COUNTER, "Of these, cached as the engine told.", ("model",)),
    "homing_prompt_tokens_unreported": Family(
        COUNTER, "Of the prompt tokens, those of answers that did not tell what was cached.", ("model",)
    ),
    "homing_prompt_tokens_predicted_unreported": Family(
        COUNTER, "Of the predicted, those of answers that did not tell what was cached.", ("model",)
    ),
    "homing_short_prompts": Family(COUNTER, "Prompts shorter than a block: nothing to compare.", ("model",)),
    "homing_prefix_prediction_error_ratio": Family(
        HISTOGRAM, "|predicted - reported| / prompt tokens, of answers that told.", ("model",)
    ),
    "homing_replica_state": Family(GAUGE, "1 for the current state.", ("replica", "model", "state")),
    "homing_replica_state_since_timestamp_seconds": Family(GAUGE, "When the current state began.", _OF),
    "homing_replica_transitions": Family(COUNTER, "Changes of state.", ("from", "to", "reason")),
    "homing_replica_in_flight": Family(GAUGE, "Open leases, of all workers.", _OF),
    "homing_replica_waiting": Family(GAUGE, "Requests in the engine's own queue.", _OF),
    "homing_replica_kv_cache_usage_ratio": Family(GAUGE, "Used share of the engine's KV cache.", _OF),
    "homing_replica_load_ratio": Family(GAUGE, "Open leases over the mean of the model's ready replicas.", _OF),
    "homing_replica_view_age_seconds": Family(GAUGE, "Time since the engine's gauges were read.", _OF),
    "homing_replica_time_to_first_chunk_seconds": Family(
        HISTOGRAM, "From dispatch to the first token or, unless it streams, the first byte.", ("replica",)
    ),
    "homing_replica_requests": Family(COUNTER, "Sends to the replica, by how they ended.", ("replica", "outcome")),
    "homing_replica_prompt_tokens": Family(COUNTER, "Prompt tokens of answers that it generated.", ("replica",)),
    "homing_replica_prompt_tokens_reported_cached": Family(COUNTER, "Of these, cached as it told.", ("replica",)),
    "homing_probe_duration_seconds": Family(HISTOGRAM, "Health probes, failed ones too.", ("replica",)),
    "homing_probe_failures": Family(COUNTER, "Health probes that failed.", ("replica", "reason")),
    "homing_upstream_errors": Family(COUNTER, "Sends that ended in an error.", ("replica", "reason")),
    "homing_retries": Family(COUNTER, "Sends again: why, and how they ended.", ("reason", "outcome")),
    "homing_retry_budget_ratio": Family(
        GAUGE, "Share of the retry budget that is left, of the worker that has least (retry.budget)."
    ),
    "homing_rejected": Family(COUNTER, "Requests that the router itself refused.", ("reason",)),
    "homing_client_disconnects": Family(COUNTER, "Clients that left before their answer was whole.", ("phase",)),
    "homing_tls_handshake_failures": Family(
        COUNTER, "TLS handshakes of clients that failed; none of them is a request.", ("reason",)
    ),
    "homing_index_blocks": Family(
        GAUGE, "Blocks believed resident, over all replicas; what a snapshot told, once a prompt has confirmed it."
    ),
    "homing_index_bytes": Family(GAUGE, f"Memory of these, in all workers, at {INDEX_BLOCK_BYTES} bytes each."),
    "homing_index_evictions": Family(
        COUNTER, "Blocks believed gone: evicted by capacity, or disproved by an engine's count.", ("reason",)
    ),
    "homing_event_loop_lag_seconds": Family(HISTOGRAM, "How late a timer of the worker's event loop fires."),
    "homing_snapshot_hashes": Family(
        GAUGE, "Hashes that tell who joins what is believed resident: of each chain those at depths 1, 2, 4, ..."
    ),
    "homing_snapshot_left_out": Family(
        GAUGE, "Chains that found no room in the snapshot that a worker or router which joins is given."
    ),
    "homing_shadow_asks": Family(
        COUNTER,
        "Sampled asks by what the shadow's policy chose: the same replica, another one, none (its limits cut all).",
        ("policy", "choice"),
    ),
    "homing_shadow_prompt_tokens": Family(COUNTER, "Prompt tokens of those that the shadow placed.", ("policy",)),
    "homing_shadow_prompt_tokens_predicted_cached": Family(
        COUNTER, "Of these, believed cached where they went; both sides by the same model.", ("policy", "side")
    ),
    "homing_shadow_requests_ahead": Family(
        COUNTER, "Requests in flight where they went, summed over these asks.", ("policy", "side")
    ),
    "homing_shadow_left_out": Family(COUNTER, "Sampled asks that there was no time for.", ("policy",)),
    "homing_shadow_errors": Family(COUNTER, "Errors that ended what the shadow knew.", ("policy",)),
    "homing_redis_up": Family(GAUGE, "Whether news goes to the other routers and comes from them."),
    "homing_redis_operation_duration_seconds": Family(
        HISTOGRAM, "Operations on Redis, none of which a request waits for.", ("op", "outcome")
    ),
    "homing_redis_bytes": Family(COUNTER, "News to and from the other routers.", ("direction",)),
    "homing_redis_dropped": Family(
        COUNTER,
        "News that was not taken (foreign, version, malformed, settings, peers), could not be (secret) or was not told "
        "(queue).",
        ("reason",),
    ),
    "homing_peers": Family(GAUGE, "Other routers that are there."),
    "homing_peer_view_age_seconds": Family(
        GAUGE, "Since the last news of the router heard longest ago; without Redis, since it was last there."
    ),
    "homing_label_overflow": Family(COUNTER, "Counts that went to `other`, beyond limits.label_values.", ("label",)),
    "homing_engine_metric_missing": Family(GAUGE, "Replicas whose /metrics lacks this one.", ("metric",)),
    "homing_request_log_dropped": Family(COUNTER, "Lines of the request log that found its buffer full."),
}
"""Name -> metric, in the order of exposition."""


@dataclass(slots=True)
class Setup:
    """How the router is set, and since when: what a reload changes. Times in Unix seconds."""

    policy: str
    config_hash: str
    reloaded: bool
    reloaded_at: float
    certificates: Mapping[str, float]
    """Who is shown one of ours, clients or replicas, and until when it is valid."""


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the rest comes from: what each replica's /metrics lacks, what workers report, messages that workers did not
    take, how many workers serve, process ids (the supervisor's first), how often a worker was replaced, the build,
    operations on Redis, the link to the other routers where there is one, hashes in the snapshot and chains that it has
    no room for, what the shadow has counted where there is one."""

    setup: Setup
    missing: Mapping[ReplicaId, Collection[str]]
    reports: Reports
    dropped: Callable[[], Mapping[str, int]]
    workers: Callable[[], int]
    pids: Callable[[], Sequence[int]]
    restarts: Callable[[], int]
    build: Mapping[str, str]
    operations: Operations
    shared: Callable[[], Shared | None]
    hashes: Callable[[], int]
    left_out: Callable[[], int]
    shadow: Callable[[], Counts | None]


class Metrics(Collector):
    """Renders a tally beside the fleet's state."""

    def __init__(self, fleet: Fleet, tally: Tally, sources: Sources) -> None:
        self._fleet, self._tally, self._sources = fleet, tally, sources
        self._unix = time() - monotonic()  # Once, so that a state's begin does not move with the wall clock.

    def render(self, accept: str) -> tuple[Iterator[bytes], str]:
        """The exposition that `accept` prefers, in slices, and its content type."""
        _, content_type = choose_encoder(accept)
        return self._slices("openmetrics" in content_type), content_type

    def _slices(self, openmetrics: bool) -> Iterator[bytes]:
        for metric in chain(self.collect(), processes(self._sources.pids())):
            text = exposition.head(Head(metric.name, metric.type, metric.documentation), openmetrics)
            samples = metric.samples
            for start in range(0, max(1, len(samples)), SLICE):
                yield (text + exposition.lines(samples[start : start + SLICE])).encode()
                text = ""
        if openmetrics:
            yield exposition.EOF.encode()

    def collect(self) -> Iterator[Metric]:
        """prometheus_client's Collector."""
        tally = self._tally
        tally.align()
        rows = self._own() | counts.of_requests(tally, self._sources.setup.policy) | counts.of_replicas(tally)
        rows |= self._gauges() | shared.rows(self._sources.shared()) | counts.of_shadow(self._sources.shadow())
        for name, family in CATALOGUE.items():
            yield _metric(name, family, rows.pop(name))
        assert not rows, rows.keys()

    def _own(self) -> dict[str, Iterable[Row]]:
        sources, setup, reports = self._sources, self._sources.setup, self._sources.reports
        dropped = reports.dropped + Counter(sources.dropped())
        return {
            "homing_build": [((), sources.build)],
            "homing_config": [((), {"hash": setup.config_hash})],
            "homing_config_last_reload_successful": [((), float(setup.reloaded))],
            "homing_config_last_reload_success_timestamp_seconds": [((), setup.reloaded_at)],
            "homing_tls_certificate_expiry_timestamp_seconds": [((to,), at) for to, at in setup.certificates.items()],
            "homing_workers": [((), sources.workers())],
            "homing_worker_restarts": [((), sources.restarts())],
            "homing_gossip_dropped": [((kind,), dropped[kind]) for kind in DROPPABLE],
            "homing_index_blocks": [((), reports.blocks)],
            "homing_index_bytes": [((), reports.copies * INDEX_BLOCK_BYTES)],
            "homing_index_evictions": [(("capacity",), reports.evictions), (("disproved",), self._tally.disproved)],
            "homing_retry_budget_ratio": [((), reports.budget)],
            "homing_redis_operation_duration_seconds": list(sources.operations.durations.items()),
            "homing_snapshot_hashes": [((), sources.hashes())],
            "homing_snapshot_left_out": [((), sources.left_out())],
            "homing_request_log_dropped": [((), reports.log_dropped)],
        }

    def _gauges(self) -> dict[str, Iterable[Row]]:
        labels = self._tally.labels
        gauges = Gauges(self._fleet, self._sources.reports.queued(), monotonic(), self._unix)
        known = {replica.id for replica in self._fleet.replicas}
        return {
            "homing_requests_in_flight": _summed(gauges.in_flight(), labels),
            "homing_queue_depth": _summed(gauges.queue(), labels),
            "homing_replica_state": gauges.states(),
            "homing_replica_state_since_timestamp_seconds": gauges.since(),
            "homing_replica_in_flight": gauges.replicas_in_flight(),
            "homing_replica_waiting": gauges.waiting(),
            "homing_replica_kv_cache_usage_ratio": gauges.kv_usage(),
            "homing_replica_load_ratio": gauges.load_ratio(),
            "homing_replica_view_age_seconds": gauges.view_age(),
            "homing_engine_metric_missing": missing(self._sources.missing, known),
        }


def processes(pids: Sequence[int]) -> Iterator[Metric]:
    """The router's processes as one: prometheus_client's metrics of a process, added up. When the first one began and
    how many files one may open are the first one's."""
    each = [list(ProcessCollector(pid=partial(int, pid), registry=None).collect()) for pid in pids]
    for metric in each[0]:
        if metric.name not in OF_ONE:
            others = [other for rest in each[1:] for other in rest if other.name == metric.name]
            for position, sample in enumerate(metric.samples):
                total = sample.value + sum(other.samples[position].value for other in others)
                metric.samples[position] = sample._replace(value=total)
        yield metric


def _summed(rows: Iterable[tuple[Sequence[str], float]], labels: Labels) -> Iterable[Row]:
    """Rows by model, with the models that found no room summed under one label."""
    sums: dict[str, float] = {}
    for (model,), value in rows:
        label = labels.value("model", model)
        sums[label] = sums.get(label, 0) + value
    return [((label,), value) for label, value in sums.items()]


def _metric(name: str, family: Family, rows: Iterable[Row]) -> Metric:
    metric: Any = family.make(name, family.text, labels=family.labels)  # Their add_metric have no type in common.
    bounds: list[str] = []  # The same for all rows of a family.
    for labels, value in rows:
        if isinstance(value, Histogram):
            bounds = bounds or [*map(floatToGoString, value.bounds), "+Inf"]
            metric.add_metric(labels, list(zip(bounds, value.cumulative(), strict=True)), value.total)
        else:
            metric.add_metric(labels, value)
    assert isinstance(metric, Metric)
    return metric
