"""One connection between two routers: frames in and out over a stream socket. Nothing here waits.

A frame is a little-endian length of four bytes and so many bytes of a message. What the peer does not take piles up to
a bound; beyond it messages are dropped and counted, by kind. Load, beliefs and members are told anew soon, so a loss
makes them staler and nothing else. A message that is told once and `must` arrive is queued in any case: these are few,
and come at the pace of an operator. What is sent in one turn of the loop is one write, and wakes the peer up once. A
peer that sends what is no message is cut off.
"""

import asyncio
import logging
import socket
import struct
from collections import Counter
from collections.abc import Callable
from typing import cast

import msgspec

from router.gossip.messages import AnyMessage, Codec, Message

log = logging.getLogger("homing.gossip")

MAX_FRAME = 40 << 20
"""Bytes of a frame: an `Explain` carries a body of up to 32 MiB; all else is a thousandth of that."""

MAX_WAITING = 4 << 20
"""Bytes that may wait for a peer that does not read: some seconds of a busy worker's news."""

_LENGTH = struct.Struct("<I")


class Channel(asyncio.Protocol):
    """One end. `heard` is called with each message and its frame; `lost` once, when the connection is gone."""

    def __init__(self, codec: Codec, heard: Callable[[AnyMessage, bytes], None], lost: Callable[[], None]) -> None:
        self._codec, self._heard, self._lost = codec, heard, lost
        self._buffer = bytearray()
        self._loop = asyncio.get_running_loop()
        self._frames: list[bytes] = []  # For the next write.
        self._framed = 0  # Bytes of these.
        self._transport: asyncio.Transport | None = None
        self.closed = asyncio.Event()
        self.dropped: Counter[str] = Counter()

    @classmethod
    async def over(
        cls, line: socket.socket, codec: Codec, heard: Callable[[AnyMessage, bytes], None], lost: Callable[[], None]
    ) -> "Channel":
        """A channel over a connected socket, which it owns from now on."""
        loop = asyncio.get_running_loop()
        channel = cls(codec, heard, lost)
        line.setblocking(False)
        await loop.create_connection(lambda: channel, sock=line)
        return channel

    def send(self, message: Message, must: bool = False) -> None:
        """Send if the peer takes it, drop and count if it does not. Without a connection nothing happens."""
        self.pass_on(frame(self._codec.encode(message)), type(message).__name__, must)

    def pass_on(self, data: bytes, kind: str, must: bool = False) -> None:
        """The same for a message that is a frame already."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if transport.get_write_buffer_size() + self._framed > MAX_WAITING and not must:
            self.dropped[kind] += 1
            return
        if not self._frames:
            self._loop.call_soon(self._write)
        self._frames.append(data)
        self._framed += len(data)

    def _write(self) -> None:
        transport = self._transport
        if self._frames and transport is not None and not transport.is_closing():
            transport.write(b"".join(self._frames))
        self._frames.clear()
        self._framed = 0

    def close(self) -> None:
        """Close when what was sent is out."""
        if self._transport is not None:
            self._write()
            self._transport.close()

    def cut(self) -> None:
        """Close at once, whatever was not sent."""
        if self._transport is not None:
            self._transport.abort()

    # asyncio's callbacks.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.closed.set()
        self._lost()

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        start = 0
        while len(buffer) - start >= _LENGTH.size:
            [length] = _LENGTH.unpack_from(buffer, start)
            end = start + _LENGTH.size + length
            if length > MAX_FRAME:
                self._cut(f"a frame of {length} bytes")
                return
            if len(buffer) < end:
                break
            if not self._take(bytes(buffer[start:end])):
                return
            start = end
        del buffer[:start]

    def _take(self, whole: bytes) -> bool:
        try:
            message = self._codec.decode(memoryview(whole)[_LENGTH.size :])
        except msgspec.DecodeError as error:
            self._cut(f"no message: {error}")
            return False
        self._heard(message, whole)
        return True

    def _cut(self, why: str) -> None:
        log.error("a peer sent %s; its connection is closed", why)
        self.cut()


def frame(payload: bytes) -> bytes:
    """A message's bytes as they go over the line."""
    return _LENGTH.pack(len(payload)) + payload
