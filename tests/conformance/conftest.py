"""One worker for all the cases of a file, on the loop that it runs on."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

import pytest_asyncio
import uvloop

from tests.conformance.raw import Bench, bench


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def on() -> AsyncIterator[Bench]:
    async with bench() as made:
        yield made
