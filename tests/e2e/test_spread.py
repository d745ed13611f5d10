"""How work spreads over three replicas: cold prompts evenly, a hot one over as many as it takes."""

from collections import Counter
from contextlib import AsyncExitStack
from random import Random

from loadtests import client, hot_prefix
from loadtests.fleet import MODEL, fleet
from loadtests.workloads import pseudo_text
from replica.server import SimulatedReplica
from replica.settings import ReplicaSettings
from tests.browser import asked, chat
from tests.rig import routing


async def test_cold_prompts_one_after_another_spread_over_idle_replicas() -> None:
    rng = Random(3)
    async with AsyncExitStack() as stack:
        members = {
            f"r{number}": await stack.enter_async_context(SimulatedReplica(ReplicaSettings(speed=50)))
            for number in range(1, 4)
        }
        rig = await stack.enter_async_context(routing(members))
        served = Counter([(await asked(rig, chat(pseudo_text(rng, 4_000), max_tokens=1))).replica for _ in range(120)])
        assert set(served) == set(members)
        assert all(24 <= count <= 56 for count in served.values()), served


async def test_a_hot_prefix_is_served_by_several_replicas_and_fails_nobody() -> None:
    async with fleet(hot_prefix.SHAPE, "prefix_affinity") as built:
        target = client.Target(built.url, MODEL, timeout_s=60.0)
        records = await client.run(hot_prefix.workload(seed=1), target, on_record=lambda _: None)
        served = Counter(record.replica for record in records)
        assert [record.error for record in records if record.error] == []
        assert len(records) == hot_prefix.STREAMS == 120
        assert len(served) >= 2
        assert max(served.values()) / (len(records) / hot_prefix.SHAPE.n) <= 2.0, served
