"""Client connections: bytes in, one exchange at a time, answers in the order of requests.

While an exchange runs the connection goes on reading, because only a read tells that a client has left; what a
pipelining client sends ahead is kept, up to a bound, and reading stops there.
"""

import asyncio
import contextlib
import socket
import time
from collections import deque
from typing import cast

from router.core.record import Phase
from router.core.types import Ask
from router.proxy import answers
from router.proxy.context import Proxy
from router.proxy.exchange import Exchange
from router.proxy.forwarding import caller
from router.proxy.journal import Journal, Stage
from router.proxy.syntax import WireError
from router.proxy.wire import Request, RequestReader, response_head

LINGER_SECONDS = 5.0
"""How long what a refused client still sends is discarded before its connection closes; nginx lingers as long."""

READ_AHEAD = 64 * 1024
"""Bytes of later requests that are kept while one is served; beyond, reading stops until it is done."""

WATCH_SECONDS = 0.5
"""Between looks at the socket of a client that is not read; a generation in vain costs more than a system call."""

TCP_INFO = getattr(socket, "TCP_INFO", 11)
TCP_GONE = frozenset((7, 8))
"""Linux's TCP_CLOSE (it was reset) and TCP_CLOSE_WAIT (the client has closed), the first byte of its tcp_info."""


