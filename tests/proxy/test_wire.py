"""Requests without I/O: every split of the same bytes is the same request, and nothing that can be read in two ways
passes; and the heads that go on."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.proxy.heads import peer, request_head, response_head
from router.proxy.syntax import WireError
from router.proxy.wire import MAX_HEAD, Request, RequestReader
from tests.proxy.wires import CUTS, MAX_BODY, NOISE, Message, cut, halves, messages, read, survives

GET = b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n"
POST = b"POST /v1/x?q=1 HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nX-Twice: 1\r\nx-twice: 2\r\n\r\nhello"
CHUNKED = (
    b"POST /c HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"3;quality=1\r\nhel\r\n02\r\nlo\r\n0\r\nX-Trailer: t\r\nHost: b\r\nX-Request-Id: late\r\n\r\n"
)

PEER = peer("192.0.2.1", "http")


def refusal(*pieces: bytes, max_body: int = MAX_BODY) -> tuple[int, str]:
    with pytest.raises(WireError) as caught:
        read(*pieces, max_body=max_body)
    return caught.value.status, caught.value.reason


def test_a_request_is_taken_apart() -> None:
    [request] = read(POST)
    assert request == Request(
        b"POST",
        b"/v1/x?q=1",
        [
            (b"host", b"Host", b"a"),
            (b"content-length", b"Content-Length", b"5"),
            (b"x-twice", b"X-Twice", b"1"),
            (b"x-twice", b"x-twice", b"2"),
        ],
        b"hello",
        keep_alive=True,
        http_1_0=False,
        id=None,
    )
    assert request.path == "/v1/x"


@pytest.mark.parametrize("data", [GET, POST, CHUNKED, POST + CHUNKED + GET], ids=["get", "post", "chunked", "three"])
def test_a_request_cut_in_two_anywhere_is_the_same_request(data: bytes) -> None:
    whole = read(data)
    for first, second in halves(data):
        assert read(first, second) == whole
    assert read(*(bytes([byte]) for byte in data)) == whole


def test_pipelined_requests_come_out_in_their_order() -> None:
    assert [request.path for request in read(GET + POST + CHUNKED + GET)] == ["/health", "/v1/x", "/c", "/health"]


def test_a_chunked_body_is_joined_and_its_trailers_are_dropped() -> None:
    [request] = read(CHUNKED)
    assert request.body == b"hello"
    assert [name for name, _, _ in request.headers] == [b"host", b"transfer-encoding"]
    assert request.id is None


def test_a_reader_is_idle_between_requests_only() -> None:
    reader = RequestReader(MAX_BODY)
    idle = [reader.idle]
    for byte in POST:
        reader.feed(bytes([byte]))
        idle.append(reader.idle)
    begins = len(b"POST /")  # Before that it may be an empty line between requests.
    assert idle == [True] * begins + [False] * (len(POST) - begins) + [True]


@pytest.mark.parametrize(
    ("line", "fields", "keep_alive", "http_1_0"),
    [
        (b"GET / HTTP/1.1", b"Host: a\r\n", True, False),
        (b"GET / HTTP/1.1", b"Host: a\r\nConnection: close\r\n", False, False),
        (b"GET / HTTP/1.1", b"Host: a\r\nConnection: Keep-Alive, close\r\n", False, False),
        (b"GET / HTTP/1.0", b"", False, True),
        (b"GET / HTTP/1.0", b"Host: a\r\nConnection: keep-alive\r\n", False, True),
    ],
)
def test_how_long_a_connection_stays(line: bytes, fields: bytes, keep_alive: bool, http_1_0: bool) -> None:
    [request] = read(line + b"\r\n" + fields + b"\r\n")
    assert (request.keep_alive, request.http_1_0) == (keep_alive, http_1_0)


def test_the_request_id_is_the_clients() -> None:
    [request] = read(b"GET / HTTP/1.1\r\nHost: a\r\nX-REQUEST-ID: \xe4 1\r\n\r\n")
    assert request.id == b"\xe4 1"


def test_expect_is_seen_until_the_body_is_there() -> None:
    reader = RequestReader(MAX_BODY)
    reader.feed(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nExpect: 100-Continue\r\n\r\n")
    assert reader.wants_continue
    reader.feed(b"x")
    assert not reader.wants_continue


def test_an_absolute_target_is_the_path_that_it_names() -> None:
    """RFC 9112 section 3.2.2: a server must accept the absolute form, which clients of a forward proxy send."""
    [request] = read(b"GET http://homing:8080/v1/models?x=1 HTTP/1.1\r\nHost: homing:8080\r\n\r\n")
    assert request.path == "/v1/models"
    assert request_head(request, b"r1", b"/base", PEER, "7").startswith(b"GET /base/v1/models?x=1 HTTP/1.1\r\n")
    [root] = read(b"GET HTTP://homing HTTP/1.1\r\nHost: homing\r\n\r\n")
    assert (root.path, root.target) == ("/", b"/")


REFUSED = {
    "no Host": b"GET / HTTP/1.1\r\n\r\n",
    "two Hosts": b"GET / HTTP/1.1\r\nHost: a\r\nhost: a\r\n\r\n",
    "two Hosts in 1.0": b"GET / HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n",
    "HTTP/2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "TLS": bytes.fromhex("16030100a1010000"),
    "chunked in 1.0": b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "identity": b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: identity\r\n\r\n",
    "length and chunked": (
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    ),
    "two lengths": b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\nx",
    "signed length": b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +1\r\n\r\nx",
    "length with underscore": b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1_0\r\n\r\nx",
    "length beyond 64 bits": b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999\r\n\r\nx",
    "chunk size beyond 64 bits": (
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n"
    ),
    "chunk size with prefix": b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0x1\r\na\r\n0\r\n\r\n",
    "chunk without its line end": b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na0\r\n\r\n",
    "folded field": b"GET / HTTP/1.1\r\nHost: a\r\nX: 1\r\n 2\r\n\r\n",
    "bare line feeds": b"GET / HTTP/1.1\nHost: a\n\n",
    "space before colon": b"GET / HTTP/1.1\r\nHost : a\r\n\r\n",
    "NUL in a value": b"GET / HTTP/1.1\r\nHost: a\r\nX: \x00\r\n\r\n",
    "carriage return in a value": b"GET / HTTP/1.1\r\nHost: a\r\nX: a\rb\r\n\r\n",
    "space in the target": b"GET /a b HTTP/1.1\r\nHost: a\r\n\r\n",
    "lower-case method": b"get / HTTP/1.1\r\nHost: a\r\n\r\n",
}


@pytest.mark.parametrize("data", REFUSED.values(), ids=REFUSED)
def test_what_could_be_read_in_two_ways_is_refused(data: bytes) -> None:
    assert refusal(data) == (400, "bad_request")
    for first, second in halves(data):
        assert refusal(first, second) == (400, "bad_request")


@pytest.mark.parametrize(
    "data",
    [
        b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n",
        b"TRACE / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ],
    ids=["CONNECT", "TRACE", "gzip, chunked", "gzip in a field of its own"],
)
def test_what_is_understood_and_not_served_is_refused(data: bytes) -> None:
    for first, second in halves(data):
        assert refusal(first, second) == (501, "bad_request")


UPGRADE = (
    b"POST / HTTP/1.1\r\nHost: a\r\nConnection: upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: A\r\n"
    b"Content-Length: 2\r\n\r\nhi"
)


def test_a_wish_to_upgrade_is_ignored_and_what_follows_is_read() -> None:
    data = UPGRADE + GET + UPGRADE + UPGRADE + GET
    whole = read(data)
    assert [(request.path, request.body, request.keep_alive) for request in whole] == [
        ("/", b"hi", True),
        ("/health", b"", True),
        ("/", b"hi", True),
        ("/", b"hi", True),
        ("/health", b"", True),
    ]
    for first, second in halves(data):
        assert read(first, second) == whole


def test_what_is_wrong_behind_a_whole_request_is_told_behind_it() -> None:
    for wrong, status in ((b"get / HTTP/1.1\r\n", 400), (b"GET / HTTP/2.0\r\nHost: a\r\n\r\n", 505)):
        reader = RequestReader(MAX_BODY)
        assert [request.path for request in reader.feed(GET + POST + wrong)] == ["/health", "/v1/x"]
        assert reader.unsaid
        for _ in range(2):
            with pytest.raises(WireError) as caught:
                reader.feed(b"")
            assert caught.value.status == status


@pytest.mark.parametrize("version", [b"0.9", b"2.0"])
def test_another_version_of_http_is_refused(version: bytes) -> None:
    with pytest.raises(WireError) as caught:
        read(b"GET / HTTP/" + version + b"\r\nHost: a\r\n\r\n")
    assert caught.value.status in {400, 505}


def test_a_host_may_be_missing_in_http_1_0() -> None:
    assert len(read(b"GET / HTTP/1.0\r\n\r\n")) == 1


@pytest.mark.parametrize("piece", [1 << 30, 16_384], ids=["in one piece", "in pieces"])
def test_a_head_has_a_bound_however_it_arrives(piece: int) -> None:
    for filler in (b"X: " + b"a" * MAX_HEAD, b"\r\n".join([b"X: " + b"a" * 1000] * 70)):
        data = b"GET / HTTP/1.1\r\nHost: a\r\n" + filler + b"\r\n\r\n"
        assert refusal(*[data[at : at + piece] for at in range(0, len(data), piece)]) == (431, "too_large")
    assert refusal(b"GET /" + b"a" * MAX_HEAD + b" HTTP/1.1\r\nHost: a\r\n\r\n") == (414, "too_large")


def test_a_head_below_the_bound_is_taken_in_one_piece_or_many() -> None:
    data = b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"a" * (MAX_HEAD - 100) + b"\r\n\r\n"
    assert read(data) == read(*[data[at : at + 1000] for at in range(0, len(data), 1000)])


def test_a_head_is_measured_anew_for_each_request() -> None:
    data = b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"a" * (MAX_HEAD // 2) + b"\r\n\r\n"
    assert len(read(*[data] * 5)) == 5
    assert len(read(*[data[:100], data[100:]] * 5)) == 5


def test_what_is_neither_head_nor_body_has_a_bound_too() -> None:
    """A trailer, or a chunk's extension, that never ends must not fill memory."""
    start = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    endless = [b"a" * 8192] * 20
    assert refusal(start + b"0\r\nX-Trailer: ", *endless) == (431, "too_large")
    assert refusal(start + b"1;extension=", *endless) == (431, "too_large")


