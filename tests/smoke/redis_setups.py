"""Routers over a real Sentinel, through a failover, and over a real Cluster. Half a minute: `make smoke`."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

from loadtests.processes import running
from loadtests.redisserver import RedisServer
from tests.e2e.supervised import eventually
from tests.gossip.test_redis import WITHIN, acquainted, held, link, routers
from tests.rig import until

SLOTS = 16_384


async def up(stack: AsyncExitStack, *servers: RedisServer) -> None:
    """Start these, until the block's end."""
    await stack.enter_async_context(running([server.process for server in servers], 1.0))
    for server in servers:
        await server.ready()


async def test_a_sentinels_failover_is_followed(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        master = RedisServer(tmp_path)
        await up(stack, master)
        copy = RedisServer(tmp_path, "--replicaof", "127.0.0.1", str(master.port))
        config = tmp_path / "sentinel.conf"
        config.write_text(
            f"sentinel monitor main 127.0.0.1 {master.port} 1\n"
            "sentinel down-after-milliseconds main 1000\nsentinel failover-timeout main 3000\n"
        )
        sentinel = RedisServer(tmp_path, config=config)
        await up(stack, copy, sentinel)
        fleet, _ = await stack.enter_async_context(routers(tmp_path, master))
        url = f"redis+sentinel://127.0.0.1:{sentinel.port}/main"
        first, second = [await fleet.add(name, url=url) for name in "ab"]
        await acquainted(first, second)
        async with sentinel.client() as client:

            async def knows_the_copy() -> bool:
                return bool(await client.sentinel_slaves("main"))

            await eventually(knows_the_copy)
        await master.kill()
        await until(lambda: not link(first).up and not link(second).up, WITHIN)
        assert (await first.chat("during the failover " * 100)).status == 200
        await until(lambda: link(first).up and link(second).up, 2 * WITHIN)
        await acquainted(first, second)
        await until(lambda: held(first) == held(second), WITHIN)


async def test_a_cluster_carries_news_and_spreads_what_is_kept(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        nodes = [
            RedisServer(tmp_path, "--cluster-enabled", "yes", "--cluster-config-file", f"nodes-{number}.conf")
            for number in range(3)
        ]
        await up(stack, *nodes)
        await clustered(nodes)
        fleet, _ = await stack.enter_async_context(routers(tmp_path, nodes[0], 4))
        url = "redis+cluster://127.0.0.1:1," + ",".join(f"127.0.0.1:{node.port}" for node in nodes)
        first, second = [await fleet.add(name, url=url) for name in "ab"]
        await acquainted(first, second)
        prompts = [f"{number} " * 900 for number in range(20)]
        sent = [(await first.chat(prompt)).headers["x-homing-replica"] for prompt in prompts]
        await until(lambda: held(first) == held(second), WITHIN)
        third = await fleet.add("c", url=url)
        await asyncio.sleep(6.0)  # Every part has been written anew meanwhile.
        fourth = await fleet.add("d", url=url)
        assert [(await fourth.chat(prompt)).headers["x-homing-replica"] for prompt in prompts] == sent
        assert link(third).up
        sizes = []
        for node in nodes:
            async with node.client() as client:
                sizes.append(await client.dbsize())
        assert min(sizes) > 0, sizes


async def clustered(nodes: list[RedisServer]) -> None:
    """Make them a cluster, each with a third of the slots."""
    share = SLOTS // len(nodes) + 1
    for number, node in enumerate(nodes):
        async with node.client() as client:
            await client.execute_command("CLUSTER ADDSLOTS", *range(number * share, min(SLOTS, (number + 1) * share)))  # type: ignore[no-untyped-call]
            await client.execute_command("CLUSTER MEET", "127.0.0.1", nodes[0].port)  # type: ignore[no-untyped-call]

    async def are_one() -> bool:
        states = []
        for node in nodes:
            async with node.client() as client:
                info = await client.execute_command("CLUSTER INFO")  # type: ignore[no-untyped-call]
                states.append("cluster_state:ok" in str(info) or dict(info or {}).get("cluster_state") == "ok")
        return all(states)

    await eventually(are_one)
