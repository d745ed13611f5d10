"""Children are watched while they start and are gone when their parent's work is, whatever ended it."""

import asyncio
import fcntl
import os
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

import pytest

from loadtests.processes import (
    HOST,
    PortInUseError,
    Process,
    ProcessError,
    children,
    first_failure,
    free_port,
    require_free,
    running,
)

GRACE_S = 10.0
SLEEPS = "import time; print('up', flush=True); time.sleep(600)"
# Ignores SIGTERM and has a child that does, too. Both hold the lock on the file that they are given until they die.
STUBBORN = """
    import fcntl, os, signal, sys, time
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    held = open(sys.argv[1], "w")
    fcntl.flock(held, fcntl.LOCK_EX)
    if os.fork():
        print('up', flush=True)
    time.sleep(600)
"""


def child(tmp_path: Path, code: str, name: str = "child") -> Process:
    return Process(
        name, [sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "lock")], tmp_path / f"{name}.log"
    )


async def said_up(process: Process) -> str | None:
    return process.output() if "up" in process.output() else None


async def up(process: Process) -> str:
    async def probe() -> str | None:
        return await said_up(process)

    return await process.ready(probe, within_s=20.0)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def is_locked(path: Path) -> bool:
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


async def test_ready_returns_what_the_probe_found(tmp_path: Path) -> None:
    process = child(tmp_path, SLEEPS)
    async with running([process], GRACE_S):
        assert await up(process) == "up\n"
        assert alive(process.pid)
    assert not alive(process.pid)


async def test_a_child_that_ends_early_is_named_with_its_last_lines(tmp_path: Path) -> None:
    process = child(tmp_path, "import sys; [print('line', n) for n in range(99)]; sys.exit('boom')")
    with pytest.raises(ProcessError, match="child ended with code 1 before it was ready") as caught:
        async with running([process], GRACE_S):
            await up(process)
    assert "  boom" in str(caught.value)
    assert "line 98" in str(caught.value)
    assert "line 50" not in str(caught.value)


async def test_a_child_that_is_never_ready_is_given_up_and_stopped(tmp_path: Path) -> None:
    process = child(tmp_path, "import time; time.sleep(600)")

    async def never() -> None:
        return None

    with pytest.raises(ProcessError, match=r"was not ready within 0\.1 s; its last output:\n  \(none\)"):
        async with running([process], GRACE_S):
            await process.ready(never, within_s=0.1)
    assert not alive(process.pid)


async def test_a_child_that_ignores_sigterm_is_killed_with_its_own_children(tmp_path: Path) -> None:
    process = child(tmp_path, STUBBORN)
    async with running([process], grace_s=0.2):
        await up(process)
        assert is_locked(tmp_path / "lock")
    assert not alive(process.pid)
    # A killed grandchild is nobody's to wait for, but the lock that it inherited tells when it is dead.
    async with asyncio.timeout(10):
        while is_locked(tmp_path / "lock"):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_an_error_in_the_work_stops_every_child(tmp_path: Path) -> None:
    processes = [child(tmp_path, SLEEPS, name) for name in ("a", "b")]
    with pytest.raises(ZeroDivisionError):
        async with running(processes, GRACE_S):
            raise ZeroDivisionError
    assert not any(alive(process.pid) for process in processes)


async def test_children_started_before_one_that_cannot_start_are_stopped(tmp_path: Path) -> None:
    first, second = child(tmp_path, SLEEPS, "a"), Process("b", ["/nonexistent"], tmp_path / "b.log")
    with pytest.raises(FileNotFoundError):
        async with running([first, second], GRACE_S):
            pytest.fail("the second cannot run")
    assert not alive(first.pid)


async def test_a_second_cancellation_does_not_leave_a_stubborn_child_behind(tmp_path: Path) -> None:
    process = child(tmp_path, STUBBORN)
    inside = asyncio.Event()

    async def work() -> None:
        async with running([process], grace_s=0.3):
            await up(process)
            inside.set()
            await asyncio.Event().wait()

    task = asyncio.get_running_loop().create_task(work())
    await inside.wait()
    task.cancel()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert alive(process.pid)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not alive(process.pid)


async def test_finish_waits_for_the_end_and_refuses_a_failure(tmp_path: Path) -> None:
    good, bad, slow = (
        child(tmp_path, code, name) for name, code in (("good", ""), ("bad", "raise SystemExit(3)"), ("slow", SLEEPS))
    )
    async with running([good, bad, slow], GRACE_S):
        await good.finish(within_s=20.0)
        with pytest.raises(ProcessError, match="bad ended with code 3"):
            await bad.finish(within_s=20.0)
        with pytest.raises(ProcessError, match=r"slow did not end within 0\.1 s"):
            await slow.finish(within_s=0.1)


async def test_the_first_child_to_fail_is_told(tmp_path: Path) -> None:
    stays, fails = child(tmp_path, SLEEPS, "stays"), child(tmp_path, "raise SystemExit('no GPU')", "fails")
    async with running([stays, fails], GRACE_S):
        async with asyncio.timeout(20):
            error = await first_failure([stays, fails])
        assert str(error) == "fails ended with code 1; its last output:\n  no GPU"
        assert alive(stays.pid)


PARENT = f"""
    import asyncio, sys
    from pathlib import Path
    from loadtests.processes import Interrupted, Process, run_until_signal, running

    async def main() -> None:
        child = Process("child", [sys.executable, "-c", {SLEEPS!r}], Path(sys.argv[1]))
        async with running([child], 10.0):
            print(child.pid, flush=True)
            await asyncio.Event().wait()

    try:
        run_until_signal(main())
    except Interrupted as stopped:
        print(stopped.number.name, flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_parent_leaves_no_orphan(number: signal.Signals, tmp_path: Path) -> None:
    command: Sequence[str] = [sys.executable, "-c", textwrap.dedent(PARENT), str(tmp_path / "child.log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert alive(pid)
        parent.send_signal(number)
        out, err = parent.communicate(timeout=20)
    assert (out, err, parent.returncode) == (f"{number.name}\n", "", 0)
    assert not alive(pid)


def test_a_taken_port_is_refused_with_the_flag_that_helps() -> None:
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        listener.listen()
        port = listener.getsockname()[1]
        with pytest.raises(PortInUseError, match=f"{HOST}:{port}: .* choose another with --port"):
            require_free(port, "--port")


def test_a_free_port_is_free_for_a_server_and_for_nobody_else() -> None:
    port = free_port()
    require_free(port, "--port")
    with socket.socket() as another, pytest.raises(OSError, match="Address already in use"):
        another.bind((HOST, port))
    with socket.create_server((HOST, port)):
        pass


def test_a_routers_workers_are_its_children(tmp_path: Path) -> None:
    of = tmp_path / "7" / "task" / "7"
    of.mkdir(parents=True)
    (of / "children").write_text("12 13 ")
    assert children(7, tmp_path) == [12, 13]
