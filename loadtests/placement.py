"""Where prefixes live before and after a change of the fleet, by two measures. It reads, and changes nothing.

chosen   What the rule would choose for a prompt that was sent already, were nobody busy: the router is asked with all
         of its beliefs and all load set to 0. So what differs between two moments is where prefixes are believed to be
         and the ring, never a queue. A prompt is known where at least half of it is believed to be resident on the
         replica that is chosen, and counts once however often it was sent. Prompts that another one goes on from are
         left out: nobody sends them again.
went     Where requests really went, busy or not. A request's prefix is known when at least half of its blocks begin a
         prompt that was sent before the change, and, had nothing changed, as much of it would have been believed to be
         resident somewhere when it was sent: what was evicted in time has no place to keep. It stayed when its replica
         is one of those that the deepest such block was sent to. A busy fleet spills without any change, so this is
         told beside the same requests of the run in which nothing changed.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from loadtests.plays import Line, Play
from loadtests.records import Record
from loadtests.sim_router import SimRouter, ask
from loadtests.simulation import Outcome, RouterPlan
from router.core.types import Ask, Candidate, Few, Lines, Policy, Reading, ReplicaId, Rng, Route, View, Wait

KNOWN = 0.5
"""The share of a prompt that makes its prefix a known one: less is a preamble that all kinds of prompts share, or that
a snapshot may round away (core/recalled.py knows half of a shared depth at least)."""

Name = tuple[str, int]
"""Session and turn."""

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
        self.ready, self.tokens, self.cold = view.ready, view.tokens, view.cold
        self.lin, self.kv, self.output, self.tau = view.lin, view.kv, view.output, view.tau
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


def compare(places: Sequence[tuple[Collection[ReplicaId], ReplicaId | None]], member: Member = NOBODY) -> Kept:
    """For each prefix the replicas that it had and the one that it has now."""
    stayed = sum(now in before for before, now in places)
    lost = sum(set(before) == {member.left} for before, _ in places)
    taken = sum(now is not None and now == member.came for before, now in places)
    return Kept(len(places), stayed, lost + min(taken, member.fair * len(places)))


def kept(before: Routes, after: Routes, member: Member = NOBODY) -> Kept:
    """What became of the prompts that were known at the first of two moments, by where they would go."""
    again = {name: route.replica for name, route in after.items()}
    return compare([((route.replica,), again.get(name)) for name, route in known(before).items()], member)


def alive(outcome: Outcome) -> set[Name]:
    """The requests of which at least KNOWN of the prompt was believed resident somewhere when they were sent."""
    return {
        (record.session, record.turn)
        for record, lease in zip(outcome.records, outcome.leases, strict=True)
        if lease is not None and lease.reachable >= KNOWN * lease.prompt_tokens
    }


def went(
    play: Play, records: Iterable[Record], block: int, span: tuple[float, float], of: Collection[Name], member: Member
) -> Kept:
    """What became of the prefixes of the requests sent in `span`, [begin, end) in seconds, that are among `of`."""
    by_name, (begin, end) = lines(play), span
    places: dict[int, set[str]] = {}
    later = []
    for record in records:
        name = record.session, record.turn
        if record.replica is None:
            continue
        chain = ask(by_name[name], block).chain
        if record.sent_s < begin:
            for each in chain:
                places.setdefault(each, set()).add(record.replica)
        elif record.sent_s < end and name in of:
            later.append((record.replica, chain))
    found: list[tuple[set[str], str]] = []
    for replica, chain in later:
        depth = next((i for i, each in enumerate(chain) if each not in places), len(chain))
        if depth >= max(1, KNOWN * len(chain)):
            found.append((places[chain[depth - 1]], replica))
    return compare(found, member)
