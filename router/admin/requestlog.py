"""The request log: one JSON line for each request, made of the same record as the metrics. Off by `log.requests`.

A request hands its record over and goes on; a thread makes the lines and writes them through the logger
`homing.requests`, so a slow disk or a stopped reader of the pipe costs lines, which are counted, and never time. No
prompt, no answer, no key and no header but the request id is in a record, so none can be in a line.

| field | what it is |
| --- | --- |
| ts | end of the request, ISO 8601 UTC; its arrival is `duration_s` before |
| request_id | the client's x-request-id, or the router's own |
| model, endpoint, stream | what was asked; model null: none was named |
| status | the answer's; null: the client left before there was one |
| reason | why the replica was chosen; null: none was |
| replica | the one whose answer the client got, or was waiting for; null: none |
| attempts | each send: `replica`, `outcome` (ok, aborted, failed, refused, not_reached), `error` or null |
| prompt_tokens, reachable, predicted, reported | the locality ledger of the last send; reported null: not told |
| completion_tokens | as the engine told; null: it did not |
| ttfc_s, duration_s | seconds from arrival to the first body byte, and to the end |
| stages | seconds in parse, queue, pick, connect, first_byte, body; those that were reached |
| rejected | why the router itself refused; null: it did not |
| left | where the client left: uploading, queued, waiting, streaming; null: it did not |
| limit_cuts | limit -> how many ready replicas it cut from the choice |
"""

import logging
import threading
import time
from collections import Counter
from datetime import UTC, datetime
from queue import SimpleQueue
from typing import Any, TextIO

import msgspec

from router.core.record import Record

log = logging.getLogger("homing.requests")

BUFFER = 10_000
"""Records that may wait for the thread: some seconds of a busy worker, about 15 MB."""

LONGEST = 256
"""Characters kept of what a client chooses: its request id and the model's name."""

CLOSE_SECONDS = 2.0
"""How long a stop waits for the lines still to be written; a pipe that nobody reads would hold it for ever."""


_LEDGER = ("prompt_tokens", "reachable", "predicted", "reported", "completion_tokens")
"""Fields of a settled lease that keep their names in the line."""


def to(stream: TextIO) -> logging.Logger:
    """The logger, with its lines going to this stream as they are, whatever the level and format of the other logs."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
    return log


class RequestLog:
    """Writes once it was started. `dropped` counts the records that found the buffer full."""

    def __init__(self, logger: logging.Logger = log, buffer: int = BUFFER) -> None:
        self._logger, self._buffer = logger, buffer
        self._queue: SimpleQueue[tuple[float, Record] | None] = SimpleQueue()
        self.dropped = 0
        self._thread = threading.Thread(target=self._write, name="request-log", daemon=True)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def record(self, record: Record) -> None:
        """Hand a finished request over. Never waits."""
        if self._queue.qsize() >= self._buffer:
            self.dropped += 1
        else:
            self._queue.put((time.time(), record))

    def close(self) -> None:
        """Write what is left, for as long as CLOSE_SECONDS. Blocks: call it from a thread, or at the end."""
        self._queue.put(None)
        self._thread.join(CLOSE_SECONDS)

    def _write(self) -> None:
        while (item := self._queue.get()) is not None:
            self._logger.info("%s", line(*item))


def line(at: float, record: Record) -> str:
    """The line of a request that ended `at`, in Unix seconds."""
    return msgspec.json.encode(fields(at, record)).decode()


def fields(at: float, record: Record) -> dict[str, Any]:
    """The same as values, in the order of the table above."""
    last = record.attempts[-1].settled if record.attempts else None
    sends = [{"replica": sent.replica, "outcome": sent.outcome, "error": error} for sent, error in record.attempts]
    return {
        "ts": datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "request_id": record.request_id[:LONGEST],
        "model": None if record.model is None else record.model[:LONGEST],
        "endpoint": record.endpoint,
        "stream": record.streams,
        "status": record.status or None,
        "reason": record.reason,
        "replica": None if last is None else last.replica,
        "attempts": sends,
        **{name: getattr(last, name, None) for name in _LEDGER},
        "ttfc_s": _seconds(record.first_chunk),
        "duration_s": _seconds(record.seconds),
        "stages": {name: _seconds(spent) for name, spent in record.stages._asdict().items() if spent is not None},
        "rejected": record.rejected,
        "left": record.left,
        "limit_cuts": dict(Counter(record.cuts)),
    }


def _seconds(value: float | None) -> float | None:
    return None if value is None else round(value, 6)
