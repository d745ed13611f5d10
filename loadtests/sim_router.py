"""One simulated router: the production core, queue and gossip on a hand-turned clock, and no proxy.

It knows what a router can know: its own dispatches, first tokens and ends, `cached_tokens`, what engines' gauges said
each second, and other routers' news. It is given prompts as chains, never a trace's ids of answers. `Visit` stands in
for `proxy.exchange`: route, lease, first token, finish, one resend when a replica was lost before it answered.
"""

import random
from collections.abc import Callable, Mapping

from loadtests.clock import Clock
from loadtests.plays import NAME_TOKENS, Line, size
from loadtests.records import Record
from loadtests.sim_replica import SimReplica
from replica.engine import DoesNotFitError, Work
from router.core.fleet import Fleet
from router.core.lease import Lease, Settled
from router.core.types import Ask, Outcome, Refusal, ReplicaId, Route, Usage, Wait
from router.gossip.news import News
from router.proxy.waiting import Waiting

MODEL = "sim"

MAX_RESENDS = 1


def ask(line: Line, block: int) -> Ask:
    """What a router reads of a prompt: the chain of its full blocks of `block` bytes, and no more of it.

    Raises ValueError for a block that is no multiple of an engine block.
    """
    stride, rest = divmod(block, size(NAME_TOKENS))
    if rest or not stride:
        raise ValueError(f"prefix_block must be a multiple of {size(NAME_TOKENS)} bytes here, not {block}")
    full = line.prompt_tokens // NAME_TOKENS
    answers = {size(begin): size(end) for begin, end in (line.answers or {}).items()}
    return Ask(MODEL, line.names[stride - 1 : full : stride], line.tail, size(line.prompt_tokens), True, None, answers)


class SimRouter:
    """`replicas` is the simulation's own map of what lives now; `news` is the gossip's end, where there is gossip."""

    def __init__(
        self,
        name: str,
        fleet: Fleet,
        waiting: Waiting,
        clock: Clock,
        rng: random.Random,
        replicas: Mapping[ReplicaId, SimReplica],
        block: int,
    ) -> None:
        self.name = name
        self.fleet, self.waiting, self.clock, self.rng, self.block = fleet, waiting, clock, rng, block
        self.replicas = replicas
        self.news: News | None = None

    @property
    def is_idle(self) -> bool:
        """Whether no request is here, neither sent nor parked."""
        return not self.waiting and not any(replica.requests for replica in self.fleet.replicas)

    def freed(self) -> None:
        """A lease has ended or a replica has become eligible: those who wait may try."""
        if self.waiting:
            self.clock.at(self.clock.now, self.waiting.wake)


class Visit:
    """One request, from its arrival at a router to its record. `proxy.exchange` without bytes."""

    __slots__ = (
        "_ask", "_done", "_first_token_at", "_lease", "_line", "_name", "_resends", "_route", "_router", "_session",
        "_tried", "_turn", "_waits", "arrived_at", "settled",
    )  # fmt: skip

    def __init__(
        self, router: SimRouter, session: str, turn: int, line: Line, done: Callable[["Visit", Record], None]
    ) -> None:
        self._router, self._session, self._turn, self._line, self._done = router, session, turn, line, done
        self._ask = ask(line, router.block)
        self._name = f"{session}/{turn}"
        self.arrived_at = router.clock.now
        self._first_token_at: float | None = None
        self._lease: Lease | None = None
        self._route: Route | None = None
        self._tried: list[ReplicaId] = []
        self._resends = 0
        self._waits = False
        self.settled: Settled | None = None

    def find(self) -> None:
        """Route it, or park it."""
        waiting = self._router.waiting
        if (waiting and waiting.depth(MODEL)) or not self.try_route():
            self._waits = True
            refusal = waiting.park(MODEL, self)
            if refusal is not None:
                self.refuse(refusal)

    # waiting.Waiter

    def try_route(self) -> bool:
        router = self._router
        decision = router.fleet.route(self._ask, router.clock.now, router.rng, self._tried)
        if isinstance(decision, Wait):
            return False
        self._waits = False
        if isinstance(decision, Refusal):
            self.refuse(decision)
        else:
            self._dispatch(decision)
        return True

    def refuse(self, refusal: Refusal) -> None:
        self._end(refusal.cause.value, 0)

    def _dispatch(self, route: Route) -> None:
        router, line = self._router, self._line
        self._lease = router.fleet.lease(route, self._ask, router.clock.now)
        work = Work(f"{self._name}#{len(self._tried)}", line.prompt_tokens, line.output_tokens, line.names)
        try:
            router.replicas[route.replica].submit(work, self)
        except DoesNotFitError:
            self._settle(Outcome.OK, None)  # The engine's own 400, which is relayed.
            self._end("too_long", 0)

    # sim_replica.Listener

    def on_first_token(self) -> None:
        assert self._lease is not None
        now = self._router.clock.now
        self._first_token_at = now
        self._router.fleet.sign_of_life(self._lease.replica, now)
        self._lease.first_token(now)

    def on_end(self, cached_tokens: int) -> None:
        usage = Usage(self._line.prompt_tokens, self._line.output_tokens, cached_tokens)
        self._settle(Outcome.OK, usage)
        self._end(None, cached_tokens)

    def on_lost(self) -> None:
        self._settle(Outcome.FAILED, None)
        if self._first_token_at is None and self._resends < MAX_RESENDS:
            self._resends += 1
            self.find()
        else:
            self._end("replica_lost", 0)

    def _settle(self, outcome: Outcome, usage: Usage | None) -> None:
        lease, router = self._lease, self._router
        assert lease is not None
        self._lease = None
        self._tried.append(lease.replica)
        self.settled = lease.finish(outcome, usage, router.clock.now)
        router.fleet.ended(lease, outcome is not Outcome.OK, router.clock.now)
        router.freed()

    def _end(self, error: str | None, cached_tokens: int) -> None:
        line = self._line
        record = Record(
            session=self._session, turn=self._turn, messages=(), answer="",
            scheduled_s=self.arrived_at, sent_s=self.arrived_at, first_token_s=self._first_token_at,
            end_s=self._router.clock.now, prompt_tokens=line.prompt_tokens,
            completion_tokens=line.output_tokens if error is None else 0, cached_tokens=cached_tokens,
            replica=self._tried[-1] if self._tried else None, error=error, gaps_s=(),
        )  # fmt: skip
        self._done(self, record)
