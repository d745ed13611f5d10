"""`python -m loadtests.snapshot`: what does a router that joins a large fleet read, how soon, and does it decide alike?

Two routers over a real Redis (multirouter_bed.py) come to believe 10,000 prefixes resident on 100 replicas, 1.2 holders
each, through their workers' own leases and gossip. Then a third one starts. The figures, each with its goal:

bytes        of all that is in Redis for who joins: under 2 MB
join         seconds from the beginning of its start until its worker serves and believes all of it: under 1 s
alike        of all prefixes, each asked for with a question of its own, the share that the new router sends where both
             others do: 95 %

The third router's start is measured whole: settings read, Redis spoken to, the snapshot read, checked and passed to a
worker. What is left out is what a process needs to come up, and probes: replicas are well as they are. No request is
under way meanwhile, so that load does not blur what is asked. Exit code 1 when a goal is missed.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from time import monotonic, process_time
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from loadtests.answer import request_body
from loadtests.fleet import MODEL
from loadtests.multirouter_bed import TOKENS, Replicas, Router, Spec, router
from loadtests.processes import Interrupted, ProcessError, run_until_signal
from loadtests.redisserver import RedisServer, redis_server
from loadtests.workloads import BYTES_PER_TOKEN, Message, pseudo_text
from replica.profiles import PROFILES
from router.core.types import Ask, Outcome, ReplicaId, Route
from router.proxy.openai import endpoint

CHAT = endpoint("/v1/chat/completions")
PROFILE = "llama3-70b-4xa100"
MOST_BYTES, MOST_SECONDS, LEAST_ALIKE = 2_000_000, 1.0, 0.95
PACE = 20
"""Prefixes placed between two turns of the loop, so that news is told as it comes and no queue overflows."""

SETTLE_S, LOOK_S = 60.0, 0.2
HASH_BYTES = 8
WIDTH = 120


@dataclass(frozen=True, slots=True)
class Plan:
    """How many prefixes of how many tokens, on how many replicas, how many holders each on the mean (1 to 2)."""

    prefixes: int
    tokens: int
    replicas: int
    holders: float
    seed: int

    @property
    def blocks(self) -> int:
        """Of each replica's cache: twice what it is given on the mean, so that nothing is evicted."""
        return round(2 * self.prefixes * self.holders * (self.tokens / TOKENS + 1) / self.replicas)


@dataclass(frozen=True, slots=True)
class Found:
    """The figures. `hashes` are those that the new worker believes, `held` blocks that a peer's worker has in its
    index, `with_holder` the share of prefixes that the new router sends to a replica that a peer believes a holder."""

    prefixes: int
    replicas: int
    held: int
    hashes: int
    bytes: int
    join_s: float
    join_cpu_s: float
    alike: float
    with_holder: float

    @property
    def missed(self) -> list[str]:
        """Goals that were not reached."""
        goals = {
            f"bytes < {MOST_BYTES:,}": self.bytes < MOST_BYTES,
            f"join < {MOST_SECONDS:g} s": self.join_s < MOST_SECONDS,
            f"alike >= {LEAST_ALIKE:.0%}": self.alike >= LEAST_ALIKE,
        }
        return [name for name, reached in goals.items() if not reached]


async def prefixes(plan: Plan) -> AsyncIterator[Message]:
    """Seeded texts; no two begin alike."""
    rng = Random(plan.seed)
    for number in range(plan.prefixes):
        if number % PACE == 0:
            await asyncio.sleep(0)
        yield Message("system", (f"{number} {pseudo_text(rng, round(plan.tokens * BYTES_PER_TOKEN))}",))


def asked(one: Router, system: Message, question: str) -> Ask:
    """A request as a worker reads it."""
    body = request_body(MODEL, (system, Message("user", (question,))), 20)
    return one.workers[0].proxy.asker.read(CHAT, body).ask


