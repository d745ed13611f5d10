"""What one router tells the other routers: the sum of its workers' loads, and their placements, merged.

Others see a router as one peer, however many workers it has, and hear its sum, as much of it as has changed. What is
absolute (load, what was learned) is not queued: whoever sends asks for it at that moment. What is told once, placements
and corrections, waits in one bounded queue, in order, and is told again to whoever has missed it (numbered.py). A
refusal counts for as long as it lasts. Whoever sends asks `batch` when it can, so a slow or missing Redis makes batches
larger and later, and nothing else.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

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
from router.gossip.numbered import Event, Telling


class Outgoing:
    """One router's. `fleet` is the supervisor's, whose peers are the workers; `now` is monotonic seconds."""

    def __init__(self, fleet: Fleet, peer: PeerId, block: int, now: Callable[[], float]) -> None:
        self._fleet, self._peer, self._block, self._now = fleet, peer, block, now
        self._telling = Telling(self._epoch)
        self._full: dict[ReplicaId, float] = {}  # Until when.
        self._changed: set[ReplicaId] = set()
        self._learned: dict[PeerId, Learned] = {}
        self._sequence = 0
        self._confirmed = True
        self._quiet = False

    @property
    def waits(self) -> bool:
        """Whether something is to be told that is not absolute."""
        return self._telling.waits

    @property
    def dropped(self) -> int:
        """Placements and corrections that nobody was told."""
        return self._telling.dropped

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
                    self._telling.add(row)
            case Corrected():
                self._telling.add(message)
                return True
            case Full():
                self._full[message.replica] = self._now() + message.seconds
                return True
            case Learned():
                self._learned[worker] = message
        return False

    def gone(self, worker: PeerId) -> None:
        """A worker has ended, and its load with it."""
        self._learned.pop(worker, None)
        self._changed.update(replica.id for replica in self._fleet.replicas)

    # What others ask.

    def asked(self, number: int) -> None:
        """Another router has missed what was told from this number on."""
        self._telling.asked(number)

    # What is told.

    def batch(self, lacks: Mapping[PeerId, int]) -> Batch | None:
        """What there is to tell, at most so much at a time, and what is asked of others; None when there is nothing."""
        first, events = self._telling.take()
        news = _told(self._peer, events)
        if self._full:
            news += self._refusals()
        changed, self._changed = self._changed, set()
        if changed:
            self._sequence += 1
            self._confirmed = self._quiet = False
            news.append(Load(self._peer, self._sequence, False, self._loads(changed)))
        elif self._quiet and not self._confirmed:
            self._confirmed = True
            news.append(Load(self._peer, self._sequence, False, {}))
        if not news and not lacks:
            return None
        return Batch(self._peer, self._block, news, first, self._telling.oldest, lacks)

    def beat(self) -> Batch:
        """All of the load and what was learned: the heartbeat."""
        self._sequence += 1
        self._changed.clear()
        self._confirmed = True
        busy = [replica.id for replica in self._fleet.replicas if replica.others is not None]
        whole = Load(self._peer, self._sequence, True, self._loads(busy))
        confirmed = Load(self._peer, self._sequence, False, {})
        learned = Learned(self._peer, _models(list(self._learned.values())), _rates(list(self._learned.values())))
        self._telling.beat()
        return Batch(self._peer, self._block, [whole, confirmed, learned], self._telling.next, self._telling.oldest)

    def bye(self) -> Batch:
        """This router is gone."""
        return Batch(self._peer, self._block, [Bye(self._peer)])

    def _loads(self, wanted: Sequence[ReplicaId] | set[ReplicaId]) -> dict[ReplicaId, TotalsRow]:
        now = self._now()
        return {replica.id: _row(replica, now) for replica in self._fleet.replicas if replica.id in wanted}

    def _refusals(self) -> list[Full]:
        """Those that last."""
        now, full = self._now(), self._full
        self._full = {}
        return [Full(replica, until - now) for replica, until in full.items() if until > now]

    def _epoch(self, replica: ReplicaId) -> float | None:
        """None for one that has left, too."""
        try:
            return self._fleet.replica(replica).epoch
        except KeyError:
            return None


def _told(peer: PeerId, events: Sequence[Event]) -> list[Fleetwide]:
    """Events as messages, in their order, placements in a row together."""
    found: list[Fleetwide] = []
    rows: list[PlacedRow] = []
    for event in events:
        if not isinstance(event, Corrected):
            rows.append(event)
            continue
        if rows:
            found.append(Placed(peer, rows))
            rows = []
        found.append(Corrected(peer, event.replica, event.block))
    if rows:
        found.append(Placed(peer, rows))
    return found


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
