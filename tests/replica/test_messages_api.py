"""The Messages API of a simulated replica, over real sockets, and that three APIs render one conversation alike."""

import contextlib
import json

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replica.conversations import chat_of_messages, chat_of_responses
from replica.errors import BadRequestError
from replica.faults import Fault
from replica.openai_requests import Model, parse_chat
from replica.server import SimulatedReplica
from replica.settings import ReplicaSettings
from replica.tokens import Tokenizer

MESSAGES = "/v1/messages"
COUNT = "/v1/messages/count_tokens"
SYSTEM = "You are a careful assistant. " * 40
HELLO: dict[str, object] = {
    "model": "sim",
    "system": SYSTEM,
    "messages": [{"role": "user", "content": "hello"}],
    "max_tokens": 4,
    "ignore_eos": True,
}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text('ab"\\\ud800', max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=3),
    max_leaves=8,
)
BLOCK = st.fixed_dictionaries(
    {
        "type": st.sampled_from(
            ["text", "image", "tool_use", "tool_result", "thinking", "input_text", "input_image", "function_call"]
        )
        | JSON
    },
    optional=dict.fromkeys(("text", "source", "id", "name", "input", "content", "tool_use_id", "image_url"), JSON),
)
MESSAGE = st.fixed_dictionaries(
    {},
    optional={
        "role": st.sampled_from(["user", "assistant", "system", "ctx"]) | JSON,
        "content": st.lists(BLOCK, max_size=3) | JSON,
        "type": st.sampled_from(["message", "function_call", "function_call_output", "reasoning"]) | JSON,
        "arguments": JSON,
        "output": st.lists(BLOCK, max_size=2) | JSON,
        "call_id": JSON,
        "tool_calls": JSON,
    },
)
BODY = st.fixed_dictionaries(
    {},
    optional={
        "messages": st.lists(MESSAGE, max_size=3) | JSON,
        "input": st.lists(MESSAGE, max_size=3) | JSON,
        "system": st.lists(BLOCK, max_size=2) | JSON,
        "tools": st.lists(BLOCK, max_size=2) | JSON,
        **dict.fromkeys(("instructions", "max_tokens", "max_output_tokens", "reasoning", "output_config"), JSON),
    },
)


async def whole(client: aiohttp.ClientSession, path: str, body: dict[str, object]) -> dict[str, object]:
    async with client.post(path, json=body) as response:
        assert response.status == 200, await response.text()
        answer = await response.json()
    assert isinstance(answer, dict)
    return answer


async def test_a_stream_is_byte_for_byte_what_vllm_writes(client: aiohttp.ClientSession) -> None:
    headers = {"X-Request-Id": "abc"}
    for cached in (False, True):
        async with client.post(MESSAGES, json=HELLO | {"stream": True}, headers=headers) as response:
            assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
            *events, rest = (await response.text()).split("\n\n")
        assert rest == ""
        prompt = (await whole(client, COUNT, HELLO))["input_tokens"]
        assert isinstance(prompt, int)
        assert events[:2] == [
            'event: message_start\ndata: {"type":"message_start","message":{"id":"chatcmpl-abc","type":"message",'
            '"role":"assistant","content":[],"model":"sim","stop_reason":null,"stop_sequence":null,'
            f'"usage":{{"input_tokens":{prompt},"output_tokens":0}}}}}}',
            'event: content_block_start\ndata: {"type":"content_block_start",'
            '"content_block":{"type":"text","text":""},"index":0}',
        ]
        head = 'event: content_block_delta\ndata: {"type":"content_block_delta","delta":{"type":"text_delta","text":"'
        assert len(events[2:-3]) == 4
        assert all(event.startswith(head) and event.endswith('"},"index":0}') for event in events[2:-3])
        hit = (prompt - 1) // 16 * 16 if cached else 0
        assert events[-3:] == [
            'event: content_block_stop\ndata: {"type":"content_block_stop","index":0}',
            'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"max_tokens"},"usage":'
            f'{{"input_tokens":{prompt - hit},"output_tokens":4,"cache_creation_input_tokens":0,'
            f'"cache_read_input_tokens":{hit}}}}}',
            'event: message_stop\ndata: {"type":"message_stop"}',
        ]


