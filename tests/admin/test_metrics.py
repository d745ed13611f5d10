"""The exposition: its catalogue, its formats, its bounds."""

import json
import re
import tracemalloc
from pathlib import Path
from random import Random
from typing import ClassVar

import prometheus_client.parser
import pytest

from router.admin import histogram
from router.admin.gauges import INDEX_BLOCK_BYTES
from router.admin.metrics import CATALOGUE, SLICE, Metrics, Setup
from router.admin.shared import Operations
from router.admin.tally import Tally
from router.core.fleet import Fleet
from router.core.member import Transition
from router.core.record import Phase, UpstreamError
from router.core.residency import Residency
from router.core.shadow import Counts, Side
from router.core.types import Ask, EngineSample, Limit, Outcome, Reason, State
from tests.admin.making import (
    MODEL,
    OPENMETRICS,
    families_of,
    fleet_of,
    metrics_of,
    record_of,
    report_of,
    reports_of,
    samples_of,
    sent,
    settled,
    text_of,
    value_of,
)
from tests.core.worlds import leased

GOLDEN = Path(__file__).parents[1] / "golden" / "metrics.json"
UNITS = re.compile(r"_(seconds|bytes|ratio|total|info)$")


def busy(replicas: int = 2, models: tuple[str, ...] = (MODEL,)) -> tuple[Fleet, Tally]:
    """A fleet in which everything that can be counted has happened."""
    fleet = fleet_of(replicas, models)
    tally = Tally(fleet, 200)
    refused = (settled("r0", outcome=Outcome.REFUSED, seconds_to_first_token=None), UpstreamError.STATUS_429)
    for model in (*models, "nobody's", None):
        for streams in (True, False):
            attempts = sent(refused, settled("r1", dropped_blocks=1))
            tally.record(record_of(model=model, streams=streams, attempts=attempts, cuts=list(Limit)))
    tally.record(record_of(attempts=(), reason=None, status=0, left=Phase.QUEUED))
    for i in range(replicas):
        tally.probed(f"r{i}", 0.003, "status")
        fleet.sampled(f"r{i}", EngineSample(1.0, 3, 2, 0.5))
    tally.turned(Transition("r0", State.STARTING, State.READY, "answers /health"), "answers")
    tally.labels.overflow["model"] += 1
    tally.lag.observe(0.001)
    return fleet, tally


def shown(**sources: object) -> Metrics:
    fleet, tally = busy()
    operations = Operations()
    operations.observe("publish", "ok", 0.001)
    told = {
        "missing": {"r0": {"vllm:x"}},
        "reports": reports_of(report_of(queued={MODEL: 2})),
        "operations": operations,
        "shared": lambda: Linked(),
        "shadow": lambda: Counts("round_robin"),
    }
    return metrics_of(fleet, tally, **told | sources)


class Linked:
    """A link to one other router."""

    up, problem, peers, sent, received = True, None, 1, 10, 20
    dropped: ClassVar[dict[str, int]] = {"foreign": 1}

    def view_age(self) -> float:
        return 0.5


def test_names_types_and_labels_are_the_golden_ones() -> None:
    """A change here breaks people's boards and alerts: change the file by hand, and the catalogue with it."""
    found = {
        name: [family.type, sorted({label for sample in family.samples for label in sample.labels} - {"le"})]
        for name, family in families_of(shown()).items()
        if name.startswith("homing_")
    }
    assert found == json.loads(GOLDEN.read_text())


def test_a_router_that_shares_nothing_has_no_samples_of_sharing() -> None:
    text = text_of(shown(shared=lambda: None, operations=Operations()))
    assert not re.search(r"^homing_(redis|peer)", text, re.MULTILINE)


def test_a_router_without_a_shadow_has_no_samples_of_one() -> None:
    assert not re.search(r"^homing_shadow", text_of(shown(shadow=lambda: None)), re.MULTILINE)


def test_a_shadow_is_shown_beside_what_was_done() -> None:
    counts = Counts("round_robin")
    counts.same, counts.other, counts.nowhere, counts.prompt_tokens = 1, 2, 3, 4
    counts.live, counts.shadow, counts.left_out, counts.errors = Side(5, 6), Side(7, 8), 9, 10
    samples = {
        (name, *sorted(value for key, value in labels if key != "policy")): value
        for (name, labels), value in samples_of(shown(shadow=lambda: counts)).items()
        if name.startswith("homing_shadow") and ("policy", "round_robin") in labels
    }
    assert samples == {
        ("homing_shadow_asks_total", "same"): 1, ("homing_shadow_asks_total", "other"): 2,
        ("homing_shadow_asks_total", "none"): 3, ("homing_shadow_prompt_tokens_total",): 4,
        ("homing_shadow_prompt_tokens_predicted_cached_total", "live"): 5,
        ("homing_shadow_requests_ahead_total", "live"): 6,
        ("homing_shadow_prompt_tokens_predicted_cached_total", "shadow"): 7,
        ("homing_shadow_requests_ahead_total", "shadow"): 8,
        ("homing_shadow_left_out_total",): 9, ("homing_shadow_errors_total",): 10,
    }  # fmt: skip


