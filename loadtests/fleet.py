"""The fleet that demos and load tests run against: simulated replicas and one router, all on this machine.

Each fleet is fresh: new processes, empty caches, a router that has learned nothing. The router is stopped first, so
that it can end its streams while the replicas still answer.
"""

import contextlib
import re
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import yaml

from loadtests.processes import HOST, Process, free_port, running

MODEL = "sim"
START_WITHIN_S = 30.0  # An interpreter that starts beside five others on two busy cores takes seconds.
GRACE_S = 5.0

HOMING = (sys.executable, "-m", "router.cli")


@dataclass(frozen=True, slots=True)
class FleetShape:
    """The replicas: how many, how much cache (`blocks` engine blocks of `block_size` tokens), how fast."""

    n: int = 4
    profile: str = "llama3-8b-h100"
    blocks: int = 6_000
    block_size: int = 16
    speed: float = 1.0
    seed: int = 0

    @property
    def ids(self) -> list[str]:
        return [f"r{number}" for number in range(1, self.n + 1)]


@dataclass(frozen=True, slots=True)
class Fleet:
    """A running fleet. `replicas` maps ids to URLs; `processes` are all of its processes, the router last."""

    url: str
    admin_url: str
    replicas: dict[str, str]
    processes: tuple[Process, ...]


@contextlib.asynccontextmanager
async def fleet(
    shape: FleetShape,
    policy: str,
    *,
    port: int | None = None,
    admin_port: int | None = None,
    flags: Mapping[str, Sequence[str]] | None = None,
    settings: Mapping[str, object] | None = None,
) -> AsyncIterator[Fleet]:
    """A fleet that is ready inside the block and gone after it. Without a port, free ones are taken.

    flags: more words for the command of a replica, by its id. settings: sections of the router's configuration.

    Raises ProcessError when a process does not get ready.
    """
    front, admin = (f"http://{HOST}:{wanted or free_port()}" for wanted in (port, admin_port))
    with tempfile.TemporaryDirectory(prefix="homing-fleet-") as name:
        directory = Path(name)
        config = directory / "router.yaml"
        router = Process("router", (*HOMING, "serve", "-c", str(config)), directory / "router.log")
        commands = {name: replica_command(name, shape, (flags or {}).get(name, ())) for name in shape.ids}
        replicas = [Process(f"replica {name}", each, directory / f"{name}.log") for name, each in commands.items()]
        async with running(replicas, GRACE_S):
            urls = {name: await _listening(process) for name, process in zip(shape.ids, replicas, strict=True)}
            built = Fleet(front, admin, urls, (*replicas, router))
            config.write_text(router_yaml(built, policy, settings), encoding="utf-8")
            async with running([router], GRACE_S):
                await routing(router, built)
                yield built


def router_yaml(built: Fleet, policy: str, settings: Mapping[str, object] | None = None) -> str:
    """The router's configuration for this fleet, with these sections of it instead of, or beside, the usual ones."""
    usual = {
        "listen": built.url.removeprefix("http://"),
        "admin": built.admin_url.removeprefix("http://"),
        "replicas": [{"id": name, "url": url} for name, url in built.replicas.items()],
        "routing": {"policy": policy},
        # Less than GRACE_S: whoever stops a demo does not wait for its streams.
        "drain": {"timeout": "2s"},
    }
    return yaml.safe_dump({**usual, **(settings or {})}, sort_keys=False)


def replica_command(name: str, shape: FleetShape, more: Sequence[str] = (), port: int = 0) -> Sequence[str]:
    """What starts one replica; on port 0 it takes a free one and says which."""
    flags = {
        "port": port,
        "id": name,
        "model": MODEL,
        "profile": shape.profile,
        "speed": shape.speed,
        "blocks": shape.blocks,
        "block-size": shape.block_size,
        "seed": shape.seed,
    }
    return (
        *HOMING,
        "replica",
        "simulate",
        *(word for flag, value in flags.items() for word in (f"--{flag}", str(value))),
        *more,
    )


async def _listening(process: Process) -> str:
    """The URL that the replica says it listens on."""

    async def said() -> str | None:
        found = re.search(r"listening on (http://\S+)", process.output())
        return found and found[1]

    return await process.ready(said, START_WITHIN_S)


async def routing(router: Process, built: Fleet) -> None:
    """Waits until the router knows every replica as ready and answers clients; an arm must not begin with fewer.

    Raises ProcessError.
    """
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2.0), raise_for_status=True) as http:

        async def ready() -> bool | None:
            try:
                async with http.get(f"{built.admin_url}/fleet") as admin, http.get(f"{built.url}/health"):
                    known = {replica["id"]: replica["state"] for replica in (await admin.json())["replicas"]}
            except (aiohttp.ClientError, TimeoutError):
                return None  # Not listening yet; whether it still can is `Process.ready`'s to judge.
            return known == dict.fromkeys(built.replicas, "ready") or None

        await router.ready(ready, START_WITHIN_S)
