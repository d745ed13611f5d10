"""What the core's tests are built from: prompts by name, fleets by size, and a world that answers what is routed."""

import heapq
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import NamedTuple

from router.core.backlog import Learned
from router.core.blocks import BLOCK_BYTES, chain
from router.core.fleet import Fleet, FleetSettings
from router.core.lease import Lease, Settled
from router.core.member import ReplicaSpec
from router.core.policy import PrefixAffinity
from router.core.types import Ask, Outcome, Policy, ReplicaId, Route, State, Usage

MODEL = "m"
TOKENS_PER_BLOCK = BLOCK_BYTES // 4


def prompt_bytes(*parts: tuple[str, int]) -> bytes:
    """Parts as (name, blocks), each block of a part different and full: equal names in equal places are equal text."""
    return b"".join(
        f"{name}:{i}:".encode().ljust(BLOCK_BYTES, b"x") for name, blocks in parts for i in range(blocks)
    )  # fmt: skip


def ask(*parts: tuple[str, int], streams: bool = True, model: str | None = MODEL, rest: bytes = b"") -> Ask:
    """An ask of whole blocks, and `rest` behind them."""
    data = prompt_bytes(*parts) + rest
    hashes, tail = chain(data, 0)
    return Ask(model, hashes, tail, len(data), streams)


def fleet_of(
    replicas: int | Iterable[ReplicaSpec], policy: Policy | None = None, settings: FleetSettings | None = None
) -> Fleet:
    """A fleet whose replicas r0, r1, ... are ready at time 0 and serve the model."""
    specs = [ReplicaSpec(f"r{i}") for i in range(replicas)] if isinstance(replicas, int) else list(replicas)
    fleet = Fleet(policy or PrefixAffinity(), settings)
    fleet.join(specs, 0.0)
    for spec in specs:
        fleet.serves(spec.id, {MODEL: {}})
        fleet.mark(spec.id, State.READY, "test", 0.0)
    return fleet


def routed(fleet: Fleet, asked: Ask, now: float = 0.0, tried: Sequence[ReplicaId] = ()) -> Route:
    """The route of an ask that has one."""
    route = fleet.route(asked, now, Random(0), tried)
    assert isinstance(route, Route), route
    return route


def leased(fleet: Fleet, asked: Ask, now: float = 0.0) -> Lease:
    """Route and lease at once, as the proxy does."""
    return fleet.lease(routed(fleet, asked, now), asked, now)


def answered(fleet: Fleet, asked: Ask, now: float = 0.0, usage: Usage | None = None) -> Settled:
    """A request from route to end: its first token at once, its last after as long as answers are taken to last."""
    lease = leased(fleet, asked, now)
    lease.first_token(now)
    return lease.finish(Outcome.OK, usage, now + Learned().tau.value)


def spread(placed: Iterable[ReplicaId], replicas: int) -> list[int]:
    """How many went where, replicas without any included, least first."""
    counts = Counter(placed)
    return sorted([0] * (replicas - len(counts)) + list(counts.values()))


class Arrival(NamedTuple):
    """A request of a world: `output` in tokens."""

    at: float
    ask: Ask
    output: int = 32


class Served(NamedTuple):
    """What became of one: seconds to its first token."""

    arrival: Arrival
    replica: ReplicaId
    ttft: float
    predicted: int


@dataclass
class World:
    """Replicas that prefill first come, first served, at `rate` tokens/s, and decode at `step` seconds a token.

    They cache exactly what the fleet believes, so that a test sees the policy and not a cache. No limits, no clock but
    the events' own.
    """

    fleet: Fleet
    rate: float = 16_000.0
    step: float = 0.01
    served: list[Served] = field(default_factory=list)

    def run(self, arrivals: Iterable[Arrival]) -> list[Served]:
        """Play the arrivals, in order of time, to their ends."""
        free_at: dict[ReplicaId, float] = {}
        serial = count()
        events: list[tuple[float, int, Lease, Arrival | None]] = []
        for arrival in arrivals:
            self._until(arrival.at, events, serial)
            for replica in self.fleet.ready:
                self.fleet.sign_of_life(replica.id, arrival.at)
            route = routed(self.fleet, arrival.ask, arrival.at)
            lease = self.fleet.lease(route, arrival.ask, arrival.at)
            start = max(arrival.at, free_at.get(route.replica, 0.0))
            first = free_at[route.replica] = start + max(1, route.tokens - route.cached) / self.rate
            self.served.append(Served(arrival, route.replica, first - arrival.at, route.cached))
            heapq.heappush(events, (first, next(serial), lease, arrival))
        self._until(float("inf"), events, serial)
        return self.served

    def _until(self, now: float, events: list[tuple[float, int, Lease, Arrival | None]], serial: "count[int]") -> None:
        while events and events[0][0] <= now:
            at, _, lease, arrival = heapq.heappop(events)
            if arrival is None:
                lease.finish(Outcome.OK, None, at)
            else:
                lease.first_token(at)
                heapq.heappush(events, (at + arrival.output * self.step, next(serial), lease, None))
