"""The engine: what a step schedules, what it costs, and that nothing is ever lost, whatever happens."""

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from replica.engine import DoesNotFitError, Engine, Limits, StepResult, Work
from replica.profiles import PROFILES

PROFILE = PROFILES["llama3-8b-h100"]


def run(engine: Engine, steps: int = 10_000) -> list[StepResult]:
    """Step until idle, on a clock of its own."""
    now, results = 0.0, []
    while engine.busy:
        results.append(engine.step(now))
        now += results[-1].duration
        assert len(results) < steps, "the engine does not come to an end"
    return results


def cached(results: list[StepResult], request: str) -> int:
    (found,) = [
        admission.cached_tokens for result in results for admission in result.admitted if admission.id == request
    ]
    return found


def names(tokens: int, seed: int = 0, block_size: int = 16) -> list[int]:
    return [seed * 1_000_000 + index for index in range(tokens // block_size)]


class EngineMachine(RuleBasedStateMachine):
    """A tiny engine under any sequence of add, abort and step."""

    def __init__(self) -> None:
        super().__init__()
        self.limits = Limits(max_num_batched_tokens=10, max_num_seqs=3)
        self.engine = Engine(PROFILE, blocks=9, block_size=4, limits=self.limits)
        self.works: dict[str, Work] = {}
        self.got: Counter[str] = Counter()
        self.queue: list[str] = []
        self.preempted: set[str] = set()
        self.now = 0.0

    @rule(prompt=st.integers(1, 24), output=st.integers(0, 12), seed=st.integers(0, 2), named=st.booleans())
    def add(self, prompt: int, output: int, seed: int, named: bool) -> None:
        request = f"q{len(self.works)}"
        work = Work(request, prompt, output, names(prompt + output, seed, 4) if named else ())
        self.engine.add(work, self.now)
        self.works[request] = work
        self.queue.append(request)

    @precondition(lambda self: self.works)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(sorted(self.works)))
        before = self.engine.running + self.engine.waiting
        dropped = self.engine.abort(request)
        assert self.engine.running + self.engine.waiting == before - dropped
        assert not self.engine.abort(request)
        self.queue = [other for other in self.queue if other != request]

    @rule()
    def step(self) -> None:
        busy = self.engine.busy
        result = self.engine.step(self.now)
        assert (result.duration > 0) == busy
        self.now += result.duration
        assert result.prefill_tokens + result.decode_tokens <= self.limits.max_num_batched_tokens
        self.follow(result)

    def follow(self, result: StepResult) -> None:
        assert [admission.id for admission in result.admitted] == self.queue[: len(result.admitted)], "not FIFO"
        del self.queue[: len(result.admitted)]
        self.got.update(result.tokens)
        for request in result.finished:
            assert self.got[request] == self.works[request].output_tokens
        for request in result.preempted:
            self.preempted.add(request)
        if result.preempted:
            assert not result.admitted

    @invariant()
    def never_more_sequences_than_allowed(self) -> None:
        assert self.engine.running <= self.limits.max_num_seqs

    @invariant()
    def an_idle_engine_holds_nothing(self) -> None:
        if not self.engine.running:
            assert self.engine.cache.free == self.engine.cache.blocks

    def teardown(self) -> None:
        for result in run(self.engine):
            self.follow(result)
        assert self.queue == []
        assert self.engine.cache.free == self.engine.cache.blocks
        assert self.engine.counters.generation_tokens == sum(self.got.values())
        assert self.engine.counters.prefix_hits <= self.engine.counters.prefix_queries


EngineMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestEngineUnderAnything = EngineMachine.TestCase


def test_a_step_with_decodes_alone_costs_the_floor_and_the_reads_of_their_context() -> None:
    assert PROFILE.duration(0, 1, 0) == pytest.approx(6.0e-3)
    assert PROFILE.duration(0, 64, 0) == pytest.approx(6.3e-3)
    assert PROFILE.duration(0, 64, 100_000) == pytest.approx(6.3e-3 + 3.9e-3)


def test_prefill_hides_a_shorter_decode_and_is_not_added_to_it() -> None:
    assert PROFILE.duration(8_192, 64, 0) == pytest.approx(0.256)
    assert PROFILE.duration(32, 64, 0) == pytest.approx(6.3e-3)


def test_speed_scales_every_time_and_no_size() -> None:
    fast = PROFILE.at_speed(10)
    assert fast.duration(8_192, 5, 1_000) == pytest.approx(PROFILE.duration(8_192, 5, 1_000) / 10)
    assert fast.kv_tokens == PROFILE.kv_tokens
    with pytest.raises(ValueError, match="above 0"):
        PROFILE.at_speed(0)


@pytest.mark.parametrize(("tokens", "expected"), [(64, 48), (65, 64), (79, 64), (80, 64), (16, 0), (5, 0)])
def test_a_repeated_prompt_hits_all_its_full_blocks_but_computes_its_last_token(tokens: int, expected: int) -> None:
    engine = Engine(PROFILE, blocks=100)
    engine.add(Work("first", tokens, 3, names(tokens)), 0.0)
    engine.add(Work("again", tokens, 3, names(tokens)), 0.0)
    results = run(engine)
    assert cached(results, "first") == 0
    assert cached(results, "again") == expected
    assert engine.counters.prefix_hits == expected
    assert engine.counters.prefix_queries == 2 * tokens


def test_a_long_prompt_is_prefilled_in_chunks_of_the_budget() -> None:
    engine = Engine(PROFILE, blocks=2_000)
    engine.add(Work("long", 20_000, 1, names(20_000)), 0.0)
    results = run(engine)
    assert [result.prefill_tokens for result in results] == [8_192, 8_192, 3_616]
    assert [result.tokens for result in results] == [[], [], ["long"]]


def test_a_prefix_is_hit_one_step_after_it_was_scheduled_not_when_its_request_ends() -> None:
    engine = Engine(PROFILE, blocks=2_000)
    engine.add(Work("long", 12_000, 50, names(12_000)), 0.0)
    engine.step(0.0)
    engine.add(Work("late", 12_000, 50, names(12_000)), 0.1)
    admitted = engine.step(0.3).admitted
    assert [admission.id for admission in admitted] == ["late"]
    assert admitted[0].cached_tokens == 11_984
    assert admitted[0].waited == pytest.approx(0.2)


def test_decodes_come_before_prefill_and_prefill_before_admission() -> None:
    engine = Engine(PROFILE, blocks=2_000, limits=Limits(100, 10))
    engine.add(Work("decoding", 50, 9), 0.0)
    engine.step(0.0)
    engine.add(Work("prefilling", 250, 9), 0.0)
    engine.add(Work("waiting", 30, 9), 0.0)
    steps = [engine.step(0.0) for _ in range(3)]
    assert [(step.decode_tokens, step.prefill_tokens) for step in steps] == [(1, 99), (1, 99), (1, 52 + 30)]
    assert [[admission.id for admission in step.admitted] for step in steps] == [["prefilling"], [], ["waiting"]]


def test_blocks_of_an_answer_are_hit_by_the_next_turn() -> None:
    engine = Engine(PROFILE, blocks=100)
    engine.add(Work("turn 1", 40, 60, names(100)), 0.0)
    run(engine)
    engine.add(Work("turn 2", 130, 5, names(130)), 0.0)
    # 40 + 60 - 1 tokens had their keys and values computed: the last token was sampled, never fed back.
    assert cached(run(engine), "turn 2") == 96


def test_blocks_without_a_name_take_memory_and_are_never_hit() -> None:
    engine = Engine(PROFILE, blocks=100)
    for request in ("one", "two"):
        engine.add(Work(request, 64, 4), 0.0)
        engine.step(0.0)
    assert engine.cache.free == 100 - 5 - 4
    assert engine.counters.prefix_hits == 0


def test_the_latest_admitted_is_preempted_then_recomputed_from_what_is_still_cached() -> None:
    engine = Engine(PROFILE, blocks=8)
    engine.add(Work("old", 60, 40, names(100, 1)), 0.0)
    engine.add(Work("new", 62, 40, names(102, 2)), 0.0)
    results = run(engine)
    preempted = [request for result in results for request in result.preempted]
    finished = [request for result in results for request in result.finished]
    assert preempted == ["new"]
    assert finished == ["old", "new"]
    assert Counter(request for result in results for request in result.tokens) == {"old": 40, "new": 40}
    assert engine.counters.preemptions == 1
    assert engine.counters.prompt_tokens == 122, "a recomputation is not a second prompt"
    recomputed = sum(result.prefill_tokens for result in results) - 122
    assert 0 < recomputed < 62, "some of the victim's blocks were still there"


def test_a_preempted_request_returns_ahead_of_those_that_waited() -> None:
    engine = Engine(PROFILE, blocks=8)
    for request, seed in (("old", 1), ("new", 2), ("waiting", 3)):
        engine.add(Work(request, 60, 40, names(100, seed)), 0.0)
    finished = [request for result in run(engine) for request in result.finished]
    assert finished == ["old", "new", "waiting"]


def test_a_step_that_preempted_admits_nobody() -> None:
    """The small budget would let the victim's first chunk back in at once."""
    engine = Engine(PROFILE, blocks=8, limits=Limits(32, 4))
    engine.add(Work("old", 60, 40), 0.0)
    engine.add(Work("new", 62, 40), 0.0)
    while not engine.step(0.0).preempted:
        assert engine.busy
    assert (engine.running, engine.waiting) == (1, 1)


class WatchedNames(list[int]):
    """Counts how often a lookup walks over them."""

    walks = 0

    def __iter__(self) -> Iterator[int]:
        self.walks += 1
        return super().__iter__()


def test_a_request_that_did_not_fit_is_tried_again_as_soon_as_one_more_block_is_free() -> None:
    engine = Engine(PROFILE, blocks=3)
    watched = WatchedNames(names(20))
    engine.add(Work("long", 4, 12), 0.0)
    engine.add(Work("short", 4, 6), 0.0)
    engine.add(Work("blocked", 20, 1, watched), 0.0)
    finished = [request for result in run(engine) for request in result.finished]
    assert finished == ["short", "blocked", "long"]
    assert watched.walks == 2


def test_a_prefill_alone_finishes_without_a_token() -> None:
    engine = Engine(PROFILE, blocks=10)
    engine.add(Work("embedding", 40, 0), 0.0)
    result = engine.step(0.0)
    assert result.finished == ["embedding"]
    assert result.tokens == []
    assert not engine.busy


def test_what_could_never_finish_is_refused_at_the_door() -> None:
    engine = Engine(PROFILE, blocks=4)
    with pytest.raises(DoesNotFitError, match="exceed the KV cache of 64"):
        engine.add(Work("long", 60, 5), 0.0)
    engine.add(Work("fits", 60, 4), 0.0)
    with pytest.raises(ValueError, match="already in the engine"):
        engine.add(Work("fits", 1, 1), 0.0)
    assert run(engine)[-1].finished == ["fits"]


def test_a_step_without_requests_does_nothing_and_takes_no_time() -> None:
    assert Engine(PROFILE, blocks=1).step(0.0) == StepResult()


def test_equal_input_gives_equal_steps() -> None:
    def replay() -> list[StepResult]:
        engine = Engine(PROFILE, blocks=40)
        for index in range(30):
            engine.add(Work(f"q{index}", 100 + 13 * index % 300, 1 + index % 17, names(400, index % 4)), 0.0)
        return run(engine)

    assert replay() == replay()


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Work("w", 0, 1),
        lambda: Work("w", 1, -1),
        lambda: Limits(max_num_batched_tokens=8, max_num_seqs=9),
        lambda: Engine(PROFILE, blocks=1, block_size=0),
    ],
)
def test_impossible_sizes_are_refused(wrong: object) -> None:
    assert callable(wrong)
    with pytest.raises(ValueError, match=r"must be|tokens"):
        wrong()


