"""The supervisor's shadow: which policy, fed by the workers' taps, kept from doing harm (core/shadow.py is what it is).

One shadow sees what all workers sent. An error in it is counted, told once, and ends what it knew, never the
supervisor; and it gets a third of the supervisor's time at most: what is over goes by unseen and is counted.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import NamedTuple

from router.config import Config, RoutingConfig
from router.core.fleet import Fleet, FleetSettings
from router.core.shadow import Counts, Key, Shadow
from router.core.types import Outcome, Usage
from router.gossip import messages
from router.gossip.messages import AskedRow, EndedRow, Shadowed

log = logging.getLogger("homing.supervisor")

PART = 1 / 3
"""Of the supervisor's time: probes, news and scrapes need less than the rest, and wait for at most one batch."""

BURST = 1.0
"""Seconds of work that may be saved up."""


class Plan(NamedTuple):
    """What is compared with what: a shadow begins anew when any of it changes."""

    live: RoutingConfig
    shadow: RoutingConfig
    sample: float
    index_blocks: int


class Shadowing:
    """`fleet` is the supervisor's; `counts` are None while there is no shadow."""

    def __init__(self, fleet: Fleet, now: Callable[[], float] = time.monotonic) -> None:
        self._fleet, self._now = fleet, now
        self._plan: Plan | None = None
        self._shadow: Shadow | None = None
        self._settings = FleetSettings()
        self._batches: dict[str, int] = {}
        self._left, self._left_at = BURST, now()
        self._told = False
        self.counts: Counts | None = None

    @property
    def sample(self) -> float:
        """The share of the asks that it is given."""
        return self._plan.sample if self._plan else 0.0

    def adjust(self, config: Config, routing: RoutingConfig | None) -> None:
        """Have a policy by this section of settings in the shadow, or none; as it was, where nothing has changed."""
        plan = None
        if routing is not None:
            plan = Plan(config.routing, routing, config.shadow.sample, config.limits.index_blocks)
        if plan == self._plan:
            return
        self._plan, self._told = plan, False
        self._shadow = self.counts = None
        if plan is not None:
            self.counts = Counts(plan.shadow.policy)
            self._settings = replace(
                config.fleet_settings(), sample=plan.sample, max_concurrency=plan.shadow.max_concurrency
            )
            self._begin()

    def _begin(self) -> None:
        assert self._plan is not None
        assert self.counts is not None
        self._shadow = Shadow(self._plan.shadow.make(), self._settings, self.counts, Random())

    def take(self, worker: str, message: Shadowed) -> None:
        """What a worker's tap tells."""
        shadow, counts, begin = self._shadow, self.counts, self._now()
        if shadow is None or counts is None:
            return  # A reload has ended it, and the worker did not know yet.
        self._left = min(BURST, self._left + PART * (begin - self._left_at))
        self._left_at = begin
        if self._left <= 0:
            counts.left_out += len(message.asked)
            return  # The next batch shows that this one is missing.
        try:
            self._play(shadow, worker, message, begin)
        except Exception:
            counts.errors += 1
            if not self._told:
                self._told = True
                log.exception("the shadow %s failed and begins anew; no request is touched by it", counts.policy)
            self._begin()  # What it knew may be half of a change.
        self._left -= self._now() - begin

    def gone(self, worker: str) -> None:
        """A worker will tell nothing any more."""
        self._batches.pop(worker, None)
        if self._shadow is not None:
            self._shadow.lost(worker, self._now())

    def _play(self, shadow: Shadow, worker: str, message: Shadowed, now: float) -> None:
        shadow.align(self._fleet.replicas, now)
        last, self._batches[worker] = self._batches.get(worker, 0), message.batch
        if message.batch != last + 1:
            shadow.lost(worker, now)
        events: list[tuple[float, int, AskedRow | EndedRow | None]] = [
            *((row[0], row[1], row) for row in message.asked),
            *((at, serial, None) for at, serial in message.started),
            *((row[0], row[1], row) for row in message.ended),
        ]
        events.sort(key=lambda event: event[0])  # Stable: a request that is over at once keeps its order.
        for at, serial, row in events:
            key = Key(worker, serial)
            if row is None:
                shadow.started(key, at)
            elif len(row) == 7:
                shadow.sent(key, messages.ask(row), row[2], at)
            else:
                self._end(shadow, key, row)

    def _end(self, shadow: Shadow, key: Key, row: EndedRow) -> None:
        at, _, outcome, prompt, completion = row
        shadow.ended(key, Outcome(outcome), Usage(prompt, completion), at)
