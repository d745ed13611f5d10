"""What a router tells of its workers: their sum, as much of it as has changed, and the rest in one bounded queue."""

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from router.core.fleet import Fleet
from router.gossip import messages
from router.gossip.messages import (
    Batch,
    Bye,
    Corrected,
    Full,
    Learned,
    LearnedRow,
    Load,
    Message,
    Placed,
    TotalsRow,
)
from router.gossip.numbered import MAX_BATCH, MAX_KEPT, events
from router.gossip.outgoing import Outgoing
from tests.core.worlds import fleet_of

NOTHING: LearnedRow = ((1.0, 0), (1.0, 0), (1.0, 0), (1.0, 0), 1.0, 4.0)


class Told:
    """A supervisor's part, with a hand-turned clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.fleet: Fleet = fleet_of(3)
        self.out = Outgoing(self.fleet, "me", 512, lambda: self.now)
        self._sequences: dict[str, int] = {}

    def load(self, worker: str, whole: bool = False, **requests: int) -> None:
        """A worker's load, as the crew takes it: the fleet first."""
        self._sequences[worker] = sequence = self._sequences.get(worker, 0) + 1
        rows: Mapping[str, TotalsRow] = {name: (count, count, 10 * count, 20 * count, 0, 0.0, 5.0 * count, 0.0)
                                         for name, count in requests.items()}  # fmt: skip
        loads = {name: messages.totals(row) for name, row in rows.items()}
        self.fleet.peers.loaded(worker, sequence, loads, whole, self.now)
        self.out.take(worker, Load(worker, sequence, whole, rows))

    def idle(self, worker: str) -> None:
        self.out.take(worker, Load(worker, self._sequences[worker], False, {}))

    def batch(self) -> list[Message]:
        batch = self.out.batch({})
        assert batch is None or (batch.peer, batch.block) == ("me", 512)
        return [] if batch is None else list(batch.news)


def requests(message: Message) -> dict[str, int]:
    assert isinstance(message, Load)
    return {name: row[0] for name, row in message.loads.items()}


def test_workers_are_one_peer_whose_load_is_their_sum() -> None:
    told = Told()
    told.load("0", r1=2, r2=1)
    told.load("1", r1=3)
    [load] = told.batch()
    assert requests(load) == {"r1": 5, "r2": 1}
    assert isinstance(load, Load)
    assert (load.peer, load.whole, load.loads["r1"][2]) == ("me", False, 50)


def test_only_what_has_changed_is_told() -> None:
    """CASES A25."""
    told = Told()
    told.load("0", r1=2, r2=1)
    told.batch()
    assert told.batch() == []
    told.load("0", r2=0)
    assert [requests(message) for message in told.batch()] == [{"r2": 0}]


def test_that_nothing_was_added_is_told_once() -> None:
    told = Told()
    told.load("0", r1=1)
    [first] = told.batch()
    told.idle("0")
    [confirmed] = told.batch()
    assert isinstance(first, Load)
    assert confirmed == Load("me", first.sequence, False, {})
    told.idle("0")
    assert told.batch() == []


def test_recent_prefill_load_fades_until_it_is_told() -> None:
    told = Told()
    told.load("0", r1=1)
    told.now = 5.0
    [load] = told.batch()
    assert isinstance(load, Load)
    assert 0 < load.loads["r1"][6] < 5.0


def test_a_worker_that_ends_takes_its_load_along() -> None:
    told = Told()
    told.load("0", r1=2)
    told.load("1", r1=3)
    told.batch()
    told.fleet.peers.bye("1", told.now)
    told.out.gone("1")
    [load] = told.batch()
    assert requests(load)["r1"] == 2


def test_the_heartbeat_is_all_of_the_load_and_what_was_learned() -> None:
    told = Told()
    told.load("0", r1=2, r2=1)
    told.batch()
    means: LearnedRow = ((9.0, 30), (1.0, 0), (1.0, 0), (1.0, 0), 1.0, 4.0)
    told.out.take("0", Learned("0", [("m", 10, [1, 2], NOTHING)], [("r1", 0.5, 3, None, 0)]))
    told.out.take("1", Learned("1", [("m", 5, [2, 3], means)], [("r1", 0.7, 9, None, 0), ("r2", None, 0, None, 0)]))
    whole, confirmed, learned = told.out.beat().news
    assert requests(whole) == {"r1": 2, "r2": 1}
    assert isinstance(whole, Load)
    assert whole.whole
    assert isinstance(confirmed, Load)
    assert (confirmed.sequence, confirmed.loads) == (whole.sequence, {})
    assert learned == Learned("me", [("m", 15, [1, 2, 3], means)], [("r1", 0.7, 9, None, 0), ("r2", None, 0, None, 0)])
    told.out.gone("1")
    assert told.out.beat().news[2] == Learned("me", [("m", 10, [1, 2], NOTHING)], [("r1", 0.5, 3, None, 0)])


