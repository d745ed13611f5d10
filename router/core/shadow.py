"""What another policy would have done: it is asked what the live one was asked, and nothing goes where it says.

Two fleets are played side by side, each with the sampled asks alone: in one they go where the live policy sent them, in
the other where the shadow's policy does, by its own loads and its own residency. Both are read by the same model, so
that what is wrong with the model is wrong on both sides, and what differs is the choice. Neither hears what engines
count as cached: that is true of the real fleet only, and would correct one side and not the other.

What is not so in a shadow, and cannot be known:

- First tokens and ends come when they came from the real replica. A shadow that piles requests up is not seen to be
  slower for it; that it piles them up is (`ahead`). Speeds are what the workers have learned.
- An ask that the shadow's limits would have let wait goes nowhere in it, and is counted as that.
- Engines' gauges, ejections on trial and refusals (`full`) are the real fleet's, and play no part.

**The sample.** Asks drawn at random would be strangers to one another, and nothing would be found cached. So families
are drawn: all asks with the same adaptive key (recent.py: the turns of a chat, the users of a prefix that is not
everybody's), by a hash of it under a threshold, as SHARDS does with a cache's blocks (Waldspurger et al., Efficient MRC
Construction with SHARDS, FAST '15). The hash is taken anew: a key is its own place on the ring, and the lowest tenth of
them would have a tenth of the homes. Of each KV cache the sample has its share. To the load on each replica that of
the asks left out is added: as much as belongs to all those in flight, where the sampled ones are as far as that is no
chance, and evenly for the rest. (All of it where the sampled ones are: a tenth of four requests a replica leaves most
of them empty, and every policy finds an empty one.)

Of F families that are equally large, and whose hit shares spread by s, a sample's hit share is off by about
s * sqrt((1 - share) / (share * F)); a few large families make F small. Blocks that everybody shares are in each
sample whole, and take 1 / share of the room that they have in the real caches. With a share of 1 there is neither.

Memory is bounded by `index_blocks` on each side, and by the asks that are open, which whoever calls bounds.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from router.core.backlog import Totals
from router.core.baselines import RoundRobin
from router.core.fleet import Fleet, FleetSettings
from router.core.lease import Lease
from router.core.member import Replica
from router.core.types import Ask, Outcome, Policy, ReplicaId, Rng, Route, State, Usage

SEED = 0x5AD0
"""Of the hash by which families are drawn; any other than the ring's and the chains' would do."""

FOLLOWED = "the live policy's choice"


def drawn(family: int, share: float) -> bool:
    """Whether a family, a 64-bit hash, is in the sample of that share, 0 to 1."""
    return xxh3_64_intdigest(family.to_bytes(8, "little"), SEED) < share * 2**64


class Key(NamedTuple):
    """One ask of one worker."""

    worker: str
    serial: int


@dataclass(slots=True)
class Side:
    """What came of the asks on one side. `predicted` are the prompt tokens that were believed cached where they went,
    `ahead` the requests that were in flight there, summed over the asks."""

    predicted: int = 0
    ahead: int = 0


class Counts:
    """Over the sampled asks since the shadow began: how many went to the same replica, to another, and nowhere; of
    those that both sides placed the prompt tokens, and what came of them; asks that there was no time for; errors."""

    __slots__ = ("errors", "left_out", "live", "nowhere", "other", "policy", "prompt_tokens", "same", "shadow")

    def __init__(self, policy: str) -> None:
        self.policy = policy
        self.same = self.other = self.nowhere = self.prompt_tokens = self.left_out = self.errors = 0
        self.live, self.shadow = Side(), Side()

    def choices(self) -> tuple[tuple[str, int], ...]:
        """Sampled asks by what the shadow chose."""
        return ("same", self.same), ("other", self.other), ("none", self.nowhere)

    def sides(self) -> tuple[tuple[str, Side], ...]:
        """The two, by name."""
        return ("live", self.live), ("shadow", self.shadow)


class _World:
    """A fleet as it is when the sample goes where a policy says. `rest` is how many asks were left out for each."""

    def __init__(self, policy: Policy, settings: FleetSettings, follows: bool) -> None:
        self.fleet = Fleet(policy, settings)
        self._follows = follows
        self._rest = 1 / settings.sample - 1

    def align(self, members: Iterable[Replica], now: float) -> None:
        """Have the members of the real fleet, in their states and with their speeds."""
        fleet = self.fleet
        known = {member.id for member in fleet.replicas}
        for real in members:
            if real.id not in known:
                fleet.join([real.spec], now)
                fleet.replica(real.id).learns = False
            self._copy(fleet.replica(real.id), real, now)
            known.discard(real.id)
        for gone in known:
            fleet.leave(gone)

    def _copy(self, member: Replica, real: Replica, now: float) -> None:
        """A live policy's choice was possible, whatever the supervisor knew of it: who follows it excludes nobody."""
        fleet = self.fleet
        if member.models is not real.models:
            fleet.serves(member.id, real.models)
        spec = replace(real.spec, max_concurrency=None) if self._follows else real.spec
        if member.spec != spec:
            member.respec(spec)
        rates = (real.lin, real.step, real.known_step, real.kv)
        if (member.lin, member.step, member.known_step, member.kv) != rates:
            member.lin, member.step, member.known_step, member.kv = rates
            member.changes += 1
        fleet.engine(member.id, real.epoch, real.kv_tokens, now)
        state = State.READY if self._follows or real.state is State.READY else State.DOWN
        fleet.mark(member.id, state, FOLLOWED if self._follows else real.reason, now)

    def route(self, ask: Ask, now: float, rng: Rng) -> Route | None:
        """Where the ask goes; None where nobody may have it."""
        if self._rest:
            self._weigh(ask.model, now)
        decision = self.fleet.route(ask, now, rng)
        return decision if isinstance(decision, Route) else None

    def place(self, ask: Ask, route: Route, side: Side, now: float) -> Lease:
        """Let it go there, and count that."""
        side.predicted += route.cached
        side.ahead += self.fleet.replica(route.replica).open
        return self.fleet.lease(route, ask, now)

    def _weigh(self, model: str | None, now: float) -> None:
        """Add the load of the asks left out, before a route: as that of the sampled ones is, as far as these tell the
        replicas apart, and for the rest spread evenly."""
        members = [member for member in self.fleet.ready if model is None or model in member.models]
        own = [member.totals(now, 0.0) for member in members]
        trust = trusted([each.requests for each in own])
        means = [sum(column) / len(own) for column in zip(*own, strict=True)]
        for member, mine in zip(members, own, strict=True):
            whole = [self._rest * (trust * one + (1 - trust) * mean) for one, mean in zip(mine, means, strict=True)]
            requests, unstarted, backlog, context, drained, drained_tokens, recent, _ = whole
            member.others_at = now
            member.others = Totals(
                round(requests),
                round(unstarted),
                round(backlog),
                round(context),
                round(drained),
                drained_tokens,
                recent,
            )
            member.changes += 1


