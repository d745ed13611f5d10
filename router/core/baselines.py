"""The policies to compare with, as their authors wrote them, and the table of their names.

Each says whose rule it is and what was left out of it. They read the same view as the default policy, so that a
comparison is one of rules and not of knowledge: where an author's router keeps a belief of its own (a text tree, an
index fed by events), ours stands in for it. They know no hard limits of their own and answer no Wait.

What every one of them leaves out: sampling among unequal replicas for exploration (temperature, epsilon), which only
costs the comparison noise, and background eviction, which our residency does. Where an author takes the first of
equals in whatever order a list or map has, or draws, ours draws.
"""

from collections.abc import Callable, Sequence
from math import ceil

from router.core.types import Ask, Candidate, Lines, Policy, Reading, Reason, Rng, View


class _Unscored:
    def lines(self, replica: Reading, view: View) -> Lines | None:
        return None

    def cuts(self, replica: Reading) -> bool:
        return False


# Blind to the prompt.


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
        return _drawn(view.replicas, rng)


class LeastRequests(_Unscored):
    """The replica with the fewest requests in flight; a tie is drawn."""

    def pick(self, ask: Ask, view: View, now: float, rng: Rng) -> Candidate:
        return _fewest(view.replicas, rng)


class PowerOfTwo(_Unscored):
    """The one with fewer requests in flight of two drawn replicas; of equals the first drawn.

    Source: Mitzenmacher, The Power of Two Choices in Randomized Load Balancing; as in SGLang's and vLLM's routers.
    """

    def pick(self, ask: Ask, view: View, now: float, rng: Rng) -> Candidate:
        """The lighter of two."""
        first = rng.choice(view.replicas)
        others = [replica for replica in view.replicas if replica is not first]
        second = rng.choice(others) if others else first
        return Candidate((first if first.requests <= second.requests else second).id, Reason.POLICY)


# By the ring alone.


class ConsistentHash(_Unscored):
    """The ring's home of the prompt's first `depth` blocks, load or no load; the whole prompt where it is shorter.

    Source: Karger et al., Consistent Hashing and Random Trees; what an ingress does by a header or a prompt's start.
    """

    def __init__(self, depth: int = 1) -> None:
        self._depth = depth

    def pick(self, ask: Ask, view: View, now: float, rng: Rng) -> Candidate:
        """Home."""
        eligible = {replica.id for replica in view.replicas}
        home = next(replica for replica in view.order_at(self._depth) if replica in eligible)
        return Candidate(home, Reason.POLICY)


class BoundedLoad(_Unscored):
    """The first on the ring, from the home of the prompt's first `depth` blocks on, that is not at its bound.

    With this request nobody has more than ceil(c * (total + 1) / n) requests, total being those in flight on the n
    eligible replicas; so somebody is always below it. Source: Mirrokni, Thorup, Zadimoghaddam, Consistent Hashing with
    Bounded Loads (c = 1 + epsilon); c 1.25 and a prompt's start as the key as in KubeAI, which leaves the bound
    unrounded and goes home when that leaves nobody, as it does below n / c requests in flight.
    """

    def __init__(self, c: float = 1.25, depth: int = 1) -> None:
        self._c, self._depth = c, depth

    def pick(self, ask: Ask, view: View, now: float, rng: Rng) -> Candidate:
        """The first below the bound."""
        requests = {replica.id: replica.requests for replica in view.replicas}
        bound = ceil(self._c * (sum(requests.values()) + 1) / len(requests))
        order = view.order_at(self._depth)
        first = next(each for each in order if requests.get(each, bound) < bound)  # Who is not eligible is at it, too.
        return Candidate(first, Reason.POLICY)


# By what is cached.


class PrefixOnly(_Unscored):
    """The deepest holder, load or no load; a tie, also that of a prompt which nobody holds, is drawn.

    Source: prefixaware routing of vLLM's production stack; llm-d's prefix-cache-scorer on its own.
    """

    def pick(self, ask: Ask, view: View, now: float, rng: Rng) -> Candidate:
        return _drawn(_deepest(view), rng)


class CacheThreshold(_Unscored):
    """The best match if it is more than `threshold` of the prompt, otherwise the fewest requests in flight; also these
    when the loads are further apart than `gap` requests and than a factor `ratio`.

    Source: cache_aware of SGLang's and vLLM's routers, with SGLang's start values. Their first versions took the
    smallest tree for a poor match, which the present ones do not. Left out: their tree forgets a replica that a prefix
    was once sent to when a later one comes by, ours knows them all.
    """

    def __init__(self, threshold: float = 0.5, gap: int = 32, ratio: float = 1.1) -> None:
        self._threshold, self._gap, self._ratio = threshold, gap, ratio

    def pick(self, ask: Ask, view: View, now: float, rng: Rng) -> Candidate:
        """The best match, or the fewest requests."""
        loads = [replica.requests for replica in view.replicas]
        least, most = min(loads), max(loads)
        if most - least > self._gap and most > self._ratio * least:
            return _fewest(view.replicas, rng)
        deepest = _deepest(view)
        return _drawn(deepest, rng) if _share(deepest[0], view) > self._threshold else _fewest(view.replicas, rng)


# By what is cached and what is queued.