def test_many_small_chunks_are_no_head() -> None:
    pieces = [b"1\r\na\r\n"] * 30_000
    start = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    [request] = read(start, *pieces, b"0\r\n\r\n", max_body=30_000)
    assert len(request.body) == 30_000


def test_a_body_over_the_limit_is_refused_from_its_head_alone() -> None:
    head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n"
    assert refusal(head % (MAX_BODY + 1)) == (413, "too_large")
    assert len(read(head % MAX_BODY + b"a" * MAX_BODY)) == 1


def test_a_chunked_body_over_the_limit_is_refused_while_it_is_read() -> None:
    start = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunk = b"400\r\n" + b"a" * 1024 + b"\r\n"
    assert read(start, chunk, chunk, chunk, chunk) == []
    assert refusal(start, chunk, chunk, chunk, chunk, b"1\r\na") == (413, "too_large")
    assert refusal(start + b"FFFFFFFFFFFF\r\n" + b"a" * (MAX_BODY + 1)) == (413, "too_large")


@settings(deadline=None, max_examples=150)
@given(st.lists(messages(b"POST /a?b HTTP/1.1", ((b"Host", b"h"),)), min_size=1, max_size=3), CUTS)
def test_any_split_of_any_requests_gives_the_same_requests(sent: list[Message], places: list[int]) -> None:
    got = read(*cut(b"".join(message.data for message in sent), places))
    assert [request.body for request in got] == [message.body for message in sent]
    assert [[pair[1:] for pair in request.headers] for request in got] == [message.fields for message in sent]


