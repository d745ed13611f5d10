"""`python -m loadtests.multirouter`: do several routers in front of one fleet decide as one?

The same chats, each turn to another router, over 8 simulated replicas, with 1, 2, 4, 8 routers and with one router of
two workers; each once with gossip over a real Redis and once without. The columns:

hit ratio    prompt tokens that the engines had cached, of all
of one's     that, of the hit ratio of one router with one worker
kept         turns of a chat that went to the replica of the turn before
max/mean     requests in flight per replica, averaged over time: the busiest to the mean
delay ms     from a dispatch to its arrival at a worker of another router, median and 99th percentile
ttft ms      time to first token, 50th and 99th percentile, as clients would see it

`--kill-redis` ends redis-server by SIGKILL after a third of the time and starts it again 10 s later. `--rolling`
replaces one router after the other. Everything runs in one process (multirouter_bed.py), so on a busy machine delays
are the machine's.
"""

import asyncio
import sys
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from itertools import cycle
from pathlib import Path
from random import Random
from statistics import median
from time import monotonic
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from loadtests.answer import request_body
from loadtests.fleet import MODEL
from loadtests.multirouter_bed import Replicas, Router, Spec, router
from loadtests.processes import Interrupted, ProcessError, run_until_signal
from loadtests.redisserver import RedisServer, redis_server
from loadtests.workloads import ChatShape, Message, Session, Workload, chat_workload
from replica.engine import Work
from router.app import Worker
from router.core.types import Outcome, ReplicaId, Route, Usage
from router.gossip.messages import Batch, Load
from router.proxy.openai import endpoint

CHAT = endpoint("/v1/chat/completions")
PATIENCE_S = 10.0  # For a replica to be found; the queue's 30 s would hide a stall.
SAMPLE_S = 0.02
DOWN_S = 10.0
WIDTH = 120


@dataclass(frozen=True, slots=True)
class Arm:
    """One run's routers."""

    routers: int
    workers: int
    gossip: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """What each arm is given. `blocks` of 128 tokens are each replica's cache."""

    shape: ChatShape
    seed: int
    replicas: int = 8
    blocks: int = 3500
    profile: str = "llama3-70b-4xa100"
    kill: bool = False
    rolling: bool = False


