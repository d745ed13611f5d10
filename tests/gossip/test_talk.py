"""A session's news, with a Redis whose answers are written by hand: late, refused, garbage, none."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from router.gossip import talk
from router.gossip.lines import GAP
from router.gossip.talk import Refusal, Talk
from tests.rig import until

CHANNEL = "news"
SUBSCRIBED = b"*3\r\n$9\r\nsubscribe\r\n$4\r\nnews\r\n:1\r\n"


def message(data: bytes) -> bytes:
    return b"*3\r\n$7\r\nmessage\r\n$4\r\nnews\r\n$%d\r\n%b\r\n" % (len(data), data)


class Speaker:
    """lines.End, as far as a talk asks: what it hears, in how many goes, and what there is to tell."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []
        self.turns = 0
        self.waiting: list[bytes] = []
        self.beats = 0

    def hear(self, news: Sequence[bytes]) -> bool:
        self.turns += 1
        self.heard += news
        return b"beat" in news

    def tell(self) -> bytes | None:
        told, self.waiting = b" ".join(self.waiting), []
        return told or None

    def beat(self) -> bytes:
        self.beats += 1
        return b"beat"


class Connection:
    """A client's connection; `theirs` is the other end."""

    def __init__(self, writer: asyncio.StreamWriter, theirs: asyncio.StreamWriter, asked: asyncio.StreamReader) -> None:
        self.transport, self.theirs, self.asked = cast(asyncio.Transport, writer.transport), theirs, asked


class Rig:
    """A talk, and the ends of its two connections that are Redis'."""

    def __init__(self, ear: Connection, mouth: Connection) -> None:
        self.ear, self.mouth, self.end = ear, mouth, Speaker()
        self.observed: list[tuple[str, str]] = []
        self.echoes = 0
        self.talk = Talk(
            ear.transport,
            mouth.transport,
            CHANNEL,
            cast(Any, self.end),
            lambda operation, outcome, _: self.observed.append((operation, outcome)),
            self._echo,
        )
        self.task = asyncio.get_running_loop().create_task(self.talk.run())

    def _echo(self) -> None:
        self.echoes += 1

    async def published(self) -> bytes:
        """The next thing that was published."""
        words = []
        async with asyncio.timeout(5):
            for _ in range(int((await self.mouth.asked.readline())[1:])):
                length = int((await self.mouth.asked.readline())[1:])
                words.append((await self.mouth.asked.readexactly(length + 2))[:-2])
        assert words[:2] == [b"PUBLISH", b"news"]
        return words[2]

    async def begun(self) -> None:
        """Subscribed, and the first heartbeat is out and answered."""
        self.ear.theirs.write(SUBSCRIBED)
        assert await self.published() == b"beat"
        self.mouth.theirs.write(b":1\r\n")
        self.ear.theirs.write(message(b"beat"))
        await until(lambda: self.observed == [("subscribe", "ok"), ("publish", "ok")])
        await until(lambda: self.echoes == 1)
        self.end.heard.clear()

    async def raises(self, kind: type[Exception], text: str) -> None:
        """The talk ends by this."""
        async with asyncio.timeout(10):
            with pytest.raises(kind, match=text):
                await self.task


@asynccontextmanager
async def connection() -> AsyncIterator[Connection]:
    accepted: asyncio.Future[tuple[asyncio.StreamReader, asyncio.StreamWriter]]
    accepted = asyncio.get_running_loop().create_future()
    server = await asyncio.start_server(lambda *both: accepted.set_result(both), "127.0.0.1", 0)
    _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    asked, theirs = await accepted
    yield Connection(writer, theirs, asked)
    for each in (writer, theirs):
        each.close()
    server.close()


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with connection() as ear, connection() as mouth:
        found = Rig(ear, mouth)
        yield found
        found.task.cancel()
        await asyncio.gather(found.task, return_exceptions=True)


async def test_what_comes_from_several_routers_within_the_grace_is_heard_in_one_turn(rig: Rig) -> None:
    await rig.begun()
    rig.ear.theirs.write(message(b"one"))
    await asyncio.sleep(talk.GRACE / 3)
    rig.ear.theirs.write(message(b"two") + message(b"three")[:9])
    await asyncio.sleep(0)
    rig.ear.theirs.write(message(b"three")[9:])
    await until(lambda: len(rig.end.heard) == 3)
    assert (rig.end.heard, rig.end.turns) == ([b"one", b"two", b"three"], 2)


async def busy(rig: Rig, others: Sequence[bytes] = ()) -> None:
    """A tick: we speak, Redis answers, and so do others."""
    turns = rig.end.turns
    rig.end.waiting.append(b"ours")
    rig.talk.wake()
    assert await rig.published() == b"ours"
    rig.mouth.theirs.write(b":1\r\n")
    rig.ear.theirs.write(b"".join(map(message, [b"ours", *others])))
    await until(lambda: rig.end.turns > turns)
    await asyncio.sleep(GAP)


