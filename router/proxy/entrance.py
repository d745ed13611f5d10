"""Where clients come in: each new connection gets its protocol, with TLS below it while the router has a certificate.

A handshake is no request and no client yet, but a connection that is open: it is counted among the clients', bounded in
time, and ended with them. How handshakes fail is counted; none of it is logged, since anybody can cause it.
"""

import asyncio
import ssl
from collections.abc import Callable

from router.core.record import HandshakeError
from router.handshakes import kind
from router.proxy.secure import Secure
from router.proxy.server import ClientConnection, Clients

PLAIN_HTTP = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\ncontent-length: 43\r\nconnection: close\r\n\r\n"
    b"This port speaks TLS: begin with https://.\n"
)
"""What a client gets who does not; nginx answers so, too."""


class Entrance:
    """`make` makes a client's protocol, for the scheme http or https; `failed` is told of each handshake that fails.
    `context` and `timeout` (seconds) are those of new connections; without a context there is no TLS."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clients: Clients,
        make: Callable[[str], ClientConnection],
        failed: Callable[[HandshakeError], None],
    ) -> None:
        self.loop, self.clients, self.failed = loop, clients, failed
        self._make = make
        self.context: ssl.SSLContext | None = None
        self.timeout = 10.0

    def admit(self) -> asyncio.Protocol:
        """The protocol of a new connection."""
        if self.context is None:
            return self._make("http")
        return Greeting(self, self.context, self._make("https")).secure


class Greeting:
    """A handshake: a client's connection until there is a client."""

    def __init__(self, entrance: Entrance, context: ssl.SSLContext, client: ClientConnection) -> None:
        self._entrance = entrance
        self.secure = Secure(context, client, self._over)
        self._timer = entrance.loop.call_later(entrance.timeout, self._late)
        self._late_by_us = self._cut_by_us = False
        entrance.clients.add(self)

    def close_when_idle(self) -> None:
        """server.Guest: nothing was asked yet."""
        self.cut()

    def cut(self) -> None:
        """server.Guest: end at once."""
        self._cut_by_us = True
        self.secure.abort()

    def _late(self) -> None:
        self._late_by_us = True
        self.secure.abort()

    def _over(self, error: OSError | None) -> None:
        """It has succeeded, and the client is there, or failed."""
        self._timer.cancel()
        self._entrance.clients.remove(self)
        if error is None or self._cut_by_us:
            return
        failure = HandshakeError.TIMEOUT if self._late_by_us else kind(error)
        if failure is HandshakeError.PLAIN_HTTP:
            self.secure.say(PLAIN_HTTP)
        self._entrance.failed(failure)
