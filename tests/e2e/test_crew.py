"""Workers that share a router: beliefs and load, reloads, drained replicas, who may change what. All in one loop."""

import asyncio
import logging
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from router.core.budget import LEAST
from router.core.types import State
from router.crew import HUNG
from router.gossip.messages import Members, Message
from router.proxy.bounds import Bounds, Times
from router.sockets import listen_shared
from router.values import Endpoint
from tests.e2e.supervised import Crewed, Engine, crewed, eventually, finished, listed, streaming
from tests.rig import hired, until
from tests.scripted import HOST, ScriptedReplica


@pytest.fixture(autouse=True)
def log_level() -> Iterator[None]:
    """A reload sets the process's."""
    before = logging.getLogger().level
    yield
    logging.getLogger().setLevel(before)


LONG = "a preamble that all of them share " * 100


async def test_workers_share_what_they_believe_and_what_they_have_under_way(tmp_path: Path) -> None:
    """A19, A20, B59: a prompt placed by one worker is home to the other; load gauges are sums over both."""
    engine = Engine()
    async with crewed(tmp_path, engine, replicas=4) as (router, _):
        first = await router.chat(LONG)
        answers = []
        for _ in range(12):  # Slower than news: faster, each would assume that the other sends as much as itself.
            await asyncio.sleep(0.06)
            answers.append(await router.chat(LONG))
        workers = {answer.headers["x-homing-request-id"].rsplit("-", 1)[0] for answer in answers}
        assert len(workers) == 2
        assert {answer.headers["x-homing-replica"] for answer in answers} == {first.headers["x-homing-replica"]}
        assert {answer.headers["x-homing-reason"] for answer in answers} == {"holder"}
        streams = await streaming(router, 20)
        assert sum((await router.requests()).values()) == 20
        assert await router.metric("homing_replica_in_flight") == 20
        engine.end()
        await finished(streams)
        assert sum((await router.requests()).values()) == 0
        assert await router.metric("homing_requests_total") == 33
        assert await router.metric("homing_workers") == 2


async def test_a_burst_over_two_workers_is_spread_over_the_replicas(tmp_path: Path) -> None:
    """B43: what both dispatch within one period of news goes by what each assumes of the other."""
    engine = Engine()
    async with crewed(tmp_path, engine, replicas=4) as (router, _):
        streams = await streaming(router, 40)
        counts = await router.requests()
        assert max(counts.values()) <= 16
        engine.end()
        await finished(streams)


async def test_a_worker_that_takes_a_dead_ones_place_knows_what_that_one_knew(tmp_path: Path) -> None:
    """B4: from its first request, and although there is no other worker to learn from."""
    async with crewed(tmp_path, Engine(), replicas=4, workers=1) as (router, _):
        prompts = [f"{number} " * 900 for number in range(20)]
        sent = [(await router.chat(prompt)).headers["x-homing-replica"] for prompt in prompts]
        await router.control.renew_snapshot()
        router.workers[0].drain(0.0, 0.0, 0.0)
        await router.workers[0].stopped.wait()
        clients = listen_shared(Endpoint(HOST, 0), 1)[0]
        router.url = "http://{}:{}".format(*clients.getsockname())
        router.workers = [await hired(router.control, clients, "next")]
        await router.ready("r1", "r2", "r3", "r4")
        answers = [await router.chat(prompt) for prompt in prompts]
        assert [answer.headers["x-homing-replica"] for answer in answers] == sent
        assert {answer.headers["x-homing-reason"] for answer in answers} == {"holder"}


async def test_who_waits_for_an_answer_and_is_cancelled_just_as_it_comes_is_cancelled(tmp_path: Path) -> None:
    """As when a router ends while its last worker, which was asked for its part of the snapshot, has just ended."""
    async with crewed(tmp_path, Engine(), workers=1) as (router, _):
        crew = router.control.crew
        asking = asyncio.create_task(crew.summarise("r1"))
        await asyncio.sleep(0)
        crew._asked[max(crew._asked)].had("0")
        asking.cancel()
        await asyncio.wait([asking])
        assert asking.cancelled()