def trusted(counts: Sequence[int]) -> float:
    """How far a sample's counts tell replicas apart, 0 to 1, and are not chance: the share of their variance beyond the
    mean, which is what a Poisson variable has of it (empirical Bayes: Robbins 1956, Efron and Morris 1973)."""
    if len(counts) < 2:
        return 1.0
    mean = sum(counts) / len(counts)
    variance = sum([(count - mean) ** 2 for count in counts]) / (len(counts) - 1)
    return max(0.0, 1 - mean / variance) if variance else 0.0


class Shadow:
    """Both sides. Events are told in the order of their time; `settings` are the real fleet's, with the sample's share.

    Raises nothing of its own; what a policy raises is the caller's to contain, who then begins anew.
    """

    def __init__(self, policy: Policy, settings: FleetSettings, counts: Counts, rng: Rng) -> None:
        settings = replace(
            settings, index_blocks=max(1, round(settings.index_blocks * settings.sample)), stall=math.inf, shares=False
        )
        self._live = _World(RoundRobin(), replace(settings, max_concurrency=None), follows=True)
        self._shadow = _World(policy, settings, follows=False)
        self._counts, self._rng = counts, rng
        self._open: dict[Key, list[Lease]] = {}

    def align(self, members: Iterable[Replica], now: float) -> None:
        """Have the members of the real fleet. Called before events, as often as they come."""
        members = list(members)
        self._live.align(members, now)
        self._shadow.align(members, now)

    def sent(self, key: Key, ask: Ask, replica: ReplicaId, now: float) -> None:
        """The live policy sent an ask to a replica. Nothing happens for one that has left since."""
        counts, live, shadow = self._counts, self._live, self._shadow
        followed = live.route(ask._replace(only=replica), now, self._rng)
        if followed is None:
            return
        chosen = shadow.route(ask, now, self._rng)
        side = Side() if chosen is None else counts.live  # Both sides are counted over the same asks.
        leases = self._open[key] = [live.place(ask, followed, side, now)]
        if chosen is None:
            counts.nowhere += 1
            return
        leases.append(shadow.place(ask, chosen, counts.shadow, now))
        counts.prompt_tokens += followed.tokens
        if chosen.replica == replica:
            counts.same += 1
        else:
            counts.other += 1

    def started(self, key: Key, now: float) -> None:
        """Its first token came."""
        for lease in self._open.get(key, ()):
            lease.first_token(now)

    def ended(self, key: Key, outcome: Outcome, usage: Usage, now: float) -> None:
        """It ended. What its engine had cached is no news for a shadow."""
        told = usage._replace(cached_tokens=None)
        for lease in self._open.pop(key, ()):
            lease.finish(outcome, told, now)

    def lost(self, worker: str, now: float) -> None:
        """A worker's asks will not be heard of any more."""
        for key in [key for key in self._open if key.worker == worker]:
            self.ended(key, Outcome.ABORTED, Usage(), now)
