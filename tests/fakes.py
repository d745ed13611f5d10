"""Fakes of the core's ports. They do what they are told, also what a real one never would.

Time is a number that the test turns, randomness is handed in: nothing here waits, and nothing here is random.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from router.core.types import Ask, Candidate, Few, Lines, Ramping, Reading, Reason, ReplicaId, Rng, View, Wait

T = TypeVar("T")


class LastChoice:
    """An Rng that always draws the last, and remembers between what it was asked to draw."""

    def __init__(self) -> None:
        self.drawn: list[Sequence[object]] = []

    def choice(self, seq: Sequence[T], /) -> T:
        self.drawn.append(seq)
        return seq[-1]


def reading(replica: ReplicaId, **changes: object) -> Reading:
    """An idle replica that holds nothing of a prompt of 1,000 tokens; `changes` are fields by name."""
    idle = Reading(
        id=replica, requests=0, queued=0, backlog=0.0, running=0.0, context=0.0, recent=0.0, kv_usage=None,
        lin=1 / 10_000, step=0.01, depth=0, uncached=1000.0, cold=1000.0,
    )  # fmt: skip
    return changed(idle, **changes)


def changed(reading: Reading, **changes: object) -> Reading:
    """The same but for `changes`, fields by name."""
    return Reading(**{**fields_of(reading), **changes})


def fields_of(reading: Reading) -> dict[str, Any]:
    """Its fields by name."""
    return {name: getattr(reading, name) for name in Reading.__slots__}


@dataclass
class FakeView:
    """types.View with every value set by hand; the ring's order is the order of `ring` (default: of the replicas)."""

    replicas: Sequence[Reading]
    tokens: float = 1000.0
    cold: float = 1000.0
    returning: float = 1.0
    lin: float = 1 / 10_000
    kv: float = 4e-8
    output: float = 100.0
    tau: float = 5.0
    ramping: Ramping | None = None
    ring: Sequence[ReplicaId] = ()
    ring_at: Mapping[int, Sequence[ReplicaId]] = field(default_factory=dict)

    @property
    def ready(self) -> int:
        return len(self.replicas)

    @property
    def running(self) -> float:
        return sum([each.running for each in self.replicas]) / len(self.replicas)

    def few(self) -> Few | None:
        return None

    def read(self, replica: ReplicaId) -> Reading | None:
        return {each.id: each for each in self.replicas}.get(replica)

    def order(self) -> Sequence[ReplicaId]:
        return self.ring or [replica.id for replica in self.replicas]

    def order_at(self, depth: int) -> Sequence[ReplicaId]:
        return self.ring_at[depth]


class Told:
    """A Policy that picks what it is told, the first eligible replica otherwise, and keeps the views that it saw."""

    def __init__(self, replica: ReplicaId | None = None) -> None:
        self.replica = replica
        self.wait: Wait | None = None
        self.views: list[View] = []

    @property
    def view(self) -> View:
        """What the last pick saw."""
        return self.views[-1]

    def seen(self, replica: ReplicaId) -> Reading:
        """One replica as the last pick saw it. Raises KeyError when it was not eligible."""
        return {reading.id: reading for reading in self.view.replicas}[replica]

    def pick(self, ask: Ask, view: View, now: float, rng: Rng) -> Candidate | Wait:
        self.views.append(view)
        return self.wait or Candidate(self.replica or view.replicas[0].id, Reason.POLICY)

    def lines(self, replica: Reading, view: View) -> Lines | None:
        return None

    def cuts(self, replica: Reading) -> bool:
        return False