@dataclass(slots=True)
class Seen:
    """What an arm has shown so far."""

    prompt: int = 0
    cached: int = 0
    requests: int = 0
    failed: int = 0
    turns: int = 0
    kept: int = 0
    ttfts: list[float] = field(default_factory=list)
    delays: list[float] = field(default_factory=list)
    in_flight: dict[ReplicaId, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Result:
    """One row of the table."""

    routers: int
    workers: int
    gossip: bool
    requests: int
    failed: int
    hit_ratio: float
    kept: float
    max_to_mean: float
    delay_ms: tuple[float, float] | None
    ttft_ms: tuple[float, float]


class _Run:
    """One arm under way: its routers, its engines, what is seen."""

    def __init__(self, plan: Plan, stack: AsyncExitStack, spec: Spec) -> None:
        self._plan, self._stack, self._spec = plan, stack, spec
        self.replicas = Replicas(plan.replicas, plan.blocks, plan.profile)
        self.routers: list[Router] = []
        self._stacks: list[AsyncExitStack] = []
        self._turns: Iterator[int] = cycle(range(1_000_000))
        self._rng = Random(plan.seed)
        self._dispatched: dict[str, list[tuple[float, ReplicaId]]] = {}
        self.seen = Seen(in_flight=dict.fromkeys(self.replicas.drivers, 0))

    async def add(self) -> None:
        """One more router."""
        stack = await self._stack.enter_async_context(AsyncExitStack())
        one = await stack.enter_async_context(router(self._spec, self.replicas))
        self._stacks.append(stack)
        self.routers.append(one)
        self._listen(one)

    async def replace(self, position: int) -> None:
        """Another router in one's place: the new one serves before the old one goes."""
        await self.add()
        self.routers[position] = self.routers.pop()
        old, self._stacks[position] = self._stacks[position], self._stacks.pop()
        await old.aclose()

    def _listen(self, one: Router) -> None:
        """Note when what others have sent arrives at its first worker."""
        news = one.workers[0]._news
        take = news.take

        def noting(message: object) -> None:
            if isinstance(message, Batch):
                self._arrived(message)
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
                self.seen.turns += 1
                self.seen.kept += replica == last
            last = replica
            history = (*messages, Message("assistant", (f"{session.id} answers. " * turn.max_tokens,)))
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
        seen.ttfts.append(monotonic() - began)
        while not part.finished:
            worker.fleet.sign_of_life(route.replica, monotonic())
            await job.changed()
        lease.finish(Outcome.OK, Usage(size, tokens, part.cached_tokens), monotonic())
        seen.prompt += size
        seen.cached += part.cached_tokens
        return route.replica

    async def sample(self) -> None:
        """Add up what is in flight, until cancelled."""
        while True:
            await asyncio.sleep(SAMPLE_S)
            for replica, driver in self.replicas.drivers.items():
                self.seen.in_flight[replica] += driver.in_flight


async def play(arm: Arm, plan: Plan, workload: Workload) -> Result:
    """One arm on routers, engines and a Redis of its own."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(redis_server()) if arm.gossip else None
        run = _Run(plan, stack, Spec(arm.workers, server))
        await stack.enter_async_context(run.replicas.running())
        for _ in range(arm.routers):
            await run.add()
        seconds = max(session.start_s + 1.5 * len(session.turns) for session in workload.sessions)
        sampling = asyncio.get_running_loop().create_task(run.sample())
        async with asyncio.TaskGroup() as tasks:
            for session in workload.sessions:
                tasks.create_task(run.chat(session))
            if plan.kill and server is not None:
                tasks.create_task(_kill(server, seconds / 3))
            if plan.rolling:
                tasks.create_task(_roll(run, seconds / 3))
        sampling.cancel()
    return judge(arm, run.seen)


async def _kill(server: RedisServer, after: float) -> None:
    await asyncio.sleep(after)
    await server.kill()
    await asyncio.sleep(DOWN_S)
    await server.start()


async def _roll(run: _Run, after: float) -> None:
    for position in range(len(run.routers)):
        await asyncio.sleep(after / len(run.routers))
        await run.replace(position)


def judge(arm: Arm, seen: Seen) -> Result:
    """The figures of an arm."""
    flights = list(seen.in_flight.values())
    mean = sum(flights) / len(flights)
    return Result(
        arm.routers,
        arm.workers,
        arm.gossip,
        seen.requests,
        seen.failed,
        seen.cached / max(1, seen.prompt),
        seen.kept / max(1, seen.turns),
        max(flights) / mean if mean else 1.0,
        _halves(seen.delays) if seen.delays else None,
        _halves(seen.ttfts),
    )


def _halves(seconds: Sequence[float]) -> tuple[float, float]:
    """Median and 99th percentile, in ms."""
    ordered = sorted(seconds)
    return 1000 * median(ordered), 1000 * ordered[int(0.99 * (len(ordered) - 1))]


def table(results: Sequence[Result]) -> Table:
    """For people. The first row is what the others are compared with."""
    grid = Table()
    for name in ("routers", "workers", "gossip", "requests", "failed", "hit ratio", "of one's", "kept", "max/mean",
                 "delay ms", "ttft ms"):  # fmt: skip
        grid.add_column(name, justify="right")
    for each in results:
        delay = "-" if each.delay_ms is None else "{:.1f} / {:.1f}".format(*each.delay_ms)
        grid.add_row(
            str(each.routers),
            str(each.workers),
            "on" if each.gossip else "off",
            str(each.requests),
            str(each.failed),
            f"{each.hit_ratio:.3f}",
            f"{each.hit_ratio / results[0].hit_ratio:.3f}",
            f"{each.kept:.3f}",
            f"{each.max_to_mean:.2f}",
            delay,
            "{:.0f} / {:.0f}".format(*each.ttft_ms),
        )
    return grid


async def _all(arms: Sequence[Arm], plan: Plan) -> list[Result]:
    workload = chat_workload(plan.seed, plan.shape)
    results = []
    for arm in arms:
        print(f"{arm.routers} routers of {arm.workers}, gossip {'on' if arm.gossip else 'off'} ...", flush=True)
        results.append(await play(arm, plan, workload))
    return results


def multirouter(
    routers: Annotated[str, typer.Option(help="How many, one arm pair each.")] = "1,2,4,8",
    workers: Annotated[int, typer.Option(min=1, help="Of each router; 1 adds an arm of one router with two.")] = 1,
    sessions: Annotated[int, typer.Option(min=1, help="Chats at a time, five to four preambles.")] = 120,
    turns: Annotated[int, typer.Option(min=2, help="Of each chat, one in some 1.5 s.")] = 12,
    kill_redis: Annotated[bool, typer.Option("--kill-redis", help="kill -9, and back after 10 s.")] = False,
    rolling: Annotated[bool, typer.Option("--rolling", help="Replace one router after the other.")] = False,
    off: Annotated[bool, typer.Option(help="Also without gossip.")] = True,
    out: Annotated[Path | None, typer.Option("--json", dir_okay=False, help="Write the table to this file.")] = None,
    seed: Annotated[int, typer.Option(help="Of the chats.")] = 0,
) -> None:
    """The same chats through more and more routers."""
    shape = ChatShape(
        preambles=4 * sessions // 5, preamble_tokens=3_000, sessions=sessions, turns=turns, think_s=(0.5, 1.5)
    )
    plan = Plan(shape, seed, kill=kill_redis, rolling=rolling)
    counts = [(int(count), workers) for count in routers.split(",")]
    if workers == 1:
        counts.append((1, 2))
    arms = [Arm(count, each, on) for count, each in counts for on in ((True, False) if off and count > 1 else (True,))]
    try:
        results = run_until_signal(_all(arms, plan))
    except Interrupted as stopped:
        raise typer.Exit(128 + stopped.number) from None
    except (ProcessError, OSError) as error:
        print(f"multirouter: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    if out is not None:
        out.write_bytes(msgspec.json.format(msgspec.json.encode([asdict(each) for each in results]), indent=2))
    console = Console()
    Console(width=None if console.is_terminal else WIDTH).print(table(results))
    if any(each.failed for each in results):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(multirouter)
