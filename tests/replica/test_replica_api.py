"""What a client sees of a healthy simulated replica, over real sockets: shapes, heads, usage, metrics."""

import asyncio
import json
import struct
from base64 import b64decode

import aiohttp
import openai
import pytest
from openai.types.chat import ChatCompletionUserMessageParam
from prometheus_client.parser import text_string_to_metric_families

from replica.server import SimulatedReplica

SYSTEM = {"role": "system", "content": "You are a careful assistant. " * 40}
HELLO: dict[str, object] = {"model": "sim", "messages": [SYSTEM, {"role": "user", "content": "hello"}]}
CHAT = "/v1/chat/completions"


async def events(response: aiohttp.ClientResponse) -> list[dict[str, object]]:
    """The decoded events of a stream, which must end with [DONE] and nothing after it."""
    *found, done, rest = (await response.text()).split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    return [json.loads(event.removeprefix("data: ")) for event in found]


async def test_a_stream_is_role_then_tokens_then_finish_then_done(client: aiohttp.ClientSession) -> None:
    async with client.post(CHAT, json=HELLO | {"stream": True, "max_tokens": 5, "ignore_eos": True}) as response:
        assert response.status == 200
        assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        assert response.headers["Server"] == "uvicorn"
        chunks = await events(response)
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert list(chunks[0]) == ["id", "object", "created", "model", "choices", "prompt_token_ids"]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]  # type: ignore[attr-defined]
    assert [list(choice["delta"]) for choice in choices] == [["role", "content"], *[["content"]] * 5]
    assert [choice["finish_reason"] for choice in choices] == [None] * 5 + ["length"]
    assert not any("usage" in chunk for chunk in chunks)


async def test_usage_comes_last_in_a_stream_that_asks_for_it(client: aiohttp.ClientSession) -> None:
    body = HELLO | {"stream": True, "max_tokens": 5, "ignore_eos": True, "stream_options": {"include_usage": True}}
    async with client.post(CHAT, json=body) as response:
        *chunks, last = await events(response)
    assert not any("usage" in chunk for chunk in chunks)
    assert last["choices"] == []
    usage = last["usage"]
    assert isinstance(usage, dict)
    assert usage["completion_tokens"] == 5
    assert usage["total_tokens"] == usage["prompt_tokens"] + 5
    assert usage["prompt_tokens_details"] == {"cached_tokens": 0, "created_cache_tokens": 0}


async def test_a_stream_says_what_the_whole_answer_says(client: aiohttp.ClientSession) -> None:
    async with client.post(CHAT, json=HELLO | {"n": 2}) as response:
        whole = await response.json()
    async with client.post(CHAT, json=HELLO | {"n": 2, "stream": True}) as response:
        chunks = await events(response)
    spoken = {0: "", 1: ""}
    for chunk in chunks:
        for choice in chunk["choices"]:  # type: ignore[attr-defined]
            spoken[choice["index"]] += choice["delta"]["content"]
    assert spoken == {choice["index"]: choice["message"]["content"] for choice in whole["choices"]}
    assert len(set(spoken.values())) == 2


async def test_the_second_time_a_prompt_is_cached_but_for_its_last_block(
    client: aiohttp.ClientSession, replica: SimulatedReplica
) -> None:
    usages = []
    for _ in range(2):
        async with client.post(CHAT, json=HELLO | {"max_tokens": 2}) as response:
            usages.append((await response.json())["usage"])
    prompt = usages[0]["prompt_tokens"]
    assert [usage["prompt_tokens_details"]["cached_tokens"] for usage in usages] == [0, (prompt - 1) // 16 * 16]
    async with client.post("/reset_prefix_cache") as response:
        assert response.status == 200
    async with client.post(CHAT, json=HELLO | {"max_tokens": 2}) as response:
        assert (await response.json())["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


async def test_the_next_turn_finds_the_answer_cached(client: aiohttp.ClientSession) -> None:
    async with client.post(CHAT, json=HELLO | {"max_tokens": 200, "ignore_eos": True}) as response:
        first = await response.json()
    turn = [first["choices"][0]["message"] | {"tool_calls": None}, {"role": "user", "content": "more"}]
    messages = [SYSTEM, {"role": "user", "content": "hello"}, *turn]
    async with client.post(CHAT, json={"messages": messages, "max_tokens": 1}) as response:
        second = await response.json()
    cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached == (first["usage"]["total_tokens"] - 1) // 16 * 16


@pytest.mark.parametrize("other", [{"cache_salt": "tenant"}, {"model": "sim-adapter"}])
async def test_a_salt_or_an_adapter_shares_nothing(client: aiohttp.ClientSession, other: dict[str, str]) -> None:
    for body in (HELLO, HELLO | other):
        async with client.post(CHAT, json=body | {"max_tokens": 1}) as response:
            answer = await response.json()
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert answer["model"] == other.get("model", "sim")


@pytest.mark.parametrize(
    ("prompt", "answers"),
    [("one text", 1), (["two", "texts"], 2), ([1, 2, 3, 128_000], 1), ([[1, 2], [3], [4]], 3)],
)
async def test_a_completion_takes_every_form_of_prompt(
    client: aiohttp.ClientSession, prompt: object, answers: int
) -> None:
    body = {"prompt": prompt, "max_tokens": 3, "ignore_eos": True, "n": 2}
    async with client.post("/v1/completions", json=body) as response:
        whole = await response.json()
    async with client.post("/v1/completions", json=body | {"stream": True}) as response:
        chunks = await events(response)
    assert [choice["index"] for choice in whole["choices"]] == list(range(2 * answers))
    assert whole["usage"]["completion_tokens"] == 6 * answers
    spoken = dict.fromkeys(range(2 * answers), "")
    for chunk in chunks:
        for choice in chunk["choices"]:  # type: ignore[attr-defined]
            spoken[choice["index"]] += choice["text"]
    assert spoken == {choice["index"]: choice["text"] for choice in whole["choices"]}


@pytest.mark.parametrize("content", [None, [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {}}]])
async def test_parts_tools_and_tool_messages_are_accepted(client: aiohttp.ClientSession, content: object) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        SYSTEM,
        {"role": "user", "content": content},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "42"},
    ]
    tools = [{"type": "function", "function": {"name": "f"}}]
    async with client.post(CHAT, json={"messages": messages, "tools": tools, "max_tokens": 1}) as response:
        assert response.status == 200


