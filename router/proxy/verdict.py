"""What an answer says of the replica that gave it. It decides nothing: exchange and fleet do."""

from router.core.record import UpstreamError
from router.core.types import Outcome
from router.proxy.bounds import Late
from router.proxy.responses import ResponseReader

REFUSALS = frozenset((429, 503))
"""Statuses of an engine that is full, told before any work."""

REFUSED_SECONDS = 1.0
"""How long a replica that refused counts as full when its answer has no Retry-After."""

TELLING = frozenset((Outcome.OK, Outcome.FAILED, Outcome.NOT_REACHED))
"""Outcomes that tell of the replica's health. A refusal tells of load, a client that left of nothing."""

LATE = {
    Late.FIRST_BYTE: (Outcome.FAILED, UpstreamError.TIMEOUT_FIRST_BYTE),
    Late.IDLE: (Outcome.FAILED, UpstreamError.TIMEOUT_IDLE),
    Late.CLIENT: (Outcome.ABORTED, None),
    Late.REQUEST: (Outcome.ABORTED, None),
    Late.DRAINING: (Outcome.ABORTED, None),
}
"""How a send ends of which something took too long: what the client does, and a deadline, say nothing of a replica.
Never written to."""


def of(status: int) -> tuple[Outcome, UpstreamError | None]:
    """How a send ended whose whole answer went to the client. A 4xx is a good answer to a bad request."""
    if status in REFUSALS:
        return Outcome.REFUSED, UpstreamError.STATUS_429
    return (Outcome.OK, None) if status < 500 else (Outcome.FAILED, UpstreamError.STATUS_5XX)


def retry_after(response: ResponseReader) -> float:
    """Seconds of a Retry-After in its numeric form; the default for a date or nonsense."""
    for name, _, value in response.headers:
        if name == b"retry-after" and value.isdigit():
            return float(value)
    return REFUSED_SECONDS
