"""A client's connection: how long it stays, what is refused and how, and what one client cannot do to the router."""

import asyncio
import re
from pathlib import Path

import pytest

from router.admin.tally import REJECTED
from router.proxy import server
from router.proxy.bounds import Late
from tests.browser import asked, chat, connected, get, post
from tests.rig import scripted, until
from tests.scripted import Call, ScriptedReplica, hang, whole


async def test_a_connection_carries_one_request_after_the_other() -> None:
    async with scripted(whole(b"ok")) as (rig, [replica]), connected(rig) as client:
        for _ in range(3):
            assert (await client.asks(chat())).body == b"ok"
            assert (await client.asks(get("/health"), "GET")).status == 200
        assert len(rig.worker.clients) == 1
        probes = 1
        assert replica.accepted <= 1 + probes


@pytest.mark.parametrize(
    "request_",
    [get("/health", "Connection: close"), b"GET /health HTTP/1.0\r\n\r\n", chat("hello", "Connection: close")],
    ids=["own answer", "HTTP/1.0", "relayed"],
)
async def test_a_client_that_wants_its_connection_closed_gets_that(request_: bytes) -> None:
    async with scripted(whole()) as (rig, _), connected(rig) as client:
        answer = await client.asks(request_)
        assert (answer.status, answer["connection"]) == (200, "close")
        assert await client.closed()


async def test_requests_sent_ahead_are_answered_in_their_order() -> None:
    async with scripted(whole(b"relayed")) as (rig, _), connected(rig) as client:
        await client.send((get("/health") + chat() + get("/v1/models")) * 20)
        got = [await client.answer() for _ in range(60)]
        assert [answer.status for answer in got] == [200] * 60
        assert [answer.body[:7] for answer in got[1::3]] == [b"relayed"] * 20


async def test_a_client_that_sends_ahead_for_ever_and_reads_nothing_costs_a_bounded_buffer() -> None:
    """Each answer is whole at once, so no replica is held back: only not beginning the next one helps."""
    asked_for = 1_000
    many = [f"model-{number}" for number in range(1_000)]
    async with scripted(ScriptedReplica(whole(), many)) as (rig, _), connected(rig, buffer=4096) as client:
        await client.send(get("/v1/models") * asked_for)
        await until(lambda: rig.records)
        seen = 0
        while seen < len(rig.records):  # Until it has come to a stop, by itself or at the last request.
            seen = len(rig.records)
            await asyncio.sleep(0.2)
        connection = rig.client
        assert connection._transport.get_write_buffer_size() < 1 << 20
        answers = [await client.answer() for _ in range(asked_for)]
        assert {answer.status for answer in answers} == {200}


async def test_what_a_client_sends_ahead_of_a_long_answer_is_read_up_to_a_bound() -> None:
    go_on = asyncio.Event()

    async def script(call: Call) -> None:
        await go_on.wait()
        await whole(b"ok")(call)

    async with scripted(script) as (rig, [replica]), connected(rig) as client:
        await client.send(chat())
        await until(lambda: replica.calls)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.send_for_ever(get("/health") * 1_000), 0.5)
        connection = rig.client
        assert 0 < connection._ahead_size < server.READ_AHEAD + (1 << 20)
        go_on.set()
        assert (await client.answer()).body == b"ok"
        assert [(await client.answer()).status for _ in range(3_000)] == [200] * 3_000


async def test_a_client_may_ask_before_it_sends_a_body() -> None:
    async with scripted(whole(b"ok")) as (rig, [replica]), connected(rig) as client:
        head, _, body = post("/v1/anything", b"x" * 100, "Expect: 100-continue").partition(b"\r\n\r\n")
        await client.send(head + b"\r\n\r\n")
        assert await client.read() == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert (await client.asks(body)).body == b"ok"
        assert replica.calls[0].field("expect") is None


BAD = {
    "no host": (b"GET / HTTP/1.1\r\n\r\n", 400),
    "no http": (b"\x16\x03\x01\x00\xa1\x01\x00\x00\x9d\x03\x03", 400),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    "CONNECT": (get("a:1", method="CONNECT"), 501),
    "smuggling": (post("/v1/anything", b"x", "Transfer-Encoding: chunked"), 400),
    "endless head": (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 70_000, 431),
}


