"""One supervisor after the other: what is handed over, what ends whom, and workers that cannot be had."""

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from router.loading import load
from router.processes import PARTING, Slot, python
from router.sockets import listen_shared
from router.supervisor import Supervisor
from router.values import Endpoint
from tests.e2e.supervised import WITHIN, Engine, Router, eventually, finished, streaming, supervised
from tests.rig import until
from tests.scripted import HOST

ALONE = {
    "listen": f"{HOST}:0",
    "admin": f"{HOST}:0",
    "replicas": [{"id": "nobody", "url": f"http://{HOST}:9"}],
}


async def succeeded(router: Router, times: int = 1) -> None:
    """Put a new process in the router's place, for the so many-th time, and wait until it alone answers."""
    router.signal(signal.SIGUSR2)
    await router.said("has taken over", times)
    await router.said("stopping: answers under way", times)
    router.pid = int(re.findall(r"process (\d+) has taken over", router.output())[-1])
    await eventually(lambda: answers(router))


async def answers(router: Router) -> bool:
    return (await router.get("/readyz"))[0] == 200


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def lives(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


async def test_what_a_new_process_was_told_of_prefixes_is_shown_before_prompts_confirm_it(tmp_path: Path) -> None:
    async def told() -> bool:
        return await router.metric("homing_snapshot_hashes") > 0

    async with supervised(tmp_path, Engine()) as (router, _):
        assert (await router.chat("word " * 1_000)).status == 200
        await eventually(told)
        await succeeded(router)
        assert await told()
        assert await router.metric("homing_index_blocks") == 0


async def test_what_an_operator_has_drained_stays_drained(tmp_path: Path) -> None:
    async with supervised(tmp_path, Engine()) as (router, _):
        assert (await router.post("/drain?replica=r1"))[0] == 200
        await succeeded(router)
        assert (await router.fleet())["replicas"]["r1"]["state"] == "draining"
        assert {(await router.chat(f"{i}")).headers["x-homing-replica"] for i in range(10)} == {"r2"}
        assert (await router.post("/undrain?replica=r1"))[1]["state"] == "ready"


async def test_handovers_leave_no_descriptor_behind(tmp_path: Path) -> None:
    """uvloop's children inherit copies of their standard streams: three more for each generation."""
    async with supervised(tmp_path, Engine()) as (router, _):
        counts = []
        for times in range(1, 4):
            await succeeded(router, times)
            assert (await router.chat()).status == 200
            [worker] = router.workers()
            counts.append((descriptors(router.pid), descriptors(worker)))
        assert counts[2][0] < counts[0][0] + 3
        assert counts[2][1] < counts[0][1] + 3


async def test_a_stop_amid_a_handover_stops_both(tmp_path: Path) -> None:
    engine = Engine()
    async with supervised(tmp_path, engine) as (router, _):
        [stream] = await streaming(router, 1)
        router.signal(signal.SIGUSR2)
        router.signal(signal.SIGUSR2)
        await router.said("is to take over")
        router.signal(signal.SIGTERM)
        successor = int(re.findall(r"process (\d+) is to take over", router.output())[-1])
        await until(lambda: not lives(successor), WITHIN)
        await router.said("is not wanted any more")
        assert "has taken over" not in router.output()
        assert router.output().count("is to take over") == 1
        engine.end()
        await finished([stream])
        assert stream.whole
        assert await router.ended() == 0


async def test_the_first_stop_of_a_process_that_was_replaced_cuts_nothing(tmp_path: Path) -> None:
    """Whoever stops a group of processes means the new one; the old one is stopping already."""
    engine = Engine()
    async with supervised(tmp_path, engine) as (router, _):
        [stream] = await streaming(router, 1)
        old = router.pid
        await succeeded(router)
        os.kill(old, signal.SIGTERM)
        assert (await router.chat()).status == 200
        engine.end()
        await finished([stream])
        assert stream.whole
        assert await router.ended() == 0


async def test_a_reload_asked_for_amid_a_handover_reaches_the_new_process(tmp_path: Path) -> None:
    async with supervised(tmp_path, Engine()) as (router, _):
        router.signal(signal.SIGUSR2)
        await router.said("is to take over")
        router.signal(signal.SIGHUP)
        await router.said("stopping")
        router.pid = int(re.findall(r"process (\d+) is to take over", router.output())[-1])
        await router.said("reloaded: nothing has changed", 2)
        assert (await router.get("/readyz"))[0] == 200


async def test_many_reloads_asked_for_at_once_are_few(tmp_path: Path) -> None:
    async with supervised(tmp_path, Engine()) as (router, _):
        router.write(routing={"max_concurrency": 7})
        for _ in range(100):
            router.signal(signal.SIGHUP)
            await asyncio.sleep(0.001)
        await router.said("reloaded: routing.max_concurrency null -> 7")
        assert (await router.post("/reload"))[0] == 200  # After all that were asked for.
        assert router.output().count("reloaded: ") < 50


# Workers that cannot be had.


async def test_a_router_whose_workers_never_serve_ends(tmp_path: Path) -> None:
    """It would else hang as if it were about to, and whoever started it would not know."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nif 'router.joining' in sys.orig_argv:\n    sys.exit('broken')\n"
    )
    router = Router(
        tmp_path, {"listen": f"{HOST}:0", "admin": f"{HOST}:0", "replicas": [{"id": "a", "url": "http://127.0.0.1:9"}]}
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    command = (sys.executable, "-m", "router.cli", "serve", "-c", str(router.config))
    process = await asyncio.create_subprocess_exec(*command, env=environment, stderr=subprocess.PIPE)
    async with asyncio.timeout(WITHIN):
        _, said = await process.communicate()
    assert process.returncode == 1
    assert b"this router cannot go on: worker 0 has ended 3 times in a row soon after its start" in said
    assert b"RuntimeWarning" not in said


async def test_a_worker_that_has_lost_its_channel_is_replaced_while_it_drains() -> None:
    """Nobody would serve its sockets for as long as its streams last."""
    lines: list[socket.socket] = []

    async def join(_: str, line: socket.socket) -> asyncio.Event:
        lines.append(line)  # Open, so that the process waits for its settings.
        lost = asyncio.Event()
        lost.set()
        return lost

    with listen_shared(Endpoint(HOST, 0), 1)[0] as clients:
        slot = Slot(0, [clients], join, lambda: True)
        running = asyncio.get_running_loop().create_task(slot.run())
        await until(lambda: len(slot.pids) == 2, WITHIN + PARTING)
        assert slot.restarts == 1
        slot.stop()
        slot.kill()
        await asyncio.wait_for(running, WITHIN)
        assert slot.pids == []
    for line in lines:
        line.close()


async def test_a_process_that_cannot_be_started_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def start(*_: object, **__: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    async def join(_: str, line: socket.socket) -> asyncio.Event:
        raise AssertionError

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start)
    slot = Slot(0, [], join, lambda: True)
    running = asyncio.get_running_loop().create_task(slot.run())
    await until(lambda: slot.restarts == 3)
    slot.stop()
    await asyncio.wait_for(running, WITHIN)


async def test_a_router_that_is_broken_drains_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    router = Router(
        tmp_path, {"listen": f"{HOST}:0", "admin": f"{HOST}:0", "replicas": [{"id": "a", "url": "http://127.0.0.1:9"}]}
    )
    loaded = load(router.config)
    with listen_shared(Endpoint(HOST, 0), 1)[0] as clients, socket.create_server((HOST, 0)) as admin:
        supervisor = Supervisor(loaded, loaded.secrets(), [clients], admin)
        running = asyncio.get_running_loop().create_task(supervisor.run(None))
        await until(lambda: supervisor._serves, WITHIN)
        supervisor._control.broken.set_exception(RuntimeError("a bug"))
        assert await asyncio.wait_for(running, WITHIN) is False
    assert "this router cannot go on: a bug" in caplog.text


def test_a_process_keeps_of_what_it_inherits_only_what_it_is_told_of() -> None:
    ours, theirs = os.pipe()
    program = f"""
import os
from router.sockets import close_others
close_others([{theirs}])
print(os.listdir("/proc/self/fd"))
"""
    command, environment = python("-c", program)
    done = subprocess.run(
        command, pass_fds=(ours, theirs), env=environment, capture_output=True, text=True, check=True, timeout=WITHIN
    )
    os.close(ours)
    os.close(theirs)
    kept = set(map(int, re.findall(r"\d+", done.stdout)))
    assert kept >= {0, 1, 2, theirs}
    assert ours not in kept
