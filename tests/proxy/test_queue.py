"""When every replica is at its limits: who waits, in which order they go on, what those are told who cannot wait."""

import asyncio
import math
from contextlib import AsyncExitStack
from itertools import repeat

import aiohttp
import pytest

from router.core.types import State
from tests.browser import Answer, Connection, asked, chat, connected
from tests.rig import Rig, scripted, until
from tests.scripted import Call, Script, ScriptedReplica, hang, whole

ONE_AT_A_TIME = {"max_concurrency": 1}
KV_LIMIT = {"max_kv_usage": 0.95}


def gauges(usage: float) -> str:
    return f"vllm:num_requests_running 0\nvllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc {usage}\n"


def gate() -> tuple[Script, asyncio.Event]:
    """A script whose first request ends when the event is set; all others end at once."""
    opened = asyncio.Event()

    async def script(call: Call) -> None:
        await opened.wait()
        await whole(call.body)(call)

    return script, opened


async def queued(rig: Rig, stack: AsyncExitStack, count: int, model: str = "sim") -> list[Connection]:
    """Clients whose requests wait, in their order."""
    clients = []
    before = rig.worker.waiting.depth(model)
    for number in range(1, count + 1):
        client = await stack.enter_async_context(connected(rig))
        await client.send(chat(f"number {number}", model=model))
        await until(lambda number=number: rig.worker.waiting.depth(model) == before + number)  # type: ignore[misc]
        clients.append(client)
    return clients


async def occupied(rig: Rig, stack: AsyncExitStack, replica: ScriptedReplica, model: str = "sim") -> Connection:
    client = await stack.enter_async_context(connected(rig))
    before = len(replica.calls)
    await client.send(chat(model=model))
    await until(lambda: len(replica.calls) > before)
    return client


async def test_requests_wait_for_a_place_and_go_on_in_their_order() -> None:
    script, opened = gate()
    async with scripted(script, routing=ONE_AT_A_TIME) as (rig, [replica]), AsyncExitStack() as stack:
        await occupied(rig, stack, replica)
        clients = await queued(rig, stack, 5)
        assert len(replica.calls) == 1
        opened.set()
        for client in clients:
            assert (await client.answer()).status == 200
        served = [call.body.decode() for call in replica.calls[1:]]
        assert [f"number {number}" in body for number, body in enumerate(served, 1)] == [True] * 5
        assert all(record.stages.queue for record in rig.records[1:])


async def test_a_newcomer_does_not_overtake_those_who_wait() -> None:
    """Also not into a place that became free a moment ago, by itself, when nobody who waits has looked again yet."""
    async with scripted(whole(), health={"interval": "60s"}) as (rig, [replica]), AsyncExitStack() as stack:
        member = rig.worker.fleet.replica("r1")
        member.full_until = math.inf
        [waiting] = await queued(rig, stack, 1)
        member.full_until = 0.0
        late = await asked(rig, chat("late"))
        assert (late.status, (await waiting.answer()).status) == (200, 200)
        assert ["number 1" in call.body.decode() for call in replica.calls] == [True, False]


async def test_a_full_queue_refuses_at_once() -> None:
    settings = ONE_AT_A_TIME | {"queue": {"max_requests": 2}}
    async with scripted(hang, routing=settings) as (rig, [replica]), AsyncExitStack() as stack:
        await occupied(rig, stack, replica)
        await queued(rig, stack, 2)
        answer = await asked(rig, chat())
        assert (answer.status, answer.code, rig.record.rejected) == (429, "queue_full", "queue_full")
        assert int(answer["retry-after"]) >= 1


async def test_a_request_that_has_waited_long_enough_is_refused() -> None:
    settings = ONE_AT_A_TIME | {"queue": {"max_seconds": 0.2}}
    async with scripted(hang, routing=settings) as (rig, [replica]), AsyncExitStack() as stack:
        await occupied(rig, stack, replica)
        answer = await asked(rig, chat())
        assert (answer.status, answer.code, rig.record.rejected) == (429, "queue_timeout", "queue_timeout")
        assert int(answer["retry-after"]) >= 1
        assert len(replica.calls) == 1