class Hysteresis(_Unscored):
    """The shortest time to first token, but the deepest holder as long as that costs at most `seconds` more.

    Time to first token as the default policy's first line has it: (backlog + uncached) at the replica's own speed.
    Source: the TTFT gate of llm-d's latency-scorer (affinityMaxTTFTPenaltyMs, 5 s), without its threshold on the match
    and with a measured backlog for its trained predictor.
    """

    def __init__(self, seconds: float = 5.0) -> None:
        self._seconds = seconds

    def pick(self, ask: Ask, view: View, now: float, rng: Rng) -> Candidate:
        """The deepest holder, or the shortest wait."""
        deepest = _deepest(view)
        stay, go = min([_first_token(each) for each in deepest]), min([_first_token(each) for each in view.replicas])
        kept = deepest[0].depth > 0 and stay - go <= self._seconds
        return _least(deepest if kept else view.replicas, _first_token, rng)


class StickyUntilSaturated(_Unscored):
    """The least backlog + uncached of those that hold at least `match` of the prompt; of all when nobody does, or when
    the least backlog of those is more than `seconds` of prefill longer than the least of the others.

    Source: llm-d's optimized baseline, prefix-cache-affinity-filter (0.80, 18 s) before token-load-scorer. Its one
    calibrated rate, peakPrefillThroughput, is the fleet's mean here. Left out: 1 % of requests pass its gate unseen.
    """

    def __init__(self, match: float = 0.8, seconds: float = 18.0) -> None:
        self._match, self._seconds = match, seconds

    def pick(self, ask: Ask, view: View, now: float, rng: Rng) -> Candidate:
        """The least of those that stick, or of all."""
        sticky = [replica for replica in view.replicas if _share(replica, view) >= self._match]
        others = [replica for replica in view.replicas if _share(replica, view) < self._match]
        if sticky and others:
            gap = min([replica.backlog for replica in sticky]) - min([replica.backlog for replica in others])
            if gap * view.lin > self._seconds:
                sticky = []
        return _least(sticky or view.replicas, _queued, rng)


class QueuedTimesBatch(_Unscored):
    """The least product of the prefill to do, (backlog + uncached) tokens, and the batch, (in flight + 1) requests.

    Source: Zhang et al., LMetric: Simple is Better (P-token x BS). Left out is its detector of the rare case in which a
    product misleads, as that of an empty batch, which costs nothing whatever is cached; the 1 keeps that one out.
    """

    def pick(self, ask: Ask, view: View, now: float, rng: Rng) -> Candidate:
        return _least(view.replicas, _product, rng)


class LinearCost(_Unscored):
    """The least sum of prefill blocks, (backlog + uncached), and decode blocks, the context in flight.

    Source: Dynamo's KV router with its start values: overlap weight 1, temperature 0. It adds the ask's own blocks to
    every replica's, which changes no order, nor does the size of a block: both are left out. Left out as well: it
    counts a block that several running requests share once, and equal costs go to the smaller index before a draw.
    """

    def pick(self, ask: Ask, view: View, now: float, rng: Rng) -> Candidate:
        return _least(view.replicas, _tokens_held, rng)


def _share(replica: Reading, view: View) -> float:
    """Share of the prompt's tokens believed resident there; 0 for an ask without a prompt."""
    return 1.0 - replica.uncached / view.tokens if replica.depth else 0.0


def _queued(replica: Reading) -> float:
    return replica.backlog + replica.uncached


def _first_token(replica: Reading) -> float:
    return (replica.backlog + replica.uncached) * replica.lin


def _product(replica: Reading) -> float:
    return (replica.backlog + replica.uncached) * (replica.requests + 1)


def _tokens_held(replica: Reading) -> float:
    return replica.backlog + replica.uncached + replica.context


def _requests(replica: Reading) -> float:
    return replica.requests


def _deepest(view: View) -> list[Reading]:
    """The replicas with the longest match: all of them when nobody holds anything."""
    depth = max([replica.depth for replica in view.replicas])
    return [replica for replica in view.replicas if replica.depth == depth]


def _fewest(among: Sequence[Reading], rng: Rng) -> Candidate:
    return _least(among, _requests, rng)


def _least(among: Sequence[Reading], cost: Callable[[Reading], float], rng: Rng) -> Candidate:
    costs = [cost(replica) for replica in among]
    least = min(costs)
    return _drawn([replica for replica, each in zip(among, costs, strict=True) if each == least], rng)


def _drawn(among: Sequence[Reading], rng: Rng) -> Candidate:
    return Candidate(rng.choice(among).id, Reason.POLICY)


BASELINES: dict[str, Callable[[], Policy]] = {
    "round_robin": RoundRobin,
    "random": RandomChoice,
    "least_requests": LeastRequests,
    "power_of_two": PowerOfTwo,
    "consistent_hash": ConsistentHash,
    "bounded_load": BoundedLoad,
    "cache_threshold": CacheThreshold,
    "hysteresis": Hysteresis,
    "sticky_until_saturated": StickyUntilSaturated,
    "queued_times_batch": QueuedTimesBatch,
    "linear_cost": LinearCost,
    "prefix_only": PrefixOnly,
}
"""Name in the configuration -> how to make one with its author's start values. Never written to."""
