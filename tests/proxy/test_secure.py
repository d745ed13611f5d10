"""The TLS layer between a transport that the test plays and a protocol: what each of the two sees of the other."""

import asyncio
import ssl
from collections.abc import Callable
from typing import cast

import pytest

from router.proxy.secure import SLICE, Secure
from tests.authority import Authority


class Wire(asyncio.Transport):
    """The transport below. What is written waits in `sent`; `high` bytes of it are too many, until `carry` takes it."""

    def __init__(self, high: int = 1 << 62) -> None:
        super().__init__()
        self.above: Secure
        self.sent = b""
        self.high = high
        self.reading = True
        self.ended: str = ""
        self._full = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.ended
        self.sent += data
        if len(self.sent) > self.high and not self._full:
            self._full = True
            self.above.pause_writing()

    def take(self) -> bytes:
        """All that waits; there is room then."""
        sent, self.sent = self.sent, b""
        if self._full:
            self._full = False
            self.above.resume_writing()
        return sent

    def get_write_buffer_size(self) -> int:
        return len(self.sent)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high is not None
        self.high = high

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_reading(self) -> bool:
        return self.reading

    def is_closing(self) -> bool:
        return bool(self.ended)

    def write_eof(self) -> None:
        self.ended = "eof"

    def close(self) -> None:
        self.ended = "close"

    def abort(self) -> None:
        self.ended = "abort"
        self.above.connection_lost(None)


class Above(asyncio.Protocol):
    """The protocol above, which notes what it is told."""

    def __init__(self) -> None:
        self.transport: Secure
        self.heard = b""
        self.told: list[str] = []
        self.lost: list[Exception | None] = []
        self.then: Callable[[], None] = lambda: None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(Secure, transport)

    def data_received(self, data: bytes) -> None:
        self.heard += data
        self.then()

    def eof_received(self) -> None:
        self.told.append("eof")

    def pause_writing(self) -> None:
        self.told.append("pause")

    def resume_writing(self) -> None:
        self.told.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)


class End:
    """One end of a connection."""

    def __init__(self, context: ssl.SSLContext, name: str | None, high: int = 1 << 62) -> None:
        self.above, self.below = Above(), Wire(high)
        self.ready: list[OSError | None] = []
        self.secure = self.below.above = Secure(context, self.above, self.ready.append, name)

    def begin(self) -> None:
        self.secure.connection_made(self.below)


class Line:
    """A client's end and a server's. The wire brings `step` bytes at a time."""

    def __init__(
        self,
        authority: Authority,
        name: str = "localhost",
        high: int = 1 << 62,
        step: int = 1 << 62,
        version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3,
    ) -> None:
        self._step = step
        context = authority.trusting()
        context.maximum_version = version
        self.client = End(context, name)
        self.server = End(authority.serving(), None, high)
        self.client.begin()
        self.server.begin()

    def carry(self) -> None:
        """Bring over what waits, both ways, until nothing does."""
        while self.client.below.sent or self.server.below.sent:
            self.once(self.client, self.server)
            self.once(self.server, self.client)

    def once(self, source: End, target: End) -> None:
        data = source.below.take()
        for start in range(0, len(data), min(self._step, len(data) or 1)):
            target.secure.data_received(data[start : start + self._step])