async def test_a_queue_of_nobody_refuses_at_once() -> None:
    settings = ONE_AT_A_TIME | {"queue": {"max_requests": 0}}
    async with scripted(hang, routing=settings) as (rig, [replica]), AsyncExitStack() as stack:
        await occupied(rig, stack, replica)
        assert (await asked(rig, chat())).code == "queue_full"


async def test_who_waits_goes_to_a_replica_that_gets_ready() -> None:
    async with scripted(hang, whole(), ready=False, routing=ONE_AT_A_TIME) as (rig, [busy, late]):
        late.health = repeat(503)
        await rig.ready("r1")
        async with AsyncExitStack() as stack:
            await occupied(rig, stack, busy)
            clients = await queued(rig, stack, 3)
            late.health = repeat(200)
            answers = [await client.answer() for client in clients]
            assert {(answer.status, answer.replica) for answer in answers} == {(200, "r2")}


async def test_who_waits_is_told_when_nobody_is_left() -> None:
    settings = {"routing": ONE_AT_A_TIME, "health": {"interval": "20ms"}}
    async with scripted(hang, **settings) as (rig, [replica]), AsyncExitStack() as stack:
        await occupied(rig, stack, replica)
        [client] = await queued(rig, stack, 1)
        replica.health = repeat(503)
        answer = await client.answer()
        assert (answer.status, answer.code) == (503, "no_replica")


async def test_a_queue_of_one_model_does_not_hold_up_another() -> None:
    replicas = ScriptedReplica(hang, ["busy"]), ScriptedReplica(whole(), ["free"])
    async with scripted(*replicas, routing=ONE_AT_A_TIME) as (rig, [busy, _]), AsyncExitStack() as stack:
        await occupied(rig, stack, busy, "busy")
        await queued(rig, stack, 1, "busy")
        assert (await asked(rig, chat(model="free"))).status == 200


# Limits.


async def served(rig: Rig, count: int) -> list[Answer]:
    return [await asked(rig, chat(f"{number} " * 1_000)) for number in range(count)]


async def test_replicas_whose_cache_is_full_get_nothing_while_another_has_room() -> None:
    async with scripted(*repeat(whole(), 4), routing={"spill": KV_LIMIT}, health={"interval": "50ms"}) as (
        rig,
        replicas,
    ):
        for replica in replicas[:3]:
            replica.metrics = gauges(0.99)
        replicas[3].metrics = gauges(0.5)
        members = rig.worker.fleet.replicas
        await until(lambda: all(member.sample is not None and member.sample.kv_usage for member in members))
        assert {answer.replica for answer in await served(rig, 12)} == {"r4"}
        async with aiohttp.ClientSession() as session, session.get(f"{rig.admin_url}/metrics") as response:
            lines = (await response.text()).splitlines()
        assert 'homing_limit_cuts_total{limit="max_kv_usage"} 36.0' in lines


async def test_when_all_are_over_a_limit_it_is_429_and_not_503() -> None:
    settings = {"queue": {"max_seconds": 0.2}, "spill": KV_LIMIT}
    async with scripted(whole(), whole(), routing=settings, health={"interval": "50ms"}) as (rig, replicas):
        for replica in replicas:
            replica.metrics = gauges(0.99)
        members = rig.worker.fleet.replicas
        await until(lambda: all(member.sample is not None and member.sample.kv_usage for member in members))
        answer = await asked(rig, chat())
        assert (answer.status, answer.code) == (429, "queue_timeout")
        for replica in replicas:
            replica.metrics = gauges(0.1)
        await until(lambda: all(member.sample and member.sample.kv_usage == 0.1 for member in members))
        assert (await asked(rig, chat())).status == 200


@pytest.mark.parametrize("limit", [1, 3])
async def test_a_limit_of_one_replica_holds_for_it_alone(limit: int) -> None:
    settings = {"members": {"r1": {"max_concurrency": limit}}, "routing": {"policy": "round_robin"}}
    async with scripted(hang, hang, **settings) as (rig, [small, large]), AsyncExitStack() as stack:
        for _ in range(10):
            client = await stack.enter_async_context(connected(rig))
            await client.send(chat())
        await until(lambda: len(small.calls) + len(large.calls) == 10)
        assert (len(small.calls), len(large.calls)) == (limit, 10 - limit)
        assert rig.state("r1") is State.READY
