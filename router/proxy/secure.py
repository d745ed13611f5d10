"""TLS over one connection: a protocol to the transport below, a transport to the protocol above.

OpenSSL does the cryptography, over buffers in memory; here are only order and flow. uvloop brings such a layer, too,
which does not do for a proxy (D21). What is above sees what it would see without TLS:

- Writing pauses and resumes with the transport below: a text is encrypted when that wants more, and not before.
- `pause_reading` stops reading from the socket, so that back-pressure and a look at TCP_INFO stay what they are.
- `eof_received` only for the other side's close_notify. A connection that just ends is lost: somebody between may have
  cut it, and an answer that ends with its connection must not look whole for that.
- `close` and `write_eof` send what is left and the close_notify, and wait for none.
"""

import asyncio
import contextlib
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, cast

SLICE = 64 * 1024
"""Bytes encrypted at a time, in some 30 us; then the transport below is asked whether it wants more."""

RECORD = 16 * 1024
"""Bytes of a record at most (RFC 8446, section 5.1): OpenSSL hands out no more at a time."""


Data = bytes | bytearray | memoryview


class Secure(asyncio.Protocol):
    """One connection. `ready` is called once: just before `above` has its connection, or with what the handshake failed
    of, an ssl.SSLError, or ConnectionResetError when the other side has left."""

    def __init__(
        self,
        context: ssl.SSLContext,
        above: asyncio.Protocol,
        ready: Callable[[OSError | None], None],
        server_name: str | None = None,
    ) -> None:
        """`server_name` is whom we call; None: a client calls us."""
        self._above, self._ready = above, ready
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_name is None, server_name)
        self._below: asyncio.Transport | None = None
        self._backlog: deque[Data] = deque()
        self._error: OSError | None = None
        self._shaken = self._full = False
        self._stops = self._closes = self._said = False
        self._aborted = False

    # asyncio's callbacks, from below.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._below = cast(asyncio.Transport, transport)  # uvloop's is one in all but its class.
        if self._aborted:  # uvloop tells of a connection whose making was cancelled.
            self._below.abort()
        else:
            self._shake()

    def data_received(self, data: bytes) -> None:
        if self._said or self._error is not None:
            return  # Nothing that comes now is read; below it is taken, so that closing does not reset the connection.
        self._incoming.write(data)
        if self._shaken:
            self._read()
        else:
            self._shake()

    def eof_received(self) -> None:
        """The transport below closes itself."""

    def connection_lost(self, exc: Exception | None) -> None:
        self._aborted = True
        self._backlog.clear()
        if self._shaken:
            self._above.connection_lost(self._error or exc)
        elif self._error is None:
            self._error = ConnectionResetError("the connection ended in the TLS handshake")
            self._ready(self._error)

    def pause_writing(self) -> None:
        self._full = True
        if self._shaken and not self._stops:
            self._above.pause_writing()

    def resume_writing(self) -> None:
        self._full = False
        while self._backlog and not self._full:
            self._encrypt(self._backlog.popleft())
        if self._full:
            return
        if self._stops:
            self._finish()
        elif self._shaken:
            self._above.resume_writing()

    # asyncio.Transport, to what is above.

    def write(self, data: Data) -> None:
        if self._stops or self._aborted or not data:
            return
        if self._full or self._backlog:
            self._backlog.append(data)
        else:
            self._encrypt(data)

    def writelines(self, pieces: Sequence[Data]) -> None:
        """What fits into one record goes as one."""
        if sum(map(len, pieces)) <= RECORD:
            self.write(b"".join(pieces))
        else:
            for piece in pieces:
                self.write(piece)

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        """Say that no more will come. What comes from the other side is taken and dropped from then on."""
        self._stops = True
        if not self._backlog:
            self._finish()

    def close(self) -> None:
        self._stops = self._closes = True
        if not (self._backlog or self._aborted):
            self._finish()

    def abort(self) -> None:
        """Also before the handshake is over."""
        self._aborted = True
        if self._below is not None:
            self._below.abort()

    def is_closing(self) -> bool:
        return self._closes or self._aborted or self._transport.is_closing()

    def is_reading(self) -> bool:
        return self._transport.is_reading()

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._transport.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size() + sum(map(len, self._backlog))

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)

    def say(self, data: bytes) -> None:
        """Send bytes as they are, to one who speaks no TLS."""
        self._transport.write(data)

    @property
    def _transport(self) -> asyncio.Transport:
        assert self._below is not None
        return self._below

    # How it is done.

    def _shake(self) -> None:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return
        except ssl.SSLError as error:
            self._error = error
            self._flush()  # An alert says why.
            self._ready(error)
            self._transport.close()
            return
        self._flush()
        self._shaken = True
        self._ready(None)
        self._above.connection_made(cast(asyncio.Transport, self))
        if self._full:
            self._above.pause_writing()
        self._read()

    def _read(self) -> None:
        """Decrypt all that has come, and hand it up in one piece."""
        pieces, ended = self._decrypted()
        self._flush()  # A change of keys may want an answer, and an error has its alert.
        if pieces and not self._closes:
            self._above.data_received(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        if self._error is not None:
            self.abort()
        elif ended and not (self._closes or self._aborted):
            self._above.eof_received()  # It cannot keep the connection: who closes in TLS reads no more.
            self.close()

    def _decrypted(self) -> tuple[list[bytes], bool]:
        """The records that are whole, and whether the other side has said that no more will come."""
        pieces: list[bytes] = []
        try:
            while self._incoming.pending or self._tls.pending():
                piece = self._tls.read(RECORD)
                if not piece:
                    return pieces, True
                pieces.append(piece)
        except ssl.SSLWantReadError:
            return pieces, False  # A part of a record is left, or what came was a ticket or a change of keys.
        except ssl.SSLError as error:
            self._error = error
        return pieces, False

    def _encrypt(self, data: Data) -> None:
        """Send it, or as much as is wanted now."""
        rest = data if len(data) <= SLICE else memoryview(data)
        while rest:
            if self._full:
                self._backlog.appendleft(rest)
                return
            self._tls.write(rest[:SLICE] if len(rest) > SLICE else rest)
            self._flush()
            rest = rest[SLICE:]

    def _flush(self) -> None:
        if self._outgoing.pending:
            self._transport.write(self._outgoing.read())

    def _finish(self) -> None:
        """All is out that is to be written: say so, once."""
        if not self._said:
            self._said = True
            with contextlib.suppress(ssl.SSLError):  # It is said all the same; the other side has not said it yet.
                self._tls.unwrap()
            self._flush()
            if not self._closes:
                self._transport.write_eof()
        if self._closes:
            self._transport.close()
