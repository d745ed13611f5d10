"""Who may have the least score in a large fleet, found without scoring everybody. Pure.

Each line of a score only grows with what a replica carries. So where a replica holds nothing of a prompt,

    score(replica, prompt) >= standing(replica) + floor(prompt)

its standing being what it would score for an ask without a prompt, and the floor what the prompt would score on a
replica that carries nothing but the fewest running requests of all, at the speed of the fastest. Standings are computed
for all at once and kept, least first: who scores need look no further down than where standing + floor is more than the
least score found.

A ranking is good for a window. Unless something happens to a replica its load only falls, by the clock, so a standing
is taken as of the window's end: it is the least that it can be until then. To whom something has happened since
(`Load.changes`), whom a limit cuts or may cut before the window ends, whose load drains by the clock, who is ramping,
and the holders of a prompt are read anew for every ask. What enters all scores alike (`Means`), and `Ramping`, are held
for the window.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from router.core.backlog import DEFAULT_LIN, DEFAULT_STEP, Learned
from router.core.member import Replica
from router.core.types import Few, Policy, Ramping, Reading, ReplicaId, View

LEAST = 48
"""Replicas from which a ranking is worth its keeping: fewer are scored, all of them, in the same time."""

SECONDS = 0.1
"""A window: recent prefill decays by 2 % in it, at a tau of 5 s, so that a standing is hardly too low."""

ASKS = 32
"""Asks that a window serves at most. Each changes some three replicas, and they are read anew for the rest of it."""


class Means(NamedTuple):
    """What enters the scores of all replicas alike (types.View)."""

    lin: float
    step: float
    kv: float
    output: float
    tau: float


def mean_lin(known: Iterable[float | None]) -> float:
    """lin*: mean seconds per prefill token over the replicas where it is known, DEFAULT_LIN where it is not at all."""
    return _mean_known(known, DEFAULT_LIN)


def mean_step(known: Iterable[float | None]) -> float:
    """The same for a decode step. A replica whose step is not known must not look slow beside one that has told."""
    return _mean_known(known, DEFAULT_STEP)


def _mean_known(known: Iterable[float | None], default: float) -> float:
    values = [value for value in known if value is not None]
    return sum(values) / len(values) if values else default


def means(members: Sequence[Replica], learned: Learned) -> Means:
    """The means over some replicas of a model, and what was learned of it."""
    return Means(
        mean_lin([member.lin for member in members]),
        mean_step([member.known_step for member in members]),
        sum([member.kv for member in members]) / len(members),
        learned.output.value,
        learned.tau.value,
    )


class Ranking:
    """One window's. `calm` are those with a standing, `watched` the others."""

    __slots__ = (
        "_asks",
        "_begin",
        "_changes",
        "_fastest",
        "_fewest",
        "_members",
        "calm",
        "end",
        "means",
        "order",
        "ramping",
        "running",
        "watched",
    )

    def __init__(
        self,
        members: Sequence[Replica],
        averages: Means,
        new: Ramping | None,
        most: int | None,
        stall: float,
        now: float,
    ) -> None:
        self.means, self.ramping = averages, new
        self._begin, self.end = now, now + SECONDS
        self._members = members
        self._changes = [member.changes for member in members]
        self._asks = min(ASKS, len(members) // 8)
        self._fastest = self._fewest = 0.0
        self.running = 0.0  # The mean over the ranked.
        self.order: list[tuple[float, ReplicaId]] = []
        self.calm: dict[ReplicaId, Replica] = {}
        self.watched: list[Replica] = []
        slowed: Collection[ReplicaId] = () if new is None else new.left
        for member in members:
            steady = member.steady(now, self.end) and member.id not in slowed
            if steady and not (member.cut(most, stall, now) or member.cut(most, stall, self.end)):
                self.calm[member.id] = member
            else:
                self.watched.append(member)

    def rank(self, policy: Policy, view: View) -> None:
        """Take everybody's standing; `view` is of the calm, for an ask without a prompt, at the window's end."""
        ranked = []
        for reading in view.replicas:
            lines = policy.lines(reading, view)
            if lines is None or policy.cuts(reading):
                self.watched.append(self.calm.pop(reading.id))
            else:
                ranked.append(reading)
                self.order.append((sum(lines), reading.id))
        self.order.sort()
        if ranked:
            running = [each.running for each in ranked]
            self._fastest, self._fewest = min([each.lin for each in ranked]), min(running)
            self.running = sum(running) / len(running)

    def serves(self, now: float) -> bool:
        """Whether it holds for one more ask, which is counted."""
        self._asks -= 1
        return self._asks >= 0 and self._begin <= now < self.end

    def changed(self) -> list[Replica]:
        """Those whose standing is no longer what it was."""
        return [member for member, was in zip(self._members, self._changes, strict=True) if member.changes != was]

    def few(self, readings: Sequence[Reading], uncached: float, cold: float) -> Few:
        """What a policy needs, for an ask of which `uncached` and `cold` tokens are so where nobody holds it, with the
        `readings` of those that had to be read anew."""
        pole = Reading("", 0, 0, 0.0, self._fewest, 0.0, 0.0, None, self._fastest, 0.0, 0, uncached - 1.0, cold)
        return Few(readings, self.order, pole)
