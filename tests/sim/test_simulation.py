"""The simulator: what happens when, what a router is told, and that a seed gives the same bits in every process."""

import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pytest

from loadtests.clock import Clock
from loadtests.plays import Line, Names, Part, Play, Text
from loadtests.plays_made import WORKLOADS
from loadtests.sim_gossip import GossipPlan
from loadtests.sim_replica import SimReplica
from loadtests.sim_router import ask
from loadtests.simulation import (
    Change,
    FleetPlan,
    Join,
    Leave,
    Look,
    Outcome,
    Restart,
    RouterPlan,
    RouterRestart,
    Slow,
    simulate,
)
from replica.engine import Engine, Work
from replica.profiles import PROFILES
from router.core.baselines import BASELINES
from router.core.policy import Limits, PrefixAffinity
from router.core.types import Ask

PROFILE = PROFILES["llama3-8b-h100"]
TWO = FleetPlan("llama3-8b-h100", (1.0, 1.0))
ROUTERS = RouterPlan(PrefixAffinity)

_DIGEST = """
from tests.sim.test_simulation import digest
print(digest())
"""


def play(*starts: float, shared: int = 0, own: int = 640, output: int = 10) -> Play:
    """One request at each time, `shared` tokens alike."""
    names = Names(1)
    lines = [names.line([Text(-1, shared), Text(number, own)], output) for number in range(len(starts))]
    return Play(
        "made", tuple(Part(f"s{i}", at, (line,)) for i, (at, line) in enumerate(zip(starts, lines, strict=True)))
    )


def digest() -> str:
    """A run in which everything takes part: sessions, two routers with gossip, a restart."""
    made = WORKLOADS["chat"](3, 60, 20.0)
    plan = replace(ROUTERS, shares=(1.0, 2.0), gossip=GossipPlan(0.01, 0.1, 0.2))
    return simulate(made, TWO, plan, 3, [Restart(2.0, "r1", 1.0)]).sha256()


