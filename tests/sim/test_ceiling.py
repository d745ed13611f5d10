"""The ceiling is what an engine with a cache of endless size reports."""

from dataclasses import replace

import pytest

from loadtests.answer import request_body
from loadtests.ceiling import ceiling_hit_ratio
from loadtests.fleet import MODEL, FleetShape
from loadtests.records import Record
from loadtests.traces import TraceRequest, trace_workload
from loadtests.workloads import ChatShape, Message, Workload, chat_workload
from replica.engine import Engine
from replica.openai_requests import Model, parse_body, parse_chat, plan
from replica.profiles import PROFILES
from replica.tokens import Tokenizer
from tests.sim.records import BLANK

SHAPE = FleetShape(seed=3)
TOKENIZER = Tokenizer(MODEL, SHAPE.seed)


class OneReplica:
    """An engine with far more blocks than any test needs; answers one request after the other."""

    def __init__(self) -> None:
        self.engine = Engine(PROFILES[SHAPE.profile], blocks=100_000, block_size=SHAPE.block_size)
        self.model = Model(MODEL, (), TOKENIZER, SHAPE.block_size, 131_072, SHAPE.seed)
        self.served = 0

    def answer(self, messages: tuple[Message, ...], max_tokens: int) -> Record:
        self.served += 1
        body = parse_body(request_body(MODEL, messages, max_tokens))
        [(work, answer)] = plan(parse_chat(body, self.model), self.model, lambda: str(self.served))
        self.engine.add(work, 0.0)
        cached = 0
        while self.engine.busy:
            cached += sum(admission.cached_tokens for admission in self.engine.step(0.0).admitted)
        return replace(
            BLANK,
            messages=messages,
            answer=answer.text,
            prompt_tokens=work.prompt_tokens,
            completion_tokens=answer.tokens,
            cached_tokens=cached,
        )


def played(workload: Workload) -> list[Record]:
    """Every session to its end, one after the other, on one replica that forgets nothing."""
    replica = OneReplica()
    records = []
    for session in workload.sessions:
        history = session.opening
        for turn in session.turns:
            record = replica.answer((*history, turn.question), turn.max_tokens)
            records.append(record)
            if session.remembers:
                history = (*record.messages, Message("assistant", (record.answer,)))
    return records


def reported(records: list[Record]) -> float:
    return sum(record.cached_tokens for record in records) / sum(record.prompt_tokens for record in records)


def test_the_ceiling_of_chats_is_what_an_endless_engine_reports() -> None:
    shape = ChatShape(preambles=3, preamble_tokens=700, sessions=6, turns=4, bytes_per_token=TOKENIZER.bytes_per_token)
    records = played(chat_workload(5, shape))
    assert reported(records) > 0.5
    assert ceiling_hit_ratio(records, SHAPE) == pytest.approx(reported(records), abs=1e-12)


def test_the_ceiling_of_a_trace_is_what_an_endless_engine_reports() -> None:
    trace = [
        TraceRequest(0, 1_024, 40, (0, 1)),
        TraceRequest(10, 1_500, 40, (0, 1, 2)),
        TraceRequest(20, 1_024, 40, (0, 1)),
        TraceRequest(30, 600, 40, (3, 4)),
    ]
    records = played(trace_workload(trace, 1, TOKENIZER.bytes_per_token))
    # 1,024 of 1,500 and all but the last block of 1,024 tokens; the template's own tokens shift it by a few.
    assert reported(records) == pytest.approx((1_024 + 1_024) / (1_024 + 1_500 + 1_024 + 600), abs=0.02)
    assert ceiling_hit_ratio(records, SHAPE) == pytest.approx(reported(records), abs=1e-12)


def test_a_failed_request_counts_for_nothing_but_warms_the_cache() -> None:
    messages = (Message("user", ("word " * 400,)),)
    failed = replace(BLANK, messages=messages, answer="", error="reset")
    whole = OneReplica().answer(messages, 5)
    assert ceiling_hit_ratio([failed], SHAPE) is None
    assert ceiling_hit_ratio([whole], SHAPE) == 0.0
    assert ceiling_hit_ratio([failed, whole], SHAPE) == pytest.approx(1.0, abs=17 / whole.prompt_tokens)
