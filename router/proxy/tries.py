"""Where a request was sent, and whether it may be sent once more (invariant 5). It decides and sends nothing.

The caller asks only while nothing went to the client, and never after a time-out.
"""

from router.core.budget import RetryBudget
from router.core.types import ReplicaId

MAX_RESENDS = 1
"""Sends that may have been read before the process died: one, since each may be work lost."""


class Tries:
    """The sends of one request. `replicas` are those that are not to be tried again; with `fresh` an idle connection
    will not do."""

    __slots__ = ("_raced", "_resends", "_unworked", "fresh", "replicas")

    def __init__(self) -> None:
        self.replicas: list[ReplicaId] = []
        self.fresh = False
        self._unworked = self._resends = 0
        self._raced: ReplicaId | None = None

    def may_be_refused(self, most: int) -> bool:
        """Whether a send that did no work may be followed by another; `most` such sends may."""
        return self._unworked < most

    def unworked(self, most: int) -> bool:
        """A send did no work. Whether another may follow."""
        self._unworked += 1
        return self._unworked <= most

    def raced(self) -> ReplicaId:
        """An idle connection was dead: that was tried and not its replica, to which a fresh one may go."""
        self.fresh = True
        self._raced = self.replicas.pop()
        return self._raced

    def died(self, replica: ReplicaId) -> None:
        """The process is gone. Where a connection to it was dead before, that was no race: both sends died with it."""
        if self._raced == replica:
            self._resends -= 1

    def lost(self, budget: RetryBudget, now: float) -> tuple[str, str] | None:
        """A send was lost that may have been read. Message and code of why none may follow; None: one may."""
        self._resends += 1
        if self._resends > MAX_RESENDS:
            return "The replica closed the connection before it answered.", "replica_lost"
        if not budget.spend(now):
            text = "The replica was lost before it answered, and of late too many requests were sent again already."
            return text, "retry_budget_exhausted"
        return None
