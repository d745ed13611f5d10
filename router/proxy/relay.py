"""Pumps one response to its client: head edited, body bytes passed through as they came.

Two things are looked for, and never by decoding each event: the first body byte (the first token, where the answer is
a good one) and `usage`, searched once, at the end, in the last bytes. When the upstream dies midway the client sees
it: an `error` event in a stream that stands between two chunks, and in any case a connection closed without an end.
"""

import re
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from router.core.types import Route, Usage
from router.proxy import shapes
from router.proxy.answers import Style, broken_event
from router.proxy.heads import HOP_BY_HOP, forwarded, response_head
from router.proxy.responses import EMPTY, ResponseReader
from router.proxy.wire import Request

TAIL = 16 * 1024
"""Bytes of an answer's end in which `usage` is looked for, and at most one read more. It is the last event but [DONE]
of a stream, and stands near the end of an answer in one piece; a network may cut either at every byte."""

_GENERATED = re.compile(rb"event: response\.(?!created|in_progress|queued)")
_STORED_ID = re.compile(rb'"id"\s*:\s*"(resp_[\w-]{1,128})"')
_KEY = b'"usage"'
_USAGE = re.compile(rb'"usage"\s*:\s*(\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\})')
_NO_LENGTH = HOP_BY_HOP | {b"content-length"}


class Sink(Protocol):
    """The client side of a relay."""

    def write(self, data: bytes) -> None: ...


def added(route: Route, request_id: str) -> bytes:
    """The lines that tell a client where its answer comes from."""
    text = (
        f"x-homing-replica: {route.replica}\r\nx-homing-reason: {route.reason}\r\n"
        f"x-homing-predicted-cached-tokens: {route.cached}\r\nx-homing-request-id: {request_id}\r\n"
    )
    return text.encode("latin-1")


def read_usage(tail: bytes) -> Usage | None:
    """The last `usage` object in the end of an answer; None where there is none, or of another form."""
    at = tail.rfind(_KEY)
    while at >= 0:
        found = _USAGE.match(tail, at)
        if found is not None:
            return shapes.usage(found[1])
        at = tail.rfind(_KEY, 0, at)
    return None


class Relay:
    """One response on its way. `extra` are header lines that the router adds."""

    def __init__(self, request: Request, response: ResponseReader, extra: Sequence[bytes], sink: Sink) -> None:
        self._response = response
        self._sink = sink
        self._looked = False
        self._tail: deque[bytes] = deque()
        self._tail_size = 0
        self._to_head = request.method == b"HEAD"
        self._left = response.length
        self._bodiless = self._to_head or response.status in EMPTY
        unframed = response.length is None and not response.chunked and not self._bodiless
        self._rechunk = unframed and not request.http_1_0
        self._dechunk = response.chunked and request.http_1_0
        self.keep_alive = request.keep_alive and not (request.http_1_0 or (unframed and not self._rechunk))
        no_length = response.chunked or response.status == 204
        lines = forwarded(response.headers, _NO_LENGTH if no_length else HOP_BY_HOP)
        if (response.chunked and not request.http_1_0) or self._rechunk:
            lines.append(b"transfer-encoding: chunked\r\n")
        if not self.keep_alive:
            lines.append(b"connection: close\r\n")
        self._head: bytes | None = response_head(response.status, response.phrase, [*lines, *extra])

    def pass_on(self, data: bytes) -> None:
        """Write what just arrived. `data` is body bytes on the wire; the decoded pieces are the response's."""
        pieces = self._response.pieces
        self._remember(pieces)
        if self._bodiless:
            data = b""
        elif self._dechunk:
            data = b"".join(pieces)
        elif self._rechunk:
            data = b"".join([b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces])
            if self._response.complete:
                data += b"0\r\n\r\n"
        elif self._left is not None:
            data = data[: self._left]
            self._left -= len(data)
        if self._head is not None:
            data, self._head = self._head + data, None
        if data:
            self._sink.write(data)

    def generates(self, data: bytes) -> bool:
        """Whether `data`, of a streamed Responses answer, shows that generation has begun: vLLM sends the events
        created, in_progress and queued before that (DESIGN section 4)."""
        return _GENERATED.search(data) is not None

    def stored_id(self) -> str | None:
        """The id under which the replica stores this response. It stands in the first bytes of either form, so only the
        first call with body bytes at hand looks."""
        if self._looked or not self._response.pieces:
            return None
        self._looked = True
        found = _STORED_ID.search(self._response.pieces[0])
        return found[1].decode() if found else None

    def _remember(self, pieces: Sequence[bytes]) -> None:
        """Keep the pieces that the last TAIL bytes reach into."""
        tail = self._tail
        tail.extend(pieces)
        self._tail_size += sum(map(len, pieces))
        while tail and self._tail_size - len(tail[0]) >= TAIL:
            self._tail_size -= len(tail.popleft())

    def usage(self) -> Usage | None:
        """What the end of the answer says of tokens."""
        return read_usage(b"".join(self._tail))

    def broken(self, message: str, code: str, style: Style) -> None:
        """It ends midway: say so inside a stream that stands between two chunks. The caller closes."""
        response = self._response
        kinds = [value for name, _, value in response.headers if name == b"content-type"]
        streams = bool(kinds) and kinds[0].startswith(b"text/event-stream")
        if streams and response.chunked and not response.in_chunk and not self._to_head:
            event = broken_event(message, code, style)
            self._sink.write(event if self._dechunk else b"%x\r\n%b\r\n" % (len(event), event))
