"""How a simulated replica fails and is left: every fault, clients that go away, keep-alive, the command line."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from replica.driver import Driver
from replica.engine import DoesNotFitError, Engine, StepResult, Work
from replica.faults import Fault
from replica.profiles import PROFILES
from replica.server import SimulatedReplica
from replica.settings import ReplicaSettings

CHAT = "/v1/chat/completions"
BODY: dict[str, object] = {
    "messages": [{"role": "user", "content": "hello " * 50}],
    "max_tokens": 40,
    "ignore_eos": True,
}


async def eventually(true: Callable[[], bool]) -> None:
    """Wait for what another task is about to make true; fail after 5 s."""
    async with asyncio.timeout(5):
        while not true():  # noqa: ASYNC110 - the other task is a server's; it has no event for tests.
            await asyncio.sleep(0.002)


@pytest.fixture
async def slow_replica() -> AsyncIterator[SimulatedReplica]:
    """Real H100 pace: 3,000 tokens would take 18 s, so a test acts in the middle of an answer."""
    async with SimulatedReplica(ReplicaSettings(blocks=2_000)) as replica:
        yield replica


class Wire(asyncio.Protocol):
    """A raw connection. Keeps what came before a reset, which a StreamReader throws away."""

    def __init__(self) -> None:
        self.data = b""
        self.lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.data += data

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.set_result(error)

    async def reset(self) -> bytes:
        """Wait for the connection's end, which must be a reset; all that came before."""
        assert isinstance(await asyncio.wait_for(self.lost, 10), ConnectionResetError)
        return self.data


async def connect(port: int, body: dict[str, object] | None = None) -> Wire:
    """A connection on which one chat request was sent; without a body, nothing was."""
    _, wire = await asyncio.get_running_loop().create_connection(Wire, "127.0.0.1", port)
    if body is not None:
        raw = json.dumps(body).encode()
        head = b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
        wire.transport.write(head % (CHAT.encode(), len(raw)) + raw)
    return wire


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_aborts_the_engine(slow_replica: SimulatedReplica, stream: bool) -> None:
    engine = slow_replica.engine
    wire = await connect(slow_replica.port, BODY | {"max_tokens": 3_000, "stream": stream})
    await eventually(lambda: engine.running == 1)
    wire.transport.close()
    await eventually(lambda: not engine.busy)
    assert engine.cache.free == engine.cache.blocks
    assert slow_replica.driver.in_flight == 0
    assert slow_replica.driver.endings == {"abort": 1}


async def test_a_client_that_leaves_before_its_turn_leaves_the_queue(slow_replica: SimulatedReplica) -> None:
    engine = slow_replica.engine
    long = {"messages": [{"role": "user", "content": "x" * 90_000}]}
    wires = [await connect(slow_replica.port, BODY | long | {"cache_salt": salt}) for salt in ("one", "two")]
    await eventually(lambda: (engine.running, engine.waiting) == (1, 1))
    for wire in reversed(wires):
        wire.transport.close()
    await eventually(lambda: not engine.busy)
    assert engine.cache.free == engine.cache.blocks


