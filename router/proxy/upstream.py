"""Connections to replicas and their pools.

A connection carries one exchange at a time and tells it what happens; it knows nothing of leases or retries. Idle
connections are kept newest first and dropped before the engine would (uvicorn: 5 s), since a request sent into a
connection that the engine is closing is lost.
"""

import asyncio
import contextlib
import logging
import ssl
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol, cast

import httptools

from router.handshakes import Trust, in_words
from router.proxy import tcp
from router.proxy.responses import ResponseReader
from router.proxy.secure import Secure
from router.proxy.wire import Body

log = logging.getLogger("homing.proxy")

IDLE_SECONDS = 3.0
"""uvicorn, under vLLM, closes after 5 s without a request; 3 s leaves two for a slow network and a paused router."""

MAX_IDLE = 256
"""Idle connections kept per replica: vLLM's default of 256 running sequences."""

WRITE_BUFFER = 64 * 1024
"""Bytes of a request that may wait in the transport unnoticed; of more, `resume_writing` tells when all have left.

A smaller request goes to the kernel in one call, and counts as written: that only forbids a second send."""


DYING_SECONDS = 0.05
DYING_TRIES = 3
"""While a kernel clears away a killed process, its listening socket may outlive its connections and still take new ones
(Linux closes the files of a process newest first); these are reset within a millisecond or two."""

DRAIN_SECONDS = 1.0
"""How long the rest of an answer that nobody wants may take: a refusal has some hundred bytes, which come with its head
or right behind it."""


class Address(NamedTuple):
    """Where a replica listens: `base` is the URL's path without a final slash, `authority` the Host it is called by,
    `secure` whether by TLS."""

    host: str
    port: int
    base: bytes = b""
    authority: bytes = b""
    secure: bool = False


class Loss(NamedTuple):
    """How a connection was lost: `written` whether the request had left whole, `reused` whether it had been idle,
    `begun` whether a byte of an answer had come, `garbled` whether what came was no HTTP."""

    written: bool
    reused: bool
    begun: bool = False
    garbled: bool = False


class Sender(Protocol):
    """Who a connection talks to."""

    def on_response(self, response: ResponseReader, data: bytes) -> None:
        """Bytes of the response: `data` is the body's on the wire, and may be empty when only the head is whole."""
        ...

    def on_lost(self, loss: Loss) -> None:
        """No more will come, and the response is not complete."""
        ...


class Connection(asyncio.Protocol):
    """One connection to a replica."""

    def __init__(self, pool: "Pool") -> None:
        self._pool = pool
        self.trust = pool.trust
        self._sender: Sender | None = None
        self._response = ResponseReader()
        self._busy = False
        self._written = True
        self._reused = False
        self._begun = False
        self.idle_since = 0.0
        self.abandoned = False
        self._transport: asyncio.Transport

    def send(self, sender: Sender, head: bytes, body: Body, to_head: bool) -> None:
        """Send one request; `sender` hears of the response until it is complete or the connection lost."""
        self._sender = sender
        self._busy = True
        self._begun = False
        self._response.begin(to_head)
        if body:
            self._transport.writelines((head, body))
        else:
            self._transport.write(head)

    def abort(self) -> None:
        """Drop the connection at once, so that the engine aborts; the sender hears nothing more."""
        self._sender = None
        self._transport.abort()

    def drain(self) -> None:
        """Let the rest of the response pass unheard, and keep the connection if it soon ends well."""
        self._sender = None
        self._pool.later(DRAIN_SECONDS, self._end_unheard)

    def pause(self, paused: bool) -> None:
        """Stop or go on reading: the client is slower than the replica."""
        if self._transport.is_closing():
            return
        if paused:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    @property
    def closing(self) -> bool:
        return self._transport.is_closing()

    @property
    def written(self) -> bool:
        """Whether the request has left whole, but for what the transport may hold unnoticed."""
        return self._written

    # asyncio's callbacks.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but its class.
        if self.abandoned:  # uvloop tells of a connection whose making was cancelled, and never of its end.
            self._transport.abort()
            return
        self._pool.made(self)
        tcp.keep_alive(self._transport.get_extra_info("socket"))
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER, low=0)

    def pause_writing(self) -> None:
        self._written = False

    def resume_writing(self) -> None:
        self._written = True

    def data_received(self, data: bytes) -> None:
        response = self._response
        if not self._busy:
            self._transport.abort()  # Bytes that nobody asked for.
            return
        self._begun = True
        try:
            body = response.feed(data)
        except httptools.HttpParserError as error:
            log.warning("replica at %s: not an HTTP response: %s", self._pool.address.host, error)
            self._lose(garbled=True)
            self._transport.abort()
            return
        if response.status:
            self._heard(response, body)

    def eof_received(self) -> None:
        if self._busy:
            self._response.eof()
            if self._response.complete:
                self._heard(self._response, b"")

    def connection_lost(self, exc: Exception | None) -> None:
        if isinstance(exc, ssl.SSLError):  # In TLS 1.3 a replica may refuse our certificate after the handshake.
            self._pool.complain(exc)
        self._pool.forget(self)
        self._lose()

    def _heard(self, response: ResponseReader, body: bytes) -> None:
        sender = self._sender
        if response.complete:
            self._sender = None
            self._busy = False
            if response.keep_alive() and self._written and not self.closing:
                self._pool.keep(self)
                self._reused = True
            elif self._written:
                self._transport.close()
            else:
                self._transport.abort()  # Closing would wait for a replica that may never read the rest.
        if sender is not None:
            sender.on_response(response, body)
        if self._busy:
            response.pieces.clear()

    def _end_unheard(self) -> None:
        """The rest of a response has had its time. No timer is cancelled when it ends well, so there may be none left,
        or that of a later response, which then has had less: both only cost a connection."""
        if self._busy and self._sender is None:
            self._transport.abort()

    def _lose(self, garbled: bool = False) -> None:
        sender, self._sender, self._busy = self._sender, None, False
        if sender is not None:
            sender.on_lost(Loss(self._written, self._reused, self._begun, garbled))


