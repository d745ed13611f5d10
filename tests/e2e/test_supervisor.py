"""A supervisor and its workers, as processes: sharing, dying, draining, being replaced, reloading."""

import asyncio
import os
import signal
from pathlib import Path

import aiohttp
import pytest

from tests.e2e.supervised import (
    WITHIN,
    Engine,
    Router,
    Stream,
    chat,
    eventually,
    finished,
    listed,
    streaming,
    supervised,
)
from tests.rig import until
from tests.scripted import HOST, ScriptedReplica

LONG = "a preamble that all of them share " * 100


async def refused(router: Router) -> bool:
    try:
        await router.chat()
    except aiohttp.ClientConnectorError:
        return True
    return False


async def test_workers_share_what_they_believe_and_what_they_have_under_way(tmp_path: Path) -> None:
    """A19, A20, B59: a prompt placed by one worker is home to the other; load gauges are sums over both."""
    engine = Engine()
    async with supervised(tmp_path, engine, replicas=4, workers=2) as (router, _):
        first = await router.chat(LONG)
        await asyncio.sleep(0.1)  # News takes 30 ms.
        answers = [await router.chat(LONG) for _ in range(12)]
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
    async with supervised(tmp_path, engine, replicas=4, workers=2) as (router, _):
        streams = await streaming(router, 40)
        counts = await router.requests()
        assert max(counts.values()) <= 16
        engine.end()
        await finished(streams)


async def test_a_worker_that_is_killed_is_replaced_and_takes_only_its_own_clients_along(tmp_path: Path) -> None:
    engine = Engine()
    async with supervised(tmp_path, engine, workers=2) as (router, _):
        streams = await streaming(router, 30)
        os.kill(router.workers()[0], signal.SIGKILL)
        await until(lambda: any(stream.task.done() for stream in streams))
        answers = [(await router.chat(f"{i}")).status for i in range(20)]
        assert answers == [200] * 20
        await router.said("killed by SIGKILL")
        broken = [stream for stream in streams if stream.task.done()]
        assert 0 < len(broken) < 30
        await eventually(lambda: complete(router, 2))
        assert sum((await router.requests()).values()) == 30 - len(broken)
        assert await router.metric("homing_worker_restarts_total") == 1
        engine.end()
        await finished(streams)
        assert sum(stream.whole for stream in streams) == 30 - len(broken)


async def complete(router: Router, workers: int) -> bool:
    return bool((await router.fleet())["workers"] == workers)


async def test_a_replacement_begins_with_what_the_others_know(tmp_path: Path) -> None:
    """B60: it knows who is ready and what the others have before it serves: no request of its is refused."""
    engine = Engine()
    async with supervised(tmp_path, engine, workers=2, routing={"max_concurrency": 12}) as (router, _):
        streams = await streaming(router, 24)
        for worker in router.workers():
            os.kill(worker, signal.SIGKILL)
        await finished(streams)
        assert [(await router.chat(f"{i}")).status for i in range(8)] == [200] * 8


async def test_a_drain_ends_no_stream_and_refuses_nobody_before_its_time(tmp_path: Path) -> None:
    """R27."""
    engine = Engine()
    async with supervised(tmp_path, engine, workers=2, drain={"timeout": "20s", "accept": "1s"}) as (router, _):
        streams = await streaming(router, 100)
        async with router.client() as kept:
            assert "Connection" not in (await chat(kept)).headers
            router.signal(signal.SIGTERM)
            await router.said("stopping")
            assert (await router.get("/readyz"))[0] == 503
            assert "draining" in (await router.get("/readyz"))[1]
            for answer in (await chat(kept), await router.chat()):
                assert (answer.status, answer.headers["Connection"]) == (200, "close")
        await eventually(lambda: refused(router))
        assert (await router.get("/livez"))[0] == 200
        assert not any(stream.task.done() for stream in streams)
        engine.end()
        await finished(streams)
        assert sum(stream.whole for stream in streams) == 100
        assert await router.ended() == 0


async def test_a_drain_that_may_leave_readiness_alone_does(tmp_path: Path) -> None:
    drain = {"timeout": "20s", "accept": "10s", "readiness": "keep"}
    async with supervised(tmp_path, Engine(), drain=drain) as (router, _):
        router.signal(signal.SIGINT)
        await router.said("stopping")
        assert (await router.get("/readyz"))[0] == 200


