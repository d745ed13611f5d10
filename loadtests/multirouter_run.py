"""One arm of `loadtests.multirouter` under way: its routers, its engines, its clients, what befalls it, what is seen.

Clients are chats, closed loop, each turn to the next router. What is seen is told with its moment, so that an interval
of one arm can be held against the same interval of another.
"""

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import cycle
from random import Random
from time import monotonic

from loadtests.answer import request_body
from loadtests.fleet import MODEL
from loadtests.multirouter_bed import Replicas, Router, Spec, router
from loadtests.processes import ProcessError
from loadtests.redisserver import RedisServer, redis_server
from loadtests.workloads import BYTES_PER_TOKEN, ChatShape, Message, Session, Workload
from replica.engine import Work
from router.app import Worker
from router.core.types import Ask, Outcome, ReplicaId, Route, Usage
from router.gossip.messages import Batch, Heard, Load
from router.proxy.openai import endpoint

CHAT = endpoint("/v1/chat/completions")
PATIENCE_S = 10.0  # For a replica to be found; the queue's 30 s would hide a stall.
SAMPLE_S = 0.02
DOWN_S = 10.0
"""Seconds for which Redis is gone."""

PROBES = 40
"""Prompts of late that routers are asked for, to see whether they agree: 20 ms of eight routers' time."""

LOOK_S, AGREE_WITHIN_S = 0.05, 30.0


@dataclass(frozen=True, slots=True)
class Arm:
    """One run's routers. With `kill` Redis is killed and started again, with `rolling` each router is replaced."""

    routers: int
    workers: int
    gossip: bool
    policy: str = "prefix_affinity"
    kill: bool = False
    rolling: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """What each arm is given. `blocks` of 128 tokens are each replica's cache."""

    shape: ChatShape
    seed: int
    replicas: int = 8
    blocks: int = 3500
    profile: str = "llama3-70b-4xa100"


@dataclass(slots=True)
class Seen:
    """What an arm has shown so far; moments are seconds since it began. `ttfts` are (arrival, seconds), `turns`
    (moment, whether the chat's replica was that of the turn before). `gap` is when Redis is gone, or would be,
    `agreed_s` how long after its return all routers agreed, `rolled_s` when the first router was replaced."""

    prompt: int = 0
    cached: int = 0
    requests: int = 0
    failed: int = 0
    turns: list[tuple[float, bool]] = field(default_factory=list)
    ttfts: list[tuple[float, float]] = field(default_factory=list)
    delays: list[float] = field(default_factory=list)
    in_flight: dict[ReplicaId, int] = field(default_factory=dict)
    gap: tuple[float, float] = (0.0, 0.0)
    agreed_s: float | None = None
    rolled_s: float | None = None


