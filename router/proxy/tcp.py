"""TCP's own keep-alive: hosts that vanish are noticed, and middle boxes see that a silent connection is in use.

An answer may take many minutes before its first byte, in which nothing passes. Network balancers and address
translators drop what is silent for 240 s (Azure), 350 s (AWS) or 600 s (Google), without telling either end. A probe a
minute keeps it; four without an answer, 15 s apart, end it: what is waited for then fails as a reset does.
"""

import socket
from typing import Protocol

PROBES = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}
"""Seconds of silence before the first probe, seconds between probes, probes. Never written to."""


class Socket(Protocol):
    """What of a socket is used."""

    def setsockopt(self, level: int, name: int, value: int, /) -> None: ...


def keep_alive(sock: Socket) -> None:
    """Have it probed; of a listening socket, all that it accepts (Linux)."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in PROBES.items():
        option: int | None = getattr(socket, name, None)  # macOS has its own name for the first.
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