def test_the_catalogue_promises_the_labels_that_are_exposed() -> None:
    golden = {name: labels for name, (kind, labels) in json.loads(GOLDEN.read_text()).items() if kind != "info"}
    assert golden == {name: sorted(family.labels) for name, family in CATALOGUE.items() if name in golden}


@pytest.mark.parametrize("accept", ["", "text/plain", "text/plain;version=0.0.4", "*/*"])
def test_the_text_format_is_for_who_does_not_accept_openmetrics(accept: str) -> None:
    metrics = shown()
    assert metrics.render(accept)[1].startswith("text/plain; version=0.0.4")
    names = {
        family.name for family in prometheus_client.parser.text_string_to_metric_families(text_of(metrics, accept))
    }
    assert "homing_requests" in names
    assert "homing_build_info" in names


def test_openmetrics_is_for_who_accepts_it_and_ends_as_it_must() -> None:
    metrics = shown()
    prometheus = "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,*/*"
    assert metrics.render(prometheus)[1].startswith("application/openmetrics-text; version=1.0.0")
    assert text_of(metrics).endswith("\n# EOF\n")
    assert text_of(metrics).count("# EOF") == 1


def test_every_name_is_in_base_units_and_lower_case() -> None:
    for family in families_of(shown()).values():
        assert re.fullmatch(r"(homing|process)_[a-z0-9_]+", family.name)
        assert not re.search(r"perc|_ms$|milli|minute", family.name)
        if family.type == "histogram":
            assert UNITS.search(family.name)
        assert family.documentation


def test_no_histogram_is_labelled_by_replica_and_model_at_once() -> None:
    for name, family in CATALOGUE.items():
        labels = set(family.labels)
        kind = json.loads(GOLDEN.read_text())[name][0]
        assert kind != "histogram" or not {"replica", "model"} <= labels, name


@pytest.mark.parametrize(
    ("name", "boundaries"),
    [
        ("homing_request_duration_seconds", histogram.OTEL_OPERATION + histogram.OTEL_HTTP),
        ("homing_time_to_first_chunk_seconds", histogram.OTEL_OPERATION + histogram.OTEL_FIRST_TOKEN),
        ("homing_time_per_output_chunk_seconds", histogram.OTEL_OPERATION + histogram.OTEL_PER_TOKEN),
        ("homing_time_per_output_token_seconds", histogram.OTEL_PER_TOKEN),
        ("homing_replica_time_to_first_chunk_seconds", histogram.OTEL_FIRST_TOKEN),
        ("homing_stage_duration_seconds", histogram.OTEL_HTTP),
        ("homing_probe_duration_seconds", histogram.OTEL_HTTP),
        ("homing_event_loop_lag_seconds", histogram.OTEL_HTTP),
    ],
)
def test_exposed_buckets_contain_opentelemetrys(name: str, boundaries: histogram.Bounds) -> None:
    exposed = {float(sample.labels["le"]) for sample in families_of(shown())[name].samples if "le" in sample.labels}
    assert set(boundaries) <= exposed


def test_a_replica_that_has_left_has_no_series_in_the_next_scrape() -> None:
    """Its last requests may end after it has left."""
    fleet = fleet_of(1)
    tally = Tally(fleet, 200)
    for replica in ("r0", "r1"):
        tally.record(record_of(attempts=sent(settled(replica))))
        tally.probed(replica, 0.003, "status")
    metrics = metrics_of(fleet, tally, missing={"r1": {"vllm:x"}})
    assert "r1" in tally.replicas
    text = text_of(metrics)
    assert 'replica="r0"' in text
    assert "r1" not in text
    assert "vllm:x" not in text
    assert set(tally.replicas) == {"r0"}


