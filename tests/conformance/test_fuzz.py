"""A few hundred examples of each property of tests/conformance/fuzz.py, which says how to try millions."""

from collections import Counter
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conformance.fuzz import PROPERTIES, Tally


@pytest.mark.parametrize("holds", PROPERTIES, ids=lambda holds: holds.__name__)
def test_what_must_hold_for_any_bytes(holds: Callable[[Random, Tally], None]) -> None:
    tally: Tally = Counter()

    @settings(max_examples=150, deadline=None)
    @given(st.randoms(use_true_random=False))
    def tried(rng: Random) -> None:
        holds(rng, tally)

    tried()
    assert sum(tally.values()) > 0
