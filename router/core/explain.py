"""Why an ask would go where it would go: everything that the decision was made of, as plain values."""

from collections.abc import Sequence
from typing import NamedTuple

from router.core.recent import Key
from router.core.types import Ask, Limit, Lines, Reading, Refusal, ReplicaId, Route, State, Wait


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
