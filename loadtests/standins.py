"""A router before stand-in replicas (`standin.c`), which answer at once and cost next to nothing.

For what the router itself does under load, where what replicas do is of no interest. Linux and a C compiler are needed.
"""

import contextlib
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from loadtests.fleet import GRACE_S, HOMING, Fleet, router_yaml, routing
from loadtests.native import Tools, build, listening_port
from loadtests.processes import HOST, Process, free_port, running

_INTERVAL_MS = 1


@dataclass(frozen=True, slots=True)
class Site:
    """A running router before stand-ins; files of whoever measures go to `directory` and are gone with it."""

    fleet: Fleet
    tools: Tools
    directory: Path

    @property
    def port(self) -> int:
        """The router's, on HOST."""
        return int(self.fleet.url.rpartition(":")[2])

    @property
    def router(self) -> int:
        """The process id of the supervisor."""
        return self.fleet.processes[-1].pid


@contextlib.asynccontextmanager
async def standins(
    models: Sequence[str], settings: Mapping[str, object] | None = None, start: Sequence[str] = HOMING
) -> AsyncIterator[Site]:
    """Stand-ins that serve these models, one each, and a router with the default policy and these settings before them,
    ready inside the block and gone after it. `start` begins the router's command line.

    Raises NoCompilerError, and ProcessError when something does not get ready.
    """
    with tempfile.TemporaryDirectory(prefix="homing-standins-") as name:
        directory = Path(name)
        tools = await build(directory)
        replicas = [tools.replica(f"r{i}", _INTERVAL_MS, model) for i, model in enumerate(models, 1)]
        async with running(replicas, GRACE_S):
            urls = {each.name: f"http://{HOST}:{await listening_port(each)}" for each in replicas}
            config = directory / "router.yaml"
            router = Process("router", (*start, "serve", "-c", str(config)), directory / "router.log")
            ends = [f"http://{HOST}:{free_port()}" for _ in range(2)]
            built = Fleet(ends[0], ends[1], urls, (*replicas, router))
            config.write_text(router_yaml(built, "prefix_affinity", settings), encoding="utf-8")
            async with running([router], GRACE_S):
                await routing(router, built)
                yield Site(built, tools, directory)
