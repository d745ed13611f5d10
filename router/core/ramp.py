"""How a replica enters empty: with what the ring gives it and what everybody asks for, and the rest slowly. Pure.

A replica that joins, or whose process has restarted, carries nothing, so that whatever is cached nowhere would go there
at once; and what is cached everywhere else would not go there at all, as long as the others bear it. So until it is
warm a policy reads it as if it carried, besides what it does, a part of what a replica carries in the mean. That part,

    left = (1 - age / seconds) * (1 - hit ratio since it entered),

shrinks with its age, and with the part of the prompts sent there that is believed cached: who hits is warm at any age.
Where all are new only differences count, so that a new fleet is not slowed at all.

Each router sees by itself who enters, some tenths of a second apart, and counts the prompts that it sends itself.
"""

from collections.abc import Mapping, Sequence

from router.core.types import Ramping, Reading, ReplicaId

SECONDS = 30.0
"""`ramp.seconds`. In simulated fleets 10 still let twice to three times its share go to a replica in its first 5 s, on
prompts with much of their own, 30 one and a half times; goodput was the same with both (loadtests/README.md)."""


class Entry:
    """A replica's entry, empty, into the fleet: when it was, and the tokens of the prompts that it has read since."""

    __slots__ = ("at", "cached", "tokens")

    def __init__(self, at: float) -> None:
        self.at = at
        self.tokens = self.cached = 0

    def answered(self, tokens: int, cached: int) -> None:
        """A prompt's first token came, so much of which was believed cached when it was sent."""
        self.tokens += tokens
        self.cached += cached

    def left(self, seconds: float, now: float) -> float:
        """How much of the ramp is before it, 1 to 0."""
        age = now - self.at
        return (1.0 - age / seconds) * (1.0 - self.cached / max(1, self.tokens)) if age < seconds else 0.0


def ramping(new: Mapping[ReplicaId, Entry], eligible: Sequence[Reading], seconds: float, now: float) -> Ramping | None:
    """Who of the `new` is still ramping, of the replicas that may be chosen; None where nobody is. `seconds` as in this
    file's head, 0 for no ramp."""
    parts = [new[each.id].left(seconds, now) if each.id in new else 0.0 for each in eligible]
    least = min(parts, default=0.0)
    left = {each.id: part - least for each, part in zip(eligible, parts, strict=True) if part > least}
    if not left:
        return None
    count = len(eligible)
    return Ramping(
        left,
        sum([each.running for each in eligible]) / count,
        sum([each.context for each in eligible]) / count,
        sum([each.recent for each in eligible]) / count,
    )
