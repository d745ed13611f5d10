"""What a worker tells and hears, with a hand-turned clock: two fleets, each the other's news."""

import asyncio
from collections.abc import Callable

from router.core.fleet import Fleet
from router.core.peers import TTL
from router.core.record import Record, Stages
from router.core.trace import LeftOut, Trace
from router.core.types import Outcome, Usage
from router.gossip import news as gossip
from router.gossip.messages import Bye, Corrected, Full, Learned, Load, Message, Placed, Records, Traces
from router.gossip.news import BEAT, MAX_PLACED, SOON, TICK, News
from router.gossip.reporter import BATCH, Reporter
from tests.core.worlds import MODEL, answered, ask, fleet_of, leased, routed

RECORD = Record("id", "chat", None, False, 200, 0.1, Stages())
TRACE = Trace(1.5, "m", [1, 2], 3, 1_100, None, 275, 256, 8)


class Clock:
    """A loop as far as timers go: they fire when the time is turned past them."""

    def __init__(self) -> None:
        self.now = 0.0
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._cancelled: set[int] = set()
        self._count = 0

    def call_later(self, delay: float, callback: Callable[[], None]) -> "Timer":
        self._count += 1
        self._timers.append((self.now + delay, self._count, callback))
        return Timer(self._cancelled, self._count)

    def turn(self, seconds: float) -> None:
        end = self.now + seconds
        while due := sorted(timer for timer in self._timers if timer[0] <= end):
            first = due[0]
            self._timers.remove(first)
            self.now = first[0]
            if first[1] not in self._cancelled:
                first[2]()
        self.now = end

    @property
    def idle(self) -> bool:
        """Whether no timer would fire."""
        return all(number in self._cancelled for _, number, _ in self._timers)


class Timer:
    def __init__(self, cancelled: set[int], number: int) -> None:
        self._cancelled, self._number = cancelled, number

    def cancel(self) -> None:
        self._cancelled.add(self._number)


class Worker:
    """A fleet with its news, on a clock; `said` is what it told, in order."""

    def __init__(self, clock: Clock, name: str, replicas: int = 3) -> None:
        self.clock = clock
        self.fleet: Fleet = fleet_of(replicas)
        self.said: list[Message] = []
        self.hears: list[News] = []
        self.news = News(clock, self.fleet, name, self.say, lambda: clock.now, lambda: clock.now)  # type: ignore[arg-type]
        self.news.start()

    def say(self, message: Message) -> None:
        self.said.append(message)
        for other in self.hears:
            other.hear(message)  # type: ignore[arg-type]

    def of(self, kind: type[Message]) -> list[Message]:
        return [message for message in self.said if type(message) is kind]


def pair(replicas: int = 3) -> tuple[Clock, Worker, Worker]:
    clock = Clock()
    one, other = Worker(clock, "a", replicas), Worker(clock, "b", replicas)
    one.hears, other.hears = [other.news], [one.news]
    clock.turn(BEAT)
    for worker in (one, other):
        worker.said.clear()
        for replica in worker.fleet.replicas:
            worker.fleet.sign_of_life(replica.id, clock.now)
    return clock, one, other


def test_a_dispatch_and_a_belief_are_known_to_the_other_within_a_tick() -> None:
    clock, one, other = pair()
    asked = ask(("a", 4))
    lease = leased(one.fleet, asked, clock.now)
    clock.turn(TICK + SOON)
    assert other.fleet.residency.depths(asked.chain) == {lease.replica: 4}
    assert other.fleet.replica(lease.replica).whole == (1, 1, 512, 512)
    assert routed(other.fleet, asked, clock.now).replica == lease.replica
    lease.first_token(clock.now)
    lease.finish(Outcome.OK, None, clock.now)
    clock.turn(TICK + SOON)
    assert other.fleet.replica(lease.replica).whole == (0, 0, 0, 0)


def test_all_workers_speak_at_the_same_moments_whenever_they_were_asked() -> None:
    """Whoever hears them wakes up once for all."""
    clock, one, other = pair()
    spoken: list[float] = []
    for worker in (one, other):
        worker.news._send = lambda message: spoken.append(clock.now) if isinstance(message, Load) else None
    leases = []
    for wait in (0.0, 0.0071, 0.0052, 0.0243, 0.0017):
        clock.turn(wait)
        leases += [leased(worker.fleet, ask((f"{wait}", 2)), clock.now) for worker in (one, other)]
    clock.turn(BEAT / 2)
    assert len(spoken) > 4
    assert max(abs(at / TICK - round(at / TICK)) for at in spoken) < 1e-6
    for lease in leases:
        lease.finish(Outcome.ABORTED, None, clock.now)


def test_a_timer_that_fires_early_does_not_make_two_sends_of_one() -> None:
    clock, one, _ = pair()
    clock.turn(TICK - SOON / 2)
    lease = leased(one.fleet, ask(("a", 1)), clock.now)
    clock.turn(SOON)
    assert one.said == []
    clock.turn(TICK)
    assert [type(message) for message in one.said] == [Placed, Load]
    lease.finish(Outcome.ABORTED, None, clock.now)


