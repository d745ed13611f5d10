"""The nouns of routing: immutable values, and what a policy may read.

The hot ones are named tuples, not frozen dataclasses, and `Reading`, the hottest, is a plain class: each is cheaper to
build by a factor. Nothing here has behaviour beyond reading itself.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol, TypeVar

ReplicaId = str


T = TypeVar("T")


class Rng(Protocol):
    """The randomness that a caller hands in; random.Random is one."""

    def choice(self, seq: Sequence[T], /) -> T: ...


class State(StrEnum):
    """What a replica is right now. Only `READY` gets new requests."""

    STARTING = "starting"
    READY = "ready"
    FULL = "full"
    EJECTED = "ejected"
    DOWN = "down"
    DRAINING = "draining"
    GONE = "gone"


class Reason(StrEnum):
    """Why a route chose its replica; exported with every decision."""

    HOLDER = "holder"  # the deepest holder won
    HOME = "home"  # nobody holds, the ring's home won
    SPILL = "spill"  # somebody holds more, or it was not the home's turn: load decided
    ONLY = "only"  # one eligible replica
    RETRY = "retry"  # another replica was tried first
    PASSTHROUGH = "passthrough"  # no prompt to hash: least loaded
    POLICY = "policy"  # a baseline's choice


class Limit(StrEnum):
    """What can cut a ready replica from a choice: the configuration's hard limits by name, and passing states."""

    MAX_CONCURRENCY = "max_concurrency"
    MAX_QUEUED_REQUESTS = "max_queued_requests"
    MAX_BACKLOG_SECONDS = "max_backlog_seconds"
    MAX_KV_USAGE = "max_kv_usage"
    FULL = "full"  # it refused a moment ago, and its Retry-After has not passed
    STALL = "stall"  # it has open leases and gives no sign of life
    TRIAL = "trial"  # it was ejected, and one request at a time tries whether it is well again


class RefusalCause(StrEnum):
    """Why there is no route; the first three name the metric's reason too (UX 5.1)."""

    UNKNOWN_MODEL = "unknown_model"
    NO_REPLICA = "no_replica"
    QUEUE_FULL = "queue_full"
    QUEUE_TIMEOUT = "queue_timeout"


class Outcome(StrEnum):
    """How a lease ended."""

    OK = "ok"  # the replica answered to the end, whatever the status
    ABORTED = "aborted"  # the client left
    FAILED = "failed"  # the replica answered 5xx, broke off, or answered in no understandable way
    REFUSED = "refused"  # 429 or 503 before any work
    NOT_REACHED = "not_reached"  # the request was never fully written


class Ask(NamedTuple):
    """What routing needs to know of one request.

    `chain` holds the hashes of the prompt's full blocks, `tail` one hash of the whole prompt, `size` the prompt's
    bytes in template order, `tokens` the exact prompt tokens where the client sent token ids. `answers` maps the
    byte at which an assistant message begins to the byte at which it ends. An ask without a prompt has `size` 0. `only`
    names the one replica that can answer, where a request goes on from what is stored there.
    """

    model: str | None
    chain: Sequence[int] = ()
    tail: int = 0
    size: int = 0
    streams: bool = False
    tokens: int | None = None
    answers: Mapping[int, int] = {}
    only: ReplicaId | None = None


Cuts = Mapping[ReplicaId, Limit]
"""What cut each replica that is ready and yet may not get an ask."""

NO_CUTS: Cuts = {}


class Candidate(NamedTuple):
    """The replica that a policy would send the ask to."""

    replica: ReplicaId
    reason: Reason
    cuts: Cuts = NO_CUTS


class Route(NamedTuple):
    """The answer 'send it there', with prompt tokens as the router believes them.

    `tokens` is the prompt, `cached` what that replica has of it, `reachable` the most that any eligible replica has:
    the difference of the last two is what routing gave away (the locality ledger's second gap).
    """

    replica: ReplicaId
    reason: Reason
    tokens: int
    cached: int
    reachable: int
    cuts: Cuts = NO_CUTS


class Wait(NamedTuple):
    """Every eligible replica is cut by a limit that may lift; `since` is the moment of this answer."""

    limit: Limit
    since: float
    cuts: Cuts = NO_CUTS


class Refusal(NamedTuple):
    """No route, why not, and in how many seconds to try again (None: never, as it stands)."""

    cause: RefusalCause
    retry_after: float | None = None


