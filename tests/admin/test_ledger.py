"""The locality ledger against the truth, on replicas whose caches are known (UX R24).

Prompts are token ids, so that a router's block of 512 bytes is 128 tokens, and eight blocks of the engine, exactly.
Truth is worked out from the prompts themselves: what two of them have in common, and which replica got which.
"""

from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from itertools import takewhile
from random import Random

import pytest

from replica.server import SimulatedReplica
from tests.admin.routers import Router, replicas_of, router_over

BLOCK = 128
ENGINE_BLOCK = 16

Tokens = Sequence[int]


@dataclass
class Ledger:
    """The four counters, in prompt tokens."""

    prompt: float = 0
    reachable: float = 0
    predicted: float = 0
    reported: float = 0

    @property
    def gaps(self) -> tuple[float, float, float]:
        """Workload, routing, belief."""
        return self.prompt - self.reachable, self.reachable - self.predicted, self.predicted - self.reported


class Truth:
    """What each replica was sent, and so what it holds: nothing is evicted in a cache this large."""

    def __init__(self) -> None:
        self.held: dict[str, list[Tokens]] = {}
        self.ledger = Ledger()

    def sent(self, replica: str, prompt: Tokens) -> None:
        """Count a prompt that `replica` got. An engine computes the last token of a prompt in any case."""
        here = self._common(replica, prompt)
        self.ledger.prompt += len(prompt)
        self.ledger.reachable += max([self._common(each, prompt) for each in self.held], default=0) // BLOCK * BLOCK
        self.ledger.predicted += here // BLOCK * BLOCK
        self.ledger.reported += min(here, len(prompt) - 1) // ENGINE_BLOCK * ENGINE_BLOCK
        self.held.setdefault(replica, []).append(prompt)

    def _common(self, replica: str, prompt: Tokens) -> int:
        pairs = (zip(other, prompt, strict=False) for other in self.held.get(replica, ()))
        return max((sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], each)) for each in pairs), default=0)


class Prompts:
    """Token ids by the block; no two fresh ones are alike."""

    def __init__(self) -> None:
        self._next = 0

    def fresh(self, blocks: float) -> list[int]:
        first, self._next = self._next, self._next + int(blocks * BLOCK)
        return list(range(first, self._next))


async def generated(router: Router, prompts: Iterable[Tokens], truth: Truth | None = None) -> None:
    """Send prompts one after the other."""
    for prompt in prompts:
        body = {"model": "sim", "prompt": prompt, "max_tokens": 2}
        async with router.clients.post("/v1/completions", json=body) as response:
            assert response.status == 200, await response.text()
            await response.read()
            if truth is not None:
                truth.sent(response.headers["x-homing-replica"], prompt)


async def ledger_of(router: Router) -> Ledger:
    """The four counters as scraped."""
    names = ("", "_reachable", "_predicted_cached", "_reported_cached")
    return Ledger(*await router.totals(*[f"homing_prompt_tokens{name}_total" for name in names]))


@pytest.mark.parametrize("policy", ["prefix_affinity", "round_robin"])
async def test_the_four_counters_are_the_truth_over_block_aligned_prompts(policy: str) -> None:
    rng, prompts, truth = Random(24), Prompts(), Truth()
    preambles = [prompts.fresh(blocks) for blocks in (2, 3, 5, 8)]
    work = [[*rng.choice(preambles), *prompts.fresh(rng.randint(1, 3))] for _ in range(40)]
    async with replicas_of(3) as replicas, router_over(replicas, routing={"policy": policy}) as router:
        await generated(router, work, truth)
        assert await ledger_of(router) == truth.ledger
        by_replica = await router.total("homing_replica_prompt_tokens_reported_cached_total")
        assert by_replica == truth.ledger.reported > 0
        assert await router.total("homing_prompt_tokens_unreported_total") == 0