def test_equal_seeds_give_equal_bits_in_processes_that_hash_strings_differently() -> None:
    said = {
        subprocess.run(
            [sys.executable, "-c", _DIGEST],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert said == {digest()}


def test_another_seed_is_another_run() -> None:
    made = WORKLOADS["uniform"](1, 40, 20.0)
    random = RouterPlan(BASELINES["random"])
    assert simulate(made, TWO, random, 1).sha256() != simulate(made, TWO, random, 2).sha256()


def test_a_lone_request_takes_its_prefill_and_its_decode_steps() -> None:
    (record,) = simulate(play(5.0, own=640, output=11), TWO, ROUTERS, 1).records
    assert (record.sent_s, record.error, record.cached_tokens) == (5.0, None, 0)
    assert record.ttft_s == pytest.approx(PROFILE.duration(640, 0, 0))
    steps = sum(PROFILE.duration(0, 1, 640 + step) for step in range(10))
    assert record.e2e_s == pytest.approx(PROFILE.duration(640, 0, 0) + steps)


def test_what_is_shared_is_hit_and_the_ledger_says_so() -> None:
    outcome = simulate(play(0.0, 1.0, shared=6_400), TWO, ROUTERS, 1)
    assert [record.cached_tokens for record in outcome.records] == [0, 6_400]
    assert [lease.reported for lease in outcome.settled] == [0, 6_400]
    assert outcome.settled[1].predicted == 6_400
    assert len({record.replica for record in outcome.records}) == 1


def test_a_session_waits_for_its_answer_and_thinks() -> None:
    names = Names(1)
    first = names.line([Text(1, 640)], 10)
    second = names.line([Text(1, 640), Text(2, 100)], 10, think_s=3.0)
    outcome = simulate(Play("talk", (Part("s", 1.0, (first, second)),)), TWO, ROUTERS, 1)
    assert outcome.records[1].sent_s == pytest.approx(outcome.records[0].end_s + 3.0)


def test_an_answer_is_cached_and_its_tokens_are_believed_once_the_next_turn_shows_them() -> None:
    names = Names(1)
    talk = [Text(1, 640), Text(2, 640), Text(3, 100)]
    first = names.line(talk[:1], 640, talk)
    second = names.line(talk, 10, think_s=1.0, answers={640: 1_280})
    outcome = simulate(Play("talk", (Part("s", 0.0, (first, second)),)), TWO, ROUTERS, 1)
    assert outcome.records[1].cached_tokens == 1_216, "all but the block with the answer's last token"
    assert outcome.settled[1].predicted == pytest.approx(1_216, abs=64)


def test_a_router_is_given_the_chain_of_the_prompt_and_nothing_of_the_answer() -> None:
    line = Names(1).line([Text(1, 640)], 640, [Text(1, 640), Text(2, 640)])
    assert len(line.names) == 19
    given = ask(line, 512)
    assert given == Ask("sim", line.names[1:10:2], line.tail, 2_560, True, None, {})
    with pytest.raises(ValueError, match="multiple of 256"):
        ask(line, 300)


def test_a_request_that_arrives_while_others_decode_begins_after_the_step_it_falls_into() -> None:
    clock, ends = Clock(), dict[str, float]()

    class Waits:
        def __init__(self, name: str) -> None:
            self.name = name

        def on_first_token(self) -> None:
            ends[self.name] = clock.now

        def on_end(self, cached_tokens: int) -> None: ...

        def on_lost(self) -> None: ...

    replica = SimReplica("r1", Engine(PROFILE, 100), clock)
    clock.at(0.0, lambda: replica.submit(Work("a", 16, 1_000), Waits("a")))
    clock.at(1.0, lambda: replica.submit(Work("b", 16, 2), Waits("b")))
    clock.run(lambda: True)
    prefill = PROFILE.duration(16, 1, 0)
    assert ends["a"] == pytest.approx(prefill)
    assert 1.0 + prefill <= ends["b"] <= 1.0 + 2 * prefill + PROFILE.duration(0, 1, 200)
    assert (replica.output_tokens, replica.computed_tokens) == (1_002, 32)


def test_when_every_replica_is_at_its_limit_requests_wait_in_line_and_then_are_refused() -> None:
    one = RouterPlan(lambda: PrefixAffinity(limits=Limits(max_queued_requests=1)), queue_requests=2, queue_seconds=0.5)
    outcome = simulate(play(*[0.0] * 6, own=3_200, output=2), FleetPlan("llama3-8b-h100", (1.0,)), one, 1)
    errors = Counter(record.error for record in outcome.records)
    assert errors == {None: 3, "queue_full": 3}
    late = simulate(play(*[0.0] * 6, own=32_000, output=2), FleetPlan("llama3-8b-h100", (1.0,)), one, 1)
    assert Counter(record.error for record in late.records) == {None: 1, "queue_full": 3, "queue_timeout": 2}


def test_what_does_not_fit_into_an_engine_is_an_error_of_its_own() -> None:
    tiny = FleetPlan("llama3-8b-h100", (1.0,), kv_tokens=640)
    outcome = simulate(play(0.0, 1.0, own=1_000), tiny, ROUTERS, 1)
    assert [record.error for record in outcome.records] == ["too_long"] * 2


def served(outcome: Outcome, after: float, until: float = 1e9) -> Counter[str | None]:
    return Counter(record.replica for record in outcome.records if after <= record.sent_s < until)


def test_a_restart_loses_what_was_answered_and_sends_the_rest_again_and_the_replica_comes_back_cold() -> None:
    starts = [0.0, *[index / 10 for index in range(80)]]
    made = play(*starts, shared=6_400, own=64, output=100)
    outcome = simulate(made, TWO, RouterPlan(BASELINES["round_robin"]), 1, [Restart(2.0, "r1", 3.0)])
    lost = [record for record in outcome.records if record.error is not None]
    assert {record.error for record in lost} == {"replica_lost"}
    assert all(record.first_token_s is not None and record.end_s == 2.0 for record in lost)
    assert served(outcome, 2.0, 5.0).keys() == {"r2"}
    back = [record for record in outcome.records if record.replica == "r1" and record.sent_s >= 5.0]
    assert back[0].cached_tokens == 0
    assert back[-1].cached_tokens == 6_400


def test_replicas_join_leave_and_run_slow() -> None:
    starts = [index / 20 for index in range(200)]
    made = play(*starts, own=640, output=20)
    changes: list[Change] = [Leave(3.0, "r1"), Join(5.0, "r3"), Slow(0.0, "r2", 0.25)]
    outcome = simulate(made, TWO, RouterPlan(BASELINES["round_robin"]), 1, changes)
    assert all(record.error is None for record in outcome.records)
    assert served(outcome, 3.1, 5.0).keys() == {"r2"}
    assert served(outcome, 5.1).keys() == {"r2", "r3"}
    slow = next(record for record in outcome.records if record.replica == "r2")
    assert slow.ttft_s == pytest.approx(PROFILE.duration(640, 0, 0) * 4)
    assert set(outcome.done) == {"r1", "r2", "r3"}


def test_routers_that_hear_of_each_other_spread_a_burst_and_those_that_do_not_pile_it_up() -> None:
    made = play(*[index * 0.06 for index in range(64)], own=12_800, output=2)
    four = RouterPlan(BASELINES["least_requests"], shares=(1.0,) * 4)
    plan = FleetPlan("llama3-8b-h100", (1.0,) * 8)
    heard = simulate(made, plan, four, 1)
    dead = simulate(made, plan, replace(four, gossip=GossipPlan(dead=True)), 1)
    mean = {name: sum(r.ttft_s or 0.0 for r in run.records) / 64 for name, run in (("heard", heard), ("dead", dead))}
    assert mean["heard"] < 0.75 * mean["dead"]


def test_a_lost_or_late_message_changes_what_is_known_and_nothing_else() -> None:
    made = WORKLOADS["whale"](1, 60, 20.0)
    for gossip in (GossipPlan(loss=1.0), GossipPlan(delay_s=5.0), GossipPlan(every_s=1.0)):
        outcome = simulate(made, TWO, replace(ROUTERS, shares=(1.0, 1.0), gossip=gossip), 1)
        assert Counter(record.error for record in outcome.records) == {None: 60}


def test_gauges_that_are_read_late_are_heard_late() -> None:
    made = WORKLOADS["uniform"](1, 60, 20.0)
    outcome = simulate(made, replace(TWO, sample_age_s=2.5, told=True), ROUTERS, 1)
    assert all(record.error is None for record in outcome.records)


def test_skew_is_the_busiest_replicas_work_over_the_mean() -> None:
    outcome = simulate(play(0.0, own=640, output=10), TWO, ROUTERS, 1)
    assert outcome.work_skew == 2.0


def test_a_line_has_the_sizes_of_what_it_is_made_of() -> None:
    line = Names(1).line([Text(1, 100), Text(2, 60)], 5)
    assert (line.prompt_tokens, line.output_tokens, len(line.names)) == (160, 5, 2)
    assert isinstance(line, Line)


def test_a_replica_that_drains_before_its_restart_loses_nothing_and_comes_back_cold() -> None:
    starts = [index / 10 for index in range(200)]
    made = play(*starts, shared=6_400, own=64, output=100)
    outcome = simulate(made, TWO, RouterPlan(BASELINES["round_robin"]), 1, [Restart(2.0, "r1", 3.0, drains=True)])
    assert all(record.error is None for record in outcome.records)
    assert served(outcome, 2.1, 5.0).keys() == {"r2"}
    back = [record for record in outcome.records if record.replica == "r1" and record.sent_s >= 5.0]
    assert back[0].cached_tokens == 0


def test_a_router_that_joins_is_told_the_others_last_heartbeats() -> None:
    made = play(*[index * 0.06 for index in range(64)], own=12_800, output=2)
    plan = FleetPlan("llama3-8b-h100", (1.0,) * 8)
    seen: list[int] = []
    change: list[Change] = [RouterRestart(2.5, 1), Look(2.5, lambda routers: seen.append(len(routers[0].fleet.peers)))]
    simulate(made, plan, replace(ROUTERS, shares=(1.0,) * 4), 1, change)
    assert seen == [4], "three others, and the process before it"
