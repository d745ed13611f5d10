"""What was not taken of what came over Redis: counted always, and said in the log once an hour for each kind.

Routers that should share and do not are slower, and nothing else shows it: so each line names what differs and what to
do. Who can write to Redis can provoke one line of each kind an hour, and no more.
"""

import logging
from collections import Counter

from router.gossip.seal import Flaw, Unusable

log = logging.getLogger("homing.gossip")

QUIET = 3600.0
"""Seconds before the same is said again: often enough for who looks, and no storm."""

REMEDIES = {
    Flaw.FOREIGN: "news came over this fleet's channel that is not signed with its secret: somebody else can publish "
    "there; let nobody but the routers have the channels and keys `homing:*` (an ACL user, `gossip.user`)",
    Flaw.VERSION: "a router of this fleet speaks another version of the gossip: it and this one share nothing until "
    "both run the same release",
    Flaw.MALFORMED: "news came that is none, or cannot be read; do all routers of this fleet run the same release?",
    Flaw.SETTINGS: "a router of this fleet has another `routing.prefix_block`: it and this one share nothing; give "
    "all the same value and start them anew",
    Flaw.PEERS: "there is news of more routers than can be in one fleet; the newest are not heard",
    Flaw.SECRET: "a router in front of replicas of the same names has another secret: if it is one of this fleet, the "
    "two share nothing; give both the same `gossip.secret_file` and start them anew",
}


class Flaws:
    """One router's. `counted` is by what is wrong."""

    def __init__(self) -> None:
        self.counted: Counter[Flaw] = Counter()
        self._said_at: dict[Flaw, float] = {}

    def note(self, error: Unusable, now: float) -> None:
        """Something was not taken at this monotonic second."""
        flaw = error.flaw
        self.counted[flaw] += 1
        said_at = self._said_at.get(flaw)
        if said_at is None or now - said_at >= QUIET:
            self._said_at[flaw] = now
            log.warning("%s%s", REMEDIES[flaw], f" ({error.detail})" if error.detail else "")
