"""A replica that fails: what counts against it, how it is ejected and comes back, and how much is sent again."""

import asyncio
from collections.abc import Sequence

import pytest

from router.core.budget import LEAST
from router.core.types import Outcome, State
from tests.browser import asked, chat, connected, get, post
from tests.rig import Rig, routing, scripted, until
from tests.scripted import STREAM, Call, Script, ScriptedReplica, closing, first, full, hang, sent, whole

SELDOM = {"interval": "60s"}
"""Probes that come too late to change anything."""

FAILURES: dict[str, Script] = {
    "500": whole(b"{}", 500),
    "502": whole(b"{}", 502),
    "no answer": closing(hard=True),
    "half an answer": closing(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", hard=True),
    "half a stream": closing(STREAM + b"9\r\ndata: 1\n\n\r\n", hard=False),
    "no HTTP": sent(b"SSH-2.0-OpenSSH_9.2\r\n"),
}


def turns(rig: Rig) -> list[tuple[str, str, str]]:
    """Changes of state since the replicas joined, in the order in which each was first seen."""
    return [turn for turn in rig.control.tally.transitions if turn[0] != "starting"]


async def failing(rig: Rig, replicas: Sequence[ScriptedReplica], script: Script) -> ScriptedReplica:
    """The replica that `chat()` goes to, which from here on does this, while the others answer well."""
    for replica in replicas:
        replica.script = whole()
    taken = int((await asked(rig, chat())).replica.removeprefix("r")) - 1
    replicas[taken].script = script
    for replica in replicas:
        replica.calls.clear()
    return replicas[taken]


def name(rig: Rig, replica: ScriptedReplica) -> str:
    return next(id for id, pool in rig.worker.pools.items() if pool.address.port == replica.port)


# Ejection.


@pytest.mark.parametrize("script", FAILURES.values(), ids=FAILURES)
async def test_a_replica_whose_requests_fail_is_ejected_though_it_answers_its_probes(script: Script) -> None:
    async with scripted(hang, hang, hang, hang) as (rig, replicas):
        broken = await failing(rig, replicas, script)
        answers = [await asked(rig, chat()) for _ in range(20)]
        assert rig.state(name(rig, broken)) is State.EJECTED
        good = [answer for answer in answers if answer.status == 200 and answer.whole]
        assert len(good) >= 20 - 6, "one good answer was before, so that six of seven may fail"
        await until(lambda: turns(rig) == [("ready", "ejected", "failures")])
        probes = len(broken.probes)
        await until(lambda: len(broken.probes) > probes + 6)
        assert rig.state(name(rig, broken)) is State.EJECTED


async def test_a_replica_that_cannot_be_connected_to_is_ejected() -> None:
    """Not refused, which would mark it down: there is no way to it."""
    async with ScriptedReplica(whole()) as alive:
        replicas = {"alive": alive.url, "far": "http://255.255.255.255:9"}
        async with routing(replicas, ready=False, health=SELDOM) as rig:
            await rig.ready("alive")
            fleet = rig.worker.fleet
            fleet.serves("far", fleet.replica("alive").models)
            fleet.mark("far", State.READY, "answers /health", 0.0)
            answers = [await asked(rig, chat(str(number))) for number in range(40)]
            assert {(answer.status, answer.replica) for answer in answers} == {(200, "alive")}
            assert rig.state("far") is State.EJECTED
            failed = [each for record in rig.records for each in record.attempts if each.settled.replica == "far"]
            assert len(failed) == 5


NO_FAILURES: dict[str, Script] = {
    "400": whole(b"{}", 400),
    "404": whole(b"{}", 404),
    "422": whole(b"{}", 422),
    "429": full(0, 429),
    "503": full(0, 503),
}


@pytest.mark.parametrize("script", NO_FAILURES.values(), ids=NO_FAILURES)
async def test_a_bad_request_and_a_full_replica_are_no_failures(script: Script) -> None:
    async with scripted(script, script) as (rig, _):
        for _ in range(20):
            await asked(rig, chat())
        assert {rig.state(id) for id in rig.worker.pools} == {State.READY}
        assert turns(rig) == []


async def test_a_client_that_leaves_is_no_failure_of_the_replica() -> None:
    async with scripted(hang, hang) as (rig, replicas):
        for _ in range(10):
            async with connected(rig) as client:
                await client.send(chat())
                await until(lambda: sum(len(each.calls) for each in replicas) > len(rig.records))
            await until(lambda: sum(len(each.calls) for each in replicas) == len(rig.records))
        assert {rig.state(id) for id in rig.worker.pools} == {State.READY}


async def test_the_end_of_an_idle_connection_is_no_failure() -> None:
    async def script(call: Call) -> None:
        await (closing(hard=True) if call.number > 1 else whole())(call)

    async with scripted(script, script, retry={"budget": 1.0}) as (rig, _):
        for _ in range(20):
            assert (await asked(rig, chat())).status == 200
        lost = [each for record in rig.records for each in record.attempts if each.settled.outcome is Outcome.FAILED]
        assert len(lost) >= 9
        assert turns(rig) == []


async def test_the_only_replica_is_never_ejected() -> None:
    async with scripted(whole(b"{}", 500)) as (rig, [only]):
        for _ in range(20):
            assert (await asked(rig, chat())).status == 500
        assert rig.state("r1") is State.READY
        only.script = whole()
        assert (await asked(rig, chat())).status == 200


async def test_a_replica_that_is_well_again_is_back_after_its_time_with_its_first_answer() -> None:
    async with scripted(hang, hang, health={"ejection": {"first": "300ms"}}) as (rig, replicas):
        broken = await failing(rig, replicas, whole(b"{}", 500))
        for _ in range(8):
            await asked(rig, chat())
        broken.script = whole()
        await rig.ready("r1", "r2")
        assert rig.worker.fleet.replica(name(rig, broken)).conduct.on_trial
        assert (await asked(rig, chat())).replica == name(rig, broken), "it is still the home of its prompts"
        assert not rig.worker.fleet.replica(name(rig, broken)).conduct.on_trial
        await until(lambda: turns(rig) == [("ready", "ejected", "failures"), ("ejected", "ready", "readmitted")])


async def test_a_replica_that_is_not_well_costs_one_request_for_each_ejection() -> None:
    async with scripted(hang, hang, health={"ejection": {"first": "200ms"}}) as (rig, replicas):
        broken = await failing(rig, replicas, whole(b"{}", 500))
        for _ in range(8):
            await asked(rig, chat())
        calls = len(broken.calls)
        await rig.ready("r1", "r2")
        answers = [await asked(rig, chat()) for _ in range(8)]
        assert [answer.status for answer in answers].count(500) == 1
        assert len(broken.calls) == calls + 1
        assert rig.state(name(rig, broken)) is State.EJECTED


async def test_an_ejected_replica_serves_at_once_when_the_other_one_dies() -> None:
    async with scripted(hang, hang, health=SELDOM) as (rig, replicas):
        broken = await failing(rig, replicas, whole(b"{}", 500))
        for _ in range(8):
            await asked(rig, chat())
        [other] = [replica for replica in replicas if replica is not broken]
        broken.script = whole()
        other.die()
        answers = [await asked(rig, chat()) for _ in range(3)]
        assert {(answer.status, answer.replica) for answer in answers} == {(200, name(rig, broken))}
        assert rig.state(name(rig, broken)) is State.READY


# The budget.


async def lost(rig: Rig, replicas: Sequence[ScriptedReplica], count: int) -> list[tuple[int, object]]:
    """So many requests are under way on one replica when it dies: status and error code of what they get."""
    broken = await failing(rig, replicas, hang)
    requests = [asyncio.create_task(asked(rig, chat())) for _ in range(count)]
    await until(lambda: len(broken.calls) == count)
    broken.die()
    return [
        (answer.status, None if answer.status == 200 else answer.code) for answer in await asyncio.gather(*requests)
    ]


async def test_what_a_dead_replica_had_under_way_is_sent_again_within_the_budget() -> None:
    async with scripted(hang, hang, health=SELDOM) as (rig, replicas):
        assert await lost(rig, replicas, LEAST) == [(200, None)] * LEAST
        assert rig.worker.proxy.budget.left(asyncio.get_running_loop().time()) == 0.0


async def test_beyond_the_budget_clients_are_told_of_the_loss() -> None:
    async with scripted(hang, hang, health=SELDOM) as (rig, replicas):
        got = await lost(rig, replicas, LEAST + 3)
        assert got.count((200, None)) == LEAST
        assert got.count((502, "retry_budget_exhausted")) == 3


async def test_more_traffic_has_a_larger_budget() -> None:
    async with scripted(hang, hang, health=SELDOM, retry={"budget": 1.0}) as (rig, replicas):
        assert await lost(rig, replicas, LEAST + 3) == [(200, None)] * (LEAST + 3)


async def test_what_did_no_work_draws_on_nothing() -> None:
    """Refusals, and connections that are refused."""
    async with scripted(hang, hang, health=SELDOM) as (rig, replicas):
        broken = await failing(rig, replicas, full(0))
        for _ in range(LEAST + 5):
            assert (await asked(rig, chat())).status == 200
        assert len(broken.calls) >= LEAST
        broken.die()
        fleet = rig.worker.fleet
        for _ in range(LEAST + 5):
            fleet.mark(name(rig, broken), State.READY, "test", 0.0)
            assert (await asked(rig, chat())).status == 200
        assert rig.worker.proxy.budget.left(asyncio.get_running_loop().time()) == 1.0


async def test_the_end_of_an_idle_connection_draws_on_it() -> None:
    """The request may have been read."""

    async def script(call: Call) -> None:
        await (closing(hard=True) if call.number > 1 else whole())(call)

    async with scripted(script) as (rig, _):
        for _ in range(2):
            assert (await asked(rig, chat())).status == 200
        assert rig.worker.proxy.budget.left(asyncio.get_running_loop().time()) == pytest.approx(1 - 1 / LEAST)


async def test_what_the_router_answers_itself_is_no_traffic() -> None:
    async with scripted(whole(), retry={"budget": 1.0}) as (rig, _):
        for _ in range(20):
            await asked(rig, get("/v1/models"), "GET")
        assert rig.worker.proxy.budget._allowed(asyncio.get_running_loop().time()) == LEAST


# Midway.

DYING = {
    "chat": ("/v1/chat/completions", b'data: {"error":{"message":', b'"code":"replica_lost"'),
    "completion": ("/v1/completions", b'data: {"error":{"message":', b'"code":"replica_lost"'),
    "responses": ("/v1/responses", b'event: error\ndata: {"type":"error",', b'"code":"replica_lost"'),
    "messages": ("/v1/messages", b'event: error\ndata: {"type":"error","error":{', b'"type":"api_error"'),
}


@pytest.mark.parametrize(("path", "begin", "within"), DYING.values(), ids=DYING)
async def test_a_stream_that_dies_says_so_in_its_own_format_and_closes(path: str, begin: bytes, within: bytes) -> None:
    events = STREAM + b"1e\r\nevent: response.x\ndata: {}\n\n  \r\n"
    dying = first(closing(events, hard=True), whole())
    async with scripted(dying, health=SELDOM) as (rig, [only]):
        body = {"model": "sim", "stream": True, "messages": [], "prompt": "", "input": ""}
        answer = await asked(rig, post(path, body))
        assert (answer.status, answer.whole) == (200, False)
        last = answer.body.removeprefix(b"event: response.x\ndata: {}\n\n  ")
        assert last.startswith(begin)
        assert within in last
        assert last.endswith(b"\n\n")
        assert len(only.calls) == 1
