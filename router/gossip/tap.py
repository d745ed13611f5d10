"""The sampled asks of a worker for the supervisor's shadow (core/shadow.py): what was sent where, first tokens, ends.

On a request's path: one append, once the request is out. Everything else is done ten times a second, over what there
is: who is in the sample is decided then, and leases are looked at instead of telling what happens to them. While there
is no shadow there is no tap, no timer and no message.
"""

import asyncio
from collections.abc import Callable

from router.core.fleet import Fleet
from router.core.lease import Lease
from router.core.shadow import drawn
from router.core.types import Reason
from router.gossip.messages import AskedRow, EndedRow, Message, Shadowed, packed

PERIOD = 0.1
"""Seconds between two looks, as between two batches of records."""

MOST = 10_000
"""Leases that are held, of those sent since the last look and of those followed: limits.connections by default. Further
ones are left out."""

PHI = 0x9E3779B97F4A7C15
"""2**64 over the golden ratio: its multiples are spread evenly (Knuth, volume 3, section 6.4)."""


class Tap:
    """`send` takes a message and never waits. Nothing is followed before `follow` says so."""

    def __init__(self, loop: asyncio.AbstractEventLoop, fleet: Fleet, send: Callable[[Message], None]) -> None:
        self._loop, self._fleet, self._send = loop, fleet, send
        self._share = 0.0
        self._new: list[Lease] = []
        self._unstarted: dict[int, Lease] = {}
        self._started: dict[int, Lease] = {}
        self._serial = self._batch = self._promptless = 0
        self._timer: asyncio.TimerHandle | None = None

    def follow(self, share: float) -> Callable[[Lease], None] | None:
        """Follow that share of the families from now on, and no more what was followed with another one; what is known
        of that is told. The answer is who is to be told of each send; None for a share of 0."""
        if share != self._share:
            self.flush()
            self._share = share
            self._new, self._unstarted, self._started = [], {}, {}
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if share:
                self._later()
        return self._sent if share else None

    def _sent(self, lease: Lease) -> None:
        """A request is on its way."""
        if len(self._new) < MOST:
            self._new.append(lease)

    def flush(self) -> None:
        """Tell what has happened since the last time."""
        asked, started, ended = self._take_new(), self._take_started(), self._take_ended()
        if asked or started or ended:
            self._batch += 1
            self._send(Shadowed(self._batch, asked, started, ended))

    def _later(self) -> None:
        self._timer = self._loop.call_later(PERIOD, self._look)

    def _look(self) -> None:
        self._later()
        self.flush()

    def _take_new(self) -> list[AskedRow]:
        new, self._new = self._new, []
        asked = []
        for lease in new:
            if len(self._unstarted) + len(self._started) < MOST and self._is_sampled(lease):
                self._serial += 1
                self._unstarted[self._serial] = lease
                asked.append(_asked(self._serial, lease))
        return asked

    def _is_sampled(self, lease: Lease) -> bool:
        """Sent again it is no new ask. Asks without a prompt have no families: of them each so many-eth is drawn."""
        if lease.route.reason is Reason.RETRY:
            return False
        if lease.ask.size:
            return drawn(self._fleet.family(lease.ask), self._share)
        self._promptless += 1
        return self._promptless * PHI % 2**64 < self._share * 2**64

    def _take_started(self) -> list[tuple[float, int]]:
        started = []
        for serial, lease in list(self._unstarted.items()):
            if lease.started_at is not None:
                started.append((lease.started_at, serial))
            elif lease.settled is None:
                continue
            self._started[serial] = self._unstarted.pop(serial)
        return started

    def _take_ended(self) -> list[EndedRow]:
        ended: list[EndedRow] = []
        for serial, lease in list(self._started.items()):
            settled = lease.settled
            if settled is not None:
                del self._started[serial]
                at = lease.at + settled.seconds
                ended.append((at, serial, settled.outcome, settled.prompt_tokens, settled.completion_tokens))
        return ended


def _asked(serial: int, lease: Lease) -> AskedRow:
    ask = lease.ask
    prompt = (ask.size, packed(ask.chain), ask.tail, ask.tokens, ask.answers)
    return lease.at, serial, lease.replica, ask.model, ask.streams, ask.only, prompt