@settings(deadline=None, max_examples=300)
@given(NOISE, CUTS)
def test_no_bytes_make_a_request_reader_raise_anything_but_its_error(data: bytes, places: list[int]) -> None:
    survives(RequestReader(MAX_BODY).feed, cut(data, places), WireError)


def sent_on(fields: bytes, body: bytes = b"", method: bytes = b"POST") -> list[bytes]:
    """The lines of the head that goes to a replica."""
    framing = b"Content-Length: %d\r\n" % len(body) if body else b""
    [request] = read(method + b" /x HTTP/1.1\r\nHost: client\r\n" + fields + framing + b"\r\n" + body)
    head = request_head(request, b"replica:1", b"", PEER, "7")
    assert head.endswith(b"\r\n\r\n")
    lines: list[bytes] = head[:-4].split(b"\r\n")
    assert lines[-3:] == [b"x-forwarded-for: 192.0.2.1", b"x-forwarded-proto: http", b"via: 1.1 homing"]
    return lines[:-3]


def test_a_head_for_a_replica_names_that_replica_and_keeps_the_clients_fields_as_they_came() -> None:
    kept = [b"Authorization: Bearer k", b"X-Tenant: t", b"x-tenant: u", b"Accept: */*", b"Via: 1.1 edge", b"X: \xf6"]
    assert sent_on(b"".join(line + b"\r\n" for line in kept)) == [
        b"POST /x HTTP/1.1",
        b"host: replica:1",
        *kept,
        b"content-length: 0",
        b"x-request-id: 7",
    ]


