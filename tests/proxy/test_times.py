"""How long the router waits: for a client that sends slowly or does not read, and for a replica that does not answer.

Times are set so short that a test is quick, and others so long that they cannot be what ends it.
"""

import asyncio
import time
from collections import Counter
from typing import Any

import pytest

from router.core.record import Phase, UpstreamError
from router.core.types import Outcome, State
from router.proxy.bounds import Late, Times, body_over, late
from tests.browser import asked, chat, connected, get, post
from tests.rig import WITHIN, Rig, scripted, until
from tests.scripted import STREAM, Call, chunks, hang, sent, whole

SHORT, LONG = "60ms", "1h"
CALM = {"head": LONG, "body": LONG, "keep_alive": LONG, "first_byte": LONG, "idle": LONG, "request": None}
"""No time that could be over."""

FOREVER = Times(None, None, None, None, None, None)


def only(**times: str) -> dict[str, str | None]:
    return CALM | times


def ended(rig: Rig) -> tuple[Outcome, UpstreamError | None]:
    """How the last request's only send ended."""
    [attempt] = rig.record.attempts
    return attempt.settled.outcome, attempt.error


# Clients that send slowly.


async def drips(rig: Rig, data: bytes, gap: float) -> tuple[int, object, bool]:
    """Send a byte now and then until the router answers: status, code, and whether it closes."""
    async with connected(rig) as client:

        async def drip() -> None:
            for byte in data:
                await client.send(bytes([byte]))
                await asyncio.sleep(gap)

        dripping = asyncio.create_task(drip())
        try:
            answer = await client.answer()
            return answer.status, answer.code, await client.closed()
        finally:
            dripping.cancel()
            await asyncio.gather(dripping, return_exceptions=True)


async def test_a_head_that_drips_is_refused_and_the_connection_closes() -> None:
    async with scripted(whole(), timeouts=only(head=SHORT)) as (rig, [replica]):
        assert await drips(rig, get("/health", "X: " + "x" * 10_000), 0.005) == (408, "slow_client", True)
        assert (rig.record.status, rig.record.rejected, rig.record.left) == (408, "slow_client", None)
        assert replica.calls == []


async def test_a_body_that_drips_is_refused_and_is_held_no_longer() -> None:
    async with scripted(whole(), timeouts=only(body=SHORT)) as (rig, [replica]):
        assert await drips(rig, chat("x" * 10_000), 0.005) == (408, "slow_client", True)
        assert (rig.record.endpoint, rig.record.rejected, rig.worker.proxy.buffered) == ("chat", "slow_client", 0)
        assert replica.calls == []


async def test_an_error_of_a_request_that_is_not_whole_has_the_shape_of_its_api() -> None:
    async with scripted(whole(), timeouts=only(body=SHORT)) as (rig, _), connected(rig) as client:
        answer = await client.asks(post("/v1/messages", b"x" * 1_000)[:-1])
        assert (answer.status, answer.json) == (
            408,
            {
                "type": "error",
                "error": {
                    "type": "invalid_request_error",
                    "message": "the request's body did not arrive in time: timeouts.body",
                },
            },
        )


async def test_a_request_that_waits_behind_another_is_not_slow_for_that() -> None:
    go_on = asyncio.Event()

    async def script(call: Call) -> None:
        await go_on.wait()
        await whole(b"ok")(call)

    times = only(head="500ms", body="500ms", keep_alive="500ms")
    async with scripted(script, timeouts=times) as (rig, [replica]), connected(rig) as client:
        await client.send(chat() + chat()[:-1])
        await until(lambda: replica.calls)
        await asyncio.sleep(0.8)
        go_on.set()
        assert (await client.answer()).body == b"ok"
        await client.send(chat()[-1:])
        assert (await client.answer()).body == b"ok"


async def test_a_connection_without_a_request_closes_without_a_word() -> None:
    async with scripted(whole(), timeouts=only(keep_alive=SHORT)) as (rig, _):
        async with connected(rig) as fresh:
            assert await fresh.closed()
        async with connected(rig) as used:
            assert (await used.asks(get("/health"), "GET")).status == 200
            assert await used.closed()
        assert [record.status for record in rig.records] == [200]


@pytest.mark.parametrize(
    ("waited", "received", "is_over"),
    [(29.0, 0, False), (31.0, 0, True), (31.0, (1 << 20) - 1, True), (31.0, 1 << 20, False), (61.0, 1 << 20, True)],
)
def test_each_mib_begun_of_a_body_has_its_own_time(waited: float, received: int, is_over: bool) -> None:
    assert body_over(30.0, waited, received) is is_over
    assert not body_over(None, waited, received)