async def test_the_request_id_of_the_client_is_echoed(client: aiohttp.ClientSession) -> None:
    for stream in (False, True):
        body = HELLO | {"max_tokens": 1, "stream": stream}
        async with client.post(CHAT, json=body, headers={"X-Request-Id": "abc-1"}) as response:
            assert response.headers["X-Request-Id"] == "abc-1"
            assert '"id":"chatcmpl-abc-1"' in await response.text()


async def test_bad_requests_get_vllms_error_and_never_a_500(client: aiohttp.ClientSession) -> None:
    bad: dict[bytes, int] = {
        b"": 400,
        b"{": 400,
        b"[]": 400,
        b"\xff\xfe": 400,
        b"[" * 100_000: 400,
        b'{"messages": 3}': 400,
        b'{"prompt": {}}': 400,
        b'{"prompt": "x", "input": "x", "messages": [{"role": "user"}], "model": "other"}': 404,
        json.dumps({"prompt": "x" * 300_000, "input": "x" * 300_000}).encode(): 400,
    }
    for path in (CHAT, "/v1/completions", "/v1/embeddings", "/tokenize", "/detokenize"):
        for body, status in bad.items():
            if path.endswith("tokenize") and (status == 404 or len(body) > 200_000):
                continue
            async with client.post(path, data=body) as response:
                error = (await response.json())["error"]
                assert (response.status, error["code"]) == (status, status), (path, body[:40])
                assert error["type"] == {400: "BadRequestError", 404: "NotFoundError"}[status]
                assert isinstance(error["message"], str)
                assert set(error) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    "field",
    [
        b"X-Request-Id: caf\xe9\t\xff",
        b"Content-Encoding: gzip",
        b"Content-Type: application/json; charset=nope",
        b"Content-Type: ;;=\xff",
        b'Cookie: a="\xff;;=',
        b"Range: bytes=x",
        b"Expect: 100-continue",
        b"Upgrade: h2c",
    ],
)
async def test_an_odd_head_fails_nothing(replica: SimulatedReplica, field: bytes) -> None:
    body = json.dumps(HELLO | {"max_tokens": 1}).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: \xff[\r\nConnection: close\r\n" + field
    reader, writer = await asyncio.open_connection("127.0.0.1", replica.port)
    writer.write(head + b"\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    answer = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    await writer.wait_closed()
    assert answer.startswith((b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 100 Continue\r\n"))


async def test_a_compressed_body_is_a_bad_request_as_behind_uvicorn(client: aiohttp.ClientSession) -> None:
    async with client.post(CHAT, data=b"\x1f\x8b", headers={"Content-Encoding": "gzip"}) as response:
        assert response.status == 400


async def test_the_small_endpoints_answer_as_vllms_do(client: aiohttp.ClientSession) -> None:
    for path in ("/health", "/ping"):
        async with client.get(path) as response:
            assert (response.status, await response.read()) == (200, b"")
    async with client.get("/v1/models") as response:
        cards = (await response.json())["data"]
    assert [(card["id"], card["parent"]) for card in cards] == [("sim", None), ("sim-adapter", "sim")]
    assert cards[0]["max_model_len"] == 32_000
    async with client.get("/version") as response:
        assert list(await response.json()) == ["version"]
    async with client.get("/load") as response:
        assert await response.json() == {"server_load": 0}
    async with client.get("/nowhere") as response:
        assert (response.status, await response.json()) == (404, {"detail": "Not Found"})


async def test_tokenize_counts_what_a_chat_then_reports(client: aiohttp.ClientSession) -> None:
    async with client.post("/tokenize", json=HELLO) as response:
        tokenized = await response.json()
    async with client.post(CHAT, json=HELLO | {"max_tokens": 1}) as response:
        assert (await response.json())["usage"]["prompt_tokens"] == tokenized["count"] == len(tokenized["tokens"])
    async with client.post("/tokenize", json={"prompt": "round trip"}) as response:
        ids = (await response.json())["tokens"]
    async with client.post("/detokenize", json={"tokens": ids}) as response:
        assert await response.json() == {"prompt": "round trip"}


async def test_embeddings_only_prefill(client: aiohttp.ClientSession, replica: SimulatedReplica) -> None:
    async with client.post("/v1/embeddings", json={"input": ["a", "b", "a"]}) as response:
        answer = await response.json()
    vectors = [entry["embedding"] for entry in answer["data"]]
    assert vectors[0] == vectors[2] != vectors[1]
    assert answer["usage"]["completion_tokens"] == 0
    assert replica.engine.counters.generation_tokens == 0
    async with client.post("/v1/embeddings", json={"input": "a", "encoding_format": "base64"}) as response:
        packed = b64decode((await response.json())["data"][0]["embedding"])
    assert list(struct.unpack("<8f", packed)) == pytest.approx(vectors[0])


async def test_metrics_carry_vllms_names_and_the_truth(client: aiohttp.ClientSession) -> None:
    for _ in range(2):
        async with client.post(CHAT, json=HELLO | {"max_tokens": 4, "ignore_eos": True}) as response:
            usage = (await response.json())["usage"]
    async with client.get("/metrics") as response:
        assert response.content_type == "text/plain"
        families = list(text_string_to_metric_families(await response.text()))
    samples = {sample.name: sample for family in families for sample in family.samples}
    prompt, cached = usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]
    expected = {
        "vllm:num_requests_running": 0,
        "vllm:num_requests_waiting": 0,
        "vllm:kv_cache_usage_perc": 0,
        "vllm:prefix_cache_queries_total": 2 * prompt,
        "vllm:prefix_cache_hits_total": cached,
        "vllm:prompt_tokens_total": 2 * prompt,
        "vllm:prompt_tokens_cached_total": cached,
        "vllm:generation_tokens_total": 8,
        "vllm:num_preemptions_total": 0,
    }
    assert {name: samples[name].value for name in expected} == expected
    assert all(samples[name].labels == {"engine": "0", "model_name": "sim"} for name in expected)
    config = samples["vllm:cache_config_info"]
    assert (config.value, config.labels["block_size"], config.labels["num_gpu_blocks"]) == (1, "16", "2000")
    assert samples["process_start_time_seconds"].value > 1e9
    endings = {
        sample.labels["finished_reason"]: sample.value
        for family in families
        for sample in family.samples
        if sample.name == "vllm:request_success_total"
    }
    assert endings == {"stop": 0, "length": 2, "abort": 0, "error": 0}


async def test_requests_are_kept_byte_for_byte_and_bounded(
    client: aiohttp.ClientSession, replica: SimulatedReplica
) -> None:
    raw = b'{ "messages":[{"role":"user","content":"\\u00e9"}],  "max_tokens":1,"unknown":[1e2] }'
    async with client.post(f"{CHAT}?a=%20b", data=raw, headers={"X-Custom": "1"}) as response:
        assert response.status == 200
    seen = replica.requests_seen[-1]
    assert (seen.method, seen.path, seen.body) == ("POST", f"{CHAT}?a=%20b", raw)
    assert (b"X-Custom", b"1") in seen.headers
    for _ in range(10):
        async with client.get("/health") as response:
            await response.read()
    assert len(replica.requests_seen) == 8


async def test_the_official_client_is_served(replica: SimulatedReplica) -> None:
    messages: list[ChatCompletionUserMessageParam] = [{"role": "user", "content": "hello"}]
    async with openai.AsyncOpenAI(base_url=f"{replica.url}/v1", api_key="none", max_retries=0, timeout=10) as api:
        whole = await api.chat.completions.create(model="sim", messages=messages, max_tokens=7)
        stream = await api.chat.completions.create(
            model="sim", messages=messages, max_tokens=7, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        completion = await api.completions.create(model="sim", prompt="hello", max_tokens=3)
        embedding = await api.embeddings.create(model="sim", input="hello")
        models = await api.models.list()
        with pytest.raises(openai.NotFoundError, match="does not exist"):
            await api.completions.create(model="other", prompt="hello")
        with pytest.raises(openai.BadRequestError, match="maximum context length"):
            await api.completions.create(model="sim", prompt="hello", max_tokens=100_000)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage == whole.usage
    assert completion.choices[0].text
    assert len(embedding.data[0].embedding) == 8
    assert [model.id for model in models.data] == ["sim", "sim-adapter"]
