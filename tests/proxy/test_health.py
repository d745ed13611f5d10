"""Members as they come, blink, hang, die and come back: who gets requests, and what is remembered of whom."""

import asyncio
import logging
import socket
from contextlib import AsyncExitStack
from itertools import chain, repeat

import aiohttp
import pytest

from replica.server import SimulatedReplica
from replica.settings import ReplicaSettings
from router.core.member import DEFAULT_KV_TOKENS
from router.core.types import Limit, State
from router.members.health import MAX_ANSWER
from tests.browser import asked, chat, connected, get
from tests.rig import Rig, routing, scripted, until
from tests.scripted import HOST, ScriptedReplica, hang, whole

LONG = "This text is the same in all prompts of this test. " * 60

FAST = {"interval": "30ms", "timeout": "2s"}


def metrics(epoch: float = 1.0, blocks: int = 1000, usage: float = 0.0) -> str:
    """What an engine tells of itself."""
    return (
        f"vllm:num_requests_running 0\nvllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc {usage}\n"
        f'vllm:cache_config_info{{block_size="16",num_gpu_blocks="{blocks}"}} 1\nprocess_start_time_seconds {epoch}\n'
    )


def held(rig: Rig, replica: str) -> int:
    return rig.worker.fleet.residency.held(replica)


async def probed(replica: ScriptedReplica, times: int = 3) -> None:
    """Wait for that many more probes."""
    before = len(replica.probes)
    await until(lambda: len(replica.probes) >= before + 3 * times)


# Coming.


async def test_a_replica_that_loads_its_weights_gets_nothing_until_it_is_ready() -> None:
    """It takes connections, and its /health is 503."""
    async with scripted(whole(), whole(), ready=False, health=FAST) as (rig, [early, late]):
        late.health = repeat(503)
        await rig.ready("r1")
        for number in range(10):
            assert (await asked(rig, chat(str(number) + LONG))).replica == "r1"
        assert (late.calls, rig.state("r2") is State.READY) == ([], False)
        late.health = repeat(200)
        await rig.ready("r2")
        early.health = repeat(503)
        await until(lambda: rig.state("r1") is State.DOWN)
        assert (await asked(rig, chat())).replica == "r2"


async def test_the_router_starts_empty_and_serves_when_the_first_is_ready() -> None:
    async with ScriptedReplica(whole()) as one, ScriptedReplica(whole()) as other:
        one.die()
        other.die()
        async with routing({"r1": one, "r2": other}, ready=False, health=FAST) as rig:
            for path in ("/health", "/v1/models"):
                answer = await asked(rig, get(path), "GET")
                assert (answer.status, answer.code, answer["retry-after"]) == (503, "no_replica", "1")
            assert (await asked(rig, chat())).status == 503
            await one.listen()
            await rig.ready("r1")
            assert (await asked(rig, chat())).status == 200
            assert (await asked(rig, get("/health"), "GET")).status == 200


async def test_a_replica_whose_models_are_not_known_gets_nothing() -> None:
    async with scripted(whole(), ready=False, health=FAST) as (rig, [replica]):
        replica.models = None
        await probed(replica)
        assert rig.state("r1") is not State.READY
        replica.models = ["sim"]
        await rig.ready("r1")


async def test_a_model_that_nobody_serves_is_a_404_and_one_that_nobody_serves_now_a_503() -> None:
    async with scripted(whole(), whole(), health=FAST) as (rig, [one, other]):
        answer = await asked(rig, chat(model="unheard-of"))
        assert (answer.status, answer.code) == (404, "model_not_found")
        assert not one.calls + other.calls
        one.health = other.health = repeat(503)
        await until(lambda: not rig.worker.fleet.ready)
        answer = await asked(rig, chat())
        assert (answer.status, answer.code, answer["retry-after"]) == (503, "no_replica", "1")


