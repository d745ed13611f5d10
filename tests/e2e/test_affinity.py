"""Affinity in every API: requests with one long prefix go to one replica, and the engine reports the reuse."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from random import Random
from typing import Any

import aiohttp
import pytest

from loadtests.workloads import pseudo_text
from replica.server import SimulatedReplica
from replica.settings import ReplicaSettings
from tests.rig import Rig, routing

PREFIX = pseudo_text(Random(5), 12_000)
TOKENS = [Random(7).randrange(30_000) for _ in range(3_000)]
TOOLS = [{"type": "function", "function": {"name": "look_up", "description": PREFIX, "parameters": {"type": "object"}}}]
ANTHROPIC_TOOLS = [{"name": "look_up", "description": PREFIX, "input_schema": {"type": "object"}}]
TOKEN = "only-the-admin-knows"


def ask(number: int) -> dict[str, str]:
    return {"role": "user", "content": f"question {number}"}


def chat(number: int) -> dict[str, Any]:
    return {"messages": [{"role": "system", "content": PREFIX}, ask(number)]}


def chat_parts(number: int) -> dict[str, Any]:
    return {"messages": [{"role": "system", "content": [{"type": "text", "text": PREFIX}]}, ask(number)]}


def chat_tools(number: int) -> dict[str, Any]:
    return {"messages": [{"role": "system", "content": "Be brief."}, ask(number)], "tools": TOOLS}


def completion(number: int) -> dict[str, Any]:
    return {"prompt": f"{PREFIX} question {number}"}


def completion_tokens(number: int) -> dict[str, Any]:
    return {"prompt": [*TOKENS, number]}


def responses(number: int) -> dict[str, Any]:
    return {"instructions": PREFIX, "input": f"question {number}", "max_output_tokens": 4}


def responses_items(number: int) -> dict[str, Any]:
    said = [{"type": "input_text", "text": f"question {number}"}]
    return {"instructions": PREFIX, "input": [{"role": "user", "content": said}], "max_output_tokens": 4}


def messages(number: int) -> dict[str, Any]:
    return {"system": PREFIX, "messages": [ask(number)]}


def messages_tools(number: int) -> dict[str, Any]:
    return {"system": "Be brief.", "messages": [ask(number)], "tools": ANTHROPIC_TOOLS}


def embedding(number: int) -> dict[str, Any]:
    return {"input": f"{PREFIX} text {number}"}


APIS: list[tuple[str, Callable[[int], dict[str, Any]]]] = [
    ("/v1/chat/completions", chat),
    ("/v1/chat/completions", chat_parts),
    ("/v1/chat/completions", chat_tools),
    ("/v1/completions", completion),
    ("/v1/completions", completion_tokens),
    ("/v1/responses", responses),
    ("/v1/responses", responses_items),
    ("/v1/messages", messages),
    ("/v1/messages", messages_tools),
    ("/v1/embeddings", embedding),
]


@pytest.fixture
async def rig(tmp_path: Any) -> AsyncIterator[Rig]:
    secret = tmp_path / "token"
    secret.write_text(TOKEN)
    secret.chmod(0o600)
    async with AsyncExitStack() as stack:
        members = {
            f"r{number}": await stack.enter_async_context(SimulatedReplica(ReplicaSettings(speed=50)))
            for number in range(1, 5)
        }
        admin = {"listen": "127.0.0.1:0", "token_file": str(secret)}
        yield await stack.enter_async_context(routing(members, admin=admin))


async def send(
    rig: Rig, path: str, body: dict[str, Any], headers: dict[str, str] | None = None
) -> tuple[aiohttp.ClientResponse, Any]:
    async with (
        aiohttp.ClientSession() as session,
        session.post(rig.url + path, json={"model": "sim", "max_tokens": 4, **body}, headers=headers) as answer,
    ):
        return answer, json.loads(await answer.read() or b"null")


def cached(usage: dict[str, Any]) -> int:
    """Cached prompt tokens in whatever form the API tells them."""
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
    return int(details.get("cached_tokens") or usage.get("cache_read_input_tokens") or 0)


@pytest.mark.parametrize(("path", "body"), APIS, ids=[f"{path} {body.__name__}" for path, body in APIS])
async def test_four_requests_with_one_long_prefix_go_to_one_replica(
    rig: Rig, path: str, body: Callable[[int], dict[str, Any]]
) -> None:
    answers = [await send(rig, path, body(number)) for number in range(4)]
    assert [answer.status for answer, _ in answers] == [200] * 4, answers[0][1]
    assert len({answer.headers["x-homing-replica"] for answer, _ in answers}) == 1
    predicted = [int(answer.headers["x-homing-predicted-cached-tokens"]) for answer, _ in answers]
    assert predicted[0] == 0
    assert min(predicted[1:]) > 1_500
    if path != "/v1/embeddings":  # Which tells no cached tokens.
        assert min(cached(told["usage"]) for _, told in answers[1:]) > 1_500


async def test_one_conversation_has_one_home_whichever_api_asks(rig: Rig) -> None:
    asked = [
        ("/v1/chat/completions", chat(1)),
        ("/v1/chat/completions", chat_parts(1)),
        ("/v1/responses", responses(1)),
        ("/v1/messages", messages(1)),
    ]
    served = [(await send(rig, path, body))[0].headers["x-homing-replica"] for path, body in asked]
    assert len(set(served)) == 1


async def test_a_stored_response_is_found_again_and_gone_on_from_where_it_is_stored(rig: Rig) -> None:
    homes = []
    for number in range(6):
        first, told = await send(rig, "/v1/responses", {"input": f"{number} {PREFIX[:2000]}", "max_output_tokens": 4})
        home = first.headers["x-homing-replica"]
        homes.append(home)
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{rig.url}/v1/responses/{told['id']}") as again,
        ):
            assert (again.status, again.headers["x-homing-replica"]) == (200, home)
        more = {"input": "go on", "previous_response_id": told["id"], "max_output_tokens": 4}
        second, _ = await send(rig, "/v1/responses", more)
        assert (second.status, second.headers["x-homing-replica"]) == (200, home)
    assert len(set(homes)) > 1


async def test_engine_control_is_refused_and_the_remedy_named(rig: Rig) -> None:
    for path in ("/sleep", "/wake_up", "/reset_prefix_cache", "/v1/load_lora_adapter", "/collective_rpc"):
        answer, told = await send(rig, path, {})
        assert answer.status == 403
        assert "proxy.allow_paths" in told["error"]["message"]


async def test_a_form_goes_by_its_model_and_a_model_nobody_serves_is_refused(rig: Rig) -> None:
    async with aiohttp.ClientSession() as session:
        for model, status in (("sim", 200), ("nope", 404)):
            form = aiohttp.FormData({"model": model})
            form.add_field("file", b"RIFF" * 100, filename="a.wav")
            async with session.post(f"{rig.url}/v1/audio/transcriptions", data=form) as answer:
                assert answer.status == status


async def test_a_live_request_is_explained_to_the_admin_alone(rig: Rig) -> None:
    asked = {"x-homing-debug": "1", "x-homing-token": TOKEN}
    answer, _ = await send(rig, "/v1/chat/completions", chat(1), asked)
    told = json.loads(answer.headers["x-homing-explain"])
    assert told["decision"]["replica"] == answer.headers["x-homing-replica"]
    assert {candidate["replica"] for candidate in told["candidates"]} == {"r1", "r2", "r3", "r4"}
    assert all(set(candidate["score_seconds"]) > {"prefill", "total"} for candidate in told["candidates"])
    for wrong in ({}, {"x-homing-debug": "1"}, {"x-homing-debug": "1", "x-homing-token": "guess"}):
        answer, _ = await send(rig, "/v1/chat/completions", chat(1), wrong)
        assert "x-homing-explain" not in answer.headers


async def test_explaining_sends_nothing_and_changes_nothing(rig: Rig) -> None:
    async with aiohttp.ClientSession() as session:
        body = json.dumps({"model": "sim", **chat(1)})
        tellings = []
        for _ in range(2):
            async with session.post(f"{rig.admin_url}/explain", data=body) as answer:
                tellings.append(await answer.json())
    assert tellings[0]["decision"] == tellings[1]["decision"]
    assert tellings[0]["prompt"]["blocks"] == 23
    assert all(candidate["cached_tokens"] == 0 for telling in tellings for candidate in telling["candidates"])
    assert rig.records == []
