"""What routers say to one another, and its form on the wire: msgpack arrays, the kind first.

Rows are plain tuples of the form of the core's named tuples, so that `Record(*row)` is checked by the type checker: the
named tuples themselves lose their field types when the core is compiled, and could not be decoded into. Moments are
monotonic seconds, which all processes of a host share; what may come from another host tells ages instead.
"""

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from router.core.backlog import LearnedNews, Totals
from router.core.lease import Settled
from router.core.peers import ModelNews, RateNews
from router.core.record import Attempt, HandshakeError, Phase, Record, Stages, UpstreamError
from router.core.trace import LeftOut, Trace
from router.core.types import Ask, EngineSample, Limit, Outcome, Reason, State

TotalsRow = tuple[int, int, int, int, int, float, float, float]
MeanRow = tuple[float, int]
LearnedRow = tuple[MeanRow, MeanRow, MeanRow, MeanRow, float, float]
ModelRow = tuple[str, int, Sequence[int], LearnedRow]
RateRow = tuple[str, float | None, int, float | None, int]
PlacedRow = tuple[str, int | None, Sequence[int]]
"""Replica, parent (None: a chain's start), hashes."""

SampleRow = tuple[float, int | None, int | None, float | None, int, int]
StagesRow = tuple[float | None, float | None, float | None, float | None, float | None, float | None]
SettledRow = tuple[str, Outcome, int, int, int, int | None, int | None, float | None, float, int]
AttemptRow = tuple[SettledRow, UpstreamError | None]
PemsRow = tuple[bytes | None, bytes | None, bytes | None, bytes | None, bytes | None, bytes | None]
"""What the files of the section `tls` hold, in the order of router.tls.Pems."""

RecordRow = tuple[
    str, str, str | None, bool, int, float, StagesRow, Reason | None, Sequence[AttemptRow], Sequence[Limit],
    int | None, int, float | None, float | None, str | None, Phase | None,
]  # fmt: skip
TraceRow = tuple[float, str | None, Sequence[int], int, int, int | None, int | None, int | None, int]

PromptRow = tuple[int, bytes, int, int | None, Mapping[int, int]]
"""Bytes, chain (`packed`), tail, exact tokens, answers, as an Ask has them."""

AskedRow = tuple[float, int, str, str | None, bool, str | None, PromptRow]
"""When it was sent, its number, to whom; model, whether it streams, who alone may answer, prompt."""

EndedRow = tuple[float, int, Outcome, int, int | None]
"""When, which one; how, prompt tokens, completion tokens."""


class Message(msgspec.Struct, array_like=True, tag=True):
    """One of those below."""


# From the supervisor to a worker.


class Settings(Message):
    """What to do from now on: the configuration as its file would have it, environment included. The first one is what
    a worker begins with; `serial` comes back in `Applied`. `peer` is the worker's name, `token` the admin's; `pems` are
    certificates and keys; `root` keys the chains (core/prompt.py), None while nothing is gossiped."""

    serial: int
    peer: str
    values: dict[str, Any]
    token: str | None
    pems: PemsRow
    root: bytes | None


class Member(msgspec.Struct, array_like=True):
    """One replica as the probes see it; `models` None: as told before."""

    id: str
    state: State
    reason: str
    last_sign: float
    models: dict[str, Any] | None
    epoch: float | None
    kv_tokens: int
    sample: SampleRow | None


class Members(Message):
    """Replicas that were probed, or have changed."""

    members: Sequence[Member]


class Drain(Message):
    """Stop. `accept`: seconds in which new connections are taken still; `idle`: in which open ones may ask once more;
    `timeout`: until which what is under way must have ended. All from now."""

    accept: float
    idle: float
    timeout: float


class Report(Message):
    """Tell now what was not told yet, and how things stand."""

    serial: int


class Summarise(Message):
    """Tell what is believed resident on a replica, compactly."""

    serial: int
    replica: str


class Tracing(Message):
    """Somebody records the traffic (`on`), or does no more: tell `Traces` until then."""

    on: bool


class Explain(Message):
    """Where would a request with this path and body go?"""

    serial: int
    path: str
    body: bytes


# From a worker to the supervisor.


class Applied(Message):
    """The settings of this number are in effect; after the first ones the worker serves."""

    serial: int


class Records(Message):
    """Requests that have ended, how late timers fired, in seconds, and how many of clients' handshakes failed."""

    records: Sequence[RecordRow]
    lags: Sequence[float]
    handshakes: Mapping[HandshakeError, int]


class Shadowed(Message):
    """What became of sampled asks (gossip/tap.py), each list in the order of time but for a batch's length: those sent,
    first tokens as (when, which one), ends. `batch` counts these messages, so that a lost one is noticed."""

    batch: int
    asked: Sequence[AskedRow]
    started: Sequence[tuple[float, int]]
    ended: Sequence[EndedRow]


class Traces(Message):
    """While somebody records: requests that have ended, and how many of those that have are not among them."""

    traces: Sequence[TraceRow]
    left_out: Mapping[LeftOut, int]


class Reported(Message):
    """The answer to `Report`: requests that wait, by model; blocks in the index, by replica and in all; since the
    worker's start what was evicted, and the log lines and messages dropped; the share of its retry budget that is
    left."""

    serial: int
    queued: Mapping[str, int]
    held: Mapping[str, int]
    blocks: int
    evictions: int
    log_dropped: int
    dropped: Mapping[str, int]
    budget: float


