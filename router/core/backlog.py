"""Load per replica, and what is learned of replicas and models.

A lease adds to three counters once and takes from each once: `requests` and `context` until it ends, `backlog` (with
`unstarted`) until its first token, finish or abort. They are plain sums and are never clamped: a negative one is a
bug that tests must see.

What changes with time is estimated, beside the counters:

- An answer that does not stream shows no first token, so its prefill is taken to drain at the replica's learned rate
  ("silent" leases below). While first tokens are seen the clock drains nothing (POLICY section 1: tried, TTFT x1.11).
- Engine gauges are compared with the counts of all routers at the moment of the sample and only the surplus, which is
  somebody else's load, is added. It is forgotten after three periods.

What other routers have on a replica (peers.py) stands beside the counters as one sum, and is read with them.
"""

import math
from collections import OrderedDict
from typing import NamedTuple

from router.core.types import EngineSample, Reading, ReplicaId

DEFAULT_LIN = 1 / 16_000
"""Seconds per prefill token while nothing is known: between an 8B on an A100 and on an H100 (POLICY section 7)."""

DEFAULT_STEP = 0.006
DEFAULT_KV = 3.9e-8
"""llama3-8b-h100: one decode step, and what a token of context adds to it (HBM bandwidth; POLICY section 7)."""

LEARN_MIN_TOKENS = 512
"""Below this a decode step and the network drown the prefill that `lin` is learned from."""

ENOUGH = 10
"""Own samples that a learned quantity needs before it owes nothing to its start value."""

SAMPLE_PERIODS = 3
"""An engine sample older than this many of its periods is ignored: two were missed, the third is late."""


def follow(old: float, sample: float, seen: int) -> float:
    """One robust step of a learned positive quantity towards a sample, in the logarithm (Huber's estimator).

    The first ten samples weigh 1/n, then a tenth; no single sample moves it by more than a factor e**0.7 = 2 times
    its weight, so one stall or one lucky hit says little.
    """
    step = math.log(sample / old)
    return old * math.exp(max(0.1, 1 / (seen + 1)) * max(-0.7, min(0.7, step)))


ORDINARY = 2048
"""Bytes of a prompt that says as much of tokens per byte as any; a shorter one is mostly the template's tokens."""


class Mean:
    """An exponentially weighted mean with a start value; the first ten samples weigh 1/n, then a tenth."""

    __slots__ = ("seen", "value")

    def __init__(self, start: float) -> None:
        self.value = start
        self.seen = 0

    def add(self, sample: float) -> None:
        self.seen += 1
        self.value += max(0.1, 1 / self.seen) * (sample - self.value)

    def adopt(self, value: float, seen: int) -> None:
        """Take over another router's mean while it rests on more than ours, and ours on too little."""
        if self.seen < min(ENOUGH, seen):
            self.value, self.seen = value, seen


class LearnedNews(NamedTuple):
    """Another router's `Learned`: each mean with the samples seen, and the prompt tokens and bytes that it counted."""

    output: tuple[float, int]
    prompt: tuple[float, int]
    uncached: tuple[float, int]
    tau: tuple[float, int]
    tokens: float
    size: float


class Learned:
    """What is learned of one model, over all replicas. Sizes in tokens, times in seconds."""

    __slots__ = ("_bytes", "_tokens", "output", "prompt", "tau", "uncached")

    def __init__(self) -> None:
        self._tokens, self._bytes = 1024.0, 4096.0
        self.output = Mean(256.0)
        self.prompt = Mean(1024.0)
        self.uncached = Mean(1024.0)
        self.tau = Mean(5.0)

    @property
    def tokens_per_byte(self) -> float:
        """Start 0.25, worth 4 KB of evidence; then the ratio of sums, old evidence fading by a twentieth a prompt."""
        return self._tokens / self._bytes

    def saw_prompt(self, tokens: int, size: int) -> None:
        """The engine counted `tokens` in a prompt of `size` bytes."""
        weight = min(1.0, size / ORDINARY)
        self._tokens += weight * (tokens - 0.05 * self._tokens)
        self._bytes += weight * (size - 0.05 * self._bytes)

    def told(self) -> LearnedNews:
        """All of it, for other routers."""
        means = [(mean.value, mean.seen) for mean in (self.output, self.prompt, self.uncached, self.tau)]
        return LearnedNews(means[0], means[1], means[2], means[3], self._tokens, self._bytes)

    def adopt(self, news: LearnedNews) -> None:
        """Take over from another router what is hardly known here."""
        if self.prompt.seen < min(ENOUGH, news.prompt[1]) and news.tokens > 0 and news.size > 0:
            self._tokens, self._bytes = news.tokens, news.size
        self.output.adopt(*news.output)
        self.prompt.adopt(*news.prompt)
        self.uncached.adopt(*news.uncached)
        self.tau.adopt(*news.tau)