async def test_while_it_speaks_itself_nothing_that_comes_is_listened_to(rig: Rig) -> None:
    await rig.begun()
    await busy(rig)
    assert not rig.ear.transport.is_reading()
    rig.ear.theirs.write(message(b"late"))
    await busy(rig)
    assert rig.end.heard == [b"ours", b"late", b"ours"]


async def test_what_was_late_is_fetched_once_more(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(talk, "QUIET", 60.0)
    await rig.begun()
    await busy(rig, [b"theirs"])
    monkeypatch.setattr(talk, "LATE", 0.1)
    await busy(rig)  # Which brings less than the tick before.
    rig.ear.theirs.write(message(b"late"))
    await until(lambda: rig.end.heard[-1] == b"late")
    assert not rig.ear.transport.is_reading()


async def test_one_that_is_quiet_listens_again(rig: Rig) -> None:
    await rig.begun()
    await busy(rig)
    await until(rig.ear.transport.is_reading)
    rig.ear.theirs.write(message(b"at last"))
    await until(lambda: rig.end.heard[-1] == b"at last")


async def test_one_that_waits_for_an_answer_listens(rig: Rig) -> None:
    await rig.begun()
    await busy(rig)
    rig.end.waiting.append(b"no answer")
    rig.talk.wake()
    assert await rig.published() == b"no answer"
    await until(rig.mouth.transport.is_reading)
    rig.mouth.theirs.write(b":1\r\n")
    await busy(rig)


@pytest.mark.parametrize("which", ["ear", "mouth"])
async def test_a_connection_that_ends_while_nobody_listens_ends_it(rig: Rig, which: str) -> None:
    await rig.begun()
    await busy(rig)
    assert not rig.ear.transport.is_reading()
    getattr(rig, which).theirs.close()
    await rig.raises(ConnectionResetError, "closed")


async def test_what_is_more_than_one_piece_is_fetched_whole(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(talk, "PIECE", 64)
    await rig.begun()
    await busy(rig, [b"x" * 1000])
    assert rig.end.heard == [b"ours", b"x" * 1000]


async def test_a_publish_waits_for_the_answer_to_the_one_before_and_takes_all_along(rig: Rig) -> None:
    await rig.begun()
    rig.end.waiting.append(b"a")
    rig.talk.wake()
    assert await rig.published() == b"a"
    for each in (b"b", b"c"):
        rig.end.waiting.append(each)
        rig.talk.wake()
        await asyncio.sleep(2 * GAP)
    assert rig.end.waiting == [b"b", b"c"]
    rig.mouth.theirs.write(b":3\r\n")
    rig.ear.theirs.write(message(b"a"))
    assert await rig.published() == b"b c"


async def test_what_was_wanted_beside_a_heartbeat_follows_it(rig: Rig) -> None:
    rig.end.waiting.append(b"news")
    rig.talk.wake()
    await rig.begun()
    assert await rig.published() == b"news"


async def test_one_that_is_hushed_tells_nothing_more_and_hears_on(rig: Rig) -> None:
    await rig.begun()
    rig.talk.hush()
    rig.end.waiting.append(b"news")
    rig.talk.wake()
    rig.ear.theirs.write(message(b"theirs"))
    await until(lambda: rig.end.heard)
    assert rig.end.waiting == [b"news"]


async def test_what_redis_does_not_allow_ends_it(rig: Rig) -> None:
    rig.ear.theirs.write(b"-NOPERM this user may not\r\n")
    await rig.raises(Refusal, "may not")
    assert rig.observed == [("subscribe", "error")]
    rig.talk.wake()  # Nothing follows.
    assert rig.end.beats == 0


async def test_what_is_no_answer_ends_it(rig: Rig) -> None:
    rig.ear.theirs.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    await rig.raises(ConnectionError, "Protocol error")


async def test_either_connection_that_is_closed_ends_it(rig: Rig) -> None:
    await rig.begun()
    rig.mouth.theirs.close()
    await rig.raises(ConnectionResetError, "closed")


async def test_a_redis_that_does_not_answer_is_found_out(rig: Rig) -> None:
    await rig.raises(TimeoutError, "no answer within 1 s")
    assert rig.observed == [("subscribe", "error")]


async def test_a_redis_that_answers_and_delivers_nothing_is_found_out(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(talk, "TIMEOUT", 30.0)  # A machine may well take a second over an answer.
    await rig.begun()

    async def answer() -> None:
        while await rig.published() == b"beat":
            rig.mouth.theirs.write(b":0\r\n")

    answering = asyncio.get_running_loop().create_task(answer())
    await rig.raises(TimeoutError, "nothing that was sent has come back")
    answering.cancel()
