"""`prefix_affinity`, the default policy: home, until waiting there costs more than computing again elsewhere.

    score(r) = (backlog(r) + u(r)) * lin(r)                             own wait + own prefill, at r's own speed
             + stickiness * cold(r) * lin*                              a cold miss takes capacity from everybody
             + decode * out * kv* * (context(r) + running(r) * prompt)  the others' KV reads for me, and mine for them
             + interruption * out * step(r) * y(r)                      r's prefill rate goes on interrupting my output
             + ramp(r)                                                  r has come empty and is not warm yet

in seconds; the least wins. u = uncached prompt tokens there, cold = those of them that are not hot, lin = seconds per
prefill token, y = recent prefill load, starred = mean over the eligible replicas. Stickiness and KV cost use means:
multiplied by a replica's own rate, differences in speed outweigh every queue. Source: POLICY section 1, but for the
last line but one, which is linear here (D35).

Two things bend "the least wins". A prompt of which nobody holds a cold block goes to the first replica in ring order
whose score is within its slack of the least: home. What home lacks of the hot blocks is no reason against it, since a
preamble that all ask for belongs on all replicas. And routers agree on a home without talking, which saves computing
the cold blocks once more, as far as they are asked for again. Both together are at most `home_slack`, and nothing for a
home that has more requests than the others (bounded load). Other near-ties, within `tie`, go in ring order too, which
makes the spill's second place a stable one.

A replica that is ramping (ramp.py) scores `left` times what decoding costs beside the mean load more, but not for the
prompts that the ring gives it: those are its share, and it has them at once. And it need not wait for the hot tokens of
a prompt to be computed: somebody has to be first, and until then it would get nothing of what everybody asks for.

Hard limits are applied first; when they cut everybody the answer is to wait.
"""

import math
from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from router.core.types import (
    Ask,
    Candidate,
    Cuts,
    Few,
    Limit,
    Lines,
    Ramping,
    Reading,
    Reason,
    ReplicaId,
    Rng,
    View,
    Wait,
)

ROUNDING = 1e-9
"""Seconds by which sums of floating point may put a bound above what it bounds."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Hard limits on one replica, checked before scoring; None switches one off. Start values of POLICY section 1, but
    for `max_kv_usage` (D28)."""

    max_queued_requests: int | None = 32
    max_backlog_seconds: float | None = 18.0
    max_kv_usage: float | None = None

    def cut(self, replica: Reading, behind: float) -> Limit | None:
        """The first limit that cuts a replica whose wait is `behind` seconds longer than the shortest one."""
        if self.max_queued_requests is not None and replica.queued >= self.max_queued_requests:
            return Limit.MAX_QUEUED_REQUESTS
        if self.max_backlog_seconds is not None and behind >= self.max_backlog_seconds:
            return Limit.MAX_BACKLOG_SECONDS
        if self.max_kv_usage is not None and replica.kv_usage is not None and replica.kv_usage >= self.max_kv_usage:
            return Limit.MAX_KV_USAGE
        return None


@dataclass(frozen=True, slots=True)
class Weights:
    """Constants of the score, from one 8-replica simulator (loadtests/README.md). Two are seconds, the others plain."""

    stickiness: float = 15.0
    decode: float = 0.25
    interruption: float = 1.0
    home_slack: float = 0.1
    tie: float = 0.005


