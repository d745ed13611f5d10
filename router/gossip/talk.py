"""News over two connections to Redis: one that has subscribed, one that publishes. No tasks, and next to no wake-ups.

The client connects (addresses, TLS, password); from then on its connections are used directly, since its way from a
message to us, with tasks, futures and time limits, costs several times what parsing does, fifty times a second.

All routers speak at the same moments (news.py). So whenever something is sent, or has come, all that has come within
GRACE is taken in one go, answers too, and goes to the workers in one message (D31). While we speak ourselves, at nearly
every tick, nothing that comes wakes us up: it stays in its socket until it is fetched. What was late is fetched LATE
after that, if less has come than between the last two sends. Who is QUIET, or has no answer by then, listens. Over TLS
nothing can be fetched, and what comes always wakes us up.

A publish waits for the answer to the one before, so a slow Redis makes batches larger and later. What goes wrong is
raised by `run`; what is told meanwhile is the End's to keep.
"""

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import hiredis

from router.gossip.lines import BEAT, GAP, End

GRACE = 0.003
"""Seconds in which what was sent at one moment on several hosts arrives: clocks differ by a millisecond or two."""

LATE = 0.005
"""Seconds after that in which a router that was kept from its processor has told, too. Whoever is later still is heard
with the next tick."""

QUIET = 0.06
"""Seconds without a word of our own after which what comes wakes us up again: more than two ticks (news.py)."""

PIECE = 1 << 18
"""Bytes that are fetched at a time: all that there is, but for a burst of many routers."""

TIMEOUT = 1.0
"""Seconds for Redis to answer one command; it takes a millisecond. What waits meanwhile goes out in one batch."""

SILENCE = 3.0
"""Seconds in which three heartbeats of our own should have come back."""

_MORE = object()


class Refusal(Exception):
    """What Redis says instead of an answer."""


class _Direct(asyncio.Protocol):
    """A connection taken over from the client before anything was asked of it, so that nothing is on its way.

    `came` is called when there is something to parse, `lost` when the connection is gone.
    """

    def __init__(
        self, transport: asyncio.Transport, came: Callable[[], None], lost: Callable[[Exception | None], None]
    ) -> None:
        self._came, self._lost = came, lost
        self._parser = hiredis.Reader(protocolError=ConnectionError, replyError=Refusal, notEnoughData=_MORE)
        self._transport = transport
        self._clients = transport.get_protocol()
        transport.set_protocol(self)
        self._listens = True
        self.plain = transport.get_extra_info("ssl_object") is None
        self._line: int = transport.get_extra_info("socket").fileno()

    def send(self, *words: bytes) -> None:
        """Send a command."""
        self._transport.write(hiredis.pack_command(words))  # type: ignore[arg-type]  # It takes any number of them.

    def listen(self, now: bool) -> None:
        """Whether what comes wakes us up."""
        if now == self._listens or self._transport.is_closing():
            return
        self._listens = now
        if now:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def fetch(self) -> None:
        """Take what has come unless it was listened to. The transport holds nothing back of what it has not read, and
        to have it read for a moment costs two turns of the loop, and waking up once more when something comes."""
        whole = True
        while whole and not self._listens and not self._transport.is_closing():
            try:
                data = os.read(self._line, PIECE)
            except BlockingIOError:
                return
            except OSError as error:
                self._lost(error)
                return
            if not data:
                self._lost(None)
                return
            self._parser.feed(data)
            whole = len(data) == PIECE

    def parsed(self) -> Iterator[Any]:
        """What has come, as far as it is whole. Raises Refusal, and ConnectionError for what Redis does not say."""
        while (reply := self._parser.gets()) is not _MORE:
            if isinstance(reply, Refusal):
                raise reply
            yield reply

    def data_received(self, data: bytes) -> None:
        self._parser.feed(data)
        self._came()

    def connection_lost(self, exc: Exception | None) -> None:
        self._clients.connection_lost(exc)  # The client waits for it when it closes.
        self._lost(exc)


