"""One frozen record per request: what metrics, the log line and gossip are made of, after the decision and the answer.

It carries no prompt, no answer, no key and no header of the client but the request id.
"""

from typing import NamedTuple

from router.core.lease import Settled
from router.core.types import Reason


class Record(NamedTuple):
    """Times in seconds; `status` is 0 where the client left before there was one, `settled` None without a lease."""

    request_id: str
    endpoint: str
    model: str | None
    streams: bool
    status: int
    reason: Reason | None
    settled: Settled | None
    attempts: int
    seconds: float
    error: str | None
