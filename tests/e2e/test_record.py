"""`homing record` against a running router, and what it writes played again."""

import asyncio
import json
import signal
import socket
import stat
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionMessageParam

from loadtests.trace_plays import block_ceiling
from loadtests.traces import read
from loadtests.workloads import pseudo_text
from replica.server import SimulatedReplica
from replica.settings import ReplicaSettings
from router.core.prompt import NO_SECRET
from router.proxy.openai import Asker, endpoint
from tests.e2e.supervised import (
    HOMING,
    MODEL,
    Crewed,
    Engine,
    Router,
    crewed,
    eventually,
    finished,
    killed,
    streaming,
)
from tests.rig import hired, until
from tests.scripted import HOST

PREAMBLE = pseudo_text(Random(5), 6_000)
PATH = "/v1/chat/completions"


Chat = list[ChatCompletionMessageParam]


def questions(count: int) -> list[Chat]:
    """Chats that share a preamble of some blocks; every third is the one before it with more."""
    said: Chat = [{"role": "system", "content": PREAMBLE}]
    chats: list[Chat] = []
    for number in range(count):
        before = chats[-1] if number % 3 == 2 else said
        chats.append([*before, {"role": "user", "content": pseudo_text(Random(number), 900)}])
    return chats


@asynccontextmanager
async def simulated(directory: Path, **settings: Any) -> AsyncIterator[Router]:
    """A router as processes over two quick replicas."""
    async with AsyncExitStack() as stack:
        each = ReplicaSettings(speed=200, blocks=4_000)
        replicas = [await stack.enter_async_context(SimulatedReplica(each)) for _ in range(2)]
        router = Router(
            directory,
            {
                "listen": "127.0.0.1:0",
                "admin": {"listen": "127.0.0.1:0", "token_file": "token"},
                "replicas": [{"id": f"r{number}", "url": replica.url} for number, replica in enumerate(replicas)],
                "health": {"interval": "100ms"},
                **settings,
            },
        )
        try:
            await router.start()
            await router.ready("r0", "r1")
            yield router
        finally:
            await killed(router)


class Recorder:
    """`homing record` as a process."""

    def __init__(self, router: Router | Crewed, to: Path, *flags: str) -> None:
        self._router, self.to = router, to
        self.flags = ("--to", str(to), "--admin", router.admin_url, "--token-file", str(router.token_file), *flags)
        self.process: asyncio.subprocess.Process

    async def launch(self) -> None:
        pipe = asyncio.subprocess.PIPE
        self.process = await asyncio.create_subprocess_exec(*HOMING, "record", *self.flags, stdout=pipe, stderr=pipe)

    async def start(self) -> None:
        """Returns when it records."""
        await self.launch()
        await eventually(self.runs)

    async def runs(self) -> bool:
        return bool((await standing(self._router))["running"])

    async def has(self, requests: int) -> None:
        """Wait until so many are in the file."""
        await until(lambda: self.to.exists() and self.to.read_bytes().count(b"\n") >= requests, 30)

    async def ended(self) -> tuple[int, str, str]:
        """Exit code and what it said."""
        async with asyncio.timeout(30):
            out, err = await self.process.communicate()
        assert b"Traceback" not in err
        return self.process.returncode or 0, out.decode(), err.decode()


async def run(router: Router | Crewed, to: Path, *flags: str) -> tuple[int, str, str]:
    """A whole recording."""
    recorder = Recorder(router, to, *flags)
    await recorder.launch()
    return await recorder.ended()


async def standing(router: Router | Crewed) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((await router.get("/recording"))[1])
    return told


async def talk(client: AsyncOpenAI, chat: Chat, streams: bool) -> None:
    """One chat of seven tokens, read to its end."""
    if streams:
        parts = await client.chat.completions.create(
            model=MODEL, messages=chat, max_tokens=7, stream=True, stream_options={"include_usage": True}
        )
        assert [part async for part in parts]
    else:
        await client.chat.completions.create(model=MODEL, messages=chat, max_tokens=7)


def ceiling(chats: list[Chat]) -> tuple[int, int]:
    """Blocks, and those of them that had come before, counted from what was sent."""
    asker = Asker(512, frozenset(), NO_SECRET)
    seen: set[int] = set()
    references = repeats = 0
    for chat in chats:
        ask = asker.read(endpoint(PATH), json.dumps({"model": MODEL, "messages": chat}).encode()).ask
        for block in [*ask.chain, *([ask.tail] if ask.size % 512 else [])]:
            references += 1
            repeats += block in seen
            seen.add(block)
    return references, repeats


