"""A tally's counts as rows of the catalogue. Pure; read at a scrape, written nowhere."""

from collections import Counter
from collections.abc import Iterable, Sequence

from router.admin.histogram import Histogram
from router.admin.tally import Tally
from router.core.shadow import Counts

Rows = Iterable[tuple[Sequence[str], float | Histogram]]


def _stream(streams: bool) -> str:
    return "true" if streams else "false"


def of_requests(tally: Tally, policy: str) -> dict[str, Rows]:
    """Everything that has no replica in it."""
    requests = [
        ((model, endpoint, code, _stream(streams)), row.requests)
        for (model, endpoint, code, streams, _), row in tally.rows.items()
    ]
    return {
        "homing_requests": _summed(requests),
        "homing_decisions": _summed(
            ((model, policy, reason.value), row.requests)
            for (model, _, _, _, reason), row in tally.rows.items()
            if reason is not None
        ),
        "homing_stage_duration_seconds": [((name,), times) for name, times in tally.stages.items()],
        "homing_event_loop_lag_seconds": [((), tally.lag)],
        "homing_limit_cuts": [((limit.value,), count) for limit, count in tally.cuts.items()],
        "homing_client_disconnects": [((phase.value,), count) for phase, count in tally.left.items()],
        "homing_tls_handshake_failures": [((error.value,), count) for error, count in tally.handshakes.items()],
        "homing_rejected": [((reason,), count) for reason, count in tally.rejected.items()],
        "homing_retries": list(tally.retries.items()),
        "homing_replica_transitions": list(tally.transitions.items()),
        "homing_label_overflow": [((label,), count) for label, count in tally.labels.overflow.items()],
    } | _times(tally) | _ledger(tally)  # fmt: skip


def of_replicas(tally: Tally) -> dict[str, Rows]:
    """Everything by replica; of probe failures only what has happened."""
    replicas = tally.replicas.items()
    return {
        "homing_replica_time_to_first_chunk_seconds": [((name,), one.first_chunk) for name, one in replicas],
        "homing_replica_requests": [
            ((name, outcome.value), count) for name, one in replicas for outcome, count in one.outcomes.items()
        ],
        "homing_replica_prompt_tokens": [((name,), one.prompt) for name, one in replicas],
        "homing_replica_prompt_tokens_reported_cached": [((name,), one.reported) for name, one in replicas],
        "homing_probe_duration_seconds": [((name,), one.probes) for name, one in replicas],
        "homing_probe_failures": [
            ((name, reason), count) for name, one in replicas for reason, count in one.probe_failures.items()
        ],
        "homing_upstream_errors": [
            ((name, error.value), count) for name, one in replicas for error, count in one.errors.items()
        ],
    }


def of_shadow(counts: Counts | None) -> dict[str, Rows]:
    """What another policy would have done; no samples where none is asked."""
    shadows = [] if counts is None else [counts]
    sides = [(each.policy, name, side) for each in shadows for name, side in each.sides()]
    return {
        "homing_shadow_asks": [((each.policy, name), count) for each in shadows for name, count in each.choices()],
        "homing_shadow_prompt_tokens": [((each.policy,), each.prompt_tokens) for each in shadows],
        "homing_shadow_prompt_tokens_predicted_cached": [
            ((policy, name), side.predicted) for policy, name, side in sides
        ],
        "homing_shadow_requests_ahead": [((policy, name), side.ahead) for policy, name, side in sides],
        "homing_shadow_left_out": [((each.policy,), each.left_out) for each in shadows],
        "homing_shadow_errors": [((each.policy,), each.errors) for each in shadows],
    }


def _times(tally: Tally) -> dict[str, Rows]:
    """Chunks and tokens are told apart in streams only. What the router answered itself has no times."""
    every = [
        ((model, _stream(streams)), one) for (model, streams), one in tally.times.items() if any(one.request.counts)
    ]
    streamed = [(labels, times) for labels, times in every if labels[1] == "true"]
    return {
        "homing_request_duration_seconds": [(labels, times.request) for labels, times in every],
        "homing_time_to_first_chunk_seconds": [(labels, times.first_chunk) for labels, times in every],
        "homing_time_per_output_chunk_seconds": [(labels, times.per_chunk) for labels, times in streamed],
        "homing_time_per_output_token_seconds": [(labels, times.per_token) for labels, times in streamed],
    }


def _ledger(tally: Tally) -> dict[str, Rows]:
    ledgers = [((model,), ledger) for model, ledger in tally.ledgers.items()]
    return {
        "homing_prompt_tokens": [(labels, one.prompt) for labels, one in ledgers],
        "homing_prompt_tokens_reachable": [(labels, one.reachable) for labels, one in ledgers],
        "homing_prompt_tokens_predicted_cached": [(labels, one.predicted) for labels, one in ledgers],
        "homing_prompt_tokens_reported_cached": [(labels, one.reported) for labels, one in ledgers],
        "homing_prompt_tokens_unreported": [(labels, one.unreported) for labels, one in ledgers],
        "homing_prompt_tokens_predicted_unreported": [(labels, one.predicted_unreported) for labels, one in ledgers],
        "homing_short_prompts": [(labels, one.short) for labels, one in ledgers],
        "homing_prefix_prediction_error_ratio": [(labels, one.error) for labels, one in ledgers],
    }


def _summed(rows: Iterable[tuple[tuple[str, ...], int]]) -> Rows:
    """Rows that are alike in these labels, added up."""
    sums: Counter[tuple[str, ...]] = Counter()
    for labels, count in rows:
        sums[labels] += count
    return list(sums.items())
