"""HTTP/1.1 without I/O: bytes -> requests, heads out. `responses` has the other direction.

httptools (llhttp) parses heads and framing, `syntax` checks what it leaves open; head and body are bounded here. An
Upgrade is ignored, as RFC 9110 section 7.8 lets a server do. Nothing here knows of sockets, routes or models.
docs/http.md tells what is taken and what is refused.
"""

from collections.abc import Iterable, Sequence
from http import HTTPStatus
from typing import NamedTuple

import httptools

from router.proxy import forwarding, syntax
from router.proxy.syntax import Headers, WireError

Body = bytes | bytearray
"""A request's body: the bytes that came in one piece, or what several were appended to. Nobody changes it."""

HOP_BY_HOP = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer transfer-encoding"
    b" upgrade".split()
)
"""Fields of one connection, never forwarded (RFC 9110 section 7.6.1); those named in Connection come on top."""

NOT_UPSTREAM = HOP_BY_HOP | {
    b"host",
    b"content-length",
    b"expect",
    b"x-homing-debug",
    b"x-homing-token",
    b"x-forwarded-for",
}
"""Fields of a request that stay here: of this hop, written anew, or meant for the router."""

BODILESS = frozenset((b"GET", b"HEAD", b"DELETE", b"OPTIONS"))
"""Methods whose request says nothing of a length when it has no body (RFC 9110 section 8.6)."""

MAX_HEAD = 64 * 1024
"""Bytes of a head. nginx allows 32 KB by default, uvicorn 64 KB; cookies and traces fit."""

PHRASES = {status.value: status.phrase.encode() for status in HTTPStatus}


class Request(NamedTuple):
    """A whole request, its target in origin form. `id` is what it calls itself in x-request-id, `token` the
    x-homing-token of one that asks, by x-homing-debug: 1, to have its route explained, `forwarding` the lines that tell
    the replica who it came from."""

    method: bytes
    target: bytes
    headers: Headers
    body: Body
    keep_alive: bool
    http_1_0: bool
    id: bytes | None
    token: bytes | None = None
    forwarding: bytes = b""

    @property
    def path(self) -> str:
        """The target without its query, undecoded."""
        return self.target.partition(b"?")[0].decode("latin-1")


