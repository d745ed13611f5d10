"""When a request is sent again, and when it must not be: each rule of invariant 5, with generations counted."""

import asyncio
import socket
from collections.abc import Sequence

import pytest

from router.core.record import Phase, UpstreamError
from router.core.types import Outcome, State
from router.proxy.upstream import DYING_TRIES
from tests.browser import asked, chat, connected, get
from tests.rig import Member, Rig, routing, scripted, until
from tests.scripted import HOST, STREAM, Call, Script, ScriptedReplica, closing, first, full, hang, sent, whole

HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n"
SELDOM = {"interval": "60s"}
"""Probes that come too late to find anything out before the request does."""


def outcomes(rig: Rig) -> list[Outcome]:
    return [attempt.settled.outcome for attempt in rig.record.attempts]


def errors(rig: Rig) -> list[UpstreamError | None]:
    return [attempt.error for attempt in rig.record.attempts]


def calls(replicas: Sequence[ScriptedReplica]) -> int:
    return sum(len(replica.calls) for replica in replicas)


async def home(rig: Rig, replicas: Sequence[ScriptedReplica]) -> list[ScriptedReplica]:
    """The replica that a `chat()` goes to, which it has been to from here on, then the others."""
    for replica in replicas:
        replica.script = whole()
    taken = int((await asked(rig, chat())).replica.removeprefix("r")) - 1
    for replica in replicas:
        replica.calls.clear()
        replica.generated = 0
    return [replicas[taken], *replicas[:taken], *replicas[taken + 1 :]]


def name(rig: Rig, replica: ScriptedReplica) -> str:
    return next(id for id, pool in rig.worker.pools.items() if pool.address.port == replica.port)