@pytest.mark.parametrize(("data", "status"), BAD.values(), ids=BAD)
async def test_what_is_no_request_is_refused_and_the_connection_closes(data: bytes, status: int) -> None:
    async with scripted(whole()) as (rig, [replica]), connected(rig) as client:
        answer = await client.asks(data)
        code = "too_large" if status == 431 else "bad_request"
        assert (answer.status, answer.code, answer["connection"]) == (status, code, "close")
        assert await client.closed()
        assert replica.calls == []
        assert (rig.record.status, rig.record.rejected) == (status, code)


async def test_a_body_over_the_limit_is_refused_while_it_is_sent() -> None:
    """The client goes on writing what it has, as most do; a reset before it reads would take the answer from it."""
    async with scripted(whole(), limits={"body": "1MiB"}) as (rig, [replica]):
        for request in (
            post("/v1/anything", b"x" * (4 << 20)),
            b"POST /v1/anything HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n400000\r\n" + b"x" * (4 << 20),
        ):
            answer = await asked(rig, request)
            assert (answer.status, answer.code, rig.record.rejected) == (413, "too_large", "too_large")
            assert answer["connection"] == "close"
        assert replica.calls == []
        assert (await asked(rig, post("/v1/anything", b"x" * (1 << 20)))).status == 200


async def test_many_times_the_limit_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "LINGER_SECONDS", 0.1)
    async with scripted(whole(), limits={"body": "64KiB"}) as (rig, _), connected(rig) as client:
        await client.send(b"POST /v1/anything HTTP/1.1\r\nHost: a\r\nContent-Length: 100000000000\r\n\r\n")
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            await client.send_for_ever(b"x" * (1 << 20))


# Stopping.


async def test_a_stop_lets_answers_end_and_closes_idle_connections_at_once() -> None:
    go_on = asyncio.Event()

    async def script(call: Call) -> None:
        await call.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n")
        await go_on.wait()
        await call.send(b"3\r\ntwo\r\n0\r\n\r\n")

    async with scripted(script) as (rig, _), connected(rig) as idle, connected(rig) as busy:
        await idle.asks(get("/health"), "GET")
        await busy.send(chat(stream=True))
        data = b""
        while b"one" not in data:
            data += await busy.read()
        stop = rig.stop()
        assert await idle.closed()
        assert await rig.refuses()
        go_on.set()
        while more := await busy.read():
            data += more
        assert data.endswith(b"two\r\n0\r\n\r\n")
        await stop


async def test_a_stop_ends_what_does_not_end_in_time() -> None:
    async with scripted(hang, drain={"timeout": "50ms"}) as (rig, [replica]), connected(rig) as client:
        await client.send(chat())
        await until(lambda: replica.calls)
        await rig.stop()
        await asyncio.wait_for(replica.calls[0].gone.wait(), 2.0)
        assert (await client.answer()).status == 503
        assert await client.closed()


async def test_requests_sent_ahead_of_a_stop_are_answered() -> None:
    """They had arrived; only what comes later is for another router."""
    go_on = asyncio.Event()

    async def script(call: Call) -> None:
        await go_on.wait()
        await whole(b"ok")(call)

    async with scripted(script) as (rig, [replica]), connected(rig) as client:
        await client.send(chat() * 5)
        await until(lambda: replica.calls)
        stop = rig.stop()
        await asyncio.sleep(0)  # It begins.
        assert await rig.refuses()
        go_on.set()
        answers = [await client.answer() for _ in range(5)]
        assert [answer.body for answer in answers] == [b"ok"] * 5
        await stop


def test_the_manual_names_every_error() -> None:
    manual = (Path(__file__).parents[2] / "docs" / "http.md").read_text(encoding="utf-8")
    table = manual.partition("## The router's own errors")[2].partition("\n## ")[0]
    cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    named = [code for cell in cells for code in re.findall("`(.*?)`", cell)]
    lost = {"replica_unreachable", "replica_lost", "retry_budget_exhausted"}
    ours = {*REJECTED, "model_not_found", *(late.value for late in Late)} - {"unknown_model"}
    assert sorted(named) == sorted(ours | lost)