async def test_the_time_between_two_requests_begins_when_the_answer_has_been_taken() -> None:
    async with scripted(whole(), timeouts=only(keep_alive="1s")) as (rig, _), connected(rig) as client:
        await client.asks(get("/health"), "GET")
        rig.client.pause_writing()
        await asyncio.sleep(1.1)
        rig.client.resume_writing()
        rig.client.sweep(time.monotonic())
        assert (await client.asks(get("/health"), "GET")).status == 200


# Replicas that do not answer.


async def test_a_replica_without_a_first_byte_in_time_is_a_failure_and_nothing_is_sent_again() -> None:
    async with scripted(hang, hang, timeouts=only(first_byte=SHORT)) as (rig, replicas):
        answer = await asked(rig, chat())
        assert (answer.status, answer.code) == (504, "timeout_first_byte")
        assert ended(rig) == (Outcome.FAILED, UpstreamError.TIMEOUT_FIRST_BYTE)
        [call] = [call for replica in replicas for call in replica.calls]
        await asyncio.wait_for(call.gone.wait(), WITHIN)
        assert sum(replica.generated for replica in replicas) == 1


async def test_a_replica_that_does_not_even_read_the_request_is_timed_the_same() -> None:
    async with scripted(whole(), timeouts=only(first_byte="300ms"), health={"interval": "60s"}) as (rig, [replica]):
        replica.deaf = True
        answer = await asked(rig, post("/v1/anything", b"x" * (8 << 20)))
        assert (answer.status, answer.code) == (504, "timeout_first_byte")
        assert ended(rig) == (Outcome.FAILED, UpstreamError.TIMEOUT_FIRST_BYTE)


async def test_the_client_may_ask_again_over_the_same_connection() -> None:
    async with scripted(hang, timeouts=only(first_byte=SHORT)) as (rig, _), connected(rig) as client:
        assert [(await client.asks(chat())).status for _ in range(3)] == [504] * 3


async def test_time_outs_eject_a_replica_and_requests_go_to_the_other_one() -> None:
    settings: dict[str, Any] = {"timeouts": only(first_byte=SHORT), "routing": {"policy": "round_robin"}}
    async with scripted(hang, whole(b"ok"), **settings) as (rig, [stuck, _]):
        answers = [await asked(rig, chat()) for _ in range(30)]
        assert rig.state("r1") is State.EJECTED
        assert len(stuck.calls) < 10
        assert Counter(answer.status for answer in answers) == {504: len(stuck.calls), 200: 30 - len(stuck.calls)}


ENDS = {
    "openai": (chat(stream=True), b'data: {"error":{"message":"The replica sent nothing more for timeouts.idle."'),
    "anthropic": (
        post("/v1/messages", {"model": "sim", "messages": [], "stream": True}),
        b'event: error\ndata: {"type":"error","error":{"type":"timeout_error","message":"The replica sent nothing more',
    ),
    "responses": (
        post("/v1/responses", {"model": "sim", "input": "hello", "stream": True}),
        b'event: error\ndata: {"type":"error","code":"timeout_idle","message":"The replica sent nothing more',
    ),
}


@pytest.mark.parametrize(("request_", "end"), ENDS.values(), ids=ENDS)
async def test_a_stream_that_stands_still_ends_visibly_in_its_own_format(request_: bytes, end: bytes) -> None:
    first = b"event: response.output_text.delta\ndata: 1\n\n"
    data = STREAM + b"%x\r\n%b\r\n" % (len(first), first)
    async with scripted(sent(data), timeouts=only(idle=SHORT)) as (rig, [replica]):
        answer = await asked(rig, request_)
        assert (answer.status, answer.whole) == (200, False)
        assert answer.body.removeprefix(first).startswith(end)
        assert ended(rig) == (Outcome.FAILED, UpstreamError.TIMEOUT_IDLE)
        await asyncio.wait_for(replica.calls[0].gone.wait(), WITHIN)


async def test_an_answer_of_known_length_that_stands_still_is_cut_short() -> None:
    data = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf "
    async with scripted(sent(data), timeouts=only(idle=SHORT)) as (rig, _):
        answer = await asked(rig, chat())
        assert (answer.whole, answer.body) == (False, b"half ")
        assert ended(rig) == (Outcome.FAILED, UpstreamError.TIMEOUT_IDLE)


