"""Client connections: bytes in, one exchange at a time, answers in the order of requests.

While an exchange runs the connection goes on reading, because only a read tells that a client has left; what a
pipelining client sends ahead is kept, up to a bound, and reading stops there (then departures.py watches).
"""

import asyncio
import time
from collections import deque
from enum import Enum
from typing import cast

from router.core.record import Phase
from router.core.types import Ask
from router.proxy import answers, heads, openai
from router.proxy.bounds import TOO_LATE, Bounds, Late, Times, body_over, over
from router.proxy.clients import EXCESS, Clients
from router.proxy.context import Proxy
from router.proxy.exchange import Exchange
from router.proxy.heads import Peer
from router.proxy.journal import Journal, Stage
from router.proxy.openai import Endpoint
from router.proxy.syntax import WireError
from router.proxy.wire import Request, RequestReader

LINGER_SECONDS = 5.0
"""How long what a refused client still sends is discarded before its connection closes; nginx lingers as long."""

READ_AHEAD = 64 * 1024
"""Bytes of later requests that are kept while one is served; beyond, reading stops until it is done."""

BUFFER_FULL = "buffer_full"
CONNECTIONS_FULL = "connections_full"
"""Why a request is refused, as the metric names it (wire.WireError has the others)."""


class Part(Enum):
    """What of a request is arriving."""

    NONE = "none"
    HEAD = "head"
    BODY = "body"


