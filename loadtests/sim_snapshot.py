"""What a supervisor keeps of a simulated router's beliefs, for the process that comes after it.

The production snapshot and messages on a hand-turned clock: one replica's part after the other, each renewed every
PERIOD, and what was learned as the last heartbeat told it. So a new process gets parts that are up to PERIOD old. The
file or the Redis in between is left out.
"""

from loadtests.clock import Clock
from loadtests.sim_router import SimRouter
from router.gossip.messages import Heard, Learned, Message, Summarise, Summarised, Summary
from router.gossip.news import BEAT, News, learned
from router.gossip.snapshot import PERIOD, Snapshot


class Keeper:
    """The snapshot of one router, kept from now on until another takes its place."""

    def __init__(self, clock: Clock, router: SimRouter, snapshot: Snapshot | None = None) -> None:
        self._clock, self._router = clock, router
        self._snapshot = snapshot or Snapshot()
        self._news = News(clock.loop, router.fleet, router.name, self._take, clock.time, clock.time)
        self._turns = 0
        self._goes_on = True
        clock.at(clock.now, self._ask)
        clock.at(clock.now, self._beat)

    def replace(self, router: SimRouter, tells: bool) -> "Keeper":
        """The keeper of the process that comes after, which is told all that was kept when this one `tells`."""
        self._goes_on = False
        if not tells:
            return Keeper(self._clock, router)
        news = News(self._clock.loop, router.fleet, router.name, self._take, self._clock.time, self._clock.time)
        kept = Snapshot()
        kept.load(self._snapshot.dump())
        for message in kept.messages():
            if isinstance(message, Learned):
                news.hear(message)
            else:
                assert isinstance(message, Heard | Summary | Summarise)
                news.take(message)
        return Keeper(self._clock, router, kept)

    def _ask(self) -> None:
        """Have the next replica's part renewed."""
        if not self._goes_on:
            return
        replicas = self._router.fleet.replicas
        if replicas:
            self._turns += 1
            self._news.take(Summarise(self._turns, replicas[self._turns % len(replicas)].id))
        self._clock.at(self._clock.now + PERIOD / max(1, len(replicas)), self._ask)

    def _take(self, message: Message) -> None:
        if isinstance(message, Summarised) and message.summary is not None:
            self._snapshot.take(message.summary)

    def _beat(self) -> None:
        """A heartbeat as far as it concerns a lone router, which has no gossip here and yet keeps its house."""
        if self._goes_on:
            self._clock.at(self._clock.now + BEAT, self._beat)
            fleet, now = self._router.fleet, self._clock.now
            self._snapshot.learned = learned(fleet, self._router.name)
            fleet.peers.expire(now)
            fleet.snapshots.tidy(now)