async def test_a_stream_that_goes_on_is_not_idle_however_long_it_is() -> None:
    pieces = [b"data: x\n\n"] * 20
    async with scripted(chunks(*pieces, gap=0.03), timeouts=only(idle="200ms", first_byte="200ms")) as (rig, _):
        answer = await asked(rig, chat(stream=True))
        assert (answer.whole, answer.body) == (True, b"".join(pieces))


async def test_a_replica_is_not_blamed_for_a_client_that_does_not_read() -> None:
    async def flood(call: Call) -> None:
        await call.send(STREAM)
        while True:
            await call.send(b"2710\r\n" + b"x" * 10_000 + b"\r\n")

    times = only(idle="300ms")
    async with scripted(flood, timeouts=times) as (rig, [replica]), connected(rig, buffer=4096) as client:
        await client.send(chat(stream=True))
        await until(lambda: rig.records)
        assert (rig.record.status, rig.record.rejected, rig.record.left) == (200, "slow_client", None)
        assert ended(rig) == (Outcome.ABORTED, None)
        await asyncio.wait_for(replica.calls[0].gone.wait(), WITHIN)
        await until(lambda: not rig.worker.clients)


@pytest.mark.parametrize("connection", ["close", "keep-alive"])
async def test_a_client_that_does_not_take_a_whole_answer_does_not_hold_its_connection(connection: str) -> None:
    """The request is done with; what is left of it is in buffers, more than the kernel takes."""
    settings: dict[str, Any] = {"timeouts": only(idle="200ms"), "health": {"interval": "60s", "models_interval": "60s"}}
    async with scripted(whole(), **settings) as (rig, _), connected(rig, buffer=4096) as client:
        rig.worker.fleet.serves("r1", {str(number): {"id": "x" * 8_000} for number in range(1_000)})
        await client.send(get("/v1/models", f"Connection: {connection}"))
        await until(lambda: rig.records)
        assert rig.record.status == 200
        await until(lambda: not rig.worker.clients)


# The request as a whole.


async def test_a_request_that_takes_too_long_ends_before_its_first_byte() -> None:
    async with scripted(hang, timeouts=only(request=SHORT)) as (rig, [replica]):
        answer = await asked(rig, chat())
        assert (answer.status, answer.code, rig.record.rejected) == (504, "timeout_request", "timeout_request")
        assert ended(rig) == (Outcome.ABORTED, None)
        await asyncio.wait_for(replica.calls[0].gone.wait(), WITHIN)


async def test_a_request_that_takes_too_long_ends_in_its_stream() -> None:
    slow = chunks(*[b"data: x\n\n"] * 1_000, gap=0.01)
    async with scripted(slow, timeouts=only(request="200ms")) as (rig, _):
        answer = await asked(rig, chat(stream=True))
        assert (answer.status, answer.whole, b"timeout_request" in answer.body) == (200, False, True)
        assert (rig.record.rejected, ended(rig)) == ("timeout_request", (Outcome.ABORTED, None))


async def test_a_request_that_takes_too_long_ends_in_the_queue() -> None:
    one_by_one = {"max_concurrency": 1}
    async with scripted(hang, routing=one_by_one) as (rig, [replica]), connected(rig) as client:
        await client.send(chat())
        await until(lambda: replica.calls)
        async with connected(rig) as other:
            await other.send(chat())
            await until(lambda: rig.worker.waiting)
            rig.worker.proxy.times = rig.worker.proxy.times._replace(request=0.05)
            late = await other.answer()
        assert (late.status, late.code) == (504, "timeout_request")
        assert (len(replica.calls), len(rig.worker.waiting.depths)) == (1, 0)


# The router's own time.


STOPS: dict[str, Any] = {"drain": {"timeout": "50ms"}}
BREAKS = {
    "/v1/chat/completions": (b'data: {"error":', "server_error"),
    "/v1/completions": (b'data: {"error":', "server_error"),
    "/v1/responses": (b'event: error\ndata: {"type":"error","code":"draining",', "error"),
    "/v1/messages": (b'event: error\ndata: {"type":"error","error":', "overloaded_error"),
}
"""How a stream of each begins its last event, and that error's type."""