def nobody() -> str:
    """A URL at which nobody listens."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return f"http://{HOST}:{probe.getsockname()[1]}"


# (a) It was never fully written.


async def test_a_refused_connection_marks_the_replica_down_and_the_request_goes_elsewhere() -> None:
    async with scripted(whole(), whole(), health=SELDOM) as (rig, replicas):
        dead, alive = await home(rig, replicas)
        dead.die()
        answer = await asked(rig, chat())
        assert (answer.status, answer.replica, answer["x-homing-reason"]) == (200, name(rig, alive), "retry")
        assert rig.state(name(rig, dead)) is State.DOWN
        assert outcomes(rig) == [Outcome.NOT_REACHED, Outcome.OK]
        assert errors(rig) == [UpstreamError.CONNECT, None]
        assert alive.generated == 1


async def test_a_hundred_refused_connections_leave_nothing_behind() -> None:
    async with ScriptedReplica(whole()) as alive:
        replicas: dict[str, Member | str] = {"dead1": nobody(), "dead2": nobody(), "alive": alive}
        async with routing(replicas, ready=False, health=SELDOM) as rig:
            await rig.ready("alive")
            fleet = rig.worker.fleet
            for _ in range(50):
                for dead in ("dead1", "dead2"):  # As if each had answered a probe a moment ago.
                    fleet.serves(dead, fleet.replica("alive").models)
                    fleet.mark(dead, State.READY, "answers /health", 0.0)
                answers = await asyncio.gather(*(asked(rig, chat(str(number))) for number in range(4)))
                assert {(answer.status, answer.replica) for answer in answers} == {(200, "alive")}
            refused = [attempt.error for record in rig.records for attempt in record.attempts if attempt.error]
            assert len(refused) >= 100
            assert set(refused) == {UpstreamError.CONNECT}
            assert alive.generated == 200


async def test_a_request_for_which_no_replica_can_be_reached_is_an_error() -> None:
    async with scripted(whole(), whole(), health=SELDOM) as (rig, replicas):
        for replica in replicas:
            replica.die()
        answer = await asked(rig, chat())
        assert (answer.status, answer.code) == (502, "replica_lost")
        assert outcomes(rig) == [Outcome.NOT_REACHED] * 2
        later = await asked(rig, chat())
        assert (later.status, later.code, later["retry-after"]) == (503, "no_replica", "1")


async def test_a_request_that_was_not_written_whole_goes_elsewhere() -> None:
    """A replica that stops reading and then resets has not seen the end of 8 MB."""
    async with scripted(whole(), whole(), health=SELDOM) as (rig, replicas):
        deaf, other = await home(rig, replicas)
        deaf.deaf = True
        request = asyncio.create_task(asked(rig, chat("hello" + "a" * (8 << 20))))
        await until(lambda: deaf.unread or other.calls)
        if other.calls:  # The other one is this prompt's home.
            await request
            deaf.deaf, other.deaf = False, True
            deaf, other = other, deaf
            request = asyncio.create_task(asked(rig, chat("hello" + "a" * (8 << 20))))
            await until(lambda: deaf.unread)
        generated = other.generated
        deaf.die()
        answer = await request
        assert (answer.status, answer.replica) == (200, name(rig, other))
        assert outcomes(rig) == [Outcome.NOT_REACHED, Outcome.OK]
        assert other.generated == generated + 1


# (b) The replica answered 429 or 503 before any body.


@pytest.mark.parametrize("status", [429, 503])
async def test_a_replica_that_is_full_is_left_alone_for_its_retry_after(status: int) -> None:
    async with scripted(whole(), whole()) as (rig, replicas):
        crowded, other = await home(rig, replicas)
        crowded.script = full(30, status)
        for _ in range(3):
            answer = await asked(rig, chat())
            assert (answer.status, answer.replica) == (200, name(rig, other))
        assert (len(crowded.calls), len(other.calls)) == (1, 3)
        member = rig.worker.fleet.replica(name(rig, crowded))
        assert member.state is State.READY, "full is no failure"
        assert member.state_now(asyncio.get_running_loop().time()) is State.FULL
        assert [attempt.settled.outcome for attempt in rig.records[-3].attempts] == [Outcome.REFUSED, Outcome.OK]
        assert [attempt.error for attempt in rig.records[-3].attempts] == [UpstreamError.STATUS_429, None]


async def test_a_request_waits_for_a_full_replica_until_its_time_is_over() -> None:
    async with scripted(first(full(1), whole())) as (rig, [only]):
        assert (await asked(rig, chat())).status == 503
        assert (await asked(rig, chat())).status == 200
        assert rig.record.stages.queue is not None
        assert len(only.calls) == 2


async def test_when_all_are_full_the_engines_own_refusal_is_relayed() -> None:
    async with scripted(full(7), full(7)) as (rig, replicas):
        answer = await asked(rig, chat())
        assert (answer.status, answer["retry-after"], answer.body) == (503, "7", b'{"full":true}')
        assert calls(replicas) == 2
        assert outcomes(rig) == [Outcome.REFUSED, Outcome.REFUSED]
        assert errors(rig) == [UpstreamError.STATUS_429] * 2


async def test_refusals_are_followed_up_to_the_bound() -> None:
    async with ScriptedReplica(full(30)) as crowd:
        crowd.stop_listening()
        await crowd.listen("0.0.0.0")  # All of 127.0.0.0/8: each address is a replica of its own.
        urls = {f"r{number}": f"http://127.0.0.{number}:{crowd.port}" for number in range(1, 7)}
        async with routing(urls, retry={"max_refusals": 3}) as rig:
            answer = await asked(rig, chat())
            assert (answer.status, len(crowd.calls)) == (503, 4)
            assert len({attempt.settled.replica for attempt in rig.record.attempts}) == 4


async def test_the_connection_to_a_full_replica_is_kept() -> None:
    async with scripted(full(0), full(0), health=SELDOM) as (rig, replicas):
        before = sum(replica.accepted for replica in replicas)
        for _ in range(4):
            assert (await asked(rig, chat())).status == 503
        assert sum(replica.accepted for replica in replicas) == before + 2


# (c) The connection was closed before a response byte.


@pytest.mark.parametrize("hard", [True, False], ids=["reset", "closed"])
async def test_a_connection_that_closes_just_as_a_request_arrives_is_no_failure(hard: bool) -> None:
    """The keep-alive race: the second request of a connection meets its end. A fresh one serves it, since all that are
    idle may have met theirs."""

    async def script(call: Call) -> None:
        if len(replica.calls) <= 3:  # So that requests that come together have connections of their own.
            await until(lambda: len(replica.calls) >= 3)
        await (closing(hard=hard) if call.number > 1 else whole())(call)

    async with scripted(script) as (rig, [replica]):
        await asyncio.gather(*(asked(rig, chat()) for _ in range(3)))
        assert rig.worker.pools["r1"].idle == 3
        for _ in range(5):
            assert (await asked(rig, chat())).status == 200
        assert outcomes(rig) == [Outcome.FAILED, Outcome.OK]
        assert rig.state("r1") is State.READY


@pytest.mark.parametrize(
    ("idle", "ends"),
    [(False, [Outcome.FAILED, Outcome.OK]), (True, [Outcome.FAILED, Outcome.NOT_REACHED, Outcome.OK])],
    ids=["fresh", "idle before"],
)
async def test_a_process_that_dies_before_it_answers_is_no_failure(idle: bool, ends: list[Outcome]) -> None:
    async with scripted(hang, hang, health=SELDOM) as (rig, replicas):
        if idle:
            for replica in await home(rig, replicas):
                replica.script = hang
        request = asyncio.create_task(asked(rig, chat()))
        await until(lambda: calls(replicas))
        dying, heir = sorted(replicas, key=lambda replica: -len(replica.calls))
        heir.script = whole()
        dying.die()
        answer = await request
        assert (answer.status, answer.replica) == (200, name(rig, heir))
        assert outcomes(rig) == ends
        assert rig.state(name(rig, dying)) is State.DOWN
        assert (dying.generated, heir.generated) == (1, 1)


@pytest.mark.parametrize("idle", [False, True], ids=["fresh", "idle before"])
async def test_a_process_whose_listening_socket_outlives_its_connections_is_dead_all_the_same(idle: bool) -> None:
    """So Linux clears away a killed process: for a moment connections are still taken, and then reset."""
    async with scripted(hang, hang, health=SELDOM) as (rig, replicas):
        if idle:
            for replica in await home(rig, replicas):
                replica.script = hang
        request = asyncio.create_task(asked(rig, chat()))
        await until(lambda: calls(replicas))
        dying, heir = sorted(replicas, key=lambda replica: -len(replica.calls))
        heir.script = whole()
        dying.stop_listening()
        with socket.create_server((HOST, dying.port)):  # Takes connections, but nobody accepts them.
            pool = rig.worker.pools[name(rig, dying)]
            before = set(pool._open)
            dying.die()
            await until(lambda: pool._open - before)
        answer = await request
        assert (answer.status, answer.replica) == (200, name(rig, heir))
        assert outcomes(rig) == [Outcome.FAILED] * (1 + idle) + [Outcome.OK]
        assert rig.state(name(rig, dying)) is State.DOWN
        assert (dying.generated, heir.generated) == (1, 1)


async def test_a_client_that_leaves_while_it_is_found_out_whether_its_replica_is_gone_leaves_nothing_behind() -> None:
    async def script(call: Call) -> None:
        replica.on_accept = lambda _: found.set()
        call.reset()

    found = asyncio.Event()
    async with scripted(script, health=SELDOM) as (rig, [replica]):
        async with connected(rig) as connection:
            await connection.send(chat())
            await found.wait()
        await rig.quiet()
        assert rig.record.left is Phase.WAITING


async def test_a_replica_that_takes_connections_and_resets_them_is_not_dead() -> None:
    """It may have read the request; nobody asks for ever."""

    async def script(call: Call) -> None:
        call.generate()
        replica.on_accept = lambda connection: connection.transport.abort()
        call.reset()

    async with scripted(script, health=SELDOM) as (rig, [replica]):
        accepted = replica.accepted
        answer = await asked(rig, chat())
        assert (answer.status, answer.code) == (502, "replica_lost")
        assert replica.generated == 1
        assert replica.accepted == accepted + 1 + DYING_TRIES


async def test_a_replica_that_cuts_idle_connections_is_asked_twice_for_one_request_only() -> None:
    """The others were idle as long, and are not used any more."""
    async with scripted(hang, health=SELDOM) as (rig, [only]):
        requests = [asyncio.create_task(asked(rig, chat())) for _ in range(4)]
        await until(lambda: len(only.calls) == 4)
        for call in list(only.calls):
            await whole()(call)
            call.gone.set()
        assert {answer.status for answer in await asyncio.gather(*requests)} == {200}
        await until(lambda: rig.worker.pools["r1"].idle == 4)
        only.script, only.generated = closing(hard=True), 0
        for _ in range(4):
            assert (await asked(rig, chat())).status == 502
        assert only.generated == 4 + 1


async def test_a_process_that_dies_is_followed_once() -> None:
    async with scripted(hang, hang, hang, health=SELDOM) as (rig, left):
        request = asyncio.create_task(asked(rig, chat()))
        for _ in range(2):
            await until(lambda: calls(left))
            dying = next(replica for replica in left if replica.calls)
            left.remove(dying)
            dying.die()
        answer = await request
        assert (answer.status, answer.code) == (502, "replica_lost")
        assert left[0].calls == []


@pytest.mark.parametrize("hard", [True, False], ids=["reset", "closed"])
async def test_a_replica_that_cuts_the_connection_and_lives_on_may_still_generate(hard: bool) -> None:
    async with scripted(closing(hard=hard), closing(hard=hard)) as (rig, replicas):
        answer = await asked(rig, chat())
        assert (answer.status, answer.code) == (502, "replica_lost")
        assert sum(replica.generated for replica in replicas) == 1
        assert (outcomes(rig), errors(rig)) == ([Outcome.FAILED], [UpstreamError.RESET])


BEGUN = {"half a head": b"HTTP/1.1 200 OK\r\nContent-", "an interim answer": b"HTTP/1.1 100 Continue\r\n\r\n"}


@pytest.mark.parametrize("data", BEGUN.values(), ids=BEGUN)
@pytest.mark.parametrize("idle", [True, False], ids=["idle before", "fresh"])
async def test_a_replica_that_has_begun_to_answer_is_not_asked_again(data: bytes, idle: bool) -> None:
    broken = closing(data, hard=False)
    async with scripted(first(whole(), broken) if idle else broken, health=SELDOM) as (rig, [only]):
        if idle:
            assert (await asked(rig, chat())).status == 200
        answer = await asked(rig, chat())
        assert (answer.status, answer.code) == (502, "replica_lost")
        assert only.generated == 1 + idle


@pytest.mark.parametrize("data", BEGUN.values(), ids=BEGUN)
async def test_a_replica_that_has_begun_to_answer_and_dies_is_not_followed(data: bytes) -> None:
    async def script(call: Call) -> None:
        await closing(data, hard=True)(call)
        replica_of[call.field("host") or ""].die()

    async with scripted(script, script, health=SELDOM) as (rig, replicas):
        replica_of = {f"{HOST}:{replica.port}": replica for replica in replicas}
        answer = await asked(rig, chat())
        assert (answer.status, answer.code) == (502, "replica_lost")
        assert calls(replicas) == 1


# Never else.


async def test_nothing_is_sent_again_after_a_time_out() -> None:
    """A stopped engine may wake. The probes find out that it hangs; the request stays where it is."""
    impatient = {"interval": "50ms", "timeout": "100ms", "stall": "200ms"}
    async with scripted(hang, hang, health=impatient) as (rig, replicas):
        async with connected(rig) as connection:
            await connection.send(chat())
            await until(lambda: calls(replicas))
            stuck = next(replica for replica in replicas if replica.calls)
            stuck.stalled = True
            await until(lambda: rig.state(name(rig, stuck)) is State.DOWN)
            await asyncio.sleep(0.2)
            assert calls(replicas) == 1
        await rig.quiet()
        assert outcomes(rig) == [Outcome.ABORTED]


@pytest.mark.parametrize("status", [400, 404, 422, 500, 502])
async def test_any_other_answer_is_the_replicas_last_word(status: int) -> None:
    broken = whole(b'{"error":1}', status)
    async with scripted(broken, broken, health={"ejection": {"failures": None}}) as (rig, replicas):
        for _ in range(20):
            answer = await asked(rig, chat())
            assert (answer.status, answer.body) == (status, b'{"error":1}')
        assert calls(replicas) == 20
        assert {len(record.attempts) for record in rig.records} == {1}
        assert {rig.state(id) for id in rig.worker.pools} == {State.READY}


@pytest.mark.parametrize("hard", [True, False], ids=["reset", "closed"])
@pytest.mark.parametrize("body", [b"", b"12345"], ids=["after the head", "midway"])
async def test_an_answer_that_breaks_off_is_seen_to_be_broken(body: bytes, hard: bool) -> None:
    broken = closing(HEAD + body, hard=hard)
    async with scripted(broken, broken) as (rig, replicas):
        answer = await asked(rig, chat())
        assert (answer.status, answer.whole, answer.body) == (200, False, body)
        assert calls(replicas) == 1
        assert outcomes(rig) == [Outcome.FAILED]


async def test_a_stream_that_dies_is_seen_to_be_broken() -> None:
    event = STREAM + b"9\r\ndata: 1\n\n\r\n"
    async with scripted(closing(event, hard=True)) as (rig, [only]):
        answer = await asked(rig, chat(stream=True))
        assert not answer.whole
        assert answer.body.startswith(b'data: 1\n\ndata: {"error":')
        only.script = closing(event + b"9\r\nda", hard=True)
        answer = await asked(rig, chat(stream=True))
        assert (answer.whole, answer.body) == (False, b"data: 1\n\nda")


GARBAGE = {
    "another protocol": b"SSH-2.0-OpenSSH_9.2\r\n",
    "a switch of protocols": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n",
    "two answers": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhiHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nho",
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)
async def test_an_answer_that_is_no_answer_is_an_error(garbage: bytes) -> None:
    async with scripted(sent(garbage), sent(garbage)) as (rig, replicas):
        answer = await asked(rig, chat())
        assert answer.status == 502
        assert (outcomes(rig), errors(rig)) == ([Outcome.FAILED], [UpstreamError.PROTOCOL])
        assert calls(replicas) == 1


@pytest.mark.parametrize("field", [[], ["X-Request-Id: mine"]], ids=["the router's", "the client's"])
async def test_a_request_keeps_its_id_over_all_sends(field: list[str]) -> None:
    async with scripted(full(), full()) as (rig, replicas):
        answer = await asked(rig, chat("hello", *field))
        ids = [call.field("x-request-id") for replica in replicas for call in replica.calls]
        assert ids == [answer["x-homing-request-id"]] * 2
        assert not field or ids[0] == "mine"


@pytest.mark.parametrize("script", [full(), closing(hard=True)], ids=["full", "reset"])
async def test_requests_without_a_prompt_go_by_the_same_rules(script: Script) -> None:
    async with scripted(whole(b"ok"), script) as (rig, [_, faulty]):
        answers = [await asked(rig, get("/v1/anything"), "GET") for _ in range(4)]
        if faulty.generated:
            assert [answer.status for answer in answers].count(502) == faulty.generated
        else:
            assert {answer.body for answer in answers} == {b"ok"}
            assert len(faulty.calls) <= 1
