"""`prefix_affinity` by hand: its four lines, its two bends, its limits and reasons, on views set up by number."""

import pytest

from router.core.policy import Limits, PrefixAffinity, Weights
from router.core.types import Ask, Candidate, Limit, Reading, Reason, Wait
from tests.fakes import FakeView, LastChoice, reading

PROMPT = Ask("m", [1, 2, 3], 3, 4000, streams=True)
NO_PROMPT = Ask("m")
RNG = LastChoice()


def pick(view: FakeView, asked: Ask = PROMPT, policy: PrefixAffinity | None = None) -> Candidate:
    picked = (policy or PrefixAffinity()).pick(asked, view, 0.0, LastChoice())
    assert isinstance(picked, Candidate), picked
    return picked


def holder(replica: str, **changes: object) -> Reading:
    """It holds two of the prompt's three blocks; what is left is cold."""
    return reading(replica, depth=2, uncached=300.0, cold=300.0, **changes)


def test_settings_are_frozen() -> None:
    with pytest.raises(AttributeError):
        Weights().tie = 1.0  # type: ignore[misc]
    with pytest.raises(AttributeError):
        Limits().max_kv_usage = 0.9  # type: ignore[misc]


def test_the_weights_are_the_start_values_of_the_policy() -> None:
    assert Weights() == Weights(stickiness=15.0, decode=0.25, interruption=1.0, home_slack=0.1, tie=0.005)
    assert Limits() == Limits(max_queued_requests=32, max_backlog_seconds=18.0, max_kv_usage=None)


# The score.


def test_the_lines_are_those_computed_by_hand() -> None:
    busy = reading(
        "a", backlog=2000.0, uncached=1000.0, cold=600.0, lin=1e-4, context=50_000.0, running=20.0,
        recent=10_000.0, step=0.01,
    )  # fmt: skip
    view = FakeView([busy], tokens=1000.0, lin=2e-4, kv=4e-8, output=100.0, tau=5.0)
    assert PrefixAffinity().lines(busy, view) == pytest.approx(
        (
            0.3,  # (2000 + 1000) / 10,000
            1.8,  # 15 * 600 * 2e-4
            0.07,  # .25 * 100 * 4e-8 * (50,000 + 20 * 1000)
            0.2,  # y = 10,000 / 10,000 / 5 = .2: 100 * .01 * .2
            0.0,
        )
    )


def test_the_weights_enter_where_they_should() -> None:
    busy = reading("a", cold=600.0, context=50_000.0, running=20.0, recent=10_000.0)
    view = FakeView([busy])
    plain = PrefixAffinity(Weights(stickiness=1.0, decode=1.0)).lines(busy, view)
    assert plain == pytest.approx((0.1, 0.06, 0.28, 0.2, 0.0))
    assert PrefixAffinity(Weights(stickiness=2.0)).lines(busy, view)[1] == pytest.approx(0.12)
    assert PrefixAffinity(Weights(decode=0.5)).lines(busy, view)[2] == pytest.approx(0.14)
    assert PrefixAffinity(Weights(interruption=0.5)).lines(busy, view)[3] == pytest.approx(0.1)


def test_stickiness_is_never_at_a_replicas_own_speed() -> None:
    slow, fast = reading("a", lin=1e-3), reading("b", lin=1e-5)
    view = FakeView([slow, fast])
    policy = PrefixAffinity()
    assert policy.lines(slow, view)[1] == policy.lines(fast, view)[1] == pytest.approx(1.5)


def test_prefill_takes_no_more_than_all_of_the_time() -> None:
    policy = PrefixAffinity()
    for recent in (5e4, 5e9):
        line = policy.lines(reading("a", recent=recent), FakeView([reading("a")]))[3]
        assert line == pytest.approx(100 * 0.01)


def test_the_least_score_wins_wherever_it_stands() -> None:
    for order in (["a", "b", "c"], ["c", "b", "a"], ["b", "a", "c"]):
        load = {"a": 9000.0, "b": 3000.0, "c": 6000.0}
        view = FakeView([reading(name, backlog=load[name]) for name in order], ring=["a", "c", "b"])
        assert pick(view) == Candidate("b", Reason.SPILL)


def test_backlog_counts_at_the_replicas_own_speed() -> None:
    slow, fast = (reading("a", backlog=3000.0, lin=1 / 2000), reading("b", backlog=9000.0, lin=1 / 20_000))
    assert pick(FakeView([slow, fast])).replica == "b"


def test_each_line_alone_decides_between_replicas_otherwise_equal() -> None:
    for worse in (
        {"backlog": 2000.0}, {"uncached": 3000.0}, {"cold": 2000.0}, {"context": 300_000.0}, {"running": 300.0},
        {"recent": 30_000.0}, {"lin": 1 / 3000},
    ):  # fmt: skip
        view = FakeView([reading("a", **worse), reading("b")], ring=["a", "b"], cold=2000.0)
        assert pick(view).replica == "b", worse


