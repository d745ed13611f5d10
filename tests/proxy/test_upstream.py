"""Connections to replicas and their pools over transports that the test plays: what is told, and what is kept."""

import asyncio
from collections.abc import Callable

import pytest

from router.proxy.responses import ResponseReader
from router.proxy.upstream import DRAIN_SECONDS, IDLE_SECONDS, MAX_IDLE, Address, Connection, Loss, Pool
from tests.proxy.hand import FakeTransport, HandLoop

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"
HEAD = b"POST / HTTP/1.1\r\n\r\n"


class Sender:
    """upstream.Sender that notes what it is told."""

    def __init__(self) -> None:
        self.heard: list[tuple[int, bytes, bool]] = []
        self.losses: list[Loss] = []

    def on_response(self, response: ResponseReader, data: bytes) -> None:
        self.heard.append((response.status, b"".join(response.pieces), response.complete))

    def on_lost(self, loss: Loss) -> None:
        self.losses.append(loss)

    @property
    def loss(self) -> Loss:
        [loss] = self.losses
        return loss


class Replica:
    """One pool and the transports behind it."""

    def __init__(self, loop: HandLoop, connect_timeout: float = 5.0) -> None:
        self.loop = loop
        self.pool = Pool(loop.port, Address("r1", 80), connect_timeout)

    async def connect(self) -> tuple[Connection, FakeTransport]:
        transport = FakeTransport(self.loop)
        self.loop.connections.append(transport)
        return await self.pool.connect(), transport

    async def sent(self, body: bytes = b"") -> tuple[Sender, Connection, FakeTransport]:
        """A request on a fresh connection."""
        connection, transport = await self.connect()
        sender = Sender()
        connection.send(sender, HEAD, body, to_head=False)
        return sender, connection, transport

    async def idle(self, count: int = 1) -> list[tuple[Connection, FakeTransport]]:
        """Connections that have carried a request, the last one used last."""
        made = [await self.sent() for _ in range(count)]
        for _, _, transport in made:
            transport.protocol.data_received(ANSWER)
        return [(connection, transport) for _, connection, transport in made]


@pytest.fixture
def replica() -> Replica:
    return Replica(HandLoop())


# What the sender is told.


async def test_a_request_goes_out_whole_and_its_answer_is_told_piece_by_piece(replica: Replica) -> None:
    sender, _, transport = await replica.sent(b"body")
    assert transport.written == HEAD + b"body"
    for byte in ANSWER:
        transport.protocol.data_received(bytes([byte]))
    assert sender.heard == [(200, b"", False), (200, b"h", False), (200, b"i", True)]
    assert sender.losses == []


async def test_a_sender_is_told_nothing_after_the_end(replica: Replica) -> None:
    sender, _, transport = await replica.sent()
    transport.protocol.data_received(ANSWER)
    transport.lose()
    assert (len(sender.heard), sender.losses) == (1, [])


@pytest.mark.parametrize("error", [None, ConnectionResetError()])
async def test_a_connection_that_breaks_is_told_once(replica: Replica, error: Exception | None) -> None:
    sender, _, transport = await replica.sent()
    transport.lose(error)
    assert sender.loss == Loss(written=True, reused=False, begun=False, garbled=False)
    assert replica.pool.open == 0


async def test_a_request_counts_as_written_when_its_last_byte_has_left(replica: Replica) -> None:
    for writes, written in ((1, False), (2, True)):
        sender, _, transport = await replica.sent()
        transport.protocol.pause_writing()
        if writes == 2:
            transport.protocol.resume_writing()
        transport.lose()
        assert sender.loss.written is written


@pytest.mark.parametrize("heard", [b"HTTP/1.1 20", b"HTTP/1.1 100 Continue\r\n\r\n"], ids=["part of a head", "interim"])
async def test_a_loss_tells_whether_an_answer_had_begun(replica: Replica, heard: bytes) -> None:
    """Then work was done, and the request must not go out again."""
    [(connection, transport)] = await replica.idle()
    assert replica.pool.take() is connection
    sender = Sender()
    connection.send(sender, HEAD, b"", to_head=False)
    transport.protocol.data_received(heard)
    transport.lose()
    assert sender.loss == Loss(written=True, reused=True, begun=True, garbled=False)


