"""The official client against `homing serve` and two `homing replica simulate`, each a process of its own."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator

import aiohttp
import pytest
import pytest_asyncio
from openai import AsyncOpenAI, BadRequestError, NotFoundError

from loadtests.fleet import MODEL, Fleet, FleetShape, fleet

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.xdist_group("openai client")]  # One fleet for all.

ABORT_WITHIN = 5.0
"""Seconds: half of what the whole answer takes."""
SYSTEM = "You are an assistant that knows this handbook by heart. " * 100


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def built() -> AsyncIterator[Fleet]:
    async with fleet(FleetShape(n=2, speed=50.0), "prefix_affinity") as built:
        yield built


@pytest_asyncio.fixture(loop_scope="module")
async def client(built: Fleet) -> AsyncIterator[AsyncOpenAI]:
    async with talking_to(built) as client:
        yield client


def talking_to(built: Fleet) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{built.url}/v1", api_key="none", max_retries=0, timeout=20.0)


async def running(built: Fleet) -> int:
    """Requests that the engines work on, as they tell it themselves."""
    total = 0
    async with aiohttp.ClientSession() as session:
        for url in built.replicas.values():
            async with session.get(f"{url}/load") as response:
                total += (await response.json())["server_load"]
    return total


async def test_a_chat(client: AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "hello"}], max_tokens=8
    )
    assert answer.choices[0].message.content
    assert answer.usage is not None
    assert answer.usage.completion_tokens > 0


async def test_a_streamed_chat(client: AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "hello"}],
        max_tokens=20,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text
    assert chunks[-1].usage is not None
    assert sum(bool(chunk.choices and chunk.choices[0].delta.content) for chunk in chunks) > 1


async def test_a_streamed_answer_is_the_answer(client: AsyncOpenAI) -> None:
    whole = await client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "again"}], max_tokens=16
    )
    stream = await client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "again"}], max_tokens=16, stream=True
    )
    text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
    assert text == whole.choices[0].message.content


async def test_completions(client: AsyncOpenAI) -> None:
    answer = await client.completions.create(model=MODEL, prompt=["one", "two"], max_tokens=4)
    assert [choice.index for choice in answer.choices] == [0, 1]
    stream = await client.completions.create(model=MODEL, prompt=[1, 2, 3], max_tokens=4, stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream])


async def test_embeddings(client: AsyncOpenAI) -> None:
    answer = await client.embeddings.create(model=MODEL, input=["one", "two"])
    assert [len(item.embedding) > 0 for item in answer.data] == [True, True]
    assert answer.data[0].embedding != answer.data[1].embedding


async def test_models(client: AsyncOpenAI) -> None:
    assert [model.id async for model in client.models.list()] == [MODEL]


async def test_errors_are_the_clients_own_kinds(client: AsyncOpenAI) -> None:
    with pytest.raises(NotFoundError) as missing:
        await client.chat.completions.create(model="gpt-5", messages=[{"role": "user", "content": "hello"}])
    assert missing.value.code == "model_not_found"
    assert "gpt-5" in missing.value.message
    with pytest.raises(BadRequestError):  # The engine's own, relayed.
        await client.chat.completions.create(model=MODEL, messages=[])


async def test_a_cancelled_stream_stops_the_engine(built: Fleet, client: AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "for ever"}],
        max_tokens=90_000,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    async for _ in stream:
        break
    assert await running(built) == 1
    await stream.close()
    end = asyncio.get_running_loop().time() + ABORT_WITHIN
    while await running(built):
        assert asyncio.get_running_loop().time() < end


async def test_a_prompt_goes_home_and_finds_its_beginning_cached(client: AsyncOpenAI) -> None:
    async def ask(question: str) -> tuple[str, int, int]:
        raw = await client.chat.completions.with_raw_response.create(
            model=MODEL,
            messages=[{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}],
            max_tokens=4,
        )
        usage = raw.parse().usage
        assert usage is not None
        assert usage.prompt_tokens_details is not None
        cached = usage.prompt_tokens_details.cached_tokens or 0
        return raw.headers["x-homing-replica"], cached, int(raw.headers["x-homing-predicted-cached-tokens"])

    home, cached, predicted = await ask("What is on page 3?")
    assert (cached, predicted) == (0, 0)
    for question in ("And on page 4?", "What was that again?"):
        replica, cached, predicted = await ask(question)
        assert replica == home
        assert cached > 500
        assert predicted > 500


async def test_a_router_told_to_stop_lets_a_stream_end_and_exits_with_0() -> None:
    async with fleet(FleetShape(n=1, speed=50.0), "prefix_affinity") as built, talking_to(built) as client:
        router = built.processes[-1]
        stream = await client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "goodbye"}],
            max_tokens=2_000,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        reasons: list[str | None] = []
        async for chunk in stream:
            if not reasons:
                os.kill(router.pid, signal.SIGTERM)
            reasons.append(chunk.choices[0].finish_reason)
        assert len(reasons) > 2_000
        assert reasons[-1] == "length"
        await router.finish(10.0)