async def measure(plan: Plan) -> Found:
    """All of it, on a Redis of its own."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(redis_server())
        spec, replicas = Spec(1, server), Replicas(plan.replicas, plan.blocks, PROFILE)
        peers = [await stack.enter_async_context(router(spec, replicas)) for _ in range(2)]
        texts = [text async for text in prefixes(plan)]
        await place(plan, peers, texts)
        stored = await settled(server, peers)
        began, cpu = monotonic(), process_time()
        new = await stack.enter_async_context(router(spec, replicas))
        hashes = await recalled(new, peers)
        join_s, join_cpu_s = monotonic() - began, process_time() - cpu
        same = await compare(new, peers, texts)
        return Found(
            plan.prefixes,
            plan.replicas,
            sum(peers[0].workers[0].fleet.residency.held(name) for name in replicas.drivers),
            hashes,
            stored,
            join_s,
            join_cpu_s,
            sum(alike for alike, _ in same) / len(same),
            sum(holds for _, holds in same) / len(same),
        )


async def place(plan: Plan, peers: list[Router], texts: list[Message]) -> None:
    """Have each prefix computed where a router sends it, and some a second time elsewhere; the routers take turns."""
    rng = Random(plan.seed)
    names = [each.id for each in peers[0].workers[0].fleet.replicas]
    for number, text in enumerate(texts):
        one = peers[number % len(peers)]
        first = send(one, asked(one, text, "first"), rng)
        if rng.random() < plan.holders - 1:
            others = [name for name in names if name != first]
            send(one, asked(one, text, "first")._replace(only=rng.choice(others)), rng)
        if number % PACE == 0:
            await asyncio.sleep(0.002)


def send(one: Router, ask: Ask, rng: Random) -> ReplicaId:
    """Route, lease and finish a request that began as long ago as its replica needs to compute it, so that no router
    learns of replicas that take no time. Raises ProcessError for one that nobody takes: nothing here is ever full."""
    fleet, now = one.workers[0].fleet, monotonic()
    route = fleet.route(ask, now, rng)
    if not isinstance(route, Route):
        raise ProcessError(f"no replica takes a request: {route}")
    computed = max(1, route.tokens - route.cached) / PROFILES[PROFILE].prefill_tokens_per_second
    lease = fleet.lease(route, ask, now - computed)
    lease.first_token(now)
    lease.finish(Outcome.OK, None, now)
    return route.replica


async def settled(server: RedisServer, peers: list[Router]) -> int:
    """Bytes in Redis, once both routers believe the same, and all of it is there."""
    began = monotonic()
    while True:
        async with server.client() as client:
            stored = sum([await client.strlen(key) for key in await client.keys("homing:*:holds")])
        hashes = believed(peers[0])
        told = [hashes, *(summarised(each) for each in peers)]
        if beliefs(peers[0]) == beliefs(peers[1]) and len(set(told)) == 1 and stored >= HASH_BYTES * hashes:
            return stored
        if monotonic() - began > SETTLE_S:
            raise ProcessError("the routers have not come to agree in a minute")
        await asyncio.sleep(LOOK_S)


def beliefs(one: Router) -> dict[ReplicaId, int]:
    """Blocks in its worker's index, by replica."""
    fleet = one.workers[0].fleet
    return {each.id: fleet.residency.held(each.id) for each in fleet.replicas}


async def recalled(new: Router, peers: list[Router]) -> int:
    """Hashes that the new worker believes, once they are as many as a peer's supervisor has of its own."""
    told, began = summarised(peers[0]), monotonic()
    while (known := believed(new)) < told:
        if monotonic() - began > SETTLE_S:
            raise ProcessError(f"the new router knows {known} of {told} hashes after a minute")
        await asyncio.sleep(0.02)
    return known


def summarised(one: Router) -> int:
    """Hashes that its supervisor keeps for who joins."""
    return sum(len(summary.hashes) for summary in one.crew.snapshot.summaries.values()) // HASH_BYTES


def believed(one: Router) -> int:
    """Hashes in which its worker would tell what it believes."""
    fleet = one.workers[0].fleet
    return sum(len(fleet.snapshots.summary(each.id).hashes) for each in fleet.replicas)


async def compare(new: Router, peers: list[Router], texts: list[Message]) -> list[tuple[bool, bool]]:
    """For each prefix, with a new question: whether the new router sends it where the others do; whether to one that a
    peer believes a holder."""
    found = []
    for number, text in enumerate(texts):
        ask = asked(new, text, "another question")
        ours, *theirs = [each.workers[0].fleet.explain(ask, monotonic(), Random(0)) for each in (new, *peers)]
        home = ours.decision.replica if isinstance(ours.decision, Route) else None
        same = all(isinstance(each.decision, Route) and each.decision.replica == home for each in theirs)
        found.append((same, home in {each.replica for each in theirs[0].candidates if each.cached}))
        if number % PACE == 0:
            await asyncio.sleep(0)  # Heartbeats are due meanwhile.
    return found


def table(found: Found) -> Table:
    """For people."""
    grid = Table()
    for name in (
        "prefixes",
        "replicas",
        "blocks held",
        "hashes",
        "bytes",
        "join s",
        "its CPU s",
        "alike",
        "to a holder",
    ):
        grid.add_column(name, justify="right")
    counts = (found.prefixes, found.replicas, found.held, found.hashes, found.bytes)
    shares = (f"{found.join_s:.2f}", f"{found.join_cpu_s:.2f}", f"{found.alike:.1%}", f"{found.with_holder:.1%}")
    grid.add_row(*(f"{count:,}" for count in counts), *shares)
    return grid


def snapshot(
    count: Annotated[int, typer.Option("--prefixes", min=1, help="How many.")] = 10_000,
    tokens: Annotated[int, typer.Option(min=128, help="Of each.")] = 3_000,
    replicas: Annotated[int, typer.Option(min=2, help="How many.")] = 100,
    holders: Annotated[float, typer.Option(min=1.0, max=2.0, help="Of each prefix, on the mean.")] = 1.2,
    out: Annotated[Path | None, typer.Option("--json", dir_okay=False, help="Write the figures to this file.")] = None,
    seed: Annotated[int, typer.Option(help="Of the prefixes.")] = 0,
) -> None:
    """How much a router that joins reads, how soon it has, and whether it then decides as the others do."""
    try:
        found = run_until_signal(measure(Plan(count, tokens, replicas, holders, seed)))
    except Interrupted as stopped:
        raise typer.Exit(128 + stopped.number) from None
    except (ProcessError, OSError) as error:
        print(f"snapshot: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    if out is not None:
        out.write_bytes(msgspec.json.format(msgspec.json.encode(asdict(found)), indent=2))
    console = Console()
    Console(width=None if console.is_terminal else WIDTH).print(table(found))
    if found.missed:
        print(f"missed: {', '.join(found.missed)}", file=sys.stderr)
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(snapshot)
