"""How a router stands with Redis, and what the log says of it: each change at once, but a line that comes and goes all
the time cannot fill a log. Beyond LINES in WINDOW changes are only counted, and what holds by then is said later.
"""

import logging
from collections import deque

log = logging.getLogger("homing.gossip")

LINES, WINDOW = 6, 60.0
"""Lines in so many seconds: three outages, each with its end."""


class Standing:
    """`problem` is what keeps news from going both ways, None when nothing does. `now` is monotonic seconds."""

    def __init__(self, now: float) -> None:
        self.problem: str | None = "not connected yet"
        self.since = now
        self._known = False  # Whether anything has been tried.
        self._changes = 0  # That nobody was told of.
        self._said_at: deque[float] = deque(maxlen=LINES)

    def turned(self, problem: str | None, now: float) -> None:
        """It is so from now on; often it has been so already."""
        if problem == self.problem:
            return
        if not self._known or (problem is None) != (self.problem is None):
            self._known = True
            self._changes += 1
            lasted, self.since = now - self.since, now
            self.problem = problem
            self._say(lasted, now)
        else:
            log.debug("Redis: %s", problem)
            self.problem = problem

    def look(self, now: float) -> None:
        """Say what there was no room for; to be called every now and then."""
        if self._changes:
            self._say(now - self.since, now)

    def _say(self, lasted: float, now: float) -> None:
        if len(self._said_at) == LINES and now - self._said_at[0] < WINDOW:
            return
        self._said_at.append(now)
        often = f"; it has changed {self._changes} times meanwhile" if self._changes > 1 else ""
        self._changes = 0
        if self.problem is None:
            log.info("load and beliefs are shared with the other routers over Redis (after %.1f s)%s", lasted, often)
        else:
            log.warning("Redis: %s; routing goes on from what this router knows%s", self.problem, often)
