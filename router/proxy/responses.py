"""HTTP/1.1 without I/O: a replica's bytes -> responses.

httptools (llhttp) parses heads and framing; what it leaves open is refused here: other versions and codings, statuses
that are none, an answer behind the answer. Nothing here knows of sockets or clients; docs/http.md tells what is taken.
"""

import re

import httptools

from router.proxy.syntax import VERSIONS, Headers
from router.proxy.wire import MAX_HEAD

EMPTY = frozenset((204, 304))
"""Statuses whose answer has no body, whatever its head says (RFC 9112 section 6.3)."""

_REASON = re.compile(rb"[\t -~\x80-\xff]*")
_CHUNKS_END = 5
"""Bytes at the end of a chunked body: one that ends no line, and two line ends."""


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
        self.complete = self.chunked = self.dated = self._chunk_open = False
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
        except httptools.HttpParserError as error:
            if not (self._to_head and self.has_head()):  # To HEAD, the head is all, and the connection ends.
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
        if version not in VERSIONS:
            raise httptools.HttpParserError("it is of another version of HTTP")
        self._frame(version, status in EMPTY)

    def _frame(self, version: str, empty: bool) -> None:
        """Where the body ends; llhttp has refused a length beside a coding, and two lengths."""
        for name, _, value in self.headers:
            if name == b"date":
                self.dated = True
            elif empty:
                continue
            elif name == b"transfer-encoding":
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
