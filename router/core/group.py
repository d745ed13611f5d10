"""One model of a fleet: the replicas that serve it, their ring, the window of its requests, what was learned of it."""

from router.core.backlog import Learned
from router.core.member import Replica
from router.core.recent import Recent
from router.core.ring import Ring
from router.core.types import State


class Group:
    """Kept by the fleet, which replaces `members` and `ring` when a replica of the model comes or goes."""

    __slots__ = ("learned", "members", "ready", "recent", "ring")

    def __init__(self) -> None:
        self.members: list[Replica] = []
        self.ready: list[Replica] = []
        self.ring = Ring(())
        self.recent = Recent()
        self.learned = Learned()

    def count(self) -> None:
        """Note which members are ready, after a change."""
        self.ready = [member for member in self.members if member.state is State.READY]