class PrefixAffinity:
    """The rule above. Stateless: all that it knows is in the view."""

    def __init__(self, weights: Weights | None = None, limits: Limits | None = None) -> None:
        self._weights = weights or Weights()
        self._limits = limits or Limits()

    def pick(self, ask: Ask, view: View, now: float, rng: Rng) -> Candidate | Wait:
        """The best replica within the limits, or Wait for the limit that cut the most."""
        few = view.few() if ask.size else None
        if few is None or self._far_behind(few):
            replicas = view.replicas
            uncut, cuts = self.within_limits(replicas)
            scores = self._scores(uncut, view)
        else:
            replicas, scores, cuts = self._search(few, view)
        if not scores:
            return Wait(most_common(cuts), now, cuts)
        if not ask.size:
            return Candidate(_least(scores, rng), Reason.PASSTHROUGH, cuts)
        if few is None and len(replicas) == 1:
            return Candidate(replicas[0].id, Reason.ONLY, cuts)
        chosen = self._choose(scores, replicas, view)
        return Candidate(chosen, _reason(chosen, replicas, view), cuts)

    def lines(self, replica: Reading, view: View) -> Lines:
        """The score's lines in seconds, in the order of this file's head."""
        ramping = view.ramping
        ramp = 0.0 if ramping is None else self._ramp(replica, view, ramping, _home(view))
        return (*self._ordinary(replica, view), ramp)

    def _ordinary(self, replica: Reading, view: View) -> tuple[float, float, float, float]:
        """All lines but the ramp's."""
        weights = self._weights
        lin, output = replica.lin, view.output
        y = min(1.0, lin * replica.recent / view.tau)
        return (
            (replica.backlog + replica.uncached) * lin,
            weights.stickiness * replica.cold * view.lin,
            weights.decode * output * view.kv * (replica.context + replica.running * view.tokens),
            weights.interruption * output * replica.step * y,
        )

    def _ramp(self, replica: Reading, view: View, ramping: Ramping, home: ReplicaId | None) -> float:
        """The ramp's line. Below 0 where somebody must come first with what many ask for."""
        left = ramping.left.get(replica.id)
        if left is None:
            return 0.0
        hot = (replica.uncached - replica.cold) * replica.lin
        if replica.id == home:
            return -hot
        usual = Reading(
            replica.id, 0, 0, 0.0, ramping.running, ramping.context, ramping.recent, None, replica.lin, replica.step,
            0, 0.0, 0.0,
        )  # fmt: skip
        return left * sum(self._ordinary(usual, view)) - hot

    def cuts(self, replica: Reading) -> bool:
        """Whether a limit cuts it, or would beside an idle replica."""
        return self._limits.cut(replica, replica.backlog * replica.lin) is not None

    def within_limits(self, replicas: Sequence[Reading]) -> tuple[Sequence[Reading], Cuts]:
        """The replicas that no hard limit cuts, and what cut each of the others."""
        return self._within_limits(replicas, min([replica.backlog * replica.lin for replica in replicas]))

    def _within_limits(self, replicas: Sequence[Reading], shortest: float) -> tuple[Sequence[Reading], Cuts]:
        uncut: list[Reading] = []
        cuts: dict[ReplicaId, Limit] = {}
        for replica in replicas:
            cut = self._limits.cut(replica, replica.backlog * replica.lin - shortest)
            if cut is None:
                uncut.append(replica)
            else:
                cuts[replica.id] = cut
        return uncut, cuts

    def _scores(self, replicas: Sequence[Reading], view: View) -> dict[ReplicaId, float]:
        scores = {replica.id: self._score(replica, view) for replica in replicas}
        ramping = view.ramping
        if ramping is not None:
            home = _home(view)
            for replica in replicas:
                scores[replica.id] += self._ramp(replica, view, ramping, home)
        return scores

    def _score(self, replica: Reading, view: View) -> float:
        """That of a replica that is not ramping."""
        return sum(self._ordinary(replica, view))

    # In a large fleet: the same choice, from as few readings as it takes.

    def _far_behind(self, few: Few) -> bool:
        """Whether somebody waits so long that the limit may cut it: who is cut then depends on the shortest wait."""
        most = self._limits.max_backlog_seconds
        return most is not None and max([each.backlog * each.lin for each in few.readings], default=0.0) >= most

    def _search(self, few: Few, view: View) -> tuple[Sequence[Reading], dict[ReplicaId, float], Cuts]:
        """The readings, scores and cuts that decide: of all who may be near the least when a cold block is held, else
        of those on the ring up to the first that is near it."""
        found = {each.id: each for each in few.readings}
        uncut, cuts = self._within_limits(few.readings, 0.0)
        scores = self._scores(uncut, view)
        least = min(scores.values(), default=math.inf)
        floor = self._score(few.pole, view) - ROUNDING
        held = bool(found) and _cold_is_held(few.readings, view)
        if not held and self._near_home(min(least, few.order[0][0] + floor), view, found, scores):
            return list(found.values()), scores, cuts
        tie = self._weights.tie if held else 0.0
        for standing, replica in few.order:
            if standing + floor > least + tie:
                break
            least = min(least, self._add(replica, view, found, scores))
        if not held:
            near = bisect_right(few.order, least + self._most_slack(view) - floor, key=_standing)
            self._first_near(few.order[:near], least, view, found, scores)
        return list(found.values()), scores, cuts

    def _first_near(
        self,
        near: Sequence[tuple[float, ReplicaId]],
        least: float,
        view: View,
        found: dict[ReplicaId, Reading],
        scores: dict[ReplicaId, float],
    ) -> None:
        """Read who is the first in ring order within its slack of the least: all that may be, when there are few of
        them, or else the ring as far as it takes, which is short when there are many."""
        few = len(near) ** 2 < 8 * view.ready  # By tests/bench/pick.py; most of them have been read already.
        for replica in [each for _, each in near] if few else view.order():
            score = self._add(replica, view, found, scores)
            if not few and replica in found and score <= least + self._slack(found[replica], view):
                return

    def _near_home(
        self, bound: float, view: View, found: dict[ReplicaId, Reading], scores: dict[ReplicaId, float]
    ) -> bool:
        """Whether home is near enough to a bound that no score is below; it is read, to be told apart from a spill."""
        for replica in view.order():
            score = self._add(replica, view, found, scores)
            if replica in found:
                return score <= bound + self._slack(found[replica], view)
        return False

    def _add(
        self, replica: ReplicaId, view: View, found: dict[ReplicaId, Reading], scores: dict[ReplicaId, float]
    ) -> float:
        """Read and score one more, unless that was done; infinity where it is cut or cannot serve the ask."""
        reading = None if replica in found else view.read(replica)
        if reading is None:
            return scores.get(replica, math.inf)
        found[replica] = reading
        score = scores[replica] = self._score(reading, view)
        return score

    def _choose(self, scores: dict[ReplicaId, float], replicas: Sequence[Reading], view: View) -> ReplicaId:
        """The least score, or the first in ring order of those near enough to it."""
        least, held = min(scores.values()), _cold_is_held(replicas, view)
        weights = self._weights
        bar = least + (weights.tie if held else max(weights.tie, weights.home_slack))
        near = [each for each in replicas if scores.get(each.id, math.inf) <= bar]
        if len(near) > 1 and not held:
            near = [each for each in near if scores[each.id] <= least + self._slack(each, view)]
        return near[0].id if len(near) == 1 else _first(view.order(), {each.id for each in near})

    def _slack(self, replica: Reading, view: View) -> float:
        """Seconds that a replica may be worse than the best and still be taken in ring order, for a prompt of which
        nobody holds a cold block."""
        weights = self._weights
        if replica.running > view.running + 1.0:
            return weights.tie
        return self._worth(replica.uncached, replica.cold, view)

    def _most_slack(self, view: View) -> float:
        """No replica's is more."""
        return self._worth(max(1.0, view.tokens), view.cold, view)

    def _worth(self, uncached: float, cold: float, view: View) -> float:
        weights = self._weights
        lacks = uncached - cold + view.returning * cold
        return max(weights.tie, min(weights.home_slack, weights.tie + lacks * view.lin))