async def test_each_model_goes_to_those_that_serve_it() -> None:
    async with scripted(ScriptedReplica(whole(), ["a", "both"]), ScriptedReplica(whole(), ["b", "both"])) as (rig, _):
        served = {
            model: {(await asked(rig, chat(f"{number} {LONG}", model=model))).replica for number in range(12)}
            for model in ("a", "b", "both")
        }
        assert served == {"a": {"r1"}, "b": {"r2"}, "both": {"r1", "r2"}}


async def test_the_models_of_all_ready_replicas_are_listed_once_and_a_dead_one_does_no_harm() -> None:
    replicas = [ScriptedReplica(whole(), ["a", "both"]), ScriptedReplica(whole(), ["both", "b"])]
    async with scripted(*replicas, health=FAST) as (rig, [one, _]):

        async def listed() -> list[str]:
            answer = (await asked(rig, get("/v1/models"), "GET")).json
            assert isinstance(answer, dict)
            return [card["id"] for card in answer["data"]]

        assert await listed() == ["a", "both", "b"]
        one.die()
        await until(lambda: rig.state("r1") is State.DOWN)
        assert await listed() == ["both", "b"]


# Blinking, dying, coming back.


async def test_a_blink_keeps_the_residency() -> None:
    async with scripted(whole(), health=FAST) as (rig, [replica]):
        replica.metrics = metrics(epoch=1.0)
        await asked(rig, chat(LONG))
        blocks = held(rig, "r1")
        assert blocks > 0
        replica.health = repeat(503)
        await until(lambda: rig.state("r1") is State.DOWN)
        replica.health = repeat(200)
        await rig.ready("r1")
        assert held(rig, "r1") == blocks
        assert int((await asked(rig, chat(LONG)))["x-homing-predicted-cached-tokens"]) > 0


@pytest.mark.parametrize(
    ("answers", "states"),
    [
        ([503, 503, 200, 200], [State.READY, State.READY, State.DOWN, State.READY]),
        ([503, 200, 503, 200, 503, 200], [State.READY] * 6),
    ],
    ids=["two failures, one success", "one failure at a time"],
)
async def test_two_failures_in_a_row_take_a_replica_out_and_one_success_lets_it_in(
    answers: list[int], states: list[State]
) -> None:
    async with scripted(whole(), health=FAST) as (rig, [replica]):
        seen: list[State] = []
        replica.on_probe = lambda path: seen.append(rig.state("r1")) if path == "/health" else None
        replica.health = chain(answers, repeat(200))
        await until(lambda: len(seen) > len(states))
        assert seen[: len(states)] == states


async def test_a_refused_probe_takes_a_replica_out_at_once() -> None:
    async with scripted(whole(), whole(), health={"interval": "200ms", "failures": 100}) as (rig, [one, _]):
        one.die()
        await until(lambda: rig.state("r1") is State.DOWN)
        assert rig.state("r2") is State.READY


async def test_a_restarted_replica_is_a_new_one_whose_cache_is_empty() -> None:
    async with scripted(whole(), health=FAST) as (rig, [replica]):
        replica.metrics = metrics(epoch=1.0)
        await until(lambda: rig.worker.fleet.replica("r1").epoch == 1.0)
        await asked(rig, chat(LONG))
        assert held(rig, "r1") > 0
        replica.metrics = metrics(epoch=2.0)
        await until(lambda: held(rig, "r1") == 0)
        assert (await asked(rig, chat(LONG)))["x-homing-predicted-cached-tokens"] == "0"


async def test_each_life_of_an_engine_begins_with_nothing_cached() -> None:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port = probe.getsockname()[1]
    async with routing({"r1": f"http://{HOST}:{port}"}, ready=False, health=FAST) as rig:
        for _ in range(2):
            async with SimulatedReplica(ReplicaSettings(speed=100, port=port)):
                await rig.ready("r1")
                answers = [await asked(rig, chat(LONG)) for _ in range(2)]
                believed = [int(answer["x-homing-predicted-cached-tokens"]) for answer in answers]
                assert believed[0] == 0 < believed[1]
            await until(lambda: rig.state("r1") is State.DOWN)


