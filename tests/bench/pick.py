"""What one pick costs, by the size of the fleet, and what the index weighs. Run by hand: python -m tests.bench.pick

A fleet in which everybody is busy, at two thirds of what it can prefill: prompts of 64 blocks, of which a third goes on
with a known conversation, leases, first tokens and ends, so that nothing that is kept between picks stays as it was.
Only `Fleet.route` is timed, by the thread's CPU time. Targets: a median of at most 80 us + 1 us for each replica up to
320 of them, 400 us from there to 1,000; 200 MB for a million (block, replica) pairs.
"""

import heapq
import sys
import time
from itertools import count
from random import Random
from statistics import median, quantiles
from typing import NamedTuple

from router.core.fleet import Fleet, FleetSettings
from router.core.lease import Lease
from router.core.member import ReplicaSpec
from router.core.policy import PrefixAffinity
from router.core.residency import Residency
from router.core.types import Ask, EngineSample, Outcome, Route, State, Usage

SIZES = (8, 32, 80, 160, 320, 500, 1000)
BLOCKS = 64
TOKENS = BLOCKS * 128


class Cost(NamedTuple):
    """Microseconds of one route."""

    replicas: int
    median: float
    p90: float
    target: float


def fleet_of(replicas: int) -> Fleet:
    """All ready; half of them have told how fast they are."""
    fleet = Fleet(PrefixAffinity(), FleetSettings(stall=1e9))
    specs = [ReplicaSpec(f"replica-{i}", 16_000.0 + 8 * i if i % 2 else None) for i in range(replicas)]
    fleet.join(specs, 0.0)
    for spec in specs:
        fleet.serves(spec.id, {"m": {}})
        fleet.mark(spec.id, State.READY, "bench", 0.0)
    return fleet


class Traffic:
    """Two requests a second for each replica, a third of which go on with an earlier one, each with 5 s of output."""

    def __init__(self, fleet: Fleet, seed: int) -> None:
        self._fleet, self._rng = fleet, Random(seed)
        self._now = 100.0
        self._known: list[list[int]] = []
        self._events: list[tuple[float, int, Lease]] = []
        self._serial = count()
        self._probed = 0

    def ask(self) -> Ask:
        """A prompt of BLOCKS blocks."""
        rng = self._rng
        old = rng.choice(self._known)[: rng.randrange(8, BLOCKS)] if self._known and rng.random() < 0.33 else []
        chain = old + [rng.getrandbits(64) for _ in range(BLOCKS - len(old))]
        if len(self._known) < 4000:
            self._known.append(chain)
        return Ask("m", chain, chain[-1], BLOCKS * 512, streams=True)

    def step(self) -> float:
        """The next request's arrival, and all that happens before it; seconds that its route took."""
        fleet, asked = self._fleet, self.ask()
        self._now += 0.5 / len(fleet.replicas)
        self._probe()
        while self._events and self._events[0][0] <= self._now:
            at, _, lease = heapq.heappop(self._events)
            if lease.started:
                lease.finish(Outcome.OK, Usage(TOKENS, 256, None), at)
            else:
                lease.first_token(at)
                heapq.heappush(self._events, (at + self._rng.uniform(4, 6), next(self._serial), lease))
        begun = time.thread_time()
        route = fleet.route(asked, self._now, self._rng)
        took = time.thread_time() - begun
        assert isinstance(route, Route), route
        lease = fleet.lease(route, asked, self._now)
        first = self._now + lease.member.backlog(self._now) / self._rng.uniform(15_000, 17_000)
        heapq.heappush(self._events, (first, next(self._serial), lease))
        return took

    def _probe(self) -> None:
        """Each replica's gauges once a second."""
        replicas = self._fleet.replicas
        if self._probed < len(replicas) * (self._now - 100.0):
            member = replicas[self._probed % len(replicas)]
            sample = EngineSample(self._now, member.requests - member.unstarted, member.unstarted, 0.5,
                                  member.requests, member.unstarted)  # fmt: skip
            self._fleet.sampled(member.id, sample)
            self._probed += 1


def cost(replicas: int, picks: int, seed: int = 1) -> Cost:
    """Route `picks` requests in a fleet that is warm."""
    traffic = Traffic(fleet_of(replicas), seed)
    for _ in range(12 * replicas):
        traffic.step()
    times = sorted(1e6 * traffic.step() for _ in range(picks))
    return Cost(replicas, median(times), quantiles(times, n=10)[-1], min(80.0 + replicas, 400.0))


def megabytes(pairs: int, replicas: int = 8) -> float:
    """What `pairs` (block, replica) pairs in the index weigh, by the growth of the process: half in prompts of 64
    blocks that one replica holds, half in prompts that two hold."""
    rng, index = Random(1), Residency()
    for i in range(replicas):
        index.join(str(i))
    before = _resident()
    placed = 0
    while placed < pairs:
        chain = [rng.getrandbits(64) for _ in range(BLOCKS)]
        for replica in rng.sample(range(replicas), rng.choice((1, 1, 2))):
            placement = index.place(str(replica), chain, pairs)
            index.confirm(placement)
            index.release(placement)
            placed += BLOCKS
    return (_resident() - before) / 1e6


def _resident() -> int:
    with open("/proc/self/statm", encoding="ascii") as told:
        return int(told.read().split()[1]) * 4096


def main() -> None:
    """Print both tables."""
    compiled = "source" if str(sys.modules["router.core.fleet"].__file__).endswith(".py") else "compiled"
    print(f"{compiled}: microseconds of one route, {BLOCKS} blocks")
    print(f"{'replicas':>8} {'median':>8} {'p90':>8} {'target':>8}")
    for size in SIZES:
        row = cost(size, 3000)
        print(f"{row.replicas:>8} {row.median:>8.1f} {row.p90:>8.1f} {row.target:>8.0f}")
    print(f"index: {megabytes(1_000_000):.0f} MB for 1,000,000 pairs, target 200")


if __name__ == "__main__":
    main()