def test_the_step_counts_where_prefill_interrupts() -> None:
    view = FakeView([reading("a", recent=20_000.0, step=0.05), reading("b", recent=20_000.0)], ring=["a", "b"])
    assert pick(view).replica == "b"


# Home.


def test_a_cold_prompt_goes_home_while_home_is_within_the_slack() -> None:
    for backlog, replica, reason in ((0.0, "b", Reason.HOME), (990.0, "b", Reason.HOME), (1010.0, "a", Reason.SPILL)):
        view = FakeView(
            [reading("a"), reading("b", backlog=backlog), reading("c", backlog=500.0)], ring=["b", "a", "c"]
        )
        assert pick(view) == Candidate(replica, reason)


def test_the_second_place_within_the_slack_is_the_next_in_ring_order_and_not_the_least() -> None:
    view = FakeView([reading("a"), reading("b", backlog=5000.0), reading("c", backlog=500.0)], ring=["b", "c", "a"])
    assert pick(view) == Candidate("c", Reason.SPILL)


def test_the_slack_is_a_setting() -> None:
    view = FakeView([reading("a"), reading("b", backlog=500.0)], ring=["b", "a"])
    assert pick(view).replica == "b"
    assert pick(view, policy=PrefixAffinity(Weights(home_slack=0.04))).replica == "a"


def test_home_may_be_worse_by_no_more_than_the_prompts_cold_tokens_take() -> None:
    """Sent elsewhere they are computed twice at most, so agreeing on 200 of them is worth 20 ms, and on few the tie."""
    for cold, backlog, replica in ((200.0, 245.0, "b"), (200.0, 255.0, "a"), (0.0, 40.0, "b"), (0.0, 60.0, "a")):
        some = {"uncached": max(1.0, cold), "cold": cold}
        view = FakeView([reading("a", **some), reading("b", backlog=backlog, **some)], cold=cold, ring=["b", "a"])
        assert pick(view).replica == replica


def test_agreeing_on_a_home_is_worth_as_much_of_it_as_is_asked_for_again() -> None:
    for returning, backlog, replica in ((0.5, 245.0, "b"), (0.5, 255.0, "a"), (0.0, 40.0, "b"), (0.0, 60.0, "a")):
        cold = {"uncached": 400.0, "cold": 400.0}
        both = [reading("a", **cold), reading("b", backlog=backlog, **cold)]
        assert pick(FakeView(both, cold=400.0, ring=["b", "a"], returning=returning)).replica == replica


def test_what_home_lacks_of_hot_blocks_is_no_reason_against_it() -> None:
    for backlog, replica in ((0.0, "b"), (40.0, "b"), (60.0, "a")):
        warm = reading("a", depth=1, uncached=100.0, cold=100.0)
        home = reading("b", backlog=backlog, uncached=400.0, cold=100.0)
        assert pick(FakeView([warm, home], cold=100.0, ring=["b", "a"], returning=0.0)).replica == replica


def test_home_is_not_preferred_while_it_has_more_requests_than_the_others() -> None:
    """Bounded load: one above the mean, which is 5 and a half."""
    for running, replica in ((6.0, "b"), (8.0, "a")):
        cold = {"uncached": 400.0, "cold": 400.0}
        both = [reading("a", running=5.0, **cold), reading("b", running=running, backlog=60.0, **cold)]
        assert pick(FakeView(both, cold=400.0, ring=["b", "a"])).replica == replica


def test_what_only_hot_blocks_are_held_of_goes_home_like_a_cold_prompt() -> None:
    hot = reading("a", depth=1, uncached=950.0, cold=800.0)
    view = FakeView([hot, reading("b", cold=800.0)], cold=800.0, ring=["b", "a"])
    assert pick(view) == Candidate("b", Reason.SPILL)


def test_near_ties_go_in_ring_order_when_a_cold_block_is_held() -> None:
    for backlog, replica in ((40.0, "c"), (60.0, "a")):
        view = FakeView([holder("a"), reading("b"), holder("c", backlog=backlog)], ring=["b", "c", "a"])
        assert pick(view) == Candidate(replica, Reason.HOLDER)


def test_the_tie_is_a_setting() -> None:
    view = FakeView([holder("a"), holder("c", backlog=60.0)], ring=["c", "a"])
    assert pick(view, policy=PrefixAffinity(Weights(tie=0.007))).replica == "c"


def test_without_any_slack_the_least_wins() -> None:
    strict = PrefixAffinity(Weights(home_slack=0.0, tie=0.0))
    assert pick(FakeView([reading("a"), reading("b", backlog=1.0)], ring=["b", "a"]), policy=strict).replica == "a"
    assert pick(FakeView([holder("a"), holder("b", backlog=1.0)], ring=["b", "a"]), policy=strict).replica == "a"
    assert pick(FakeView([reading("a"), reading("b")], ring=["b", "a"]), policy=strict).replica == "b"