async def test_what_an_engine_tells_of_its_cache_is_taken() -> None:
    async with scripted(whole(), health=FAST, members={"r1": {"kv_tokens": 5_000}}) as (rig, [replica]):
        assert rig.worker.fleet.replica("r1").kv_tokens == 5_000
        replica.metrics = metrics(blocks=2_000)
        await until(lambda: rig.worker.fleet.replica("r1").kv_tokens == 32_000)


async def test_a_replica_without_metrics_serves_and_what_is_missing_is_counted() -> None:
    async with scripted(whole(), whole(), health=FAST) as (rig, [_, told]):
        told.metrics = metrics()
        await until(lambda: not rig.control._health.missing["r2"])
        assert rig.worker.fleet.replica("r1").kv_tokens == DEFAULT_KV_TOKENS
        assert {(await asked(rig, chat(f"{number} {LONG}"))).status for number in range(5)} == {200}
        async with aiohttp.ClientSession() as session, session.get(f"{rig.admin_url}/metrics") as response:
            lines = (await response.text()).splitlines()
        assert 'homing_engine_metric_missing{metric="vllm:cache_config_info"} 1.0' in lines


async def test_a_wrong_address_is_complained_of_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "homing")
    async with scripted(whole(), whole(), ready=False, health={"interval": "10ms"}) as (rig, [one, other]):
        other.health = repeat(404)
        await until(lambda: other.probes.count("/health") > 40)
        said = [record.getMessage() for record in caplog.records if record.name == "homing.health"]
        assert len(said) == 1
        assert other.url in said[0]
        assert "404" in said[0]
        assert (one.probes != [], rig.state("r1")) == (True, State.READY)


# Hanging.


async def test_a_replica_that_stops_answering_gets_nothing_new_until_a_probe_answers() -> None:
    """As a stopped process does: the kernel takes connections and bytes, and nothing comes back."""
    health = {"interval": "50ms", "timeout": "10s", "stall": "200ms"}
    async with scripted(hang, hang, health=health) as (rig, replicas), connected(rig) as stuck, connected(rig) as late:
        await stuck.send(chat(LONG))
        await until(lambda: replicas[0].calls or replicas[1].calls)
        frozen, other = sorted(replicas, key=lambda replica: -len(replica.calls))
        frozen.stalled = True
        other.script = whole()
        id_ = "r1" if frozen is replicas[0] else "r2"
        member = rig.worker.fleet.replica(id_)

        def stalled() -> bool:
            return member.cut(None, 0.2, asyncio.get_running_loop().time()) is Limit.STALL

        await until(stalled)
        for _ in range(5):
            assert (await late.asks(chat(LONG))).replica != id_
        assert rig.state(id_) is State.READY
        frozen.script = whole()
        frozen.stalled = False
        await until(lambda: not stalled())
        assert (await late.asks(chat(LONG))).status == 200


async def test_a_replica_that_hangs_is_out_after_its_probes_and_back_when_it_wakes() -> None:
    health = {"interval": "50ms", "timeout": "400ms"}
    async with scripted(whole(), whole(), health=health) as (rig, [one, _]):
        one.stalled = True
        await until(lambda: rig.state("r1") is State.DOWN)
        assert {(await asked(rig, chat(f"{number} {LONG}"))).replica for number in range(8)} == {"r2"}
        one.stalled = False
        await rig.ready("r1")


# Counters.


