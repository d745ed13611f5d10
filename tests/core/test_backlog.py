"""One replica's load: three sums that nobody clamps, what the clock drains, what the engine shows, what is learned."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.core.backlog import (
    DEFAULT_KV,
    DEFAULT_LIN,
    DEFAULT_STEP,
    LEARN_MIN_TOKENS,
    Learned,
    Load,
    Mean,
    follow,
)
from router.core.ranking import mean_lin, mean_step
from router.core.types import EngineSample, Reading
from tests.fakes import fields_of

TAU = 5.0
GUESS = 1 / 16_000


def read(load: Load, now: float) -> Reading:
    return load.read(now, TAU, GUESS, DEFAULT_STEP, 0, 1.0, 1.0)


def learned(uncached: float = 500.0, prompt: float = 2000.0) -> Learned:
    found = Learned()
    found.uncached.value, found.prompt.value = uncached, prompt
    return found


def test_an_unknown_replica_starts_from_the_h100_row() -> None:
    load = Load("a")
    assert (load.lin, load.step, load.kv) == (None, DEFAULT_STEP, DEFAULT_KV)
    assert (DEFAULT_LIN, DEFAULT_STEP, DEFAULT_KV) == (1 / 16_000, 0.006, 3.9e-8)
    assert fields_of(read(load, 0.0)) == fields_of(
        Reading("a", 0, 0, 0.0, 0.0, 0.0, 0.0, None, GUESS, 0.006, 0, 1.0, 1.0)
    )


def test_lin_star_is_the_mean_of_what_is_known() -> None:
    assert mean_lin([1e-4, None, 3e-4]) == pytest.approx(2e-4)
    assert mean_lin([None, None]) == mean_lin([]) == DEFAULT_LIN


def test_a_step_not_known_is_the_mean_of_the_known_ones_and_the_default_where_none_is() -> None:
    assert mean_step([0.01, None, 0.03]) == pytest.approx(0.02)
    assert mean_step([None]) == DEFAULT_STEP
    told, untold = Load("a", step=0.02), Load("b")
    assert [load.read(0.0, TAU, GUESS, 0.01, 0, 1.0, 1.0).step for load in (told, untold)] == [0.02, 0.01]
    untold.learn_step(0.03)
    assert untold.read(0.0, TAU, GUESS, 0.01, 0, 1.0, 1.0).step == untold.step != 0.01


def test_what_the_configuration_says_of_rates_is_taken() -> None:
    load = Load("a", 1 / 9000, 0.02, 7e-8)
    reading = read(load, 0.0)
    assert (reading.lin, reading.step, load.kv) == (1 / 9000, 0.02, 7e-8)


def test_the_asks_own_standing_is_passed_on() -> None:
    reading = Load("a").read(0.0, TAU, GUESS, DEFAULT_STEP, 3, 70.0, 50.0)
    assert (reading.depth, reading.uncached, reading.cold) == (3, 70.0, 50.0)


def test_backlog_is_released_at_the_first_token_and_the_rest_at_the_end() -> None:
    load = Load("a")
    load.dispatch(1000, 600, 10.0, TAU)
    load.dispatch(200, 200, 10.0, TAU)
    reading = read(load, 10.0)
    assert (reading.requests, reading.queued, reading.backlog) == (2, 2, 800.0)
    assert (reading.running, reading.context) == (2.0, 1200.0)
    load.start(600, None)
    reading = read(load, 11.0)
    assert (reading.requests, reading.queued, reading.backlog) == (2, 1, 200.0)
    assert (reading.running, reading.context) == (2.0, 1200.0)
    load.end(1000)
    reading = read(load, 12.0)
    assert (reading.requests, reading.queued, reading.backlog) == (1, 1, 200.0)
    assert (reading.running, reading.context) == (1.0, 200.0)
    assert load.dispatches == 2


def test_a_counter_that_is_taken_from_twice_goes_negative_for_tests_to_see() -> None:
    load = Load("a")
    load.start(5, None)
    load.end(7)
    assert (load.requests, load.unstarted, load.backlog_tokens, load.context_tokens) == (-1, -1, -5, -7)


def test_the_clock_drains_nothing_while_first_tokens_are_seen() -> None:
    load = Load("a", lin=1 / 1000)
    load.dispatch(1000, 1000, 0.0, TAU)
    assert read(load, 1e6).backlog == load.backlog(1e6) == 1000.0


def test_recent_prefill_fades_with_tau() -> None:
    load = Load("a")
    load.dispatch(1000, 800, 100.0, TAU)
    assert read(load, 100.0).recent == 800.0
    assert read(load, 105.0).recent == pytest.approx(800 / math.e)
    load.dispatch(1000, 300, 105.0, TAU)
    assert read(load, 105.0).recent == pytest.approx(800 / math.e + 300)
    load.start(800, None)
    load.start(300, None)
    assert read(load, 115.0).recent == pytest.approx((800 / math.e + 300) / math.e**2)


# Answers that do not stream.


def silent_load(lin: float = 1 / 1000) -> Load:
    return Load("a", lin=lin)


def test_a_silent_request_drains_at_the_rate_known_when_it_was_sent() -> None:
    load = silent_load()
    load.dispatch(400, 400, 10.0, TAU)
    load.silent(400, 10.0, 1 / 1000)
    load.lin = 1 / 7
    assert load.backlog(10.0) == 400.0
    assert load.backlog(10.1) == pytest.approx(300.0)
    assert read(load, 10.3).backlog == pytest.approx(100.0)
    assert read(load, 10.3).queued == 1
    assert read(load, 10.5).backlog == 0.0
    assert read(load, 10.5).queued == 0
    assert (load.unstarted, load.backlog_tokens) == (1, 400)


def test_a_silent_request_waits_for_what_is_ahead_of_it() -> None:
    load = silent_load()
    load.dispatch(100, 100, 0.0, TAU)
    load.silent(100, 0.0, 1 / 1000)
    load.dispatch(300, 300, 0.0, TAU)
    load.silent(300, 0.0, 1 / 1000)
    assert load.backlog(0.0) == 400.0
    assert load.backlog(0.05) == pytest.approx(350.0)
    assert load.backlog(0.1) == pytest.approx(300.0)
    assert load.backlog(0.25) == pytest.approx(150.0)
    assert read(load, 0.25).queued == 1
    assert load.backlog(0.5) == 0.0


def test_a_silent_request_behind_a_streamed_one_drains_nothing_of_it() -> None:
    load = silent_load()
    load.dispatch(1000, 1000, 0.0, TAU)
    load.dispatch(100, 100, 0.0, TAU)
    load.silent(100, 0.0, 1 / 1000)
    assert load.backlog(0.9) == 1100.0
    assert load.backlog(1.05) == pytest.approx(1050.0)
    assert load.backlog(9.0) == 1000.0
    assert read(load, 9.0).queued == 1


@pytest.mark.parametrize("ends_at", [0.05, 0.15, 0.9], ids=["before it drains", "while it drains", "after it drained"])
def test_a_silent_request_that_ends_takes_out_exactly_what_it_added(ends_at: float) -> None:
    load = silent_load()
    load.dispatch(100, 100, 0.0, TAU)
    first = load.silent(100, 0.0, 1 / 1000)
    load.dispatch(100, 100, 0.0, TAU)
    second = load.silent(100, 0.0, 1 / 1000)
    load.backlog(ends_at)
    load.start(100, second)
    load.end(100)
    assert load.backlog(ends_at) == pytest.approx(max(0.0, 100 - 1000 * ends_at))
    load.start(100, first)
    load.end(100)
    reading = read(load, ends_at)
    assert (reading.backlog, reading.queued, load.backlog(ends_at)) == (0.0, 0, 0.0)
    assert (load.requests, load.unstarted, load.backlog_tokens, load.context_tokens) == (0, 0, 0, 0)


def test_drained_requests_do_not_hide_new_ones() -> None:
    load = silent_load()
    load.dispatch(100, 100, 0.0, TAU)
    load.silent(100, 0.0, 1 / 1000)
    assert load.backlog(1.0) == 0.0
    load.dispatch(50, 50, 1.0, TAU)
    assert load.backlog(1.0) == 50.0
    assert read(load, 1.0).queued == 1
    load.dispatch(30, 30, 1.0, TAU)
    load.silent(30, 1.0, 1 / 1000)
    assert load.backlog(1.0) == 80.0
    assert load.backlog(1.08) == pytest.approx(50.0)


@settings(deadline=None, max_examples=60)
@given(sizes=st.lists(st.integers(1, 5000), min_size=1, max_size=6), steps=st.lists(st.floats(0, 2), max_size=8))
def test_a_drain_only_falls_and_stays_between_nothing_and_the_sum(sizes: list[int], steps: list[float]) -> None:
    load, now = silent_load(), 0.0
    for size in sizes:
        load.dispatch(size, size, 0.0, TAU)
        load.silent(size, 0.0, 1 / 1000)
    before = load.backlog(0.0)
    assert before == pytest.approx(sum(sizes))
    for step in steps:
        now += step
        left = load.backlog(now)
        assert -1e-6 <= left <= before + 1e-6
        assert left == pytest.approx(max(0.0, sum(sizes) - 1000 * now), abs=1e-6)
        before = left


# What the engine says.


def loaded() -> Load:
    """Two requests, one of them with its first token."""
    load = Load("a")
    load.dispatch(1000, 600, 0.0, TAU)
    load.dispatch(100, 100, 0.0, TAU)
    load.start(600, None)
    return load


def test_an_engine_that_shows_only_our_own_load_adds_nothing() -> None:
    load = loaded()
    before = read(load, 1.0)
    load.sampled(EngineSample(1.0, running=1, waiting=1, kv_usage=0.4, own_requests=2, own_unstarted=1), learned())
    assert fields_of(read(load, 1.0)) == fields_of(before) | {"kv_usage": 0.4}
    assert load.backlog(1.0) == 100.0


def test_load_beyond_our_own_counts_as_requests_of_mean_size() -> None:
    load = loaded()
    before = read(load, 1.0)
    load.sampled(EngineSample(1.0, running=4, waiting=3, own_requests=2, own_unstarted=1), learned(500, 2000))
    reading = read(load, 1.0)
    assert reading.queued == before.queued + 2
    assert reading.backlog == before.backlog + 2 * 500
    assert reading.running == before.running + 5
    assert reading.context == before.context + 5 * 2000
    assert reading.requests == before.requests
    assert load.backlog(1.0) == before.backlog + 1000


def test_a_silent_request_that_runs_in_the_engine_is_not_counted_twice() -> None:
    load = silent_load()
    load.dispatch(400, 400, 0.0, TAU)
    load.silent(400, 0.0, 1 / 1000)
    load.sampled(EngineSample(0.2, running=1, waiting=0, own_requests=1, own_unstarted=1), learned())
    reading = read(load, 0.2)
    assert (reading.queued, reading.running) == (1, 1.0)
    assert reading.backlog == pytest.approx(200.0)


def test_a_gauge_is_compared_with_our_counts_of_its_own_moment_and_never_with_the_present_ones() -> None:
    load = loaded()
    load.sampled(EngineSample(1.0, running=1, waiting=1, own_requests=2, own_unstarted=1), learned())
    load.start(100, None)
    load.end(1000)
    load.end(100)
    reading = read(load, 1.5)
    assert (reading.queued, reading.backlog, reading.running, reading.context) == (0, 0.0, 0.0, 0.0)
    for _ in range(3):
        load.dispatch(10, 10, 1.5, TAU)
    reading = read(load, 1.5)
    assert (reading.queued, reading.backlog, reading.running, reading.context) == (3, 30.0, 3.0, 30.0)


def test_less_load_than_ours_takes_nothing_away() -> None:
    load = loaded()
    before = read(load, 1.0)
    load.sampled(EngineSample(1.0, running=0, waiting=0, own_requests=2, own_unstarted=1), learned())
    assert fields_of(read(load, 1.0)) == fields_of(before)


def test_gauges_that_an_engine_does_not_export_count_as_nothing() -> None:
    load = loaded()
    before = read(load, 1.0)
    load.sampled(EngineSample(1.0), learned())
    assert fields_of(read(load, 1.0)) == fields_of(before)


@pytest.mark.parametrize(("period", "life"), [(None, 3.0), (0.5, 1.5)], ids=["the usual one", "a shorter one"])
def test_a_sample_is_forgotten_after_three_of_its_periods(period: float | None, life: float) -> None:
    load = Load("a") if period is None else Load("a", period=period)
    load.sampled(EngineSample(10.0, running=2, waiting=1, kv_usage=0.9), learned(500, 2000))
    fresh, stale = read(load, 10.0 + life), read(load, 10.001 + life)
    assert (fresh.queued, fresh.backlog, fresh.running, fresh.context, fresh.kv_usage) == (1, 500.0, 3.0, 6000.0, 0.9)
    assert (stale.queued, stale.backlog, stale.running, stale.context, stale.kv_usage) == (0, 0.0, 0.0, 0.0, None)
    assert load.backlog(10.0 + life) == 500.0
    assert load.backlog(10.001 + life) == 0.0


def test_a_new_sample_replaces_the_old_one() -> None:
    load = Load("a")
    load.sampled(EngineSample(1.0, running=9, waiting=9, kv_usage=0.9), learned())
    sample = EngineSample(2.0, running=1, waiting=0, kv_usage=0.1)
    load.sampled(sample, learned(500, 2000))
    assert load.sample == sample
    reading = read(load, 2.0)
    assert (reading.queued, reading.backlog, reading.running, reading.context) == (0, 0.0, 1.0, 2000.0)


# What is learned.


def test_a_learned_quantity_takes_its_first_sample_whole_and_then_a_tenth() -> None:
    assert follow(1.0, 1.5, 0) == pytest.approx(1.5)
    assert follow(1.0, 1.5, 1) == pytest.approx(1.5**0.5)
    assert follow(1.0, 1.5, 8) == pytest.approx(1.5 ** (1 / 9))
    assert follow(1.0, 1.5, 9) == follow(1.0, 1.5, 1000) == pytest.approx(1.5**0.1)
    assert follow(3.0, 3.0, 50) == pytest.approx(3.0)


def test_no_single_sample_moves_a_learned_quantity_by_more_than_a_factor_of_two() -> None:
    assert follow(1.0, 1e9, 0) == pytest.approx(math.exp(0.7))
    assert follow(1.0, 1e-9, 0) == pytest.approx(math.exp(-0.7))
    assert follow(1.0, 1e9, 50) == pytest.approx(math.exp(0.07))
    assert follow(1.0, 1e-9, 50) == pytest.approx(math.exp(-0.07))


def test_lin_is_learned_from_the_guess_on_and_only_from_enough_tokens() -> None:
    load = Load("a")
    load.learn_lin(1.0, LEARN_MIN_TOKENS - 1, 1 / 1000)
    load.learn_lin(0.0, 5000, 1 / 1000)
    load.learn_lin(-1.0, 5000, 1 / 1000)
    assert load.lin is None
    load.learn_lin(LEARN_MIN_TOKENS / 1500, LEARN_MIN_TOKENS, 1 / 1000)
    assert load.lin == pytest.approx(1 / 1500)
    load.learn_lin(1.0, 1000, 1 / 9)
    assert load.lin == pytest.approx(1 / math.sqrt(1500 * 1000))


def test_lin_starts_from_the_configuration_and_not_from_the_guess() -> None:
    load = Load("a", lin=1 / 1000)
    load.learn_lin(1.0, 100_000, 1 / 100_000)
    assert load.lin == pytest.approx(math.exp(-0.7) / 1000)


def test_the_step_is_learned_from_positive_times_only() -> None:
    load = Load("a", step=0.01)
    load.learn_step(0.0)
    load.learn_step(-0.1)
    assert load.step == 0.01
    load.learn_step(0.012)
    assert load.step == pytest.approx(0.012)
    load.learn_step(0.016)
    assert load.step == pytest.approx(math.sqrt(0.012 * 0.016))


def test_the_first_step_of_a_replica_that_has_told_none_is_believed_as_it_is() -> None:
    load = Load("a")
    load.learn_step(0.06)
    assert load.step == 0.06
    load.learn_step(0.03)
    assert load.step == pytest.approx(math.sqrt(0.06 * 0.03))
    told = Load("a", step=0.006)
    told.learn_step(0.06)
    assert told.step == pytest.approx(0.006 * math.exp(0.7))


def test_a_mean_forgets_its_start_at_once_and_its_samples_by_tenths() -> None:
    mean = Mean(99.0)
    for sample in (1.0, 3.0, 5.0):
        mean.add(sample)
    assert mean.value == pytest.approx(3.0)
    for _ in range(7):
        mean.add(3.0)
    assert mean.seen == 10
    mean.add(13.0)
    assert mean.value == pytest.approx(4.0)
    mean.add(4.0)
    assert mean.value == pytest.approx(4.0)


def test_tokens_per_byte_starts_at_a_quarter_and_is_a_ratio_of_sums() -> None:
    found = Learned()
    assert found.tokens_per_byte == 0.25
    found.saw_prompt(1000, 2500)
    assert found.tokens_per_byte == pytest.approx((0.95 * 1024 + 1000) / (0.95 * 4096 + 2500))
    before = found.tokens_per_byte
    found.saw_prompt(1, 4)
    assert found.tokens_per_byte == pytest.approx(before, rel=0.01)


def test_short_prompts_by_the_hundred_do_not_spoil_the_ratio_of_long_ones() -> None:
    """A template's tokens are most of a short prompt."""
    found = Learned()
    for _ in range(3):
        found.saw_prompt(1038, 3911)
    for _ in range(300):
        found.saw_prompt(22, 12)
    assert found.tokens_per_byte == pytest.approx(1038 / 3911, rel=0.05)


def test_a_model_starts_with_the_means_that_it_says() -> None:
    found = Learned()
    assert (found.output.value, found.prompt.value, found.uncached.value, found.tau.value) == (
        256.0,
        1024.0,
        1024.0,
        5.0,
    )
