"""A fleet's part in snapshots (recalled.py): what it tells of its replicas, what it takes over of another's. Pure."""

import math
from collections.abc import Mapping, Sequence

from router.core.member import Replica
from router.core.recalled import MAX_HASHES, MAX_REPLICA, Summary
from router.core.residency import Residency
from router.core.types import ReplicaId

RECALLED = 300.0
"""Seconds for which a snapshot's beliefs are kept beside our own. A replica that computes a sixth of the time has its
467,000 tokens anew in 90 s, and what is in use has been learned by then."""


class Snapshots:
    """`replicas` is the fleet's own mapping, kept by the fleet, as is `residency`."""

    def __init__(self, replicas: Mapping[ReplicaId, Replica], residency: Residency) -> None:
        self._replicas, self._residency = replicas, residency
        self._recalled_at = math.inf

    def summary(self, replica: ReplicaId) -> Summary:
        """What is believed resident on a member, compactly. Raises KeyError for an id that is none."""
        return self._residency.summary(replica, min(MAX_REPLICA, MAX_HASHES // len(self._replicas)))

    def recall(self, replica: ReplicaId, epoch: float | None, hashes: Sequence[int], now: float) -> None:
        """Believe another's summary of a replica in that epoch. Nothing happens for one that is no member, or that has
        restarted since."""
        member = self._replicas.get(replica)
        if member is None or (epoch is not None and member.epoch is not None and epoch != member.epoch):
            return
        member.epoch = member.epoch if epoch is None else epoch
        self._residency.recall(replica, hashes)
        self._recalled_at = now

    def tidy(self, now: float) -> None:
        """Forget what was recalled too long ago."""
        if now - self._recalled_at > RECALLED:
            self._residency.forget_recalled()
            self._recalled_at = math.inf