async def test_a_loss_tells_whether_the_connection_had_been_idle(replica: Replica) -> None:
    [(connection, transport)] = await replica.idle()
    assert replica.pool.take() is connection
    sender = Sender()
    connection.send(sender, HEAD, b"", to_head=False)
    transport.lose()
    assert sender.loss == Loss(written=True, reused=True, begun=False, garbled=False)


@pytest.mark.parametrize("garbage", [b"SSH-2.0-x\r\n", ANSWER + ANSWER, b"HTTP/1.1 101 X\r\nUpgrade: h2c\r\n\r\n"])
async def test_what_is_no_answer_ends_the_connection(replica: Replica, garbage: bytes) -> None:
    sender, _, transport = await replica.sent()
    transport.protocol.data_received(garbage)
    replica.loop.turn()
    assert sender.loss == Loss(written=True, reused=False, begun=True, garbled=True)
    assert (sender.heard, transport.ended, replica.pool.open) == ([], "abort", 0)


async def test_a_body_without_framing_ends_with_its_connection(replica: Replica) -> None:
    sender, _, transport = await replica.sent()
    transport.protocol.data_received(b"HTTP/1.0 200 OK\r\n\r\nhi")
    transport.protocol.eof_received()
    transport.lose()
    assert sender.heard == [(200, b"hi", False), (200, b"", True)]
    assert (sender.losses, replica.pool.take()) == ([], None)


async def test_a_framed_body_that_stops_with_its_connection_is_lost(replica: Replica) -> None:
    sender, _, transport = await replica.sent()
    transport.protocol.data_received(ANSWER[:-1])
    transport.protocol.eof_received()
    transport.lose()
    assert (sender.heard[-1][2], len(sender.losses)) == (False, 1)


async def test_after_an_abort_the_sender_hears_nothing_more(replica: Replica) -> None:
    sender, connection, transport = await replica.sent()
    connection.abort()
    transport.protocol.data_received(ANSWER)
    replica.loop.turn()
    assert (sender.heard, sender.losses, replica.pool.open) == ([], [], 0)
    assert transport.ended == "abort"


async def test_the_rest_of_a_drained_answer_passes_unheard_and_the_connection_is_kept(replica: Replica) -> None:
    sender, connection, transport = await replica.sent()
    transport.protocol.data_received(ANSWER[:-1])
    connection.drain()
    transport.protocol.data_received(ANSWER[-1:])
    assert (len(sender.heard), sender.losses) == (1, [])
    assert replica.pool.take() is connection


async def test_the_rest_of_a_drained_answer_does_not_hold_its_connection_for_ever(replica: Replica) -> None:
    sender, connection, transport = await replica.sent()
    transport.protocol.data_received(ANSWER[:-1])
    connection.drain()
    replica.loop.advance(DRAIN_SECONDS + 0.1)
    assert (transport.ended, replica.pool.open, sender.losses) == ("abort", 0, [])


async def test_a_connection_that_was_drained_well_carries_a_long_answer_after_it(replica: Replica) -> None:
    _, connection, transport = await replica.sent()
    connection.drain()
    transport.protocol.data_received(ANSWER)
    assert replica.pool.take() is connection
    connection.send(Sender(), HEAD, b"", to_head=False)
    replica.loop.advance(DRAIN_SECONDS + 0.1)
    assert transport.ended is None


async def test_reading_stops_and_goes_on_as_told(replica: Replica) -> None:
    _, connection, transport = await replica.sent()
    reading = []
    for paused in (True, True, False, False, True):
        connection.pause(paused)
        reading.append(transport.reading)
    assert reading == [False, False, True, True, False]
    connection.abort()
    connection.pause(False)
    assert not transport.reading, "a transport that closes must not be touched: uvloop's raises"


# What is kept.


async def test_the_connection_used_last_is_taken_first_and_each_only_once(replica: Replica) -> None:
    made = await replica.idle(3)
    assert [replica.pool.take() for _ in range(4)] == [made[2][0], made[1][0], made[0][0], None]
    assert replica.pool.open == 3


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi",
    ],
)
async def test_a_connection_that_the_replica_closes_is_not_kept(replica: Replica, answer: bytes) -> None:
    _, _, transport = await replica.sent()
    transport.protocol.data_received(answer)
    assert (transport.ended, replica.pool.take()) == ("close", None)
    replica.loop.turn()
    assert replica.pool.open == 0


