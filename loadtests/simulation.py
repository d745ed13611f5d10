"""The discrete-event simulation: a play through simulated routers and replicas, seeded, the same to the bit each time.

Everything happens at a moment of one hand-turned clock, and what happens at one moment happens in the order in which
it was planned. Nothing here depends on the order of a set, on a real clock or on a random source without a seed.

What a simulated fleet leaves out: the network (no time between router and replica), clients that leave, and the time
that the router itself takes.
"""

import hashlib
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate

from loadtests.clock import Clock
from loadtests.plays import NAME_TOKENS, Part, Play
from loadtests.records import Record
from loadtests.sim_gossip import Bus, GossipPlan
from loadtests.sim_replica import SimReplica
from loadtests.sim_router import MODEL, SimRouter, Visit
from loadtests.sim_snapshot import Keeper
from replica.engine import Engine
from replica.profiles import PROFILES, Profile
from router.core.fleet import Fleet, FleetSettings
from router.core.lease import Settled
from router.core.member import ReplicaSpec
from router.core.types import EngineSample, Policy, ReplicaId, State
from router.gossip.news import News
from router.proxy.waiting import Waiting

SAMPLE_S = 1.0
"""Seconds between two looks at an engine's gauges: health.interval."""


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """The replicas: one for each of `speeds`, times of the profile's rates; `kv_tokens` None: the profile's own.

    With `told` the routers' configuration names each replica's rates; without, they are learned. Routers hear of an
    engine's gauges `sample_age_s` after they were read.
    """

    profile: str
    speeds: tuple[float, ...] = (1.0,) * 8
    kv_tokens: int | None = None
    told: bool = False
    sample_age_s: float = 0.0

    @property
    def ids(self) -> list[ReplicaId]:
        return [f"r{number}" for number in range(1, len(self.speeds) + 1)]

    @property
    def blocks(self) -> int:
        """Engine blocks of each replica."""
        return (self.kv_tokens or PROFILES[self.profile].kv_tokens) // NAME_TOKENS

    def at_speed(self, speed: float) -> Profile:
        """The profile of a replica that is so many times as fast."""
        return PROFILES[self.profile] if speed == 1.0 else PROFILES[self.profile].at_speed(speed)


@dataclass(frozen=True, slots=True)
class RouterPlan:
    """One router for each of `shares`, which are its share of the requests; each with a policy and a queue of its own.

    Requests come to routers at random, by their shares.
    """

    policy: Callable[[], Policy]
    settings: FleetSettings = field(default_factory=FleetSettings)
    queue_requests: int = 1_000
    queue_seconds: float = 30.0
    shares: tuple[float, ...] = (1.0,)
    gossip: GossipPlan = field(default_factory=GossipPlan)

    def __post_init__(self) -> None:
        if not self.shares or min(self.shares) < 0 or not sum(self.shares):
            raise ValueError("routers take at least one share of the traffic, and none below 0")


@dataclass(frozen=True, slots=True)
class Join:
    """A replica comes, cold and ready, at `at` seconds."""

    at: float
    replica: ReplicaId
    speed: float = 1.0


@dataclass(frozen=True, slots=True)
class Leave:
    """A replica drains, and goes when it is idle."""

    at: float
    replica: ReplicaId


@dataclass(frozen=True, slots=True)
class Restart:
    """A replica's process dies, with all in it, and is back with an empty cache `down_s` later. One that `drains` gets
    nothing new from `at` on and ends when it is idle, as in a rolling deploy."""

    at: float
    replica: ReplicaId
    down_s: float = 30.0
    drains: bool = False


@dataclass(frozen=True, slots=True)
class Slow:
    """A replica runs at another speed from now on."""

    at: float
    replica: ReplicaId
    speed: float


@dataclass(frozen=True, slots=True)
class RouterRestart:
    """A router, counted from 1, hands over to a new process, which takes all new requests; the old one ends what it
    has. The new one is told the replicas, and with `snapshot` what a supervisor kept of the old one's beliefs."""

    at: float
    router: int
    snapshot: bool = True


@dataclass(frozen=True, slots=True)
class Look:
    """Somebody looks at the routers that serve. Whoever looks changes nothing."""

    at: float
    look: Callable[[Sequence[SimRouter]], None]


Change = Join | Leave | Restart | Slow | RouterRestart | Look


