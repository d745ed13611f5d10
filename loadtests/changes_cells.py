"""The runs behind `python -m loadtests.changes`: a cell is one comparison, and answers with one frozen row of figures.

A cell is names and numbers only, so that a process can be told of it. Every cell also runs its play with nothing
happening: what a busy fleet does anyhow is never put down to the change.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from loadtests.placement import NOBODY, Kept, Member, Routes, asks, chosen, compare, first, kept, reach, went
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


class _Watch:
    """Asks the first router, before and after a change, where the prompts sent so far would go."""

    def __init__(self, play: Play, calm: Outcome, wiring: RouterPlan) -> None:
        self._wiring = wiring
        sent = [record for record in calm.records if record.sent_s < AT_S]
        self._asks = asks(play, sent, wiring.settings.block)
        self._seen: list[Routes] = []

    def around(self, *changes: Change) -> list[Change]:
        """These changes between two looks."""
        return [Look(AT_S, self._look), *changes, Look(AT_S, self._look)]

    def _look(self, routers: Sequence[SimRouter]) -> None:
        self._seen.append(chosen(routers[0], self._wiring, self._asks))

    def kept(self, member: Member = NOBODY) -> Kept:
        before, after = self._seen
        return kept(before, after, member)


# A replica joins or leaves.


@dataclass(frozen=True, slots=True)
class Placed:
    """What a join or a leave did. `kept` by the rule at once; `went` in AFTER_S, `usual` with no change. `share` is
    the newcomer's part of the fleet's work in that time, 1 is fair. TTFT means in seconds, of AFTER_S before, after,
    and after with no change."""

    traffic: str
    change: str
    kept: Kept
    went: Kept
    usual: Kept
    share: float | None
    ttft: tuple[float, ...]

    @property
    def of(self) -> tuple[str, str]:
        """What rows of several seeds have in common."""
        return self.traffic, self.change

    def __add__(self, other: "Placed") -> "Placed":
        """Both seeds' prefixes; the other figures are summed, to be divided by their number."""
        share = None if self.share is None or other.share is None else self.share + other.share
        kept, went, usual = self.kept + other.kept, self.went + other.went, self.usual + other.usual
        return Placed(*self.of, kept, went, usual, share, _sum(self.ttft, other.ttft))


def placed(traffic: Traffic, seed: int) -> list[Placed]:
    """One replica more (`join`), and one less (`leave`)."""
    wiring, fleet = plan(), traffic.kind.plan
    play = traffic.play(seed, AT_S + AFTER_S + MARGIN_S)
    calm = simulate(play, fleet, wiring, seed)
    usual = _prefixes(play, calm, wiring)
    one, more = fleet.ids[0], f"r{len(fleet.speeds) + 1}"
    rows = []
    for change, member in (
        (Join(AT_S, more), Member(None, more, 1 / (len(fleet.speeds) + 1))),
        (Leave(AT_S, one), Member(one)),
    ):
        watch = _Watch(play, calm, wiring)
        struck = simulate(play, fleet, wiring, seed, watch.around(change))
        share = None if member.came is None else _share(struck.records, member.came) / member.fair
        ttft = _ttft(calm, AT_S - AFTER_S), _ttft(struck, AT_S), _ttft(calm, AT_S)
        name, kept = type(change).__name__.lower(), watch.kept(member)
        own = _prefixes(play, struck, wiring, member)
        rows.append(Placed(traffic.kind.name, name, kept, own, usual, share, ttft))
    return rows


def _prefixes(play: Play, outcome: Outcome, wiring: RouterPlan, member: Member = NOBODY) -> Kept:
    """Of the prefixes asked for in AFTER_S, each by its first request."""
    span = AT_S, AT_S + AFTER_S
    return compare(first(went(play, outcome.records, wiring.settings.block, span, reach(outcome))), member)


def _ttft(outcome: Outcome, begin: float) -> float:
    """Raises ValueError where nothing was answered."""
    ttft = figures(outcome.records, begin, begin + AFTER_S).ttft
    if ttft is None:
        raise ValueError(f"nothing was answered from {begin:g} s on")
    return ttft


