"""What happened to one request, noted as it happens and told once, at its end.

Notes cost a subtraction or an append; everything else is left to whoever takes the record.
"""

from collections.abc import Iterable
from enum import IntEnum

from router.core.lease import Settled
from router.core.record import Attempt, Phase, Record, Stages, UpstreamError
from router.core.types import Ask, Limit, Reason


class Stage(IntEnum):
    """The stages of a request, in the order in which they follow one another."""

    PARSE = 0
    QUEUE = 1
    PICK = 2
    CONNECT = 3
    FIRST_BYTE = 4
    BODY = 5


STAGES = len(Stage)


class Journal:
    """Times in monotonic seconds. What a second send adds to a stage is added to it."""

    __slots__ = (
        "_attempts", "_chunks", "_cuts", "_first", "_last", "_since", "_stages", "arrived", "endpoint", "left",
        "reason", "rejected", "request_id", "status",
    )  # fmt: skip

    def __init__(self, request_id: str, endpoint: str, now: float) -> None:
        self.request_id = request_id
        self.endpoint = endpoint
        self.status = 0
        self.reason: Reason | None = None
        self.rejected: str | None = None
        self.left: Phase | None = None
        self.arrived = self._since = now
        self._stages: list[float | None] = [None] * STAGES
        self._attempts: list[Attempt] = []
        self._cuts: list[Limit] = []
        self._chunks = 0
        self._first = self._last = now

    def ended(self, stage: Stage, now: float) -> None:
        """The time since the last stage's end belongs to this one."""
        self._stages[stage] = (self._stages[stage] or 0.0) + now - self._since
        self._since = now

    def cut(self, cuts: Iterable[Limit]) -> None:
        """Limits cut replicas from this request's choice."""
        self._cuts.extend(cuts)

    def chunk(self, now: float) -> bool:
        """Body bytes came; True for the first ones."""
        self._chunks += 1
        self._last = now
        if self._chunks > 1:
            return False
        self._first = now
        return True

    def settled(self, settled: Settled, error: UpstreamError | None) -> None:
        """One send came to its end."""
        self._attempts.append(Attempt(settled, error))

    @property
    def attempts(self) -> int:
        """Sends that came to their end."""
        return len(self._attempts)

    def record(self, ask: Ask, now: float) -> Record:
        """All of it."""
        some = self._chunks > 0
        return Record(
            self.request_id,
            self.endpoint,
            ask.model,
            ask.streams,
            self.status,
            now - self.arrived,
            Stages(*self._stages),
            self.reason,
            self._attempts,
            self._cuts,
            len(ask.chain) if ask.size else None,
            self._chunks,
            self._first - self.arrived if some else None,
            self._last - self.arrived if some else None,
            self.rejected,
            self.left,
        )
