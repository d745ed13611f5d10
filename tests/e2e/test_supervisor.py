"""A supervisor and its workers, as processes: sharing, dying, draining, being replaced, reloading."""

import asyncio
import os
import resource
import signal
from pathlib import Path
from typing import Any

import aiohttp

from tests.e2e.supervised import (
    WITHIN,
    Engine,
    Router,
    chat,
    eventually,
    finished,
    streaming,
    supervised,
)
from tests.rig import until

LONG = "a preamble that all of them share " * 100


async def closed_after(session: aiohttp.ClientSession) -> bool:
    """Whether the worker that answers lets go of the connection."""
    answer = await chat(session)
    assert answer.status == 200
    return answer.headers.get("Connection") == "close"


async def refused(router: Router) -> bool:
    try:
        await router.chat()
    except aiohttp.ClientConnectorError:
        return True
    return False


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
    async with supervised(tmp_path, engine, workers=2, drain={"timeout": "30s", "accept": "5s"}) as (router, _):
        streams = await streaming(router, 100)
        async with router.client() as kept, router.client() as new:
            assert "Connection" not in (await chat(kept)).headers
            router.signal(signal.SIGTERM)
            await router.said("stopping")
            assert (await router.get("/readyz"))[0] == 503
            assert "draining" in (await router.get("/readyz"))[1]
            for client in (kept, new):  # The workers are told after the log is.
                await eventually(lambda client=client: closed_after(client))  # type: ignore[misc]
        await eventually(lambda: refused(router))
        assert (await router.get("/livez"))[0] == 200
        assert not any(stream.task.done() for stream in streams)
        engine.end()
        await finished(streams)
        assert sum(stream.whole for stream in streams) == 100
        assert await router.ended() == 0


async def test_a_drain_cuts_what_has_not_ended_in_its_time_and_a_second_signal_everything(tmp_path: Path) -> None:
    async with supervised(tmp_path, Engine(), drain={"timeout": "500ms"}) as (router, _):
        streams = await streaming(router, 3)
        router.signal(signal.SIGTERM)
        await finished(streams)
        assert (await router.ended(), [stream.whole for stream in streams]) == (0, [False] * 3)
        await router.said("3 requests had not ended within drain.timeout and were broken off")
    async with supervised(tmp_path, Engine(), drain={"timeout": "20s", "readiness": "keep"}) as (router, _):
        streams = await streaming(router, 3)
        router.signal(signal.SIGINT)
        await router.said("stopping")
        assert (await router.get("/readyz"))[0] == 200
        router.signal(signal.SIGINT)
        await finished(streams)
        assert await router.ended() == 0


async def test_workers_whose_supervisor_is_killed_let_their_streams_end_and_go_and_another_can_start_at_once(
    tmp_path: Path,
) -> None:
    engine = Engine()
    home = tmp_path / "another"
    home.mkdir()
    async with supervised(tmp_path, engine, workers=2) as (router, _):
        streams = await streaming(router, 8)
        workers = router.workers()
        router.signal(signal.SIGKILL)
        ports: dict[str, Any] = {
            "listen": router.url.removeprefix("http://"),
            "admin": router.admin_url.removeprefix("http://"),
        }
        async with supervised(home, engine, **ports) as (another, _):
            assert (await another.chat()).status == 200
            assert not any(stream.task.done() for stream in streams)
            engine.end()
            await finished(streams)
            assert all(stream.whole for stream in streams)
            await until(lambda: not any(Path(f"/proc/{worker}").exists() for worker in workers), WITHIN)
        await router.said("the supervisor is gone: draining", 2)


async def test_workers_get_the_descriptors_that_the_system_grants_whatever_they_begin_with(tmp_path: Path) -> None:
    begin, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(begin, 512), most))
    try:
        async with supervised(tmp_path, Engine(), workers=2) as (router, _):
            assert [resource.prlimit(pid, resource.RLIMIT_NOFILE) for pid in router.workers()] == [(most, most)] * 2
            assert router.output().count("file descriptors in a worker") <= 1
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (begin, most))


RATE = 100.0


class Load:
    """RATE requests a second, however they fare, over connections that are kept and over new ones in turn."""

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
        loop = asyncio.get_running_loop()
        async with self._router.client() as kept, asyncio.TaskGroup() as group:
            began, number = loop.time(), 0
            while not self._stop.is_set():
                group.create_task(self._one(kept, number))
                number += 1
                await asyncio.sleep(began + number / RATE - loop.time())

    async def _one(self, kept: aiohttp.ClientSession, number: int) -> None:
        try:
            answer = await (chat(kept, f"{number}") if number % 2 else self._router.chat(f"{number}"))
        except (aiohttp.ClientError, OSError) as error:
            self.failures.append(error)
        else:
            self.statuses.append(answer.status)


async def test_a_new_process_takes_the_place_of_an_old_one_under_load_and_nobody_is_refused(tmp_path: Path) -> None:
    """SIGUSR2 under 100 requests a second: 0 refused, 0 broken; streams of the old one run to their end, and the new
    one knows what that one knew."""
    engine = Engine()
    async with supervised(tmp_path, engine, workers=2) as (router, _):
        prompts = [f"{number} " * 900 for number in range(20)]
        sent = [(await router.chat(prompt)).headers["x-homing-replica"] for prompt in prompts]
        streams = await streaming(router, 100)
        load = Load(router)
        await until(lambda: len(load.statuses) > 20)
        router.write(workers=3)
        router.signal(signal.SIGUSR2)
        await router.said("is to take over")
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
        answers = [await router.chat(prompt) for prompt in prompts]
        assert [answer.headers["x-homing-replica"] for answer in answers] == sent
        assert {answer.headers["x-homing-reason"] for answer in answers} == {"holder"}
        assert (await router.fleet())["workers"] == 3
        assert (await router.chat()).status == 200


async def test_a_new_process_that_cannot_serve_leaves_the_old_one_in_its_place(tmp_path: Path) -> None:
    async with supervised(tmp_path, Engine()) as (router, _):
        router.write(log={"level": "debug"})
        router.signal(signal.SIGHUP)
        await router.said("reloaded: log.level info -> debug")
        router.config.write_text("replicas: [")
        router.signal(signal.SIGUSR2)
        await router.said("this one goes on")
        assert "is to take over" in router.output()
        assert "has taken over" not in router.output()
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
