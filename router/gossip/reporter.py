"""A worker's records of finished requests and what else it counts, in batches, up to the supervisor.

On a request's path: one append, and another while somebody records the traffic. What the supervisor does not take is
dropped and counted by the channel.
"""

import asyncio
from collections import Counter
from collections.abc import Callable

from router.core.record import HandshakeError, Record
from router.core.trace import LeftOut, Trace
from router.gossip.messages import Message, Records, Traces

PERIOD = 0.1
"""Seconds that a record waits at most."""

BATCH = 256
"""Records that are sent at once without waiting: half a millisecond of encoding."""


class Reporter:
    """`send` takes a message and never waits. While `tracing`, requests are told to be recorded, too."""

    def __init__(self, loop: asyncio.AbstractEventLoop, send: Callable[[Message], None]) -> None:
        self._loop, self._send = loop, send
        self._records: list[Record] = []
        self._lags: list[float] = []
        self._handshakes: Counter[HandshakeError] = Counter()
        self._traces: list[Trace] = []
        self._left_out: Counter[LeftOut] = Counter()
        self._timer: asyncio.TimerHandle | None = None
        self.tracing = False

    def record(self, record: Record) -> None:
        """Take a finished request."""
        records = self._records
        records.append(record)
        if self._timer is None or len(records) >= BATCH:
            self._soon()

    def trace(self, trace: Trace | LeftOut) -> None:
        """Take what a recording keeps of a finished request. Its record comes next, and with it the time to send."""
        if isinstance(trace, LeftOut):
            self._left_out[trace] += 1
        else:
            self._traces.append(trace)

    def lag(self, seconds: float) -> None:
        """Take how late a timer fired."""
        self._lags.append(seconds)
        self._soon()

    def handshake(self, error: HandshakeError) -> None:
        """Count a client's handshake that failed."""
        self._handshakes[error] += 1
        self._soon()

    def flush(self) -> None:
        """Send what there is, now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._traces or self._left_out:
            traces, self._traces = self._traces, []
            left_out, self._left_out = self._left_out, Counter()
            self._send(Traces(traces, left_out))
        if self._records or self._lags or self._handshakes:
            records, self._records = self._records, []
            lags, self._lags = self._lags, []
            handshakes, self._handshakes = self._handshakes, Counter()
            self._send(Records(records, lags, handshakes))

    def _soon(self) -> None:
        if len(self._records) >= BATCH:
            self.flush()
        elif self._timer is None:
            self._timer = self._loop.call_later(PERIOD, self.flush)