def test_news_goes_out_at_most_once_a_tick_however_much_there_is() -> None:
    clock, one, _ = pair()
    for i in range(200):
        answered(one.fleet, ask((f"p{i}", 1)), clock.now)
        clock.turn(0.001)
    clock.turn(2 * TICK)
    for kind in (Load, Placed):
        assert 7 <= len(one.of(kind)) <= 10
    assert sum(len(message.placed) for message in one.of(Placed) if isinstance(message, Placed)) == 200


def test_what_has_not_changed_is_not_told_and_quiet_is_confirmed_once() -> None:
    clock, one, other = pair()
    lease = leased(one.fleet, ask(("a", 1)), clock.now)
    clock.turn(0.5)
    loads = one.of(Load)
    assert [set(load.loads) for load in loads if isinstance(load, Load)] == [{lease.replica}, set()]
    assert other.fleet.peers.assumed() == {}
    lease.finish(Outcome.ABORTED, None, clock.now)


def test_a_router_with_nothing_to_do_has_only_its_heartbeat() -> None:
    clock, one, other = pair()
    answered(one.fleet, ask(("a", 1)), clock.now)
    clock.turn(0.2)
    one.said.clear()
    clock.turn(3 * BEAT)
    assert {type(message) for message in one.said} == {Load, Learned}
    assert len(one.said) == 9
    assert other.fleet.peers.expire(clock.now) == []


def test_a_router_that_falls_silent_is_dropped_by_the_others_heartbeat() -> None:
    clock, one, other = pair()
    lease = leased(one.fleet, ask(("a", 1)), clock.now)
    clock.turn(2 * TICK)
    one.hears = []
    clock.turn(TTL + BEAT)
    assert other.fleet.replica(lease.replica).others is None


def test_a_goodbye_takes_the_load_along_and_ends_all_timers() -> None:
    clock, one, other = pair()
    lease = leased(one.fleet, ask(("a", 1)), clock.now)
    clock.turn(2 * TICK)
    one.news.stop()
    assert isinstance(one.said[-1], Bye)
    assert other.fleet.replica(lease.replica).others is None
    other.news.stop()
    assert clock.idle
    lease.finish(Outcome.ABORTED, None, clock.now)


def test_a_correction_comes_after_the_placements_that_it_corrects() -> None:
    clock, one, other = pair(replicas=1)
    asked = ask(("a", 8))
    answered(one.fleet, ask(("older", 2)), clock.now)
    answered(one.fleet, asked, clock.now, Usage(1024, 10, 0))
    lease = leased(one.fleet, asked, clock.now)
    lease.first_token(clock.now)
    lease.finish(Outcome.OK, Usage(1024, 10, 0), clock.now)
    clock.turn(2 * TICK)
    kinds = [type(message) for message in one.said if not isinstance(message, Load)]
    assert kinds == [Placed, Corrected, Placed]
    for fleet in (one.fleet, other.fleet):
        assert fleet.residency.depths(asked.chain) == {lease.replica: 8}
    assert isinstance(one.of(Corrected)[0], Corrected)


def test_a_refusal_is_told_at_once() -> None:
    clock, one, other = pair()
    one.fleet.full("r1", clock.now + 4.0)
    assert other.fleet.replica("r1").full_until == clock.now + 4.0
    assert len(one.of(Full)) == 1
    assert other.said == []


def test_placements_that_wait_are_bounded_and_what_is_dropped_is_counted() -> None:
    _, one, _ = pair()
    for i in range(MAX_PLACED + 5):
        one.news.placed("r0", None, [i])
    assert one.news.dropped == 5


def test_a_heartbeat_teaches_what_was_learned() -> None:
    clock, one, other = pair()
    for i in range(12):
        answered(one.fleet, ask((f"p{i}", 16)), clock.now + i, Usage(512, 30, 0))
    clock.turn(BEAT)
    [told] = other.fleet.learned()
    [knows] = one.fleet.learned()
    assert (told.model, told.learned) == (MODEL, knows.learned)


def test_a_beat_is_often_enough_for_the_ttl() -> None:
    assert 2 * gossip.BEAT <= TTL


async def test_records_go_up_in_batches_within_a_tenth_of_a_second() -> None:
    said: list[Message] = []
    reporter = Reporter(asyncio.get_running_loop(), said.append)
    for _ in range(3):
        reporter.record(RECORD)
    reporter.lag(0.5)
    assert said == []
    async with asyncio.timeout(5):
        while not said:  # noqa: ASYNC110  A reporter tells nobody but who it sends to.
            await asyncio.sleep(0.01)
    [batch] = said
    assert isinstance(batch, Records)
    assert (len(batch.records), batch.lags) == (3, [0.5])
    for _ in range(BATCH + 1):
        reporter.record(RECORD)
    assert len(said) == 2
    reporter.flush()
    reporter.flush()
    assert len(said) == 3


async def test_what_is_recorded_of_requests_goes_with_their_records() -> None:
    said: list[Message] = []
    reporter = Reporter(asyncio.get_running_loop(), said.append)
    for kept in (TRACE, LeftOut.NO_PROMPT, TRACE, LeftOut.NO_PROMPT):
        reporter.trace(kept)
        reporter.record(RECORD)
    reporter.flush()
    reporter.record(RECORD)
    reporter.flush()
    traces, *records = said
    assert isinstance(traces, Traces)
    assert (traces.traces, traces.left_out) == ([TRACE, TRACE], {LeftOut.NO_PROMPT: 2})
    assert [type(each) for each in records] == [Records, Records]
