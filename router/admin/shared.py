"""What is counted and shown of the link to other routers (gossip/link.py, which this room does not know). Pure."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from router.admin.histogram import REDIS, Histogram


class Shared(Protocol):
    """The link as operators see it. `dropped` is by reason, `sent` and `received` are bytes."""

    sent: int
    received: int

    @property
    def up(self) -> bool: ...
    @property
    def problem(self) -> str | None: ...
    @property
    def peers(self) -> int: ...
    @property
    def dropped(self) -> Mapping[str, int]: ...
    def view_age(self) -> float: ...


class Operations:
    """Operations on Redis: how long they took, by name and outcome."""

    def __init__(self) -> None:
        self.durations: dict[tuple[str, str], Histogram] = {}

    def observe(self, operation: str, outcome: str, seconds: float) -> None:
        """One has ended."""
        self.durations.setdefault((operation, outcome), Histogram(REDIS)).observe(seconds)


def rows(shared: Shared | None) -> dict[str, list[tuple[Sequence[str], float]]]:
    """Samples by metric; none where this router shares nothing."""
    if shared is None:
        return {name: [] for name in NAMES}
    return {
        "homing_redis_up": [((), float(shared.up))],
        "homing_redis_bytes": [(("sent",), shared.sent), (("received",), shared.received)],
        "homing_redis_dropped": [((reason,), count) for reason, count in shared.dropped.items()],
        "homing_peers": [((), shared.peers)],
        "homing_peer_view_age_seconds": [((), shared.view_age())],
    }


NAMES = (
    "homing_redis_up",
    "homing_redis_bytes",
    "homing_redis_dropped",
    "homing_peers",
    "homing_peer_view_age_seconds",
)
