"""Key -> order of replicas: golden placements, uhashring's own answers, and how little a change of members moves."""

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from uhashring import HashRing
from xxhash import xxh3_64_intdigest

from router.core.ring import MEMO, Ring

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "ring.json").read_text())
KEYS = [xxh3_64_intdigest(b"%d" % i) for i in range(10_000)]
TEN = [f"replica-{i}" for i in range(10)]


def reference(replicas: list[str]) -> HashRing:
    """uhashring itself, for keys that are hashes already."""
    return HashRing(replicas, hash_fn=lambda key: key if isinstance(key, int) else xxh3_64_intdigest(key.encode()))


def homes(replicas: list[str]) -> list[str]:
    ring = Ring(replicas)
    return [ring.order(key)[0] for key in KEYS]


@pytest.mark.parametrize("golden", GOLDEN["rings"], ids=lambda golden: f"{len(golden['replicas'])} replicas")
def test_orders_are_the_golden_ones(golden: dict[str, dict[str, str]]) -> None:
    ring = Ring(golden["replicas"])
    assert {key: " ".join(ring.order(int(key, 16))) for key in golden["orders"]} == golden["orders"]


def test_home_is_the_node_that_uhashring_gives() -> None:
    theirs, ours = reference(TEN), Ring(TEN)
    for key in KEYS[:100]:
        assert ours.order(key)[0] == theirs.get_node(key)


def test_the_order_behind_home_is_the_walk_of_uhashring() -> None:
    theirs, ours = reference(TEN), Ring(TEN)
    for key in KEYS[:100]:
        assert list(ours.order(key)) == [node["nodename"] for node in theirs.range(key)]


@settings(deadline=None, max_examples=30)
@given(replicas=st.sets(st.text(min_size=1), min_size=1, max_size=6), key=st.integers(0, 2**64 - 1))
def test_an_order_names_every_replica_once(replicas: set[str], key: int) -> None:
    order = Ring(replicas).order(key)
    assert sorted(order) == sorted(replicas)


def test_removing_one_of_ten_moves_its_own_keys_and_no_other() -> None:
    before, after = homes(TEN), homes(TEN[:4] + TEN[5:])
    moved = [old for old, new in zip(before, after, strict=True) if old != new]
    assert set(moved) == {TEN[4]}
    assert len(moved) == before.count(TEN[4])
    assert 0.05 <= len(moved) / len(KEYS) <= 0.15


def test_adding_an_eleventh_takes_its_share_and_moves_no_other_key() -> None:
    before, after = homes(TEN), homes([*TEN, "replica-10"])
    moved = [new for old, new in zip(before, after, strict=True) if old != new]
    assert set(moved) == {"replica-10"}
    assert 0.05 <= len(moved) / len(KEYS) <= 0.15


def test_a_removed_home_gives_way_to_the_next_in_its_order() -> None:
    ten, nine = Ring(TEN), Ring(TEN[1:])
    for key in KEYS[:1000]:
        assert list(nine.order(key)) == [replica for replica in ten.order(key) if replica != TEN[0]]


def test_ten_replicas_share_the_keys_within_a_third() -> None:
    shares = Counter(homes(TEN))
    assert len(shares) == 10
    assert min(shares.values()) > 670
    assert max(shares.values()) < 1330


def test_the_order_depends_on_ids_and_not_on_positions() -> None:
    assert homes(TEN) == homes(TEN[::-1]) == homes(TEN[5:] + TEN[:5])


def test_a_key_beyond_the_last_point_goes_around_to_the_first() -> None:
    ring = Ring(TEN)
    assert ring.order(2**64 - 1) == ring.order(0)


def test_a_key_on_a_point_belongs_to_the_next_one_as_in_uhashring() -> None:
    ring = Ring(["a", "b"])
    for (position, owner), (_, successor) in pairwise(reference(["a", "b"]).get_points()):
        assert ring.order(position - 1)[0] == owner
        assert ring.order(position)[0] == successor


def test_a_ring_without_replicas_has_an_empty_order() -> None:
    assert list(Ring([]).order(12345)) == []


def test_the_memo_answers_alike_and_stays_within_its_bound() -> None:
    many = [f"replica-{i}" for i in range(28)]
    points = [position for position, _ in reference(many).get_points()]
    assert len(points) > MEMO >= 8 * 160  # All orders of eight replicas fit.
    ring, fresh, largest = Ring(many), Ring(many), 0
    for position in points:
        ring.order(position)
        largest = max(largest, len(ring._memo))
    assert largest == MEMO
    for position in points[:50]:
        assert ring.order(position) == fresh.order(position)
        assert ring.order(position) is ring.order(position + 1)


def test_a_walk_is_the_order_in_a_ring_of_any_size() -> None:
    for replicas in (0, 3, 40):
        ring = Ring([f"r{i}" for i in range(replicas)])
        for key in (0, 2**63, 2**64 - 1):
            assert list(ring.walk(key)) == list(ring.order(key))
