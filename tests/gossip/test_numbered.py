"""What is told once is heard once and in order, however lines break and come back, and never without bound."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.gossip.messages import Batch, Corrected, Placed, PlacedRow
from router.gossip.numbered import KEPT_BEATS, MAX_BATCH, MAX_GONE, MAX_KEPT, Event, Hearing, Telling, without


def row(number: int, size: int = 1) -> PlacedRow:
    return ("r1", None, [number] * size)


class Router:
    """One that tells and hears. `took` is what it has taken of each other, `copies` what it has told."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.telling = Telling(lambda _: None)
        self.hearing = Hearing()
        self.listens = True
        self.took: dict[str, list[int]] = {}
        self.copies = self.beats = 0
        self.placed = 0

    def place(self, count: int, size: int = 1) -> None:
        for _ in range(count):
            self.telling.add(row(self.placed, size))
            self.placed += 1

    def says(self, beat: bool) -> Batch:
        """A heartbeat, or what there is to tell, with what it asks of others."""
        if beat:
            self.telling.beat()
            self.beats += 1
            return Batch(self.name, 512, [], self.telling.next, self.telling.oldest)
        first, events = self.telling.take()
        self.copies += len(events)
        news = [Placed(self.name, [event for event in events if not isinstance(event, Corrected)])] if events else []
        return Batch(self.name, 512, news, first, self.telling.oldest, dict(self.hearing.lacks))

    def hears(self, batch: Batch) -> None:
        if self.name in batch.lacks:
            self.telling.asked(batch.lacks[self.name])
        rest = without(batch.news, self.hearing.take(batch))
        taken = [event[2][0] for message in rest if isinstance(message, Placed) for event in message.placed]
        self.took.setdefault(batch.peer, []).extend(taken)


def spread(batch: Batch, routers: Sequence[Router]) -> None:
    """As Redis does: to whoever listens."""
    for each in routers:
        if each.listens and each.name != batch.peer:
            each.hears(batch)


def round_of(routers: Sequence[Router], beat: bool = True) -> None:
    """A heartbeat of each that listens, and what it has to tell."""
    for each in routers:
        if beat and each.listens:
            spread(each.says(True), routers)
    for each in routers:
        while each.listens and (batch := each.says(False)).news:
            spread(batch, routers)
        if each.listens:
            spread(batch, routers)


def do(routers: Sequence[Router], what: str, who: int, count: int) -> None:
    """One of the steps below."""
    router = routers[who]
    if what == "place":
        router.place(count)
    elif what == "tell" and router.listens:
        spread(router.says(False), routers)
    elif what == "beat" and router.listens and router.beats < KEPT_BEATS - ROUNDS:  # Nobody comes back too late.
        spread(router.says(True), routers)
    elif what in {"leave", "return"}:
        router.listens = what == "return"


def is_in_order(took: Sequence[int]) -> bool:
    return took == list(range(len(took)))


ROUNDS = 3
"""Of heartbeats until all know all: one to tell what is lacked, and one more for who has asked when it was told."""