# Reload.


async def test_a_reload_changes_the_fleet_and_touches_no_stream(tmp_path: Path) -> None:
    """R13, A70: one replica goes, one comes, fifty streams go on; a removed one is gone with its last answer."""
    engine = Engine()
    async with crewed(tmp_path, engine, replicas=3) as (router, replicas):
        streams = await streaming(router, 50)
        on_second = [stream for stream in streams if stream.replica == "r2"]
        assert on_second
        async with ScriptedReplica(engine) as fourth:
            kept = [listed(replicas)[0], listed(replicas)[2], *listed([fourth], 4)]
            router.write(replicas=kept, routing={"spill": {"max_queued_requests": 99}})
            status, told = await router.post("/reload")
            assert status == 200
            assert "routing.spill.max_queued_requests 32 -> 99" in told["changed"]
            assert [line for line in told["changed"] if line.startswith("replicas.")] == [
                f"replicas.r2.url {replicas[1].url} -> none", f"replicas.r4.url none -> {fourth.url}",
            ]  # fmt: skip
            await router.ready("r1", "r3", "r4")
            assert (await router.fleet())["replicas"]["r2"]["state"] == "draining"
            probes = len(replicas[1].probes)
            answers = [await router.chat(f"{i} " * 200) for i in range(30)]
            assert {answer.headers["x-homing-replica"] for answer in answers} == {"r1", "r3", "r4"}
            assert not any(stream.task.done() for stream in streams)
            assert len(replicas[1].probes) <= probes + 1
            engine.end()
            await finished(streams)
            assert all(stream.whole for stream in streams)
            await eventually(lambda: gone(router, "r2"))
            assert 'replica="r2"' not in (await router.get("/metrics"))[1]
            assert not any("r2" in worker.pools for worker in router.workers)


async def test_a_reload_changes_how_many_replicas_make_the_router_ready(tmp_path: Path) -> None:
    async with crewed(tmp_path, Engine()) as (router, _):
        assert (await router.get("/readyz"))[0] == 200
        router.write(ready={"min_replicas": 3})
        assert (await router.post("/reload"))[0] == 200
        status, said = await router.get("/readyz")
        assert (status, "2 of 2 are ready, 3 wanted" in said) == (503, True)


async def test_a_reload_changes_what_clients_may_take_and_how_long_anything_may_last(tmp_path: Path) -> None:
    """Of open connections, too, and of what is under way on them."""
    async with crewed(tmp_path, Engine()) as (router, _):
        [stream] = await streaming(router, 1)
        router.write(
            timeouts={
                "head": "1s",
                "body": None,
                "keep_alive": "2m",
                "first_byte": "4h",
                "idle": "100ms",
                "request": "1h",
            },
            limits={"body": "1MiB", "head": "8KiB", "buffered": "2MiB", "connections": 7},
            proxy={"half_close": True},
        )
        assert (await router.post("/reload"))[0] == 200
        for worker in router.workers:
            assert worker.proxy.times == Times(1.0, None, 120.0, 14_400.0, 0.1, 3600.0, 10.0)
            assert worker.proxy.bounds == Bounds(1 << 20, 8 << 10, 2 << 20, 7)
            assert worker.proxy.half_close
        await finished([stream])  # It stands still, which it now may for 100 ms only.
        assert not stream.whole


async def gone(router: Crewed, replica: str) -> bool:
    return replica not in (await router.fleet())["replicas"]


async def test_a_replica_that_was_removed_and_is_gone_serves_again_when_it_is_added_again(tmp_path: Path) -> None:
    """Workers that had let go of it know nothing of it any more, not even its models."""
    async with crewed(tmp_path, Engine()) as (router, replicas):
        router.write(replicas=listed(replicas)[:1])
        assert (await router.post("/reload"))[0] == 200
        await eventually(lambda: gone(router, "r2"))
        router.write(replicas=listed(replicas))
        assert (await router.post("/reload"))[0] == 200
        await router.ready("r1", "r2")
        await eventually(lambda: serves(router, "r2"))