async def test_an_answer_before_the_request_was_written_ends_the_connection_at_once(replica: Replica) -> None:
    """A close would wait until the replica has read the rest, which it may never do."""
    sender, _, transport = await replica.sent(b"large")
    transport.protocol.pause_writing()
    transport.protocol.data_received(ANSWER)
    assert (sender.heard[-1][2], transport.ended, replica.pool.take()) == (True, "abort", None)


async def test_idle_connections_are_dropped_before_an_engine_would_close_them(replica: Replica) -> None:
    [(_, first)] = await replica.idle()
    replica.loop.advance(IDLE_SECONDS / 2)
    [(second, _)] = await replica.idle()
    replica.loop.advance(IDLE_SECONDS / 2)
    assert (first.ended, replica.pool.open) == ("abort", 1)
    assert replica.pool.take() is second
    replica.loop.advance(2 * IDLE_SECONDS)
    assert replica.loop.waiting == 0


def test_an_engine_under_uvicorn_would_close_later() -> None:
    uvicorn = 5.0
    assert 0.0 < IDLE_SECONDS <= uvicorn - 1.0


async def test_a_connection_that_is_idle_too_long_is_not_taken_though_nobody_has_swept_yet(replica: Replica) -> None:
    [(_, transport)] = await replica.idle()
    replica.loop.now += IDLE_SECONDS  # A loop that was busy, or a process that was stopped.
    assert replica.pool.take() is None
    assert transport.ended == "abort"


async def test_no_more_than_the_bound_are_kept(replica: Replica) -> None:
    made = await replica.idle(MAX_IDLE + 2)
    replica.loop.turn()
    assert [transport.ended for _, transport in made] == [None] * MAX_IDLE + ["abort"] * 2
    assert replica.pool.open == MAX_IDLE


async def test_bytes_that_nobody_asked_for_end_an_idle_connection(replica: Replica) -> None:
    [(_, transport)] = await replica.idle()
    transport.protocol.data_received(ANSWER)
    assert (transport.ended, replica.pool.take()) == ("abort", None)


async def test_an_idle_connection_that_the_replica_closes_is_forgotten(replica: Replica) -> None:
    [(_, transport)] = await replica.idle()
    transport.lose()
    assert (replica.pool.open, replica.pool.take()) == (0, None)


async def test_closing_a_pool_drops_all_of_its_connections(replica: Replica) -> None:
    [(_, idle)] = await replica.idle()
    _, _, busy = await replica.sent()
    replica.pool.close()
    replica.loop.turn()
    assert (idle.ended, busy.ended) == ("abort", "abort")
    assert (replica.pool.open, replica.loop.waiting) == (0, 0)


# Connecting.


async def test_a_connection_that_is_refused_or_unreachable_is_an_error(replica: Replica) -> None:
    for error in (ConnectionRefusedError(), OSError("no route to host")):
        replica.loop.connections.append(error)
        with pytest.raises(type(error)):
            await replica.pool.connect()
    assert replica.pool.open == 0


class _Hanging(HandLoop):
    """Connects, tells the protocol, and does not return."""

    def __init__(self) -> None:
        super().__init__()
        self.made = asyncio.Event()

    async def create_connection(
        self, factory: Callable[[], asyncio.Protocol], host: str, port: int
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        made = await super().create_connection(factory, host, port)
        self.made.set()
        await asyncio.Event().wait()
        return made


@pytest.mark.parametrize("patience", [0.01, 60.0], ids=["time is up", "cancelled"])
async def test_a_connection_that_is_made_too_late_is_closed(patience: float) -> None:
    loop = _Hanging()
    replica = Replica(loop, connect_timeout=patience)
    transport = FakeTransport(loop)
    loop.connections.append(transport)
    task = asyncio.create_task(replica.pool.connect())
    await loop.made.wait()
    if patience > 1:
        task.cancel()
    with pytest.raises((TimeoutError, asyncio.CancelledError)):
        await task
    loop.turn()
    assert (transport.ended, replica.pool.open) == ("abort", 0)


async def test_only_a_refused_connection_proves_that_a_process_is_gone(replica: Replica) -> None:
    transport = FakeTransport(replica.loop)
    replica.loop.connections += [ConnectionRefusedError(), OSError("no route to host"), TimeoutError(), transport]
    assert [await replica.pool.refuses() for _ in range(4)] == [True, False, False, False]
    replica.loop.turn()
    assert (transport.ended, replica.pool.open) == ("abort", 0)
