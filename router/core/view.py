"""The fleet as a policy may read it for one ask (types.View), and a policy's pick as the fleet's answer."""

from collections.abc import Mapping, Sequence

from router.core.backlog import Assumed, mean_lin, mean_step
from router.core.group import Group
from router.core.member import Replica
from router.core.types import Ask, Candidate, Cuts, Reason, ReplicaId, Route, Wait


class FleetView:
    """types.View for one ask. Replicas are read at once, the ring only when a policy asks for an order."""

    __slots__ = ("_ask", "_group", "_per_block", "cold", "kv", "lin", "output", "ready", "replicas", "tau", "tokens")

    def __init__(
        self,
        ask: Ask,
        group: Group,
        eligible: Sequence[Replica],
        depths: dict[ReplicaId, int],
        assumed: Mapping[ReplicaId, Assumed],
        block: int,
        now: float,
    ) -> None:
        learned, chain = group.learned, ask.chain
        self._ask, self._group = ask, group
        self.ready = len(group.ready)
        self.output, self.tau = learned.output.value, learned.tau.value
        tokens = self.tokens = float(ask.size * learned.tokens_per_byte if ask.tokens is None else ask.tokens)
        per_block = self._per_block = tokens * block / ask.size if ask.size else 0.0
        coldness = group.recent.coldness(chain, self.ready)
        cold = coldness.before(len(chain))
        tail = tokens - len(chain) * per_block
        self.cold = cold * per_block + tail
        self.kv = sum([member.kv for member in eligible]) / len(eligible)
        lin = self.lin = mean_lin([member.lin for member in eligible])
        step = mean_step([member.known_step for member in eligible])
        self.replicas = []
        for member in eligible:
            depth = depths.get(member.id, 0)
            uncached = max(1.0, tokens - depth * per_block)
            left = (cold - coldness.before(depth)) * per_block + tail if depth else self.cold
            self.replicas.append(member.read(now, self.tau, lin, step, depth, uncached, left, assumed.get(member.id)))

    def cached(self, depth: int) -> int:
        """Prompt tokens in the first `depth` blocks."""
        return int(depth * self._per_block)

    def order(self) -> Sequence[ReplicaId]:
        return self._group.ring.order(self._group.recent.key(self._ask.chain, self._ask.tail).hash)

    def order_at(self, depth: int) -> Sequence[ReplicaId]:
        chain = self._ask.chain
        return self._group.ring.order(chain[depth - 1] if len(chain) >= depth else self._ask.tail)


def answer(view: FleetView, picked: Candidate | Wait, cuts: Cuts, reason: Reason | None) -> Route | Wait:
    """A policy's pick as the fleet's answer, with what the fleet itself had cut; `reason` overrules the policy's."""
    cuts = {**cuts, **picked.cuts} if cuts else picked.cuts
    if isinstance(picked, Wait):
        return picked._replace(cuts=cuts)
    depth = reachable = 0
    for reading in view.replicas:
        reachable = max(reachable, reading.depth)
        if reading.id == picked.replica:
            depth = reading.depth
    return Route(
        picked.replica, reason or picked.reason, round(view.tokens), view.cached(depth), view.cached(reachable), cuts
    )
