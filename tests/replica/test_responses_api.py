"""The Responses API of a simulated replica, over real sockets: events, typed parsing, stored responses, background."""

import asyncio
import json
from collections.abc import Callable

import aiohttp
import openai
import pytest
from openai.types.responses import Response, ResponseCompletedEvent, ResponseCreatedEvent, ResponseTextDeltaEvent

from replica.faults import Fault
from replica.server import SimulatedReplica
from replica.settings import ReplicaSettings

RESPONSES = "/v1/responses"
HELLO: dict[str, object] = {
    "model": "sim",
    "instructions": "You are a careful assistant. " * 40,
    "input": "hello",
    "max_output_tokens": 5,
    "ignore_eos": True,
}
Event = tuple[str, dict[str, object]]


def parse(text: str) -> list[Event]:
    """(`event:`, decoded `data:`) of each event of a stream."""
    *found, rest = text.split("\n\n")
    assert rest == ""
    events = []
    for lines in found:
        name, data = lines.split("\n")
        assert name.startswith("event: ")
        assert data.startswith("data: ")
        events.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return events


async def create(client: aiohttp.ClientSession, **fields: object) -> dict[str, object]:
    async with client.post(RESPONSES, json=HELLO | fields) as response:
        assert response.status == 200, await response.text()
        answer = await response.json()
    assert isinstance(answer, dict)
    return answer


