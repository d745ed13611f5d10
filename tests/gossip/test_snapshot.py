"""How often the snapshot's parts are renewed."""

from router.core.recalled import MAX_HASHES
from router.gossip.messages import Summary, packed
from router.gossip.snapshot import PERIOD, pause

TELLING = 0.6e-6
"""Seconds that a worker takes for one hash, measured."""


def summary(hashes: int) -> Summary:
    return Summary("r1", None, packed(range(hashes)), 0)


def test_parts_with_little_in_them_are_renewed_once_in_a_period() -> None:
    for told in (None, summary(0), summary(1000)):
        assert pause(told, 4) == PERIOD / 4


def test_a_worker_spends_at_most_half_a_percent_of_its_time_on_parts_that_are_large() -> None:
    for hashes in (5_000, 40_000, MAX_HASHES // 4):
        assert hashes * TELLING <= 0.00501 * pause(summary(hashes), 4)


def test_the_largest_snapshot_is_renewed_well_within_a_minute() -> None:
    for replicas in (1, 4, 100):
        assert replicas * pause(summary(MAX_HASHES // replicas), replicas) < 35.0