def test_fields_of_the_clients_hop_stay_here() -> None:
    dropped = (
        b"Connection: keep-alive, X-Secret ,te\r\nConnection: x-other\r\nKeep-Alive: timeout=5\r\nX-Secret: 1\r\n"
        b"X-Other: 2\r\nTE: trailers\r\nTrailer: X\r\nProxy-Connection: close\r\nProxy-Authorization: Basic k\r\n"
        b"Upgrade: h2c\r\nExpect: 100-continue\r\n"
    )
    assert sent_on(dropped + b"X-Kept: 3\r\n") == [
        b"POST /x HTTP/1.1",
        b"host: replica:1",
        b"X-Kept: 3",
        b"content-length: 0",
        b"x-request-id: 7",
    ]


def test_a_chunked_upload_goes_on_with_its_length() -> None:
    [request] = read(CHUNKED)
    assert request_head(request, b"r", b"/base", PEER, "7") == (
        b"POST /base/c HTTP/1.1\r\nhost: r\r\ncontent-length: 5\r\nx-request-id: 7\r\n"
        + PEER.lines
        + b"via: 1.1 homing\r\n\r\n"
    )


@pytest.mark.parametrize("method", [b"GET", b"HEAD", b"DELETE", b"OPTIONS"])
def test_a_request_without_a_body_says_nothing_of_a_length(method: bytes) -> None:
    assert not [line for line in sent_on(b"", method=method) if line.startswith(b"content-length")]
    assert b"content-length: 2" in sent_on(b"", body=b"ab", method=method)


def test_a_response_head_says_a_phrase_where_the_replica_did_not() -> None:
    assert response_head(404, b"", [b"a: b\r\n"]) == b"HTTP/1.1 404 Not Found\r\na: b\r\n\r\n"
    assert response_head(200, b"Fine", []) == b"HTTP/1.1 200 Fine\r\n\r\n"
    assert response_head(299, b"", []) == b"HTTP/1.1 299 \r\n\r\n"
