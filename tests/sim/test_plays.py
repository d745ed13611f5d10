"""Plays: equal texts have equal names, a trace's follow-ups tell answers, and each kind of traffic is what it says."""

from collections import Counter

import pytest

from loadtests.plays import NAME_TOKENS, Names, Part, Play, Text, ceiling_hit_ratio, cut
from loadtests.plays_made import WORKLOADS
from loadtests.trace_plays import block_ceiling, follow_ups, trace_play
from loadtests.traces import TraceRequest

TALK = [
    TraceRequest(0, 1_100, 300, (0, 1, 2)),
    TraceRequest(0, 700, 50, (0, 9)),
    TraceRequest(2_999, 1_600, 20, (0, 1, 3, 4)),
    TraceRequest(3_000, 1_300, 20, (0, 1, 3)),
]


def test_equal_leading_texts_have_equal_names_and_what_follows_another_text_has_others() -> None:
    names = Names(1)
    one, _ = names.of([Text(1, 200), Text(2, 200)])
    other, _ = names.of([Text(1, 200), Text(3, 200)])
    assert (len(one), len(other)) == (6, 6)
    assert [a == b for a, b in zip(one, other, strict=True)] == [True] * 3 + [False] * 3
    assert len({*one, *other}) == 9


def test_a_text_is_the_same_wherever_a_prompt_is_cut() -> None:
    names = Names(1)
    whole, _ = names.of([Text(1, 1_000)])
    assert names.of(cut([Text(1, 300), Text(2, 9)], 200))[0] == names.of([Text(1, 200)])[0] == whole[:3]


def test_another_seed_gives_other_names() -> None:
    assert set(Names(1).of([Text(1, 640)])[0]).isdisjoint(Names(2).of([Text(1, 640)])[0])


def test_the_tail_tells_whole_prompts_apart() -> None:
    names = Names(1)
    tails = [names.of([Text(1, tokens)])[1] for tokens in (640, 641, 642)]
    assert len(set(tails)) == 3
    assert tails[0] == names.of([Text(1, 640)])[0][-1]


def test_a_request_is_followed_up_by_one_that_begins_with_it_and_is_long_enough_for_its_answer() -> None:
    assert follow_ups(TALK) == {0: 2}
    assert follow_ups([TALK[0], TALK[3]]) == {}, "too short for the answer"
    preamble = [TALK[1], TALK[0], TALK[2], TraceRequest(0, 1_100, 1, (0, 7, 8))]
    assert follow_ups(preamble) == {1: 2}, "a shared first block is no conversation"


def test_the_answer_that_a_follow_up_tells_is_named_but_for_its_last_token() -> None:
    first, _, later, _ = (part.lines[0] for part in trace_play("t", TALK, 1).parts)
    assert len(first.names) == (1_100 + 299) // NAME_TOKENS
    assert first.names == later.names[: len(first.names)]
    assert later.answers == {1_100: 1_400}
    assert first.answers is None


def test_requests_of_one_tick_come_within_it_in_their_order_and_a_stamp_a_millisecond_early_is_of_its_tick() -> None:
    starts = [part.start_s for part in trace_play("t", TALK, 1).parts]
    assert starts == sorted(starts)
    assert starts[0] == 0.0
    assert starts[1] < 3.0 < starts[2] + 3.0
    assert starts != [part.start_s for part in trace_play("t", TALK, 2).parts]


def test_arrivals_that_are_finer_than_a_tick_stay() -> None:
    exact = [TraceRequest(stamp, 600, 9, (number, 100)) for number, stamp in enumerate((40, 277, 3_400))]
    assert [part.start_s for part in trace_play("t", exact, 1).parts] == pytest.approx([0.0, 0.237, 3.36])


def test_sessions_of_a_trace_are_closed_loop_and_may_begin_spread_over_a_time() -> None:
    requests = [
        TraceRequest(1_000, 600, 9, (1, 2), "a", 0),
        TraceRequest(2_000, 600, 9, (3, 4), "b", 0),
        TraceRequest(9_000, 700, 9, (1, 5), "a", 1, 29.5),
    ]
    parts = trace_play("t", requests, 1, stagger_s=8.0).parts
    assert [(part.id, part.start_s, len(part.lines)) for part in parts] == [("a", 0.0, 2), ("b", 4.0, 1)]
    assert [line.think_s for line in parts[0].lines] == [0.0, 29.5]


def test_references_and_repeats_of_blocks_are_counted() -> None:
    assert block_ceiling(TALK) == (12, 6)


def test_the_ceiling_counts_full_blocks_and_never_a_prompts_last_token() -> None:
    names = Names(1)
    line = names.line([Text(1, 640)], 1)
    play = Play("t", (Part("a", 0.0, (line,)), Part("b", 1.0, (line,))))
    assert ceiling_hit_ratio(play) == pytest.approx((640 - NAME_TOKENS) / 1_280)


def test_another_rate_moves_starts_and_nothing_else() -> None:
    play = WORKLOADS["whale"](1, 50, 10.0)
    faster = play.at_rate(20.0)
    assert faster.rate == pytest.approx(20.0)
    assert [part.lines for part in faster.parts] == [part.lines for part in play.parts]
    assert play.at_rate(None) is not play
    assert play.at_rate(None) == play


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_is_its_seeds_alone_and_has_as_many_requests_and_as_fast_as_was_asked(name: str) -> None:
    play = WORKLOADS[name](1, 240, 12.0)
    assert play.sha256() == WORKLOADS[name](1, 240, 12.0).sha256() != WORKLOADS[name](2, 240, 12.0).sha256()
    assert play.requests == 240
    assert play.rate == pytest.approx(12.0, rel=0.35)
    starts = [part.start_s for part in play.parts]
    assert starts == sorted(starts)


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("ladder", 0.6, 0.67),  # 4 of 5 prompts find 6,000 of 7,200 tokens.
        ("ladder_inverse", 0.11, 0.14),
        ("chat", 0.7, 0.95),
        ("classifier", 0.97, 0.99),
        ("cold_burst", 0.87, 0.89),  # 19 of 20 find 4,000 of 4,300.
        ("flash_crowd", 0.7, 0.74),
        ("whale", 0.8, 0.9),
        ("uniform", 0.0, 0.0),
    ],
)
def test_a_workload_shares_as_much_as_its_words_say(name: str, least: float, most: float) -> None:
    assert least <= ceiling_hit_ratio(WORKLOADS[name](1, 240, 12.0)) <= most


def test_a_whale_has_three_fifths_and_a_crowd_comes_in_the_middle_third() -> None:
    whale = WORKLOADS["whale"](1, 500, 10.0)
    firsts = Counter(part.lines[0].names[0] for part in whale.parts)
    assert firsts.most_common(1)[0][1] == pytest.approx(300, abs=40)
    crowd = WORKLOADS["flash_crowd"](1, 500, 10.0)
    prefix = Counter(part.lines[0].names[0] for part in crowd.parts).most_common(1)[0][0]
    times = [part.start_s for part in crowd.parts if part.lines[0].names[0] == prefix]
    assert len(times) == 250
    assert 500 / 30 <= min(times) <= max(times) <= 2 * 500 / 30
