"""POST /record: the traffic to one who listens, for as long as he does."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator

import pytest
from aiohttp import ClientResponse
from aiohttp.test_utils import TestClient, TestServer

from router.admin import api, recording
from router.core.trace import LeftOut, Trace
from tests.admin.test_api import BEARER, TOKEN, Client, Port
from tests.rig import until

TRACE = Trace(1.0, "m", [901, 902], 903, 1_100, None, 275, 256, 8)


@pytest.fixture
def port() -> Port:
    return Port()


@pytest.fixture
async def client(port: Port) -> AsyncIterator[Client]:
    async with TestClient(TestServer(api.make(port.admin()))) as client:
        yield client


async def begun(client: Client) -> ClientResponse:
    response = await client.post("/record", headers=BEARER)
    assert (response.status, response.content_type) == (200, "application/jsonl")
    return response


async def standing(client: Client) -> object:
    async with client.get("/recording") as response:
        return await response.json()


def take(port: Port, count: int = 1) -> None:
    assert port.recording is not None
    port.recording.take([TRACE] * count, {LeftOut.NOT_ANSWERED: 1})


async def test_requests_come_as_they_end_and_how_it_stands_can_be_asked(client: Client, port: Port) -> None:
    assert await standing(client) == {"running": False}
    response = await begun(client)
    take(port, 2)
    lines = [json.loads(await response.content.readline()) for _ in range(2)]
    assert [line["hash_ids"] for line in lines] == [[0, 1, 2], [0, 1, 2]]
    assert await standing(client) == {
        "running": True, "recorded": 2, "dropped": 0, "forgotten_blocks": 0,
        "left_out": {"earlier": 0, "no_prompt": 0, "not_answered": 1},
    }  # fmt: skip
    response.close()
    await until(lambda: port.recording is None or port.recording.ended)


async def test_without_traffic_there_is_a_sign_of_life(
    client: Client, port: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "BEAT", 0.01)
    response = await begun(client)
    assert [await response.content.readline() for _ in range(3)] == [b"\n"] * 3
    response.close()


async def test_who_leaves_without_traffic_is_noticed(
    client: Client, port: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "BEAT", 0.01)
    (await begun(client)).close()
    await until(lambda: port.recording is not None and port.recording.ended)
    (await begun(client)).close()


async def test_two_at_once_are_one_too_many(client: Client) -> None:
    response = await begun(client)
    async with client.post("/record", headers=BEARER) as second:
        assert second.status == 409
        assert "somebody records already" in (await second.json())["error"]["message"]
    response.close()


async def test_the_routers_end_comes_after_the_last_line(client: Client, port: Port) -> None:
    response = await begun(client)
    assert port.recording is not None
    take(port)
    port.recording.end()
    assert (await response.read()).count(b"\n") == 1


async def test_who_reads_nothing_is_cut_off_and_costs_a_bounded_buffer(
    client: Client, port: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "STALLED", 0.2)
    monkeypatch.setattr(recording, "MAX_WAITING", 1 << 16)
    with socket.create_connection((client.host, client.port or 0)) as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        line.sendall(f"POST /record HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode())
        await until(lambda: port.recording is not None)
        found = port.recording
        assert found is not None

        def fed() -> bool:
            if not found.ended:
                found.take([TRACE] * 1_000, {})
            return found.ended

        await until(fed)
        assert found.dropped > 0
        assert found._bytes < 1 << 18
    async with asyncio.timeout(5):
        (await begun(client)).close()
