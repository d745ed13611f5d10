"""What one router tells the other routers: the sum of its workers' loads, and their placements, merged.

Others see a router as one peer, however many workers it has, and hear its sum, as much of it as has changed. What is
absolute (load, what was learned) is not queued: whoever sends asks for it at that moment. What is told once
(placements, corrections, refusals) waits in one bounded queue, in order, which drops its oldest and counts. Whoever
sends asks `batch` when it can, so a slow or missing Redis makes batches larger and later, and nothing else. What was
sent and has not come back when a line breaks is told again: nobody knows whether it was heard.
"""

import math
from collections import Counter, deque
from collections.abc import Callable, Sequence
from itertools import chain

from router.core.backlog import Totals
from router.core.fleet import Fleet
from router.core.member import Replica
from router.core.peers import PeerId
from router.core.types import ReplicaId
from router.gossip.messages import (
    Batch,
    Bye,
    Corrected,
    Fleetwide,
    Full,
    Learned,
    LearnedRow,
    Load,
    ModelRow,
    Placed,
    PlacedRow,
    RateRow,
    Shared,
    TotalsRow,
)

MAX_QUEUED = 65_536
"""Hashes that wait to be told: half a megabyte, and what 100 requests a second with 50 new blocks place in ten seconds
without Redis. What is dropped beyond it is in the snapshot all the same."""

MAX_BATCH = 8192
"""Hashes of one batch: 70 KB, half a millisecond to decode."""

MAX_UNHEARD = 512
"""Messages that have not come back yet: five seconds of them, and a line is believed dead after three (redis.py)."""

_Event = PlacedRow | Corrected | Full


class Outgoing:
    """One router's. `fleet` is the supervisor's, whose peers are the workers; `now` is monotonic seconds."""

    def __init__(self, fleet: Fleet, peer: PeerId, block: int, now: Callable[[], float]) -> None:
        self._fleet, self._peer, self._block, self._now = fleet, peer, block, now
        self._events: deque[_Event] = deque()
        self.queued = 0  # Hashes, and one for each event.
        self._changed: set[ReplicaId] = set()
        self._learned: dict[PeerId, Learned] = {}
        self._sequence = 0
        self._confirmed = True
        self._quiet = False
        self._unheard: deque[list[_Event]] = deque(maxlen=MAX_UNHEARD)
        self.dropped: Counter[str] = Counter()

    # What workers tell; the fleet has been told before.

    def take(self, worker: PeerId, message: Shared) -> bool:
        """Note a worker's news; whether it is urgent. Placements wait for the load that changes with them."""
        match message:
            case Load():
                self._changed.update(message.loads)
                self._quiet = not message.loads
                return True
            case Placed():
                for row in message.placed:
                    self._queue(row)
            case Corrected() | Full():
                self._queue(message)
                return True
            case Learned():
                self._learned[worker] = message
        return False

    def gone(self, worker: PeerId) -> None:
        """A worker has ended, and its load with it."""
        self._learned.pop(worker, None)
        self._changed.update(replica.id for replica in self._fleet.replicas)

    def _queue(self, event: _Event) -> None:
        self._events.append(event)
        self.queued += _weight(event)
        while self.queued > MAX_QUEUED:
            dropped = self._events.popleft()
            self.queued -= _weight(dropped)
            self.dropped[type(dropped).__name__ if isinstance(dropped, Corrected | Full) else Placed.__name__] += 1

    # What is told.

    def batch(self, held: bool = False) -> Batch | None:
        """What there is to tell, at most so much at a time; None when there is nothing. `held`: the queue waits."""
        taken = [] if held else self._take_events()
        news = _told(self._peer, taken)
        changed, self._changed = self._changed, set()
        if changed:
            self._sequence += 1
            self._confirmed = self._quiet = False
            news.append(Load(self._peer, self._sequence, False, self._loads(changed)))
        elif self._quiet and not self._confirmed:
            self._confirmed = True
            news.append(Load(self._peer, self._sequence, False, {}))
        if not news:
            return None
        self._unheard.append(taken)
        return Batch(self._peer, self._block, news)

    def heard(self) -> None:
        """The oldest message that had not come back has: it was heard."""
        if self._unheard:
            self._unheard.popleft()

    def again(self) -> None:
        """Queue anew what has not come back: the line broke. Refusals are over by now."""
        events = [*chain.from_iterable(self._unheard), *self._events]
        self._unheard.clear()
        self._events.clear()
        self.queued = 0
        for event in events:
            if not isinstance(event, Full):
                self._queue(event)

    def beat(self) -> Batch:
        """All of the load and what was learned: the heartbeat."""
        self._sequence += 1
        self._changed.clear()
        self._confirmed = True
        self._unheard.append([])
        busy = [replica.id for replica in self._fleet.replicas if replica.others is not None]
        whole = Load(self._peer, self._sequence, True, self._loads(busy))
        confirmed = Load(self._peer, self._sequence, False, {})
        learned = Learned(self._peer, _models(list(self._learned.values())), _rates(list(self._learned.values())))
        return Batch(self._peer, self._block, [whole, confirmed, learned])

    def bye(self) -> Batch:
        """This router is gone."""
        return Batch(self._peer, self._block, [Bye(self._peer)])

    def _loads(self, wanted: Sequence[ReplicaId] | set[ReplicaId]) -> dict[ReplicaId, TotalsRow]:
        now = self._now()
        return {replica.id: _row(replica, now) for replica in self._fleet.replicas if replica.id in wanted}

    def _take_events(self) -> list[_Event]:
        """The oldest of the queue."""
        events, weight = self._events, 0
        taken: list[_Event] = []
        while events and weight < MAX_BATCH:
            taken.append(event := events.popleft())
            weight += _weight(event)
        self.queued -= weight
        return taken