STEPS = st.lists(
    st.tuples(st.sampled_from(("place", "place", "tell", "beat", "leave", "return")), st.integers(0, 2),
              st.integers(1, 5)),
    max_size=40,
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(steps=STEPS)
def test_all_hear_all_that_is_told_once_and_in_order_however_they_come_and_go(
    steps: Sequence[tuple[str, int, int]],
) -> None:
    routers = [Router(name) for name in "abc"]
    for what, who, count in steps:
        do(routers, what, who, count)
        assert all(is_in_order(took) for each in routers for took in each.took.values())
    for router in routers:
        router.listens = True
    for _ in range(ROUNDS):
        round_of(routers)
    for each in routers:
        assert not each.hearing.lacks
        assert each.took == {other.name: list(range(other.placed)) for other in routers if other is not each}


@pytest.mark.parametrize("count", [2, 16])
def test_many_that_come_back_together_are_told_little_more_than_one(count: int) -> None:
    routers = [Router(str(number)) for number in range(count)]
    for router in routers:
        router.listens = False
        router.place(100)
    for back in routers:  # One after the other, and each tells as soon as it is back.
        back.listens = True
        spread(back.says(True), routers)
        spread(back.says(False), routers)
    for _ in range(3):
        round_of(routers)
    for router in routers:
        assert {len(took) for name, took in router.took.items() if name != router.name} == {100}
        assert router.copies <= 3 * 100


def test_it_is_told_again_once_between_two_heartbeats_from_where_the_most_was_missed() -> None:
    router = Router("a")
    telling = router.telling
    router.place(9)
    router.says(False)
    for number in (7, 5, 8):
        telling.asked(number)
    assert (telling.waits, telling.take()) == (True, (5, [row(5), row(6), row(7), row(8)]))
    telling.asked(6)
    assert (telling.waits, telling.take()) == (False, (9, []))
    telling.beat()
    assert (telling.waits, telling.take()) == (True, (6, [row(6), row(7), row(8)]))


def test_what_is_to_be_told_anyway_is_not_told_again() -> None:
    router = Router("a")
    router.place(2)
    router.telling.asked(0)
    assert router.telling.take() == (0, [row(0), row(1)])
    assert not router.telling.waits


def test_what_is_missed_is_told_before_what_is_new() -> None:
    router = Router("a")
    router.place(2)
    router.says(False)
    router.place(1)
    router.telling.asked(1)
    assert router.telling.take() == (1, [row(1), row(2)])


def test_a_long_list_is_told_again_in_parts() -> None:
    router = Router("a")
    router.place(40, MAX_BATCH // 10)
    while router.says(False).news:
        pass
    router.telling.asked(0)
    batches = [router.telling.take() for _ in range(6)]
    assert [first for first, _ in batches] == [0, 10, 20, 30, 40, 40]
    assert [len(taken) for _, taken in batches] == [10, 10, 10, 10, 0, 0]


def test_what_was_told_is_kept_for_some_heartbeats_and_who_comes_later_does_not_wait_for_it() -> None:
    router, late = Router("a"), Router("b")
    router.place(3)
    router.says(False)
    for _ in range(KEPT_BEATS - 1):
        assert router.says(True).oldest == 0
    assert (router.says(True).oldest, router.telling.next) == (3, 3)
    router.place(1)
    late.hears(router.says(False))
    assert (late.took, late.hearing.lacks) == ({"a": [3]}, {})


def test_what_waits_to_be_told_is_never_too_old() -> None:
    router = Router("a")
    router.place(1)
    for _ in range(2 * KEPT_BEATS):
        router.says(True)
    assert router.telling.take() == (0, [row(0)])


def test_the_bound_holds_for_what_was_told_and_for_what_was_not_and_only_that_is_dropped() -> None:
    router, late = Router("a"), Router("b")
    most = MAX_KEPT // 101
    router.place(most, 100)
    while router.says(False).news:
        pass
    router.place(most, 100)
    assert (router.telling.dropped, router.telling.oldest, router.telling.next) == (0, most, most)
    router.place(5, 100)
    assert (router.telling.dropped, router.telling.oldest) == (5, most + 5)
    while (batch := router.says(False)).news:
        late.hears(batch)
    assert late.took == {"a": list(range(most + 5, 2 * most + 5))}


def test_no_more_of_those_that_are_gone_are_remembered_than_can_be() -> None:
    hearing = Hearing()
    for number in range(MAX_GONE + 1):
        hearing.take(Batch(str(number), 512, [Placed(str(number), [row(0)])], 0, 0))
        hearing.lose(str(number))
    again = [hearing.take(Batch(name, 512, [Placed(name, [row(0)])], 0, 0)) for name in ("0", "1")]
    assert again == [0, 1]


@pytest.mark.parametrize(
    ("events", "known", "left"),
    [
        ((row(0), row(1)), 0, 2),
        ((row(0), row(1)), 1, 1),
        ((row(0), Corrected("a", "r1", 0), row(1)), 2, 1),
        ((Corrected("a", "r1", 0),), 1, 0),
    ],
)
def test_the_first_so_many_are_left_out(events: Sequence[Event], known: int, left: int) -> None:
    news = [event if isinstance(event, Corrected) else Placed("a", [event]) for event in events]
    assert list(without(news, known)) == news[len(news) - left :]
