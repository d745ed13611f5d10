"""The queues on a clock that the test turns: who comes first, who goes away, what those are told who cannot wait."""

from collections.abc import Callable
from random import Random

import pytest

from router.core.types import Refusal, RefusalCause
from router.proxy.waiting import TICK, Waiting
from tests.proxy.hand import HandLoop


class Gate:
    """What every request waits for: it lets `room` of them through, and notes who came."""

    def __init__(self) -> None:
        self.room = 0
        self.tries = 0
        self.through: list[str] = []


class Request:
    """A waiting.Waiter. `then` happens while it gets through, as an answer that is given at once would."""

    def __init__(self, name: str, gate: Gate, then: Callable[[], None] = lambda: None) -> None:
        self.name = name
        self.refusal: Refusal | None = None
        self._gate, self._then = gate, then

    def try_route(self) -> bool:
        self._gate.tries += 1
        if self._gate.room == 0:
            return False
        self._gate.room -= 1
        self._gate.through.append(self.name)
        self._then()
        return True

    def refuse(self, refusal: Refusal) -> None:
        assert self.refusal is None
        self.refusal = refusal


@pytest.fixture
def loop() -> HandLoop:
    return HandLoop()


@pytest.fixture
def gate() -> Gate:
    return Gate()


def waiting_on(loop: HandLoop, max_requests: int = 100, max_seconds: float = 30.0) -> Waiting:
    return Waiting(loop.port, max_requests, max_seconds)


def park(waiting: Waiting, *requests: Request, model: str | None = "m") -> None:
    for request in requests:
        assert waiting.park(model, request) is None


def test_requests_get_through_in_the_order_in_which_they_came(loop: HandLoop, gate: Gate) -> None:
    waiting = waiting_on(loop)
    park(waiting, *(Request(name, gate) for name in "abcde"))
    gate.room = 2
    waiting.wake()
    assert gate.through == ["a", "b"]
    park(waiting, Request("f", gate))
    gate.room = 10
    waiting.wake()
    assert gate.through == list("abcdef")
    assert not waiting


def test_a_head_that_cannot_go_keeps_its_place_and_holds_up_those_behind(loop: HandLoop, gate: Gate) -> None:
    waiting = waiting_on(loop)
    park(waiting, *(Request(name, gate) for name in "abc"))
    for _ in range(5):
        waiting.wake()
    assert gate.tries == 5
    gate.room = 3
    waiting.wake()
    assert gate.through == list("abc")


def test_each_model_has_a_queue_of_its_own(loop: HandLoop, gate: Gate) -> None:
    waiting = waiting_on(loop, max_requests=1)
    shut = Gate()
    park(waiting, Request("stuck", shut), model="m")
    park(waiting, Request("a", gate), model="n")
    park(waiting, Request("b", gate), model=None)
    assert waiting.depths == {"m": 1, "n": 1, None: 1}
    gate.room = 2
    waiting.wake()
    assert gate.through == ["a", "b"]
    assert (waiting.depths, waiting.depth("n")) == ({"m": 1}, 0)


def test_the_head_is_tried_again_by_itself_while_somebody_waits(loop: HandLoop, gate: Gate) -> None:
    waiting = waiting_on(loop)
    park(waiting, Request("a", gate))
    loop.advance(3.5 * TICK)
    assert gate.tries == 3
    gate.room = 1
    loop.advance(TICK)
    assert gate.through == ["a"]
    assert not waiting
    loop.advance(5 * TICK)
    assert loop.waiting == 0


def test_a_request_that_waits_too_long_is_refused_with_when_to_try_again(loop: HandLoop, gate: Gate) -> None:
    waiting = waiting_on(loop, max_seconds=2.0)
    early, late = Request("early", gate), Request("late", gate)
    park(waiting, early)
    loop.advance(1.0)
    park(waiting, late)
    loop.advance(1.5)
    assert early.refusal is not None
    assert (early.refusal.cause, late.refusal) == (RefusalCause.QUEUE_TIMEOUT, None)
    assert early.refusal.retry_after is not None
    assert 1.0 <= early.refusal.retry_after <= 2.0
    assert waiting.depth("m") == 1
    loop.advance(10.0)
    assert late.refusal is not None
    assert (waiting.depths, loop.waiting) == ({}, 0)


