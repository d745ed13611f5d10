"""One frozen record per request: what metrics, the log line and gossip are made of, after the decision and the answer.

It carries no prompt, no answer, no key and no header of the client but the request id.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from router.core.lease import Settled
from router.core.types import Limit, Reason


class Phase(StrEnum):
    """Where a request was when its client left."""

    UPLOADING = "uploading"
    QUEUED = "queued"
    WAITING = "waiting"
    STREAMING = "streaming"


class UpstreamError(StrEnum):
    """What went wrong with a replica."""

    CONNECT = "connect"
    RESET = "reset"
    TIMEOUT_FIRST_BYTE = "timeout_first_byte"
    TIMEOUT_IDLE = "timeout_idle"
    PROTOCOL = "protocol"
    STATUS_5XX = "status_5xx"
    STATUS_429 = "status_429"  # 429, or 503 before any work: it was full


class HandshakeError(StrEnum):
    """How a client's TLS handshake failed; there was no request yet."""

    PLAIN_HTTP = "plain_http"
    TIMEOUT = "timeout"
    CLOSED = "closed"  # by the client, midway
    NO_CERTIFICATE = "no_certificate"  # one was wanted
    BAD_CERTIFICATE = "bad_certificate"
    VERSION = "version"
    CIPHER = "cipher"
    CONNECTIONS_FULL = "connections_full"
    REFUSED = "refused"  # by the client, which does not trust our certificate
    OTHER = "other"


class Attempt(NamedTuple):
    """One send to one replica, with what the lease came to and the error that ended it, if one did."""

    settled: Settled
    error: UpstreamError | None


class Stages(NamedTuple):
    """Seconds spent in each stage; None for one that was not reached. They follow one another and add up."""

    parse: float | None = None
    queue: float | None = None
    pick: float | None = None
    connect: float | None = None
    first_byte: float | None = None
    body: float | None = None


class Record(NamedTuple):
    """One request, finished. Times in seconds.

    `status` is 0 where the client left before there was one. `rejected` is why the router itself refused (a reason of
    `homing_rejected_total`), `left` where the client left. `attempts` are in order; the last one's answer went to the
    client. `chunks` counts the reads in which body bytes came from the replica, from the first token on where the
    answer is a good one: `first_chunk` is seconds from arrival to the first, `last_chunk` to the last. `blocks` is the
    chain's length, None where no prompt was read: 0 means a prompt shorter than a block.
    """

    request_id: str
    endpoint: str
    model: str | None
    streams: bool
    status: int
    seconds: float
    stages: Stages
    reason: Reason | None = None
    attempts: Sequence[Attempt] = ()
    cuts: Sequence[Limit] = ()
    blocks: int | None = None
    chunks: int = 0
    first_chunk: float | None = None
    last_chunk: float | None = None
    rejected: str | None = None
    left: Phase | None = None
