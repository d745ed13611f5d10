"""What a simulated replica offers beside text: scores, transcripts, engine control, older metrics, ledger faults."""

import aiohttp
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from replica.prometheus import MetricNames
from replica.server import SimulatedReplica
from replica.settings import ReplicaSettings

CHAT = "/v1/chat/completions"
HELLO: dict[str, object] = {"messages": [{"role": "user", "content": "hello " * 100}], "max_tokens": 1}
LONG = "the quick brown fox jumps over the lazy dog " * 10


async def cached(client: aiohttp.ClientSession) -> int:
    async with client.post(CHAT, json=HELLO) as response:
        found = (await response.json())["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert isinstance(found, int)
    return found


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank", "/rerank"])
async def test_rerank_sorts_documents_and_shares_the_query(
    client: aiohttp.ClientSession, replica: SimulatedReplica, path: str
) -> None:
    documents = ["one", "two", "three"]
    async with client.post(path, json={"query": LONG, "documents": documents, "top_n": 2}) as response:
        answer = await response.json()
    assert list(answer) == ["id", "model", "usage", "results"]
    scores = [result["relevance_score"] for result in answer["results"]]
    assert len(scores) == 2
    assert scores == sorted(scores, reverse=True)
    for result in answer["results"]:
        assert result["document"] == {"text": documents[result["index"]], "multi_modal": None}
    assert answer["usage"]["total_tokens"] == answer["usage"]["prompt_tokens"] > 300
    counters = replica.engine.counters
    assert counters.generation_tokens == 0
    assert counters.prefix_hits == 2 * (answer["usage"]["prompt_tokens"] // 3 // 16 * 16)


@pytest.mark.parametrize("path", ["/v1/score", "/score"])
@pytest.mark.parametrize("names", [("text_1", "text_2"), ("queries", "documents"), ("data_1", "data_2")])
async def test_score_pairs_one_with_many_and_many_with_many(
    client: aiohttp.ClientSession, path: str, names: tuple[str, str]
) -> None:
    left, right = names
    found = []
    for lefts, rights in (("a", ["x", "y"]), (["a", "a"], ["x", "y"])):
        async with client.post(path, json={left: lefts, right: rights}) as response:
            answer = await response.json()
        assert [(entry["index"], entry["object"]) for entry in answer["data"]] == [(0, "score"), (1, "score")]
        assert answer["usage"]["prompt_tokens_details"] is None
        found.append([entry["score"] for entry in answer["data"]])
    assert found[0] == found[1]


async def test_pooling_and_classify_take_input_or_messages(client: aiohttp.ClientSession) -> None:
    for body in ({"input": ["a", "b"]}, {"messages": HELLO["messages"]}):
        async with client.post("/pooling", json=body) as response:
            pooled = await response.json()
        async with client.post("/classify", json=body) as response:
            classified = await response.json()
        assert {entry["object"] for entry in pooled["data"]} == {"pooling"}
        assert all(len(entry["data"]) == 8 for entry in pooled["data"])
        for entry in classified["data"]:
            assert sum(entry["probs"]) == pytest.approx(1)
            assert entry["label"] == f"LABEL_{entry['probs'].index(max(entry['probs']))}"
            assert entry["num_classes"] == 2


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/rerank", {"documents": ["a"]}),
        ("/v1/rerank", {"query": "a", "documents": []}),
        ("/v1/rerank", {"query": "a", "documents": ["b"], "top_n": "all"}),
        ("/v1/score", {"text_1": "a"}),
        ("/v1/score", {"text_1": ["a", "b"], "text_2": ["c"]}),
        ("/pooling", {}),
        ("/classify", {"input": 3}),
        ("/v1/audio/transcriptions", {"model": "sim"}),
        ("/v1/load_lora_adapter", {"lora_name": "x"}),
    ],
)
async def test_what_these_cannot_read_is_a_bad_request(
    client: aiohttp.ClientSession, path: str, body: dict[str, object]
) -> None:
    async with client.post(path, json=body) as response:
        assert (response.status, (await response.json())["error"]["code"]) == (400, 400)


def form(**fields: str | bytes) -> aiohttp.FormData:
    data = aiohttp.FormData()
    for name, value in fields.items():
        data.add_field(name, value, filename="speech.wav" if isinstance(value, bytes) else None)
    return data


async def test_audio_is_transcribed_from_a_multipart_body(
    client: aiohttp.ClientSession, replica: SimulatedReplica
) -> None:
    audio = bytes(range(256)) * 500 + b"\r\n--\r\n\n"
    texts = []
    others = (audio + b"\r\n", audio.replace(b"\r", b"\n"), audio.replace(b"\x80", b"\x81"))
    for data, model in ((audio, "sim"), (audio, "sim-adapter"), *((other, "sim") for other in others)):
        async with client.post("/v1/audio/transcriptions", data=form(model=model, file=data)) as response:
            answer = await response.json()
        assert answer == {"text": answer["text"], "usage": {"type": "duration", "seconds": 5}}
        texts.append(answer["text"])
    assert texts[0] == texts[1]
    assert len(set(texts)) == 4, "the file is read byte for byte, to its end"
    async with client.post("/v1/audio/transcriptions", data=form(model="other", file=audio)) as response:
        assert response.status == 404
    async with client.post("/v1/audio/transcriptions", data=form(model="sim", music=audio)) as response:
        assert (response.status, (await response.json())["error"]["param"]) == (400, "file")
    async with openai.AsyncOpenAI(base_url=f"{replica.url}/v1", api_key="none", max_retries=0, timeout=10) as api:
        transcript = await api.audio.transcriptions.create(model="sim", file=("speech.wav", audio))
    assert transcript.text == texts[0]


