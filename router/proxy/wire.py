"""HTTP/1.1 without I/O: bytes -> requests and responses. What goes out is written in heads.py.

httptools (llhttp) parses heads and framing, `syntax` checks what it leaves open; head and body are bounded here. An
Upgrade is ignored, as RFC 9110 section 7.8 lets a server do. Nothing here knows of sockets, routes or models.
docs/http.md tells what is taken and what is refused.
"""

import re
from typing import NamedTuple

import httptools

from router.proxy import syntax
from router.proxy.syntax import Headers, WireError

Body = bytes | bytearray
"""A request's body: the bytes that came in one piece, or what several were appended to. Nobody changes it."""

MAX_HEAD = 64 * 1024
"""Bytes of a replica's head, and of a client's unless it is set otherwise. nginx allows 32 KB, uvicorn 64 KB."""

EMPTY = frozenset((204, 304))
"""Statuses whose answer has no body, whatever its head says (RFC 9112 section 6.3)."""

_REASON = re.compile(rb"[\t -~\x80-\xff]*")
_CHUNKS_END = 5
"""Bytes at the end of a chunked body: one that ends no line, and two line ends."""


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
            return WireError(414, "bad_request", f"the target takes most of limits.head, {self.max_head} bytes")
        return WireError(431, "bad_request", f"the request's head is larger than limits.head, {self.max_head} bytes")

    def _too_large(self) -> WireError:
        return WireError(413, "too_large", f"the request's body is larger than limits.body, {self.max_body} bytes")


class ResponseReader:
    """One replica connection's responses, one after the other.

    `begin` makes ready for the next, then `feed` takes bytes. `status` is 0 until the head is whole; `pieces` holds
    the decoded body bytes since the reader was last told to forget them. One reader serves a connection's whole life,
    because making a parser costs more than parsing a head. A second response to one request is an error.
    """

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.on_body = self.pieces.append
        self._keep_alive = False
        self.begin(to_head=False)
        self._parser = httptools.HttpResponseParser(self)

    def begin(self, to_head: bool) -> None:
        """Expect the response to one request; a response to HEAD has no body whatever its head says."""
        self._to_head = to_head
        self._head = b""
        self._end = b"\r\n"
        self._interim = 0
        self.status = 0
        self.phrase = b""
        self.headers: Headers = []
        self.complete = self.chunked = self._chunk_open = False
        self.length: int | None = None
        self.pieces.clear()

    def feed(self, data: bytes) -> bytes:
        """Take bytes; returns those of them that belong to the body as it is on the wire, chunk framing and all.

        Raises httptools.HttpParserError for what is no HTTP response.
        """
        headed = self.has_head()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as error:
            raise httptools.HttpParserError("it switches protocols") from error
        except httptools.HttpParserCallbackError as error:
            raise error.__context__ if isinstance(error.__context__, httptools.HttpParserError) else error from None
        body = data if headed else self._behind_head(data)
        end = body[-_CHUNKS_END:] if len(body) >= _CHUNKS_END else (self._end + body)[-_CHUNKS_END:]
        if self.complete and self.chunked and end[0] in b"\r\n":
            body = _without_empty_lines(self._end, body)
        self._end = end
        return body

    def _behind_head(self, data: bytes) -> bytes:
        """What follows the head in all that has come so far; nothing while the head is not whole."""
        self._head += data if self._head else data.lstrip(b"\r\n")  # The parser skips empty lines, too.
        if not self.has_head():
            if len(self._head) > MAX_HEAD:
                raise httptools.HttpParserError(f"its head is larger than {MAX_HEAD} bytes")
            return b""
        head, self._head = self._head, b""
        start = 0
        for _ in range(self._interim + 1):
            start = head.index(b"\r\n\r\n", start) + 4
        if self._to_head:
            self.complete = True
            self._keep_alive = False  # The parser waits for a body that will not come.
        return head[start:]

    def has_head(self) -> bool:
        """Whether the head is whole."""
        return self.status != 0

    @property
    def in_chunk(self) -> bool:
        """Whether the body on the wire stands within a chunk or its size line, where nothing may be put in."""
        return self._chunk_open or self._end[-2:] != b"\r\n"

    def eof(self) -> None:
        """The peer closed: the end of a body that has no other end."""
        if self.status and not self.chunked and self.length is None:
            self.complete = True
            self._keep_alive = False

    def keep_alive(self) -> bool:
        """Whether the connection can carry another request."""
        return self.complete and self._keep_alive

    # llhttp's callbacks.

    def on_message_begin(self) -> None:
        if self.complete:
            raise httptools.HttpParserError("it answers more than was asked")
        self.headers = []

    def on_status(self, phrase: bytes) -> None:
        self.phrase += phrase

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.status:  # What comes after the head are trailers, which pass in the body's framing.
            self.headers.append((name.lower(), name, value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:
            if status < 100:
                raise httptools.HttpParserError("its status is none")
            self._interim += 1
            self.phrase = b""
            return
        self.status = status
        self._keep_alive = self._parser.should_keep_alive()
        if not _REASON.fullmatch(self.phrase):
            self.phrase = b""
        version = self._parser.get_http_version()
        if version not in syntax.VERSIONS:
            raise httptools.HttpParserError("it is of another version of HTTP")
        if status not in EMPTY:
            self._frame(version)

    def _frame(self, version: str) -> None:
        """Where the body ends; llhttp has refused a length beside a coding, and two lengths."""
        for name, _, value in self.headers:
            if name == b"transfer-encoding":
                if self.chunked or value.lower() != b"chunked" or version == "1.0":
                    raise httptools.HttpParserError("its transfer coding is not `chunked`, once, in HTTP/1.1")
                self.chunked = True
            elif name == b"content-length":
                self.length = int(value)

    def on_chunk_header(self) -> None:
        self._chunk_open = True

    def on_chunk_complete(self) -> None:
        self._chunk_open = False

    def on_message_complete(self) -> None:
        if self.status:
            self.complete = True


def _without_empty_lines(before: bytes, body: bytes) -> bytes:
    """The end of a chunked body without the line ends that follow it, which llhttp skips; `before` precedes it."""
    wire = before + body
    behind = len(wire) - len(wire.rstrip(b"\r\n")) - len(b"\r\n\r\n")
    return body[: len(body) - behind]
