"""What a real router counts of real requests."""

import json
import logging

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from replica.faults import Fault
from tests.admin.making import OPENMETRICS
from tests.admin.routers import Router, replicas_of, router_over, until

CHAT = {"model": "sim", "max_tokens": 6, "messages": [{"role": "user", "content": "word " * 600}]}
STREAM = CHAT | {"stream": True}


async def chatted(router: Router, body: dict[str, object]) -> int:
    async with router.clients.post("/v1/chat/completions", json=body) as response:
        await response.read()
        return response.status


async def test_a_scrape_of_a_busy_router_parses_strictly_and_counts_each_request_once() -> None:
    async with replicas_of(2) as replicas, router_over(replicas) as router:
        for body in (CHAT, STREAM, CHAT | {"model": "nobody's"}):
            await chatted(router, body)
        async with router.admin.get("/metrics", headers={"Accept": OPENMETRICS}) as response:
            text = await response.text()
        list(text_string_to_metric_families(text))  # type: ignore[no-untyped-call]
        assert 'homing_requests_total{code="404",endpoint="chat",model="other",stream="false"} 1.0' in text
        assert await router.total("homing_requests_total") == 3
        assert await router.total("homing_decisions_total") == 2
        assert await router.total("homing_rejected_total") == 1
        assert await router.total("homing_request_duration_seconds_count") == 2
        assert await router.total("homing_replica_in_flight") == await router.total("homing_requests_in_flight") == 0


async def test_a_stream_is_counted_with_its_usage_if_it_brings_one_and_as_untold_if_not() -> None:
    """CASES A92: the option is not forced on the client."""
    async with replicas_of(1, speed=5) as replicas, router_over(replicas) as router:
        await chatted(router, STREAM)
        untold = await router.total("homing_prompt_tokens_unreported_total")
        assert untold == await router.total("homing_prompt_tokens_total") > 0
        assert await router.total("homing_time_per_output_token_seconds_count") == 0
        await chatted(router, STREAM | {"stream_options": {"include_usage": True}})
        assert await router.total("homing_prompt_tokens_unreported_total") == untold
        assert await router.total("homing_prompt_tokens_reported_cached_total") > 0
        assert await router.total("homing_time_per_output_token_seconds_count") == 1
        assert await router.total("homing_time_per_output_chunk_seconds_count") == 2


async def test_stages_add_up_to_the_whole() -> None:
    """CASES A96: one sees whether the router or the engine is the limit."""
    async with replicas_of(1) as replicas, router_over(replicas) as router:
        for _ in range(5):
            await chatted(router, STREAM)
        stages = await router.total("homing_stage_duration_seconds_sum")
        assert stages == pytest.approx(await router.total("homing_request_duration_seconds_sum"), abs=1e-3)


async def test_a_replica_that_dies_shows_as_error_retry_probe_failure_and_change() -> None:
    async with replicas_of(2) as replicas, router_over(replicas, routing={"policy": "round_robin"}) as router:
        replicas[0].fault = Fault.REFUSE
        assert [await chatted(router, CHAT) for _ in range(2)] == [200, 200]
        await until(lambda: router.total("homing_probe_failures_total"))
        async with router.admin.get("/metrics") as response:
            text = await response.text()
        assert 'homing_replica_transitions_total{from="ready",reason="refused",to="down"} 1.0' in text
        assert 'homing_probe_failures_total{reason="refused",replica="r0"}' in text
        assert 'homing_replica_state{model="sim",replica="r0",state="down"} 1.0' in text
        async with router.admin.get("/readyz?verbose") as response:
            assert response.status == 503
            assert "[-]replicas failed: 1 of 2 are ready, 2 wanted" in await response.text()


async def test_the_request_log_has_a_line_for_each_request_when_it_is_on(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with replicas_of(1) as replicas, router_over(replicas, log={"requests": True}) as router:
        await chatted(router, STREAM | {"stream_options": {"include_usage": True}})
        await chatted(router, CHAT | {"model": "nobody's"})
    lines = [json.loads(record.getMessage()) for record in caplog.records if record.name == "homing.requests"]
    assert [(line["status"], line["replica"], line["rejected"]) for line in lines] == [
        (200, "r0", None), (404, None, "unknown_model"),
    ]  # fmt: skip
    assert lines[0]["completion_tokens"] == 6
    assert lines[0]["duration_s"] >= lines[0]["ttfc_s"] > 0


async def test_there_is_no_request_log_unless_it_is_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with replicas_of(1) as replicas, router_over(replicas) as router:
        await chatted(router, CHAT)
    assert not [record for record in caplog.records if record.name == "homing.requests"]


async def test_explain_answers_for_a_request_that_was_never_sent() -> None:
    async with replicas_of(2) as replicas, router_over(replicas) as router:
        async with router.admin.post("/explain", json=CHAT) as response:
            told = await response.json()
        assert (response.status, told["endpoint"], told["model"]) == (200, "chat", "sim")
        assert await router.total("homing_requests_total") == 0


@pytest.mark.parametrize(
    ("path", "body", "why"),
    [
        ("/v1/chat/completions", b"hello", "no prompt can be read from the body"),
        ("/v1/completions", b'{"model": "sim", "messages": []}', "no prompt can be read from the body"),
        ("/v1/models", b"", "the router answers /v1/models itself"),
        ("/sleep", b"", "/sleep controls an engine, and the router refuses it"),
    ],
)
async def test_what_is_not_routed_by_a_prompt_is_explained_as_that(path: str, body: bytes, why: str) -> None:
    async with (
        replicas_of(1) as replicas,
        router_over(replicas) as router,
        router.admin.post("/explain", params={"path": path}, data=body) as response,
    ):
        told = await response.json()
        assert told["unexplained"].startswith(why)


async def test_what_goes_on_from_a_stored_response_is_explained_by_the_replica_that_has_it() -> None:
    async with replicas_of(2) as replicas, router_over(replicas) as router:
        async with router.clients.post("/v1/responses", json={"model": "sim", "input": "Hello", "store": True}) as made:
            holder, stored = made.headers["x-homing-replica"], (await made.json())["id"]
        asked = {"model": "sim", "input": "Go on", "previous_response_id": stored}
        for path, body in (("/v1/responses", asked), (f"/v1/responses/{stored}", {})):
            async with router.admin.post("/explain", params={"path": path}, json=body) as response:
                told = await response.json()
            assert (told["unexplained"], told["decision"]["replica"]) == (None, holder)