async def test_a_replica_that_is_removed_and_comes_back_elsewhere_before_its_last_answer_is_out(tmp_path: Path) -> None:
    engine = Engine()
    async with crewed(tmp_path, engine) as (router, replicas), ScriptedReplica(engine) as third:
        streams = await streaming(router, 20)
        router.write(replicas=listed(replicas)[:1])
        assert (await router.post("/reload"))[0] == 200
        router.write(replicas=[listed(replicas)[0], listed([third], 2)[0]])
        assert (await router.post("/reload"))[0] == 200
        await router.ready("r1", "r2")
        await eventually(lambda: serves(router, "r2"))
        assert third.generated
        engine.end()
        await finished(streams)
        assert all(stream.whole for stream in streams)
        assert sum((await router.requests()).values()) == 0
        await until(lambda: not any(worker._retired for worker in router.workers))


async def test_a_replica_that_moves_is_found_at_its_new_address(tmp_path: Path) -> None:
    engine = Engine()
    async with crewed(tmp_path, engine, replicas=1) as (router, [old]), ScriptedReplica(engine) as new:
        [stream] = await streaming(router, 1)
        router.write(replicas=listed([new]))
        assert (await router.post("/reload"))[0] == 200
        await router.ready("r1")
        assert (await router.chat()).status == 200
        assert (new.generated, old.generated) == (1, 1)
        engine.end()
        await finished([stream])
        assert stream.whole
        await until(lambda: not any(worker._retired for worker in router.workers))


