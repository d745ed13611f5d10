"""What clients and replicas that do not read cost a worker's process: its resident memory, before and meanwhile."""

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

from tests.e2e.supervised import MODEL, Router, supervised
from tests.rig import until
from tests.scripted import STREAM, Call, whole

MB = 1_000_000
PIECE = b"%x\r\n%b\r\n" % (10_000, b"x" * 10_000)


def resident(pid: int) -> int:
    """Bytes of a process that are in memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def settled(pid: int) -> int:
    """The same when it has stopped to change."""
    seen = -1
    while abs(seen - (now := resident(pid))) > MB // 10:
        seen = now
        await asyncio.sleep(0.3)
    return now


@asynccontextmanager
async def client(router: Router, buffer: int = 4096) -> AsyncIterator[socket.socket]:
    """A connection that reads nothing by itself."""
    loop = asyncio.get_running_loop()
    where = urlsplit(router.url)
    with socket.socket() as line:
        line.setblocking(False)
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        await loop.sock_connect(line, (where.hostname, where.port))
        yield line


async def asks(line: socket.socket, body: bytes) -> None:
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: homing\r\nContent-Length: {len(body)}\r\n\r\n"
    await asyncio.get_running_loop().sock_sendall(line, head.encode() + body)


def chat(text: str, stream: bool) -> bytes:
    return json.dumps({"model": MODEL, "stream": stream, "messages": [{"role": "user", "content": text}]}).encode()


async def flood(call: Call) -> None:
    """150 MB, as fast as they are taken."""
    if b'"stream": true' not in call.body:
        await whole()(call)
        return
    await call.send(STREAM)
    for _ in range(15_000):
        await call.send(PIECE)
    await call.send(b"0\r\n\r\n")


async def warmed(router: Router) -> int:
    """The worker, when it has served a little."""
    for number in range(20):
        assert (await router.chat(f"{number} " * 50)).status == 200
    [pid] = router.workers()
    return pid


async def test_a_client_that_does_not_read_a_long_stream_costs_under_five_megabytes(tmp_path: Path) -> None:
    async with supervised(tmp_path, flood, replicas=1) as (router, [replica]):
        pid = await warmed(router)
        before = await settled(pid)
        async with client(router) as line:
            await asks(line, chat("hello", True))
            await until(lambda: replica.calls[-1].sent > MB)
            assert await settled(pid) - before < 5 * MB
            assert replica.calls[-1].sent < 30 * MB  # The kernel's buffers, on both sides, and ours.


async def test_a_replica_that_does_not_read_a_body_costs_no_more_than_the_body(tmp_path: Path) -> None:
    """30 MB are held once, for they may have to be sent again; what the transport writes from is the same."""
    size = 30 * MB
    async with supervised(tmp_path, whole(), replicas=1, health={"interval": "60s"}) as (router, [replica]):
        pid = await warmed(router)
        before = await settled(pid)
        replica.deaf = True
        async with client(router) as line:
            await asks(line, chat("x" * size, False))
            await until(lambda: replica.unread)
            assert await settled(pid) - before < size + 5 * MB


async def test_fifty_bodies_that_no_replica_reads_cost_no_more_than_their_bound(tmp_path: Path) -> None:
    """50 of 20 MB, where 100 MiB may be held."""
    limits = {"buffered": "100MiB"}
    async with supervised(tmp_path, whole(), replicas=1, limits=limits, health={"interval": "60s"}) as (
        router, [replica],
    ):  # fmt: skip
        pid = await warmed(router)
        before = await settled(pid)
        replica.deaf = True
        body = chat("x" * (20 * MB), False)

        async def upload() -> bool:
            async with client(router, 1 << 20) as line:
                try:
                    await asyncio.wait_for(asks(line, body), 10.0)
                    return not await asyncio.wait_for(asyncio.get_running_loop().sock_recv(line, 100), 2.0)
                except TimeoutError:
                    return True
                except ConnectionError:
                    return False

        most = 0
        uploads = asyncio.gather(*(upload() for _ in range(50)))
        while not uploads.done():
            most = max(most, resident(pid))
            await asyncio.sleep(0.05)
        taken = await uploads
        assert 0 < sum(taken) < 50
        assert most - before < (100 << 20) * 1.25