@dataclass(frozen=True, slots=True)
class Done:
    """What one replica did: tokens of prompts computed, tokens of answers, seconds in which it was busy."""

    computed_tokens: int = 0
    output_tokens: int = 0
    busy_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """Records in the order in which they ended, what each replica did, and how long it took in all.

    For each record `routers` has the number of the router that it came to, from 1, and `leases` its last lease.
    """

    records: list[Record]
    routers: list[int]
    leases: list[Settled | None]
    done: dict[ReplicaId, Done]
    seconds: float
    events: int

    @property
    def settled(self) -> list[Settled]:
        """The leases that there were."""
        return [lease for lease in self.leases if lease is not None]

    @property
    def work_skew(self) -> float:
        """Max over mean of the tokens that each replica computed, of prompts and answers; 1 where there are none."""
        tokens = [each.computed_tokens + each.output_tokens for each in self.done.values()]
        return max(tokens) * len(tokens) / sum(tokens) if any(tokens) else 1.0

    def sha256(self) -> str:
        """Hex digest of every record, to the last bit of every time."""
        digest = hashlib.sha256()
        for record in self.records:
            digest.update(f"{record!r}\n".encode())
        return digest.hexdigest()


def simulate(play: Play, plan: FleetPlan, routers: RouterPlan, seed: int, changes: Sequence[Change] = ()) -> Outcome:
    """Run a play to its end."""
    return _Simulation(play, plan, routers, seed).run(changes)


