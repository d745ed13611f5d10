"""A replica that comes empty carries its share within a minute, on traffic that is hot, cold and in between."""

import pytest

from loadtests.joins import AT_S, GOAL, Came, come
from loadtests.table_kinds import Kind
from router.core.ramp import SECONDS

REPLICAS = 4


def came(workload: str, rate: float, event: str = "join", ramp: float = SECONDS, routers: int = 1) -> Came:
    """The last of four, at a rate that keeps engines busy for more than half of the time."""
    kind = Kind(workload, workload=workload)
    work = kind.play(1, int(rate * (AT_S + 61)), rate)
    return come(work, event, kind.profile, REPLICAS, ramp, 1, routers)


@pytest.mark.parametrize(
    ("workload", "rate", "event"),
    [
        ("classifier", 100.0, "join"),
        ("ladder", 7.0, "join"),
        ("ladder", 7.0, "restart"),
        ("uniform", 15.0, "join"),
        ("whale", 20.0, "restart"),
    ],
)
def test_a_newcomer_carries_its_share_within_a_minute_and_is_never_above_its_limits(
    workload: str, rate: float, event: str
) -> None:
    found = came(workload, rate, event)
    assert found.good, found


def test_a_newcomer_carries_its_share_behind_several_routers() -> None:
    found = came("ladder", 7.0, routers=3)
    assert found.good, found


def test_without_a_ramp_it_is_flooded_with_what_nobody_has() -> None:
    flooded, ramped = came("ladder", 7.0, ramp=0.0), came("ladder", 7.0)
    assert flooded.shares[0] > GOAL[1]
    assert ramped.shares[0] < flooded.shares[0]
