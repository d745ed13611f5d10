"""Who a request came from, as a replica is told: X-Forwarded-For and X-Forwarded-Proto, and Via, which RFC 9110 section
7.6.3 wants of a gateway.

What the client says of those before it stays in front; who called this server comes last, so that a replica that trusts
its router can trust the last one. A scheme that the client names is kept: it came over TLS up to the proxy before us.
"""

from collections.abc import Mapping
from typing import NamedTuple

from router.proxy.syntax import Headers

VIA = b"via: 1.1 homing\r\n"
MAPPED = "::ffff:"
"""How a socket for both versions of IP writes an address of version 4."""


class Caller(NamedTuple):
    """The other end of a client's connection. `lines` are the fields for a request that nobody has forwarded before."""

    address: bytes
    scheme: bytes
    lines: bytes


NOBODY = Caller(b"", b"", b"")


def caller(address: str, tls: bool) -> Caller:
    """A caller by its address, which is empty for a Unix socket, and whether it came over TLS."""
    plain, scheme = address.removeprefix(MAPPED).encode(), b"https" if tls else b"http"
    first = b"x-forwarded-for: %b\r\n" % plain if plain else b""
    return Caller(plain, scheme, b"%bx-forwarded-proto: %b\r\n%b" % (first, scheme, VIA))


def lines(caller: Caller, fields: Mapping[bytes, bytes], headers: Headers) -> bytes:
    """The fields that a request gets on top of its own, but for its X-Forwarded-For, which is part of them."""
    if b"x-forwarded-for" not in fields and b"x-forwarded-proto" not in fields:
        return caller.lines
    hops = [value for name, _, value in headers if name == b"x-forwarded-for"]
    if caller.address:
        hops.append(caller.address)
    told = b"x-forwarded-for: %b\r\n" % b", ".join(hops) if hops else b""
    if caller.scheme and b"x-forwarded-proto" not in fields:
        told += b"x-forwarded-proto: %b\r\n" % caller.scheme
    return told + VIA if caller.scheme else told