async def test_a_drain_cuts_what_has_not_ended_in_its_time_and_a_second_signal_everything(tmp_path: Path) -> None:
    async with supervised(tmp_path, Engine(), drain={"timeout": "500ms"}) as (router, _):
        streams = await streaming(router, 3)
        router.signal(signal.SIGTERM)
        await finished(streams)
        assert (await router.ended(), [stream.whole for stream in streams]) == (0, [False] * 3)
    async with supervised(tmp_path, Engine(), drain={"timeout": "20s"}) as (router, _):
        streams = await streaming(router, 3)
        router.signal(signal.SIGINT)
        await router.said("stopping")
        router.signal(signal.SIGINT)
        await finished(streams)
        assert await router.ended() == 0


async def test_workers_whose_supervisor_is_killed_let_their_streams_end_and_go(tmp_path: Path) -> None:
    engine = Engine()
    async with supervised(tmp_path, engine) as (router, _):
        streams = await streaming(router, 3)
        [worker] = router.workers()
        router.signal(signal.SIGKILL)
        await router.said("the supervisor is gone")
        engine.end()
        await finished(streams)
        assert all(stream.whole for stream in streams)
        await until(lambda: not Path(f"/proc/{worker}").exists(), WITHIN)


class Load:
    """A hundred requests a second, over connections that are kept and over new ones in turn."""

    def __init__(self, router: Router) -> None:
        self.statuses: list[int] = []
        self.failures: list[BaseException] = []
        self._router = router
        self._stop = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        self._stop.set()
        await self._task

    async def _run(self) -> None:
        async with self._router.client() as kept, asyncio.TaskGroup() as group:
            number = 0
            while not self._stop.is_set():
                group.create_task(self._one(kept, number))
                number += 1
                await asyncio.sleep(0.01)

    async def _one(self, kept: aiohttp.ClientSession, number: int) -> None:
        try:
            answer = await (chat(kept, f"{number}") if number % 2 else self._router.chat(f"{number}"))
        except (aiohttp.ClientError, OSError) as error:
            self.failures.append(error)
        else:
            self.statuses.append(answer.status)


async def test_a_new_process_takes_the_place_of_an_old_one_under_load_and_nobody_is_refused(tmp_path: Path) -> None:
    """SIGUSR2 under 100 requests a second: 0 refused, 0 broken; streams of the old one run to their end."""
    engine = Engine()
    async with supervised(tmp_path, engine, workers=2) as (router, _):
        streams = await streaming(router, 20)
        load = Load(router)
        await until(lambda: len(load.statuses) > 20)
        router.write(workers=3)
        router.signal(signal.SIGUSR2)
        await router.said("takes over")
        await until(lambda: any(router.workers(pid) for pid in router.workers()), WITHIN)
        old, successor = router.pid, next(pid for pid in router.workers() if router.workers(pid))
        router.pid = successor
        await router.said("stopping")
        before = len(load.statuses)
        await until(lambda: len(load.statuses) > before + 100, WITHIN)
        assert old != successor
        assert not any(stream.task.done() for stream in streams)
        engine.end()
        await finished(streams)
        assert await router.ended() == 0
        await load.stop()
        assert load.failures == []
        assert set(load.statuses) == {200}
        assert all(stream.whole for stream in streams)
        assert (await router.fleet())["workers"] == 3
        assert (await router.chat()).status == 200


async def test_a_new_process_that_cannot_serve_leaves_the_old_one_in_its_place(tmp_path: Path) -> None:
    async with supervised(tmp_path, Engine()) as (router, _):
        router.config.write_text("replicas: [")
        router.signal(signal.SIGUSR2)
        await router.said("this one goes on")
        assert (await router.chat()).status == 200
        assert (await router.get("/readyz"))[0] == 200


async def test_a_second_router_is_not_let_in_at_the_same_port(tmp_path: Path) -> None:
    """Workers share a port among themselves, and with nobody else."""
    async with supervised(tmp_path, Engine(), workers=2) as (router, _):
        other = tmp_path / "other"
        other.mkdir()
        second = Router(other, router.tree | {"listen": router.url.removeprefix("http://")})
        code, said = await second.command("serve", "-c", str(second.config))
        assert code == 1
        assert "H128" in said
        assert "is in use by process" in said


# Reload.