class Pool:
    """One replica's connections."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, address: Address, connect_timeout: float, trust: Trust | None = None
    ) -> None:
        """`trust` is for an address that is secure."""
        self._loop = loop
        self.address = address
        self.connect_timeout = connect_timeout
        self.trust = trust
        self._complaint = ""
        self._retired = False
        self._idle: deque[Connection] = deque()
        self._open: set[Connection] = set()
        self._sweeper: asyncio.TimerHandle | None = None

    @property
    def open(self) -> int:
        """Open connections, idle ones too."""
        return len(self._open)

    @property
    def idle(self) -> int:
        """Open connections that carry no request."""
        return len(self._idle)

    def take(self) -> Connection | None:
        """The idle connection used last, if any is still good."""
        oldest = self._loop.time() - IDLE_SECONDS
        while self._idle:
            connection = self._idle.pop()
            if not connection.closing and connection.idle_since > oldest:
                return connection
            connection.abort()
        return None

    async def connect(self) -> Connection:
        """A new connection, handshake included. Raises OSError (refused, unreachable, TimeoutError, ssl.SSLError)."""
        if self.trust is None:
            return await self._connect(Connection(self))
        context, name = self.trust
        connection, shaken = Connection(self), self._loop.create_future()

        def ready(error: OSError | None) -> None:
            if not shaken.done():  # Nobody waits any more.
                shaken.set_result(error)

        try:
            await self._connect(connection, Secure(context, connection, ready, name or self.address.host), shaken)
        except ssl.SSLError as error:
            self.complain(error)
            raise
        return connection

    async def _connect(
        self,
        connection: Connection,
        secure: Secure | None = None,
        shaken: "asyncio.Future[OSError | None] | None" = None,
    ) -> Connection:
        """Connect, and return when the handshake is over, where there is one."""
        try:
            async with asyncio.timeout(self.connect_timeout):
                await self._loop.create_connection(lambda: secure or connection, self.address.host, self.address.port)
                if shaken is not None:
                    await _succeeded(shaken)
        except BaseException:  # Cancelled, perhaps just when it was made: nobody would close it.
            connection.abandoned = True
            if secure is not None:
                secure.abort()
            if connection in self._open:
                connection.abort()
                self.forget(connection)
            raise
        return connection

    def complain(self, error: ssl.SSLError) -> None:
        """Say why TLS fails, once while the reason and what is trusted stay the same: every request may meet it."""
        words = in_words(error)
        if words != self._complaint:
            self._complaint = words
            log.error("replica at %s:%d: TLS fails: %s", self.address.host, self.address.port, words)

    def later(self, seconds: float, work: Callable[[], None]) -> None:
        """Have a connection's work done in so many seconds."""
        self._loop.call_later(seconds, work)

    def made(self, connection: Connection) -> None:
        """A connection is open."""
        self._open.add(connection)

    async def refuses(self) -> bool:
        """Whether a fresh connection is refused: a process that is gone generates nothing.

        One that is made and does not last says nothing yet, so there is another. Who listens need not speak: no TLS.
        """
        for _ in range(DYING_TRIES):
            try:
                connection = await self._connect(Connection(self))
            except ConnectionRefusedError:
                return True
            except OSError:
                return False
            try:
                await asyncio.sleep(DYING_SECONDS)
                if connection in self._open:
                    return False
            finally:  # Also when the client leaves meanwhile.
                connection.abort()
        return False

    def keep(self, connection: Connection) -> None:
        """Take a connection back whose response has ended."""
        if self._retired or len(self._idle) >= MAX_IDLE or connection.trust is not self.trust:
            connection.abort()
            return
        connection.idle_since = self._loop.time()
        self._idle.append(connection)
        if self._sweeper is None:
            self._sweeper = self._loop.call_later(IDLE_SECONDS, self._sweep)

    def drop_idle(self) -> None:
        """One idle connection turned out to be dead: the others are as old, and a request sent into one may be lost."""
        while self._idle:
            self._idle.pop().abort()

    def forget(self, connection: Connection) -> None:
        """A connection is gone."""
        self._open.discard(connection)
        with contextlib.suppress(ValueError):
            self._idle.remove(connection)

    def secure(self, trust: Trust | None) -> None:
        """Have new connections trust otherwise, and no idle one live on that did not."""
        if trust is not self.trust:
            self.trust, self._complaint = trust, ""
            self.drop_idle()

    def retire(self) -> None:
        """Drop the idle connections now, and each other one when its response has ended."""
        self._retired = True
        for connection in list(self._idle):
            connection.abort()

    def close(self) -> None:
        """Drop every connection."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        for connection in list(self._open):
            connection.abort()

    def _sweep(self) -> None:
        self._sweeper = None
        oldest = self._loop.time() - IDLE_SECONDS
        while self._idle and self._idle[0].idle_since <= oldest:
            self._idle.popleft().abort()
        if self._idle:
            self._sweeper = self._loop.call_at(self._idle[0].idle_since + IDLE_SECONDS, self._sweep)


async def _succeeded(shaken: "asyncio.Future[OSError | None]") -> None:
    """Returns when a handshake is over, and raises what it failed of."""
    error = await shaken
    if error is not None:
        raise error
