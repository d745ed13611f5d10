"""A channel and a hub between fake peers that are slow, send garbage, stop midway, or go."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator

import pytest

from router.gossip.channel import MAX_FRAME, MAX_WAITING, Channel, frame
from router.gossip.hub import Hub
from router.gossip.messages import AnyMessage, Applied, Bye, Codec, Explained, Full, Load, Placed, Report
from tests.rig import until

CODEC = Codec()
REPORT = frame(CODEC.encode(Report(7)))


class Peer:
    """The other end: bytes by hand. It reads only when it is told to."""

    def __init__(self, line: socket.socket) -> None:
        self.line = line
        line.setblocking(False)

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.line, data)

    async def message(self) -> AnyMessage:
        """The next message. Raises ConnectionError when the line has ended."""
        [length] = struct.unpack("<I", await self._exactly(4))
        return CODEC.decode(await self._exactly(length))

    async def _exactly(self, count: int) -> bytes:
        data = b""
        async with asyncio.timeout(5):
            while len(data) < count:
                more = await asyncio.get_running_loop().sock_recv(self.line, count - len(data))
                if not more:
                    raise ConnectionError("the line has ended")
                data += more
        return data


class Ear:
    """Keeps what a channel hears."""

    def __init__(self) -> None:
        self.messages: list[AnyMessage] = []
        self.lost = 0

    def heard(self, message: AnyMessage, _: bytes) -> None:
        self.messages.append(message)

    def gone(self) -> None:
        self.lost += 1


@pytest.fixture
async def line() -> AsyncIterator[tuple[Channel, Ear, Peer]]:
    ours, theirs = socket.socketpair()
    ear = Ear()
    channel = await Channel.over(ours, CODEC, ear.heard, ear.gone)
    with theirs:
        yield channel, ear, Peer(theirs)
    channel.close()
    await until(channel.closed.is_set)


async def test_messages_arrive_whole_however_the_bytes_come(line: tuple[Channel, Ear, Peer]) -> None:
    _, ear, peer = line
    for byte in REPORT + REPORT:
        await peer.send(bytes([byte]))
        await asyncio.sleep(0)
    await peer.send(REPORT * 3 + REPORT[:3])
    await until(lambda: len(ear.messages) == 5)
    await peer.send(REPORT[3:])
    await until(lambda: len(ear.messages) == 6)
    assert all(isinstance(message, Report) and message.serial == 7 for message in ear.messages)


async def test_half_a_message_is_no_message(line: tuple[Channel, Ear, Peer]) -> None:
    channel, ear, peer = line
    await peer.send(REPORT[:-1])
    peer.line.close()
    await until(lambda: ear.lost)
    assert (ear.messages, channel.closed.is_set()) == ([], True)


@pytest.mark.parametrize(
    "garbage",
    [b"GET /metrics HTTP/1.1\r\n\r\n", frame(b"\xc1"), frame(b""), struct.pack("<I", MAX_FRAME + 1)],
)
async def test_who_sends_garbage_is_cut_off_and_what_came_before_counts(
    line: tuple[Channel, Ear, Peer], garbage: bytes
) -> None:
    _, ear, peer = line
    await peer.send(REPORT + garbage + REPORT)
    await until(lambda: ear.lost == 1)
    assert len(ear.messages) == 1


async def test_what_a_peer_does_not_take_is_dropped_and_counted_and_what_must_arrive_is_not(
    line: tuple[Channel, Ear, Peer],
) -> None:
    channel, _, peer = line
    news = Placed("a", [("r1", None, list(range(10**18, 10**18 + 10_000)))])
    sent = 0
    while not channel.dropped:
        channel.send(news)
        sent += 1
        assert sent * 90_000 < MAX_WAITING + 2_000_000
    channel.send(Report(9), must=True)
    assert channel.dropped == {"Placed": 1}
    for _ in range(sent - 1):
        assert isinstance(await peer.message(), Placed)
    assert isinstance(await peer.message(), Report)
    channel.send(news)
    assert isinstance(await peer.message(), Placed)


async def test_sending_to_nobody_does_nothing(line: tuple[Channel, Ear, Peer]) -> None:
    channel, ear, peer = line
    peer.line.close()
    await until(lambda: ear.lost)
    channel.send(Report(1), must=True)
    channel.close()
    assert not channel.dropped


# The hub.


class Star:
    """A hub and what it tells its owner."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, AnyMessage]] = []
        self.lost: list[str] = []
        self.peers: list[Peer] = []
        self.hub = Hub(lambda peer, message: self.heard.append((peer, message)), self.lost.append)

    async def join(self, name: str) -> Peer:
        ours, theirs = socket.socketpair()
        await self.hub.join(name, ours)
        self.peers.append(Peer(theirs))
        return self.peers[-1]


@pytest.fixture
async def star() -> AsyncIterator[Star]:
    star = Star()
    yield star
    for peer in star.peers:
        peer.line.close()
    await until(lambda: not star.hub.peers)


def encoded(message: AnyMessage) -> bytes:
    return frame(CODEC.encode(message))


async def test_news_goes_to_all_others_and_answers_to_the_supervisor_alone(star: Star) -> None:
    a, b, c = [await star.join(name) for name in "abc"]
    await a.send(encoded(Applied(1)) + encoded(Full("r1", 2.0)))
    for other in (b, c):
        told = await other.message()
        assert isinstance(told, Full)
        assert (told.replica, told.seconds) == ("r1", 2.0)
    assert [(peer, type(message)) for peer, message in star.heard] == [("a", Applied), ("a", Full)]
    star.hub.broadcast(Report(1))
    for peer in (a, b, c):
        assert isinstance(await peer.message(), Report)


async def test_who_joins_hears_the_load_of_all_others_first(star: Star) -> None:
    """CASES B60."""
    a = await star.join("a")
    load = Load("a", 3, True, {"r1": (1, 1, 5, 5, 0, 0.0, 0.0, 0.0)})
    await a.send(encoded(load) + encoded(Load("a", 4, False, {})))
    await until(lambda: len(star.heard) == 2)
    b = await star.join("b")
    star.hub.send("b", Report(1))
    told = await b.message()
    assert isinstance(told, Load)
    assert (told.sequence, told.loads) == (3, load.loads)
    assert isinstance(await b.message(), Report)


async def test_who_goes_is_said_goodbye_for(star: Star) -> None:
    a, b = [await star.join(name) for name in "ab"]
    a.line.close()
    told = await b.message()
    assert isinstance(told, Bye)
    assert (told.peer, star.lost, star.hub.peers) == ("a", ["a"], ["b"])
    star.hub.send("a", Report(1))


async def test_a_worker_that_speaks_garbage_harms_only_itself(star: Star) -> None:
    a, b = [await star.join(name) for name in "ab"]
    await a.send(b"\xff" * 100)
    assert isinstance(await b.message(), Bye)
    await b.send(encoded(Explained(1, b"{}")))
    await until(lambda: star.heard)
    assert star.lost == ["a"]


async def test_a_worker_that_does_not_read_holds_nobody_up_and_what_it_missed_is_counted(star: Star) -> None:
    a, b, c = [await star.join(name) for name in "abc"]
    placed = Placed("a", [("r1", None, list(range(10**18, 10**18 + 10_000)))])
    sent = 0
    while not star.hub.dropped:
        await a.send(encoded(placed))
        sent += 1
        assert isinstance(await b.message(), Placed)
        assert sent < 200
    assert star.hub.dropped == {"Placed": 1}
    c.line.close()
    await until(lambda: star.lost == ["c"])
    assert star.hub.dropped == {"Placed": 1}
