"""The watch over sockets that nobody reads: it tells who closed or reset, once, and nothing of who only sends."""

import asyncio
import socket

import pytest

from router.proxy.departures import Departures
from tests.browser import chat, connected, get, post
from tests.rig import scripted, until
from tests.scripted import HOST, hang, whole


class Pair:
    """A TCP connection; `left` counts what was told of its far end."""

    def __init__(self) -> None:
        with socket.create_server((HOST, 0)) as listening:
            self.far = socket.create_connection(listening.getsockname())
            self.near, _ = listening.accept()
        self.left = 0

    def tell(self) -> None:
        self.left += 1

    def __enter__(self) -> "Pair":
        return self

    def __exit__(self, *_: object) -> None:
        self.far.close()
        self.near.close()


async def soon() -> None:
    """Long enough for an event that has happened to be told."""
    await asyncio.sleep(0.05)


@pytest.mark.parametrize("half", [False, True])
async def test_who_resets_is_told_of_once(half: bool) -> None:
    departures = Departures(asyncio.get_running_loop())
    with Pair() as pair, Pair() as other:
        for each in (pair, other):
            departures.watch(each.near.fileno(), each.tell, half)
        pair.far.send(b"much")
        await soon()
        assert (pair.left, other.left) == (0, 0)
        pair.far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        pair.far.close()
        await until(lambda: pair.left)
        await soon()
        assert (pair.left, other.left) == (1, 0)
    departures.close()


@pytest.mark.parametrize(("half", "left"), [(False, 1), (True, 0)])
async def test_who_closes_its_writing_side_has_left_or_not_as_is_asked(half: bool, left: int) -> None:
    departures = Departures(asyncio.get_running_loop())
    with Pair() as pair:
        departures.watch(pair.near.fileno(), pair.tell, half)
        pair.far.shutdown(socket.SHUT_WR)
        await soon()
        assert pair.left == left
        departures.forget(pair.near.fileno())
    departures.close()


async def test_who_is_forgotten_is_told_of_no_more_and_its_number_may_be_anothers() -> None:
    departures = Departures(asyncio.get_running_loop())
    with Pair() as pair, Pair() as other:
        departures.watch(pair.near.fileno(), pair.tell, False)
        departures.forget(pair.near.fileno())
        departures.forget(pair.near.fileno())
        pair.far.close()
        departures.watch(other.near.fileno(), other.tell, False)
        other.far.close()
        await until(lambda: other.left)
        assert pair.left == 0
    departures.close()


async def test_one_who_is_told_of_may_have_another_forgotten_that_left_in_the_same_turn() -> None:
    loop = asyncio.get_running_loop()
    raised: list[object] = []
    loop.set_exception_handler(lambda _, context: raised.append(context))
    departures = Departures(loop)
    with Pair() as pair, Pair() as other:

        def tell() -> None:
            pair.tell()
            departures.forget(other.near.fileno())

        departures.watch(pair.near.fileno(), tell, False)
        departures.watch(other.near.fileno(), other.tell, False)
        pair.far.close()
        other.far.close()
        await until(lambda: pair.left)
        await soon()
        assert (pair.left, raised) == (1, [])
    departures.close()


async def test_a_client_that_is_not_read_ends_with_a_drain_like_any_other() -> None:
    """Its connection is lost after the watch has closed, and the exchange must hear of it all the same."""
    async with scripted(hang, drain={"timeout": "100ms"}) as (rig, [replica]), connected(rig) as client:
        await client.send(chat())
        await until(lambda: replica.calls)
        await client.send(post("/v1/anything", b"x" * 1_000_000))
        await until(lambda: not rig.client._transport.is_reading())
        await rig.stop()
        assert (len(rig.worker.clients), rig.record.rejected) == (0, "draining")


async def test_both_ends_of_a_router_are_probed_when_they_are_silent() -> None:
    async with scripted(whole()) as (rig, _), connected(rig) as client:
        await client.asks(get("/v1/anything"))
        [upstream] = rig.worker.pools["r1"]._open
        for transport in (rig.client._transport, upstream._transport):
            sock = transport.get_extra_info("socket")
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 60
