"""The data plane is tested on the loop that it runs on."""

import asyncio
from collections.abc import Callable, Mapping

import pytest
import uvloop

from tests.authority import Authority


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Whom the tests of TLS trust."""
    return Authority(tmp_path_factory.mktemp("authority"))
