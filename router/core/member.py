"""One replica as the fleet knows it: its load, its state, and what its engine said of itself."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from router.core.backlog import DEFAULT_KV, Load
from router.core.ejection import Conduct
from router.core.ramp import Entry
from router.core.types import Cuts, Limit, ReplicaId, State

DEFAULT_KV_TOKENS = 400_000
"""KV cache of a replica that does not tell: an 8B model on an 80 GB card has 467,000 (POLICY section 7)."""


@dataclass(frozen=True, slots=True)
class ReplicaSpec:
    """What the configuration says of a replica; None where it says nothing and the router learns or assumes."""

    id: ReplicaId
    prefill_tokens_per_second: float | None = None
    step_seconds: float | None = None
    kv_seconds_per_token: float | None = None
    kv_tokens: int | None = None
    max_concurrency: int | None = None


@dataclass(frozen=True, slots=True)
class Transition:
    """A replica's change of state, for whoever describes it."""

    replica: ReplicaId
    old: State
    new: State
    reason: str


class Replica(Load):
    """A member. `last_sign` is when it last gave a sign of life: a byte of an answer, or an answered probe. `learns`:
    its speed is learned from its leases; False where their times are another replica's (shadow.py). `empty`: it
    joined later than the first, is in a new epoch or was out and is believed to hold nothing, so that when it becomes
    ready next that is its `entry`."""

    def __init__(self, spec: ReplicaSpec, now: float) -> None:
        rate = spec.prefill_tokens_per_second
        super().__init__(spec.id, 1 / rate if rate else None, spec.step_seconds, spec.kv_seconds_per_token)
        self.spec = spec
        self.state = State.STARTING
        self.since = now
        self.reason = "joined"
        self.models: Mapping[str, object] = {}
        self.kv_tokens = spec.kv_tokens or DEFAULT_KV_TOKENS
        self.epoch: float | None = None
        self.full_until = 0.0
        self.last_sign = now
        self.learns = True
        self.conduct = Conduct()
        self.empty = False
        self.entry: Entry | None = None

    def state_now(self, now: float) -> State:
        """The state to show: `full` is `ready` until the refusal's Retry-After has passed."""
        return State.FULL if self.state is State.READY and now < self.full_until else self.state

    @property
    def alive(self) -> bool:
        """Whether it answers its probes and takes part: ready, but perhaps ejected."""
        return self.state is State.READY or self.state is State.EJECTED

    @property
    def out(self) -> bool:
        """Whether its failures keep it from its share of the requests."""
        return self.state is State.EJECTED or self.conduct.on_trial

    def enter(self, now: float) -> None:
        """It is ready; where it comes empty, its ramp begins."""
        if self.empty:
            self.empty, self.entry = False, Entry(now)

    def respec(self, spec: ReplicaSpec) -> None:
        """Take what the configuration says now. A rate that it did not change stays as it was learned."""
        self.changes += 1
        old, self.spec = self.spec, spec
        if spec.prefill_tokens_per_second and spec.prefill_tokens_per_second != old.prefill_tokens_per_second:
            self.lin = 1 / spec.prefill_tokens_per_second
        if spec.step_seconds and spec.step_seconds != old.step_seconds:
            self.step = self.known_step = spec.step_seconds
        if spec.kv_seconds_per_token != old.kv_seconds_per_token:
            self.kv = spec.kv_seconds_per_token or DEFAULT_KV
        if spec.kv_tokens != old.kv_tokens:  # Until the engine tells again, which it does with every probe.
            self.kv_tokens = spec.kv_tokens or DEFAULT_KV_TOKENS

    def refused(self, until: float) -> None:
        """It is full: nothing new before `until`."""
        self.changes += 1
        self.full_until = until

    def cut(self, max_concurrency: int | None, stall: float, now: float) -> Limit | None:
        """What keeps a ready replica from new requests for the moment, whatever the policy."""
        most = self.spec.max_concurrency or max_concurrency
        if now < self.full_until:
            return Limit.FULL
        requests = self.open
        if requests and now - self.last_sign > stall:
            return Limit.STALL
        if self.requests and self.conduct.on_trial:
            return Limit.TRIAL
        if most is not None and requests >= most:
            return Limit.MAX_CONCURRENCY
        return None


def uncut(
    members: Iterable[Replica], max_concurrency: int | None, stall: float, now: float
) -> tuple[list[Replica], Cuts]:
    """The replicas that nothing keeps from new requests (`Replica.cut`), and what does so for each of the others."""
    eligible: list[Replica] = []
    cuts: dict[ReplicaId, Limit] = {}
    for member in members:
        cut = member.cut(max_concurrency, stall, now)
        if cut is None:
            eligible.append(member)
        else:
            cuts[member.id] = cut
    return eligible, cuts
