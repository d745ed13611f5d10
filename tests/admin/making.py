"""Fleets, records and scrapes to test the admin port with."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from router.admin.metrics import Metrics, Setup, Sources
from router.admin.reports import Report, Reports
from router.admin.shared import Operations
from router.admin.tally import Tally
from router.core.fleet import Fleet
from router.core.lease import Settled
from router.core.member import ReplicaSpec
from router.core.policy import PrefixAffinity
from router.core.record import Attempt, Record, Stages, UpstreamError
from router.core.types import Outcome, Reason, State

OPENMETRICS = "application/openmetrics-text; version=1.0.0"
MODEL = "llama"


def fleet_of(replicas: int = 2, models: Sequence[str] = (MODEL,)) -> Fleet:
    """Replicas r0, r1, ... ready since 0; the first serves the first model, and so on, in turn."""
    fleet = Fleet(PrefixAffinity())
    fleet.join([ReplicaSpec(f"r{i}") for i in range(replicas)], 0.0)
    for i in range(replicas):
        fleet.serves(f"r{i}", {models[i % len(models)]: {}})
        fleet.mark(f"r{i}", State.READY, "test", 0.0)
    return fleet


def settled(replica: str = "r0", **changes: object) -> Settled:
    """A lease that ended well: 1,000 prompt tokens, 800 reachable, 700 predicted, 600 reported, 11 generated."""
    usual = Settled(
        replica, Outcome.OK, prompt_tokens=1000, reachable=800, predicted=700, reported=600, completion_tokens=11,
        seconds_to_first_token=0.2, seconds=1.2, dropped_blocks=0,
    )  # fmt: skip
    return usual._replace(**changes)  # type: ignore[arg-type]


def sent(*sends: Settled | tuple[Settled, UpstreamError]) -> list[Attempt]:
    """Attempts, in order; one without an error went well."""
    return [Attempt(*send) if not isinstance(send, Settled) else Attempt(send, None) for send in sends]


def record_of(**changes: object) -> Record:
    """A streamed chat of 1.25 s: first chunk of 11 at 0.25 s, the last at 1.25 s."""
    usual = Record(
        "id-1", "chat", MODEL, True, 200, 1.25, Stages(0.001, None, 0.0001, 0.0009, 0.248, 1.0), Reason.HOLDER,
        sent(settled()), [], blocks=8, chunks=11, first_chunk=0.25, last_chunk=1.25,
    )  # fmt: skip
    return usual._replace(**changes)  # type: ignore[arg-type]


def report_of(**changes: Any) -> Report:
    """A worker's report of nothing."""
    return Report({}, {}, 0, 0, 0, {}, 1.0)._replace(**changes)


def reports_of(*reports: Report) -> Reports:
    """What so many workers reported."""
    told = Reports()
    for number, report in enumerate(reports):
        told.take(str(number), report)
    return told


def metrics_of(fleet: Fleet, tally: Tally, **changes: Any) -> Metrics:
    """The collector over these; `changes` are fields of its sources."""
    sources: dict[str, Any] = {
        "setup": Setup("prefix_affinity", "abc", True, 1.5e9, {"clients": 2.5e9}),
        "missing": {},
        "reports": Reports(),
        "dropped": dict,
        "workers": lambda: 1,
        "pids": lambda: (os.getpid(),),
        "restarts": lambda: 0,
        "build": {"version": "1", "commit": "c", "python": "3"},
        "operations": Operations(),
        "shared": lambda: None,
        "hashes": lambda: 20,
        "left_out": lambda: 3,
        "shadow": lambda: None,
    }
    return Metrics(fleet, tally, Sources(**(sources | changes)))


def text_of(metrics: Metrics, accept: str = OPENMETRICS) -> str:
    """A whole scrape."""
    return b"".join(metrics.render(accept)[0]).decode()


def families_of(metrics: Metrics) -> dict[str, Metric]:
    """A scrape through the strict parser, by name."""
    parsed = text_string_to_metric_families(text_of(metrics))  # type: ignore[no-untyped-call]
    return {family.name: family for family in parsed}


def samples_of(metrics: Metrics) -> Mapping[tuple[str, frozenset[tuple[str, str]]], float]:
    """A scrape as (sample's name, labels) -> value."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families_of(metrics).values()
        for sample in family.samples
    }


def value_of(metrics: Metrics, name: str, **labels: str) -> float:
    """One sample. Raises KeyError when it is not there."""
    return samples_of(metrics)[name, frozenset(labels.items())]