class Talk:
    """One session's news, over two connections that nobody else uses any more. `observe` takes operation, outcome and
    seconds; `echoed` is called when something that was sent has come back."""

    def __init__(
        self,
        ear: asyncio.Transport,
        mouth: asyncio.Transport,
        channel: str,
        end: End,
        observe: Callable[[str, str, float], None],
        echoed: Callable[[], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._channel, self._end, self._observe, self._echoed = channel.encode(), end, observe, echoed
        self._over: asyncio.Future[None] = self._loop.create_future()
        self._ear = _Direct(ear, self._gather, self._lost)
        self._mouth = _Direct(mouth, self._gather, self._lost)
        self._plain = self._ear.plain and self._mouth.plain
        self._listens = True
        self._came = self._expected = 0  # Messages since we last spoke, and between that and the time before.
        self._late = False  # Whether what was late is waited for.
        self._asked: dict[str, float] = {}  # Not answered yet: the operation, and when.
        self._wanted = self._due = self._gathering = self._hushed = False
        self._spoke_at = self._echoed_at = time.monotonic()
        self._timers: dict[Callable[[], None], asyncio.TimerHandle] = {}

    async def run(self) -> None:
        """Hear and speak until something goes wrong. Raises Refusal and OSError."""
        self._asked["subscribe"] = time.monotonic()
        self._ear.send(b"SUBSCRIBE", self._channel)
        self._later(TIMEOUT, self._look)
        try:
            await self._over
        finally:
            for timer in self._timers.values():
                timer.cancel()

    def wake(self) -> None:
        """There is something to tell."""
        self._wanted = True
        self._speak()

    def hush(self) -> None:
        """Tell nothing more: what came after a goodbye would take it back."""
        self._hushed = True

    # Speaking.

    def _speak(self) -> None:
        """Tell, if that may be now; if not, it is tried again when it may."""
        if not self._wanted or self._asked or self._hushed or self._over.done():
            return
        now = time.monotonic()
        if now < self._spoke_at + GAP:
            self._later(self._spoke_at + GAP - now, self._speak)
            return
        self._spoke_at, self._wanted = now, self._due  # What it was wanted for else comes after the heartbeat.
        due, self._due = self._due, False
        data = self._end.beat() if due else self._end.tell()
        if data is not None:
            self._asked["publish"] = now
            self._listen(not self._plain)
            self._mouth.send(b"PUBLISH", self._channel, data)
            self._came, self._expected, self._late = 0, self._came, False
            self._gather()

    def _beat(self) -> None:
        """Have the heartbeat told, and see that the ones before have come back."""
        self._later(BEAT, self._beat)
        self._look()
        if time.monotonic() - self._echoed_at > SILENCE:
            self._fail(TimeoutError(f"nothing that was sent has come back for {SILENCE:g} s"))
        self._due = True
        self.wake()

    def _look(self) -> None:
        """See that Redis answers."""
        if any(time.monotonic() - at > TIMEOUT for at in self._asked.values()):
            self._fail(TimeoutError(f"no answer within {TIMEOUT:g} s"))

    # Hearing.

    def _listen(self, now: bool = True) -> None:
        """Whether what comes wakes us up."""
        if now != self._listens:
            self._listens = now
            self._ear.listen(now)
            self._mouth.listen(now)

    def _gather(self, seconds: float = GRACE) -> None:
        """Something comes, or will: let it come for so long."""
        if not self._gathering and not self._over.done():
            self._gathering = True
            self._later(seconds, self._take)

    def _take(self) -> None:
        """Hear all that has come."""
        self._gathering = False
        if not self._listens:
            self._ear.fetch()
            self._mouth.fetch()
        news: list[bytes] = []
        try:
            for _ in self._mouth.parsed():
                self._answered("publish")
            for kind, _, data in self._ear.parsed():
                if kind == b"message":
                    news.append(data)
                else:
                    self._answered("subscribe")
                    self._beat()
        except (Refusal, OSError) as error:
            self._fail(error)
        if news and self._end.hear(news) and not self._over.done():
            self._echoed_at = time.monotonic()
            self._echoed()
        self._came += len(news)
        self._speak()
        if not self._listens and not self._gathering:
            self._go_on()

    def _go_on(self) -> None:
        """All is taken that had come since we spoke."""
        if not self._late and (self._asked or self._came < self._expected):
            self._late = True
            self._gather(LATE)
        else:
            self._later(0.0 if self._asked else QUIET, self._listen)

    def _answered(self, operation: str) -> None:
        self._observe(operation, "ok", time.monotonic() - self._asked.pop(operation))

    # The end.

    def _lost(self, why: Exception | None) -> None:
        self._fail(why if isinstance(why, OSError) else ConnectionResetError("Redis has closed the connection"))

    def _fail(self, why: Exception) -> None:
        if not self._over.done():
            for operation, at in self._asked.items():
                self._observe(operation, "error", time.monotonic() - at)
            self._over.set_exception(why)

    def _later(self, seconds: float, call: Callable[[], None]) -> None:
        """One timer for each."""
        if call in self._timers:
            self._timers[call].cancel()
        self._timers[call] = self._loop.call_later(seconds, call)
