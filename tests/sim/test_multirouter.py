"""Several routers in one process over engines and a Redis: what the measurement counts, at a small scale."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from loadtests.multirouter import Arm, Plan, Result, Seen, judge, play, table
from loadtests.multirouter_bed import Replicas, Spec, router
from loadtests.redisserver import redis_server
from loadtests.workloads import ChatShape, chat_workload
from tests.rig import until

SMALL = ChatShape(preambles=6, preamble_tokens=1_000, sessions=8, turns=3, think_s=(0.05, 0.2), stagger_s=0.5)
PLAN = Plan(SMALL, 0, replicas=4, blocks=1000, profile="llama3-8b-h100")


async def test_routers_of_the_bed_know_one_another_and_leave_nothing_behind() -> None:
    replicas = Replicas(2, 100, "llama3-8b-h100")
    before = asyncio.all_tasks()
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(redis_server())
        spec = Spec(2, server)
        routers = [await stack.enter_async_context(router(spec, replicas)) for _ in range(2)]
        await until(lambda: all(len(worker.fleet.peers) == 2 for one in routers for worker in one.workers), 20.0)
        assert len({one.name for one in routers}) == 2
    await until(lambda: asyncio.all_tasks() == before, 20.0)


@pytest.mark.parametrize("gossip", [True, False])
async def test_an_arm_asks_everything_and_tells_what_the_engines_had(gossip: bool) -> None:
    result = await play(Arm(2, 1, gossip), PLAN, chat_workload(0, SMALL))
    assert (result.requests, result.failed) == (24, 0)
    assert 0.3 < result.hit_ratio < 1
    assert result.max_to_mean >= 1
    assert (result.delay_ms is not None) == gossip


async def test_every_router_can_be_replaced_amid_the_work() -> None:
    result = await play(
        Arm(2, 1, True), Plan(SMALL, 0, 4, 1000, "llama3-8b-h100", rolling=True), chat_workload(0, SMALL)
    )
    assert (result.requests, result.failed) == (24, 0)


def test_the_figures_are_those_of_the_counts() -> None:
    seen = Seen(
        100, 50, 10, 1, 8, 6, [0.1, 0.2, 0.3], [0.01, 0.02], {"r1": 30, "r2": 10}
    )  # fmt: skip
    result = judge(Arm(2, 1, True), seen)
    assert result == Result(2, 1, True, 10, 1, 0.5, 0.75, 1.5, (15.0, 10.0), (200.0, 200.0))
    assert table([result]).row_count == 1
    assert judge(Arm(1, 1, False), Seen(ttfts=[0.1], in_flight={"r1": 0})).max_to_mean == 1.0
