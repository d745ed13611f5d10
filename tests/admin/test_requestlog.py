"""The request log: what a line says, and that nobody waits for it."""

import io
import json
import logging
import threading
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from router.admin import requestlog
from router.admin.requestlog import LONGEST, RequestLog, line
from router.core.record import Phase, Stages, UpstreamError
from router.core.types import Limit, Outcome
from tests.admin.making import record_of, sent, settled


class Kept(logging.Handler):
    """Keeps lines; `hold` makes it as slow as a pipe that nobody reads."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.hold = threading.Event()
        self.hold.set()
        self.writing = threading.Event()
        self.logger = logging.getLogger("a log of its own")

    def emit(self, record: logging.LogRecord) -> None:
        self.writing.set()
        assert self.hold.wait(10)
        self.lines.append(record.getMessage())


@pytest.fixture
def kept() -> Iterator[Kept]:
    handler = Kept()
    handler.logger.setLevel(logging.INFO)
    handler.logger.addHandler(handler)
    yield handler
    handler.hold.set()
    handler.logger.removeHandler(handler)


def test_a_line_tells_what_the_table_says_in_its_order() -> None:
    attempts = sent((settled(outcome=Outcome.REFUSED), UpstreamError.STATUS_429), settled("r1"))
    told = json.loads(line(1_700_000_000.1234, record_of(attempts=attempts, cuts=[Limit.FULL, Limit.FULL])))
    assert told == {
        "ts": "2023-11-14T22:13:20.123Z",
        "request_id": "id-1",
        "model": "llama",
        "endpoint": "chat",
        "stream": True,
        "status": 200,
        "reason": "holder",
        "replica": "r1",
        "attempts": [
            {"replica": "r0", "outcome": "refused", "error": "status_429"},
            {"replica": "r1", "outcome": "ok", "error": None},
        ],
        "prompt_tokens": 1000,
        "reachable": 800,
        "predicted": 700,
        "reported": 600,
        "completion_tokens": 11,
        "ttfc_s": 0.25,
        "duration_s": 1.25,
        "stages": {"parse": 0.001, "pick": 0.0001, "connect": 0.0009, "first_byte": 0.248, "body": 1.0},
        "rejected": None,
        "left": None,
        "limit_cuts": {"full": 2},
    }
    assert requestlog.__doc__ is not None
    rows = [row.split("|")[1] for row in requestlog.__doc__.splitlines() if row.startswith("| ")][2:]
    assert [name.strip() for row in rows for name in row.split(",")] == list(told)


def test_a_request_that_never_became_one_has_a_line_too() -> None:
    told = json.loads(line(0.0, record_of(
        model=None, status=0, reason=None, attempts=(), stages=Stages(), blocks=None, chunks=0, first_chunk=None,
        last_chunk=None, rejected="no_replica", left=Phase.UPLOADING,
    )))  # fmt: skip
    assert (told["status"], told["model"], told["replica"], told["predicted"]) == (None, None, None, None)
    assert (told["left"], told["rejected"], told["attempts"], told["stages"]) == ("uploading", "no_replica", [], {})


def test_what_a_client_chooses_is_cut_and_cannot_break_the_line() -> None:
    text = line(0.0, record_of(model='"\n{"status":200}' + "x" * 10_000, request_id="\r\n" * 1000))
    assert "\n" not in text
    assert "\r" not in text
    assert len(json.loads(text)["model"]) == len(json.loads(text)["request_id"]) == LONGEST


def test_lines_come_in_the_order_of_requests_and_a_stop_waits_for_them(kept: Kept) -> None:
    log = RequestLog(kept.logger)
    before = datetime.now(UTC)
    log.start()
    for i in range(500):
        log.record(record_of(request_id=f"id-{i}"))
    log.close()
    told = [json.loads(text) for text in kept.lines]
    assert [one["request_id"] for one in told] == [f"id-{i}" for i in range(500)]
    assert datetime.fromisoformat(told[0]["ts"]).timestamp() >= int(before.timestamp())


def test_a_reader_that_stands_still_costs_lines_and_never_a_wait(kept: Kept) -> None:
    kept.hold.clear()
    log = RequestLog(kept.logger, buffer=10)
    log.start()
    log.record(record_of(request_id="first"))
    assert kept.writing.wait(10)  # The thread is stuck with the first from here on.
    for i in range(100):
        log.record(record_of(request_id=f"id-{i}"))
    assert log.dropped == 90
    kept.hold.set()
    log.close()
    assert len(kept.lines) == 11


def test_the_lines_go_to_a_stream_of_their_own_whatever_the_level_of_the_rest() -> None:
    stream = io.StringIO()
    logger = requestlog.log
    before = (logger.level, logger.propagate, list(logger.handlers))
    try:
        log = RequestLog(requestlog.to(stream))
        log.start()
        log.record(record_of())
        log.close()
        assert json.loads(stream.getvalue())["request_id"] == "id-1"
        assert not logger.propagate
    finally:
        logger.level, logger.propagate, logger.handlers[:] = before
