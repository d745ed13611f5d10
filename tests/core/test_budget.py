"""What is counted of the last ten seconds, and how many requests may be sent again for it."""

from random import Random

import pytest

from router.core.budget import LEAST, RetryBudget
from router.core.window import SECONDS, Window

START = 1000.25


def test_a_window_counts_what_it_was_told() -> None:
    window = Window()
    assert window.total(START) == 0
    for _ in range(3):
        window.add(START)
    window.add(START + 4)
    assert window.total(START + 4) == 4


def test_a_window_forgets_after_ten_seconds_and_no_more_than_a_second_sooner() -> None:
    for offset in (0.0, 0.5, 0.999):
        window = Window()
        window.add(1000 + offset)
        assert window.total(1000 + offset + SECONDS - 1) == 1
        assert window.total(1000 + offset + SECONDS) == 0


@pytest.mark.parametrize("seed", range(5))
def test_a_window_agrees_with_a_list_of_all_events(seed: int) -> None:
    """Counted by the second: an event is in while its second is one of the last ten."""
    rng, window, now = Random(seed), Window(), 0.0
    events: list[float] = []
    for _ in range(2000):
        now += rng.choice([0.0, 0.01, 0.3, 1.0, 7.0, 25.0])
        if rng.random() < 0.7:
            window.add(now)
            events.append(now)
        assert window.total(now) == sum(int(event) > int(now) - SECONDS for event in events)


def test_a_window_is_as_large_after_a_million_events_as_before() -> None:
    window = Window()
    before = [len(window._counts), len(window._seconds)]
    for i in range(100_000):
        window.add(i / 1000)
    assert [len(window._counts), len(window._seconds)] == before


def spent(budget: RetryBudget, now: float) -> int:
    """How many resends it grants at once."""
    count = 0
    while budget.spend(now):
        count += 1
    return count


def test_ten_may_be_sent_again_however_little_traffic_there_is() -> None:
    budget = RetryBudget()
    assert budget.left(START) == 1.0
    assert spent(budget, START) == LEAST == 10
    assert budget.left(START) == 0.0


def test_a_tenth_of_the_last_ten_seconds_requests_may_be_sent_again() -> None:
    budget = RetryBudget()
    for i in range(500):
        budget.request(START + i * 0.01)
    now = START + 5
    for taken in range(50):
        assert budget.left(now) == pytest.approx(1 - taken / 50)
        assert budget.spend(now)
    assert not budget.spend(now)


def test_a_refused_resend_takes_nothing() -> None:
    budget = RetryBudget()
    assert spent(budget, START) == 10
    assert not any(budget.spend(START + second) for second in range(9))
    assert spent(budget, START + SECONDS) == 10


def test_a_spent_budget_is_full_again_after_ten_seconds() -> None:
    budget = RetryBudget()
    assert spent(budget, START) == 10
    assert budget.left(START + 8.7) == 0.0
    assert budget.left(START + SECONDS) == 1.0


def test_what_was_spent_while_there_was_traffic_leaves_none_and_never_less() -> None:
    budget = RetryBudget(share=1.0)
    for _ in range(100):
        budget.request(START)
    assert spent(budget, START + 5) == 100
    assert budget.left(START + 11) == 0.0
    assert not budget.spend(START + 11)


def test_a_share_of_nothing_leaves_the_least() -> None:
    budget = RetryBudget(share=0.0)
    for _ in range(1000):
        budget.request(START)
    assert spent(budget, START) == LEAST
