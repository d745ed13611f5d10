"""A shadow beside a router that serves: what it counts of real requests, and that it costs nothing while it is off."""

import asyncio
from pathlib import Path
from random import Random
from typing import Any

import pytest

from loadtests.workloads import pseudo_text
from router.gossip.messages import Shadowed
from tests.admin.routers import Router, replicas_of, router_over
from tests.e2e.supervised import Engine, chat, eventually, supervised

CHATS, TURNS = 9, 4


async def converse(router: Router) -> None:
    """Nine chats, their turns one after the other: each is the last one and some 6 KB."""
    texts = [[pseudo_text(Random(f"{chat} {turn}"), 6_000) for turn in range(TURNS)] for chat in range(CHATS)]
    for turn in range(TURNS):
        for text in texts:
            messages = [{"role": "user", "content": part} for part in text[: turn + 1]]
            body = {"model": "sim", "max_tokens": 4, "stream": True, "messages": messages}
            async with router.clients.post("/v1/chat/completions", json=body) as response:
                assert response.status == 200
                await response.read()


async def shadow_of(router: Router) -> Any:
    async with router.admin.get("/fleet") as response:
        return (await response.json())["shadow"]


@pytest.mark.parametrize("live", ["prefix_affinity", "round_robin"])
async def test_a_policy_in_its_own_shadow_agrees_and_predicts_what_the_router_does(live: str) -> None:
    settings = {"routing": {"policy": live}, "shadow": {"policy": live, "sample": 1.0}}
    async with replicas_of(4) as replicas, router_over(replicas, **settings) as router:
        await converse(router)
        told = await shadow_of(router)
        predicted = await router.total("homing_prompt_tokens_predicted_cached_total")
    assert told["asks"] == CHATS * TURNS
    assert told["same"] >= told["asks"] - 2
    assert told["live_cached_tokens"] == pytest.approx(told["shadow_cached_tokens"], rel=0.05)
    assert told["live_cached_tokens"] == pytest.approx(predicted, rel=0.05)


async def test_round_robin_in_the_shadow_of_affinity_would_have_hit_a_fraction() -> None:
    settings = {"shadow": {"policy": "round_robin", "sample": 1.0}}
    async with replicas_of(4) as replicas, router_over(replicas, **settings) as router:
        await converse(router)
        told = await shadow_of(router)
        asked = await router.total("homing_shadow_asks_total")
    live, shadow = (told[f"{side}_cached_tokens"] / told["prompt_tokens"] for side in ("live", "shadow"))
    assert asked == told["asks"] == CHATS * TURNS
    assert live > 0.5  # Of four turns a quarter is new, and the first one all.
    assert shadow < live / 3  # Nine chats and four replicas: a turn comes to where the last one was not.


async def test_without_a_shadow_no_worker_tells_of_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[object] = []
    async with replicas_of(2) as replicas, router_over(replicas) as router:
        monkeypatch.setattr(router.worker._tap, "_send", said.append)
        await converse(router)
        assert router.worker.proxy.tap is None
        assert await shadow_of(router) is None
        assert await router.total("homing_shadow_asks_total") == 0
    assert not any(isinstance(each, Shadowed) for each in said)


async def test_a_shadow_is_changed_by_a_reload_and_sees_what_all_processes_send(tmp_path: Path) -> None:
    (tmp_path / "next.yaml").write_text(
        'replicas: [{id: r1, url: "http://127.0.0.1:1"}]\nrouting: {policy: least_requests}\n'
    )
    shadow = {"policy": "round_robin", "sample": 1.0}
    async with supervised(tmp_path, Engine(), workers=2, shadow=shadow) as (router, _):

        async def ask(count: int) -> None:
            async with router.client() as session:
                await asyncio.gather(*(chat(session, f"{i} " * 400) for i in range(count)))

        await ask(24)
        assert (await router.fleet())["shadow"]["asks"] == 24
        status, said = await router.command("status", "--admin", router.admin_url)
        assert status == 0
        assert "shadow   round_robin: hit 0% against 0%" in said
        router.write(shadow={"file": "next.yaml", "sample": 1.0})
        assert (await router.post("/reload"))[0] == 200
        assert (await router.fleet())["shadow"] | {"prompt_tokens": 0} == {
            "policy": "least_requests", "asks": 0, "same": 0, "prompt_tokens": 0, "live_cached_tokens": 0,
            "shadow_cached_tokens": 0,
        }  # fmt: skip
        await ask(8)
        assert (await router.fleet())["shadow"]["asks"] == 8
        (tmp_path / "next.yaml").write_text(
            'replicas: [{id: r1, url: "http://127.0.0.1:1"}]\nrouting: {policy: random}\n'
        )
        assert (await router.post("/reload"))[1]["changed"] == ["shadow.file (its content)"]
        assert (await router.fleet())["shadow"]["policy"] == "random"
        (tmp_path / "next.yaml").write_text("routing: {policy: no_such}\n")
        status, told = await router.post("/reload")
        assert (status, [each["code"] for each in told["diagnostics"]]) == (422, ["H150"])
        router.write(shadow={})
        assert (await router.post("/reload"))[0] == 200
        await ask(8)
        assert (await router.fleet())["shadow"] is None
        await eventually(lambda: quiet(router))


async def quiet(router: Any) -> bool:
    return not any((await router.requests()).values())
