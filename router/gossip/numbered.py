"""What routers tell one another once, placements and corrections, numbered: both ends of it (D34). Pure.

Redis passes news on to whoever listens at that moment, and keeps none. So whoever tells numbers what it tells and keeps
it for a while, and each of its batches says which number it begins with. Whoever has missed something finds a later
number than it expects: it takes nothing then, in whose place it would not make sense, and asks to be told again from
there. Whoever has not passes over what it has heard. So each event is taken once, and in order, however lines break
and come back; what was told too long ago to be told again is in the snapshot.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence

from router.core.peers import PeerId
from router.core.types import ReplicaId
from router.gossip.messages import Batch, Corrected, Fleetwide, Placed, PlacedRow

MAX_KEPT = 65_536
"""Hashes that wait to be told, and may be told again: half a megabyte, and what 100 requests a second with 50 new
blocks place in ten seconds without Redis. What is dropped beyond it is in the snapshot all the same."""

MAX_BATCH = 8192
"""Hashes of one batch: 70 KB, half a millisecond to decode."""

KEPT_BEATS = 10
"""Heartbeats for which what was told may be told again: several times what it takes the snapshot of a fleet that is not
huge to have it, too. Heartbeats and not seconds, since none are told while Redis is away: whoever is back within so
many of them after the others has missed nothing for good."""

MAX_GONE = 64
"""Routers that have fallen silent whose numbers are known: as many as may be there (incoming.py)."""

Event = PlacedRow | Corrected

_NOTHING: PlacedRow = ("", None, ())
"""In the place of what is true no more: no replica has this name."""

_Kept = tuple[Event, ReplicaId, float | None]
"""An event, of which replica, and its epoch at that time."""


class Telling:
    """One router's. `epoch` is a replica's as it is now, None when that is not known."""

    def __init__(self, epoch: Callable[[ReplicaId], float | None]) -> None:
        self._epoch = epoch
        self._told: deque[_Kept] = deque()
        self._untold: deque[_Kept] = deque()
        self.next = 0  # The number of the first one that is not told.
        self._weight = 0  # Of both: hashes, and one for each event.
        self._beats = deque([0], maxlen=KEPT_BEATS)  # How far it was told at these.
        self._asked: int | None = None
        self._rewound = False  # Since the last heartbeat.
        self.dropped = 0

    @property
    def oldest(self) -> int:
        """The number of the first one that may be told again, or of the next one."""
        return self.next - len(self._told)

    @property
    def waits(self) -> bool:
        """Whether there is something to tell now."""
        return bool(self._untold) or (self._asked is not None and not self._rewound)

    def add(self, event: Event) -> None:
        """Something to tell. Beyond the bound the oldest goes; it is dropped if nobody was told."""
        replica = event.replica if isinstance(event, Corrected) else event[0]
        self._untold.append((event, replica, self._epoch(replica)))
        self._weight += _weight(event)
        while self._weight > MAX_KEPT:
            if self._told:
                self._forget()
            else:
                self._weight -= _weight(self._untold.popleft()[0])
                self.next += 1
                self.dropped += 1

    def take(self) -> tuple[int, list[Event]]:
        """What is to be told next, at most so much at a time, and the first one's number."""
        if self._asked is not None and not self._rewound:
            self._rewind(self._asked)
        first, weight, taken = self.next, 0, []
        while self._untold and weight < MAX_BATCH:
            kept = self._untold.popleft()
            self._told.append(kept)
            weight += _weight(kept[0])
            taken.append(kept[0] if self._holds(kept) else _NOTHING)
        self.next += len(taken)
        return first, taken

    def asked(self, number: int) -> None:
        """Somebody has missed what was told from this number on. It is told again to all, at most once between two
        heartbeats, for all who have asked by then: many that come back together cost little more than one."""
        if number < self.next:
            self._asked = number if self._asked is None else min(number, self._asked)

    def beat(self) -> None:
        """A heartbeat is told."""
        self._rewound = False
        self._beats.append(max(self.next, self._beats[-1]))
        while self._told and self.oldest < self._beats[0]:
            self._forget()

    def _rewind(self, number: int) -> None:
        self._asked, self._rewound = None, True
        while self._told and self.next > number:
            self._untold.appendleft(self._told.pop())
            self.next -= 1

    def _holds(self, kept: _Kept) -> bool:
        """Whether the replica has not begun a new epoch since."""
        _, replica, epoch = kept
        now = self._epoch(replica)
        return epoch is None or now is None or epoch == now

    def _forget(self) -> None:
        self._weight -= _weight(self._told.popleft()[0])


class Hearing:
    """What was heard of all others. `lacks`: of whom something was missed, and from which number on."""

    def __init__(self) -> None:
        self.lacks: dict[PeerId, int] = {}
        self._next: dict[PeerId, int] = {}
        self._gone: dict[PeerId, int] = {}

    def take(self, batch: Batch) -> int:
        """How many of a batch's events, from its first on, are not to be taken."""
        peer, first, count = batch.peer, batch.first, events(batch.news)
        known = self._next.get(peer)
        if known is None:
            known = self._next[peer] = self._gone.pop(peer, 0)
        expected = max(known, batch.oldest)
        if first > expected:
            self.lacks[peer] = expected
            return count
        self.lacks.pop(peer, None)
        self._next[peer] = max(expected, first + count)
        return min(count, expected - first)

    def lose(self, peer: PeerId) -> None:
        """A router that has been heard is silent. Its line may come back: it goes on counting then."""
        self.lacks.pop(peer, None)
        self._gone[peer] = self._next.pop(peer)
        if len(self._gone) > MAX_GONE:
            del self._gone[next(iter(self._gone))]


def _weight(event: Event) -> int:
    """Hashes, and one for the rest."""
    return 1 if isinstance(event, Corrected) else 1 + len(event[2])


def events(news: Sequence[Fleetwide]) -> int:
    """How many are numbered."""
    count = 0
    for message in news:
        if isinstance(message, Placed):
            count += len(message.placed)
        elif isinstance(message, Corrected):
            count += 1
    return count


def without(news: Sequence[Fleetwide], known: int) -> Iterator[Fleetwide]:
    """All but so many of the first that are numbered."""
    for message in news:
        count = events((message,))
        if count <= known and count:
            known -= count
        elif isinstance(message, Placed) and known:
            yield Placed(message.peer, message.placed[known:])
            known = 0
        else:
            yield message
