"""The ways in which a simulated replica can fail on purpose, and the one socket trick that they need.

A fault touches only requests that generate (`refuse` apart): health, models and metrics go on answering, as they do on
a real replica whose engine is in trouble. Where a fault takes effect is the handlers' and the server's business.
"""

import asyncio
import enum
import socket
import struct


class Fault(enum.StrEnum):
    NONE = "none"
    REFUSE = "refuse"
    """The port is closed and every connection is cut, as if the process had died: health fails, too."""
    RESET = "reset"
    """The request is read whole, then the connection is reset before a byte of the answer."""
    RESET_MIDWAY = "reset-midway"
    """The connection is reset after half of the answer."""
    HANG = "hang"
    """The request is read and never answered."""
    FULL = "full"
    """503 with Retry-After: 1, before any work."""
    SLOW = "slow"
    """Every step takes ten times as long."""
    FAST_500 = "fast-500"
    """500 at once."""


SLOWDOWN = 10.0


def reset(transport: asyncio.Transport) -> None:
    """Close a connection with RST instead of FIN; what was not yet sent is lost (SO_LINGER of zero seconds)."""
    connection = transport.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()