@pytest.mark.parametrize("path", BREAKS)
async def test_a_stream_that_a_stop_breaks_off_ends_with_its_apis_error(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    endless = chunks(*[b"data: x\n\n"] * 1_000, gap=0.01)
    async with scripted(endless, **STOPS) as (rig, _), connected(rig) as client:
        await client.send(post(path, {"model": "sim", "prompt": "x", "input": "x", "messages": [], "stream": True}))
        await until(lambda: rig.worker.fleet.replica("r1").requests)
        await rig.stop()
        answer = await client.answer()
        begin, kind = BREAKS[path]
        assert (answer.status, answer.whole) == (200, False)
        assert begin in answer.body
        assert f'"type":"{kind}"'.encode() in answer.body[answer.body.index(begin) :]
        assert (rig.record.rejected, rig.record.left, ended(rig)) == ("draining", None, (Outcome.ABORTED, None))
    assert "1 requests had not ended within drain.timeout and were broken off" in caplog.text


async def test_a_request_that_a_stop_leaves_unanswered_is_refused_with_503_and_may_try_again() -> None:
    async with scripted(hang, **STOPS) as (rig, [replica]), connected(rig) as client:
        await client.send(chat() + chat())  # The second never begins.
        await until(lambda: replica.calls)
        await rig.stop()
        answer = await client.answer()
        assert (answer.status, answer.code, answer["retry-after"], answer["connection"]) == (
            503,
            "draining",
            "1",
            "close",
        )
        assert await client.closed()
        await asyncio.wait_for(replica.calls[0].gone.wait(), WITHIN)
        assert (len(rig.records), rig.record.rejected, rig.record.left) == (1, "draining", None)


async def test_a_request_that_is_not_whole_when_the_router_stops_is_refused() -> None:
    async with scripted(whole(), **STOPS) as (rig, [replica]), connected(rig) as client:
        await client.send(chat("x" * 1_000)[:-1])
        await until(lambda: rig.worker.proxy.buffered)
        stop = rig.stop()
        answer = await client.answer()
        assert (answer.status, answer.code, answer["connection"]) == (503, "draining", "close")
        client.close()
        await stop
        assert replica.calls == []


async def test_a_client_that_does_not_read_does_not_hold_up_a_stop() -> None:
    flood = chunks(*[b"data: x\n\n" * 10_000] * 1_000)
    async with scripted(flood, **STOPS) as (rig, _), connected(rig, buffer=4096) as client:
        await client.send(chat(stream=True))
        await until(lambda: rig.worker.fleet.replica("r1").requests and rig.client._paused)
        await asyncio.wait_for(rig.stop(), WITHIN)
        assert (rig.record.rejected, len(rig.worker.clients)) == ("draining", 0)


@pytest.mark.parametrize("phase", ["first byte", "stream"])
async def test_without_times_nothing_ends(phase: str) -> None:
    script = hang if phase == "first byte" else sent(STREAM + b"3\r\none\r\n")
    off = dict.fromkeys(CALM, None)
    async with scripted(script, timeouts=off) as (rig, [replica]):
        async with connected(rig) as client:
            await client.send(chat(stream=True))
            await until(lambda: replica.calls)
            for _ in range(20):
                rig.client.sweep(1e12)
            assert (rig.records, rig.client._closes) == ([], False)
        await rig.quiet()
        assert rig.record.left in {Phase.WAITING, Phase.STREAMING}


async def test_a_reload_changes_the_times_of_requests_under_way() -> None:
    async with scripted(hang, timeouts=only()) as (rig, [replica]), connected(rig) as client:
        await client.send(chat())
        await until(lambda: replica.calls)
        rig.worker.proxy.times = rig.worker.proxy.times._replace(first_byte=0.05)
        assert (await client.answer()).status == 504


# What is too late, as a table.

TIMES = FOREVER._replace(first_byte=10.0, idle=20.0, request=100.0)
WAITING, READING, STUCK = (True, False, False), (True, True, False), (True, True, True)


@pytest.mark.parametrize(
    ("age", "waited", "phase", "expected"),
    [
        (99.0, 99.0, (False, False, False), None),
        (101.0, 0.0, (False, False, False), Late.REQUEST),
        (10.0, 10.0, WAITING, None),
        (11.0, 11.0, WAITING, Late.FIRST_BYTE),
        (11.0, 11.0, READING, None),
        (21.0, 21.0, READING, Late.IDLE),
        (21.0, 21.0, STUCK, Late.CLIENT),
        (101.0, 21.0, STUCK, Late.REQUEST),
    ],
)
def test_what_is_too_late(age: float, waited: float, phase: tuple[bool, bool, bool], expected: Late | None) -> None:
    assert late(TIMES, age, waited, *phase) is expected
    assert late(FOREVER, age, waited, *phase) is None


@pytest.mark.parametrize(("times", "interval"), [(TIMES, 0.5), (FOREVER, 0.5), (FOREVER._replace(idle=0.2), 0.05)])
def test_the_sweep_comes_four_times_in_the_shortest_time(times: Times, interval: float) -> None:
    assert times.interval == interval
    assert FOREVER._replace(head=1e-6).interval == 0.01