async def test_what_the_official_client_sends_is_recorded_and_played_again(tmp_path: Path) -> None:
    async with simulated(tmp_path, workers=2) as router:
        recorder = Recorder(router, tmp_path / "trace.jsonl")
        await recorder.start()
        chats = questions(12)
        async with AsyncOpenAI(base_url=f"{router.url}/v1", api_key="none", max_retries=0, timeout=20.0) as client:
            for number, chat in enumerate(chats):
                await talk(client, chat, streams=number % 2 == 0)
            await client.models.list()
        await recorder.has(12)
        recorder.process.send_signal(signal.SIGINT)
        code, out, err = await recorder.ended()
        assert (code, err) == (0, "")
        assert "12 requests" in out
        assert "1 without a prompt" in out

        requests = read(recorder.to)
        assert len(requests) == 12
        assert block_ceiling(requests) == ceiling(chats)
        assert {request.output_length for request in requests} == {7}
        assert stat.S_IMODE(recorder.to.stat().st_mode) == 0o600
        assert PREAMBLE[:20] not in recorder.to.read_text()
        counted = [json.loads(line) for line in recorder.to.read_text().splitlines()]
        assert all(
            abs(line["input_length"] / line.get("prompt_tokens", line["input_length"]) - 1) < 0.1 for line in counted
        )

        code, said = await router.command(
            "simulate", "-c", str(router.config), "--trace", str(recorder.to), "--replicas", "2"
        )
        assert code == 0, said
        assert "12 requests" in said


async def test_the_end_of_the_router_leaves_a_good_file(tmp_path: Path) -> None:
    async with simulated(tmp_path) as router:
        recorder = Recorder(router, tmp_path / "trace.jsonl")
        await recorder.start()
        second = Recorder(router, tmp_path / "second.jsonl")
        code, said = await router.command("record", *second.flags)
        assert code == 1
        assert "somebody records already" in said
        assert not second.to.exists()
        for number in range(3):
            assert (await router.chat(f"{number}")).status == 200
        await recorder.has(3)
        router.signal(signal.SIGTERM)
        code, out, err = await recorder.ended()
        assert code == 1
        assert "3 requests" in out
        assert "ended early: the router has ended it" in err
        assert len(read(recorder.to)) == 3
        assert await router.ended() == 0


async def test_a_recorder_that_is_killed_leaves_a_good_file_and_room_for_the_next(tmp_path: Path) -> None:
    engine = Engine()
    async with crewed(tmp_path, engine) as (router, _):
        recorder = Recorder(router, tmp_path / "trace.jsonl")
        await recorder.start()
        streams = await streaming(router, 2)
        engine.end()
        await finished(streams)
        await recorder.has(2)
        recorder.process.kill()
        await recorder.process.wait()
        await until(lambda: router.control.recording is not None and router.control.recording.ended)
        assert len(read(recorder.to)) == 2
        # It costs nothing any more, once the workers have heard.
        await until(lambda: not any(worker._reporter.tracing for worker in router.workers))

        code, out, err = await run(router, tmp_path / "trace.jsonl", "--for", "100ms")
        assert (code, "is there already" in err) == (1, True)
        code, out, err = await run(router, tmp_path / "trace.jsonl", "--for", "100ms", "--overwrite")
        assert (code, err) == (0, "")
        assert "0 requests" in out


@pytest.mark.parametrize("bound", [("--requests", "2"), ("--max-bytes", "1KiB")])
async def test_a_bound_ends_it(bound: tuple[str, str], tmp_path: Path) -> None:
    async with crewed(tmp_path, Engine()) as (router, _):
        recorder = Recorder(router, tmp_path / "trace.jsonl", *bound)
        await recorder.start()

        async def asked() -> bool:
            await router.chat("x" * 600)
            return recorder.process.returncode is not None

        await eventually(asked)
        code, out, _ = await recorder.ended()
        assert code == 0
        requests = read(recorder.to)
        assert f"{len(requests)} requests" in out
        if bound[0] == "--requests":
            assert len(requests) == 2
        else:
            assert 900 < recorder.to.stat().st_size <= 1024


async def test_a_worker_that_joins_while_it_runs_is_recorded_too(tmp_path: Path) -> None:
    async with crewed(tmp_path, Engine(), workers=1) as (router, _):
        recorder = Recorder(router, tmp_path / "trace.jsonl", "--requests", "1")
        await recorder.start()
        clients = socket.create_server((HOST, 0))
        router.url = "http://{}:{}".format(*clients.getsockname())
        router.workers.append(await hired(router.control, clients, "late"))
        assert (await router.chat("to the new one")).status == 200
        assert (await recorder.ended())[0] == 0


@pytest.mark.parametrize(
    ("flags", "code", "says"),
    [
        (("--to", "/nowhere/trace.jsonl"), 1, "/nowhere/trace.jsonl: cannot be written: No such file or directory"),
        (("--to", "/dev/full", "--overwrite"), 1, "No space left on device"),
        (("--token-file", "wrong"), 1, "this takes the token"),
        (("--admin", "http://127.0.0.1:9"), 4, "no router answers"),
        (("--for", "10"), 2, "--for: is a duration with a unit"),
        (("--max-bytes", "1GB"), 2, "--max-bytes: is a size with a unit"),
    ],
)
async def test_mistakes_are_told_without_a_traceback_and_leave_no_file(
    flags: tuple[str, ...], code: int, says: str, tmp_path: Path
) -> None:
    (tmp_path / "wrong").write_text("another")
    flags = tuple(str(tmp_path / flag) if flag == "wrong" else flag for flag in flags)
    async with crewed(tmp_path, Engine()) as (router, _):
        recorder = Recorder(router, tmp_path / "trace.jsonl", *flags)
        await recorder.launch()
        if "/dev/full" in flags:
            await eventually(recorder.runs)
            await router.chat()
        found, _, err = await recorder.ended()
        assert found == code
        assert says in " ".join(err.split())
        assert not recorder.to.exists()
