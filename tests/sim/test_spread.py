"""How chats are spread: the same chats as elsewhere, in simulated time."""

from dataclasses import replace

import pytest

from loadtests.multirouter import shape
from loadtests.plays import NAME_TOKENS
from loadtests.simulation import Done, Outcome
from loadtests.spread import Spread, judge, measure, play_of, row
from loadtests.workloads import ChatShape, chat_workload
from tests.sim.records import BLANK

SMALL = ChatShape(preambles=2, preamble_tokens=1_024, sessions=4, turns=2, bytes_per_token=4.0)


def test_a_play_has_the_chats_of_the_workload_and_what_they_share() -> None:
    workload = chat_workload(0, SMALL)
    play = play_of(workload, 0)
    assert play.requests == workload.requests == 8
    assert play_of(workload, 0).sha256() == play.sha256()
    heads = {part.lines[0].names[1_024 // NAME_TOKENS - 1] for part in play.parts}
    assert len(heads) == 2
    for part, session in zip(play.parts, workload.sessions, strict=True):
        first, second = part.lines
        assert (first.output_tokens, second.think_s) == (session.turns[0].max_tokens, session.turns[1].think_s)
        assert second.answers == {first.prompt_tokens: first.prompt_tokens + first.output_tokens}
        assert second.prompt_tokens > first.prompt_tokens + first.output_tokens
        shared = first.prompt_tokens // NAME_TOKENS
        assert second.names[:shared] == first.names[:shared]


def test_who_only_spreads_is_more_even_and_has_less_cached() -> None:
    [sticky], [even] = (measure(16, 2, policy, 1) for policy in ("prefix_affinity", "least_requests"))
    assert even.max_to_mean < sticky.max_to_mean
    assert even.hit_ratio < sticky.hit_ratio
    assert row(16, "least_requests", [even])[:2] == ["16", "least_requests"]


def test_the_figures_are_those_of_the_records_and_need_all_answers() -> None:
    records = [
        replace(BLANK, replica=name, end_s=end, cached_tokens=500) for name, end in (("r1", 3.0), ("r2", 1.0))
    ]  # fmt: skip
    done = {"r1": Done(30, 0, 1.0), "r2": Done(10, 0, 1.0)}
    found = judge(Outcome(records, [1, 1], [None, None], done, 4.0, 9), ["r1", "r2"])
    assert found == Spread(0.5, 1.5, 1.5, 0.5, 0.1, 0.1)
    with pytest.raises(ValueError, match="answered"):
        judge(Outcome([replace(BLANK, error="timeout")], [1], [None], done, 4.0, 9), ["r1", "r2"])


def test_chats_come_at_one_rate_however_many_there_are() -> None:
    assert shape(480, 4).stagger_s / 480 == shape(16, 4).stagger_s / 16