@pytest.fixture(params=[ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=["1.2", "1.3"])
def line(authority: Authority, request: pytest.FixtureRequest) -> Line:
    """Two ends that have shaken hands."""
    line = Line(authority, version=request.param)
    line.carry()
    assert line.client.ready == line.server.ready == [None]
    return line


def test_what_one_end_writes_the_other_hears(line: Line) -> None:
    line.client.above.transport.write(b"question")
    line.carry()
    line.server.above.transport.writelines([b"ans", b"wer"])
    line.carry()
    assert (line.server.above.heard, line.client.above.heard) == (b"question", b"answer")


def test_it_is_not_written_in_the_clear(line: Line) -> None:
    line.client.above.transport.write(b"question")
    assert b"question" not in line.client.below.sent
    assert line.client.below.sent


@pytest.mark.parametrize("step", [1, 7, 100])
def test_a_handshake_and_records_in_any_pieces_are_the_same(authority: Authority, step: int) -> None:
    line = Line(authority, step=step)
    line.carry()
    line.server.above.transport.write(b"x" * 500)
    line.carry()
    line.client.above.transport.write(b"thanks")
    line.carry()
    assert (line.client.above.heard, line.server.above.heard) == (b"x" * 500, b"thanks")


def test_a_big_text_is_encrypted_as_the_wire_takes_it(authority: Authority) -> None:
    line = Line(authority, high=SLICE)
    line.carry()
    text = bytes(range(256)) * 4096 * 4
    transport = line.server.above.transport
    transport.write(text)
    transport.write(b"end")
    assert line.server.above.told == ["pause"]
    assert len(line.server.below.sent) < 3 * SLICE
    assert transport.get_write_buffer_size() > len(text)
    line.carry()
    assert line.server.above.told[-1] == "resume"
    assert line.client.above.heard == text + b"end"
    assert transport.get_write_buffer_size() == 0


def test_what_is_closed_sends_what_is_left_and_the_end(authority: Authority) -> None:
    line = Line(authority, high=SLICE)
    line.carry()
    text = b"x" * 10 * SLICE
    transport = line.server.above.transport
    transport.write(text)
    transport.close()
    transport.write(b"too late")
    assert transport.is_closing()
    assert not line.server.below.ended
    line.carry()
    assert (line.client.above.heard, line.client.above.told) == (text, ["eof"])
    assert line.server.below.ended == line.client.below.ended == "close"


def test_an_end_that_was_said_is_an_end_and_the_other_side_closes(line: Line) -> None:
    line.server.above.transport.write(b"last")
    line.server.above.transport.close()
    line.carry()
    assert (line.client.above.heard, line.client.above.told) == (b"last", ["eof"])
    assert line.client.below.ended == "close"


def test_after_write_eof_what_comes_is_taken_and_dropped(line: Line) -> None:
    """So that closing with something unread does not reset the connection and destroy the answer."""
    line.server.above.transport.write(b"no")
    line.server.above.transport.write_eof()
    assert line.server.below.ended == "eof"
    line.client.above.transport.write(b"x" * 100_000)
    line.once(line.client, line.server)
    assert (line.server.above.heard, line.server.above.lost) == (b"", [])
    line.server.above.transport.close()
    assert line.server.below.ended == "close"


def test_a_connection_that_just_ends_is_lost_and_no_end(line: Line) -> None:
    """Somebody between may have cut it."""
    line.server.above.transport.write(b"half")
    line.carry()
    line.client.secure.eof_received()
    line.client.secure.connection_lost(None)
    assert (line.client.above.heard, line.client.above.told, line.client.above.lost) == (b"half", [], [None])


def test_what_was_tampered_with_ends_the_connection(line: Line) -> None:
    line.server.above.transport.write(b"to the letter")
    sent = bytearray(line.server.below.take())
    sent[-1] ^= 1
    line.client.secure.data_received(bytes(sent))
    [error] = line.client.above.lost
    assert isinstance(error, ssl.SSLError)
    assert (line.client.above.heard, line.client.below.ended) == (b"", "abort")


def test_reading_is_paused_at_the_socket(line: Line) -> None:
    line.client.above.transport.pause_reading()
    assert not line.client.below.reading
    assert not line.client.above.transport.is_reading()
    line.client.above.transport.resume_reading()
    assert line.client.below.reading


def test_who_aborts_while_hearing_hears_no_more(line: Line) -> None:
    line.client.above.then = line.client.above.transport.abort
    line.server.above.transport.write(b"x")
    line.server.above.transport.close()
    line.once(line.server, line.client)
    assert (line.client.above.told, line.client.above.lost, line.client.below.ended) == ([], [None], "abort")


def test_a_certificate_for_another_name_fails_the_handshake_on_both_ends(authority: Authority) -> None:
    line = Line(authority, name="elsewhere.example")
    line.once(line.client, line.server)
    line.once(line.server, line.client)
    [error] = line.client.ready
    assert isinstance(error, ssl.SSLCertVerificationError)
    line.once(line.client, line.server)
    [error] = line.server.ready
    assert isinstance(error, ssl.SSLError)
    assert "ALERT" in (error.reason or "")
    line.client.secure.connection_lost(None)
    assert (line.client.above.lost, len(line.client.ready)) == ([], 1)


def test_an_end_during_the_handshake_is_told_once(authority: Authority) -> None:
    line = Line(authority)
    line.server.secure.eof_received()
    line.server.secure.connection_lost(None)
    [error] = line.server.ready
    assert isinstance(error, ConnectionResetError)
    assert line.server.above.lost == []


def test_who_gives_up_before_there_is_a_connection_gets_none(authority: Authority) -> None:
    end = End(authority.trusting(), "localhost")
    end.secure.abort()
    end.begin()
    assert (end.below.ended, end.below.sent) == ("abort", b"")
    assert isinstance(end.ready[0], ConnectionResetError)


def test_a_wire_that_is_full_when_the_handshake_ends_is_told(authority: Authority) -> None:
    line = Line(authority, high=100)
    line.once(line.client, line.server)
    assert line.server.above.told == []
    line.once(line.server, line.client)
    line.client.below.sent, data = b"", line.client.below.sent
    line.server.below.high = 10
    line.server.secure.data_received(data)  # Tickets go out, and are too much for it.
    assert line.server.above.told == ["pause"]
    line.server.below.take()
    assert line.server.above.told == ["pause", "resume"]