class RequestReader:
    """One client connection's requests. `feed` gives those that are whole; a WireError ends the connection.

    `wants_continue` says that a request's head has come whose client waits for a 100 before it sends the body; `caller`
    is who the requests come from.
    """

    def __init__(self, max_body: int) -> None:
        self._max_body = max_body
        self._parser = httptools.HttpRequestParser(self)
        self._done: list[Request] = []
        self._unused = 0
        self._id: bytes | None = None
        self._token: bytes | None = None
        self._version = ""
        self._host: bytes | None = None
        self._error: WireError | None = None
        self._forwarding = b""
        self.caller = forwarding.NOBODY
        self.wants_continue = False
        self.on_message_begin()

    @property
    def idle(self) -> bool:
        """Whether no request has begun that is not whole yet."""
        return not self._begun

    @property
    def unsaid(self) -> bool:
        """Whether `feed` has something to tell without more bytes: an error behind the requests that it gave, or that
        the client waits for a 100."""
        return self._error is not None or self.wants_continue

    def feed(self, data: bytes) -> list[Request]:
        """Take bytes; returns the requests that they complete. Raises WireError; where whole requests came before what
        is wrong, they are returned and the next call raises."""
        if self._error is not None:
            raise self._error
        self._unused += len(data)
        try:
            self._parse(data)
            if self._unused > MAX_HEAD:  # A head, trailers or a chunk's extension without an end.
                raise self._head_too_large()
        except WireError as error:
            if not self._done:
                raise
            self._error = error
            self.wants_continue = False
        done, self._done = self._done, []
        return done

    def _parse(self, data: bytes) -> None:
        while data:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                # Its parser takes no more, and would leave its body unread. It is read again as if it had not asked.
                self._done.pop()
                data = self._without_upgrade() + data[upgrade.args[0] :]
                self._parser = httptools.HttpRequestParser(self)
            except httptools.HttpParserCallbackError as error:
                if isinstance(error.__context__, WireError):
                    raise error.__context__ from None
                raise
            except httptools.HttpParserError as error:
                raise WireError(400, "bad_request", f"not an HTTP/1.1 request: {error}") from error
            else:
                return

    # llhttp's callbacks.

    def on_message_begin(self) -> None:
        self._url = b""
        self._headers: Headers = []
        self._body: Body = b""
        self._body_size = 0
        self._begun = self._headed = False

    def on_url(self, url: bytes) -> None:
        self._begun = True
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._headed:  # What comes after the head are trailers, which are dropped.
            self._headers.append((name.lower(), name, value))

    def on_headers_complete(self) -> None:
        if self._unused > MAX_HEAD and self._head_size() > MAX_HEAD:
            raise self._head_too_large()
        self._headed = True
        self._unused = 0
        self._version = self._parser.get_http_version()
        self._method = self._parser.get_method()
        self._target = syntax.target(self._url, self._method, self._version)
        fields = {name: value for name, _, value in self._headers}
        self._id = fields.get(b"x-request-id")
        self._token = fields.get(b"x-homing-token") if fields.get(b"x-homing-debug") == b"1" else None
        self._forwarding = forwarding.lines(self.caller, fields, self._headers)
        host = fields.get(b"host")
        syntax.check_host(self._headers, host if host != self._host else None, self._version)
        self._host = host
        if b"transfer-encoding" in fields:
            syntax.check_codings(self._headers, self._version)
        self.wants_continue = b"expect" in fields and syntax.waits(fields[b"expect"], self._version)
        if int(fields.get(b"content-length", 0)) > self._max_body:
            raise self._too_large()

    def on_body(self, body: bytes) -> None:
        self._unused = 0
        self._body_size += len(body)
        if self._body_size > self._max_body:
            raise self._too_large()
        if not self._body:
            self._body = body
        elif isinstance(self._body, bytearray):
            self._body += body
        else:  # Not joined at the end: 16 MiB in a new place take 10 ms, and here each piece its share.
            self._body = bytearray(self._body)
            self._body += body

    def on_message_complete(self) -> None:
        modern = self._version == "1.1"
        self._done.append(
            Request(
                self._method,
                self._target,
                self._headers,
                self._body,
                modern and self._parser.should_keep_alive(),
                not modern,
                self._id,
                self._token,
                self._forwarding,
            )
        )
        self._begun = self._headed = self.wants_continue = False
        self._unused = 0
        self._body = b""

    def _without_upgrade(self) -> bytes:
        lines = [b"%b: %b\r\n" % (name, value) for lower, name, value in self._headers if lower != b"upgrade"]
        start = b"%b %b HTTP/%b\r\n" % (self._method, self._url, self._version.encode())
        return b"".join([start, *lines, b"\r\n"])

    def _head_size(self) -> int:
        return len(self._url) + sum([len(name) + len(value) + len(b": \r\n") for name, _, value in self._headers])

    def _head_too_large(self) -> WireError:
        if len(self._url) > MAX_HEAD // 2:
            return WireError(414, "bad_request", f"the target takes most of a head's {MAX_HEAD} bytes")
        return WireError(431, "bad_request", f"the request's head is larger than {MAX_HEAD} bytes")

    def _too_large(self) -> WireError:
        return WireError(413, "too_large", f"the request's body is larger than limits.body, {self._max_body} bytes")


def forwarded(headers: Headers, drop: frozenset[bytes]) -> list[bytes]:
    """The lines of the fields that go on, in their order and spelling, without those in `drop`.

    `drop` holds the hop-by-hop fields too; what a Connection field names is dropped on top of it, but for the length
    of a body, without which the other side would not find its end.
    """
    for lower, _, value in headers:
        if lower == b"connection":
            named = [part.strip().lower() for part in value.split(b",")]
            drop = drop.union([name for name in named if name != b"content-length"])
    return [b"%b: %b\r\n" % (name, value) for lower, name, value in headers if lower not in drop]


def request_head(request: Request, host: bytes, base: bytes, extra: Sequence[bytes]) -> bytes:
    """The head for a replica: its own Host and base path, a Content-Length for what was chunked, who it came from, and
    `extra` lines."""
    lines = forwarded(request.headers, NOT_UPSTREAM)
    if request.body or request.method not in BODILESS:
        lines.append(b"content-length: %d\r\n" % len(request.body))
    target = request.target
    if base and target != b"*":
        target = base + target
    start = b"%b %b HTTP/1.1\r\nhost: %b\r\n" % (request.method, target, host)
    return b"".join([start, *lines, request.forwarding, *extra, b"\r\n"])


def response_head(status: int, phrase: bytes, lines: Iterable[bytes]) -> bytes:
    """A response's head from whole header lines."""
    return b"".join([b"HTTP/1.1 %d %b\r\n" % (status, phrase or PHRASES.get(status, b"")), *lines, b"\r\n"])