class _Shape(NamedTuple):
    """A request of the comparison below: when it comes, and how long it is."""

    at: float
    prompt: int
    output: int
    seed: int


def replayed(shapes: list[_Shape], skipping: bool) -> tuple[dict[str, tuple[float, float]], Engine]:
    """When each request had its first token and its end, step by step or with quiet steps skipped.

    Prompts share names, answers do not: which of two copies of a block keeps its name depends on who is first.
    """
    engine = Engine(PROFILE, blocks=60, block_size=4, limits=Limits(32, 5))
    arrivals = []
    for i, shape in enumerate(shapes):
        known = names(shape.prompt, shape.seed, 4) + names(shape.output, 100 + i, 4)
        arrivals.append((shape.at, Work(f"q{i}", shape.prompt, shape.output, known)))
    arrivals.sort(key=lambda arrival: arrival[0])
    now, firsts, ends = 0.0, dict[str, float](), dict[str, float]()
    while arrivals or engine.busy:
        now = now if engine.busy else max(now, arrivals[0][0])
        while arrivals and arrivals[0][0] <= now:
            engine.add(arrivals.pop(0)[1], now)
        quiet = engine.quiet() if skipping else None
        if quiet is not None:
            steps = quiet.until(arrivals[0][0] - now) if arrivals else quiet.steps
            engine.skip(steps)
            now += quiet.seconds(steps)
            continue
        result = engine.step(now)
        now += result.duration
        for request in result.tokens:
            firsts.setdefault(request, now)
        ends |= dict.fromkeys(result.finished, now)
    return {request: (firsts[request], end) for request, end in ends.items()}, engine


