"""The way between simulated routers: messages of `router.gossip` as they are, late, held back, or lost. Seeded."""

import math
import random
from dataclasses import dataclass

from loadtests.clock import Clock
from router.gossip.messages import Learned, Load, Message, Shared
from router.gossip.news import News


@dataclass(frozen=True, slots=True)
class GossipPlan:
    """Each message takes `delay_s`, is then held until the next multiple of `every_s` (0: not held), so that news grows
    that old before it is replaced, and is lost with probability `loss`. `dead`: there is no gossip at all."""

    delay_s: float = 0.001
    every_s: float = 0.0
    loss: float = 0.0
    dead: bool = False

    def __post_init__(self) -> None:
        if not (self.delay_s >= 0 and self.every_s >= 0 and 0 <= self.loss <= 1):
            raise ValueError("gossip takes times that are not negative, and a loss between 0 and 1")


class Bus:
    """Everybody's messages to everybody else, each in the order in which they were sent.

    The last heartbeat of each is kept, and told to whoever joins: Redis has it too.
    """

    def __init__(self, clock: Clock, plan: GossipPlan, rng: random.Random) -> None:
        self._clock, self._plan, self._rng = clock, plan, rng
        self._members: dict[str, News] = {}
        self._beats: dict[str, dict[type[Message], Shared]] = {}

    def join(self, name: str, news: News) -> None:
        """Hear the others from now on."""
        self._members[name] = news
        for beat in self._beats.values():
            for message in beat.values():
                news.hear(message)

    def leave(self, name: str) -> None:
        """Hear nothing more. Goodbye can still be said."""
        del self._members[name]
        self._beats.pop(name, None)

    def send(self, sender: str, message: Message) -> None:
        """Tell everybody but the sender."""
        assert isinstance(message, Shared)
        if isinstance(message, Learned) or (isinstance(message, Load) and message.whole):
            self._beats.setdefault(sender, {})[type(message)] = message
        plan = self._plan
        at = self._clock.now + plan.delay_s
        if plan.every_s:
            at = math.ceil(at / plan.every_s) * plan.every_s
        for name, news in self._members.items():
            if name != sender and not (plan.loss and self._rng.random() < plan.loss):
                self._clock.at(at, news.hear, message)
