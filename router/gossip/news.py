"""A worker's end of the gossip: what it tells other routers of itself, and what it does with what they tell.

On a request's path it only notes (types.News). While there is something to tell, placements and changed loads go out
together at each full 25 ms of the wall clock: at the same moments as those of all other workers and routers, so that
whoever passes them on or hears them wakes up once for all of them (D31). A dispatch is known everywhere within some
30 ms. Every second all of the load and what was learned goes out, as the heartbeat, whether anything has changed or
not.
"""

import asyncio
from collections.abc import Callable, Sequence

from router.core.backlog import Totals
from router.core.fleet import Fleet
from router.core.peers import PeerId
from router.core.types import ReplicaId
from router.gossip import messages
from router.gossip.messages import (
    Bye,
    Corrected,
    Ejected,
    Full,
    Heard,
    Learned,
    Load,
    Message,
    Placed,
    PlacedRow,
    Shared,
    Summarise,
    Summarised,
    Summary,
)

TICK = 0.025
"""Seconds between sends: as rarely as leaves the median of what a dispatch takes to the other routers under 20 ms, half
of it being spent waiting here. Four routers with 125 requests a second each spend a fifth less on news than with 20 ms.
"""

SOON = 0.002
"""Seconds that a send is away at least: timers may fire a millisecond early, and would then fire twice."""

BEAT = 1.0
"""Seconds between heartbeats; silence of twice as long drops a router (core/peers.py)."""

MAX_PLACED = 1000
"""Placements that wait for a tick: a hundred thousand requests a second. Any more are dropped and counted."""

_Seen = tuple[int, int, int]


