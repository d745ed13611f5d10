"""For all tests."""

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="session")
def _collections_are_cheap() -> Iterator[None]:
    """tests.rig collects garbage after each test; what the interpreter holds from before need not be looked through
    every time."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