async def test_the_four_counters_are_within_a_block_of_the_truth_over_any_prompts() -> None:
    rng, prompts, truth = Random(25), Prompts(), Truth()
    preambles = [prompts.fresh(blocks) for blocks in (0.4, 1.7, 2.9, 6.3)]
    work = [[*rng.choice(preambles), *prompts.fresh(rng.uniform(0.01, 2))] for _ in range(20)]
    work += work[:10]  # Whole repeats: the engine computes a last block again that the router believes cached.
    async with replicas_of(3) as replicas, router_over(replicas) as router:
        before = astuple(Ledger())
        for prompt in work:
            await generated(router, [prompt], truth)
            counted = await ledger_of(router)
            assert counted.prompt == truth.ledger.prompt
            off = [ours - true for ours, true in zip(astuple(counted), astuple(truth.ledger), strict=True)]
            assert all(abs(now - then) <= BLOCK for now, then in zip(off, before, strict=True))
            before = tuple(off)


def pairs(prompts: Prompts, count: int) -> list[tuple[Tokens, Tokens]]:
    """Pairs of prompts that share four blocks, and have one each of their own."""
    shared = [prompts.fresh(4) for _ in range(count)]
    return [([*head, *prompts.fresh(1)], [*head, *prompts.fresh(1)]) for head in shared]


async def gaps_of(
    replicas: Sequence[SimulatedReplica], policy: str = "prefix_affinity", reuses: bool = True, evicts: bool = False
) -> tuple[float, float, float]:
    """Ten pairs through a new router: the gaps. `reuses` off is a workload that shares nothing; `evicts` empties every
    cache before the second of a pair."""
    prompts = Prompts()
    work = pairs(prompts, 10) if reuses else [(prompts.fresh(5), prompts.fresh(5)) for _ in range(10)]
    async with router_over(replicas, routing={"policy": policy}) as router:
        for first, second in work:
            await generated(router, [first])
            if evicts:
                for replica in replicas:
                    replica.evict()
            await generated(router, [second])
        ledger = await ledger_of(router)
    assert ledger.prompt == 10 * 2 * 5 * BLOCK
    return ledger.gaps


SHARED = 10 * 4 * BLOCK
ALL = 10 * 2 * 5 * BLOCK


async def test_a_fleet_without_a_fault_has_only_the_gap_of_what_is_new() -> None:
    async with replicas_of(2) as replicas:
        assert await gaps_of(replicas) == (ALL - SHARED, 0, 0)


async def test_a_workload_without_reuse_grows_the_first_gap_only() -> None:
    async with replicas_of(2) as replicas:
        assert await gaps_of(replicas, reuses=False) == (ALL, 0, 0)


async def test_a_wrong_pick_grows_the_second_gap_only() -> None:
    async with replicas_of(2) as replicas:
        assert await gaps_of(replicas, policy="round_robin") == (ALL - SHARED, SHARED, 0)


async def test_an_eviction_grows_the_third_gap_only() -> None:
    async with replicas_of(2) as replicas:
        assert await gaps_of(replicas, evicts=True) == (ALL - SHARED, 0, SHARED)


async def test_an_engine_that_caches_nothing_grows_the_third_gap_only() -> None:
    async with replicas_of(2, prefix_caching=False) as replicas:
        assert await gaps_of(replicas) == (ALL - SHARED, 0, SHARED)


async def test_an_engine_that_does_not_tell_grows_no_gap_but_the_count_of_what_it_left_unsaid() -> None:
    async with replicas_of(1, prompt_tokens_details=False) as replicas, router_over(replicas) as router:
        for first, second in pairs(Prompts(), 2):
            await generated(router, [first, second])
        ledger = await ledger_of(router)
        assert (ledger.prompt, ledger.predicted, ledger.reported) == (20 * BLOCK, 8 * BLOCK, 0)
        assert await router.total("homing_prompt_tokens_unreported_total") == 20 * BLOCK
        assert await router.total("homing_prompt_tokens_predicted_unreported_total") == 8 * BLOCK