def test_a_new_replica_and_model_are_there_at_zero_before_the_first_request() -> None:
    fleet = fleet_of(1)
    metrics = metrics_of(fleet, Tally(fleet, 200))
    assert value_of(metrics, "homing_replica_requests_total", replica="r0", outcome="failed") == 0
    assert value_of(metrics, "homing_prompt_tokens_predicted_cached_total", model=MODEL) == 0
    assert value_of(metrics, "homing_queue_depth", model=MODEL) == 0
    assert value_of(metrics, "homing_rejected_total", reason="queue_full") == 0
    assert value_of(metrics, "homing_limit_cuts_total", limit="max_kv_usage") == 0


def test_the_retry_budget_is_that_of_the_worker_that_has_least() -> None:
    fleet = fleet_of(1)
    assert value_of(metrics_of(fleet, Tally(fleet, 200)), "homing_retry_budget_ratio") == 1.0
    reports = reports_of(report_of(budget=0.75), report_of(budget=0.25))
    assert value_of(metrics_of(fleet, Tally(fleet, 200), reports=reports), "homing_retry_budget_ratio") == 0.25


def test_fifty_replicas_and_five_models_stay_within_six_thousand_series() -> None:
    """R16, with every replica, model, reason and error seen, and five endpoints that each answered eight statuses."""
    models = tuple(f"org/model-{i}" for i in range(5))
    fleet, tally = busy(50, models)
    for model in (*models, None, "nobody's"):
        for endpoint in ("chat", "completions", "responses", "messages", "embeddings"):
            for status in (0, 200, 400, 404, 429, 500, 502, 503):
                for streams in (True, False):
                    tally.record(record_of(model=model, endpoint=endpoint, status=status, streams=streams))
    for i in range(50):
        for failure in ("refused", "unreachable", "timeout", "broken"):
            tally.probed(f"r{i}", 0.003, failure)
    text = text_of(metrics_of(fleet, tally, missing={"r0": {f"vllm:{i}" for i in range(5)}}))
    series = [line for line in text.splitlines() if not line.startswith("#")]
    assert 5_000 < len(series) <= 6_000


def test_ten_thousand_model_names_stay_within_the_bound_and_are_counted() -> None:
    fleet = fleet_of(1)
    fleet.serves("r0", {f"adapter-{i:05}": {"parent": "base"} for i in range(10_000)} | {"base": {}})
    tally = Tally(fleet, 20)
    for i in range(10_000):
        tally.record(record_of(model=f"adapter-{i:05}"))
        tally.record(record_of(model=f"made-up-{i}"))
    metrics = metrics_of(
        fleet, tally, reports=reports_of(report_of(queued={f"adapter-{i:05}": 1 for i in range(10_000)}))
    )
    for name, family in families_of(metrics).items():
        models = {sample.labels["model"] for sample in family.samples if "model" in sample.labels}
        assert len(models) <= 22, name  # As many, and `other`, and the empty one.
    assert value_of(metrics, "homing_label_overflow_total", label="model") == 9_980
    assert value_of(metrics, "homing_queue_depth", model="other") == 9_980
    requests = value_of(
        metrics, "homing_requests_total", model="other", endpoint="chat", code="200", stream="true"
    )  # fmt: skip
    assert requests == 19_980


def test_adapters_do_not_multiply_a_replicas_gauges() -> None:
    fleet = fleet_of(1)
    fleet.serves("r0", {"base": {"parent": None}, "a-adapter": {"parent": "base"}})
    leased(fleet, Ask("a-adapter"))
    metrics = metrics_of(fleet, Tally(fleet, 200))
    assert value_of(metrics, "homing_replica_in_flight", replica="r0", model="base") == 1
    assert value_of(metrics, "homing_requests_in_flight", model="base") == 1
    assert value_of(metrics, "homing_requests_in_flight", model="a-adapter") == 0


def test_the_load_ratio_compares_ready_replicas_of_one_model() -> None:
    fleet = fleet_of(4, ("a", "b"))
    metrics = metrics_of(fleet, Tally(fleet, 200))
    assert value_of(metrics, "homing_replica_load_ratio", replica="r0", model="a") == 1
    for _ in range(3):
        leased(fleet, Ask("a", only="r0"))
    leased(fleet, Ask("a", only="r2"))
    assert value_of(metrics, "homing_replica_load_ratio", replica="r0", model="a") == 1.5
    assert value_of(metrics, "homing_replica_load_ratio", replica="r2", model="a") == 0.5
    assert value_of(metrics, "homing_replica_load_ratio", replica="r1", model="b") == 1
    fleet.mark("r2", State.DOWN, "test", 0.0)
    assert value_of(metrics, "homing_replica_load_ratio", replica="r0", model="a") == 1
    assert ("homing_replica_load_ratio", frozenset({("replica", "r2"), ("model", "a")})) not in samples_of(metrics)


