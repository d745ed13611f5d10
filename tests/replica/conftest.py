"""Fixtures of the simulated replica's tests: a fast replica on a free port, and a client for it."""

from collections.abc import AsyncIterator

import aiohttp
import pytest

from replica.server import SimulatedReplica
from replica.settings import ReplicaSettings


@pytest.fixture
async def replica() -> AsyncIterator[SimulatedReplica]:
    """100 times an H100: a step takes 60 microseconds. 2,000 blocks are 32,000 tokens."""
    settings = ReplicaSettings(speed=100, blocks=2_000, adapters=("sim-adapter",), keep_requests=8)
    async with SimulatedReplica(settings) as replica:
        yield replica


@pytest.fixture
async def client(replica: SimulatedReplica) -> AsyncIterator[aiohttp.ClientSession]:
    timeout = aiohttp.ClientTimeout(total=10)
    async with aiohttp.ClientSession(replica.url, timeout=timeout) as session:
        yield session
