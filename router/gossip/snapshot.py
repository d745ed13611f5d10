"""Who holds which prefix, as the supervisor keeps it for whoever joins: a worker, its successor, another router.

The supervisor holds no beliefs of its own. It asks its oldest worker for one replica after the other, the whole fleet
every PERIOD, or less often when there is much to tell, and keeps the answers as they are: at most 2 MiB
(core/recalled.py).

Between routers each replica's part is written by one of them, the one whose name and the replica's hash highest
together (rendezvous hashing): each writes its share, none leads, and when one goes the others take over its share. Who
has just come writes nothing yet, and reads a second time (link.py).
"""

from collections.abc import Collection, Iterable
from hashlib import blake2b

import msgspec

from router.core import backlog
from router.core.peers import PeerId
from router.core.types import ReplicaId
from router.gossip.messages import Learned, Message, Summary

PERIOD = 2.0
"""Seconds in which each replica is summarised once. What was placed in so long before it came, who joins is told again
(numbered.py)."""

REST = 120e-6
"""Seconds of rest for each hash that was told. Telling one takes a worker 0.6 us, so it spends half a percent of its
time on it; with 2 MiB, the most there can be, each replica's turn comes every 31 s."""


HASH_BYTES = 8


class Stored(msgspec.Struct, array_like=True):
    """A snapshot as one process hands it to the next."""

    summaries: list[Summary]
    learned: Learned | None


class Snapshot:
    """The last summary of each replica, and what some worker has learned, as it told last."""

    def __init__(self) -> None:
        self.summaries: dict[ReplicaId, Summary] = {}
        self.learned: Learned | None = None

    def take(self, summary: Summary) -> None:
        """A replica's latest."""
        self.summaries[summary.replica] = summary

    def forget(self, replica: ReplicaId) -> None:
        """A replica has left."""
        self.summaries.pop(replica, None)

    def messages(self) -> list[Message]:
        """What a worker that joins is told."""
        return [*self.summaries.values(), *([] if self.learned is None else [self.learned])]

    def tokens_per_byte(self, model: str | None) -> float:
        """What was learned of a model's prompts; what one begins with, where nothing was told yet."""
        rows = () if self.learned is None else self.learned.models
        told = next((row[3] for row in rows if row[0] == model), None)
        tokens, size = backlog.Learned().told()[4:] if told is None else told[4:]
        return tokens / size

    @property
    def hashes(self) -> int:
        """How many tell of what is believed, over all replicas."""
        return sum(len(summary.hashes) for summary in self.summaries.values())

    @property
    def left_out(self) -> int:
        """Chains that found no room, over all replicas."""
        return sum(summary.left_out for summary in self.summaries.values())

    def dump(self) -> bytes:
        """All of it."""
        return msgspec.msgpack.encode(Stored(list(self.summaries.values()), self.learned))

    def load(self, data: bytes) -> None:
        """Take what another has dumped. Raises msgspec.DecodeError for what nobody has."""
        stored = msgspec.msgpack.decode(data, type=Stored)
        for summary in stored.summaries:
            self.take(summary)
        self.learned = stored.learned


def pause(summary: Summary | None, replicas: int) -> float:
    """Seconds until a replica's part is renewed, after the one before it of so many; `summary` is what is known."""
    return max(PERIOD / replicas, 0.0 if summary is None else REST * (len(summary.hashes) // 8))


def owner(replica: ReplicaId, routers: Collection[PeerId]) -> PeerId:
    """Which of these routers writes a replica's part."""
    return max(routers, key=lambda router: blake2b(f"{router} {replica}".encode(), digest_size=8).digest())


def owned(replicas: Iterable[ReplicaId], me: PeerId, others: Collection[PeerId]) -> list[ReplicaId]:
    """The replicas whose part is ours to write."""
    return [replica for replica in replicas if owner(replica, (me, *others)) == me]
