"""Where prefixes live before and after a change of the fleet, by two measures. It reads, and changes nothing.

chosen   What the rule would choose for a prompt that was sent already, were nobody busy: the router is asked with all
         of its beliefs and all load set to 0. So what differs between two moments is where prefixes are believed to be
         and the ring, never a queue. A prompt is known where at least half of it is believed to be resident on the
         replica that is chosen, and counts once however often it was sent. Prompts that another one goes on from are
         left out: nobody sends them again.
went     Where requests really went, busy or not. A request's prefix is known when at least half of its blocks begin a
         prompt that was sent before the change and were believed to be resident somewhere ever since: what was evicted
         meanwhile has no place to keep. It stayed when its replica is one of those that had the deepest such block.
         A busy fleet spills without any change, so this is told beside a run in which nothing changed.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from loadtests.plays import Line, Play, size
from loadtests.records import Record
from loadtests.sim_router import SimRouter, ask
from loadtests.simulation import Outcome, RouterPlan
from router.core.types import Ask, Candidate, Few, Lines, Policy, Ramping, Reading, ReplicaId, Rng, Route, View, Wait

KNOWN = 0.5
"""The share of a prompt that makes its prefix a known one: less is a preamble that all kinds of prompts share, or that
a snapshot may round away (core/recalled.py knows half of a shared depth at least)."""

Name = tuple[str, int]
"""Session and turn."""

Reach = Mapping[Name, float]
"""How much of each prompt was believed to be resident on some replica when it was sent, as a share."""

Asks = Mapping[str, Ask]
"""Prompts by the name of a request that had them."""

Routes = dict[str, Route]
"""Where each of them would go."""


class Idle:
    """A policy that takes nobody for busy. Everything else of the view is as it is."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    def pick(self, ask: Ask, view: View, now: float, rng: Rng) -> Candidate | Wait:
        return self._policy.pick(ask, _IdleView(view), now, rng)

    def lines(self, replica: Reading, view: View) -> Lines | None:
        return self._policy.lines(replica, view)

    def cuts(self, replica: Reading) -> bool:
        return self._policy.cuts(replica)


class _IdleView:
    """types.View over another one, without load."""

    def __init__(self, view: View) -> None:
        self._view = view
        self.ready, self.tokens = view.ready, view.tokens
        self.cold, self.returning, self.running = view.cold, view.returning, 0.0
        self.lin, self.kv, self.output, self.tau = view.lin, view.kv, view.output, view.tau
        self.ramping: Ramping | None = None  # What slows a newcomer is others' load.
        self.replicas = [_idle(replica) for replica in view.replicas]

    def few(self) -> Few | None:
        return None

    def read(self, replica: ReplicaId) -> Reading | None:
        return None

    def order(self) -> Iterable[ReplicaId]:
        return self._view.order()

    def order_at(self, depth: int) -> Iterable[ReplicaId]:
        return self._view.order_at(depth)


def _idle(reading: Reading) -> Reading:
    return Reading(
        reading.id,
        0,
        0,
        0.0,
        0.0,
        0.0,
        0.0,
        0.0,
        reading.lin,
        reading.step,
        reading.depth,
        reading.uncached,
        reading.cold,
    )


def chosen(router: SimRouter, plan: RouterPlan, asks: Asks) -> Routes:
    """Where each prompt would go at this moment. `plan` is the router's own; its fleet is as before when this returns.

    Prompts for which there is no route are left out.
    """
    fleet, routes = router.fleet, Routes()
    fleet.adjust(Idle(plan.policy()), plan.settings)
    for name, each in asks.items():
        route = fleet.route(each, router.clock.now, router.rng)
        if isinstance(route, Route):
            routes[name] = route
    fleet.adjust(plan.policy(), plan.settings)
    return routes


def known(routes: Routes) -> Routes:
    """Those of which enough is believed to be resident where they go."""
    return {name: route for name, route in routes.items() if route.cached >= KNOWN * route.tokens}


def asks(play: Play, sent: Iterable[Record], block: int) -> dict[str, Ask]:
    """The prompts of these requests that none of the others goes on from, by one request that had each."""
    found: dict[int, tuple[str, Ask]] = {}
    inner: set[int] = set()
    by_name = lines(play)
    for record in sent:
        each = ask(by_name[record.session, record.turn], block)
        if each.chain:
            inner.update(each.chain[:-1])
            found.setdefault(each.chain[-1], (f"{record.session}/{record.turn}", each))
    return dict(told for tip, told in found.items() if tip not in inner)


def lines(play: Play) -> dict[Name, Line]:
    """Every request of a play, by its session and turn."""
    return {(part.id, turn): line for part in play.parts for turn, line in enumerate(part.lines)}


