"""A hundred examples of each property of tests/conformance/fuzz.py, which says how to try millions."""

from collections import Counter

import pytest

from tests.conformance.fuzz import properties


@pytest.mark.parametrize("number", range(4))
def test_what_must_hold_for_any_bytes(number: int) -> None:
    properties(Counter(), 100)[number]()
