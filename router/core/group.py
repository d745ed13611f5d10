"""One model of a fleet: the replicas that serve it, their ring, the window of its requests, what was learned of it."""

from collections.abc import Iterable, Mapping

from router.core.backlog import Learned
from router.core.member import Replica
from router.core.ramp import Entry
from router.core.ranking import Ranking
from router.core.recent import Recent
from router.core.ring import Ring
from router.core.types import ReplicaId, State


class Group:
    """Kept by the fleet, which tells when a replica of the model comes or goes.

    `ranking` is the present window's in a large fleet; `new` are those that have come empty.
    """

    __slots__ = ("_ring", "learned", "members", "new", "ranking", "ready", "recent")

    def __init__(self) -> None:
        self.members: list[Replica] = []
        self.ready: list[Replica] = []
        self.new: list[Replica] = []
        self._ring: Ring | None = None
        self.recent = Recent()
        self.learned = Learned()
        self.ranking: Ranking | None = None

    @property
    def ring(self) -> Ring:
        """Made when it is first asked for: 1,000 replicas that come one after the other are one ring, not 1,000."""
        if self._ring is None:
            self._ring = Ring(member.id for member in self.members)
        return self._ring

    def still_new(self, seconds: float, now: float) -> Mapping[ReplicaId, Entry]:
        """The entries of less than `seconds` ago; the others are forgotten."""
        entries: dict[ReplicaId, Entry] = {}
        for member in self.new:
            if member.entry is not None and now - member.entry.at < seconds:
                entries[member.id] = member.entry
            else:
                member.entry = None
        self.new = [member for member in self.new if member.id in entries]
        return entries

    def become(self, members: Iterable[Replica]) -> None:
        """Have other members."""
        self.members = list(members)
        self._ring = None
        self.count()

    def count(self) -> None:
        """Note which members are ready, after a change."""
        self.ranking = None
        self.ready = [member for member in self.members if member.state is State.READY]
        self.new = [member for member in self.ready if member.entry is not None]