@dataclass(frozen=True, slots=True)
class Kept:
    """Of `known` prefixes, how many `stayed`, and how many are `excused`: all whose only replica has left, and of those
    that moved to one that has come as many as are its fair share."""

    known: int
    stayed: int
    excused: float

    def __add__(self, other: "Kept") -> "Kept":
        return Kept(self.known + other.known, self.stayed + other.stayed, self.excused + other.excused)

    @property
    def share(self) -> float:
        """Of those that had no reason to move, the ones that stayed; 1 where there is none."""
        rest = self.known - self.excused
        return self.stayed / rest if rest > 0 else 1.0


@dataclass(frozen=True, slots=True)
class Member:
    """Which replica `left` or `came`, and 1/N, the `fair` share of one that came to be one of N."""

    left: ReplicaId | None = None
    came: ReplicaId | None = None
    fair: float = 0.0


NOBODY = Member()


class Prefix(NamedTuple):
    """One that ends with `block`: the replicas that it had, and the one where it is asked for now (None: nowhere)."""

    block: int
    before: frozenset[ReplicaId]
    now: ReplicaId | None


def compare(prefixes: Collection[Prefix], member: Member = NOBODY) -> Kept:
    """How many of them stayed."""
    stayed = sum(prefix.now in prefix.before for prefix in prefixes)
    lost = sum(prefix.before == {member.left} for prefix in prefixes)
    taken = sum(prefix.now is not None and prefix.now == member.came for prefix in prefixes)
    return Kept(len(prefixes), stayed, lost + min(taken, member.fair * len(prefixes)))


def kept(before: Routes, after: Routes, member: Member = NOBODY) -> Kept:
    """What became of the prompts that were known at the first of two moments, by where they would go."""
    again = {name: route.replica for name, route in after.items()}
    prompts = known(before).items()
    return compare([Prefix(0, frozenset({route.replica}), again.get(name)) for name, route in prompts], member)


def reach(outcome: Outcome) -> Reach:
    """What the router of each request believed."""
    return {
        (record.session, record.turn): lease.reachable / lease.prompt_tokens
        for record, lease in zip(outcome.records, outcome.leases, strict=True)
        if lease is not None
    }


class _Places:
    """Which replicas have which block, as far as requests and what was reachable for them tell."""

    def __init__(self) -> None:
        self._places: dict[int, set[ReplicaId]] = {}

    def known(self, chain: Sequence[int], held: int) -> int:
        """How many of a chain's first `held` blocks have a place."""
        return next((i for i, each in enumerate(chain[:held]) if each not in self._places), held)

    def of(self, block: int) -> frozenset[ReplicaId]:
        return frozenset(self._places[block])

    def sent(self, chain: Sequence[int], held: int, replica: ReplicaId) -> None:
        """A chain was sent there when nobody had more than `held` blocks of it."""
        for block in chain[:held]:
            self._places.setdefault(block, set()).add(replica)
        for block in chain[held:]:
            self._places[block] = {replica}

    def lost(self, chain: Sequence[int], held: int) -> None:
        """Nobody has more of it any more; where it is computed again is no place to keep."""
        for block in chain[held:]:
            self._places.pop(block, None)


def went(
    play: Play, records: Iterable[Record], block: int, span: tuple[float, float], known_by: Reach
) -> list[tuple[Name, Prefix]]:
    """The requests sent in `span`, [begin, end) in seconds, whose prefix was known at its begin and is still there:
    each with its prefix, who had that, and where it went. In the order in which they were sent."""
    by_name, (begin, end), places = lines(play), span, _Places()
    found: list[tuple[Name, Prefix]] = []
    for record in sorted(records, key=lambda record: record.sent_s):
        if record.replica is None or record.sent_s >= end:
            continue
        name = record.session, record.turn
        line = by_name[name]
        chain = ask(line, block).chain
        held = min(len(chain), round(known_by.get(name, 0.0) * size(line.prompt_tokens) / block))
        if record.sent_s < begin:
            places.sent(chain, held, record.replica)
            continue
        depth = places.known(chain, held)
        if depth >= max(1, KNOWN * len(chain)):
            found.append((name, Prefix(chain[depth - 1], places.of(chain[depth - 1]), record.replica)))
        places.lost(chain, held)
    return found


def first(found: Iterable[tuple[Name, Prefix]]) -> list[Prefix]:
    """Each prefix once, by the first request for it."""
    once: dict[int, Prefix] = {}
    for _, prefix in found:
        once.setdefault(prefix.block, prefix)
    return list(once.values())
