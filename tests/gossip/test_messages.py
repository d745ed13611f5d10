"""Messages: what goes out comes in, and what is no message is refused."""

from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.backlog import LearnedNews, Totals
from router.core.lease import Settled
from router.core.peers import ModelNews, RateNews
from router.core.record import Attempt, HandshakeError, Phase, Record, Stages, UpstreamError
from router.core.trace import LeftOut, Trace
from router.core.types import EngineSample, Limit, Outcome, Reason, State
from router.gossip import messages
from router.gossip.messages import (
    AnyMessage,
    Applied,
    Batch,
    Bye,
    Codec,
    Corrected,
    Down,
    Drain,
    Ejected,
    Explain,
    Explained,
    Full,
    Heard,
    Learned,
    Load,
    Member,
    Members,
    Placed,
    Records,
    Refused,
    Report,
    Reported,
    Settings,
    Shadowed,
    Shared,
    Summarise,
    Summarised,
    Summary,
    Traces,
    Tracing,
    Up,
)
from router.tls import Pems

HASH = 2**64 - 1
RECORD = Record(
    "id", "chat", "m", True, 200, 1.5, Stages(0.1, None, 0.2), Reason.SPILL,
    [Attempt(Settled("r1", Outcome.OK, 10, 9, 8, None, 6, 0.5, 1.0, 0), UpstreamError.RESET)], [Limit.FULL], 3, 2,
    0.1, None, "queue_full", Phase.QUEUED,
)  # fmt: skip
TRACE = Trace(1.5, "m", [1, HASH], 3, 1_100, None, 275, 256, 8)
TOTALS = Totals(1, 2, 3, 4, 5, 6.5, 7.5, 8.5)
LEARNED = LearnedNews((1.5, 1), (2.5, 2), (3.5, 3), (4.5, 4), 5.5, 6.5)
MODEL = ModelNews("m", 7, [HASH], LEARNED)
RATE = RateNews("r1", None, 0, 0.5, 3)
SUMMARY = Summary("r1", 1.5, messages.packed([1, HASH]), 2)
SAMPLE = EngineSample(1.5, 2, None, 0.5, 3, 4)

EXAMPLES: list[AnyMessage] = [
    Settings(1, "0.1", {"replicas": [{"id": "r1", "w": 1.5}], "models": {"m": None}}, "token", Pems(b"PEM"), b"root"),
    Members([Member("r1", State.FULL, "why", 1.5, {"m": {"id": "m"}}, None, 5, SAMPLE)]),
    Drain(1.0, 2.0, 3.0), Report(4), Explain(5, "/v1/x", b"\x00\xff"), Applied(1),
    Records([RECORD], [0.5], {HandshakeError.CLOSED: 2}),
    Shadowed(
        7,
        [(1.5, 1, "r1", "m", True, None, (600, messages.packed([1, HASH]), HASH, None, {512: 600}))],
        [(1.6, 1)],
        [(1.7, 1, Outcome.OK, 150, None)],
    ),
    Reported(4, {"": 1, "m": 2}, {"r1": 3}, 3, 4, 5, {"Load": 6}, 0.5), Explained(5, b"{}"), Refused("r1"),
    Full("r1", 2.5), Ejected("r1", "why", 5.0),
    Tracing(True), Traces([TRACE], {LeftOut.EARLIER: 2}), Summarise(6, "r1"), Summarised(6, SUMMARY), SUMMARY,
    Load("a", 1, True, {"r1": TOTALS}), Placed("a", [("r1", None, [1, HASH]), ("r1", HASH, [])]),
    Learned("a", [MODEL], [RATE]), Corrected("a", "r1", HASH), Bye("a"),
    Heard([Batch("a", 512, [Load("a", 1, True, {"r1": TOTALS}), Full("r1", 2.5), Bye("a")], 7, 5, {"b": 3})]),
]  # fmt: skip


def there_and_back(message: AnyMessage) -> Any:
    codec = Codec()
    return codec.decode(codec.encode(message))


def test_there_is_an_example_of_every_message() -> None:
    assert {type(each) for each in EXAMPLES} == {each for group in (Down, Up, Shared) for each in get_args(group)}


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: type(message).__name__)
def test_a_message_comes_in_as_it_went_out(message: AnyMessage) -> None:
    codec = Codec()
    told = there_and_back(message)
    assert type(told) is type(message)
    assert codec.encode(told) == codec.encode(message)


def test_batches_that_are_bytes_go_into_one_message_as_they_are() -> None:
    batches = [Batch(peer, 512, [Load(peer, 1, True, {"r1": TOTALS}), Bye(peer)]) for peer in "ab"]
    codec = Codec()
    assert codec.together([codec.encode(each) for each in batches]) == codec.encode(Heard(batches))


def test_the_cores_nouns_come_in_as_they_went_out() -> None:
    assert messages.record(there_and_back(Records([RECORD], [], {})).records[0]) == RECORD
    assert messages.trace(there_and_back(Traces([TRACE], {})).traces[0]) == TRACE
    assert messages.totals(there_and_back(Load("a", 1, False, {"r1": TOTALS})).loads["r1"]) == TOTALS
    learned = there_and_back(Learned("a", [MODEL], [RATE]))
    assert messages.model(learned.models[0]) == MODEL
    assert messages.rate(learned.rates[0]) == RATE
    [member] = there_and_back(EXAMPLES[1]).members
    assert (messages.sample(member.sample), member.state) == (SAMPLE, State.FULL)


def test_a_record_is_small_enough_to_send_thousands_a_second() -> None:
    """CASES A25: what is sent follows what has happened. Some 200 bytes, most of them the request's id and names."""
    assert len(Codec().encode(Records([RECORD] * 100, [], {}))) < 100 * 150


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x90",
        b"\x91\xa4Nope",
        b"\x92\xa3Bye\x01",
        b"\x91\xa3Bye",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x93\xa6Report",
    ],
)  # fmt: skip
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        Codec().decode(data)


@given(data=st.binary(max_size=200))
def test_any_bytes_are_a_message_or_refused(data: bytes) -> None:
    try:
        Codec().decode(data)
    except msgspec.DecodeError:
        return
