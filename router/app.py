"""Wiring of one worker: builds each object once, hands it over by constructor, starts and stops in order.

Start: fleet, pools, probes, admin port, clients' port last. Stop: clients' port first, then what is under way, then
probes, admin port and pools.
"""

import asyncio
import logging
import signal
import socket
import sys
import time
from importlib.metadata import version as installed
from pathlib import Path
from random import Random
from typing import Annotated
from urllib.parse import urlsplit

import typer
import uvloop
from aiohttp import web

from router.admin import api
from router.admin.metrics import Metrics
from router.config import Config, ConfigError, Endpoint, ReplicaConfig, load
from router.core.fleet import Fleet
from router.core.types import State
from router.members.health import Health, HealthSettings
from router.proxy.context import Proxy
from router.proxy.openai import Asker
from router.proxy.server import ClientConnection, Clients
from router.proxy.upstream import Address, Pool
from router.proxy.waiting import Waiting

log = logging.getLogger("homing")

ADMIN_GRACE = 0.5
"""Seconds that an admin request under way gets at the stop; they answer in milliseconds."""


class Worker:
    """One router in one process. `clients` and `admin` are bound sockets, which the worker closes when it stops."""

    def __init__(self, config: Config, loop: asyncio.AbstractEventLoop, clients: socket.socket, admin: socket.socket):
        self._loop, self._config, self._clients, self._admin = loop, config, clients, admin
        self.fleet = Fleet(config.routing.make(), config.fleet_settings())
        self.fleet.join([replica.spec() for replica in config.replicas], time.monotonic())
        self.waiting = Waiting(loop, config.routing.queue.max_requests, config.routing.queue.max_seconds)
        health = config.health
        self._health = Health(
            self.fleet,
            {replica.id: replica.url.rstrip("/") for replica in config.replicas},
            HealthSettings(health.interval, health.timeout, health.failures, health.models_interval),
            Random(),
            self.waiting.wake,
        )
        self.pools = {
            replica.id: Pool(loop, _address(replica), config.timeouts.connect) for replica in config.replicas
        }  # fmt: skip
        self.metrics = Metrics(
            self.fleet, config.routing.policy, self._health.missing, lambda: self.waiting.depths
        )  # fmt: skip
        self.proxy = Proxy(
            loop,
            self.fleet,
            Asker(config.routing.prefix_block),
            self.pools,
            self.waiting,
            Random(),
            self.metrics.record,
            self._health.unreachable,
            installed("homing"),
        )
        self.clients = Clients()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Serve. Returns when the clients' port is open."""
        self._tasks.append(self._loop.create_task(self._health.run()))
        self._runner = web.AppRunner(api.make(self.fleet, self.metrics), access_log=None, shutdown_timeout=ADMIN_GRACE)
        await self._runner.setup()
        await web.SockSite(self._runner, self._admin).start()
        self._server = await self._loop.create_server(
            lambda: ClientConnection(self.proxy, self._config.limits.body, self.clients),
            sock=self._clients,
            backlog=4096,
        )

    async def stop(self) -> None:
        """Take no new connection, let what is under way end within drain.timeout, then close everything."""
        self._server.close()
        await self.clients.drain(self._config.drain.timeout)
        self.waiting.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._runner.cleanup()
        for pool in self.pools.values():
            pool.close()


def _address(replica: ReplicaConfig) -> Address:
    url = urlsplit(replica.url)
    assert url.hostname is not None
    base = url.path.rstrip("/").encode()
    return Address(url.hostname, url.port or 80, base, url.netloc.encode())


def listen(endpoint: Endpoint, setting: str) -> socket.socket:
    """A bound socket. Raises ConfigError when the address cannot be had."""
    family = socket.AF_INET6 if ":" in endpoint.host else socket.AF_INET
    try:
        return socket.create_server((endpoint.host, endpoint.port), family=family, backlog=4096)
    except OSError as error:
        raise ConfigError([f"{setting}: cannot listen on {endpoint}: {error.strerror or error}"]) from error


async def _serve(config: Config) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    with listen(config.listen, "listen") as clients, listen(config.admin, "admin") as admin:
        worker = Worker(config, loop, clients, admin)
        await worker.start()
        print(_banner(config, clients, admin), file=sys.stderr, flush=True)  # noqa: T201
        await stop.wait()
        log.info("stopping: %d connections are open", len(worker.clients))
        await worker.stop()


def _banner(config: Config, clients: socket.socket, admin: socket.socket) -> str:
    names = [f"{replica.id} {State.STARTING}" for replica in config.replicas]
    shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    host, port = clients.getsockname()[:2]
    admin_host, admin_port = admin.getsockname()[:2]
    return "\n".join([
        f"homing {installed('homing')}, policy {config.routing.policy}",
        f"  listening on http://{host}:{port}",
        f"  admin port   http://{admin_host}:{admin_port}",
        f"  replicas     {shown}",
    ])  # fmt: skip


def serve(config: Annotated[Path, typer.Option("--config", "-c", help="The YAML file.", metavar="FILE")]) -> None:
    """Run the router until SIGTERM or Ctrl-C.

    Examples:

      homing serve -c router.yaml

      homing serve --config deploy/router.yaml
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        uvloop.run(_serve(load(config)))
    except ConfigError as error:
        for problem in error.problems:
            print(problem, file=sys.stderr)  # noqa: T201
        raise SystemExit(1) from error


def version() -> None:
    """Print the version."""
    print(installed("homing"))  # noqa: T201
