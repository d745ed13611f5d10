"""The supervisor's shadow: what changes it, and that it cannot hurt whoever keeps it."""

import logging
import math
from collections.abc import Sequence
from typing import Any

import pytest

from router.config import Config, RoutingConfig
from router.core.baselines import RoundRobin
from router.core.fleet import FleetSettings
from router.core.lease import Lease
from router.core.types import Ask
from router.gossip.messages import Message, Shadowed
from router.gossip.tap import Tap
from router.shadowing import BURST, PART, Shadowing
from tests.core.worlds import ask, fleet_of, leased
from tests.gossip.test_news import Clock


def config_of(shadow: dict[str, Any], **settings: Any) -> Config:
    replicas = [{"id": "r0", "url": "http://127.0.0.1:8101"}]
    return Config.model_validate({"replicas": replicas, "shadow": shadow, **settings})


class Watch:
    """A clock that each look turns on by `step`."""

    def __init__(self) -> None:
        self.now, self.step = 100.0, 0.0

    def __call__(self) -> float:
        self.now += self.step
        return self.now


class Kept:
    """A supervisor's shadow and the taps of its workers, which send by round robin."""

    def __init__(self, shadow: dict[str, Any] | None = None) -> None:
        self.watch = Watch()
        self.fleet = fleet_of(2, RoundRobin(), FleetSettings(stall=math.inf))
        self.shadowing = Shadowing(self.fleet, self.watch)
        self.taps: dict[str, Tap] = {}
        self.lost = False
        self.adjust(config_of(shadow or {"policy": "round_robin", "sample": 1.0}))

    def adjust(self, config: Config) -> None:
        policy = config.shadow.policy
        routing = config.routing.model_copy(update={"policy": policy}) if policy else None
        self.shadowing.adjust(config, routing)

    def tap(self, worker: str) -> Tap:
        def hand(message: Message) -> None:
            assert isinstance(message, Shadowed)
            if not self.lost:
                self.shadowing.take(worker, message)

        tap = self.taps.get(worker)
        if tap is None:
            tap = self.taps[worker] = Tap(Clock(), self.fleet, hand)  # type: ignore[arg-type]
        return tap

    def send(self, asks: Sequence[Ask], worker: str = "w") -> list[Lease]:
        tap = self.tap(worker)
        sent = tap.follow(1.0)
        assert sent is not None
        leases = [leased(self.fleet, asked, self.watch.now) for asked in asks]
        for lease in leases:
            sent(lease)
        tap.flush()
        return leases

    @property
    def asks(self) -> int:
        counts = self.shadowing.counts
        assert counts is not None
        return sum(count for _, count in counts.choices())

    @property
    def ahead(self) -> int:
        """Requests that one more ask would find in the shadow, on both replicas."""
        assert self.shadowing.counts is not None
        before = self.shadowing.counts.shadow.ahead
        self.send([ask(("probe", 2)), ask(("probe", 2))], "prober")
        after = self.shadowing.counts.shadow.ahead
        self.shadowing.gone("prober")
        self.taps.clear()
        return after - before


PROMPTS = [ask((f"p{i}", 4)) for i in range(4)]


def test_asks_of_all_workers_meet_in_one_shadow() -> None:
    kept = Kept()
    kept.send(PROMPTS[:2], "w1")
    kept.send(PROMPTS[2:], "w2")
    assert kept.asks == 4
    counts = kept.shadowing.counts
    assert counts is not None
    assert counts.same == 4
    assert counts.shadow.ahead == counts.live.ahead == 2


def test_without_a_shadow_what_comes_is_dropped() -> None:
    kept = Kept()
    kept.adjust(config_of({}))
    kept.send(PROMPTS)
    kept.shadowing.gone("w")
    assert kept.shadowing.counts is None


def test_another_shadow_begins_anew_and_the_same_one_goes_on() -> None:
    kept = Kept()
    kept.send(PROMPTS)
    same = kept.shadowing.counts
    kept.adjust(config_of({"policy": "round_robin", "sample": 1.0}, log={"level": "error"}))
    assert kept.shadowing.counts is same
    for change in (
        config_of({"policy": "least_requests", "sample": 1.0}),
        config_of({"policy": "least_requests", "sample": 0.5}),
        config_of({"policy": "least_requests", "sample": 0.5}, routing={"policy": "random"}),
    ):
        kept.adjust(change)
        assert kept.asks == 0
        assert kept.shadowing.counts is not same
        same = kept.shadowing.counts
    assert same is not None
    assert same.policy == "least_requests"


def test_a_shadow_that_raises_is_contained_counted_and_told_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Kept()

    class Broken(RoundRobin):
        def pick(self, *args: object) -> Any:
            raise ZeroDivisionError("an error of ours")

    sound = RoutingConfig.make
    monkeypatch.setattr(RoutingConfig, "make", lambda self: Broken())
    kept.adjust(config_of({"policy": "random", "sample": 1.0}))
    with caplog.at_level(logging.ERROR):
        leases = kept.send(PROMPTS)
        kept.send(PROMPTS)
    counts = kept.shadowing.counts
    assert counts is not None
    assert (counts.errors, kept.asks) == (2, 0)
    [said] = [record for record in caplog.records if "the shadow random failed" in record.message]
    assert said.exc_info is not None
    monkeypatch.setattr(RoutingConfig, "make", sound)
    kept.shadowing._begin()
    for lease in leases:
        lease.first_token(1.0)
    kept.send(PROMPTS)
    assert (counts.errors, kept.asks) == (2, 4)


def test_a_lost_batch_and_a_lost_worker_take_what_is_open_along() -> None:
    kept = Kept()
    kept.send(PROMPTS)
    kept.lost = True
    kept.send(PROMPTS)
    kept.lost = False
    kept.send(PROMPTS[:2])
    assert kept.asks == 6
    assert kept.ahead == 2
    kept.shadowing.gone("w")
    assert kept.ahead == 0


def test_it_gets_a_third_of_the_time_and_the_rest_goes_by_unseen_and_is_counted() -> None:
    kept = Kept()
    counts = kept.shadowing.counts
    assert counts is not None
    kept.watch.step = 2 * BURST  # A batch takes twice what may be saved up.
    kept.send(PROMPTS)
    assert (kept.asks, counts.left_out) == (4, 0)
    kept.watch.step = 0.0
    kept.send(PROMPTS)
    assert (kept.asks, counts.left_out) == (4, 4)
    kept.watch.now += BURST / PART - 2 * BURST - 0.1  # Since it began; the work is part of that.
    kept.send(PROMPTS)
    assert (kept.asks, counts.left_out) == (4, 8)
    kept.watch.now += 0.2
    kept.send(PROMPTS)
    assert (kept.asks, counts.left_out) == (8, 8)
    assert kept.ahead == 4  # Those before the gap have ended.