def _told(peer: PeerId, events: Sequence[_Event]) -> list[Fleetwide]:
    """Events as messages, in their order, placements in a row together."""
    found: list[Fleetwide] = []
    rows: list[PlacedRow] = []
    for event in events:
        if not isinstance(event, Corrected | Full):
            rows.append(event)
            continue
        if rows:
            found.append(Placed(peer, rows))
            rows = []
        found.append(Corrected(peer, event.replica, event.block) if isinstance(event, Corrected) else event)
    if rows:
        found.append(Placed(peer, rows))
    return found


def _weight(event: _Event) -> int:
    """Hashes, and one for the rest."""
    return 1 if isinstance(event, Corrected | Full) else 1 + len(event[2])


def _row(replica: Replica, now: float) -> TotalsRow:
    """The workers' sum on a replica as it is now."""
    totals = replica.others or Totals()
    recent = totals.recent and totals.recent * math.exp((replica.others_at - now) / replica.tau)
    return (*totals[:6], recent, now - replica.last_sign)


def _models(told: Sequence[Learned]) -> list[ModelRow]:
    """What workers have learned of each model: windows added, what is hot for one is hot, the best founded means."""
    windows: Counter[str] = Counter()
    hot: dict[str, set[int]] = {}
    means: dict[str, LearnedRow] = {}
    for model, window, blocks, learned in (row for each in told for row in each.models):
        windows[model] += window
        hot.setdefault(model, set()).update(blocks)
        if model not in means or _seen(learned) > _seen(means[model]):
            means[model] = learned
    return [(model, windows[model], sorted(hot[model]), learned) for model, learned in means.items()]


def _seen(learned: LearnedRow) -> int:
    return sum(mean[1] for mean in learned[:4])


def _rates(told: Sequence[Learned]) -> list[RateRow]:
    """The speed of each replica as the worker with the most samples has learned it."""
    best: dict[ReplicaId, RateRow] = {}
    for row in (row for each in told for row in each.rates):
        known = best.get(row[0])
        if known is None or row[2] + row[4] > known[2] + known[4]:
            best[row[0]] = row
    return list(best.values())
