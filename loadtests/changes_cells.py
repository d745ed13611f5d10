"""The runs behind `python -m loadtests.changes`: a cell is one comparison, and answers with one frozen row of figures.

A cell is names and numbers only, so that a process can be told of it. Every cell also runs its play with nothing
happening: what a busy fleet does anyhow is never put down to the change.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from loadtests.placement import Kept, Routes, asks, chosen, compare, known, went
from loadtests.plays import Play
from loadtests.records import Record
from loadtests.recovery import Recovery, recovery
from loadtests.report import Slo
from loadtests.sim_around import figures
from loadtests.sim_router import SimRouter
from loadtests.simulation import Change, Join, Leave, Look, Outcome, Restart, RouterPlan, RouterRestart, simulate
from loadtests.table_kinds import Kind, search
from router.config import RoutingConfig
from router.core.types import ReplicaId

AT_S: Final = 100.0
"""When a change comes. Sessions and caches have settled by then, and the router's window of 60 s is full."""

AFTER_S: Final = 60.0
"""Seconds after it that are looked at."""

DOWN_S: Final = 15.0
EVERY_S: Final = 30.0
"""A replica that restarts is back after so long; in a rolling deploy one goes each so many seconds."""

MARGIN_S: Final = 10.0
"""Seconds of traffic beyond the last look, so that it is not over before."""

TAIL_S: Final = 120.0
"""Seconds of traffic after a fleet is back: twice as long as it may take."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """A kind of traffic at a rate."""

    kind: Kind
    rate: float

    def play(self, seed: int, seconds: float) -> Play:
        """So many seconds of it."""
        return self.kind.play(seed, max(1, round(self.rate * seconds)), self.rate)


def plan(policy: str = "prefix_affinity", routers: int = 1) -> RouterPlan:
    """Routers with default settings."""
    return RouterPlan(RoutingConfig.model_validate({"policy": policy}).make, shares=(1.0,) * routers)


# A replica joins or leaves.


@dataclass(frozen=True, slots=True)
class Placed:
    """What a join or a leave did. `kept` at once, `kept_later` AFTER_S later, `usual_later` the same with no change;
    `went` of the requests of that time, and `went_usual`; `share`: the newcomer's part of the fleet's work in it, 1 is
    fair; TTFT means in seconds, of AFTER_S before, after, and after with no change."""

    traffic: str
    change: str
    seed: int
    kept: Kept
    kept_later: Kept
    usual_later: Kept
    went: float
    went_usual: float
    share: float | None
    ttft: tuple[float, float, float]


class _Watch:
    """Asks the first router again and again where the prompts of one moment would go."""

    def __init__(self, play: Play, sent: Sequence[Record], wiring: RouterPlan) -> None:
        self._wiring = wiring
        self._asks = asks(play, sent, wiring.settings.block)
        self.seen: list[Routes] = []

    def look(self, routers: Sequence[SimRouter]) -> None:
        self.seen.append(chosen(routers[0], self._wiring, self._asks))

    def kept(self, moment: int, fair: float, left: ReplicaId | None = None, came: ReplicaId | None = None) -> Kept:
        """What of the prompts that were known at the first look has stayed at a later one."""
        return compare(known(self.seen[0]), self.seen[moment], fair, left, came)


def placed(traffic: Traffic, change: str, seed: int) -> Placed:
    """One replica more (`join`) or one less (`leave`)."""
    wiring, fleet = plan(), traffic.kind.plan
    play = traffic.play(seed, AT_S + AFTER_S + MARGIN_S)
    came = f"r{len(fleet.speeds) + 1}" if change == "join" else None
    left = fleet.ids[0] if change == "leave" else None
    fair = 1 / (len(fleet.speeds) + (came is not None))
    changed: Change = Leave(AT_S, fleet.ids[0]) if came is None else Join(AT_S, came)
    calm = simulate(play, fleet, wiring, seed)
    sent = [record for record in calm.records if record.sent_s < AT_S]
    watches = [_Watch(play, sent, wiring) for _ in range(2)]
    struck = simulate(play, fleet, wiring, seed, _looks(watches[0], changed))
    simulate(play, fleet, wiring, seed, _looks(watches[1]))
    return Placed(
        traffic.kind.name, change, seed,
        watches[0].kept(1, fair, left, came), watches[0].kept(2, fair, left, came), watches[1].kept(2, fair),
        _went(play, struck, wiring), _went(play, calm, wiring),
        None if came is None else _share(struck.records, came) / fair,
        (_ttft(struck, AT_S - AFTER_S), _ttft(struck, AT_S), _ttft(calm, AT_S)),
    )  # fmt: skip


def _looks(watch: _Watch, *changes: Change) -> list[Change]:
    """Looks before and after these changes, and once more when they have had their time."""
    return [Look(AT_S, watch.look), *changes, Look(AT_S, watch.look), Look(AT_S + AFTER_S, watch.look)]


def _went(play: Play, outcome: Outcome, wiring: RouterPlan) -> float:
    found, stayed = went(play, outcome.records, wiring.settings.block, AT_S, AFTER_S)
    return stayed / found if found else 1.0


def _ttft(outcome: Outcome, begin: float) -> float:
    """Raises ValueError where nothing was answered."""
    ttft = figures(outcome.records, begin, begin + AFTER_S).ttft
    if ttft is None:
        raise ValueError(f"nothing was answered from {begin:g} s on")
    return ttft


def _share(records: Sequence[Record], replica: ReplicaId) -> float:
    """A replica's part of the tokens that the fleet had to compute and to generate for what was sent after AT_S."""
    work = {True: 0, False: 0}
    for record in records:
        if record.error is None and AT_S <= record.sent_s < AT_S + AFTER_S:
            tokens = record.prompt_tokens - record.cached_tokens + record.completion_tokens
            work[record.replica == replica] += tokens
    return work[True] / max(1, sum(work.values()))