class ClientConnection(asyncio.Protocol):
    """One client's connection; `scheme` is what it speaks, http or https."""

    def __init__(self, proxy: Proxy, clients: Clients, scheme: str = "http") -> None:
        self._proxy, self._scheme = proxy, scheme
        self._reader = RequestReader(_largest(proxy.bounds), proxy.bounds.head)
        self._clients = clients
        self._exchange: Exchange | None = None
        self._requests: deque[Request] = deque()
        self._ahead: list[bytes] = []
        self._ahead_size = 0
        self._since = 0.0  # When it opened, last had an answer whole, began a request or its body, or was to close.
        self._part = Part.NONE
        self._held = 0
        self._closes = self._paused = self._last = self._ended = self._lingers = self._excess = False
        self._unread: int | None = None  # The descriptor, while it is not read from.
        self._transport: asyncio.Transport
        self._peer: Peer

    # asyncio's callbacks.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but its class.
        name = transport.get_extra_info("peername")  # None of one that has left already.
        self._peer = heads.peer(name[0] if name else "unknown", self._scheme)
        self._since = time.monotonic()
        self._clients.add(self)
        if self._clients.excess > 0:
            self._closes = self._excess = True
        if self._clients.excess > EXCESS:
            self._describe(self._proxy.request_id(), "other", 0, CONNECTIONS_FULL, None)
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._closes:
            if self._excess:
                self._excess = False
                self._refuse(WireError(503, CONNECTIONS_FULL, answers.CONNECTIONS_FULL))
            return
        if self._exchange is not None or self._requests:
            self._ahead.append(data)
            self._ahead_size += len(data)
            if self._ahead_size > READ_AHEAD and self._unread is None:
                self._stop_reading()
            return
        self._read(data)

    def eof_received(self) -> bool:
        """A client that closes its writing side has left, or asks nothing more (proxy.half_close): then it gets what it
        has asked for. False closes the connection."""
        if self._may_half_close and (self._exchange is not None or self._more()):
            self._last = self._ended = True
            return True
        if self._exchange is not None:
            self._transport.abort()  # To close in order would wait for a client that may never read the rest.
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._clients.remove(self)
        if self._unread is not None:
            self._clients.departures.forget(self._unread)
        self._hold(0)
        exchange, self._exchange = self._exchange, None
        self._requests.clear()
        if exchange is not None:
            exchange.client_left()
        elif not self._closes and not self._reader.idle:
            self._describe(self._proxy.request_id(), self._endpoint.name, 0, None, Phase.UPLOADING)
        self._closes = True

    def pause_writing(self) -> None:
        self._paused = True
        if self._exchange is not None:
            self._exchange.client_paused(True)

    def resume_writing(self) -> None:
        self._paused = False
        if self._exchange is not None:
            self._exchange.client_paused(False)
            return
        self._since = time.monotonic()  # Only now it has the last answer whole.
        if self._more():
            self._proxy.loop.call_soon(self._go_on)

    # What the exchange asks and tells (context.Client).

    @property
    def peer(self) -> Peer:
        return self._peer

    def write(self, data: bytes) -> None:
        self._transport.write(data)

    def done(self, keep_alive: bool) -> None:
        """The answer is out."""
        self._exchange = None
        self._since = time.monotonic()
        self._part = Part.NONE
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

    def break_off(self) -> bool:
        """Stop: end what is under way by an error, and ask for no more."""
        if self._closes:
            return False
        busy = self._exchange is not None or not self._reader.idle
        if self._exchange is not None:
            self._exchange.give_up(Late.DRAINING)
        elif busy:
            self._refuse(WireError(503, Late.DRAINING.value, TOO_LATE[Late.DRAINING]))
        if not self._closes:
            self._close()
        return busy

    def _close(self) -> None:
        self._closes = True
        self._since = time.monotonic()
        self._transport.close()

    # What the worker tells (clients.Client).

    def adjust(self) -> None:
        bounds = self._proxy.bounds
        self._reader.max_body, self._reader.max_head = _largest(bounds), bounds.head

    def sweep(self, now: float) -> None:
        """End what takes too long."""
        if self._exchange is not None:
            self._exchange.sweep(now)
            return
        times, waited = self._proxy.times, now - self._since
        if self._closes or self._paused:  # It was refused, or does not take its last answer.
            if over(LINGER_SECONDS if self._lingers or self._excess else times.idle, waited):
                self._transport.abort()
        elif self._reader.idle:
            if over(times.keep_alive, waited):
                self._close()
        elif self._is_slow(times, waited):
            part = "body" if self._reader.headed else "head"
            self._refuse(
                WireError(408, Late.CLIENT.value, f"the request's {part} did not arrive in time: timeouts.{part}")
            )

    def _is_slow(self, times: Times, waited: float) -> bool:
        """Whether what of a request is arriving takes too long."""
        if self._reader.headed:
            return body_over(times.body, waited, self._reader.received)
        return over(times.head, waited)

    # Requests.

    def _more(self) -> bool:
        """Whether there is something to do that has already come."""
        return bool(self._requests or self._ahead or self._reader.unsaid)

    def _read(self, data: bytes) -> None:
        try:
            self._requests.extend(self._reader.feed(data))
            if not self._requests:
                self._read_on()
        except WireError as error:
            self._refuse(error)
            return
        if self._held:
            self._hold(self._reader.received if not self._requests else 0)
        self._next()

    def _read_on(self) -> None:
        """No request is whole; one may have begun. Raises WireError when its body finds no room."""
        reader, proxy = self._reader, self._proxy
        if reader.idle:
            return
        part = Part.BODY if reader.headed else Part.HEAD
        if self._part is not part:
            self._part = part
            self._since = time.monotonic()
        if part is Part.HEAD:
            return
        self._hold(reader.received)
        if proxy.buffered + max(0, reader.announced - reader.received) > proxy.bounds.buffered:
            raise WireError(503, BUFFER_FULL, answers.BUFFER_FULL)
        if reader.wants_continue:
            reader.wants_continue = False
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _hold(self, size: int) -> None:
        """So many bytes of a body that is not whole yet are held here."""
        self._proxy.buffered += size - self._held
        self._held = size

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
        if self._unread is not None:
            self._clients.departures.forget(self._unread)
            self._unread = None
            self._transport.resume_reading()
        self._read(b"".join(ahead))
        if self._ended and self._exchange is None and not (self._closes or self._more()):
            self._close()  # What it has begun behind its last request will never be whole.

    def _stop_reading(self) -> None:
        self._transport.pause_reading()
        self._unread = self._transport.get_extra_info("socket").fileno()
        self._clients.departures.watch(self._unread, self._transport.abort, self._may_half_close)

    @property
    def _may_half_close(self) -> bool:
        """Whether a client that has closed its writing side is still there; in TLS that closes both."""
        return self._proxy.half_close and self._scheme == "http"

    def _refuse(self, error: WireError) -> None:
        """Answer what is no request, or one too many, and close: where the next one would begin is not known."""
        endpoint, request_id = self._endpoint, self._proxy.request_id()
        answer = answers.error(error.status, str(error), error.reason, endpoint.style)
        if error.status == 503:
            answer = answer._replace(retry_after=answers.FULL_SECONDS)
        self._transport.write(answers.written(answer, request_id, self._proxy.date(), keep_alive=False))
        self._hold(0)
        self._reader.discard()
        self._linger()
        self._describe(request_id, endpoint.name, error.status, error.reason, None)

    @property
    def _endpoint(self) -> Endpoint:
        """Where the request goes that has not become one yet."""
        return openai.endpoint(self._reader.path) if self._reader.headed else openai.OTHER

    def _linger(self) -> None:
        """Close for writing and go on discarding for a moment: closing with unread bytes resets the connection, and a
        client that sends its whole body before it reads would never see the answer."""
        self._closes = True
        if self._transport.can_write_eof():
            self._transport.write_eof()
            self._lingers = True
            self._since = time.monotonic()
        else:
            self._close()

    def _describe(self, request_id: str, endpoint: str, status: int, rejected: str | None, left: Phase | None) -> None:
        """Tell of a request that never became one."""
        now = time.monotonic()
        journal = Journal(request_id, endpoint, now)
        journal.status, journal.rejected, journal.left = status, rejected, left
        journal.ended(Stage.PARSE, now)
        ask = Ask(None)
        self._proxy.describe(journal.record(ask, now), ask)


def _largest(bounds: Bounds) -> int:
    """Bytes of a body above which it is refused for good: one that never finds room shall not be sent again."""
    return min(bounds.body, bounds.buffered)