def test_events_are_told_in_order_and_placements_together() -> None:
    told = Told()
    assert not told.out.take("0", Placed("0", [("r1", None, [1, 2])]))
    assert not told.out.take("1", Placed("1", [("r2", None, [3])]))
    assert told.out.take("0", Corrected("0", "r1", 2))
    told.out.take("1", Placed("1", [("r1", 1, [2])]))
    assert told.out.take("1", Full("r2", 1.5))
    assert told.batch() == [
        Placed("me", [("r1", None, [1, 2]), ("r2", None, [3])]), Corrected("me", "r1", 2),
        Placed("me", [("r1", 1, [2])]), Full("r2", 1.5),
    ]  # fmt: skip


def test_a_long_queue_is_told_in_parts_and_drops_its_oldest() -> None:
    told = Told()
    rows = MAX_KEPT // 100 + 50
    told.out.take("0", Placed("0", [("r1", None, [number] * 99) for number in range(rows)]))
    told.out.take("0", Corrected("0", "r1", 1))
    first, left = _events(told.out)
    assert told.out.dropped == first == rows + 1 - left
    assert left == MAX_KEPT // 100 + 1


def test_a_refusal_is_told_for_as_long_as_it_lasts_and_once() -> None:
    told = Told()
    told.out.take("0", Full("r1", 1.0))
    told.out.take("0", Full("r2", 3.0))
    told.now = 2.0
    assert told.batch() == [Full("r2", 1.0)]
    assert told.batch() == []


def test_what_was_told_is_told_again_from_where_another_asks_and_load_is_as_it_is_then() -> None:
    told = Told()
    for number in range(3):
        told.out.take("0", Placed("0", [("r1", None, [number])]))
        told.out.take("0", Full("r1", 1.0))
        told.batch()
    told.out.asked(1)
    assert told.out.waits
    told.load("0", r1=2)
    batch = told.out.batch({"another": 7})
    assert batch is not None
    assert (batch.first, batch.oldest, batch.lacks) == (1, 0, {"another": 7})
    placed, load = batch.news
    assert placed == Placed("me", [("r1", None, [1]), ("r1", None, [2])])
    assert requests(load) == {"r1": 2}
    assert not told.out.waits


def test_the_heartbeat_says_how_far_the_router_has_told() -> None:
    told = Told()
    told.out.take("0", Placed("0", [("r1", None, [1]), ("r1", 1, [2])]))
    told.out.take("0", Corrected("0", "r1", 2))
    assert told.out.beat().first == 0
    told.batch()
    assert (told.out.beat().first, told.out.beat().oldest) == (3, 0)


def test_what_is_asked_of_others_is_reason_enough_to_speak() -> None:
    assert Told().out.batch({"another": 0}) == Batch("me", 512, [], 0, 0, {"another": 0})


def test_what_was_placed_before_a_replicas_new_epoch_is_told_nobody_after_it() -> None:
    told = Told()
    told.fleet.engine("r1", 1.0, None, 0.0)
    told.out.take("0", Placed("0", [("r1", None, [1]), ("r2", None, [2]), ("gone", None, [3])]))
    told.fleet.engine("r1", 2.0, None, 0.0)
    told.out.take("0", Placed("0", [("r1", None, [4])]))
    nothing = ("", None, ())
    after = [Placed("me", [nothing, ("r2", None, [2]), ("gone", None, [3]), ("r1", None, [4])])]
    assert told.batch() == after
    told.out.asked(0)
    assert told.batch() == after


def _events(out: Outgoing) -> tuple[int, int]:
    """The first one's number, and how many."""
    numbers: list[int] = []
    while (batch := out.batch({})) is not None:
        rows = [row for message in batch.news if isinstance(message, Placed) for row in message.placed]
        assert sum(len(row[2]) + 1 for row in rows) <= MAX_BATCH + 100
        numbers += range(batch.first, batch.first + events(batch.news))
    return numbers[0], len(numbers)


def test_a_router_that_goes_says_so() -> None:
    assert Told().out.bye() == Batch("me", 512, [Bye("me")])


@given(steps=st.lists(st.tuples(st.sampled_from("01"), st.sampled_from(("r1", "r2")), st.integers(0, 9)), max_size=30))
def test_whoever_hears_every_batch_knows_the_sum(steps: list[tuple[str, str, int]]) -> None:
    told, ear, known = Told(), fleet_of(3), {}
    for worker, replica, count in steps:
        known[worker, replica] = count
        told.load(worker, False, **{replica: count})
        for message in told.batch():
            assert isinstance(message, Load)
            loads = {name: messages.totals(row) for name, row in message.loads.items()}
            ear.peers.loaded(message.peer, message.sequence, loads, message.whole, 0.0)
    for replica in ("r1", "r2"):
        others = ear.replica(replica).others
        assert (others.requests if others else 0) == sum(known.get((worker, replica), 0) for worker in "01")