# A router restarts.


@dataclass(frozen=True, slots=True)
class Handed:
    """What a new router process did, one of `routers`. `arm`: with the `snapshot`, `without` it, or `none` was made.
    Figures are of the requests that came to it: `kept` by the rule at once, `went` in AFTER_S, and of AFTER_S before and
    after the hit ratio and the mean TTFT in seconds."""

    traffic: str
    routers: int
    arm: str
    seed: int
    kept: Kept
    went: float
    hit_ratio: tuple[float, float]
    ttft: tuple[float, float]


ARMS: Final[Mapping[str, Sequence[Change]]] = {
    "none": (),
    "snapshot": (RouterRestart(AT_S, 1),),
    "without": (RouterRestart(AT_S, 1, snapshot=False),),
}
"""Never written to."""


def handed(traffic: Traffic, routers: int, arm: str, seed: int) -> Handed:
    """The first of so many routers restarts, in one of ARMS."""
    wiring = plan(routers=routers)
    play = traffic.play(seed, AT_S + AFTER_S + MARGIN_S)
    calm = simulate(play, traffic.kind.plan, wiring, seed)
    watch = _Watch(play, [record for record in calm.records if record.sent_s < AT_S], wiring)
    outcome = simulate(play, traffic.kind.plan, wiring, seed, _looks(watch, *ARMS[arm]))
    own = [record for record, number in zip(outcome.records, outcome.routers, strict=True) if number == 1]
    before, after = figures(own, AT_S - AFTER_S, AT_S), figures(own, AT_S, AT_S + AFTER_S)
    ours = {id(record) for record in own}
    found, stayed = went(play, outcome.records, wiring.settings.block, AT_S, AFTER_S, lambda each: id(each) in ours)
    return Handed(
        traffic.kind.name, routers, arm, seed, watch.kept(1, 0.0), stayed / max(1, found),
        (before.hit_ratio or 0.0, after.hit_ratio or 0.0), (before.ttft or 0.0, after.ttft or 0.0),
    )  # fmt: skip


# A whole fleet comes back cold.


@dataclass(frozen=True, slots=True)
class Cold:
    """What a deploy did, `once` or `rolling`, at a `load` that is a share of the policy's own warm `knee` (requests a
    second)."""

    traffic: str
    policy: str
    deploy: str
    load: float
    knee: float
    seed: int
    recovery: Recovery


def warm_knee(kind: Kind, policy: str, seed: int, seconds: float = AT_S + AFTER_S) -> float:
    """The highest rate at which the policy still has 90 % goodput once caches are warm, to 5 %."""
    slo = Slo()

    def goodput(rate: float) -> float:
        outcome = simulate(Traffic(kind, rate).play(seed, seconds), kind.plan, plan(policy), seed)
        warm = [record for record in outcome.records if record.sent_s >= seconds / 2]
        return sum(slo.met_by(record) for record in warm) / max(1, len(warm))

    return search(kind, goodput)


def cold(kind: Kind, policy: str, deploy: str, load: float, knee: float, seed: int) -> Cold:
    """All replicas restart at once, or one after the other, each drained before."""
    fleet, wiring = kind.plan, plan(policy)
    changes: list[Change] = [Restart(AT_S, name, DOWN_S) for name in fleet.ids]
    if deploy == "rolling":
        changes = [Restart(AT_S + EVERY_S * i, name, DOWN_S, drains=True) for i, name in enumerate(fleet.ids)]
    back = changes[-1].at + (EVERY_S if deploy == "rolling" else DOWN_S)
    play = Traffic(kind, load * knee).play(seed, back + TAIL_S)
    calm = simulate(play, fleet, wiring, seed)
    struck = simulate(play, fleet, wiring, seed, changes)
    return Cold(kind.name, policy, deploy, load, knee, seed, recovery(struck.records, calm.records, back))
