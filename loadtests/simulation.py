"""The discrete-event simulation: a play through simulated routers and replicas, seeded, the same to the bit each time.

Everything happens at a moment of one hand-turned clock, and what happens at one moment happens in the order in which
it was planned. Nothing here depends on the order of a set, on a real clock or on a random source without a seed.
"""

import hashlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from loadtests.clock import Clock
from loadtests.plays import NAME_TOKENS, Part, Play
from loadtests.records import Record
from loadtests.sim_replica import SimReplica
from loadtests.sim_router import MODEL, SimRouter, Visit
from replica.engine import Engine, Limits
from replica.profiles import PROFILES, Profile
from router.core.fleet import Fleet, FleetSettings
from router.core.lease import Settled
from router.core.member import ReplicaSpec
from router.core.types import EngineSample, Policy, State
from router.proxy.waiting import Waiting

SAMPLE_S = 1.0
"""Seconds between two looks at an engine's gauges: health.interval."""


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """The replicas: one for each of `speeds`, times of the profile's rates; `kv_tokens` None: the profile's own.

    With `told` the routers' configuration names each replica's rates; without, they are learned.
    """

    profile: str
    speeds: tuple[float, ...] = (1.0,) * 8
    kv_tokens: int | None = None
    told: bool = False

    @property
    def ids(self) -> list[str]:
        return [f"r{number}" for number in range(1, len(self.speeds) + 1)]

    @property
    def blocks(self) -> int:
        """Engine blocks of each replica."""
        return (self.kv_tokens or PROFILES[self.profile].kv_tokens) // NAME_TOKENS

    def profile_of(self, number: int) -> Profile:
        """The profile of the replica at a position."""
        speed = self.speeds[number]
        return PROFILES[self.profile].at_speed(speed) if speed != 1.0 else PROFILES[self.profile]


@dataclass(frozen=True, slots=True)
class RouterPlan:
    """How each router is built: a policy of its own, the fleet's settings, the bounds of its queue."""

    policy: Callable[[], Policy]
    settings: FleetSettings = field(default_factory=FleetSettings)
    queue_requests: int = 1_000
    queue_seconds: float = 30.0


@dataclass(frozen=True, slots=True)
class Work:
    """What one replica did: tokens of prompts computed, tokens of answers, seconds in which it was busy."""

    computed_tokens: int
    output_tokens: int
    busy_s: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """Records in the order in which requests ended, leases as they ended, work by replica."""

    records: list[Record]
    settled: list[Settled]
    work: dict[str, Work]
    seconds: float
    events: int

    def sha256(self) -> str:
        """Hex digest of every record, to the last bit of every time."""
        digest = hashlib.sha256()
        for record in self.records:
            digest.update(f"{record!r}\n".encode())
        return digest.hexdigest()


def simulate(play: Play, plan: FleetPlan, routers: RouterPlan, seed: int) -> Outcome:
    """Run a play to its end."""
    return _Simulation(play, plan, routers, seed).run()


class _Simulation:
    def __init__(self, play: Play, plan: FleetPlan, routers: RouterPlan, seed: int) -> None:
        self._play, self._plan = play, plan
        self._clock = Clock()
        self._rng = random.Random(f"{seed}:simulation")
        self._replicas: dict[str, SimReplica] = {}
        self._records: list[Record] = []
        self._settled: list[Settled] = []
        for number, name in enumerate(plan.ids):
            engine = Engine(plan.profile_of(number), plan.blocks, NAME_TOKENS, Limits())
            self._replicas[name] = SimReplica(name, engine, self._clock)
        self._routers = [self._router(routers, f"{seed}:router-1")]
        self._open = play.requests

    def run(self) -> Outcome:
        for part in self._play.parts:
            self._clock.at(part.start_s, self._say, part, 0)
        for number, name in enumerate(self._replicas):
            self._clock.at(SAMPLE_S * number / len(self._replicas), self._sample, name)
        self._clock.run(lambda: self._open > 0)
        work = {
            name: Work(each.computed_tokens, each.output_tokens, each.busy_s) for name, each in self._replicas.items()
        }
        return Outcome(self._records, self._settled, work, self._clock.now, self._clock.events)

    def _router(self, plan: RouterPlan, seed: str) -> SimRouter:
        fleet = Fleet(plan.policy(), plan.settings)
        for number, name in enumerate(self._plan.ids):
            fleet.join([self._spec(number, name)], 0.0)
            fleet.serves(name, {MODEL: None})
            fleet.engine(name, 0.0, self._plan.blocks * NAME_TOKENS)
            fleet.mark(name, State.READY, "ready", 0.0)
        waiting = Waiting(self._clock, plan.queue_requests, plan.queue_seconds)
        return SimRouter(fleet, waiting, self._clock, random.Random(seed), self._replicas, plan.settings.block)

    def _spec(self, number: int, name: str) -> ReplicaSpec:
        if not self._plan.told:
            return ReplicaSpec(name)
        profile = self._plan.profile_of(number)
        rate, step, kv = profile.prefill_tokens_per_second, profile.step_seconds, profile.kv_seconds_per_token
        return ReplicaSpec(name, rate, step, kv)

    def _say(self, part: Part, turn: int) -> None:
        """The next line of a session goes out."""

        def done(visit: Visit, record: Record) -> None:
            self._open -= 1
            self._records.append(record)
            if visit.settled is not None:
                self._settled.append(visit.settled)
            if turn + 1 < len(part.lines):
                self._clock.at(self._clock.now + part.lines[turn + 1].think_s, self._say, part, turn + 1)

        Visit(self._routers[0], part.id, turn, part.lines[turn], done).find()

    def _sample(self, name: str) -> None:
        """Every router is told an engine's gauges, beside what the routers had there at that moment."""
        self._clock.at(self._clock.now + SAMPLE_S, self._sample, name)
        engine = self._replicas[name].engine
        for router in self._routers:
            whole = router.fleet.replica(name).whole
            sample = EngineSample(
                self._clock.now, engine.running, engine.waiting, engine.cache.usage, whole.requests, whole.unstarted
            )
            router.fleet.sampled(name, sample)
            router.fleet.sign_of_life(name, self._clock.now)
            router.freed()


def skew(values: Sequence[float]) -> float:
    """Max over mean; 1 where there is nothing."""
    mean = sum(values) / len(values)
    return max(values) / mean if mean else 1.0
