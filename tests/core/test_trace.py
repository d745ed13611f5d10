"""What a recording keeps of a request, and why it keeps nothing."""

import pytest

from router.core.lease import Settled
from router.core.record import Attempt, Record, Stages
from router.core.trace import LeftOut, Trace, trace
from router.core.types import Ask, Outcome

ASK = Ask("m", [1, 2], 3, 1_100, streams=True)
ESTIMATE = 275


def record(
    status: int = 200,
    chunks: int = 5,
    streams: bool = True,
    reported: int | None = None,
    completion_tokens: int | None = None,
) -> Record:
    """One answer by one replica, after another that was full."""
    last = Settled("r2", Outcome.OK, ESTIMATE, 0, 0, reported, completion_tokens, 0.1, 1.0, 0)
    full = Attempt(Settled("r1", Outcome.REFUSED, 1, 0, 0, 9, 9, None, 0.1, 0), None)
    return Record(
        "id", "chat", "m", streams, status, 1.5, Stages(), attempts=[full, Attempt(last, None)], chunks=chunks
    )


def kept(found: Trace | LeftOut) -> Trace:
    assert isinstance(found, Trace)
    return found


def test_what_the_engine_counted_is_kept() -> None:
    found = trace(ASK, record(reported=256, completion_tokens=40), 10.0)
    assert found == Trace(8.5, "m", [1, 2], 3, 1_100, None, ESTIMATE, 256, 40)


@pytest.mark.parametrize(("reported", "completion_tokens"), [(None, 40), (0, None)])
def test_an_engine_that_told_one_count_has_told_the_prompts_too(
    reported: int | None, completion_tokens: int | None
) -> None:
    told = record(reported=reported, completion_tokens=completion_tokens)
    assert kept(trace(ASK, told, 10.0)).prompt_tokens == ESTIMATE


def test_without_the_engines_count_the_routers_estimate_of_the_prompt_is_not_passed_off_as_one() -> None:
    assert kept(trace(ASK, record(), 10.0)).prompt_tokens is None


@pytest.mark.parametrize(("streams", "output"), [(True, 5), (False, 1)])
def test_without_the_engines_count_a_stream_is_as_long_as_the_reads_it_came_in(streams: bool, output: int) -> None:
    assert kept(trace(ASK, record(streams=streams), 10.0)).output_tokens == output


def test_an_answer_without_a_token_counts_as_one() -> None:
    assert kept(trace(ASK, record(completion_tokens=0), 10.0)).output_tokens == 1


def test_a_request_without_a_prompt_is_left_out() -> None:
    assert trace(Ask("m"), record(), 10.0) is LeftOut.NO_PROMPT


@pytest.mark.parametrize(
    "unanswered",
    [record(status=0), record(status=404), record(chunks=0), record()._replace(attempts=())],
    ids=["left before", "refused by the engine", "left before a token", "answered by the router"],
)
def test_a_request_without_a_good_answer_is_left_out(unanswered: Record) -> None:
    assert trace(ASK, unanswered, 10.0) is LeftOut.NOT_ANSWERED
