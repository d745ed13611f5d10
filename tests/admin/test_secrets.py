"""No prompt, no answer, no key in a log line, a metric or an answer of the admin port (invariant 9)."""

import json
import logging

import pytest

from replica.faults import Fault
from tests.admin.routers import Router, replicas_of, router_over

SECRET = "s3cr3t"
HEADERS = {
    "Authorization": f"Bearer {SECRET}-a",
    "x-api-key": f"{SECRET}-b",
    "Cookie": f"session={SECRET}-c",
    "x-anything": f"{SECRET}-d",
    "X-Request-ID": "the-one-header-that-may-be-seen",
}
QUERY = f"?api_key={SECRET}-e"
USER = {"role": "user", "content": f"{SECRET} you"}
CHAT: dict[str, object] = {
    "model": "sim",
    "max_tokens": 3,
    "messages": [{"role": "system", "content": f"{SECRET} " * 400}, USER],
    "tools": [{"type": "function", "function": {"name": f"{SECRET}_tool", "parameters": {}}}],
    "user": f"{SECRET}-f",
    "metadata": {"key": f"{SECRET}-g"},
}


async def asked(router: Router) -> None:
    """Requests that succeed, and one for each way that the router or the replica finds fault."""
    prompt = f"{SECRET} " * 400
    bodies: dict[str, list[dict[str, object]]] = {
        "/v1/chat/completions": [CHAT, CHAT | {"stream": True}, CHAT | {"model": "no-such-one"}, {"messages": SECRET}],
        "/v1/completions": [{"model": "sim", "prompt": prompt}, {"model": "sim", "prompt": {"a": SECRET}}],
        "/v1/messages": [{"model": "sim", "max_tokens": 2, "system": prompt, "messages": [USER]}],
        "/v1/responses": [{"model": "sim", "input": prompt, "instructions": SECRET, "max_output_tokens": 16}],
        f"/sleep/{SECRET}": [{}],
        "/v1/load_lora_adapter": [{"lora_name": SECRET}],
    }  # fmt: skip
    for path, each in bodies.items():
        for body in each:
            async with router.clients.post(path + QUERY, json=body, headers=HEADERS) as response:
                await response.read()
    async with router.clients.post(f"/v1/chat/completions{QUERY}", data=f"{{{SECRET}", headers=HEADERS) as response:
        await response.read()


async def test_secrets_everywhere_in_requests_are_nowhere_in_what_the_router_tells(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    async with replicas_of(2) as replicas, router_over(replicas, log={"requests": True}) as router:
        await asked(router)
        replicas[0].fault = replicas[1].fault = Fault.RESET
        async with router.clients.post(f"/v1/chat/completions{QUERY}", json=CHAT, headers=HEADERS) as response:
            assert response.status == 502
        told = []
        for path in ("/metrics", "/fleet", "/readyz?verbose", "/"):
            async with router.admin.get(path) as response:
                told.append(await response.text())
        async with router.admin.post(
            f"/explain?path=/v1/chat/completions{QUERY}", json=CHAT, headers=HEADERS
        ) as response:
            told.append(await response.text())
    lines = [record.getMessage() for record in caplog.records if record.name == "homing.requests"]
    endpoints = {json.loads(line)["endpoint"] for line in lines}
    assert endpoints >= {"chat", "completions", "messages", "responses", "other", "control"}
    assert any("the-one-header-that-may-be-seen" in line for line in lines)
    assert any(json.loads(line)["attempts"][-1:] == [] for line in lines)
    assert SECRET not in caplog.text
    assert SECRET not in "\n".join(told)
