"""The data plane is tested on the loop that it runs on."""

import asyncio
import gc
from collections.abc import Callable, Iterator, Mapping

import pytest
import uvloop

from tests.authority import Authority


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture(autouse=True, scope="session")
def _collections_are_cheap() -> Iterator[None]:
    """tests.rig collects garbage after each test; what the interpreter holds from before need not be looked through
    every time."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Whom the tests of TLS trust."""
    return Authority(tmp_path_factory.mktemp("authority"))
