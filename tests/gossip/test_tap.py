"""A worker's tap: whom it follows, what it tells of them and when, and that it tells nothing while nobody wants it."""

from random import Random
from typing import cast

from router.core.lease import Lease
from router.core.policy import Limits, PrefixAffinity
from router.core.types import Ask, Outcome, Route, Usage
from router.gossip import messages, tap
from router.gossip.messages import Codec, Message, Shadowed
from router.gossip.tap import PERIOD, Tap
from tests.core.worlds import MODEL, ask, fleet_of, leased
from tests.gossip.test_news import Clock


class Tapped:
    """A fleet with a tap, on a clock; `said` is what it told."""

    def __init__(self, share: float = 1.0) -> None:
        self.clock = Clock()
        self.fleet = fleet_of(3, PrefixAffinity(None, Limits(None, None)))
        self.said: list[Message] = []
        self.tap = Tap(self.clock, self.fleet, self.said.append)  # type: ignore[arg-type]
        self.sent = self.tap.follow(share)

    def send(self, asked: Ask) -> Lease:
        lease = leased(self.fleet, asked, self.clock.now)
        assert self.sent is not None
        self.sent(lease)
        return lease

    def told(self) -> Shadowed:
        """The one message since the last time, as it comes in."""
        codec = Codec()
        [message] = [codec.decode(codec.encode(each)) for each in self.said]
        self.said.clear()
        return cast(Shadowed, message)


def test_nothing_is_told_before_a_shadow_wants_it_and_no_timer_runs() -> None:
    tapped = Tapped(0.0)
    assert tapped.sent is None
    tapped.clock.turn(1.0)
    tapped.tap.flush()
    assert tapped.clock.idle
    assert tapped.said == []


def test_an_ask_its_first_token_and_its_end_are_told_with_their_own_times() -> None:
    tapped = Tapped()
    asked = ask(("a", 5), rest=b"the rest")._replace(answers={512: 600}, tokens=700)
    lease = tapped.send(asked)
    assert tapped.said == []
    tapped.clock.turn(0.05)
    lease.first_token(0.05)
    tapped.clock.turn(0.1)
    told = tapped.told()
    assert messages.ask(told.asked[0]) == asked._replace(chain=tuple(asked.chain))
    assert told.asked[0][:3] == (0.0, 1, lease.replica)
    assert (told.batch, told.started, told.ended) == (1, [(0.05, 1)], [])
    tapped.clock.turn(0.05)
    lease.finish(Outcome.OK, Usage(710, 20, 5), 0.2)
    tapped.clock.turn(0.1)
    told = tapped.told()
    assert (told.batch, told.asked, told.started, told.ended) == (2, [], [], [(0.2, 1, Outcome.OK, 710, 20)])
    tapped.clock.turn(1.0)
    assert tapped.said == []


def test_a_request_that_is_over_at_once_or_without_a_first_token_is_told_whole() -> None:
    tapped = Tapped()
    quick, failed = tapped.send(ask(("a", 5))), tapped.send(Ask(MODEL))
    quick.first_token(0.0)
    quick.finish(Outcome.OK, None, 0.01)
    failed.finish(Outcome.FAILED, None, 0.02)
    tapped.tap.flush()
    told = tapped.told()
    assert [row[1] for row in told.asked] == [1, 2]
    assert told.started == [(0.0, 1)]
    assert sorted(row[1:3] for row in told.ended) == [(1, Outcome.OK), (2, Outcome.FAILED)]


def test_a_request_that_is_sent_again_is_one_ask() -> None:
    tapped = Tapped()
    first = tapped.send(ask(("a", 5)))
    first.finish(Outcome.REFUSED, None, 0.0)
    route = tapped.fleet.route(first.ask, 0.0, Random(0), [first.replica])
    assert isinstance(route, Route)
    assert tapped.sent is not None
    tapped.sent(tapped.fleet.lease(route, first.ask, 0.0))
    tapped.tap.flush()
    assert len(tapped.told().asked) == 1


def test_all_turns_of_a_chat_are_followed_or_none() -> None:
    tapped = Tapped(0.25)
    followed: dict[int, list[bool]] = {}
    for turn in range(1, 5):
        for chat in range(200):
            tapped.send(ask(("system", 1), (f"chat{chat}", 3 * turn))).finish(Outcome.OK, None, 0.0)
            tapped.tap.flush()
            followed.setdefault(chat, []).append(bool(tapped.said))
            tapped.said.clear()
    later = [turns[1:] for turns in followed.values()]  # The first chats of all come before the system text is hot.
    assert all(len(set(turns)) == 1 for turns in later)
    assert 25 <= sum(turns[0] for turns in later) <= 75


def test_of_asks_without_a_prompt_each_fourth_is_followed() -> None:
    tapped = Tapped(0.25)
    for _ in range(400):
        tapped.send(Ask(MODEL)).finish(Outcome.OK, None, 0.0)
    tapped.tap.flush()
    assert 98 <= len(tapped.told().asked) <= 102


def test_what_is_held_is_bounded() -> None:
    tapped = Tapped()
    leases = [tapped.send(Ask(MODEL)) for _ in range(tap.MOST + 5)]
    tapped.tap.flush()
    assert len(tapped.told().asked) == tap.MOST
    tapped.send(Ask(MODEL))
    tapped.tap.flush()
    assert tapped.said == []
    leases[0].finish(Outcome.OK, None, 0.0)
    tapped.tap.flush()
    tapped.said.clear()
    tapped.send(Ask(MODEL))
    tapped.tap.flush()
    assert len(tapped.told().asked) == 1


def test_another_share_begins_anew_and_none_ends_it() -> None:
    tapped = Tapped()
    lease = tapped.send(ask(("a", 5)))
    tapped.tap.flush()
    tapped.said.clear()
    tapped.sent = tapped.tap.follow(0.999)
    lease.finish(Outcome.OK, None, 0.0)
    tapped.clock.turn(PERIOD)
    assert tapped.said == []
    assert tapped.tap.follow(0.999) == tapped.sent
    assert tapped.tap.follow(0.0) is None
    assert tapped.clock.idle