class Usage(NamedTuple):
    """What the engine said of one request, in tokens; None where it did not say."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None


class EngineSample(NamedTuple):
    """One reading of an engine's gauges, None where the engine does not export them.

    `own_requests` and `own_unstarted` are the open leases of all routers, and those of them without a first token, at
    the moment of the sample: gauges are only ever compared with the counts of their own moment.
    """

    at: float
    running: int | None = None
    waiting: int | None = None
    kv_usage: float | None = None
    own_requests: int = 0
    own_unstarted: int = 0


class Reading:
    """One replica at the moment of a pick, with the ask's own standing there. Requests, prompt tokens, seconds.

    `requests` are open leases, other routers' too, `queued` those without a first token. `lin` is seconds per prefill
    token, `step` seconds of a decode step without context (each the mean of the others while it is not known),
    `recent` the uncached tokens dispatched, decayed over tau. Others' load, as far as engines show it, is in. Of the
    ask, `depth` blocks are believed resident there, `uncached` tokens are not, and `cold` of these are not hot either.

    Nobody changes it. It is no named tuple because each pick makes one for each replica and reads it a dozen times:
    compiled, a plain class is made in a sixth of the time, and its numbers are not boxed.
    """

    __slots__ = (
        "backlog", "cold", "context", "depth", "id", "kv_usage", "lin", "queued", "recent", "requests", "running",
        "step", "uncached",
    )  # fmt: skip

    def __init__(
        self,
        id: ReplicaId,
        requests: int,
        queued: int,
        backlog: float,
        running: float,
        context: float,
        recent: float,
        kv_usage: float | None,
        lin: float,
        step: float,
        depth: int,
        uncached: float,
        cold: float,
    ) -> None:
        self.id = id
        self.requests = requests
        self.queued = queued
        self.backlog = backlog
        self.running = running
        self.context = context
        self.recent = recent
        self.kv_usage = kv_usage
        self.lin = lin
        self.step = step
        self.depth = depth
        self.uncached = uncached
        self.cold = cold


class Few(NamedTuple):
    """Enough of a large fleet to find who scores least without reading all of it (ranking.py).

    `readings` are those that were read. `order` has the others, and perhaps some of these again, with the least that
    each can score for an ask without a prompt; `pole` is a replica such that none of the others scores less for this
    prompt than it does, above that.
    """

    readings: Sequence[Reading]
    order: Sequence[tuple[float, ReplicaId]]
    pole: Reading


class Ramping(NamedTuple):
    """Who has come empty and is not warm yet (ramp.py): how much of the ramp is `left`, 0 to 1; and a replica's load in
    the mean, as in a Reading."""

    left: Mapping[ReplicaId, float]
    running: float
    context: float
    recent: float


class View(Protocol):
    """What a policy may read when it picks: the eligible replicas and the ask as the fleet sees it."""

    @property
    def replicas(self) -> Sequence[Reading]:
        """Those that can serve this ask: model, state, not yet tried. Never empty. Limits are not applied."""
        ...

    @property
    def ready(self) -> int:
        """N: ready replicas of the model."""
        ...

    @property
    def tokens(self) -> float:
        """Prompt tokens, believed."""
        ...

    @property
    def cold(self) -> float:
        """Prompt tokens that are not hot: what is cold on a replica that holds nothing."""
        ...

    @property
    def running(self) -> float:
        """Mean of the requests in flight on a replica; in a large fleet, of a moment ago."""
        ...

    @property
    def returning(self) -> float:
        """How likely it is, 0 to 1, that what is cold of the prompt is asked for again."""
        ...

    @property
    def lin(self) -> float:
        """lin*: mean seconds per prefill token over these replicas."""
        ...

    @property
    def kv(self) -> float:
        """kv*: mean seconds that a token of context adds to a decode step, over these replicas."""
        ...

    @property
    def output(self) -> float:
        """Learned mean output tokens of the model."""
        ...

    @property
    def tau(self) -> float:
        """Learned mean seconds from first token to finish of the model."""
        ...

    @property
    def ramping(self) -> Ramping | None:
        """The replicas that are new; None where there are none."""
        ...

    def few(self) -> Few | None:
        """In a large fleet, enough of it; None where all are to be read."""
        ...

    def read(self, replica: ReplicaId) -> Reading | None:
        """One that is not among the few; None where it cannot serve this ask."""
        ...

    def order(self) -> Iterable[ReplicaId]:
        """The model's replicas in ring order of the ask's adaptive key, home first."""
        ...

    def order_at(self, depth: int) -> Iterable[ReplicaId]:
        """The same for the chain hash at a fixed depth in blocks (the whole prompt where it is shorter)."""
        ...


class News(Protocol):
    """Who is told what other routers should hear. It is called on a request's path, and only notes."""

    def leased(self) -> None:
        """Some load has changed."""
        ...

    def placed(self, replica: ReplicaId, parent: int | None, hashes: Sequence[int]) -> None:
        """The belief has changed: `hashes` are resident behind `parent` (None: at a chain's start); none: it was used
        again after a while."""
        ...

    def corrected(self, replica: ReplicaId, block: int) -> None:
        """The engine no longer had this block, nor what was last used before it."""
        ...

    def full(self, replica: ReplicaId, until: float) -> None:
        """The replica refused: nothing new there before `until`."""
        ...


Lines = tuple[float, float, float, float, float]
"""A score's lines in seconds; which they are is the policy's to say (policy.py for the default)."""


class Policy(Protocol):
    """The one verb, and what explains it. The view's replicas are never empty; the answer names one of them."""

    def pick(self, ask: Ask, view: View, now: float, rng: Rng) -> Candidate | Wait: ...

    def lines(self, replica: Reading, view: View) -> Lines | None:
        """What the replica's score is made of; None for a policy that does not score."""
        ...

    def cuts(self, replica: Reading) -> bool:
        """Whether a limit of the policy's own cuts the replica, or would beside an idle one."""
        ...
