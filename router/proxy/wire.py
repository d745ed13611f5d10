"""HTTP/1.1 without I/O: bytes -> requests. `responses` has the other direction, `heads` what goes out.

httptools (llhttp) parses heads and framing, `syntax` checks what it leaves open; head and body are bounded here. An
Upgrade is ignored, as RFC 9110 section 7.8 lets a server do. Nothing here knows of sockets, routes or models.
docs/http.md tells what is taken and what is refused.
"""

from typing import NamedTuple

import httptools

from router.proxy import syntax
from router.proxy.syntax import Headers, WireError

Body = bytes | bytearray
"""A request's body: the bytes that came in one piece, or what several were appended to. Nobody changes it."""

MAX_HEAD = 64 * 1024
"""Bytes of a replica's head, and of a client's unless it is set otherwise. nginx allows 32 KB, uvicorn 64 KB."""


class Request(NamedTuple):
    """A whole request, its target in origin form. `id` is what it calls itself in x-request-id, `token` the
    x-homing-token of one that asks, by x-homing-debug: 1, to have its route explained; `proxied` says that it names the
    client of a proxy before us."""

    method: bytes
    target: bytes
    headers: Headers
    body: Body
    keep_alive: bool
    http_1_0: bool
    id: bytes | None
    token: bytes | None = None
    proxied: bool = False

    @property
    def path(self) -> str:
        """The target without its query, undecoded."""
        return self.target.partition(b"?")[0].decode("latin-1")


class RequestReader:
    """One client connection's requests. `feed` gives those that are whole; a WireError ends the connection.

    `wants_continue` says that a request's head has come whose client waits for a 100 before it sends the body.
    """

    def __init__(self, max_body: int, max_head: int = MAX_HEAD) -> None:
        self.max_body, self.max_head = max_body, max_head
        self._parser = httptools.HttpRequestParser(self)
        self._done: list[Request] = []
        self._unused = 0
        self._id: bytes | None = None
        self._token: bytes | None = None
        self._proxied = False
        self._version = ""
        self._host: bytes | None = None
        self._error: WireError | None = None
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

    @property
    def headed(self) -> bool:
        """Whether the head of a request is whole and its body is not."""
        return self._headed

    @property
    def path(self) -> str:
        """The path of the request whose head is whole, as it came."""
        return self._url.partition(b"?")[0].decode("latin-1")

    @property
    def received(self) -> int:
        """Bytes of the body so far."""
        return self._body_size

    @property
    def announced(self) -> int:
        """Bytes of the body by its Content-Length; 0 without one."""
        return self._announced

    def feed(self, data: bytes) -> list[Request]:
        """Take bytes; returns the requests that they complete. Raises WireError; where whole requests came before what
        is wrong, they are returned and the next call raises."""
        if self._error is not None:
            raise self._error
        self._unused += len(data)
        try:
            self._parse(data)
            if self._unused > self.max_head:  # A head, trailers or a chunk's extension without an end.
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
        self._body_size = self._announced = 0
        self._begun = self._headed = False

    def on_url(self, url: bytes) -> None:
        self._begun = True
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._headed:  # What comes after the head are trailers, which are dropped.
            self._headers.append((name.lower(), name, value))

    def on_headers_complete(self) -> None:
        if self._unused > self.max_head and self._head_size() > self.max_head:
            raise self._head_too_large()
        self._headed = True
        self._unused = 0
        self._version = self._parser.get_http_version()
        self._method = self._parser.get_method()
        self._target = syntax.target(self._url, self._method, self._version)
        fields = {name: value for name, _, value in self._headers}
        self._id = fields.get(b"x-request-id")
        self._token = fields.get(b"x-homing-token") if fields.get(b"x-homing-debug") == b"1" else None
        self._proxied = b"x-forwarded-for" in fields or b"x-forwarded-proto" in fields
        host = fields.get(b"host")
        syntax.check_host(self._headers, host if host != self._host else None, self._version)
        self._host = host
        if b"transfer-encoding" in fields:
            syntax.check_codings(self._headers, self._version)
        self.wants_continue = b"expect" in fields and syntax.waits(fields[b"expect"], self._version)
        self._announced = int(fields.get(b"content-length", 0))
        if self._announced > self.max_body:
            raise self._too_large()

    def on_body(self, body: bytes) -> None:
        self._unused = 0
        self._body_size += len(body)
        if self._body_size > self.max_body:
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
                self._proxied,
            )
        )
        self._begun = self._headed = self.wants_continue = False
        self._unused = 0
        self._body = b""

    def discard(self) -> None:
        """Hold no body any longer: the request is refused."""
        self._body = b""

    def _without_upgrade(self) -> bytes:
        lines = [b"%b: %b\r\n" % (name, value) for lower, name, value in self._headers if lower != b"upgrade"]
        start = b"%b %b HTTP/%b\r\n" % (self._method, self._url, self._version.encode())
        return b"".join([start, *lines, b"\r\n"])

    def _head_size(self) -> int:
        return len(self._url) + sum([len(name) + len(value) + len(b": \r\n") for name, _, value in self._headers])

    def _head_too_large(self) -> WireError:
        if len(self._url) > self.max_head // 2:
            return WireError(414, "too_large", f"the target takes most of limits.head, {self.max_head} bytes")
        return WireError(431, "too_large", f"the request's head is larger than limits.head, {self.max_head} bytes")

    def _too_large(self) -> WireError:
        lesser = "the lesser of limits.body and limits.buffered"
        return WireError(413, "too_large", f"the request's body is larger than {self.max_body} bytes, {lesser}")