async def test_a_client_that_leaves_during_its_upload_costs_nothing(
    replica: SimulatedReplica, caplog: pytest.LogCaptureFixture
) -> None:
    wire = await connect(replica.port)
    wire.transport.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{")
    async with aiohttp.request("GET", f"{replica.url}/health") as response:
        assert response.status == 200
    wire.transport.abort()
    async with aiohttp.request("POST", f"{replica.url}{CHAT}", json=BODY) as response:
        assert response.status == 200
    assert replica.driver.endings == {"length": 1}
    assert caplog.text == ""


async def test_load_counts_what_is_in_flight(slow_replica: SimulatedReplica) -> None:
    wire = await connect(slow_replica.port, BODY | {"max_tokens": 3_000, "n": 2})
    await eventually(lambda: slow_replica.engine.running == 2)
    async with aiohttp.request("GET", f"{slow_replica.url}/load") as response:
        assert await response.json() == {"server_load": 2}
    wire.transport.close()


async def test_refuse_closes_the_port_and_cuts_what_is_open(replica: SimulatedReplica) -> None:
    wire = await connect(replica.port)
    wire.transport.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
    await eventually(lambda: wire.data.endswith(b"\r\n\r\n"))
    replica.fault = Fault.REFUSE
    await wire.reset()
    with pytest.raises(ConnectionRefusedError):
        await connect(replica.port)
    replica.fault = Fault.NONE
    async with aiohttp.request("GET", f"{replica.url}/health") as response:
        assert response.status == 200


async def test_refuse_can_be_switched_faster_than_the_loop_turns(replica: SimulatedReplica) -> None:
    for fault in (Fault.REFUSE, Fault.NONE, Fault.REFUSE, Fault.NONE):
        replica.fault = fault
    async with aiohttp.request("GET", f"{replica.url}/health") as response:
        assert response.status == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_reset_cuts_after_the_request_and_before_an_answer(replica: SimulatedReplica, stream: bool) -> None:
    replica.fault = Fault.RESET
    wire = await connect(replica.port, BODY | {"stream": stream})
    assert await wire.reset() == b""
    assert json.loads(replica.requests_seen[-1].body)["max_tokens"] == 40
    assert replica.engine.counters.prompt_tokens == 0
    async with aiohttp.request("GET", f"{replica.url}/health") as response:
        assert response.status == 200


@pytest.mark.parametrize("speed", [1, 1_000])
@pytest.mark.parametrize(("length", "half"), [(8, 4), (1, 1)])
async def test_reset_midway_cuts_a_stream_after_half_of_its_tokens(speed: float, length: int, half: int) -> None:
    async with SimulatedReplica(ReplicaSettings(speed=speed, fault=Fault.RESET_MIDWAY)) as replica:
        wire = await connect(replica.port, BODY | {"stream": True, "max_tokens": length})
        data = await wire.reset()
        assert data.count(b'"content":') - 1 == half
        assert b"[DONE]" not in data
        await eventually(lambda: not replica.engine.busy)


async def test_reset_midway_cuts_a_whole_body_in_half(replica: SimulatedReplica) -> None:
    replica.fault = Fault.RESET_MIDWAY
    wire = await connect(replica.port, BODY)
    head, _, half = (await wire.reset()).partition(b"\r\n\r\n")
    (length,) = [int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")]
    assert len(half) == length // 2


async def test_hang_reads_and_never_answers_but_stays_healthy(replica: SimulatedReplica) -> None:
    replica.fault = Fault.HANG
    wire = await connect(replica.port, BODY)
    await eventually(lambda: len(replica.requests_seen) == 1)
    async with aiohttp.request("GET", f"{replica.url}/health") as response:
        assert response.status == 200
    assert not wire.lost.done()
    assert wire.data == b""
    assert replica.engine.counters.prompt_tokens == 0
    wire.transport.close()


async def test_full_says_when_to_come_back(client: aiohttp.ClientSession, replica: SimulatedReplica) -> None:
    replica.fault = Fault.FULL
    async with client.post(CHAT, json=BODY) as response:
        assert (response.status, response.headers["Retry-After"]) == (503, "1")
        assert (await response.json())["error"]["code"] == 503
    replica.fault = Fault.NONE
    async with client.post(CHAT, json=BODY) as response:
        assert response.status == 200


async def test_fast_500_fails_at_once(client: aiohttp.ClientSession, replica: SimulatedReplica) -> None:
    replica.fault = Fault.FAST_500
    async with client.post(CHAT, json=BODY) as response:
        assert response.status == 500
        assert (await response.json())["error"]["type"] == "InternalServerError"


async def test_slow_stretches_every_step_tenfold(client: aiohttp.ClientSession, replica: SimulatedReplica) -> None:
    replica.fault = Fault.SLOW
    assert replica.driver.slowdown == 10
    async with client.post(CHAT, json=BODY) as response:
        assert response.status == 200
    replica.fault = Fault.NONE
    assert replica.driver.slowdown == 1


async def test_an_idle_connection_is_closed_after_the_keep_alive_time() -> None:
    async with SimulatedReplica(ReplicaSettings(keepalive_seconds=0.1)) as replica:
        reader, writer = await asyncio.open_connection("127.0.0.1", replica.port)
        for _ in range(2):
            writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        assert await asyncio.wait_for(reader.read(), 5) == b""
        writer.close()


async def test_a_stopping_replica_does_not_wait_for_a_request_that_hangs() -> None:
    async with SimulatedReplica(ReplicaSettings(fault=Fault.HANG, keep_requests=1)) as replica:
        wire = await connect(replica.port, BODY)
        await eventually(lambda: len(replica.requests_seen) == 1)
    await asyncio.wait_for(wire.lost, 5)
    assert wire.data == b""
    assert replica.driver.in_flight == 0


async def test_a_taken_port_is_an_os_error(replica: SimulatedReplica) -> None:
    with pytest.raises(OSError, match="in use"):
        async with SimulatedReplica(ReplicaSettings(port=replica.port)):
            raise AssertionError("two replicas share a port")


async def test_a_job_that_does_not_fit_leaves_nothing_behind() -> None:
    driver = Driver(Engine(PROFILES["llama3-8b-h100"], blocks=4))
    with pytest.raises(DoesNotFitError):
        driver.submit([(Work("fits", 10, 1), "stop"), (Work("does not", 100, 1), "stop")])
    assert driver.in_flight == 0
    assert not driver.engine.busy


async def test_the_driver_publishes_every_token_of_every_job_and_none_after_a_withdrawal() -> None:
    driver = Driver(Engine(PROFILES["llama3-8b-h100"].at_speed(100), blocks=1_000))
    task = asyncio.get_running_loop().create_task(driver.run())
    kept = driver.submit([(Work(f"kept {index}", 50 + index, 30 + index), "stop") for index in range(5)])
    dropped = driver.submit([(Work("dropped", 50, 5_000), "stop")])
    await asyncio.wait_for(dropped.changed(), 5)
    driver.withdraw(dropped)
    produced = dropped.parts[0].produced
    await asyncio.wait_for(kept.end(), 5)
    assert [part.produced for part in kept.parts] == [30, 31, 32, 33, 34]
    assert 0 < produced == dropped.parts[0].produced < 5_000
    assert driver.endings == {"stop": 5, "abort": 1}
    assert not driver.engine.busy
    task.cancel()


class BrokenEngine(Engine):
    def step(self, now: float) -> StepResult:
        raise ArithmeticError("broken")


async def test_an_error_in_the_engine_ends_the_replica_and_is_raised() -> None:
    async def serve() -> None:
        async with SimulatedReplica() as replica:
            replica.driver.engine = BrokenEngine(PROFILES["llama3-8b-h100"], blocks=100)
            await connect(replica.port, BODY)
            await asyncio.wait_for(replica.run_until(asyncio.Event()), 5)

    with pytest.raises(ArithmeticError, match="broken"):
        await serve()


async def start(*flags: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "router.cli", "replica", "simulate", *flags,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
async def test_the_command_says_where_it_listens_and_stops_on_a_signal(signum: int) -> None:
    process = await start("--port", "0", "--id", "r7", "--speed", "20")
    assert process.stdout is not None
    line = (await asyncio.wait_for(process.stdout.readline(), 15)).decode()
    assert line.startswith("replica r7 listening on http://127.0.0.1:")
    async with aiohttp.request("POST", line.split()[-1] + CHAT, json=BODY) as response:
        assert response.status == 200
    os.kill(process.pid, signum)
    _, errors = await asyncio.wait_for(process.communicate(), 15)
    assert (process.returncode, errors) == (0, b"")


async def test_the_command_fails_from_one_signal_to_another() -> None:
    process = await start("--port", "0", "--speed", "20", "--fail", "fast-500", "--fail-on-signal")
    assert process.stdout is not None
    url = (await asyncio.wait_for(process.stdout.readline(), 15)).decode().split()[-1] + CHAT
    async with aiohttp.ClientSession() as client:
        for signum, status in ((None, 200), (signal.SIGUSR1, 500), (signal.SIGUSR2, 200)):
            if signum is not None:
                os.kill(process.pid, signum)
            async with asyncio.timeout(5):
                while (await client.post(url, json=BODY)).status != status:
                    assert signum is not None, "a signal takes its time, the first answer has none"
    process.terminate()
    await asyncio.wait_for(process.communicate(), 15)
    assert process.returncode == 0


def named(name: str, **more: object) -> dict[str, Any]:
    return {"json": BODY | more, "headers": {"X-Request-Id": name}}


async def test_what_is_generated_is_told_by_request_id(tmp_path: Path) -> None:
    told = tmp_path / "ids"
    async with (
        SimulatedReplica(ReplicaSettings(blocks=2_000, speed=100, record_ids=told)) as replica,
        aiohttp.ClientSession(replica.url) as client,
    ):
        for name, stream in (("whole", False), ("stream", True)):
            async with client.post(CHAT, **named(name, stream=stream)) as response:
                await response.read()
        await client.post(CHAT, json=BODY)  # Without an id.
        await client.post(CHAT, data=b"{", headers={"X-Request-Id": "refused"})
        for fault in (Fault.FULL, Fault.FAST_500):
            replica.fault = fault
            await client.post(CHAT, **named(fault))
        replica.fault = Fault.RESET
        with pytest.raises(aiohttp.ClientError):
            await client.post(CHAT, **named("reset"))
    assert told.read_text().splitlines() == ["begin whole", "end whole", "begin stream", "end stream", "begin reset"]


async def test_what_is_begun_is_told_before_it_ends(tmp_path: Path) -> None:
    told = tmp_path / "ids"
    begun: list[str] = []
    async with (
        SimulatedReplica(ReplicaSettings(blocks=2_000, record_ids=told)) as replica,
        aiohttp.ClientSession(replica.url) as client,
    ):
        for fault, name in ((Fault.NONE, "left"), (Fault.HANG, "hung")):
            begun.append(f"begin {name}")
            replica.fault = fault
            request = asyncio.create_task(client.post(CHAT, **named(name, max_tokens=3_000)))
            await eventually(lambda: told.read_text().count("begin") == len(begun))
            request.cancel()
    assert told.read_text().splitlines() == begun


async def test_a_file_that_cannot_be_written_is_an_error_of_the_command(tmp_path: Path) -> None:
    process = await start("--port", "0", "--record-ids", str(tmp_path / "nowhere" / "ids"))
    _, errors = await asyncio.wait_for(process.communicate(), 15)
    assert process.returncode == 1
    assert "nowhere/ids: No such file or directory" in errors.decode()
    assert "Traceback" not in errors.decode()


@pytest.mark.parametrize(("fault", "some"), [("reset", False), ("reset-midway", True)])
async def test_the_command_resets_connections_on_its_own_loop_too(fault: str, some: bool) -> None:
    process = await start("--port", "0", "--fail", fault)
    assert process.stdout is not None
    line = (await asyncio.wait_for(process.stdout.readline(), 15)).decode()
    wire = await connect(int(line.rpartition(":")[2]), BODY | {"stream": True})
    assert bool(await wire.reset()) == some
    process.terminate()
    await asyncio.wait_for(process.communicate(), 15)
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        (("--port", "0", "--profile", "abacus"), 2, "llama3-8b-h100"),
        (("--port", "0", "--speed", "0"), 2, "speed must be above 0"),
        (("--port", "0", "--fail", "politely"), 2, "reset-midway"),
        (("--port", "{taken}"), 1, "cannot listen on 127.0.0.1:"),
    ],
)
async def test_a_mistake_on_the_command_line_is_told_without_a_traceback(
    replica: SimulatedReplica, flags: tuple[str, ...], code: int, message: str
) -> None:
    process = await start(*(flag.format(taken=replica.port) for flag in flags))
    _, errors = await asyncio.wait_for(process.communicate(), 15)
    assert process.returncode == code
    assert message in errors.decode()
    assert "Traceback" not in errors.decode()