def _cold_is_held(replicas: Iterable[Reading], view: View) -> bool:
    """Whether somebody holds a part of the prompt that is not hot."""
    return min([replica.cold for replica in replicas]) < view.cold


def _home(view: View) -> ReplicaId | None:
    """Where the ring would have the prompt; None where there is no prompt."""
    return next(iter(view.order()), None) if view.tokens else None


def _standing(ranked: tuple[float, ReplicaId]) -> float:
    return ranked[0]


def most_common(cuts: Cuts) -> Limit:
    """The limit that cut the most replicas."""
    limits = list(cuts.values())
    return max(limits, key=limits.count)


def _reason(chosen: ReplicaId, replicas: Sequence[Reading], view: View) -> Reason:
    deepest = max([replica.depth for replica in replicas])
    if deepest:
        holds = [replica.id for replica in replicas if replica.depth == deepest]
        return Reason.HOLDER if chosen in holds else Reason.SPILL
    home = _first(view.order(), {replica.id for replica in replicas})
    return Reason.HOME if chosen == home else Reason.SPILL


def _first(order: Iterable[ReplicaId], among: Collection[ReplicaId]) -> ReplicaId:
    """The first in ring order. Raises ValueError when the ring knows none of them."""
    for replica in order:
        if replica in among:
            return replica
    raise ValueError("the ring knows none of the replicas to choose from")


def _least(scores: dict[ReplicaId, float], rng: Rng) -> ReplicaId:
    """Least loaded; a tie is drawn, since without a prompt there is no key to order by."""
    least = min(scores.values())
    return rng.choice([replica for replica, score in scores.items() if score == least])