def test_equal_scores_go_in_ring_order_whatever_the_order_of_the_replicas() -> None:
    for order in (["a", "b"], ["b", "a"]):
        assert pick(FakeView([reading(name) for name in order], ring=["b", "a"])).replica == "b"
        assert pick(FakeView([holder(name) for name in order], ring=["b", "a"])).replica == "b"


def test_a_ring_that_knows_none_of_the_replicas_is_an_error() -> None:
    with pytest.raises(ValueError, match="ring knows none"):
        pick(FakeView([reading("a"), reading("b")], ring=["x", "y"]))


# Reasons.


def test_the_deepest_holder_wins_until_waiting_there_costs_more_than_computing_again() -> None:
    def view(backlog: float) -> FakeView:
        return FakeView([holder("a", backlog=backlog), reading("b")], ring=["b", "a"])

    # b computes 700 tokens more, at 1e-4 s and a stickiness of 15: 1.12 s, which are 11,200 tokens of backlog.
    assert pick(view(11_100.0)) == Candidate("a", Reason.HOLDER)
    assert pick(view(11_300.0)) == Candidate("b", Reason.SPILL)


def test_hot_tokens_are_not_sticky() -> None:
    def view(backlog: float) -> FakeView:
        held = reading("a", depth=2, uncached=300.0, cold=100.0, backlog=backlog)
        return FakeView([held, reading("b", cold=150.0)], cold=150.0, ring=["b", "a"])

    # 700 tokens at 1e-4, and stickiness for 50 of them: .07 + .075 s.
    assert pick(view(1390.0)) == Candidate("a", Reason.HOLDER)
    assert pick(view(1510.0)) == Candidate("b", Reason.SPILL)


def test_a_shallower_holder_is_a_spill_and_either_of_two_deepest_is_a_holder() -> None:
    shallow = reading("b", depth=1, uncached=600.0, cold=600.0)
    deep, busy = holder("a", backlog=90_000.0), holder("c", backlog=80_000.0)
    assert pick(FakeView([deep, shallow])) == Candidate("b", Reason.SPILL)
    assert pick(FakeView([deep, busy])) == Candidate("c", Reason.HOLDER)


def test_one_eligible_replica_is_the_only_one_however_loaded() -> None:
    assert pick(FakeView([holder("a", backlog=1e9)])) == Candidate("a", Reason.ONLY)
    assert pick(FakeView([reading("a")])) == Candidate("a", Reason.ONLY)


def test_a_request_without_a_prompt_goes_to_the_least_loaded() -> None:
    view = FakeView([reading("a", backlog=100.0), reading("b"), reading("c", context=1e6)])
    assert pick(view, NO_PROMPT) == Candidate("b", Reason.PASSTHROUGH)
    assert pick(FakeView([reading("a")]), NO_PROMPT) == Candidate("a", Reason.PASSTHROUGH)


def test_a_tie_without_a_prompt_is_drawn_among_the_least_loaded() -> None:
    rng = LastChoice()
    view = FakeView([reading("a"), reading("b", backlog=1.0), reading("c"), reading("d")], ring=["b", "a"])
    picked = PrefixAffinity().pick(NO_PROMPT, view, 0.0, rng)
    assert picked == Candidate("d", Reason.PASSTHROUGH)
    assert rng.drawn == [["a", "c", "d"]]


def test_a_prompt_is_never_drawn() -> None:
    rng = LastChoice()
    PrefixAffinity().pick(PROMPT, FakeView([reading("a"), reading("b")]), 0.0, rng)
    assert rng.drawn == []


# Limits.

ALL_LIMITS = PrefixAffinity(limits=Limits(max_kv_usage=0.95))

CUTS = [
    (Limit.MAX_QUEUED_REQUESTS, {"queued": 32}, {"queued": 31}),
    (Limit.MAX_BACKLOG_SECONDS, {"backlog": 180_000.0}, {"backlog": 179_000.0}),
    (Limit.MAX_KV_USAGE, {"kv_usage": 0.95}, {"kv_usage": 0.949}),
]


@pytest.mark.parametrize(("limit", "over", "under"), CUTS, ids=[limit for limit, _, _ in CUTS])
def test_each_limit_cuts_at_its_value_and_not_below(
    limit: Limit, over: dict[str, object], under: dict[str, object]
) -> None:
    # The deepest holder, and so much cheaper for a long prompt that only a limit can keep it from winning.
    free = reading("b", uncached=500_000.0, cold=500_000.0)
    assert pick(FakeView([holder("a", **under), free]), policy=ALL_LIMITS) == Candidate("a", Reason.HOLDER)
    assert pick(FakeView([holder("a", **over), free]), policy=ALL_LIMITS) == Candidate("b", Reason.SPILL, {"a": limit})


