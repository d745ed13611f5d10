"""Heads out: what goes on of the fields that came, and what is added to them.

A replica is told who asks, and of this hop in `Via`, as RFC 9110 section 7.6.3 wants of a gateway; a client is not told
of it: its answer names the router in other fields.
"""

from collections.abc import Iterable
from http import HTTPStatus
from typing import NamedTuple

from router.proxy.syntax import Headers
from router.proxy.wire import Request

HOP_BY_HOP = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer transfer-encoding"
    b" upgrade".split()
)
"""Fields of one connection, never forwarded (RFC 9110 section 7.6.1); those named in Connection come on top."""

NOT_UPSTREAM = HOP_BY_HOP | {b"host", b"content-length", b"expect", b"x-homing-debug", b"x-homing-token"}
"""Fields of a request that stay here: of this hop, written anew, or meant for the router."""

BODILESS = frozenset((b"GET", b"HEAD", b"DELETE", b"OPTIONS"))
"""Methods whose request says nothing of a length when it has no body (RFC 9110 section 8.6)."""

NOT_OF_PROXIED = NOT_UPSTREAM | {b"x-forwarded-for", b"x-forwarded-proto"}
"""The same of a request that a proxy before us has passed on: written anew with what it says."""

PHRASES = {status.value: status.phrase.encode() for status in HTTPStatus}

VIA = b"via: 1.1 homing\r\n"


class Peer(NamedTuple):
    """A client's end of its connection: its address as X-Forwarded-For has it (IPv6 without brackets), `http` or
    `https`, and both as lines for a request that names neither."""

    address: bytes
    scheme: bytes
    lines: bytes


def peer(address: str, scheme: str) -> Peer:
    """A client's end; made once for a connection, since requests are many."""
    host = address.partition("%")[0].encode("latin-1")  # Without the zone of a link-local address.
    lines = b"x-forwarded-for: %b\r\nx-forwarded-proto: %b\r\n" % (host, scheme.encode())
    return Peer(host, scheme.encode(), lines)


def forwarding(request: Request, client: Peer) -> bytes:
    """X-Forwarded-For with the client at the end of the list, and X-Forwarded-Proto unless a proxy before us has told:
    the scheme that the first client used is the one that is asked for."""
    if not request.proxied:
        return client.lines
    clients = [value for name, _, value in request.headers if name == b"x-forwarded-for" and value]
    schemes = [value for name, _, value in request.headers if name == b"x-forwarded-proto"] or [client.scheme]
    told = b", ".join([*clients, client.address]), b", ".join(schemes)
    return b"x-forwarded-for: %b\r\nx-forwarded-proto: %b\r\n" % told


def forwarded(headers: Headers, drop: frozenset[bytes]) -> list[bytes]:
    """The lines of the fields that go on, in their order and spelling, without those in `drop`; in pieces to be joined.

    `drop` holds the hop-by-hop fields too; what a Connection field names is dropped on top of it, but for the length
    of a body, without which the other side would not find its end.
    """
    for lower, _, value in headers:
        if lower == b"connection":
            named = [part.strip().lower() for part in value.split(b",")]
            drop = drop.union([name for name in named if name != b"content-length"])
    pieces: list[bytes] = []
    for lower, name, value in headers:
        if lower not in drop:
            pieces += name, b": ", value, b"\r\n"
    return pieces


def request_head(request: Request, host: bytes, base: bytes, client: Peer, request_id: str) -> bytes:
    """The head for a replica: its own Host and base path, a Content-Length for what was chunked, who asks, and an id
    where the request has none."""
    lines = forwarded(request.headers, NOT_OF_PROXIED if request.proxied else NOT_UPSTREAM)
    if request.body or request.method not in BODILESS:
        lines.append(b"content-length: %d\r\n" % len(request.body))
    if request.id is None:
        lines.append(b"x-request-id: %b\r\n" % request_id.encode("latin-1"))
    target = request.target
    if base and target != b"*":
        target = base + target
    start = b"%b %b HTTP/1.1\r\nhost: %b\r\n" % (request.method, target, host)
    return b"".join([start, *lines, forwarding(request, client), VIA, b"\r\n"])


def response_head(status: int, phrase: bytes, lines: Iterable[bytes]) -> bytes:
    """A response's head from header lines, whole or in pieces."""
    return b"".join([b"HTTP/1.1 %d %b\r\n" % (status, phrase or PHRASES.get(status, b"")), *lines, b"\r\n"])