class Explained(Message):
    """The answer to `Explain`, as JSON."""

    serial: int
    body: bytes


class Summarised(Message):
    """The answer to `Summarise`; None when the replica is none of the fleet."""

    serial: int
    summary: "Summary | None"


class Refused(Message):
    """A replica refused the connection: nobody listens there."""

    replica: str


class Full(Message):
    """A replica refused a request: nothing new there for so many seconds. It goes to the other workers, too."""

    replica: str
    seconds: float


class Ejected(Message):
    """A replica failed too many requests, and is out for so many seconds. It goes to the other workers, too."""

    replica: str
    reason: str
    seconds: float


# Between routers.


class Load(Message):
    """A router's own load on these replicas, and with `whole` none on any other. Without a row and with the last number
    again: nothing has changed since."""

    peer: str
    sequence: int
    whole: bool
    loads: Mapping[str, TotalsRow]


class Placed(Message):
    """Chains that were placed."""

    peer: str
    placed: Sequence[PlacedRow]


class Learned(Message):
    """What a router has learned; its heartbeat, too."""

    peer: str
    models: Sequence[ModelRow]
    rates: Sequence[RateRow]


class Corrected(Message):
    """An engine no longer had this block, nor what was last used before it."""

    peer: str
    replica: str
    block: int


class Bye(Message):
    """A router is gone."""

    peer: str


class Summary(Message):
    """Who holds what on a replica in that epoch: `hashes` (core/recalled.py) in eight little-endian bytes each. It goes
    up in answer to `Summarise`, and down to a worker that joins."""

    replica: str
    epoch: float | None
    hashes: bytes
    left_out: int


Fleetwide = Load | Placed | Learned | Corrected | Full | Bye
"""What routers on different hosts tell one another. Ejections stay at home: what one host sees of a replica may be its
own network."""


class Batch(Message):
    """A router's news, as it goes over Redis. `block` is that router's routing.prefix_block, in bytes.

    Placements and corrections are numbered (numbered.py): `first` is the number of the first one here, or of the next
    one where there is none; what is older than `oldest` cannot be told again. `lacks` asks routers to tell theirs again
    from a number on. Workers have no use for these."""

    peer: str
    block: int
    news: Sequence[Fleetwide]
    first: int = 0
    oldest: int = 0
    lacks: Mapping[str, int] = {}


class Heard(Message):
    """What other routers have told at one moment, or nearly: one message, for which a worker wakes up once."""

    batches: Sequence[Batch]


Down = Settings | Members | Drain | Report | Tracing | Explain | Summarise | Heard | Summary
Up = Applied | Records | Traces | Shadowed | Reported | Explained | Summarised | Refused
Shared = Load | Placed | Learned | Corrected | Bye | Full | Ejected
AnyMessage = Down | Up | Shared


class Codec:
    """Messages to bytes and back. One for each process: an encoder keeps a buffer."""

    def __init__(self) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[AnyMessage] = msgspec.msgpack.Decoder(AnyMessage)

    def encode(self, message: Message) -> bytes:
        """The payload of a frame."""
        return self._encoder.encode(message)

    def together(self, batches: Sequence[bytes]) -> bytes:
        """The payload of `Heard`, of batches that are bytes already: these are copied as they are."""
        raw: Sequence[Any] = [msgspec.Raw(batch) for batch in batches]
        return self._encoder.encode(Heard(raw))

    def decode(self, data: bytes | memoryview) -> AnyMessage:
        """Raises msgspec.DecodeError for what is no message."""
        return self._decoder.decode(data)


def packed(hashes: Sequence[int]) -> bytes:
    """Hashes as a `Summary` has them."""
    return struct.pack(f"<{len(hashes)}Q", *hashes)


def unpacked(data: bytes) -> Sequence[int]:
    """The hashes of a `Summary`; half a one at the end is left out."""
    return struct.unpack_from(f"<{len(data) // 8}Q", data)


# Rows to the core's nouns.

_named = tuple.__new__


def record(row: RecordRow) -> Record:
    """A finished request. There are thousands a second of them, so their tuples are turned into named ones as they are:
    a third of the time that the named ones' own constructors take."""
    attempts = [_named(Attempt, (_named(Settled, settled), error)) for settled, error in row[8]]
    return _named(Record, (*row[:6], _named(Stages, row[6]), row[7], attempts, *row[9:]))


def ask(row: AskedRow) -> Ask:
    """What was asked."""
    _, _, _, model, streams, only, (size, chain, tail, tokens, answers) = row
    return Ask(model, unpacked(chain), tail, size, streams, tokens, answers, only)


def trace(row: TraceRow) -> Trace:
    """A recorded request."""
    return Trace(*row)


def totals(row: TotalsRow) -> Totals:
    """A load."""
    return Totals(*row)


def sample(row: SampleRow) -> EngineSample:
    """An engine's gauges."""
    return EngineSample(*row)


def model(row: ModelRow) -> ModelNews:
    """What was learned of a model."""
    return ModelNews(row[0], row[1], row[2], LearnedNews(*row[3]))


def rate(row: RateRow) -> RateNews:
    """What was learned of a replica."""
    return RateNews(*row)
