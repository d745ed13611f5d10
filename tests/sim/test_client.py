"""The load client against a server that streams, drips, refuses, breaks off and lies."""

import asyncio

import msgspec
import pytest
from aiohttp import web

from loadtests import client
from loadtests.answer import Answer, EventData
from loadtests.processes import HOST, free_port
from loadtests.records import Record
from loadtests.workloads import Message, Session, Turn, Workload
from tests.sim.chat_server import DONE, ROLE, WHOLE, Handler, event, serving, streamed, text


def fed(*chunks: bytes) -> Answer:
    """Each chunk one second after the one before."""
    answer = Answer()
    for second, chunk in enumerate(chunks):
        answer.feed(chunk, float(second))
    return answer


def test_events_are_found_however_the_bytes_are_split() -> None:
    stream = b": comment\r\nevent: x\r\ndata: 1\r\n\r\ndata:2\n\n"
    for size in range(1, len(stream) + 1):
        data = EventData()
        pieces = [stream[start : start + size] for start in range(0, len(stream), size)]
        assert [payload for piece in pieces for payload in data.feed(piece)] == [b"1", b"2"]


def test_the_first_token_is_the_first_event_with_text() -> None:
    answer = fed(*WHOLE)
    assert answer.error is None
    assert answer.text == "yes"
    assert answer.first_token_s == 1.0
    assert answer.gaps_s == [1.0]
    assert (answer.prompt_tokens, answer.completion_tokens, answer.cached_tokens) == (30, 2, 16)


def test_an_engine_that_reports_no_details_has_no_cached_tokens() -> None:
    usage = {"prompt_tokens": 30, "completion_tokens": 2, "prompt_tokens_details": None}
    answer = fed(text("yes"), event({"choices": [], "usage": usage}), DONE)
    assert answer.error is None
    assert answer.cached_tokens == 0


@pytest.mark.parametrize(
    ("chunks", "error"),
    [
        (WHOLE[:-1], "cut_short"),
        ([], "cut_short"),
        ([event(ROLE), DONE], "no_content"),
        ([text("yes"), DONE], "no_usage"),
        ([text("yes"), event({"error": {"message": "engine died"}}), DONE], "error_event"),
    ],
)
def test_an_answer_that_is_not_whole_says_why(chunks: list[bytes], error: str) -> None:
    assert fed(*chunks).error == error


def test_an_event_that_is_not_json_raises() -> None:
    with pytest.raises(msgspec.DecodeError):
        fed(b"data: {\n\n")


def session(turns: int, *, remembers: bool = True, think_s: float = 0.0) -> Session:
    asked = tuple(Turn(Message("user", (f"q{number}",)), 5, think_s if number else 0.0) for number in range(turns))
    return Session("s", 0.0, (Message("system", ("be ", "brief")),), asked, remembers)


async def run(url: str, *sessions: Session, seconds: float | None = None, timeout_s: float = 5.0) -> list[Record]:
    target = client.Target(url, "sim", timeout_s)
    ended: list[Record] = []
    records = await client.run(Workload(sessions), target, seconds=seconds, on_record=ended.append)
    assert sorted(ended, key=lambda record: record.sent_s) == records
    return records


async def failure(handler: Handler, timeout_s: float = 5.0) -> Record:
    async with serving(handler) as url:
        [record] = await run(url, session(1), timeout_s=timeout_s)
    return record


async def test_a_turn_carries_the_whole_chat_with_the_answers_that_were_really_given() -> None:
    bodies = []

    async def handler(request: web.Request) -> web.StreamResponse:
        bodies.append(await request.json())
        return await streamed(request, *WHOLE)

    async with serving(handler) as url:
        first, second = await run(url, session(2))
    assert [(message["role"], message["content"]) for message in bodies[1]["messages"]] == [
        ("system", "be brief"),
        ("user", "q0"),
        ("assistant", "yes"),
        ("user", "q1"),
    ]
    assert bodies[0]["stream_options"] == {"include_usage": True}
    assert (bodies[0]["max_tokens"], bodies[0]["model"], bodies[0]["stream"]) == (5, "sim", True)
    assert (first.replica, first.answer, first.cached_tokens, first.error) == ("r7", "yes", 16, None)
    assert second.scheduled_s == first.end_s
    assert first.scheduled_s <= first.sent_s < (first.first_token_s or 0) <= first.end_s


async def test_a_session_without_memory_sends_each_prompt_alone() -> None:
    sent = []

    async def handler(request: web.Request) -> web.StreamResponse:
        sent.append([message["content"] for message in (await request.json())["messages"]])
        return await streamed(request, *WHOLE)

    async with serving(handler) as url:
        await run(url, session(2, remembers=False))
    assert sent == [["be brief", "q0"], ["be brief", "q1"]]


async def test_a_failed_turn_is_recorded_and_the_session_goes_on_without_it() -> None:
    sent = []

    async def handler(request: web.Request) -> web.StreamResponse:
        sent.append([message["content"] for message in (await request.json())["messages"]])
        return await streamed(request, *WHOLE) if len(sent) == 2 else web.Response(status=503)

    async with serving(handler) as url:
        records = await run(url, session(3))
    assert [record.error for record in records] == ["status_503", None, "status_503"]
    assert sent[1:] == [["be brief", "q1"], ["be brief", "q1", "yes", "q2"]]


async def test_no_turn_starts_after_the_time_is_up() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        return await streamed(request, *WHOLE)

    async with serving(handler) as url:
        records = await run(url, session(3, think_s=60.0), seconds=30.0)
    assert [record.turn for record in records] == [0]


async def test_sessions_run_beside_each_other() -> None:
    arrived = asyncio.Semaphore(0)
    both = asyncio.Event()

    async def handler(request: web.Request) -> web.StreamResponse:
        arrived.release()
        await both.wait()
        return await streamed(request, *WHOLE)

    async def open_the_gate() -> None:
        for _ in range(2):
            await arrived.acquire()
        both.set()

    async with serving(handler) as url:
        records, _ = await asyncio.gather(run(url, session(1), session(1)), open_the_gate())
    assert [record.error for record in records] == [None, None]


async def test_nobody_listening_is_a_connect_failure() -> None:
    [record] = await run(f"http://{HOST}:{free_port()}", session(1))
    assert record.error == "connect"
    assert record.replica is None


async def test_a_stream_that_breaks_off_is_cut_short() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = await streamed(request, text("ye"))
        assert request.transport is not None
        request.transport.close()
        return response

    record = await failure(handler)
    assert record.error == "cut_short"
    assert (record.answer, record.replica) == ("ye", "r7")


async def test_a_connection_closed_before_an_answer_is_a_reset() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    assert (await failure(handler)).error == "reset"


async def test_a_server_that_hangs_is_a_timeout() -> None:
    released = asyncio.Event()

    async def handler(request: web.Request) -> web.StreamResponse:
        await released.wait()
        return web.Response()

    record = await failure(handler, timeout_s=0.1)
    released.set()
    assert record.error == "timeout"
    assert record.first_token_s is None


async def test_an_event_that_is_not_json_is_a_bad_event() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        return await streamed(request, b"data: {\n\n")

    assert (await failure(handler)).error == "bad_event"