class Totals(NamedTuple):
    """One router's own load on one replica, or the sum of several routers'.

    The counters as they are, what the clock has drained of silent answers (requests and tokens), the uncached tokens
    sent of late, decayed to the moment of the news, and for how many seconds the replica had given no sign of life.
    """

    requests: int = 0
    unstarted: int = 0
    backlog: int = 0
    context: int = 0
    drained_requests: int = 0
    drained_tokens: float = 0.0
    recent: float = 0.0
    quiet: float = 0.0


class Assumed(NamedTuple):
    """What other routers are taken to have added to a replica since they were last heard: requests and tokens."""

    requests: float = 0.0
    uncached: float = 0.0
    tokens: float = 0.0


class Whole(NamedTuple):
    """Open leases of all routers on one replica, those of them without a first token, and their tokens."""

    requests: int
    unstarted: int
    backlog: int
    context: int


class External(NamedTuple):
    """Load that an engine shows beyond our own leases."""

    queued: int = 0
    backlog: float = 0.0
    running: int = 0
    context: float = 0.0


class Silent:
    """The drain of one request whose answer shows no first token: its uncached tokens, and when they will be done."""

    __slots__ = ("done_at", "drained", "lin", "uncached")

    def __init__(self, uncached: int, done_at: float, lin: float) -> None:
        self.uncached = uncached
        self.done_at = done_at
        self.lin = lin
        self.drained = False


