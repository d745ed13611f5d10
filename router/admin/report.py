"""GET /fleet: the fleet as JSON. The schema is stable: keys are added, never renamed or taken away. Pure.

| key | what it is |
| --- | --- |
| policy | the policy's name |
| models | model -> `ready` and `replicas` that serve it, `queued` requests that wait for it |
| residency | `blocks` believed resident over all replicas, `evictions` by capacity since the start; what a snapshot \
told counts once a prompt has confirmed it |
| workers | processes that serve |
| shadow | null, or what another policy would have done: `policy`; `asks` it was asked, `same` replica chosen; \
`prompt_tokens`, of which were believed cached `live_cached_tokens` and in the shadow `shadow_cached_tokens` |
| replicas | a list, in the order of the configuration: |
| .id, .state, .reason, .since_seconds | who it is, how it is, why, and for how long |
| .models, .model | names it serves; the one that its engine runs, adapters left out (null: it has not told) |
| .requests, .without_first_token | open leases of all workers; those of them that have no first token |
| .backlog_tokens, .context_tokens | uncached prompt tokens of the latter; prompt tokens of all of them |
| .kv_tokens | size of its KV cache |
| .resident_blocks | blocks believed resident |
| .prefill_tokens_per_second, .step_seconds | learned or set; the first null while nothing is known |
| .engine | its own gauges: `running`, `waiting`, `kv_cache_usage_ratio` (null: not exported), `age_seconds`; \
null until they were read |
"""

from collections.abc import Mapping
from typing import Any

from router.admin.gauges import base_model
from router.admin.reports import Reports
from router.core.fleet import Fleet
from router.core.member import Replica
from router.core.shadow import Counts
from router.core.types import EngineSample, State


def fleet_report(
    fleet: Fleet, policy: str, workers: int, reports: Reports, shadow: Counts | None, now: float
) -> dict[str, Any]:
    """The whole answer; `now` is monotonic seconds."""
    queued = reports.queued()
    return {
        "policy": policy,
        "workers": workers,
        "models": {model: _model(fleet, model, queued) for model in fleet.models},
        "residency": {"blocks": reports.blocks, "evictions": reports.evictions},
        "shadow": None if shadow is None else _shadow(shadow),
        "replicas": [_replica(replica, reports, now) for replica in fleet.replicas],
    }


def _shadow(counts: Counts) -> dict[str, Any]:
    return {
        "policy": counts.policy,
        "asks": sum(count for _, count in counts.choices()),
        "same": counts.same,
        "prompt_tokens": counts.prompt_tokens,
        "live_cached_tokens": counts.live.predicted,
        "shadow_cached_tokens": counts.shadow.predicted,
    }


def _model(fleet: Fleet, model: str, queued: Mapping[str, int]) -> dict[str, int]:
    serving = [replica for replica in fleet.replicas if model in replica.models]
    ready = sum(replica.state is State.READY for replica in serving)
    return {"ready": ready, "replicas": len(serving), "queued": queued.get(model, 0)}


def _replica(replica: Replica, reports: Reports, now: float) -> dict[str, Any]:
    whole = replica.whole
    return {
        "id": replica.id,
        "state": replica.state_now(now),
        "reason": replica.reason,
        "since_seconds": round(now - replica.since, 3),
        "models": sorted(replica.models),
        "model": base_model(replica) or None,
        "requests": whole.requests,
        "without_first_token": whole.unstarted,
        "backlog_tokens": whole.backlog,
        "context_tokens": whole.context,
        "kv_tokens": replica.kv_tokens,
        "resident_blocks": reports.held(replica.id),
        "prefill_tokens_per_second": round(1 / replica.lin, 1) if replica.lin else None,
        "step_seconds": replica.step,
        "engine": None if replica.sample is None else _engine(replica.sample, now),
    }


def _engine(sample: EngineSample, now: float) -> dict[str, Any]:
    return {
        "running": sample.running,
        "waiting": sample.waiting,
        "kv_cache_usage_ratio": sample.kv_usage,
        "age_seconds": round(now - sample.at, 3),
    }