@given(
    st.lists(
        st.builds(_Shape, st.floats(0, 0.2), st.integers(1, 40), st.integers(1, 100), st.integers(0, 3)),
        min_size=1,
        max_size=8,
    )
)
@settings(max_examples=60, deadline=None)
def test_quiet_steps_skipped_are_the_steps_that_would_have_been(shapes: list[_Shape]) -> None:
    stepped, engine = replayed(shapes, skipping=False)
    skipped, other = replayed(shapes, skipping=True)
    assert list(stepped) == list(skipped)
    for request, times in stepped.items():
        assert skipped[request] == pytest.approx(times)
    assert other.counters == engine.counters
    assert (other.cache.free, other.cache.resident) == (engine.cache.free, engine.cache.resident)


def test_steps_that_only_decode_are_quiet_until_somebody_finishes() -> None:
    engine = Engine(PROFILE, blocks=100)
    engine.add(Work("short", 16, 10), 0.0)
    engine.add(Work("long", 16, 50), 0.0)
    assert engine.quiet() is None
    engine.step(0.0)
    quiet = engine.quiet()
    assert quiet is not None
    assert (quiet.steps, quiet.decodes, quiet.context) == (8, 2, 32)
    assert quiet.seconds(2) == pytest.approx(PROFILE.duration(0, 2, 32) + PROFILE.duration(0, 2, 34))
    assert [quiet.until(seconds) for seconds in (0.0, 0.001, quiet.seconds(3), quiet.seconds(3) + 1e-9, 9.0)] == [
        0, 1, 3, 4, 8,
    ]  # fmt: skip
    engine.skip(8)
    assert engine.quiet() is None
    assert engine.step(0.0).finished == ["short"]


def test_steps_are_quiet_only_as_long_as_there_are_blocks_for_them() -> None:
    engine = Engine(PROFILE, blocks=4, block_size=4)
    engine.add(Work("long", 4, 12), 0.0)
    engine.add(Work("other", 4, 8), 0.0)
    engine.step(0.0)
    quiet = engine.quiet()
    assert quiet is not None
    assert quiet.steps == 4
    with pytest.raises(ValueError, match="not quiet"):
        engine.skip(5)


def test_a_request_that_could_be_admitted_ends_the_quiet_and_one_that_cannot_does_not() -> None:
    engine = Engine(PROFILE, blocks=4, block_size=4)
    engine.add(Work("long", 4, 9), 0.0)
    engine.step(0.0)
    engine.add(Work("big", 16, 0), 0.0)
    assert engine.quiet() is None
    engine.step(0.0)
    assert engine.quiet() is not None, "it did not fit, and will not before somebody ends"