class Run:
    """One arm under way: its routers, its engines, what is seen."""

    def __init__(self, plan: Plan, stack: AsyncExitStack, spec: Spec) -> None:
        self._stack, self._spec = stack, spec
        self._began = monotonic()
        self.replicas = Replicas(plan.replicas, plan.blocks, plan.profile)
        self.routers: list[Router] = []
        self._stacks: list[AsyncExitStack] = []
        self._turns: Iterator[int] = cycle(range(1_000_000))
        self._rng = Random(plan.seed)
        self._dispatched: dict[str, list[tuple[float, ReplicaId]]] = {}
        self._probes: deque[Ask] = deque(maxlen=PROBES)
        self.seen = Seen(in_flight=dict.fromkeys(self.replicas.drivers, 0))

    @property
    def now(self) -> float:
        """Seconds since the arm began."""
        return monotonic() - self._began

    def begin(self) -> None:
        """The work begins now."""
        self._began = monotonic()

    async def add(self) -> None:
        """One more router."""
        stack = await self._stack.enter_async_context(AsyncExitStack())
        one = await stack.enter_async_context(router(self._spec, self.replicas))
        self._stacks.append(stack)
        self.routers.append(one)
        self._listen(one)

    async def replace(self, position: int) -> None:
        """Another router in one's place: the new one serves before the old one, which goes when its answers have ended,
        as one that drains does."""
        await self.add()
        old, self.routers[position] = self.routers[position], self.routers.pop()
        stack, self._stacks[position] = self._stacks[position], self._stacks.pop()
        while any(replica.requests for worker in old.workers for replica in worker.fleet.replicas):  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)
        await stack.aclose()

    def _listen(self, one: Router) -> None:
        """Note when what others have sent arrives at its first worker."""
        news = one.workers[0]._news
        take = news.take

        def noting(message: object) -> None:
            if isinstance(message, Heard):
                for batch in message.batches:
                    self._arrived(batch)
            take(message)  # type: ignore[arg-type]

        news.take = noting  # type: ignore[method-assign]

    def _arrived(self, batch: Batch) -> None:
        told = {replica for load in batch.news if isinstance(load, Load) for replica in load.loads}
        left = []
        for at, replica in self._dispatched.pop(batch.peer, []):
            if replica in told:
                self.seen.delays.append(monotonic() - at)
            else:
                left.append((at, replica))
        self._dispatched[batch.peer] = left

    # Clients.

    async def chat(self, session: Session) -> None:
        """One chat, its turns one after the other, each to the next router."""
        history, due, last = session.opening, session.start_s, None
        began = monotonic()
        for turn in session.turns:
            due += turn.think_s
            await asyncio.sleep(due - (monotonic() - began))
            messages = (*history, turn.question)
            replica = await self._ask(f"{session.id} {due}", messages, turn.max_tokens)
            if last is not None and replica is not None:
                self.seen.turns.append((self.now, replica == last))
            last = replica
            answer = f"{session.id} answers. " * turn.max_tokens
            history = (*messages, Message("assistant", (answer[: round(BYTES_PER_TOKEN * turn.max_tokens)],)))
            due = monotonic() - began

    def _next(self) -> tuple[Router, Worker]:
        number = next(self._turns)
        one = self.routers[number % len(self.routers)]
        return one, one.workers[number // len(self.routers) % len(one.workers)]

    async def _ask(self, name: str, messages: tuple[Message, ...], tokens: int) -> ReplicaId | None:
        one, worker = self._next()
        ask = worker.proxy.asker.read(CHAT, request_body(MODEL, messages, tokens)).ask
        began, seen = monotonic(), self.seen
        seen.requests += 1
        while not isinstance(route := worker.fleet.route(ask, monotonic(), self._rng), Route):
            await asyncio.sleep(0.01)
            if monotonic() - began > PATIENCE_S:
                seen.failed += 1
                return None
        lease = worker.fleet.lease(route, ask, monotonic())
        self._dispatched.setdefault(one.name, []).append((monotonic(), route.replica))
        size = ask.size // 4
        [part] = (job := self.replicas.drivers[route.replica].submit([(Work(name, size, tokens, ask.chain), "")])).parts
        await job.changed()
        lease.first_token(monotonic())
        seen.ttfts.append((began - self._began, monotonic() - began))
        while not part.finished:
            worker.fleet.sign_of_life(route.replica, monotonic())
            await job.changed()
        lease.finish(Outcome.OK, Usage(size, tokens, part.cached_tokens), monotonic())
        self._probes.append(ask)
        seen.prompt += size
        seen.cached += part.cached_tokens
        return route.replica

    # Agreement.

    def agree(self) -> bool:
        """Whether each router knows all the others, and all but one of the last prompts would go to one replica,
        whichever router was asked. (A prompt's load may be on its way between two of them at this moment.)"""
        links = [one.crew.link for one in self.routers]
        if not all(link is not None and link.up and link.peers == len(links) - 1 for link in links):
            return False
        return sum(len({self._choice(one, ask) for one in self.routers}) > 1 for ask in self._probes) <= 1

    def _choice(self, one: Router, ask: Ask) -> ReplicaId | None:
        """Where a router would send it; nothing is leased."""
        route = one.workers[0].fleet.route(ask, monotonic(), Random(0))
        return route.replica if isinstance(route, Route) else None

    async def agreement(self) -> float:
        """Seconds until they agree. Raises ProcessError when they do not in AGREE_WITHIN_S."""
        began = monotonic()
        while not self.agree():
            if monotonic() - began > AGREE_WITHIN_S:
                raise ProcessError(f"the routers have not come to agree within {AGREE_WITHIN_S:g} s")
            await asyncio.sleep(LOOK_S)
        return monotonic() - began

    async def sample(self) -> None:
        """Add up what is in flight, until cancelled."""
        while True:
            await asyncio.sleep(SAMPLE_S)
            for replica, driver in self.replicas.drivers.items():
                self.seen.in_flight[replica] += driver.in_flight


async def play(arm: Arm, plan: Plan, workload: Workload) -> Seen:
    """One arm on routers, engines and a Redis of its own. Raises ProcessError when routers do not come to agree."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(redis_server()) if arm.gossip else None
        run = Run(plan, stack, Spec(arm.workers, server, arm.policy))
        await stack.enter_async_context(run.replicas.running())
        for _ in range(arm.routers):
            await run.add()
        third = max(session.start_s + sum(turn.think_s for turn in session.turns) for session in workload.sessions) / 3
        run.seen.gap = (third, third + DOWN_S)
        sampling = asyncio.get_running_loop().create_task(run.sample())
        run.begin()
        async with asyncio.TaskGroup() as tasks:
            for session in workload.sessions:
                tasks.create_task(run.chat(session))
            if arm.kill and server is not None:
                tasks.create_task(_kill(run, server))
            if arm.rolling:
                tasks.create_task(_roll(run, third))
        sampling.cancel()
    return run.seen


async def _kill(run: Run, server: RedisServer) -> None:
    begin, end = run.seen.gap
    await asyncio.sleep(begin - run.now)
    await server.kill()
    await asyncio.sleep(end - run.now)
    await server.start()
    run.seen.agreed_s = await run.agreement()


async def _roll(run: Run, seconds: float) -> None:
    """Replace one after the other, beginning after so many seconds and taking as many."""
    await asyncio.sleep(seconds)
    run.seen.rolled_s = run.now
    for position in range(len(run.routers)):
        await run.replace(position)
        await asyncio.sleep(seconds / len(run.routers))