async def test_a_reload_changes_the_fleet_and_touches_no_stream(tmp_path: Path) -> None:
    """R13, A70: one replica goes, one comes, fifty streams go on; a removed one is gone with its last answer."""
    engine = Engine()
    async with supervised(tmp_path, engine, replicas=3, workers=2) as (router, replicas):
        streams = await streaming(router, 50)
        on_second = [stream for stream in streams if stream.replica == "r2"]
        assert on_second
        async with ScriptedReplica(engine) as fourth:
            kept = [listed(replicas)[0], listed(replicas)[2], *listed([fourth], 4)]
            router.write(replicas=kept, routing={"spill": {"max_queued_requests": 99}})
            status, told = await router.post("/reload")
            assert status == 200
            assert "routing.spill.max_queued_requests 32 -> 99" in told["changed"]
            assert f"replicas.r2.url {replicas[1].url} -> none" in told["changed"]
            assert f"replicas.r4.url none -> {fourth.url}" in told["changed"]
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
            await until(lambda: not replicas[1].connections)


async def gone(router: Router, replica: str) -> bool:
    return replica not in (await router.fleet())["replicas"]


async def test_a_replica_that_moves_is_found_at_its_new_address(tmp_path: Path) -> None:
    engine = Engine()
    async with supervised(tmp_path, engine, replicas=1) as (router, [old]), ScriptedReplica(engine) as new:
        [stream] = await streaming(router, 1)
        router.write(replicas=listed([new]))
        assert (await router.post("/reload"))[0] == 200
        await router.ready("r1")
        assert (await router.chat()).status == 200
        assert (new.generated, old.generated) == (1, 1)
        engine.end()
        await finished([stream])
        assert stream.whole
        await until(lambda: not old.connections, 15)


async def test_an_invalid_configuration_changes_nothing_and_says_what_is_wrong(tmp_path: Path) -> None:
    """R13: the same diagnostics as `homing check`."""
    async with supervised(tmp_path, Engine()) as (router, _):
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
        router.signal(signal.SIGHUP)
        await router.said("reloaded: admin.token_file")
        assert await router.metric("homing_config_last_reload_successful") == 1
        assert (await router.post("/reload"))[0] == 401
        assert (await router.post("/reload", "another")) == (200, {"changed": [], "needs_restart": []})
        assert "another" not in router.output()


async def test_what_needs_a_restart_is_told_and_left_alone(tmp_path: Path) -> None:
    async with supervised(tmp_path, Engine()) as (router, _):
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
    async with supervised(tmp_path, engine, replicas=1) as (router, _):
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


# Drain and undrain of a replica; who may.


async def test_a_drained_replica_gets_nothing_new_until_it_is_undrained(tmp_path: Path) -> None:
    """A64."""
    engine = Engine()
    async with supervised(tmp_path, engine, workers=2) as (router, replicas):
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


async def serves(router: Router, replica: str) -> bool:
    return any([(await router.chat(f"{i} x")).headers["x-homing-replica"] == replica for i in range(10)])


@pytest.mark.parametrize(
    ("admin", "says"),
    [({}, "admin.token_file is not set"), ({"token_file": "token", "mutations": False}, "admin.mutations is false")],
)
async def test_nobody_changes_anything_without_a_token_or_where_it_is_forbidden(
    tmp_path: Path, admin: dict[str, object], says: str
) -> None:
    """R14."""
    async with supervised(tmp_path, Engine(), admin={"listen": f"{HOST}:0", **admin}) as (router, _):
        for path in ("/reload", "/drain?replica=r1", "/undrain?replica=r1"):
            status, told = await router.post(path)
            assert (status, says in told["error"]["message"]) == (403, True)
            assert (await router.get(path))[0] == 405


async def test_explain_is_answered_by_a_worker(tmp_path: Path) -> None:
    async with supervised(tmp_path, Engine(), workers=2) as (router, _):
        body = {"model": "sim", "messages": [{"role": "user", "content": "hello"}]}
        async with aiohttp.ClientSession() as session:
            async with session.post(f"{router.admin_url}/explain", json=body) as response:
                told = await response.json()
        assert (response.status, told["decision"]["answer"]) == (200, "route")


async def test_a_client_that_leaves_is_gone_from_the_sum_of_all_workers(tmp_path: Path) -> None:
    """B55."""
    async with supervised(tmp_path, Engine(), workers=2) as (router, _):
        streams: list[Stream] = await streaming(router, 20)
        for stream in streams:
            stream.task.cancel()
        await finished(streams)
        await eventually(lambda: idle(router), 5.0)


async def idle(router: Router) -> bool:
    return not any((await router.requests()).values())
