"""Several arms on the same work: a fresh fleet per arm, one after the other, the same workload through each policy.

Nothing but the policy's name differs between arms: same replicas, same seed, same texts, same pacing. The records of
the arms become one report, with the ceiling (one infinite cache over the same prompts) beside them.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from loadtests import client
from loadtests.ceiling import ceiling_hit_ratio
from loadtests.fleet import MODEL, FleetShape, fleet
from loadtests.records import Record
from loadtests.report import Replicas, Report, Slo, causes, summarise
from loadtests.workloads import Workload

POLICIES = ("round_robin", "prefix_affinity")


class Progress(Protocol):
    """Where a comparison tells how far it is: a bar on a terminal, plain lines elsewhere."""

    def begin(self, policy: str) -> None:
        """An arm's fleet is being started."""

    def record(self, record: Record) -> None:
        """A request of the arm has ended."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The work and the fleet. `workload` is paced for `shape.speed` already; see `client.run` for the two bounds."""

    workload: Workload
    shape: FleetShape
    seed: int
    seconds: float | None
    timeout_s: float


async def compare(plan: Plan, progress: Progress, policies: Sequence[str] = POLICIES) -> tuple[Report, Counter[str]]:
    """The report and the failures by cause. Raises ProcessError when a fleet does not start."""
    shape = plan.shape
    slo = Slo().at_speed(shape.speed)
    arms, ceilings, failures = [], [], Counter[str]()
    for policy in policies:
        progress.begin(policy)
        records = await _arm(plan, policy, progress)
        arms.append(summarise(policy, records, shape.ids, slo))
        ceilings.append(ceiling_hit_ratio(records, shape))
        failures += causes(records)
    report = Report(
        trace_sha256=plan.workload.sha256(),
        seeds=[plan.seed],
        repeats=1,
        slo=slo,
        replicas=Replicas(shape.n, shape.profile, shape.blocks, shape.block_size, shape.speed),
        # Equal but for timing when every arm did all of the work; a ceiling has to hold for each of them.
        ceiling_hit_ratio=max((known for known in ceilings if known is not None), default=None),
        arms=arms,
    )
    return report, failures


async def _arm(plan: Plan, policy: str, progress: Progress) -> list[Record]:
    async with fleet(plan.shape, policy) as built:
        target = client.Target(built.url, MODEL, plan.timeout_s)
        return await client.run(plan.workload, target, seconds=plan.seconds, on_record=progress.record)
