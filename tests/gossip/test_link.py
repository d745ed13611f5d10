"""When a router asks others to tell again what it has missed: once the snapshot is read, and until it was told."""

import asyncio
import socket
from collections.abc import Mapping, Sequence
from typing import cast

import msgspec

from router.core.peers import PeerId
from router.gossip.channel import Channel
from router.gossip.hub import Hub
from router.gossip.lines import Line
from router.gossip.link import Link
from router.gossip.messages import AnyMessage, Batch, Bye, Codec, Heard, Load, Placed
from router.gossip.seal import Seal
from router.gossip.snapshot import Snapshot
from tests.core.worlds import fleet_of
from tests.rig import until

SECRET = "a secret of the whole fleet"


class Store:
    """lines.Store, with nothing in it, that is slow to say so."""

    def __init__(self) -> None:
        self.answers = asyncio.Event()

    async def read(self, keys: Sequence[str]) -> Mapping[str, bytes]:
        await self.answers.wait()
        return {}

    async def write(self, key: str, value: bytes, seconds: float) -> None:
        raise NotImplementedError

    async def members(self, key: str) -> Sequence[str]:
        return []

    async def enlist(self, key: str, name: str) -> None:
        raise NotImplementedError

    async def strike(self, key: str, names: Sequence[str]) -> None:
        raise NotImplementedError


class Wakes:
    """lines.Line, as far as it is woken."""

    def __init__(self) -> None:
        self.wakes = 0

    def wake(self) -> None:
        self.wakes += 1


class World:
    """A link whose line is the test, and another router's mouth."""

    def __init__(self) -> None:
        self.hub = Hub(lambda *_: None, lambda _: None)
        self.link = Link(fleet_of(2), self.hub, Snapshot(), lambda _: None, SECRET, b"8 random", 512)
        self.line = Wakes()
        self.link.line = cast(Line, self.line)
        self._mouth = Seal(SECRET, b"the peer")

    def sealed(self, batch: Batch) -> bytes:
        return self._mouth.close(Codec().encode(batch))

    def hears(self, batch: Batch) -> bool:
        """Whether the line is woken by it."""
        before = self.line.wakes
        assert not self.link.hear([self.sealed(batch)])
        return self.line.wakes > before

    def tells(self) -> Batch | None:
        data = self.link.tell()
        return None if data is None else msgspec.msgpack.decode(self._mouth.open(data), type=Batch)

    def asks(self) -> Mapping[PeerId, int]:
        told = self.tells()
        return {} if told is None else told.lacks


MISSED = Batch("peer", 512, [Placed("peer", [("r1", None, [1])])], 5, 2)
AGAIN = Batch("peer", 512, [Placed("peer", [("r1", None, [number]) for number in range(4)])], 2, 2)


async def test_what_was_missed_is_asked_for_when_the_snapshot_is_read_and_with_each_heartbeat_until_it_is_told() -> (
    None
):
    world, store = World(), Store()
    joining = asyncio.create_task(world.link.join(store))
    await asyncio.sleep(0)
    assert not world.hears(MISSED)
    assert world.asks() == {}
    store.answers.set()
    await joining
    assert [world.asks() for _ in range(2)] == [{"peer": 2}, {}]
    assert not world.hears(MISSED)
    world.link.beat()
    assert world.asks() == {"peer": 2}
    world.hears(AGAIN)
    world.link.beat()
    assert world.asks() == {}
    assert world.hears(Batch("peer", 512, [], 7, 2))
    assert world.asks() == {"peer": 6}


async def test_who_is_asked_tells_again_and_nobody_else_does() -> None:
    world = World()
    world.link.take("0", Placed("0", [("r1", None, [1]), ("r1", 1, [2])]))
    first = world.tells()
    assert not world.hears(Batch("peer", 512, [], 0, 0, {"somebody else": 0}))
    assert world.tells() is None
    assert world.hears(Batch("peer", 512, [], 0, 0, {world.link.name: 0}))
    assert world.tells() == first


async def test_what_comes_in_one_go_is_one_message_and_a_goodbye_comes_after_what_was_told_before_it() -> None:
    world, told = World(), list[AnyMessage]()
    ours, theirs = socket.socketpair()
    await world.hub.join("0", ours)
    worker = await Channel.over(theirs, Codec(), lambda message, _: told.append(message), lambda: None)
    loads = [Batch("peer", 512, [Load("peer", number, False, {})]) for number in range(2)]
    world.link.hear([world.sealed(each) for each in loads])
    world.link.hear([world.sealed(each) for each in (loads[0], Batch("peer", 512, [Bye("peer")]), loads[1])])
    await until(lambda: len(told) == 4)
    assert told == [Heard(loads), Heard(loads[:1]), Bye("peer"), Heard(loads[1:])]
    worker.close()
    world.hub.close()
    await worker.closed.wait()
