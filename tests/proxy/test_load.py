"""What is counted of a request from its dispatch on, and that the next one sees it: in one turn of the loop, too."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import repeat

import pytest

from replica.server import SimulatedReplica
from replica.settings import ReplicaSettings
from tests.browser import asked, chat, connected, get, post
from tests.rig import Rig, routing, scripted, until
from tests.scripted import ScriptedReplica, closing, hang, whole

BIG = "word " * 25_000
"""A prompt of 31,000 tokens or so: two seconds of prefill, which no slack outweighs."""


@asynccontextmanager
async def under_way(
    rig: Rig, replicas: Sequence[ScriptedReplica], requests: Sequence[bytes]
) -> AsyncIterator[list[int]]:
    """These requests, sent at once; how many each replica has when all have arrived."""
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connected(rig)) for _ in requests]
        await asyncio.gather(*(client.send(request) for client, request in zip(clients, requests, strict=True)))
        await until(lambda: sum(len(replica.calls) for replica in replicas) == len(requests))
        yield [len(replica.calls) for replica in replicas]


async def test_a_request_counts_from_its_dispatch_and_not_from_its_answer() -> None:
    async with scripted(hang, hang) as (rig, replicas):
        requests = [chat(f"{number} {BIG}", stream=True) for number in range(20)]
        async with under_way(rig, replicas, requests) as counts:
            assert sorted(counts) in ([9, 11], [10, 10])


async def test_alike_requests_in_one_turn_do_not_all_see_the_same_idle_replica() -> None:
    async with (
        scripted(*repeat(hang, 5), routing={"policy": "least_requests"}) as (rig, replicas),
        under_way(rig, replicas, [chat()] * 50) as counts,
    ):
        assert counts == [10] * 5


async def test_what_an_engine_told_is_added_to_what_was_sent_since() -> None:
    """One engine says 0, the other 1, and between two samples all eight would go to the first."""
    async with scripted(hang, hang) as (rig, [one, other]):
        for replica, running in ((one, 0), (other, 1)):
            replica.metrics = f"vllm:num_requests_running {running}\nvllm:num_requests_waiting 0\n"
        await until(lambda: rig.worker.fleet.replica("r2").sample)
        requests = [chat(f"{number} {BIG}", stream=True) for number in range(8)]
        async with under_way(rig, [one, other], requests) as counts:
            assert min(counts) >= 3


ENDPOINTS = {
    "chat": chat(),
    "chat stream": chat(stream=True),
    "completions": post("/v1/completions", {"model": "sim", "prompt": "hello"}),
    "embeddings": post("/v1/embeddings", {"model": "sim", "input": "hello"}),
    "responses": post("/v1/responses", {"model": "sim", "input": "hello"}),
    "no json": post("/v1/chat/completions", b"{"),
    "other": get("/v1/anything"),
}


@pytest.mark.parametrize("request_", ENDPOINTS.values(), ids=ENDPOINTS)
async def test_every_kind_of_request_is_counted_while_it_is_under_way(request_: bytes) -> None:
    async with scripted(hang) as (rig, [replica]):
        async with under_way(rig, [replica], [request_] * 3):
            assert rig.worker.fleet.replica("r1").requests == 3
        await rig.quiet()


async def test_fifty_resets_before_an_answer_leave_every_count_at_zero() -> None:
    async with scripted(closing(hard=True), closing(hard=True)) as (rig, _):
        answers = await asyncio.gather(*(asked(rig, chat(f"{number} {BIG}")) for number in range(50)))
        assert {answer.status for answer in answers} == {502}
        await rig.quiet()


async def test_a_replica_that_closes_idle_connections_early_costs_no_request() -> None:
    """0.2 s instead of 5: bursts come just when its connections end."""
    settings = ReplicaSettings(speed=200, keepalive_seconds=0.2)
    async with (
        SimulatedReplica(settings) as one,
        SimulatedReplica(settings) as other,
        routing({"r1": one, "r2": other}) as rig,
    ):
        statuses: Counter[int] = Counter()
        for burst in range(12):
            answers = await asyncio.gather(*(asked(rig, chat(f"{burst} {n}", max_tokens=2)) for n in range(20)))
            statuses.update(answer.status for answer in answers)
            await asyncio.sleep(0.2 + burst % 4 * 0.001)
        assert statuses == {200: 240}


async def test_the_second_request_of_a_conversation_goes_where_the_first_one_went() -> None:
    async with scripted(*repeat(whole(), 4)) as (rig, _):
        for number in range(12):
            opening = f"conversation {number}: " + "about this and that " * 100
            homes = [(await asked(rig, chat(opening + "and so on " * turn * 60))).replica for turn in range(4)]
            assert len(set(homes)) == 1, number


async def test_two_routers_find_the_same_home_for_what_neither_has_seen() -> None:
    async with AsyncExitStack() as stack:
        replicas = [await stack.enter_async_context(ScriptedReplica(whole())) for _ in range(4)]
        members = {f"r{number}": replica for number, replica in enumerate(replicas)}
        one = await stack.enter_async_context(routing(members))
        other = await stack.enter_async_context(routing(members))
        prompts = [chat(f"{number} " * 600) for number in range(30)]
        homes = [[(await asked(router, prompt)).replica for prompt in prompts] for router in (one, other)]
        assert homes[0] == homes[1]
        assert len(set(homes[0])) == 4