class Clients:
    """The open client connections of one worker. While it is `leaving`, each request that begins is its connection's
    last, and its answer says so."""

    def __init__(self) -> None:
        self._open: set[ClientConnection] = set()
        self._none = asyncio.Event()
        self._none.set()
        self.leaving = False

    def __len__(self) -> int:
        return len(self._open)

    def add(self, connection: "ClientConnection") -> None:
        self._open.add(connection)
        self._none.clear()

    def remove(self, connection: "ClientConnection") -> None:
        self._open.remove(connection)
        if not self._open:
            self._none.set()

    async def gone(self, seconds: float) -> None:
        """Returns when no connection is open any more, at the latest after `seconds`."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._none.wait(), seconds)

    async def drain(self, seconds: float) -> None:
        """Close the idle ones at once, the others when their answer is out, all that are left after `seconds`."""
        for connection in list(self._open):
            connection.close_when_idle()
        await self.gone(seconds)
        self.cut()

    def cut(self) -> None:
        """Close all at once, whatever is under way."""
        for connection in list(self._open):
            connection.cut()


class ClientConnection(asyncio.Protocol):
    """One client's connection."""

    def __init__(self, proxy: Proxy, max_body: int, clients: "Clients") -> None:
        self._proxy = proxy
        self._reader = RequestReader(max_body)
        self._clients = clients
        self._exchange: Exchange | None = None
        self._requests: deque[Request] = deque()
        self._ahead: list[bytes] = []
        self._ahead_size = 0
        self._closes = self._paused = self._last = False
        self._lingering: asyncio.TimerHandle | None = None
        self._watching: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport

    # asyncio's callbacks.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but its class.
        self._clients.add(self)
        peer = transport.get_extra_info("peername")
        tls = transport.get_extra_info("sslcontext") is not None
        self._reader.caller = caller(peer[0] if isinstance(peer, tuple) else "", tls)

    def data_received(self, data: bytes) -> None:
        if self._closes:
            return
        if self._exchange is not None or self._requests:
            self._ahead.append(data)
            self._ahead_size += len(data)
            if self._ahead_size > READ_AHEAD and self._watching is None:
                self._transport.pause_reading()
                self._watch()
            return
        self._read(data)

    def eof_received(self) -> bool:
        """A client that closes its writing side has left; asyncio closes the other side after this."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._clients.remove(self)
        for timer in (self._lingering, self._watching):
            if timer is not None:
                timer.cancel()
        exchange, self._exchange = self._exchange, None
        self._requests.clear()
        if exchange is not None:
            exchange.client_left()
        elif not self._closes and not self._reader.idle:
            self._describe(0, None, Phase.UPLOADING)
        self._closes = True

    def pause_writing(self) -> None:
        self._paused = True
        if self._exchange is not None:
            self._exchange.client_paused(True)

    def resume_writing(self) -> None:
        self._paused = False
        if self._exchange is not None:
            self._exchange.client_paused(False)
        elif self._more():
            self._proxy.loop.call_soon(self._go_on)

    # What the exchange tells (context.Client).

    def write(self, data: bytes) -> None:
        self._transport.write(data)

    def done(self, keep_alive: bool) -> None:
        """The answer is out."""
        self._exchange = None
        if keep_alive and self._more():
            self._proxy.loop.call_soon(self._go_on)
        elif self._last or not keep_alive:
            self._close()

    def abort(self) -> None:
        self._exchange = None
        self._close()

    def cut(self) -> None:
        """Close at once, whatever is under way; connection_lost tells the exchange."""
        self._transport.abort()

    def close_when_idle(self) -> None:
        """Stop: close now if nothing is under way, else when the answer is out."""
        self._last = True
        if self._exchange is None and self._reader.idle and not (self._requests or self._ahead):
            self._close()

    def _close(self) -> None:
        self._closes = True
        self._transport.close()

    # Requests.

    def _more(self) -> bool:
        """Whether there is something to do that has already come."""
        return bool(self._requests or self._ahead or self._reader.unsaid)

    def _read(self, data: bytes) -> None:
        try:
            self._requests.extend(self._reader.feed(data))
        except WireError as error:
            self._refuse(error)
            return
        if self._reader.wants_continue and not self._requests:
            self._reader.wants_continue = False
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._next()

    def _next(self) -> None:
        """Begin the next request, unless the client has not yet read enough of the last one's answer."""
        if self._requests and self._exchange is None and not (self._closes or self._paused):
            request = self._requests.popleft()
            if self._clients.leaving and not (self._requests or self._ahead):
                request = request._replace(keep_alive=False)
            self._exchange = Exchange(self._proxy, self, request)
            self._exchange.start()

    def _go_on(self) -> None:
        if self._closes or self._paused or self._exchange is not None:
            return
        if self._requests:
            self._next()
            return
        ahead, self._ahead, self._ahead_size = self._ahead, [], 0
        if self._watching is not None:
            self._watching.cancel()
            self._watching = None
            self._transport.resume_reading()
        self._read(b"".join(ahead))

    def _watch(self) -> None:
        """Look at the socket while nothing is read from it: only a read would tell that the client has left."""
        state = self._transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, TCP_INFO, 1)[0]
        if state in TCP_GONE:
            self._transport.abort()
        else:
            self._watching = self._proxy.loop.call_later(WATCH_SECONDS, self._watch)

    def _refuse(self, error: WireError) -> None:
        """Answer what is no request, and close: where the next one would begin is not known."""
        body = answers.error(error.status, str(error), error.reason).body
        line = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n" % len(body)
        self._transport.write(response_head(error.status, b"", [line, self._proxy.date()]) + body)
        self._linger()
        self._describe(error.status, error.reason, None)

    def _linger(self) -> None:
        """Close for writing and go on discarding for a moment: closing with unread bytes resets the connection, and a
        client that sends its whole body before it reads would never see the answer."""
        self._closes = True
        if self._transport.can_write_eof():
            self._transport.write_eof()
            self._lingering = self._proxy.loop.call_later(LINGER_SECONDS, self._transport.close)
        else:
            self._transport.close()

    def _describe(self, status: int, rejected: str | None, left: Phase | None) -> None:
        """Tell of a request that never became one."""
        now = time.monotonic()
        journal = Journal(self._proxy.request_id(), "other", now)
        journal.status, journal.rejected, journal.left = status, rejected, left
        journal.ended(Stage.PARSE, now)
        self._proxy.describe(journal.record(Ask(None), now))
