"""Several routers in one process over engines and a Redis: what the measurement counts, at a small scale."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest

from loadtests import multirouter_run, snapshot
from loadtests.multirouter import Result, arms, judge, struck, table, verdicts
from loadtests.multirouter_bed import Replicas, Spec, router
from loadtests.multirouter_run import Arm, Plan, Seen, play
from loadtests.redisserver import redis_server
from loadtests.snapshot import measure
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
    arm = Arm(2, 1, gossip)
    result = judge(arm, await play(arm, PLAN, chat_workload(0, SMALL)))
    assert (result.requests, result.failed) == (24, 0)
    assert 0.3 < result.hit_ratio < 1
    assert result.max_to_mean >= 1
    assert (result.delay_ms is not None) == gossip


async def test_the_floor_spreads_and_does_not_keep() -> None:
    floor = Arm(1, 1, False, "least_requests")
    spread = judge(floor, await play(floor, PLAN, chat_workload(0, SMALL)))
    assert spread.kept < 0.9
    assert spread.policy == "least_requests"


async def test_every_router_can_be_replaced_amid_the_work() -> None:
    arm = Arm(2, 1, True, rolling=True)
    result = judge(arm, await play(arm, PLAN, chat_workload(0, SMALL)))
    assert (result.requests, result.failed) == (24, 0)
    assert result.rolled is not None
    assert len(verdicts([result])) == 2


async def test_routers_agree_again_when_redis_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multirouter_run, "DOWN_S", 1.0)
    arm = Arm(2, 1, True, kill=True)
    seen = await play(arm, PLAN, chat_workload(0, SMALL))
    assert (seen.requests, seen.failed) == (24, 0)
    assert seen.agreed_s is not None
    assert seen.gap[1] - seen.gap[0] == 1.0


def test_the_figures_are_those_of_the_counts() -> None:
    turns = [(1.0, False), (2.0, False), (5.0, True), (6.0, True)]
    ttfts = [(1.0, 0.1), (4.0, 0.2), (5.0, 0.3)]
    seen = Seen(100, 50, 10, 1, turns, ttfts, [0.01, 0.02], {"r1": 30, "r2": 10}, (4.0, 5.0), 1.5, 4.5)
    result = judge(Arm(2, 1, True), seen)
    expected = Result(
        2,
        1,
        True,
        "prefix_affinity",
        10,
        1,
        0.5,
        0.5,
        1.5,
        (15.0, 10.0),
        (200.0, 200.0),
        False,
        (200.0, 200.0),
        1.5,
        1.0,
    )
    assert result == expected
    assert table([result]).row_count == 1
    assert judge(Arm(1, 1, False), Seen(ttfts=[(0.0, 0.1)], in_flight={"r1": 0})).max_to_mean == 1.0


def test_a_gap_is_held_against_the_run_beside_it_and_the_median_pair_decides() -> None:
    seen = Seen(ttfts=[(0.5, 0.1)], in_flight={"r1": 1}, gap=(0.0, 1.0))
    alone = judge(Arm(2, 1, True), seen)
    slower = [replace(alone, killed=True, gap_ttft_ms=(ms, 2 * ms), agreed_s=2.9) for ms in (100.0, 109.0, 400.0)]
    results = [each for killed in slower for each in (alone, killed)]
    told = verdicts(results)
    assert [text for reached, text in told if not reached] == [
        "2 routers, Redis gone: ttft p99 2.18 of that beside it (200 / 100 ms, 218 / 100 ms, 800 / 100 ms)"
    ]
    assert "ttft p50 1.09" in told[-2][1]
    assert not verdicts([replace(alone, failed=1)])[0][0]
    assert not verdicts([replace(alone, rolled=0.94)])[1][0]
    assert not verdicts([replace(alone, agreed_s=3.1)])[1][0]


def test_the_arms_end_with_the_floor_and_pairs_take_turns() -> None:
    assert [(arm.routers, arm.workers, arm.gossip) for arm in arms([1, 2], 1, True)] == [
        (1, 1, True), (2, 1, True), (2, 1, False), (1, 2, True), (1, 1, False),
    ]  # fmt: skip
    assert [arm.kill for arm in struck([4], 1, kill=True, rolling=False, pairs=2)] == [False, True, False, True]
    assert [arm.rolling for arm in struck([2, 4], 1, kill=False, rolling=True, pairs=2)] == [True, True]


async def test_a_router_that_joins_reads_the_snapshot_and_decides_as_its_peers() -> None:
    found = await measure(snapshot.Plan(60, 1_000, 6, 1.2, 0))
    assert (found.prefixes, found.replicas) == (60, 6)
    assert found.hashes >= 60
    assert found.bytes > 8 * found.hashes
    assert (found.alike, found.with_holder) == (1.0, 1.0)
    assert replace(found, bytes=2_000_000, join_s=1.0, alike=0.9).missed == [
        "bytes < 2,000,000", "join < 1 s", "alike >= 95%",
    ]  # fmt: skip