async def test_an_invalid_configuration_changes_nothing_and_says_what_is_wrong(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """R13: the same diagnostics as `homing check`."""
    caplog.set_level("INFO", logger="homing")
    async with crewed(tmp_path, Engine()) as (router, _):
        assert await router.metric("homing_config_last_reload_successful") == 1
        router.write(routing={"prefix_blok": 512})
        status, told = await router.post("/reload")
        assert status == 422
        [found] = told["diagnostics"]
        assert (found["code"], found["suggestion"]) == ("H103", "prefix_block")
        assert await router.metric("homing_config_last_reload_successful") == 0
        assert (await router.chat()).status == 200
        router.token_file.unlink()
        router.write(routing={})
        status, told = await router.post("/reload")
        assert (status, told["diagnostics"][0]["code"]) == (422, "H127")
        router.token_file.write_text("another")
        assert (await router.post("/reload"))[0] == 200
        assert await router.metric("homing_config_last_reload_successful") == 1
        assert (await router.post("/reload"))[0] == 401
        assert (await router.post("/reload", "another")) == (200, {"changed": [], "needs_restart": []})
        assert "reloaded: admin.token_file (its content) *** -> ***" in caplog.text
        assert "another" not in caplog.text


async def test_what_needs_a_restart_is_told_and_left_alone(tmp_path: Path) -> None:
    async with crewed(tmp_path, Engine(), workers=1) as (router, _):
        listen = router.tree["listen"]
        router.write(workers=2, listen=f"{HOST}:1", log={"level": "debug"}, routing={"prefix_block": 128})
        status, told = await router.post("/reload")
        assert status == 200
        assert told == {
            "changed": ["log.level info -> debug"],
            "needs_restart": [
                f"listen {listen} -> {HOST}:1", "routing.prefix_block 512 -> 128", "workers 1 -> 2",
            ],
        }  # fmt: skip
        assert (await router.post("/reload"))[1]["changed"] == []
        assert (await router.fleet())["workers"] == 1
        assert (await router.chat()).status == 200


async def test_limits_queues_and_paths_take_effect_live(tmp_path: Path) -> None:
    engine = Engine()
    async with crewed(tmp_path, engine, replicas=1, workers=1) as (router, _):
        [stream] = await streaming(router, 1)
        router.write(
            routing={"max_concurrency": 1, "queue": {"max_requests": 0}},
            limits={"body": "1KiB"},
            proxy={"allow_paths": ["/sleep"]},
        )
        assert (await router.post("/reload"))[0] == 200
        assert (await router.chat()).status == 429
        assert (await router.chat("x" * 2_000)).status == 413
        async with router.client() as session, session.post("/sleep") as response:
            assert response.status == 429
        engine.end()
        await finished([stream])
        assert (await router.chat()).status == 200


# What workers are told.


async def test_what_a_probe_finds_may_be_lost_and_a_change_of_state_may_not(tmp_path: Path) -> None:
    """A worker that hangs for a while would else send to a replica that is down, which is never told of again."""
    async with crewed(tmp_path, Engine(), health={"interval": "60s"}) as (router, _):
        control, sent = router.control, list[tuple[list[tuple[str, bool]], bool]]()

        def broadcast(message: Message, must: bool = False) -> None:
            assert isinstance(message, Members)
            sent.append(([(member.state, member.models is not None) for member in message.members], must))

        control.crew.hub.broadcast = broadcast  # type: ignore[method-assign]

        def told() -> object:
            control.crew.changed("r1")
            control.crew._tell_changed()
            return sent[-1]

        assert told() == ([("ready", False)], False)
        control.fleet.serves("r1", {"sim": {}, "another": {}})
        assert told() == ([("ready", True)], True)
        control.fleet.mark("r1", State.DOWN, "test", 0.0)
        assert told() == ([("down", False)], True)
        assert told() == ([("down", False)], False)


async def test_a_worker_that_joins_knows_who_is_ejected_and_who_is_full(tmp_path: Path) -> None:
    async with crewed(tmp_path, Engine(), replicas=4) as (router, _):
        now = time.monotonic()
        router.control._ejected("r1", "test", 60.0)
        router.control.fleet.told_full("r2", now + 60.0)
        router.workers.append(await hired(router.control, socket.create_server((HOST, 0)), "new"))
        fleet = router.workers[-1].fleet
        await until(lambda: fleet.replica("r1").state is State.EJECTED)
        assert fleet.replica("r1").conduct.until == pytest.approx(now + 60.0, abs=5.0)
        await until(lambda: fleet.replica("r2").state_now(time.monotonic()) is State.FULL)
        assert [fleet.replica(name).state_now(now) for name in ("r3", "r4")] == [State.READY] * 2


async def test_a_worker_that_says_nothing_for_long_is_parted_with(tmp_path: Path) -> None:
    async with crewed(tmp_path, Engine()) as (router, _):
        crew = router.control.crew
        silent, _ = crew.hub.peers
        for _ in range(HUNG + 1):
            crew._silent[crew.hub.peers[1]] = 0
            crew.watch()
        await until(lambda: silent not in crew.hub.peers)
        assert len(crew.serving) == 1
        await until(lambda: sum(worker.stopped.is_set() for worker in router.workers) == 1)


async def test_probes_that_end_are_the_end_of_the_router(tmp_path: Path) -> None:
    """Nobody would see that what it knows of the fleet is old."""
    async with crewed(tmp_path, Engine()) as (router, _):

        def fail() -> None:
            raise RuntimeError("a bug")

        assert not router.control.broken.done()
        router.control._health._readmit = fail  # type: ignore[method-assign]
        with pytest.raises(ExceptionGroup) as raised:
            await asyncio.wait_for(router.control.broken, 5.0)
        assert raised.group_contains(RuntimeError, match="a bug")


# Drain and undrain of a replica; who may.


async def test_an_ejected_replica_that_is_drained_is_not_readmitted(tmp_path: Path) -> None:
    async with crewed(tmp_path, Engine()) as (router, _):
        router.control._ejected("r1", "test", 60.0)
        status, told = await router.post("/drain?replica=r1")
        assert (status, told["state"]) == (200, "draining")
        router.control.fleet.readmit(time.monotonic() + 90.0)
        assert {(await router.chat(f"{i}")).headers["x-homing-replica"] for i in range(10)} == {"r2"}


async def test_nothing_can_be_changed_while_a_new_process_takes_over(tmp_path: Path) -> None:
    """It was told what was so far, and would not hear of it."""
    async with crewed(tmp_path, Engine()) as (router, _):
        router.control.handing_over = True
        for path in ("/reload", "/drain?replica=r1"):
            assert (await router.post(path))[0] == 409
            assert (await router.post(path, "wrong"))[0] == 401
        router.control.handing_over = False
        assert (await router.post("/drain?replica=r1"))[0] == 200


async def test_a_drained_replica_gets_nothing_new_until_it_is_undrained(tmp_path: Path) -> None:
    """A64."""
    engine = Engine()
    async with crewed(tmp_path, engine) as (router, replicas):
        streams = await streaming(router, 20)
        assert {stream.replica for stream in streams} == {"r1", "r2"}
        status, told = await router.post("/drain?replica=r1")
        assert (status, told["state"]) == (200, "draining")
        await asyncio.sleep(0.3)  # It answers its probes meanwhile, which must not undrain it.
        served = len(replicas[0].calls)
        assert {(await router.chat(f"{i}")).headers["x-homing-replica"] for i in range(10)} == {"r2"}
        assert len(replicas[0].calls) == served
        assert (await router.fleet())["replicas"]["r1"]["reason"] == "drained by an operator"
        status, told = await router.post("/undrain?replica=r1")
        assert (status, told["state"]) == (200, "ready")
        await eventually(lambda: serves(router, "r1"))
        engine.end()
        await finished(streams)
        assert all(stream.whole for stream in streams)


async def serves(router: Crewed, replica: str) -> bool:
    return any([(await router.chat(f"{i} x")).headers["x-homing-replica"] == replica for i in range(10)])


@pytest.mark.parametrize(
    ("admin", "says"),
    [({}, "admin.token_file is not set"), ({"token_file": "token", "mutations": False}, "admin.mutations is false")],
)
async def test_nobody_changes_anything_without_a_token_or_where_it_is_forbidden(
    tmp_path: Path, admin: dict[str, object], says: str
) -> None:
    """R14."""
    async with crewed(tmp_path, Engine(), admin={"listen": f"{HOST}:0", **admin}) as (router, _):
        for path in ("/reload", "/drain?replica=r1", "/undrain?replica=r1"):
            status, told = await router.post(path)
            assert (status, says in told["error"]["message"]) == (403, True)
            assert (await router.get(path))[0] == 405


async def test_a_scrape_shows_what_is_left_of_the_retry_budget(tmp_path: Path) -> None:
    async with crewed(tmp_path, Engine()) as (router, _):
        assert await router.metric("homing_retry_budget_ratio") == 1.0
        budget = router.workers[1].proxy.budget
        for _ in range(LEAST // 2):
            assert budget.spend(time.monotonic())
        assert await router.metric("homing_retry_budget_ratio") == 0.5


async def test_explain_is_answered_by_a_worker(tmp_path: Path) -> None:
    async with crewed(tmp_path, Engine()) as (router, _):
        body = {"model": "sim", "messages": [{"role": "user", "content": "hello"}]}
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{router.admin_url}/explain", json=body) as response,
        ):
            told = await response.json()
        assert (response.status, told["decision"]["answer"]) == (200, "route")


async def test_a_client_that_leaves_is_gone_from_the_sum_of_all_workers(tmp_path: Path) -> None:
    """B55."""
    async with crewed(tmp_path, Engine()) as (router, _):
        streams = await streaming(router, 20)
        for stream in streams:
            stream.task.cancel()
        await finished(streams)
        await eventually(lambda: idle(router), 5.0)


async def idle(router: Crewed) -> bool:
    return not any((await router.requests()).values())
