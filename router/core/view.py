"""The fleet as a policy may read it for one ask (types.View), and a policy's pick as the fleet's answer."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from router.core.backlog import Assumed
from router.core.group import Group
from router.core.member import Replica
from router.core.ranking import Means, Ranking
from router.core.types import NO_CUTS, Ask, Candidate, Cuts, Few, Ramping, Reading, Reason, ReplicaId, Route, Wait


class FleetView:
    """types.View for one ask. Of a small fleet all are read at once; of a large one, with a `ranking`, those `anew`.

    `cuts` are those of them that the fleet has cut; nobody else is. The ring is asked only when a policy is.
    """

    __slots__ = (
        "_anew", "_ask", "_assumed", "_coldness", "_cuts", "_depths", "_group", "_now", "_per_block", "_ranking",
        "_replicas", "_running", "_some", "_step", "_tail", "_whole", "cold", "known", "kv", "lin", "output",
        "ramping", "ready", "returning", "tau", "tokens",
    )  # fmt: skip

    def __init__(
        self,
        ask: Ask,
        group: Group,
        eligible: Sequence[Replica],
        depths: Mapping[ReplicaId, int],
        assumed: Mapping[ReplicaId, Assumed],
        block: int,
        now: float,
        averages: Means,
        ranking: Ranking | None = None,
        anew: Collection[ReplicaId] = (),
        cuts: Cuts = NO_CUTS,
    ) -> None:
        self._ask, self._group, self._depths, self._assumed, self._now = ask, group, depths, assumed, now
        self._ranking, self._anew, self._cuts = ranking, anew, cuts
        self.lin, self._step, self.kv, self.output, self.tau = averages
        self.ready = len(group.ready)
        chain = ask.chain
        tokens = self.tokens = float(ask.size * group.learned.tokens_per_byte if ask.tokens is None else ask.tokens)
        per_block = self._per_block = tokens * block / ask.size if ask.size else 0.0
        self._whole = max(1.0, tokens)
        self._coldness = group.recent.coldness(chain, self.ready)
        self.returning = group.recent.returning
        self._tail = tokens - len(chain) * per_block
        self.cold = self._coldness.before(len(chain)) * per_block + self._tail
        self.known = self._some = [self._read(member) for member in eligible]
        self._replicas: Sequence[Reading] | None = None if ranking else self.known
        self._running = -1.0 if ranking is None else ranking.running
        self.ramping: Ramping | None = None if ranking is None else ranking.ramping

    @property
    def replicas(self) -> Sequence[Reading]:
        """All of them; in a large fleet they are read now."""
        if self._replicas is None:
            members = [member for member in self._group.ready if member.id not in self._cuts]
            self.known = [self._read(member) for member in members]
            self._replicas = self.known
        return self._replicas

    @property
    def running(self) -> float:
        if self._running < 0.0:
            self._running = sum([each.running for each in self.known]) / len(self.known)
        return self._running

    def few(self) -> Few | None:
        if self._ranking is None or 2 * len(self._anew) > self.ready:
            return None
        return self._ranking.few(self._some, self._whole, self.cold)

    def read(self, replica: ReplicaId) -> Reading | None:
        member = None if self._ranking is None or replica in self._anew else self._ranking.calm.get(replica)
        return None if member is None else self._read(member)

    def _read(self, member: Replica) -> Reading:
        assumed = self._assumed.get(member.id)
        depth = self._depths.get(member.id, 0)
        if not depth:
            return member.read(self._now, self.tau, self.lin, self._step, 0, self._whole, self.cold, assumed)
        coldness = self._coldness
        left = (coldness.before(len(self._ask.chain)) - coldness.before(depth)) * self._per_block + self._tail
        uncached = max(1.0, self.tokens - depth * self._per_block)
        return member.read(self._now, self.tau, self.lin, self._step, depth, uncached, left, assumed)

    def depth(self, replica: ReplicaId) -> int:
        """Blocks of the chain believed resident there."""
        return self._depths.get(replica, 0)

    def cached(self, depth: int) -> int:
        """Prompt tokens in the first `depth` blocks."""
        return int(depth * self._per_block)

    def order(self) -> Iterable[ReplicaId]:
        return self._group.ring.walk(self._group.recent.key(self._ask.chain, self._ask.tail).hash)

    def order_at(self, depth: int) -> Iterable[ReplicaId]:
        chain = self._ask.chain
        return self._group.ring.walk(chain[depth - 1] if len(chain) >= depth else self._ask.tail)


def answer(view: FleetView, picked: Candidate | Wait, cuts: Cuts, reason: Reason | None) -> Route | Wait:
    """A policy's pick as the fleet's answer, with what the fleet itself had cut; `reason` overrules the policy's."""
    cuts = {**cuts, **picked.cuts} if cuts else picked.cuts
    if isinstance(picked, Wait):
        return picked._replace(cuts=cuts)
    depth = view.depth(picked.replica)
    reachable = max([reading.depth for reading in view.known]) if view.known else 0
    return Route(
        picked.replica, reason or picked.reason, round(view.tokens), view.cached(depth), view.cached(reachable), cuts
    )
