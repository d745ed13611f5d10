"""The policies to compare with: each against a table of decisions worked out by hand from its author's rule.

tests/golden/baselines/NAME.txt has a decision a row: what each replica (a b c where there is no such column) carries,
what may come out, and why. The prompt has 1,000 tokens in ten blocks, a replica prefills 10,000 tokens a second. Where
a rule draws, `choice` is all that can be drawn: the test plays every draw.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import TypeVar

import pytest

from router.core.baselines import (
    BASELINES,
    BoundedLoad,
    CacheThreshold,
    ConsistentHash,
    Hysteresis,
    LeastRequests,
    PowerOfTwo,
    RandomChoice,
    RoundRobin,
    StickyUntilSaturated,
)
from router.core.types import Ask, Candidate, Policy, Reason
from tests.core.worlds import ask, fleet_of, leased, routed
from tests.fakes import FakeView, LastChoice, changed, reading

ASK = Ask("m", [1, 2, 3], 3, 4000)
GOLDEN = Path(__file__).parents[1] / "golden" / "baselines"

T = TypeVar("T")


class Scripted:
    """An Rng that draws by a script, and the first where it has ended; `sizes` is what each draw was from."""

    def __init__(self, script: Sequence[int]) -> None:
        self._script = list(script)
        self.sizes: list[int] = []

    def choice(self, seq: Sequence[T], /) -> T:
        self.sizes.append(len(seq))
        return seq[self._script.pop(0) if self._script else 0]


def outcomes(policy: Policy, view: FakeView) -> list[str]:
    """All that a pick can come to, in the order of the replicas."""
    found, scripts = set(), [list[int]()]
    while scripts:
        script = scripts.pop()
        rng = Scripted(script)
        picked = policy.pick(ASK, view, 0.0, rng)
        assert isinstance(picked, Candidate)
        assert picked.reason is Reason.POLICY
        assert not picked.cuts
        found.add(picked.replica)
        for at in range(len(script), len(rng.sizes)):
            scripts += [[*script, *[0] * (at - len(script)), each] for each in range(1, rng.sizes[at])]
    return [replica.id for replica in view.replicas if replica.id in found]


def numbers(cell: str) -> list[float]:
    return [float(each) for each in cell.split()]


def view_of_row(row: dict[str, str]) -> FakeView:
    names = row.get("replicas", "a b c").split()
    zeros = " ".join("0" * len(names))
    columns = zip(
        names,
        numbers(row.get("requests", zeros)),
        numbers(row.get("backlog", zeros)),
        numbers(row.get("held", zeros)),
        numbers(row.get("context", zeros)),
        numbers(row.get("lin", zeros.replace("0", "1"))),
        strict=True,
    )
    view = FakeView(
        [
            reading(
                name, requests=int(requests), backlog=backlog, depth=int(held) // 100, uncached=max(1.0, 1000 - held),
                context=context, lin=lin / 10_000,
            )
            for name, requests, backlog, held, context, lin in columns
        ]
    )  # fmt: skip
    view.ring_at = {1: row.get("ring", "").split()}
    return view


def rows_of(name: str) -> list[dict[str, str]]:
    lines = [line for line in (GOLDEN / f"{name}.txt").read_text().splitlines() if not line.startswith("#")]
    head, *rows = [[cell.strip() for cell in line.split("|", line.count("|"))] for line in lines]
    return [dict(zip(head, row, strict=True)) for row in rows]


def test_every_baseline_has_a_table_of_twenty_decisions() -> None:
    assert {path.stem for path in GOLDEN.iterdir()} == set(BASELINES)
    assert all(20 <= len(rows_of(name)) <= 24 for name in BASELINES)


@pytest.mark.parametrize("name", BASELINES)
def test_each_decides_as_its_author_would(name: str) -> None:
    policy = BASELINES[name]()
    rows = rows_of(name)
    assert [(row["why"], outcomes(policy, view_of_row(row))) for row in rows] == [
        (row["why"], row["choice"].split()) for row in rows
    ]


def test_a_golden_row_would_fail_if_a_draw_left_somebody_out() -> None:
    assert outcomes(LeastRequests(), view_of(1, 0, 0)) == ["r1", "r2"]
    assert outcomes(PowerOfTwo(), view_of(0, 1, 2)) == ["r0", "r1"]
    assert outcomes(RandomChoice(), view_of(0, 1, 2)) == ["r0", "r1", "r2"]


def picks(policy: Policy, view: FakeView, count: int, asked: Ask = ASK) -> list[str]:
    rng = Random(11)
    found = [policy.pick(asked, view, 0.0, rng) for _ in range(count)]
    assert all(isinstance(each, Candidate) and each.reason is Reason.POLICY and not each.cuts for each in found)
    return [each.replica for each in found if isinstance(each, Candidate)]


def view_of(*requests: int) -> FakeView:
    return FakeView([reading(f"r{i}", requests=count) for i, count in enumerate(requests)])


def test_two_round_robins_do_not_share_a_turn() -> None:
    assert picks(RoundRobin(), view_of(0, 0), 1) == picks(RoundRobin(), view_of(0, 0), 1)


def test_random_is_even_and_blind_to_load() -> None:
    counts = Counter(picks(RandomChoice(), view_of(99, 0, 5), 3000))
    assert set(counts) == {"r0", "r1", "r2"}
    assert all(900 < count < 1100 for count in counts.values())


def test_random_draws_from_the_rng_that_it_is_handed() -> None:
    assert RandomChoice().pick(ASK, view_of(0, 0, 0), 0.0, LastChoice()).replica == "r2"


def test_power_of_two_draws_every_pair_alike() -> None:
    counts = Counter(picks(PowerOfTwo(), view_of(0, 1, 2, 3), 6000))
    assert all(abs(counts[f"r{i}"] - share) < 150 for i, share in enumerate([3000, 2000, 1000, 0]))


def test_a_bounded_load_is_never_above_its_bound() -> None:
    policy, requests, rng = BoundedLoad(), [0] * 5, Random(1)
    for total in range(1, 400):
        view = view_of(*requests)
        view.ring_at = {1: ["r0", "r1", "r2", "r3", "r4"] if rng.random() < 0.8 else ["r3", "r1", "r4", "r0", "r2"]}
        requests[int(policy.pick(ASK, view, 0.0, rng).replica[1])] += 1
        assert max(requests) < 1.25 * total / 5 + 1


def test_the_constants_of_a_rule_are_its_makers() -> None:
    assert outcomes(CacheThreshold(gap=4), view_of(5, 0, 0)) == ["r1", "r2"]
    assert outcomes(CacheThreshold(gap=4, ratio=10.0), view_of(9, 1, 1)) == ["r1", "r2"]
    held = [reading("a", depth=7, uncached=300.0, backlog=20_000.0), reading("b")]
    assert outcomes(CacheThreshold(0.8), FakeView([changed(held[0], requests=1), held[1]])) == ["b"]
    assert [outcomes(Hysteresis(seconds), FakeView(held)) for seconds in (1.0, 2.0)] == [["b"], ["a"]]
    assert outcomes(StickyUntilSaturated(), FakeView(held)) == ["b"]
    assert outcomes(StickyUntilSaturated(match=0.6), FakeView(held)) == ["a"]
    assert outcomes(StickyUntilSaturated(match=0.6, seconds=1.0), FakeView(held)) == ["b"]
    view = view_of(2, 0)
    view.ring_at = {4: ["r0", "r1"]}
    assert outcomes(BoundedLoad(c=2.0, depth=4), view) == ["r0"]
    assert outcomes(BoundedLoad(depth=4), view) == ["r1"]
    assert outcomes(ConsistentHash(4), view) == ["r0"]


def test_consistent_hash_keeps_a_fixed_depth_together_however_the_rest_goes_on() -> None:
    fleet = fleet_of(8, ConsistentHash(2))
    homes = {routed(fleet, ask(("head", 2), (f"rest {i}", 3))).replica for i in range(20)}
    assert len(homes) == 1
    others = {routed(fleet, ask(("head", 1), (f"rest {i}", 3))).replica for i in range(40)}
    assert len(others) > 4


def test_consistent_hash_places_a_shorter_prompt_by_all_of_it() -> None:
    fleet = fleet_of(8, ConsistentHash(4))
    assert len({routed(fleet, ask((f"short {i}", 2))).replica for i in range(40)}) > 4
    assert routed(fleet, ask(("short", 2))).replica == routed(fleet, ask(("short", 2))).replica


@pytest.mark.parametrize("name", BASELINES)
def test_each_name_of_the_configuration_makes_a_new_policy_that_routes(name: str) -> None:
    policy = BASELINES[name]()
    assert policy is not BASELINES[name]()
    fleet = fleet_of(3, policy)
    placed = Counter(leased(fleet, ask((f"prompt {i}", 2))).replica for i in range(30))
    assert sum(placed.values()) == 30
    assert routed(fleet, ask(("x", 1))).reason is Reason.POLICY
    assert routed(fleet, Ask("m")).cached == 0  # Without a prompt, too.
    reading_of = FakeView([reading("a")])
    assert policy.lines(reading_of.replicas[0], reading_of) is None
    assert not policy.cuts(reading("a", queued=1000, kv_usage=1.0))
