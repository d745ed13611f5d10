"""The policies to compare with, as their authors wrote them. They know no hard limits of their own."""

from collections.abc import Callable

from router.core.types import Ask, Candidate, Lines, Policy, Reading, Reason, Rng, View


class _Unscored:
    def lines(self, replica: Reading, view: View) -> Lines | None:
        return None


class RoundRobin(_Unscored):
    """Each request to the next replica in turn, whatever it carries."""

    def __init__(self) -> None:
        self._turn = -1

    def pick(self, ask: Ask, view: View, now: float, rng: Rng) -> Candidate:
        self._turn += 1
        return Candidate(view.replicas[self._turn % len(view.replicas)].id, Reason.POLICY)


class RandomChoice(_Unscored):
    """Each request to a random replica."""

    def pick(self, ask: Ask, view: View, now: float, rng: Rng) -> Candidate:
        return Candidate(rng.choice(view.replicas).id, Reason.POLICY)


class LeastRequests(_Unscored):
    """The replica with the fewest requests in flight; a tie is drawn."""

    def pick(self, ask: Ask, view: View, now: float, rng: Rng) -> Candidate:
        least = min(replica.requests for replica in view.replicas)
        return Candidate(rng.choice([r.id for r in view.replicas if r.requests == least]), Reason.POLICY)


class ConsistentHash(_Unscored):
    """The ring's home of the prompt's first `depth` blocks, load or no load; the whole prompt where it is shorter."""

    def __init__(self, depth: int = 1) -> None:
        self._depth = depth

    def pick(self, ask: Ask, view: View, now: float, rng: Rng) -> Candidate:
        eligible = {replica.id for replica in view.replicas}
        home = next(replica for replica in view.order_at(self._depth) if replica in eligible)
        return Candidate(home, Reason.POLICY)


BASELINES: dict[str, Callable[[], Policy]] = {
    "round_robin": RoundRobin,
    "random": RandomChoice,
    "least_requests": LeastRequests,
    "consistent_hash": ConsistentHash,
}
"""Name in the configuration -> how to make one. Never written to."""
