"""The one mutable object: members with their load, residency, and per model a ring, a window and what was learned.

`route` answers and changes nothing but the policy's own turn; `lease` charges. Nothing awaits between the two, so a
view needs no lock and no copy. Members change by replacement: survivors keep their state, and a ring is rebuilt only
when the replicas of its model have changed. A replica that goes down keeps its place on the ring and its residency;
only a new epoch, or leaving, ends them.
"""

import copy
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from router.core.backlog import Assumed, Learned
from router.core.blocks import BLOCK_BYTES
from router.core.ejection import EjectionSettings
from router.core.explain import Explanation, candidates
from router.core.group import Group
from router.core.lease import Lease
from router.core.member import Replica, ReplicaSpec, Transition, uncut
from router.core.peers import ModelNews, Peers
from router.core.policy import most_common
from router.core.ramp import SECONDS, ramping
from router.core.ranking import LEAST, Ranking, mean_lin, means
from router.core.recent import Key
from router.core.residency import Residency
from router.core.snapshots import Snapshots
from router.core.types import (
    NO_CUTS,
    Ask,
    Cuts,
    EngineSample,
    Policy,
    Reason,
    Refusal,
    RefusalCause,
    ReplicaId,
    Rng,
    Route,
    State,
    Wait,
)
from router.core.view import FleetView, answer

RETRY_AFTER_DOWN = 1.0
"""Seconds a client is told to wait when nobody is ready: one probe's interval."""

NOBODY_READY = Refusal(RefusalCause.NO_REPLICA, RETRY_AFTER_DOWN)
NOBODY: frozenset[ReplicaId] = frozenset()
NOTHING: Mapping[ReplicaId, Assumed] = {}
UNPROMPTED = Ask(None)


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """`block` in bytes, `index_blocks` over all replicas, `stall` and `ramp` in seconds; a None limit is off."""

    block: int = BLOCK_BYTES
    index_blocks: int = 1_000_000
    max_concurrency: int | None = None
    stall: float = 3.0
    ejection: EjectionSettings = field(default_factory=EjectionSettings)
    ramp: float = SECONDS
    shares: bool = False  # Placements are told also while no other router is heard: it may be out of reach.
    sample: float = 1.0  # The share of the requests that come here: of each KV cache that much is theirs (shadow.py).


