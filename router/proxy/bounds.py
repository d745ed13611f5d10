"""How much a worker holds for its clients, and how long it waits for whom. Plain values, replaced whole by a reload.

What is too late is decided here and ended by whom it concerns. Nobody has a timer for it: one sweep over the open
connections, a few times a second, compares (clients.py), because a timer made and cancelled for each request costs
more than all the sweeps in which a request is looked at. So a time is over up to an `interval` later than it says.
"""

import math
from enum import Enum
from typing import NamedTuple

MIB = 1 << 20

SWEEPS = 4
"""Sweeps in the shortest of the times: none lasts more than a quarter longer than it says."""

LONGEST_INTERVAL = 0.5
SHORTEST_INTERVAL = 0.01
"""Seconds between sweeps. A look at a connection costs 0.07 us, compiled, and 0.5 us as it stands: with 1,000 open ones
two sweeps a second take 0.01 % and 0.1 % of a processor."""


class Bounds(NamedTuple):
    """Bytes of one body, of one head and of all bodies that the worker holds; open client connections."""

    body: int
    head: int
    buffered: int
    connections: int


class Times(NamedTuple):
    """Seconds, None: without end. Clients': `head` and, for each MiB begun, `body` to arrive; `keep_alive` between two
    requests. Replicas': `first_byte` from the send, `idle` between two pieces of an answer; the client, too, has
    `idle` to take what waits for it. `request` is for all of it, from when the request was whole; `handshake` is of
    TLS, before the first."""

    head: float | None
    body: float | None
    keep_alive: float | None
    first_byte: float | None
    idle: float | None
    request: float | None
    handshake: float | None = None

    @property
    def interval(self) -> float:
        """Seconds between two sweeps."""
        shortest = min([time for time in self if time is not None], default=math.inf)
        return min(LONGEST_INTERVAL, max(SHORTEST_INTERVAL, shortest / SWEEPS))


class Late(Enum):
    """What takes too long: the replica, before its answer's first byte or within it; the client, which does not take
    it; the request as a whole; or the router, which is to stop."""

    FIRST_BYTE = "timeout_first_byte"
    IDLE = "timeout_idle"
    CLIENT = "slow_client"
    REQUEST = "timeout_request"
    DRAINING = "draining"


TOO_LATE = {
    Late.FIRST_BYTE: "The replica did not begin to answer within timeouts.first_byte. It may still have done the work, "
    "so the request was not sent again.",
    Late.IDLE: "The replica sent nothing more for timeouts.idle.",
    Late.CLIENT: "The answer was not read for timeouts.idle.",
    Late.REQUEST: "The request took longer than timeouts.request.",
    Late.DRAINING: "This router is being stopped, and the request had not ended within drain.timeout. Try again.",
}
"""What the client is told. Never written to."""


def over(limit: float | None, waited: float) -> bool:
    """Whether a time is over."""
    return limit is not None and waited > limit


def late(times: Times, age: float, waited: float, sent: bool, begun: bool, paused: bool) -> Late | None:
    """What, if anything, takes too long with a request of this age, of which nothing was heard for `waited`.

    `sent`: it is with a replica; `begun`: an answer is on its way; `paused`: that is not read, because the client
    does not take what has come. Queueing and connecting have their own times.
    """
    if over(times.request, age):
        return Late.REQUEST
    if not sent or not over(times.idle if begun else times.first_byte, waited):
        return None
    if paused:
        return Late.CLIENT
    return Late.IDLE if begun else Late.FIRST_BYTE


def body_over(limit: float | None, waited: float, received: int) -> bool:
    """Whether a body takes too long of which so many bytes have come: each MiB begun has its own time, so that a large
    body is not cut on a slow network, and one that drips is."""
    return limit is not None and waited > limit * (1 + received // MIB)