class News:
    """types.News of one worker. `send` takes a message and never waits; `now` is monotonic seconds, `wall` those of a
    clock that all routers share, as far as hosts can."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        fleet: Fleet,
        peer: PeerId,
        send: Callable[[Message], None],
        now: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self._loop, self._fleet, self._peer, self._send = loop, fleet, peer, send
        self._now, self._wall = now, wall
        self._placed: list[PlacedRow] = []
        self._sequence = 0
        self._told: dict[ReplicaId, _Seen] = {}
        self._confirmed = True
        self._ticking: asyncio.TimerHandle | None = None
        self._beating: asyncio.TimerHandle | None = None
        self.dropped = 0

    def start(self) -> None:
        """Begin to tell; the first heartbeat goes out at once."""
        self._fleet.residency.news = self
        self._beat()

    def stop(self) -> None:
        """Say goodbye, and tell nothing more."""
        self._fleet.residency.news = None
        for timer in (self._ticking, self._beating):
            if timer is not None:
                timer.cancel()
        self._send(Bye(self._peer))

    # types.News: called on a request's path.

    def leased(self) -> None:
        if self._ticking is None:
            self._await_tick()

    def placed(self, replica: ReplicaId, parent: int | None, hashes: Sequence[int]) -> None:
        if len(self._placed) >= MAX_PLACED:
            self.dropped += 1
        else:
            self._placed.append((replica, parent, hashes))

    def corrected(self, replica: ReplicaId, block: int) -> None:
        self._flush_placed()  # In order: what was placed before is what is corrected.
        self._send(Corrected(self._peer, replica, block))

    def full(self, replica: ReplicaId, until: float) -> None:
        self._send(Full(replica, until - self._now()))

    # What others tell.

    def take(self, message: Heard | Summary | Summarise) -> None:
        """Take what came from another host, or a part of a snapshot; or tell such a part."""
        match message:
            case Heard():
                self._take_all(message)
            case Summary():
                self._fleet.snapshots.recall(
                    message.replica, message.epoch, messages.unpacked(message.hashes), self._now()
                )
            case Summarise():
                self._summarise(message.serial, message.replica)

    def _summarise(self, serial: int, replica: ReplicaId) -> None:
        summary = None
        if any(each.id == replica for each in self._fleet.replicas):
            told = self._fleet.snapshots.summary(replica)
            epoch = self._fleet.replica(replica).epoch
            summary = Summary(replica, epoch, messages.packed(told.hashes), told.left_out)
        self._send(Summarised(serial, summary))

    def _take_all(self, heard: Heard) -> None:
        """What changes the loads of a replica, of whichever router, is summed once."""
        peers, now = self._fleet.peers, self._now()
        changed: set[ReplicaId] = set()
        for batch in heard.batches:
            for message in batch.news:
                if isinstance(message, Load):
                    changed |= peers.noted(batch.peer, message.sequence, _loads(message), message.whole, now)
                else:
                    self.hear(message)
        peers.sum(changed, now)

    def hear(self, message: Shared) -> None:
        """Take another router's news."""
        fleet, now = self._fleet, self._now()
        match message:
            case Load():
                fleet.peers.loaded(message.peer, message.sequence, _loads(message), message.whole, now)
            case Placed():
                for replica, parent, hashes in message.placed:
                    fleet.placed(replica, parent, hashes, now)
            case Learned():
                models = [messages.model(row) for row in message.models]
                fleet.peers.learned(message.peer, models, [messages.rate(row) for row in message.rates], now)
            case Corrected():
                fleet.corrected(message.replica, message.block)
            case Bye():
                fleet.peers.bye(message.peer, now)
            case Full() | Ejected():
                self._out(message, now)

    def _out(self, message: Full | Ejected, now: float) -> None:
        """A replica that another router can send nothing to for a while."""
        if isinstance(message, Full):
            self._fleet.told_full(message.replica, now + message.seconds)
        else:
            self._fleet.told_ejected(message.replica, message.reason, now + message.seconds, now)

    # Timers.

    def tell_loads(self) -> None:
        """Send the loads that have changed since they were last sent, now."""
        changed = {}
        now = self._now()
        for replica in self._fleet.replicas:
            seen = replica.dispatches, replica.unstarted, replica.requests
            if self._told.get(replica.id, (0, 0, 0)) != seen:
                self._told[replica.id] = seen
                changed[replica.id] = replica.totals(now, now - replica.last_sign)
        if changed:
            self._sequence += 1
            self._confirmed = False
            self._send(Load(self._peer, self._sequence, False, changed))

    def _await_tick(self) -> None:
        wait = TICK - self._wall() % TICK
        self._ticking = self._loop.call_later(wait if wait > SOON else wait + TICK, self._tick)

    def _tick(self) -> None:
        """Between two dispatches of one replica its counters only fall, so the three of them tell any change."""
        self._ticking = None
        self._flush_placed()
        before = self._sequence
        self.tell_loads()
        if before == self._sequence and not self._confirmed:
            self._confirmed = True
            self._send(Load(self._peer, self._sequence, False, {}))
        if not self._confirmed or any(replica.requests for replica in self._fleet.replicas):
            self._await_tick()

    def _flush_placed(self) -> None:
        if self._placed:
            placed, self._placed = self._placed, []
            self._send(Placed(self._peer, placed))

    def _beat(self) -> None:
        self._beating = self._loop.call_later(BEAT, self._beat)
        now, fleet = self._now(), self._fleet
        self._sequence += 1
        self._confirmed = True
        self._told = {each.id: (each.dispatches, each.unstarted, each.requests) for each in fleet.replicas}
        whole = {each.id: each.totals(now, now - each.last_sign) for each in fleet.replicas if each.dispatches}
        self._send(Load(self._peer, self._sequence, True, whole))
        self._send(Load(self._peer, self._sequence, False, {}))
        self._send(learned(fleet, self._peer))
        fleet.peers.expire(now)
        fleet.snapshots.tidy(now)


def _loads(message: Load) -> dict[ReplicaId, Totals]:
    return {replica: messages.totals(row) for replica, row in message.loads.items()}


def learned(fleet: Fleet, peer: PeerId) -> Learned:
    """What `peer`, whose fleet this is, has learned of its models and replicas."""
    models = [(news.model, news.window, news.hot, news.learned) for news in fleet.learned()]
    return Learned(peer, models, [(each.id, *each.rates()) for each in fleet.replicas])
