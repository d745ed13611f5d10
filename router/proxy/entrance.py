"""Where clients come in: each new connection gets its protocol, with TLS below it while the router has a certificate.

A handshake is no request and no client yet, but a connection that is open: it is counted among the clients', ends when
it takes too long, and with them. How handshakes fail is counted; none of it is logged, since anybody can cause it.
"""

import asyncio
import ssl
import time
from collections.abc import Callable

from router.core.record import HandshakeError
from router.handshakes import kind
from router.proxy.bounds import over
from router.proxy.clients import EXCESS, Clients
from router.proxy.context import Proxy
from router.proxy.secure import Secure
from router.proxy.server import ClientConnection

PLAIN_HTTP = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\ncontent-length: 43\r\nconnection: close\r\n\r\n"
    b"This port speaks TLS: begin with https://.\n"
)
"""What a client gets who does not; nginx answers so, too."""


class Entrance:
    """`failed` is told of each handshake that fails. New connections are served with the `context`; None: no TLS."""

    def __init__(self, proxy: Proxy, clients: Clients, failed: Callable[[HandshakeError], None]) -> None:
        self.proxy, self.clients, self.failed = proxy, clients, failed
        self.context: ssl.SSLContext | None = None

    def admit(self) -> asyncio.Protocol:
        """The protocol of a new connection."""
        if self.context is None:
            return ClientConnection(self.proxy, self.clients)
        return Greeting(self, self.context, ClientConnection(self.proxy, self.clients, "https")).secure


class Greeting:
    """A handshake: a client's connection until there is a client (clients.OpenConnection)."""

    def __init__(self, entrance: Entrance, context: ssl.SSLContext, client: ClientConnection) -> None:
        self._entrance = entrance
        self._since = time.monotonic()
        self._ended: HandshakeError | None = None
        self._cut = False
        self.secure = Secure(context, client, self._over)
        entrance.clients.add(self)
        if entrance.clients.excess > EXCESS:
            self._end(HandshakeError.CONNECTIONS_FULL)

    def adjust(self) -> None:
        """It reads no requests."""

    def sweep(self, now: float) -> None:
        if over(self._entrance.proxy.times.handshake, now - self._since):
            self._end(HandshakeError.TIMEOUT)

    def close_when_idle(self) -> None:
        """Nothing was asked yet."""
        self.cut()

    def break_off(self) -> bool:
        self.cut()
        return False

    def cut(self) -> None:
        self._cut = True
        self.secure.abort()

    def _end(self, why: HandshakeError) -> None:
        self._ended = why
        self.secure.abort()

    def _over(self, error: OSError | None) -> None:
        """It has succeeded, and the client comes now, or failed."""
        clients = self._entrance.clients
        if error is None:
            clients.give_way(self)
            return
        clients.remove(self)
        if self._cut:
            return
        failure = self._ended or kind(error)
        if failure is HandshakeError.PLAIN_HTTP:
            self.secure.say(PLAIN_HTTP)
        self._entrance.failed(failure)