async def test_adapters_come_and_go(client: aiohttp.ClientSession) -> None:
    async def models() -> list[str]:
        async with client.get("/v1/models") as response:
            return [card["id"] for card in (await response.json())["data"]]

    adapter = {"lora_name": "new", "lora_path": "/adapters/new"}
    async with client.post("/v1/load_lora_adapter", json=adapter) as response:
        assert await response.text() == "Success: LoRA adapter 'new' added successfully."
    assert await models() == ["sim", "sim-adapter", "new"]
    async with client.post(CHAT, json=HELLO | {"model": "new"}) as response:
        assert response.status == 200
    async with client.post("/v1/load_lora_adapter", json=adapter) as response:
        assert (response.status, (await response.json())["error"]["type"]) == (400, "InvalidUserInput")
    async with client.post("/v1/load_lora_adapter", json=adapter | {"load_inplace": True}) as response:
        assert response.status == 200
    for status in (200, 404):
        async with client.post("/v1/unload_lora_adapter", json=adapter) as response:
            assert response.status == status
    assert await models() == ["sim", "sim-adapter"]


async def test_engine_control_is_there_to_be_refused_by_a_router(client: aiohttp.ClientSession) -> None:
    states = []
    for path in ("/sleep", "/wake_up"):
        async with client.post(path) as response:
            assert response.status == 200
        async with client.get("/is_sleeping") as response:
            states.append(await response.json())
    assert states == [{"is_sleeping": True}, {"is_sleeping": False}]
    for path in ("/collective_rpc", "/start_profile", "/stop_profile", "/reset_mm_cache", "/reset_encoder_cache"):
        async with client.post(path) as response:
            assert response.status == 200, path


async def test_a_reset_succeeds_only_while_nothing_runs(
    client: aiohttp.ClientSession, replica: SimulatedReplica
) -> None:
    assert await cached(client) == 0
    async with client.post("/reset_prefix_cache") as response:
        assert await response.json() == {"success": True}
    assert await cached(client) == 0
    table = replica.engine.cache.hold([], 1)
    assert table is not None
    async with client.post("/reset_prefix_cache") as response:
        assert await response.json() == {"success": False}
    replica.engine.cache.release(table)
    assert await cached(client) > 0


async def test_an_eviction_loses_what_was_resident_and_nothing_else(
    client: aiohttp.ClientSession, replica: SimulatedReplica
) -> None:
    assert [await cached(client) > 0 for _ in range(2)] == [False, True]
    replica.evict()
    assert [await cached(client) > 0 for _ in range(2)] == [False, True]


async def test_without_prefix_caching_nothing_is_reused_and_the_engine_says_so(
    client: aiohttp.ClientSession, replica: SimulatedReplica
) -> None:
    assert [await cached(client) > 0 for _ in range(2)] == [False, True]
    resident, queries = replica.engine.cache.resident, replica.engine.counters.prefix_queries
    replica.prefix_caching = False
    assert [await cached(client) for _ in range(3)] == [0, 0, 0]
    async with client.post(CHAT, json=HELLO | {"cache_salt": "new"}) as response:
        assert response.status == 200
    async with client.get("/metrics") as response:
        assert 'enable_prefix_caching="False"' in await response.text()
    assert (replica.engine.cache.resident, replica.engine.counters.prefix_queries) == (resident, queries)
    replica.prefix_caching = True
    assert await cached(client) > 0


async def scrape(names: MetricNames) -> dict[str, dict[str, str]]:
    """Sample name -> labels."""
    settings = ReplicaSettings(speed=100, metrics=names)
    async with SimulatedReplica(settings) as replica, aiohttp.ClientSession(replica.url) as client:
        await cached(client)
        async with client.get("/metrics") as response:
            families = list(text_string_to_metric_families(await response.text()))
    return {sample.name: sample.labels for family in families for sample in family.samples}


async def test_an_older_engine_uses_older_names_only() -> None:
    old, current = await scrape("old"), await scrape("current")
    assert current.keys() - old.keys() == {
        "vllm:kv_cache_usage_perc",
        "vllm:prefix_cache_queries_total",
        "vllm:prefix_cache_hits_total",
        "vllm:prompt_tokens_cached_total",
    }
    assert old.keys() - current.keys() == {
        "vllm:gpu_cache_usage_perc",
        "vllm:gpu_prefix_cache_queries_total",
        "vllm:gpu_prefix_cache_hits_total",
    }
    assert old["vllm:gpu_cache_usage_perc"] == {"model_name": "sim"}


async def test_an_engine_without_metrics_of_its_own_still_tells_when_it_started() -> None:
    assert list(await scrape("none")) == ["process_start_time_seconds"]


def test_unknown_metric_names_are_refused() -> None:
    with pytest.raises(ValueError, match="metrics must be one of current, old, none"):
        ReplicaSettings(metrics="newest")  # type: ignore[arg-type]
