"""Why an ask would go where it would go: everything that the decision was made of, as plain values."""

from collections.abc import Sequence
from typing import NamedTuple

from router.core.member import Replica
from router.core.recent import Key
from router.core.types import Ask, Cuts, Limit, Lines, Policy, Reading, Refusal, ReplicaId, Route, State, Wait
from router.core.view import FleetView


class Explained(NamedTuple):
    """One replica of the model. `cut` is what keeps a ready one out, `cached` is in prompt tokens. `reading` is None
    for one that was not considered, `lines` also for a policy that does not score."""

    replica: ReplicaId
    state: State
    cut: Limit | None
    cached: int
    reading: Reading | None
    lines: Lines | None


class Explanation(NamedTuple):
    """`tokens` is the prompt as believed, `key` what the ring was asked for, `order` what it answered, home first."""

    ask: Ask
    tokens: int
    key: Key
    order: Sequence[ReplicaId]
    candidates: Sequence[Explained]
    decision: Route | Wait | Refusal


def candidates(
    members: Sequence[Replica], view: FleetView | None, policy: Policy, cuts: Cuts, now: float
) -> list[Explained]:
    """Each of a model's replicas; `view` is of those that may be chosen, None where there are none."""
    readings = {reading.id: reading for reading in view.replicas} if view else {}
    told = []
    for member in members:
        reading = readings.get(member.id)
        lines = policy.lines(reading, view) if reading and view else None
        cached = view.cached(reading.depth) if reading and view else 0
        told.append(Explained(member.id, member.state_now(now), cuts.get(member.id), cached, reading, lines))
    return told