@pytest.mark.parametrize(("limit", "over", "under"), CUTS, ids=[limit for limit, _, _ in CUTS])
def test_null_switches_a_limit_off(limit: Limit, over: dict[str, object], under: dict[str, object]) -> None:
    off = Limits(**{**dict.fromkeys(("max_queued_requests", "max_backlog_seconds", "max_kv_usage")), limit: None})
    view = FakeView([holder("a", **over), reading("b", uncached=500_000.0, cold=500_000.0)])
    assert pick(view, policy=PrefixAffinity(limits=off)) == Candidate("a", Reason.HOLDER)
    assert under != over


@pytest.mark.parametrize(
    ("limits", "busy", "limit"),
    [
        (Limits(max_queued_requests=2), {"queued": 2}, Limit.MAX_QUEUED_REQUESTS),
        (Limits(max_backlog_seconds=0.5), {"backlog": 5000.0}, Limit.MAX_BACKLOG_SECONDS),
        (Limits(max_kv_usage=0.5), {"kv_usage": 0.5}, Limit.MAX_KV_USAGE),
    ],
)
def test_each_limit_is_a_setting(limits: Limits, busy: dict[str, object], limit: Limit) -> None:
    picked = pick(FakeView([holder("a", **busy), reading("b")]), policy=PrefixAffinity(limits=limits))
    assert picked == Candidate("b", Reason.SPILL, {"a": limit})


def test_backlog_seconds_are_counted_beyond_the_shortest_wait_and_at_each_ones_speed() -> None:
    both = [reading("a", backlog=400_000.0), reading("b", backlog=230_000.0)]
    assert pick(FakeView(both)).cuts == {}
    assert pick(FakeView([*both, reading("c", backlog=225_000.0)])).cuts == {}
    assert pick(FakeView([*both, reading("c", backlog=219_000.0)])).cuts == {"a": Limit.MAX_BACKLOG_SECONDS}
    slow = reading("c", backlog=40_000.0, lin=1 / 1000)
    assert pick(FakeView([*both, slow])).cuts == {}
    assert pick(FakeView([reading("b", backlog=210_000.0), slow])).cuts == {"c": Limit.MAX_BACKLOG_SECONDS}


def test_kv_usage_that_nobody_knows_cuts_nobody() -> None:
    assert pick(FakeView([holder("a", kv_usage=None), reading("b")]), policy=ALL_LIMITS).replica == "a"


def test_a_holder_whose_cache_is_in_use_keeps_its_prompts_unless_a_limit_is_set() -> None:
    assert pick(FakeView([holder("a", kv_usage=1.0), reading("b")])) == Candidate("a", Reason.HOLDER)


def test_three_of_four_over_a_limit_leave_the_fourth_to_take_all() -> None:
    over = [holder(name, queued=40) for name in "abc"]
    view = FakeView([*over, reading("d", backlog=9000.0)])
    assert pick(view) == Candidate("d", Reason.SPILL, dict.fromkeys("abc", Limit.MAX_QUEUED_REQUESTS))


def test_home_past_a_cut_home_is_a_spill() -> None:
    view = FakeView([reading("a", queued=32), reading("b"), reading("c")], ring=["a", "b", "c"])
    assert pick(view) == Candidate("b", Reason.SPILL, {"a": Limit.MAX_QUEUED_REQUESTS})


def test_limits_hold_for_a_request_without_a_prompt_too() -> None:
    view = FakeView([reading("a", queued=32), reading("b", backlog=9000.0)])
    assert pick(view, NO_PROMPT) == Candidate("b", Reason.PASSTHROUGH, {"a": Limit.MAX_QUEUED_REQUESTS})


@pytest.mark.parametrize("asked", [PROMPT, NO_PROMPT], ids=["prompt", "no prompt"])
def test_when_all_are_cut_the_answer_is_to_wait_for_the_limit_that_cut_the_most(asked: Ask) -> None:
    view = FakeView([reading("a", queued=40), reading("b", kv_usage=0.99), reading("c", kv_usage=0.96)])
    cuts = {"a": Limit.MAX_QUEUED_REQUESTS, "b": Limit.MAX_KV_USAGE, "c": Limit.MAX_KV_USAGE}
    assert ALL_LIMITS.pick(asked, view, 7.5, RNG) == Wait(Limit.MAX_KV_USAGE, 7.5, cuts)


def test_the_only_eligible_replica_is_not_above_the_limits() -> None:
    view = FakeView([reading("a", queued=40)])
    assert PrefixAffinity().pick(PROMPT, view, 1.0, RNG) == Wait(
        Limit.MAX_QUEUED_REQUESTS, 1.0, {"a": Limit.MAX_QUEUED_REQUESTS}
    )