def test_a_states_begin_does_not_move_between_scrapes() -> None:
    fleet = fleet_of(1)
    metrics = metrics_of(fleet, Tally(fleet, 200))
    first, second = (
        value_of(metrics, "homing_replica_state_since_timestamp_seconds", replica="r0", model=MODEL) for _ in range(2)
    )
    assert first == second > 0


def test_an_engine_that_does_not_tell_has_no_gauges_rather_than_zeros() -> None:
    fleet = fleet_of(1)
    labels = frozenset({("replica", "r0"), ("model", MODEL)})
    metrics = metrics_of(fleet, Tally(fleet, 200))
    assert ("homing_replica_view_age_seconds", labels) not in samples_of(metrics)
    fleet.sampled("r0", EngineSample(1.0, running=1))
    found = samples_of(metrics)
    assert ("homing_replica_view_age_seconds", labels) in found
    assert ("homing_replica_waiting", labels) not in found
    assert ("homing_replica_kv_cache_usage_ratio", labels) not in found


def test_a_refusing_replica_is_shown_as_full_and_in_one_state_only() -> None:
    fleet = fleet_of(1)
    fleet.full("r0", float("inf"))
    metrics = metrics_of(fleet, Tally(fleet, 200))
    states = {
        state.value: value_of(metrics, "homing_replica_state", replica="r0", model=MODEL, state=state.value)
        for state in State
    }
    assert states == dict.fromkeys(State, 0) | {"full": 1}


def test_the_index_is_measured_in_blocks_and_estimated_in_bytes() -> None:
    """Workers share their beliefs, so each has a copy of nearly the same ones."""
    reports = reports_of(report_of(blocks=64), report_of(blocks=60))
    metrics = metrics_of(fleet_of(1), Tally(fleet_of(1), 200), reports=reports)
    assert value_of(metrics, "homing_index_blocks") == 64
    assert value_of(metrics, "homing_index_bytes") == 124 * INDEX_BLOCK_BYTES


def test_a_believed_block_takes_about_the_memory_that_is_estimated() -> None:
    rng = Random(1)
    tracemalloc.start()
    try:
        index = Residency()
        index.join("r0")
        for _ in range(1_000):
            index.release(index.place("r0", [rng.getrandbits(64) for _ in range(64)], 100_000))
        assert len(index) == 0  # Nobody confirmed them.
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(1_000):
            placed = index.place("r0", [rng.getrandbits(64) for _ in range(64)], 100_000)
            index.confirm(placed)
            index.release(placed)
        each = (tracemalloc.get_traced_memory()[0] - before) / len(index)
    finally:
        tracemalloc.stop()
    assert INDEX_BLOCK_BYTES / 2 < each < INDEX_BLOCK_BYTES * 1.5


def test_decisions_name_the_policy_and_the_reason() -> None:
    fleet = fleet_of(1)
    tally = Tally(fleet, 200)
    tally.record(record_of())
    tally.record(record_of(endpoint="completions"))
    tally.record(record_of(reason=Reason.SPILL))
    metrics = metrics_of(fleet, tally, setup=Setup("p", "abc", True, 1.5e9, {}))
    assert value_of(metrics, "homing_decisions_total", model=MODEL, policy="p", reason="holder") == 2
    assert value_of(metrics, "homing_decisions_total", model=MODEL, policy="p", reason="spill") == 1


def test_a_scrape_comes_in_slices_that_read_as_one() -> None:
    fleet, tally = busy(50)
    metrics = metrics_of(fleet, tally)
    slices = list(metrics.render(OPENMETRICS)[0])
    assert max(sum(not line.startswith(b"#") for line in one.splitlines()) for one in slices) == SLICE
    text = text_of(metrics)
    assert len(re.findall(r"^# TYPE (\S+)", text, re.M)) == len(set(re.findall(r"^# TYPE (\S+)", text, re.M)))
    buckets = families_of(metrics)["homing_replica_time_to_first_chunk_seconds"].samples
    assert len(buckets) == 50 * (len(histogram.REPLICA_FIRST_CHUNK) + 3)


def test_counts_of_two_routers_can_be_summed() -> None:
    """CASES A90: nothing in a series names the router, `instance` does; counters and histograms add up."""
    labels = {label for family in CATALOGUE.values() for label in family.labels}
    assert not labels & {"instance", "router", "pod", "job", "worker"}
