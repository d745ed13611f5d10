"""Routers whose lines to Redis come back one after the other: what any of them placed meanwhile all know in the end,
whoever was back first, and however much later the last one is.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from loadtests.redisserver import redis_server
from tests.e2e.supervised import Crewed
from tests.gossip.test_redis import WITHIN, Routers, acquainted, held, link, routers
from tests.gossip.wire import Wire, wired
from tests.rig import until

Side = tuple[Crewed, Wire]


@asynccontextmanager
async def acquaintances(directory: Path) -> AsyncIterator[tuple[list[Side], Crewed, Routers]]:
    """Two routers, each with a wire of its own, and one whose line never breaks: it hears what is told at any time."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(redis_server())
        wires = [await stack.enter_async_context(wired(server.port)) for _ in range(2)]
        fleet, _ = await stack.enter_async_context(routers(directory, server, 3))
        sides = [(await fleet.add(f"{wire.port}", url=f"redis://127.0.0.1:{wire.port}"), wire) for wire in wires]
        witness = await fleet.add("witness")
        await acquainted(*[router for router, _ in sides], witness)
        yield sides, witness, fleet


async def lose(side: Side) -> None:
    """Its line breaks, and does not come back by itself."""
    router, wire = side
    wire.refusing = True
    wire.cut()
    await until(lambda: not link(router).up, WITHIN)


async def back(side: Side) -> None:
    router, wire = side
    wire.heal()
    await until(lambda: link(router).up, WITHIN)


async def place(router: Crewed, what: str) -> None:
    """New prompts, each of some blocks."""
    for number in range(6):
        assert (await router.chat(f"{number} {what} " * 200)).status == 200


async def agree(routers: Sequence[Crewed]) -> None:
    await until(lambda: len({tuple(held(each).items()) for each in routers}) == 1, WITHIN)


@pytest.mark.parametrize("sooner", [0, 1])
async def test_what_was_placed_while_both_were_away_is_known_to_who_is_back_later(tmp_path: Path, sooner: int) -> None:
    async with acquaintances(tmp_path) as (sides, witness, _):
        for side in sides:
            await lose(side)
        for number, (router, _) in enumerate(sides):
            await place(router, f"{number} while both are away")
        assert held(sides[0][0]) != held(sides[1][0])
        await back(sides[sooner])
        await agree((sides[sooner][0], witness))  # So it has told all, and the other was not there.
        assert not link(sides[1 - sooner][0]).up
        await back(sides[1 - sooner])
        await agree((sides[0][0], sides[1][0], witness))


async def test_what_was_placed_while_one_was_away_for_a_moment_or_for_long_is_known_to_it_when_it_is_back(
    tmp_path: Path,
) -> None:
    async with acquaintances(tmp_path) as ((first, second), witness, _):
        for away in ("for a moment", "for long"):
            await lose(second)
            if away == "for long":
                await until(lambda: link(witness).peers == 1, WITHIN)
            await place(first[0], f"while one is away {away}")
            await agree((first[0], witness))
            assert held(second[0]) != held(witness)
            await back(second)
            await agree((first[0], second[0], witness))
            await acquainted(first[0], second[0], witness)


async def test_who_is_new_knows_block_by_block_what_was_placed_just_before_it_came(tmp_path: Path) -> None:
    """The snapshot does not have it yet."""
    async with acquaintances(tmp_path) as ((first, _), witness, fleet):
        await place(first[0], "just before")
        await agree((first[0], witness))
        await agree((first[0], witness, await fleet.add("new")))