async def failure(response: aiohttp.ClientResponse) -> tuple[int, object, object, object]:
    """(status, code, type, param) of vLLM's error shape."""
    error = (await response.json())["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return response.status, error["code"], error["type"], error["param"]


def cached(response: dict[str, object]) -> int:
    usage = response["usage"]
    assert isinstance(usage, dict)
    found = usage["input_tokens_details"]["cached_tokens"]
    assert isinstance(found, int)
    return found


def prompt(response: dict[str, object]) -> int:
    usage = response["usage"]
    assert isinstance(usage, dict)
    assert isinstance(usage["input_tokens"], int)
    return usage["input_tokens"]


async def until(true: Callable[[], bool]) -> None:
    """Wait for what a server's task is about to make true; fail after 5 s."""
    async with asyncio.timeout(5):
        while not true():  # noqa: ASYNC110 - the other task is a server's; it has no event for tests.
            await asyncio.sleep(0.002)


async def test_a_stream_has_vllms_events_in_their_order_and_usage_in_the_last(client: aiohttp.ClientSession) -> None:
    async with client.post(RESPONSES, json=HELLO | {"stream": True}) as response:
        assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        text = await response.text()
    events = parse(text)
    assert [name for name, _ in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        *["response.output_text.delta"] * 5,
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [data["type"] for _, data in events] == [name for name, _ in events]
    assert [data["sequence_number"] for _, data in events] == list(range(len(events)))
    assert all(list(data)[-1] == "type" for _, data in events), "vLLM writes the type last"
    first, last = events[0][1]["response"], events[-1][1]["response"]
    assert isinstance(first, dict)
    assert isinstance(last, dict)
    assert (first["status"], first["usage"], first["output"]) == ("in_progress", None, [])
    assert (last["status"], last["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    usage = last["usage"]
    assert list(usage) == [
        "input_tokens", "input_tokens_details", "output_tokens", "output_tokens_details", "total_tokens",
    ]  # fmt: skip
    assert (usage["output_tokens"], usage["total_tokens"]) == (5, usage["input_tokens"] + 5)
    assert usage["input_tokens_details"]["cached_tokens"] == 0
    assert "[DONE]" not in text


async def test_usage_stands_within_the_last_thousand_bytes_after_the_echo_of_the_tools(
    client: aiohttp.ClientSession,
) -> None:
    tool = {"type": "function", "name": "f", "parameters": {"usage": {"type": "object"}}}
    for stream in (False, True):
        async with client.post(RESPONSES, json=HELLO | {"stream": stream, "tools": [tool]}) as response:
            raw = await response.read()
        assert raw.rfind(b'"usage":{"input_tokens":') == raw.rfind(b'"usage":') > len(raw) - 1_000
        assert b'"usage":{"type"' in raw


async def test_created_and_in_progress_come_before_the_engine_has_made_a_token() -> None:
    crawling = ReplicaSettings(speed=0.001)  # A step takes 6 s.
    async with (
        SimulatedReplica(crawling) as replica,
        aiohttp.ClientSession(replica.url) as client,
        client.post(RESPONSES, json=HELLO | {"stream": True}) as response,
    ):
        text = b""
        while text.count(b"\n\n") < 2:
            text += await asyncio.wait_for(response.content.readany(), 5)
        assert [name for name, _ in parse(text.decode())] == ["response.created", "response.in_progress"]
        assert replica.engine.running + replica.engine.waiting == 1
        assert replica.driver.in_flight == 1
        response.close()
        await until(lambda: replica.driver.in_flight == 0)


async def test_the_official_client_parses_stream_and_whole(replica: SimulatedReplica) -> None:
    async with openai.AsyncOpenAI(base_url=f"{replica.url}/v1", api_key="none", max_retries=0, timeout=10) as api:
        whole = await api.responses.create(model="sim", input="hello", instructions="be brief")
        stream = await api.responses.create(model="sim", input="hello", instructions="be brief", stream=True)
        events = [event async for event in stream]
        stored = await api.responses.retrieve(whole.id)
        with pytest.raises(openai.NotFoundError, match="not found"):
            await api.responses.retrieve("resp_0")
        with pytest.raises(openai.BadRequestError, match="synchronous"):
            await api.responses.cancel(whole.id)
    assert isinstance(whole, Response)
    assert stored == whole
    created, completed = events[0], events[-1]
    assert isinstance(created, ResponseCreatedEvent)
    assert isinstance(completed, ResponseCompletedEvent)
    said = "".join(event.delta for event in events if isinstance(event, ResponseTextDeltaEvent))
    assert said == whole.output_text == completed.response.output_text
    assert completed.response.status == whole.status == "completed"
    assert completed.response.usage is not None
    assert whole.usage is not None
    assert completed.response.usage.input_tokens == whole.usage.input_tokens
    assert completed.response.usage.input_tokens_details.cached_tokens == (whole.usage.input_tokens - 1) // 16 * 16


async def test_the_official_client_streams_with_its_accumulator(replica: SimulatedReplica) -> None:
    async with (
        openai.AsyncOpenAI(base_url=f"{replica.url}/v1", api_key="none", max_retries=0, timeout=10) as api,
        api.responses.stream(model="sim", input="hello") as stream,
    ):
        final = await stream.get_final_response()
    assert final.output_text
    assert final.id.startswith("resp_")


async def test_the_next_turn_continues_a_stored_response_and_its_cache(client: aiohttp.ClientSession) -> None:
    first = await create(client, max_output_tokens=100)
    second = await create(client, previous_response_id=first["id"], input="more")
    usage = first["usage"]
    assert isinstance(usage, dict)
    assert cached(second) == (usage["total_tokens"] - 1) // 16 * 16
    third = await create(client, previous_response_id=second["id"], input="and more")
    assert prompt(third) > prompt(second) > prompt(first)
    bare = await create(client, previous_response_id=first["id"], input="more", instructions=None)
    assert prompt(bare) < prompt(second), "instructions do not carry over"


async def test_a_response_can_be_continued_as_soon_as_its_stream_says_completed(client: aiohttp.ClientSession) -> None:
    async with client.post(RESPONSES, json=HELLO | {"stream": True}) as response:
        async for line in response.content:
            if line.startswith(b'data: {"response":{"id":"') and b'"type":"response.completed"' in line:
                break
        response_id = json.loads(line.removeprefix(b"data: "))["response"]["id"]
    assert cached(await create(client, previous_response_id=response_id, input="more")) > 0


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", f"{RESPONSES}/resp_0", None),
        ("POST", f"{RESPONSES}/resp_0/cancel", None),
        ("POST", RESPONSES, {"previous_response_id": "resp_0", "input": "x"}),
    ],
)
async def test_an_unknown_response_is_404_in_vllms_shape(
    client: aiohttp.ClientSession, method: str, path: str, body: dict[str, object] | None
) -> None:
    async with client.request(method, path, json=body) as response:
        assert await failure(response) == (404, 404, "invalid_request_error", "response_id")


async def test_a_response_that_is_not_to_be_stored_is_not(client: aiohttp.ClientSession) -> None:
    answer = await create(client, store=False)
    async with client.get(f"{RESPONSES}/{answer['id']}") as response:
        assert response.status == 404


async def test_the_store_forgets_the_oldest_and_with_no_room_it_stores_nothing() -> None:
    little = ReplicaSettings(speed=100, keep_responses=2)
    async with SimulatedReplica(little) as replica, aiohttp.ClientSession(replica.url) as client:
        made = [(await create(client))["id"] for _ in range(3)]
        found = [(await client.get(f"{RESPONSES}/{response_id}")).status for response_id in made]
    assert len(set(made)) == 3
    assert found == [404, 200, 200]
    none = ReplicaSettings(speed=100, keep_responses=0)
    async with SimulatedReplica(none) as replica, aiohttp.ClientSession(replica.url) as client:
        answer = await create(client)
        assert (await client.get(f"{RESPONSES}/{answer['id']}")).status == 404
        async with client.post(RESPONSES, json=HELLO | {"background": True}) as response:
            assert await failure(response) == (400, 400, "invalid_request_error", "background")


async def test_a_response_in_the_background_is_queued_then_completed(
    client: aiohttp.ClientSession, replica: SimulatedReplica
) -> None:
    queued = await create(client, background=True)
    assert (queued["status"], queued["usage"], queued["output"]) == ("queued", None, [])
    await until(lambda: replica.driver.in_flight == 0 and replica.driver.endings["length"] == 1)
    async with client.get(f"{RESPONSES}/{queued['id']}") as response:
        finished = await response.json()
    assert (finished["status"], finished["usage"]["output_tokens"]) == ("incomplete", 5)
    async with client.post(f"{RESPONSES}/{queued['id']}/cancel") as response:
        assert response.status == 400


async def test_cancelling_a_response_in_the_background_aborts_the_engine() -> None:
    async with SimulatedReplica() as replica, aiohttp.ClientSession(replica.url) as client:
        queued = await create(client, background=True, max_output_tokens=3_000)
        async with client.post(f"{RESPONSES}/{queued['id']}/cancel") as response:
            assert (await response.json())["status"] == "cancelled"
        await until(lambda: not replica.engine.busy)
        async with client.get(f"{RESPONSES}/{queued['id']}") as response:
            assert (await response.json())["status"] == "cancelled"
        assert replica.driver.endings == {"abort": 1}
        await create(client, background=True, max_output_tokens=3_000)
    assert replica.driver.in_flight == 0, "a replica that stops takes its background along"


async def test_a_request_may_choose_its_id(client: aiohttp.ClientSession) -> None:
    assert (await create(client, request_id="resp_mine"))["id"] == "resp_mine"


@pytest.mark.parametrize(
    "wrong",
    [
        {"input": None},
        {"input": []},
        {"input": ["x"]},
        {"input": [{"type": "computer_call"}]},
        {"instructions": 3},
        {"tools": {}, "input": 3},
        {"tools": ["x"]},
        {"max_output_tokens": 0},
    ],
)
async def test_what_cannot_be_asked_is_a_bad_request(client: aiohttp.ClientSession, wrong: dict[str, object]) -> None:
    async with client.post(RESPONSES, json=HELLO | wrong) as response:
        status, _, kind, _ = await failure(response)
    assert (status, kind) == (400, "BadRequestError")


async def test_a_fault_midway_leaves_a_stream_without_its_end(
    client: aiohttp.ClientSession, replica: SimulatedReplica
) -> None:
    replica.fault = Fault.RESET_MIDWAY
    text = bytearray()

    async def read() -> None:
        async with client.post(RESPONSES, json=HELLO | {"stream": True, "max_output_tokens": 100}) as response:
            async for chunk in response.content.iter_any():
                text.extend(chunk)

    with pytest.raises(aiohttp.ClientError):
        await read()
    assert text.startswith(b"event: response.created\n")
    assert b"response.completed" not in text