async def test_a_whole_answer_says_what_the_stream_says(client: aiohttp.ClientSession) -> None:
    body = HELLO | {"max_tokens": 2_000, "ignore_eos": False}
    answer = await whole(client, MESSAGES, body)
    async with client.post(MESSAGES, json=body | {"stream": True}) as response:
        found = [json.loads(line[6:]) for line in (await response.text()).splitlines() if line.startswith("data: ")]
    said = "".join(event["delta"]["text"] for event in found if event["type"] == "content_block_delta")
    assert list(answer) == ["id", "type", "role", "content", "model", "stop_reason", "usage"]
    assert answer["content"] == [{"type": "text", "text": said}]
    assert answer["stop_reason"] == "end_turn"
    usage = answer["usage"]
    assert isinstance(usage, dict)
    assert usage["output_tokens"] == len([event for event in found if event["type"] == "content_block_delta"])


async def test_tokens_are_counted_without_generating(client: aiohttp.ClientSession, replica: SimulatedReplica) -> None:
    counted = await whole(client, COUNT, {key: HELLO[key] for key in ("model", "system", "messages")})
    assert counted == {
        "input_tokens": counted["input_tokens"],
        "context_management": {"original_input_tokens": counted["input_tokens"]},
    }
    assert replica.engine.counters.prompt_tokens == 0
    usage = (await whole(client, MESSAGES, HELLO))["usage"]
    assert isinstance(usage, dict)
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == counted["input_tokens"]


@pytest.mark.parametrize("path", [MESSAGES, COUNT])
@pytest.mark.parametrize(
    ("body", "status", "kind"),
    [
        (b"{", 400, "BadRequestError"),
        (b"[]", 400, "BadRequestError"),
        (b'{"max_tokens": 1}', 400, "BadRequestError"),
        (b'{"max_tokens": 1, "messages": [{"role": "robot", "content": "x"}]}', 400, "BadRequestError"),
        (b'{"max_tokens": 1, "messages": [{"role": "user", "content": 3}]}', 400, "BadRequestError"),
        (b'{"max_tokens": 1, "messages": [{"role": "user", "content": "x"}], "model": "o"}', 404, "NotFoundError"),
    ],
)
async def test_refusals_have_the_shape_of_the_messages_api(
    client: aiohttp.ClientSession, path: str, body: bytes, status: int, kind: str
) -> None:
    async with client.post(path, data=body) as response:
        answer = await response.json()
    assert response.status == status
    assert answer == {"type": "error", "error": {"type": kind, "message": answer["error"]["message"]}}


async def test_a_message_without_max_tokens_is_refused(client: aiohttp.ClientSession) -> None:
    async with client.post(MESSAGES, json=HELLO | {"max_tokens": None}) as response:
        assert (response.status, (await response.json())["type"]) == (400, "error")


@pytest.mark.parametrize(("fault", "status"), [(Fault.FULL, 503), (Fault.FAST_500, 500)])
async def test_faults_speak_the_shape_of_the_messages_api(
    client: aiohttp.ClientSession, replica: SimulatedReplica, fault: Fault, status: int
) -> None:
    replica.fault = fault
    async with client.post(MESSAGES, json=HELLO) as response:
        assert response.status == status
        assert response.headers.get("Retry-After") == ("1" if fault is Fault.FULL else None)
        assert (await response.json())["type"] == "error"


async def test_without_prompt_tokens_details_the_cache_is_not_told_but_by_responses() -> None:
    settings = ReplicaSettings(speed=100, prompt_tokens_details=False)
    async with SimulatedReplica(settings) as replica, aiohttp.ClientSession(replica.url) as client:
        await whole(client, MESSAGES, HELLO)
        message = await whole(client, MESSAGES, HELLO)
        chat = await whole(client, "/v1/chat/completions", CHAT | {"max_tokens": 4})
        options = {"stream": True, "stream_options": {"include_usage": True}}
        async with client.post("/v1/chat/completions", json=CHAT | {"max_tokens": 4} | options) as response:
            streamed = json.loads((await response.text()).split("\n\n")[-3].removeprefix("data: "))["usage"]
        told = await whole(client, "/v1/responses", RESPONSE | {"max_output_tokens": 4})
    usage = chat["usage"]
    assert isinstance(usage, dict)
    prompt = usage["prompt_tokens"]
    assert message["usage"] == {"input_tokens": prompt, "output_tokens": 4}
    assert usage["prompt_tokens_details"] is None
    assert "prompt_tokens_details" not in streamed
    assert isinstance(told["usage"], dict)
    assert told["usage"]["input_tokens_details"]["cached_tokens"] == (prompt - 1) // 16 * 16


SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
CHAT: dict[str, object] = {
    "messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "hello"}],
    "ignore_eos": True,
}
RESPONSE: dict[str, object] = {"instructions": SYSTEM, "input": "hello", "ignore_eos": True}
MESSAGE_PARTS = HELLO | {
    "system": [{"type": "text", "text": "x-anthropic-billing-header: 17"}, {"type": "text", "text": SYSTEM}],
    "messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}],
}
PIXELS = "data:image/png;base64,AAAA"
TOOL_CHAT: dict[str, object] = {
    "messages": [
        {"role": "system", "content": SYSTEM},
        {
            "role": "user",
            "content": [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": PIXELS}}],
        },
        {
            "role": "assistant",
            "content": "Let me see.",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Bern"}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "sunny " * 100},
        {"role": "user", "content": "and now?"},
    ],
    "tools": [
        {"type": "function", "function": {"name": "weather", "description": "Weather.", "parameters": SCHEMA}},
    ],
}
TOOL_RESPONSE: dict[str, object] = {
    "instructions": SYSTEM,
    "input": [
        {
            "role": "user",
            "content": [{"type": "input_text", "text": "look"}, {"type": "input_image", "image_url": PIXELS}],
        },
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Let me see."}]},
        {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city": "Bern"}'},
        {"type": "function_call_output", "call_id": "c1", "output": "sunny " * 100},
        {"role": "user", "content": "and now?"},
    ],
    "tools": [
        {"type": "web_search"},
        {"type": "function", "name": "weather", "description": "Weather.", "parameters": SCHEMA, "strict": True},
    ],
}
TOOL_MESSAGES: dict[str, object] = {
    "model": "sim",
    "max_tokens": 1,
    "system": SYSTEM,
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "look"},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
            ],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "text", "text": "Let me see."},
                {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Bern"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "sunny " * 100}]},
                {"type": "text", "text": "and now?"},
            ],
        },
    ],
    "tools": [{"name": "weather", "description": "Weather.", "input_schema": SCHEMA}],
}


@pytest.mark.parametrize(
    "asked",
    [
        {"/v1/chat/completions": CHAT, "/v1/responses": RESPONSE, MESSAGES: HELLO},
        {MESSAGES: MESSAGE_PARTS, "/v1/chat/completions": CHAT},
        {"/v1/chat/completions": TOOL_CHAT, "/v1/responses": TOOL_RESPONSE, MESSAGES: TOOL_MESSAGES},
    ],
)
async def test_one_conversation_is_one_prompt_whatever_the_api(
    client: aiohttp.ClientSession, replica: SimulatedReplica, asked: dict[str, dict[str, object]]
) -> None:
    prompts, hits = [], []
    for path, body in asked.items():
        before = replica.engine.counters.prompt_tokens, replica.engine.counters.prefix_hits
        await whole(client, path, body | {"max_tokens": 1, "max_output_tokens": 1})
        prompts.append(replica.engine.counters.prompt_tokens - before[0])
        hits.append(replica.engine.counters.prefix_hits - before[1])
    assert len(set(prompts)) == 1
    assert hits == [0, *[(prompts[0] - 1) // 16 * 16] * (len(asked) - 1)]


async def test_images_in_the_result_of_a_tool_are_part_of_the_prompt(client: aiohttp.ClientSession) -> None:
    def asking(data: str) -> dict[str, object]:
        image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}
        result = {"type": "tool_result", "tool_use_id": "c1", "content": [image]}
        return HELLO | {"messages": [{"role": "user", "content": [result]}]}

    counts = [(await whole(client, COUNT, asking(data)))["input_tokens"] for data in ("AAAA", "BBBB")]
    plain = (await whole(client, COUNT, HELLO))["input_tokens"]
    assert isinstance(plain, int)
    assert counts[0] == counts[1]
    assert isinstance(counts[0], int)
    assert counts[0] > plain + 100


MODEL = Model("sim", (), Tokenizer("sim"), block_size=16, max_model_len=10_000, seed=0)


@given(BODY)
def test_any_object_becomes_a_chat_or_a_bad_request(body: dict[str, object]) -> None:
    body = json.loads(json.dumps(body))
    for convert in (chat_of_responses, chat_of_messages):
        with contextlib.suppress(BadRequestError):
            parse_chat(convert(body), MODEL)