class _Simulation:
    def __init__(self, play: Play, plan: FleetPlan, routers: RouterPlan, seed: int) -> None:
        self._play, self._plan, self._wiring, self._seed = play, plan, routers, seed
        self._clock = Clock()
        self._rng = random.Random(f"{seed}:simulation")
        self._replicas: dict[ReplicaId, SimReplica] = {}
        self._lives: list[SimReplica] = []
        self._leaving: dict[ReplicaId, Leave | Restart] = {}
        self._records: list[Record] = []
        self._came_to: list[int] = []
        self._leases: list[Settled | None] = []
        self._bus = Bus(self._clock, routers.gossip, random.Random(f"{seed}:gossip"))
        self._shares = list(accumulate(routers.shares))
        self._routers = [self._router(f"router-{n}", (n - 1) / len(routers.shares)) for n in self._numbers]
        self._serving = list(self._routers)
        self._keepers: dict[int, Keeper] = {}
        self._open = play.requests
        self._join(dict(zip(plan.ids, plan.speeds, strict=True)))

    @property
    def _numbers(self) -> range:
        """The routers', from 1."""
        return range(1, len(self._wiring.shares) + 1)

    def run(self, changes: Sequence[Change]) -> Outcome:
        for change in changes:
            self._clock.at(change.at, self._change, change)
            if isinstance(change, RouterRestart) and change.snapshot and change.router not in self._keepers:
                self._keepers[change.router] = Keeper(self._clock, self._serving[change.router - 1])
        for part in self._play.parts:
            self._clock.at(part.start_s, self._say, part, 0)
        self._clock.at(SAMPLE_S, self._readmit)
        self._clock.run(lambda: self._open > 0)
        done: dict[ReplicaId, Done] = {}
        for life in self._lives:
            before = done.get(life.id, Done())
            done[life.id] = Done(
                before.computed_tokens + life.computed_tokens,
                before.output_tokens + life.output_tokens,
                before.busy_s + life.busy_s,
            )
        return Outcome(self._records, self._came_to, self._leases, done, self._clock.now, self._clock.events)

    def _router(self, name: str, starts_s: float) -> SimRouter:
        """A process of that name. Its gossip begins at `starts_s`."""
        plan, clock = self._wiring, self._clock
        fleet = Fleet(plan.policy(), plan.settings)
        waiting = Waiting(clock.loop, plan.queue_requests, plan.queue_seconds)
        rng = random.Random(f"{self._seed}:{name}")
        router = SimRouter(name, fleet, waiting, clock, rng, self._replicas, plan.settings.block)
        if len(plan.shares) > 1 and not plan.gossip.dead:
            router.news = News(clock.loop, fleet, name, partial(self._bus.send, name), clock.time, clock.time)
            self._bus.join(name, router.news)
            clock.at(starts_s, router.news.start)
        return router

    def _replace(self, change: RouterRestart) -> None:
        """A new process instead of a router's, which goes on until all that it has is answered."""
        now, place = self._clock.now, change.router - 1
        old = self._serving[place]
        new = self._router(f"{old.name}'", now)
        for member in old.fleet.replicas:
            new.fleet.join([member.spec], now)
            new.fleet.serves(member.id, {MODEL: None})
            new.fleet.engine(member.id, member.epoch, member.kv_tokens, now)
            new.fleet.mark(member.id, member.state, member.reason, now)
        keeper = self._keepers.get(change.router)
        if keeper is not None:
            self._keepers[change.router] = keeper.replace(new, change.snapshot)
        self._routers.append(new)
        self._serving[place] = new

    def _let_go(self) -> None:
        """Former processes that have nothing any more end."""
        for router in [each for each in self._routers if each not in self._serving and each.is_idle]:
            self._routers.remove(router)
            if router.news is not None:
                self._bus.leave(router.name)
                router.news.stop()

    # Sessions.

    def _say(self, part: Part, turn: int) -> None:
        """The next line of a session goes out."""

        def done(visit: Visit, record: Record) -> None:
            self._open -= 1
            self._records.append(record)
            self._came_to.append(number)
            self._leases.append(visit.settled)
            if turn + 1 < len(part.lines):
                self._clock.at(self._clock.now + part.lines[turn + 1].think_s, self._say, part, turn + 1)

        number = 1
        if len(self._serving) > 1:
            number = self._rng.choices(self._numbers, cum_weights=self._shares)[0]
        Visit(self._serving[number - 1], part.id, turn, part.lines[turn], done).find()

    # Replicas.

    def _change(self, change: Change) -> None:
        match change:
            case Join():
                self._join({change.replica: change.speed})
            case Leave() | Restart(drains=True):
                self._leaving[change.replica] = change
                self._mark(change.replica, State.DRAINING, "leaves")
            case Restart():
                self._stop(change)
            case RouterRestart():
                self._replace(change)
            case Look():
                change.look(self._serving)
            case Slow():
                self._replicas[change.replica].change_profile(self._plan.at_speed(change.speed))

    def _stop(self, change: Restart) -> None:
        """A process ends, and another one begins some time later."""
        self._mark(change.replica, State.DOWN, "connection refused")
        old = self._replicas.pop(change.replica)
        old.stop()
        self._clock.at(self._clock.now + change.down_s, self._start, old.id, old.engine.profile)

    def _join(self, speeds: Mapping[ReplicaId, float]) -> None:
        """Replicas come; their gauges are looked at one after the other, spread over the period."""
        now = self._clock.now
        profiles = {name: self._plan.at_speed(speed) for name, speed in speeds.items()}
        for router in self._routers:
            router.fleet.join([self._spec(name, profile) for name, profile in profiles.items()], now)
            for name in profiles:
                router.fleet.serves(name, {MODEL: None})
        for number, (name, profile) in enumerate(profiles.items()):
            self._start(name, profile)
            self._clock.at(now + SAMPLE_S * (number + 1) / len(profiles), self._sample, name)

    def _spec(self, name: ReplicaId, profile: Profile) -> ReplicaSpec:
        if not self._plan.told:
            return ReplicaSpec(name)
        rate, step, kv = profile.prefill_tokens_per_second, profile.step_seconds, profile.kv_seconds_per_token
        return ReplicaSpec(name, rate, step, kv)

    def _start(self, name: ReplicaId, profile: Profile) -> None:
        """A process begins, with an empty cache."""
        replica = SimReplica(name, Engine(profile, self._plan.blocks, NAME_TOKENS), self._clock)
        self._replicas[name] = replica
        self._lives.append(replica)
        for router in self._routers:
            router.fleet.engine(name, self._clock.now, self._plan.blocks * NAME_TOKENS, self._clock.now)
        self._mark(name, State.READY, "answers its probes")

    def _mark(self, name: ReplicaId, state: State, reason: str) -> None:
        for router in self._routers:
            router.fleet.mark(name, state, reason, self._clock.now)
            router.freed()

    def _sample(self, name: ReplicaId) -> None:
        """Every router is told an engine's gauges, beside what it knew to be there at that moment."""
        now, replica = self._clock.now, self._replicas.get(name)
        leaving = None if replica is None or replica.engine.busy else self._leaving.pop(name, None)
        if isinstance(leaving, Leave):
            del self._replicas[name]
            for router in self._routers:
                router.fleet.leave(name)
            return
        self._clock.at(now + SAMPLE_S, self._sample, name)
        if leaving is not None:
            self._stop(leaving)
        elif replica is not None:
            self._read_gauges(name, replica)

    def _read_gauges(self, name: ReplicaId, replica: SimReplica) -> None:
        now = self._clock.now
        engine = replica.engine
        for router in self._routers:
            whole = router.fleet.replica(name).whole
            usage = engine.cache.usage
            sample = EngineSample(now, engine.running, engine.waiting, usage, whole.requests, whole.unstarted)
            if self._plan.sample_age_s:
                self._clock.at(now + self._plan.sample_age_s, self._hear, router, name, sample)
            else:
                self._hear(router, name, sample)

    def _readmit(self) -> None:
        """Each router looks at who has served its ejection."""
        self._clock.at(self._clock.now + SAMPLE_S, self._readmit)
        self._let_go()
        for router in self._routers:
            router.fleet.readmit(self._clock.now)

    def _hear(self, router: SimRouter, name: ReplicaId, sample: EngineSample) -> None:
        if name in self._replicas:
            router.fleet.sampled(name, sample)
            router.fleet.sign_of_life(name, sample.at)
            router.freed()