async def test_nothing_that_happens_to_a_replica_changes_what_is_counted_of_its_requests() -> None:
    """Probes, restarts, a blink: after N starts and M ends there are N - M."""
    async with scripted(hang, health=FAST) as (rig, [replica]):
        replica.metrics = metrics(epoch=1.0)
        member = rig.worker.fleet.replica("r1")
        async with AsyncExitStack() as stack:
            for number in range(5):
                client = await stack.enter_async_context(connected(rig))
                await client.send(chat(f"{number} {LONG}"))
            await until(lambda: len(replica.calls) == 5)
            counted = (member.requests, member.unstarted, member.context_tokens, member.backlog_tokens)
            assert counted[:2] == (5, 5)
            replica.metrics = metrics(epoch=2.0)
            await until(lambda: member.epoch == 2.0)
            replica.health = repeat(503)
            await until(lambda: member.state is State.DOWN)
            replica.health = repeat(200)
            await rig.ready("r1")
            assert (member.requests, member.unstarted, member.context_tokens, member.backlog_tokens) == counted
            async with connected(rig) as one_more:
                await one_more.send(chat())
                await until(lambda: member.requests == 6)
            await until(lambda: member.requests == 5)


# Lies.


LIES = {
    "no number": "vllm:num_requests_running NaN\nvllm:num_requests_waiting +Inf\n",
    "a huge number": "vllm:num_requests_running 1e308\nvllm:num_requests_running 1e308\n",
    "a huge capacity": 'vllm:cache_config_info{block_size="16",num_gpu_blocks="' + "9" * 5000 + '"} 1\n',
    "a digit that is none": 'vllm:cache_config_info{block_size="\u00b2",num_gpu_blocks="\u00b2"} 1\n',
    "no text": "\x00\xff" * 100,
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
async def test_no_metrics_stop_the_probes(lie: str) -> None:
    async with scripted(whole(), whole(), health=FAST) as (rig, [liar, honest]):
        liar.metrics = lie
        await probed(liar)
        await probed(honest)
        assert (rig.state("r1"), rig.state("r2")) == (State.READY, State.READY)
        assert (await asked(rig, chat())).status == 200


def sized(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


PROBES = {
    "deep json": b"HTTP/1.1 200 OK\r\nContent-Length: 200000\r\n\r\n" + b"[" * 200_000,
    "an encoding that is none": b"HTTP/1.1 200 OK\r\nContent-Type: a/b; charset=rot13\r\nContent-Length: 2\r\n\r\n{}",
    "bytes": b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n\xff\xfe\x00\x01",
    "no http": b"SSH-2.0-x\r\n",
    "no gzip": b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\nnope",
    "a card that is none": b'HTTP/1.1 200 OK\r\nContent-Length: 21\r\n\r\n{"data":[{"id":[1]}]}',
    "a number beyond all": sized(b'{"data":[{"id":"sim","created":%b}]}' % (b"9" * 40)),
    "half a character": sized(b'{"data":[{"id":"sim","owned_by":"\\ud800"}]}'),
    "too much": sized(b"#" * (MAX_ANSWER + 1)),
    "half an answer": b"HTTP/1.1 200 OK\r\nContent-Length: 400\r\n\r\n{",
}


@pytest.mark.parametrize("answer", PROBES.values(), ids=PROBES)
@pytest.mark.parametrize("path", ["/health", "/v1/models", "/metrics"])
async def test_no_answer_to_a_probe_stops_the_probes(path: str, answer: bytes) -> None:
    health = FAST | {"models_interval": "30ms"}
    async with scripted(whole(), whole(), health=health) as (rig, [liar, honest]):
        liar.lies[path] = answer
        await until(lambda: liar.probes.count(path) > 4)
        await probed(honest)
        assert rig.state("r2") is State.READY
        liar.lies.clear()
        await rig.ready("r1")


async def test_a_redirect_is_no_health() -> None:
    """The proxy in front of an engine that sends everybody elsewhere would send requests there, too."""
    async with scripted(whole(), ready=False, health=FAST) as (rig, [replica]):
        replica.lies["/health"] = b"HTTP/1.1 302 Found\r\nLocation: /v1/models\r\nContent-Length: 0\r\n\r\n"
        await until(lambda: rig.state("r1") is State.DOWN)
