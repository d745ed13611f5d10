"""The line over Redis when its client does what it should not."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any, cast

import pytest

from router.gossip import redis
from router.gossip.lines import End
from router.gossip.redis import Access, RedisLine
from tests.rig import WITHIN


class Turned:
    """The part of an End that a line needs that gets nowhere."""

    def __init__(self) -> None:
        self.problems: list[str | None] = []

    def turned(self, problem: str | None) -> None:
        self.problems.append(problem)


async def test_a_line_that_is_stopped_ends_also_when_its_connection_cannot_be_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The client raises TimeoutError then, in the place of the cancellation."""
    opened = asyncio.Event()
    errors = [TimeoutError("closing took too long")]

    @asynccontextmanager
    async def unclosable(access: Access) -> AsyncIterator[Any]:
        try:
            opened.set()
            await asyncio.get_running_loop().create_future()
            yield
        finally:
            if errors:  # Once, so that a line that goes on can be ended by whoever finds it.
                raise errors.pop()

    monkeypatch.setattr(redis, "connected", unclosable)
    end = Turned()
    line = RedisLine(Access("", [("127.0.0.1", 1)]), "news", cast(End, end), lambda *_: None, Random(1))
    running = asyncio.get_running_loop().create_task(line.run())
    await opened.wait()
    await line.close(b"the last word")
    running.cancel()
    done, _ = await asyncio.wait([running], timeout=WITHIN)
    assert done == {running}
    assert end.problems == ["closing took too long"]