def _share(records: Sequence[Record], replica: ReplicaId) -> float:
    """A replica's part of the tokens that the fleet had to compute and to generate for what was sent in AFTER_S."""
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
    Figures are of the requests that came to it: `kept` by the rule at once, `went` in AFTER_S, and the hit ratio and
    the mean TTFT in seconds of AFTER_S before and after."""

    traffic: str
    routers: int
    arm: str
    kept: Kept
    went: Kept
    hit_ratio: tuple[float, ...]
    ttft: tuple[float, ...]

    @property
    def of(self) -> tuple[str, int, str]:
        """What rows of several seeds have in common."""
        return self.traffic, self.routers, self.arm

    def __add__(self, other: "Handed") -> "Handed":
        """Both seeds' prefixes and requests; the other figures are summed, to be divided by their number."""
        hit_ratio, ttft = _sum(self.hit_ratio, other.hit_ratio), _sum(self.ttft, other.ttft)
        return Handed(*self.of, self.kept + other.kept, self.went + other.went, hit_ratio, ttft)


def _sum(one: Sequence[float], other: Sequence[float]) -> tuple[float, ...]:
    return tuple(a + b for a, b in zip(one, other, strict=True))


def _requests(play: Play, outcome: Outcome, calm: Outcome, wiring: RouterPlan) -> Kept:
    """Of the requests that came to the first router in AFTER_S. What was still resident is taken from the run in which
    nothing happened: who knows nothing would find nothing lost."""
    numbers = zip(outcome.records, outcome.routers, strict=True)
    own = {(record.session, record.turn) for record, number in numbers if number == 1}
    found = went(play, outcome.records, wiring.settings.block, (AT_S, AT_S + AFTER_S), reach(calm))
    return compare([prefix for name, prefix in found if name in own])


def handed(traffic: Traffic, routers: int, seed: int) -> list[Handed]:
    """The first of so many routers restarts, or does not."""
    wiring, fleet = plan(routers=routers), traffic.kind.plan
    play = traffic.play(seed, AT_S + AFTER_S + MARGIN_S)
    calm = simulate(play, fleet, wiring, seed)

    def row(arm: str, outcome: Outcome, kept: Kept) -> Handed:
        own = [each for each, number in zip(outcome.records, outcome.routers, strict=True) if number == 1]
        before, after = figures(own, AT_S - AFTER_S, AT_S), figures(own, AT_S, AT_S + AFTER_S)
        return Handed(
            traffic.kind.name, routers, arm, kept, _requests(play, outcome, calm, wiring),
            (before.hit_ratio or 0.0, after.hit_ratio or 0.0), (before.ttft or 0.0, after.ttft or 0.0),
        )  # fmt: skip

    rows = [row("none", calm, Kept(0, 0, 0))]
    for arm, change in (("snapshot", RouterRestart(AT_S, 1)), ("without", RouterRestart(AT_S, 1, snapshot=False))):
        watch = _Watch(play, calm, wiring)
        rows.append(row(arm, simulate(play, fleet, wiring, seed, watch.around(change)), watch.kept()))
    return rows


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
    """All replicas restart at `once`, or one after the other, each drained before."""
    fleet, wiring = kind.plan, plan(policy)
    changes: list[Change] = [Restart(AT_S, name, DOWN_S) for name in fleet.ids]
    if deploy == "rolling":
        changes = [Restart(AT_S + EVERY_S * i, name, DOWN_S, drains=True) for i, name in enumerate(fleet.ids)]
    back = changes[-1].at + (EVERY_S if deploy == "rolling" else DOWN_S)
    play = Traffic(kind, load * knee).play(seed, back + TAIL_S)
    calm = simulate(play, fleet, wiring, seed)
    struck = simulate(play, fleet, wiring, seed, changes)
    return Cold(kind.name, policy, deploy, load, knee, seed, recovery(struck.records, calm.records, AT_S, back))
