"""One request's hold on one replica.

A lease holds three quantities: a request and its context until it ends, its backlog until the first token or the end.
Each is charged when the lease is made and discharged here exactly once; a second `finish` raises. When it ends, what
the engine said of the request corrects what the router had believed.
"""

from typing import NamedTuple

from router.core.backlog import Learned, Silent
from router.core.member import Replica
from router.core.residency import Residency
from router.core.types import Ask, News, Outcome, Route, Usage

MIN_STEP_TOKENS = 8
"""Output tokens below which a decode step is not learned: the first and last token's edges would weigh too much."""

DISPROOF = 0.1
"""Share of a believed depth that the engine's count may fall short by before the belief is called wrong.

Tokens per byte vary within a prompt by about this much, so a smaller gap says nothing."""

TOUCH = 1.0
"""Seconds after which other routers are told again that a chain is in use: what nobody uses for so long is what
engines evict first."""


class Settled(NamedTuple):
    """What a lease was, once it ended; None for what never happened or was never told. Tokens and seconds."""

    replica: str
    outcome: Outcome
    prompt_tokens: int
    reachable: int
    predicted: int
    reported: int | None
    completion_tokens: int | None
    seconds_to_first_token: float | None
    seconds: float
    dropped_blocks: int


class Lease:
    """Made by `Fleet.lease` only, which has charged it. Nobody sets anything from outside.

    `started_at` is when the first token was seen, `settled` what it came to; None before that.
    """

    __slots__ = (
        "_alone", "_at", "_block", "_done", "_guess", "_learned", "_load", "_placement", "_replica", "_residency",
        "_serial", "_silent", "_uncached", "ask", "route", "settled", "started_at",
    )  # fmt: skip

    def __init__(
        self, replica: Replica, route: Route, ask: Ask, learned: Learned, residency: Residency, block: int, guess: float
    ) -> None:
        self._replica, self.route, self.ask = replica, route, ask
        self._learned, self._residency, self._block, self._guess = learned, residency, block, guess
        self._uncached = max(1, route.tokens - route.cached)
        self._done = self._alone = False
        self.started_at: float | None = None
        self.settled: Settled | None = None
        self._silent: Silent | None = None

    @property
    def replica(self) -> str:
        return self._replica.id

    @property
    def member(self) -> Replica:
        """The replica itself, though it may have left the fleet."""
        return self._replica

    @property
    def at(self) -> float:
        """When it was charged, in monotonic seconds."""
        return self._at

    @property
    def started(self) -> bool:
        """Whether the first token has come."""
        return self.started_at is not None

    def charge(self, capacity: int, now: float) -> None:
        """Take the three quantities and pin the chain; `capacity` is the replica's KV cache in router blocks."""
        replica, route = self._replica, self.route
        self._at = now
        replica.dispatch(route.tokens, self._uncached, now, self._learned.tau.value)
        self._load = replica.backlog(now)
        self._serial = replica.dispatches
        if not self.ask.streams:
            self._silent = replica.silent(self._uncached, now, replica.lin or self._guess)
        self._placement = self._residency.place(replica.id, self.ask.chain, capacity)

    def tell(self, news: News, now: float) -> None:
        """Tell other routers of the placement, if it changes what they believe."""
        placement, chain = self._placement, self.ask.chain
        last = placement.last
        if last is None or (placement.blocks == placement.depth and now - last.told_at <= TOUCH):
            return
        last.told_at = now
        parent = chain[placement.depth - 1] if placement.depth else None
        news.placed(self.replica, parent, chain[placement.depth : placement.blocks])

    def first_token(self, now: float) -> None:
        """The first output token was seen: the prefill is over, and the chain is resident for certain.

        Raises RuntimeError when called twice or after the end.
        """
        if self._done or self.started_at is not None:
            raise RuntimeError("a lease sees one first token, and none after its end")
        self.started_at = now
        self._replica.start(self._uncached, self._silent)
        if self._replica.entry is not None:
            self._replica.entry.answered(self.route.tokens, self.route.cached)
        self._replica.conduct.on_trial = False
        self._residency.confirm(self._placement)
        self._alone = self._replica.learns and self._replica.open == 1
        if self._replica.learns and self.ask.streams and self.ask.size:
            self._replica.learn_lin(now - self._at, self._load, self._guess)

    def finish(self, outcome: Outcome, usage: Usage | None, now: float) -> Settled:
        """End the lease: load down, residency released and corrected, rates learned. Raises RuntimeError when ended."""
        if self._done:
            raise RuntimeError("a lease ends once")
        self._done = True
        replica, route = self._replica, self.route
        if self.started_at is None:
            replica.start(self._uncached, self._silent)
        replica.end(route.tokens)
        dropped = 0
        if outcome is Outcome.OK and self.started_at is not None:
            dropped = self._learn(usage or Usage(), self.started_at, now)
        self._residency.release(self._placement)
        first = None if self.started_at is None else self.started_at - self._at
        said = usage or Usage()
        self.settled = Settled(
            replica.id, outcome, route.tokens if said.prompt_tokens is None else said.prompt_tokens, route.reachable,
            route.cached, said.cached_tokens, said.completion_tokens, first, now - self._at, dropped,
        )  # fmt: skip
        return self.settled

    def _learn(self, usage: Usage, started_at: float, now: float) -> int:
        learned, ask = self._learned, self.ask
        if ask.streams:  # Without a stream the first byte is the answer's end too, and tells nothing of decoding.
            learned.tau.add(max(now - started_at, 1e-3))
        output = usage.completion_tokens
        if output is not None:
            learned.output.add(max(1, output))
            if self._placement.blocks == len(ask.chain) > 0:
                self._residency.answered(self.replica, ask.chain[-1], ask.size, output)
            quiet = self._alone and self._replica.dispatches == self._serial and self._replica.others_at <= started_at
            if quiet and ask.streams and output >= MIN_STEP_TOKENS:
                seconds = (now - started_at) / (output - 1)
                self._replica.learn_step(seconds - self._replica.kv * self.route.tokens)
        if not usage.prompt_tokens or not ask.size:
            return 0
        learned.prompt.add(usage.prompt_tokens)
        learned.uncached.add(max(1, usage.prompt_tokens - (usage.cached_tokens or 0)))
        if ask.tokens is None:
            learned.saw_prompt(usage.prompt_tokens, ask.size)
        return 0 if usage.cached_tokens is None else self._correct(usage.cached_tokens / usage.prompt_tokens)

    def _correct(self, share: float) -> int:
        """The engine had `share` of the prompt cached; drop what a belief in more rested on."""
        believed = self._placement.depth
        depth = int(share * self.ask.size / self._block)
        if believed - depth <= max(1, DISPROOF * believed):
            return 0
        dropped = self._residency.disproved(self._placement, depth)
        news, chain = self._residency.news, self.ask.chain
        if dropped.blocks and news is not None:
            # Not the block that was missing: others know that it is in use again, and would take all for older.
            news.corrected(self.replica, dropped.youngest)
            # The chain that told stays: the engine has just computed it.
            news.placed(self.replica, chain[depth - 1] if depth else None, chain[depth : self._placement.blocks])
        return dropped.blocks