class Load:
    """One replica's load and learned rates. Quantities in requests and prompt tokens, times in monotonic seconds.

    `changes` counts whatever may change its standing (ranking.py); who sets a field of it from outside counts, too.
    """

    def __init__(
        self,
        replica: ReplicaId,
        lin: float | None = None,
        step: float | None = None,
        kv: float | None = None,
        period: float = 1.0,
    ) -> None:
        self.id = replica
        self.lin, self._lin_seen = lin, 0
        self.step, self._step_seen = step or DEFAULT_STEP, 0
        self.known_step = step
        self.kv = kv or DEFAULT_KV
        self.requests = self.unstarted = self.dispatches = self.changes = 0
        self.backlog_tokens = self.context_tokens = 0
        self._recent = self._recent_at = 0.0
        self.tau = 5.0  # The one that recent prefill was last decayed with.
        self.others: Totals | None = None
        self.others_at = 0.0
        self._draining: OrderedDict[Silent, None] = OrderedDict()
        self._drained_requests = self._drained_tokens = 0
        self.sample: EngineSample | None = None
        self._sample_life = SAMPLE_PERIODS * period
        self._external = External()

    # The three quantities of a lease.

    def dispatch(self, tokens: int, uncached: int, now: float, tau: float) -> None:
        """A request of `tokens` prompt tokens, `uncached` of them to prefill, goes out."""
        self.changes += 1
        self.dispatches += 1
        self.requests += 1
        self.unstarted += 1
        self.context_tokens += tokens
        self.backlog_tokens += uncached
        self._recent = self._recent * math.exp((self._recent_at - now) / tau) + uncached
        self._recent_at = now
        self.tau = tau

    def start(self, uncached: int, silent: Silent | None) -> None:
        """Its first token came, or it ended without one."""
        self.changes += 1
        self.unstarted -= 1
        self.backlog_tokens -= uncached
        if silent is None:
            return
        if silent.drained:
            self._drained_requests -= 1
            self._drained_tokens -= uncached
        else:
            del self._draining[silent]

    def end(self, tokens: int) -> None:
        """It ended."""
        self.changes += 1
        self.requests -= 1
        self.context_tokens -= tokens

    def silent(self, uncached: int, now: float, lin: float) -> Silent:
        """The request just dispatched will show no first token: let its prefill drain behind what is ahead of it."""
        silent = Silent(uncached, now + self.backlog(now) * lin, lin)
        self._draining[silent] = None
        return silent

    # What a policy reads.

    def read(
        self,
        now: float,
        tau: float,
        lin: float,
        step: float,
        depth: int,
        uncached: float,
        cold: float,
        assumed: Assumed | None = None,
    ) -> Reading:
        """What a policy may know of this replica at `now`. `lin` and `step` stand in for rates not known yet; the
        ask's own standing there (`depth`, `uncached`, `cold`) is passed on. `assumed` is of other routers."""
        requests, queued, backlog = self.requests, self.unstarted, float(self.backlog_tokens)
        running, context = float(requests), float(self.context_tokens)
        if self._draining or self._drained_requests:
            backlog -= self._drain(now) + self._drained_tokens
            queued -= self._drained_requests
        usage, sample = None, self.sample
        if sample is not None and now - sample.at <= self._sample_life:
            usage = sample.kv_usage
            external = self._external
            queued += external.queued
            backlog += external.backlog
            running += external.running
            context += external.context
        recent = self._recent and self._recent * math.exp((self._recent_at - now) / tau)
        others = self.others
        if others is not None:
            requests += others.requests
            queued += others.unstarted - others.drained_requests
            backlog += others.backlog - others.drained_tokens
            running += others.requests
            context += others.context
            recent += others.recent and others.recent * math.exp((self.others_at - now) / tau)
        if assumed is not None:
            backlog += assumed.uncached
            running += assumed.requests
            context += assumed.tokens
            recent += assumed.uncached
        return Reading(
            self.id, requests, queued, backlog, running, context, recent, usage,
            self.lin or lin, self.known_step or step, depth, uncached, cold,
        )  # fmt: skip

    def backlog(self, now: float) -> float:
        """Uncached tokens dispatched that have not reached their first output token, ours and others'."""
        backlog = self.backlog_tokens - self._drain(now) - self._drained_tokens
        if self.others is not None:
            backlog += self.others.backlog - self.others.drained_tokens
        sample = self.sample
        fresh = sample is not None and now - sample.at <= self._sample_life
        return backlog + self._external.backlog if fresh else backlog

    def steady(self, begin: float, end: float) -> bool:
        """Whether between two times the clock alone changes nothing here but how recent prefill decays."""
        sample = self.sample
        return not self._draining and (
            sample is None or end - sample.at <= self._sample_life or begin - sample.at > self._sample_life
        )

    @property
    def whole(self) -> Whole:
        """Our own open leases and other routers'."""
        others = self.others or Totals()
        return Whole(
            self.requests + others.requests,
            self.unstarted + others.unstarted,
            self.backlog_tokens + others.backlog,
            self.context_tokens + others.context,
        )

    @property
    def open(self) -> int:
        """Open leases, ours and others'."""
        return self.requests if self.others is None else self.requests + self.others.requests

    def totals(self, now: float, quiet: float) -> Totals:
        """Our own load, for other routers."""
        left = self._drain(now)
        return Totals(
            self.requests,
            self.unstarted,
            self.backlog_tokens,
            self.context_tokens,
            self._drained_requests,
            self._drained_tokens + left,
            self._recent * math.exp((self._recent_at - now) / self.tau),
            quiet,
        )

    # What the engine says.

    def sampled(self, sample: EngineSample, learned: Learned) -> None:
        """Take an engine's gauges; what they show beyond the routers' leases of that moment is external load.

        Waiting beyond the leases without a first token counts as that many prompts to prefill, the rest beyond the
        leases as running, each of learned mean size. The rest is taken from the total, because a silent request may
        be running in the engine while it is still without a first token here.
        """
        self.changes += 1
        self.sample = sample
        waiting, running = sample.waiting or 0, sample.running or 0
        queued = max(0, waiting - sample.own_unstarted)
        busy = max(0, waiting + running - sample.own_requests)
        self._external = External(queued, queued * learned.uncached.value, busy, busy * learned.prompt.value)

    def learn_lin(self, seconds: float, tokens: float, start: float) -> None:
        """A first token took `seconds`, with `tokens` to prefill before it; `start` is the guess so far."""
        if tokens >= LEARN_MIN_TOKENS and seconds > 0:
            self.changes += 1
            self.lin = follow(self.lin or start, seconds / tokens, self._lin_seen)
            self._lin_seen += 1

    def learn_step(self, seconds: float) -> None:
        """A lone request decoded at `seconds` a token, its own context's share taken off.

        The first one is believed as it is where nothing was known: a busy replica shows few, and until it has caught
        up with a default that is far off it would look slower, or faster, than its peers.
        """
        if seconds > 0:
            self.changes += 1
            self.step = seconds if self.known_step is None else follow(self.step, seconds, self._step_seen)
            self.known_step = self.step
            self._step_seen += 1

    def rates(self) -> tuple[float | None, int, float | None, int]:
        """What is known here: `lin` and its samples, `step` and its samples."""
        return self.lin, self._lin_seen, self.known_step, self._step_seen

    def adopt(self, lin: float | None, lin_seen: int, step: float | None, step_seen: int) -> None:
        """Take over from another router what is hardly known here."""
        self.changes += 1
        if lin is not None and self._lin_seen < min(ENOUGH, lin_seen):
            self.lin, self._lin_seen = lin, lin_seen
        if step is not None and self._step_seen < min(ENOUGH, step_seen):
            self.step = self.known_step = step
            self._step_seen = step_seen

    def _drain(self, now: float) -> float:
        """Move what the clock has drained to the drained sums; returns what the oldest one left has drained so far."""
        draining = self._draining
        while draining:
            oldest = next(iter(draining))
            left = oldest.done_at - now
            if left > 0:
                return max(0.0, oldest.uncached - left / oldest.lin)
            del draining[oldest]
            oldest.drained = True
            self._drained_requests += 1
            self._drained_tokens += oldest.uncached
        return 0.0