class Fleet:
    """Members, load, residency and rings of all models behind one router."""

    def __init__(self, policy: Policy, settings: FleetSettings | None = None) -> None:
        self._policy = policy
        self._settings = settings or FleetSettings()
        self._replicas: dict[ReplicaId, Replica] = {}
        self._groups: dict[str, Group] = {}
        self._everyone = Group()
        self._began: float | None = None  # When the first replicas joined.
        self.residency = Residency()
        self.peers = Peers(self._replicas, self._groups)
        self.snapshots = Snapshots(self._replicas, self.residency)

    # Members.

    @property
    def replicas(self) -> Sequence[Replica]:
        """All members, in the order in which they joined."""
        return self._everyone.members

    @property
    def ready(self) -> Sequence[Replica]:
        """The members that are ready."""
        return self._everyone.ready

    @property
    def models(self) -> Sequence[str]:
        """Models that some member has said it serves, by name."""
        return sorted(self._groups)

    def join(self, specs: Iterable[ReplicaSpec], now: float) -> None:
        """Add replicas, as `starting`. Raises ValueError for an id that is a member already."""
        joining: dict[ReplicaId, Replica] = {}
        self._began = now if self._began is None else self._began
        for spec in specs:
            if spec.id in self._replicas or spec.id in joining:
                raise ValueError(f"replica {spec.id!r} is a member already")
            joining[spec.id] = Replica(spec, now)
            joining[spec.id].empty = now > self._began
        self._replicas |= joining
        for replica in joining:
            self.residency.join(replica)
        self._everyone.become(self._replicas.values())

    def leave(self, replica: ReplicaId) -> None:
        """Take a replica out for good. Its open leases end as they would have; nothing here knows them any more.

        Raises KeyError for an id that is no member.
        """
        member = self._replicas.pop(replica)
        member.state = State.GONE
        self.residency.leave(replica)
        self.peers.left(replica)
        self._everyone.become(self._replicas.values())
        self._regroup(member.models)

    def adjust(self, policy: Policy | None, settings: FleetSettings) -> None:
        """Route by other settings from now on, and by another policy unless that is None. A block is for life."""
        self._policy, self._settings = policy or self._policy, settings
        for group in (self._everyone, *self._groups.values()):
            group.ranking = None

    def replica(self, replica: ReplicaId) -> Replica:
        """One member. Raises KeyError for an id that is none."""
        return self._replicas[replica]

    def mark(self, replica: ReplicaId, state: State, reason: str, now: float) -> Transition | None:
        """Set a replica's state; the answer tells of a change, and is None when there was none.

        Probes cannot make an ejected one ready: it is out for what they do not see. Whoever marks calls `readmit` next.
        """
        member = self._replicas[replica]
        if member.state is state or (member.state is State.EJECTED and state is State.READY):
            return None
        member.empty = member.empty or (state is not State.READY and self.residency.empty(replica))
        member.conduct.on_trial = False  # What comes back from elsewhere is another process, or was not broken.
        return self._turn(member, state, reason, now)

    def _turn(self, member: Replica, state: State, reason: str, now: float) -> Transition:
        transition = Transition(member.id, member.state, state, reason)
        member.state, member.since, member.reason = state, now, reason
        if state is State.READY:
            member.enter(now)
        self._count(member)
        return transition

    def _count(self, member: Replica) -> None:
        for model in member.models:
            self._groups[model].count()
        self._everyone.count()

    def ended(self, lease: Lease, failed: bool, now: float) -> Transition | None:
        """A send came to its end, in a failure or well (ejection.py); the transition when that ejects the replica.

        One that began before the replica's present state says nothing of it, and is not counted.
        """
        member, settings = lease.member, self._settings.ejection
        if member.state is not State.READY or lease.at < member.since:
            return None
        conduct = member.conduct
        if not conduct.ended(failed, settings, now):
            return None
        if self._needed(member):
            conduct.on_trial = False
            return None
        return self._turn(member, State.EJECTED, f"{conduct.told(now)}, for {conduct.eject(settings, now):g} s", now)

    def told_ejected(self, replica: ReplicaId, reason: str, until: float, now: float) -> Transition | None:
        """Another router has ejected a replica; the transition when that does so here, which is bounded as ever."""
        member = self._replicas.get(replica)
        if member is None or not member.alive or self._needed(member):
            return None
        member.conduct.until, member.conduct.on_trial = until, False
        return None if member.state is State.EJECTED else self._turn(member, State.EJECTED, reason, now)

    def readmit(self, now: float) -> list[Transition]:
        """Take back who was ejected and has served its time, on trial, and at once who is needed since others went."""
        transitions = []
        for member in sorted([each for each in self.replicas if each.out], key=lambda each: each.conduct.until):
            needed = self._needed(member)
            if member.state is State.EJECTED and (needed or now >= member.conduct.until):
                reason = "needed: too few others are ready" if needed else "its time is over: on trial"
                member.conduct.on_trial = True
                transitions.append(self._turn(member, State.READY, reason, now))
            if needed:
                member.conduct.on_trial = False
        return transitions

    def _needed(self, member: Replica) -> bool:
        """Whether with this one out more than half of those alive would be, in the fleet or of one of its models."""
        for group in (self._everyone, *[self._groups[model] for model in member.models]):
            alive = [each for each in group.members if each.alive]
            if 2 * len([each for each in alive if each.out or each is member]) > len(alive):
                return True
        return False

    def serves(self, replica: ReplicaId, models: Mapping[str, object]) -> None:
        """Take the models that a replica says it serves, each with its card, which the core does not look into."""
        member = self._replicas[replica]
        changed = member.models.keys() ^ models.keys()
        member.models = models
        self._regroup(changed)

    def _regroup(self, models: Iterable[str]) -> None:
        """Find anew who serves these models. A model that nobody serves is forgotten."""
        for model in models:
            group = self._groups.setdefault(model, Group())
            group.become([other for other in self._replicas.values() if model in other.models])
            if not group.members:
                del self._groups[model]

    def engine(self, replica: ReplicaId, epoch: float | None, kv_tokens: int | None, now: float) -> bool:
        """Take what an engine says of itself; True when its epoch is a new one, and its residency was forgotten.

        What the configuration says of the KV cache's size is only a stand-in for what the engine says.
        """
        member = self._replicas[replica]
        member.kv_tokens = member.kv_tokens if kv_tokens is None else kv_tokens
        known, member.epoch = member.epoch, epoch if epoch is not None else member.epoch
        if known is None or epoch is None or known == epoch:
            return False
        self.residency.forget(replica)
        member.empty = True
        if member.state is State.READY:
            member.enter(now)
            self._count(member)
        return True

    def sampled(self, replica: ReplicaId, sample: EngineSample) -> None:
        """Take an engine's gauges."""
        member = self._replicas[replica]
        member.sampled(sample, self._first(member).learned)

    def sign_of_life(self, replica: ReplicaId, now: float) -> None:
        """A byte of an answer, or an answered probe."""
        self._replicas[replica].last_sign = now

    def full(self, replica: ReplicaId, until: float) -> None:
        """The replica refused: nothing new before `until`. It is no failure."""
        self._replicas[replica].refused(until)
        if self.residency.news is not None:
            self.residency.news.full(replica, until)

    def told_full(self, replica: ReplicaId, until: float) -> None:
        """Another router was refused. Nothing happens for a replica that is no member."""
        if replica in self._replicas:
            self._replicas[replica].refused(until)

    # Asks.

    def route(self, ask: Ask, now: float, rng: Rng, tried: Collection[ReplicaId] = NOBODY) -> Route | Wait | Refusal:
        """Where this ask should go. `tried` are replicas that it has been sent to already."""
        group = self._group(ask.model)
        if group is None:
            return Refusal(RefusalCause.UNKNOWN_MODEL) if self._groups else NOBODY_READY
        if len(group.ready) >= LEAST and not tried and ask.only is None:
            view, cuts = self._ranked(ask, group, now)
        else:
            eligible, cuts = self._eligible(group, tried, ask.only, now)
            view = self._view(ask, group, eligible, now) if eligible else None
        if view is None:
            return Wait(most_common(cuts), now, cuts) if cuts else NOBODY_READY
        return answer(view, self._policy.pick(ask, view, now, rng), cuts, Reason.RETRY if tried else None)

    def explain(self, ask: Ask, now: float, rng: Rng) -> Explanation:
        """What `route` would answer now, and why. Nothing changes: not even a round robin's turn."""
        group = self._group(ask.model)
        if group is None:
            return Explanation(ask, 0, Key(0, 0), (), (), self.route(ask, now, rng))
        key = group.recent.key(ask.chain, ask.tail)
        eligible, cuts = self._eligible(group, NOBODY, ask.only, now)
        view = self._view(ask, group, eligible, now) if eligible else None
        policy = copy.copy(self._policy)
        decision: Route | Wait | Refusal = Wait(most_common(cuts), now, cuts) if cuts else NOBODY_READY
        if view is not None:
            decision = answer(view, policy.pick(ask, view, now, rng), cuts, None)
        cuts = NO_CUTS if isinstance(decision, Refusal) else decision.cuts
        told = candidates(group.members, view, policy, cuts, now)
        return Explanation(ask, round(view.tokens) if view else 0, key, group.ring.order(key.hash), told, decision)

    def _view(self, ask: Ask, group: Group, eligible: Sequence[Replica], now: float) -> FleetView:
        assumed = self.peers.assumed() if self.peers else NOTHING
        averages = means(eligible, group.learned)
        view = FleetView(ask, group, eligible, self._depths(ask, group), assumed, self._settings.block, now, averages)
        if group.new:
            view.ramping = ramping(group.still_new(self._settings.ramp, now), view.known, self._settings.ramp, now)
        return view

    def _ranked(self, ask: Ask, group: Group, now: float) -> tuple[FleetView | None, Cuts]:
        """The view of a large fleet, of whom only the few that it takes are read; None where all are cut."""
        ranking = group.ranking
        if ranking is None or not ranking.serves(now):
            ranking = group.ranking = self._rank(group, now)
        depths = self._depths(ask, group)
        assumed = self.peers.assumed() if self.peers else NOTHING
        anew = {member.id: member for member in [*ranking.watched, *ranking.changed()]}
        anew |= {each: ranking.calm[each] for each in (*depths, *assumed) if each in ranking.calm}
        eligible, cuts = uncut(anew.values(), self._settings.max_concurrency, self._settings.stall, now)
        if len(cuts) == len(group.ready):
            return None, cuts
        block, held = self._settings.block, ranking.means
        return FleetView(ask, group, eligible, depths, assumed, block, now, held, ranking, anew, cuts), cuts

    def _rank(self, group: Group, now: float) -> Ranking:
        """Begin a window."""
        averages, settings = means(group.ready, group.learned), self._settings
        new = self._view(UNPROMPTED, group, group.ready, now).ramping if group.new else None
        ranking = Ranking(group.ready, averages, new, settings.max_concurrency, settings.stall, now)
        calm = list(ranking.calm.values())
        ranking.rank(
            self._policy, FleetView(UNPROMPTED, group, calm, {}, NOTHING, settings.block, ranking.end, averages)
        )
        return ranking

    def lease(self, route: Route, ask: Ask, now: float) -> Lease:
        """Take a route: charge its replica and place the chain there. The caller owns the lease and must end it."""
        group = self._group(ask.model) or self._everyone
        replica = self._replicas[route.replica]
        guess = replica.lin or mean_lin([member.lin for member in group.members])
        lease = Lease(replica, route, ask, group.learned, self.residency, self._settings.block, guess)
        lease.charge(self._capacity(replica, route, ask, group.learned), now)
        news = self.residency.news
        if news is not None:
            news.leased()
            if self.peers:
                self.peers.sent(replica.id, max(1, route.tokens - route.cached), route.tokens, now)
            if self.peers or self._settings.shares:
                lease.tell(news, now)
        if ask.size and route.reason is not Reason.RETRY:  # A request is counted once, however often it is sent.
            group.recent.add(ask.chain, now, len(group.ready))
        return lease

    def family(self, ask: Ask) -> int:
        """The hash of the ask's adaptive key (recent.py), which all turns of a chat and all users of a prefix share."""
        return (self._group(ask.model) or self._everyone).recent.key(ask.chain, ask.tail).hash

    def _group(self, model: str | None) -> Group | None:
        return self._everyone if model is None else self._groups.get(model)

    def _eligible(
        self, group: Group, tried: Collection[ReplicaId], only: ReplicaId | None, now: float
    ) -> tuple[list[Replica], Cuts]:
        """The replicas that may get the ask, and what cut each of the other ready ones."""
        members: Iterable[Replica] = group.ready
        if tried or only is not None:
            members = [each for each in members if each.id not in tried and (only is None or each.id == only)]
        return uncut(members, self._settings.max_concurrency, self._settings.stall, now)

    def _depths(self, ask: Ask, group: Group) -> dict[ReplicaId, int]:
        """Blocks of the chain that each holder has, an answer remembered there counted in."""
        depths = self.residency.depths(ask.chain)
        if ask.answers:
            block, rate = self._settings.block, 1 / group.learned.tokens_per_byte
            for replica, depth in depths.items():
                end = self.residency.answer_end(replica, ask.chain[depth - 1], ask.answers, rate)
                depths[replica] = max(depth, min(len(ask.chain), end // block))
        return depths

    def learned(self) -> list[ModelNews]:
        """What was learned of each model, for other routers."""
        return [
            ModelNews(model, len(group.recent), sorted(group.recent.hot), group.learned.told())
            for model, group in self._groups.items()
        ]

    def placed(self, replica: ReplicaId, parent: int | None, hashes: Sequence[int], now: float) -> None:
        """Another router placed a chain (types.News). Nothing happens for a replica that is no member."""
        member = self._replicas.get(replica)
        if member is None:
            return
        learned = self._first(member).learned
        per_block = max(1.0, self._settings.block * learned.tokens_per_byte)
        self.residency.learn(replica, parent, hashes, self._bound(member, learned, per_block), now)

    def corrected(self, replica: ReplicaId, block: int) -> None:
        """Another router heard that an engine no longer had a block, nor what was used before it (types.News)."""
        if replica in self._replicas:
            self.residency.lost(replica, block)

    def _first(self, member: Replica) -> Group:
        """The group of a replica's first model: one engine, one kind of prompts."""
        return self._groups[min(member.models)] if member.models else self._everyone

    def _bound(self, member: Replica, learned: Learned, per_block: float) -> int:
        """A replica's KV cache less the outputs in flight, in blocks of `per_block` tokens."""
        tokens = self._settings.sample * (member.kv_tokens - member.open * learned.output.value)
        return int(min(max(0.0, tokens / per_block), self._settings.index_blocks / len(self._replicas)))

    def _capacity(self, replica: Replica, route: Route, ask: Ask, learned: Learned) -> int:
        """The replica's KV cache less the outputs in flight, in blocks of this prompt's density."""
        size = ask.size
        return self._bound(replica, learned, max(1.0, route.tokens * self._settings.block / size)) if size else 0