@pytest.mark.parametrize("bound", [0, 3])
def test_a_full_queue_takes_nobody(loop: HandLoop, gate: Gate, bound: int) -> None:
    waiting = waiting_on(loop, max_requests=bound)
    park(waiting, *(Request(str(number), gate) for number in range(bound)))
    refusal = waiting.park("m", Request("one more", gate))
    assert refusal is not None
    assert refusal.cause is RefusalCause.QUEUE_FULL
    assert waiting.depth("m") == bound
    assert bool(waiting) is (bound > 0)


def test_retry_after_is_the_queues_length_over_its_drain_rate(loop: HandLoop, gate: Gate) -> None:
    """Time in which nobody waited says nothing of how fast a queue drains."""
    waiting = waiting_on(loop, max_requests=20)
    for _ in range(2):
        loop.advance(3600.0)
        park(waiting, *(Request("", gate) for _ in range(20)))
        for _ in range(15):
            loop.advance(0.35)
            gate.room = 1
            waiting.wake()
        park(waiting, *(Request("", gate) for _ in range(15)))
        refusal = waiting.park("m", Request("one more", gate))
        assert refusal is not None
        assert refusal.retry_after == pytest.approx(20 * 0.35, abs=1.0)
        gate.room = 20
        waiting.wake()
        assert not waiting


def test_a_request_whose_client_leaves_is_gone_and_the_next_is_the_head(loop: HandLoop, gate: Gate) -> None:
    waiting = waiting_on(loop)
    first, second = Request("first", gate), Request("second", gate)
    park(waiting, first, second)
    waiting.leave("m", first)
    gate.room = 2
    waiting.wake()
    assert gate.through == ["second"]
    with pytest.raises(KeyError):
        waiting.leave("m", first)
    loop.advance(60.0)
    assert (first.refusal, second.refusal, loop.waiting) == (None, None, 0)


def test_who_ends_while_it_gets_through_and_wakes_the_queue_overtakes_nobody(loop: HandLoop, gate: Gate) -> None:
    waiting = waiting_on(loop)

    def ends_at_once() -> None:
        gate.room += 1
        waiting.wake()

    park(waiting, *(Request(name, gate, ends_at_once) for name in "abcd"))
    gate.room = 1
    waiting.wake()
    assert gate.through == list("abcd")
    assert not waiting


def test_who_gets_through_may_come_back_to_the_end(loop: HandLoop, gate: Gate) -> None:
    """A send that fails at once and must wait for another replica."""
    waiting = waiting_on(loop)
    back = Request("again", gate)
    park(waiting, Request("a", gate, lambda: park(waiting, back)), Request("b", gate))
    gate.room = 2
    waiting.wake()
    assert gate.through == ["a", "b"]
    assert waiting.depth("m") == 1
    gate.room = 1
    waiting.wake()
    assert gate.through == ["a", "b", "again"]


def test_after_close_nothing_runs_any_more(loop: HandLoop, gate: Gate) -> None:
    waiting = waiting_on(loop)
    request = Request("a", gate)
    park(waiting, request)
    waiting.close()
    loop.advance(60.0)
    assert (gate.tries, request.refusal, loop.waiting) == (0, None, 0)
    waiting.leave("m", request)  # As its connection closes.


def test_whatever_happens_everybody_comes_out_once_and_in_order(loop: HandLoop) -> None:
    rng = Random(7)
    gate, waiting = Gate(), waiting_on(loop, max_requests=8, max_seconds=3.0)
    parked: list[Request] = []
    left: set[str] = set()
    for number in range(500):
        match rng.randrange(4):
            case 0 | 1:
                request = Request(f"{number:04}", gate)
                if waiting.park("m", request) is None:
                    parked.append(request)
            case 2:
                gate.room = rng.randrange(3)
                waiting.wake()
            case _:
                inside = [one for one in parked if one.refusal is None and one.name not in {*gate.through, *left}]
                if inside:
                    gone = rng.choice(inside)
                    waiting.leave("m", gone)
                    left.add(gone.name)
        loop.advance(rng.random() / 4)
        gate.room = 0
    gate.room = 1000
    waiting.wake()
    expired = {one.name for one in parked if one.refusal is not None}
    assert gate.through == sorted(gate.through)
    assert sorted([*gate.through, *expired, *left]) == [one.name for one in parked]
    assert all([gate.through, expired, left])
    assert not waiting
