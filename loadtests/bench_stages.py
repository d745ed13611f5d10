"""`--profile`: what each stage of a request costs inside the router, without sockets.

One worker is built from the default configuration, as `homing serve` builds it, and never started: its connections get
transports that swallow what is written. Two ways are gone in turn. The whole one: a ClientConnection is fed a request
and a replica's Connection the answer. The same by hand: what that way calls, stage after stage, with the clock read
between (a stage that is repeated alone runs from warm caches and looks half as dear as it is). What the stages
leave of the whole is the exchange between them: callbacks, the journal, the connections. Medians of the thread's CPU
time, less what reading it costs. It measures the router that this interpreter imports, compiled or not.
"""

import asyncio
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import uvloop
import yaml

import router.core.fleet
from loadtests.bench_cells import BIG, KIB, MODEL, body
from loadtests.processes import HOST
from router.app import Worker
from router.core.record import Record
from router.core.types import Outcome, Route, State, Usage
from router.gossip.channel import Channel
from router.gossip.messages import Codec
from router.loading import load
from router.proxy import openai
from router.proxy.condense import Condenser
from router.proxy.heads import peer, request_head
from router.proxy.relay import Relay
from router.proxy.responses import ResponseReader
from router.proxy.server import ClientConnection
from router.proxy.upstream import Connection, Loss, Pool
from router.proxy.wire import Request, RequestReader
from router.tls import Pems

SIZES_KIB = (0.5, 8.0, 32.0)
LONG_PROMPT = 400_000
LONG_PROMPT_GOAL_MS = 2.0
"""Parse and hash of so many bytes: the time in which no other request of the worker moves."""

PASSES = 3000
"""How often each size goes its way. The median of so many moves by less than 2 % from run to run on a quiet machine."""

STAGES = ("parse", "ask", "route", "lease", "send", "relay", "settle", "describe")
MAX_BODY = 32 << 20

_PATH = "/v1/chat/completions"
_REPLICAS = ("r1", "r2")
_PEER = peer(HOST, "http")
_STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_EVENT = b'data: {"id":"chatcmpl-0a1b2c3d","choices":[{"index":0,"delta":{"content":" home"}}]}\n\n'


@dataclass(frozen=True, slots=True)
class Stages:
    """Microseconds of CPU for one request of `kib` KiB, by stage in their order; `whole` is the way itself."""

    kib: float
    stages: dict[str, float]
    whole: float

    @property
    def rest(self) -> float:
        """What the stages leave over."""
        return self.whole - sum(self.stages.values())


@dataclass(frozen=True, slots=True)
class Profile:
    """Stages by size; microseconds of CPU for a streamed chunk; milliseconds for the long prompt, and of the longest
    slice in which a body of 16 MiB is read."""

    compiled: bool
    sizes: list[Stages]
    chunk: float
    long_prompt_ms: float
    slice_ms: float


class _Socket:
    """tcp.Socket."""

    def setsockopt(self, level: int, name: int, value: int, /) -> None:
        pass


class Transport(asyncio.Transport):
    """Swallows what is written, and counts the writes."""

    def __init__(self) -> None:
        super().__init__({"socket": _Socket()})
        self.writes = 0

    def write(self, data: Any) -> None:
        self.writes += 1

    def writelines(self, list_of_data: Any) -> None:
        self.writes += 1

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def is_closing(self) -> bool:
        return False

    def abort(self) -> None:
        pass

    def close(self) -> None:
        pass


class _Nobody:
    """upstream.Sender and relay.Sink for stages that are measured alone."""

    def on_response(self, response: ResponseReader, data: bytes) -> None:
        pass

    def on_lost(self, loss: Loss) -> None:
        pass

    def write(self, data: bytes) -> None:
        pass


class Bed:
    """A worker with one client and one idle connection to each replica, and nothing at the other end of any."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        now = time.monotonic()
        for replica in _REPLICAS:
            worker.fleet.serves(replica, {MODEL: {"id": MODEL}})
            worker.fleet.mark(replica, State.READY, "answers", now)
        self.transport = Transport()
        self.client = ClientConnection(worker.proxy, worker.clients)
        self.client.connection_made(self.transport)
        self._ends = [self._connect(pool) for pool in worker.pools.values()]

    def _connect(self, pool: Pool) -> tuple[Transport, Connection]:
        transport, connection = Transport(), Connection(pool)
        connection.connection_made(transport)
        pool.keep(connection)
        return transport, connection

    def send(self, request: bytes) -> Connection:
        """A request's bytes come from the client; the connection that it went out on. Raises RuntimeError when it went
        nowhere."""
        before = [transport.writes for transport, _ in self._ends]
        self.client.data_received(request)
        for writes, (transport, connection) in zip(before, self._ends, strict=True):
            if transport.writes > writes:
                return connection
        raise _misfit("a request was not sent on")

    def whole(self, request: bytes, answer: bytes) -> None:
        """The whole way of one request."""
        self.send(request).data_received(answer)


class Hand:
    """The way of one request by hand: what an exchange calls, in its order."""

    def __init__(self, bed: Bed, raw: bytes, answer: bytes, record: Record) -> None:
        self._proxy, self._raw, self._answer, self._record = bed.worker.proxy, raw, answer, record
        self._reader, self._response, self._nobody = RequestReader(MAX_BODY), ResponseReader(), _Nobody()
        pool = next(iter(bed.worker.pools.values()))
        self._address, self._connection = pool.address, Connection(pool)
        self._connection.connection_made(Transport())

    def go(self) -> list[int]:
        """The clock before the first stage and after each. Raises RuntimeError when there is no route."""
        proxy, fleet, clock = self._proxy, self._proxy.fleet, time.thread_time_ns
        at = [clock()]
        [request] = self._reader.feed(self._raw)
        at.append(clock())
        ask = proxy.asker.read(openai.endpoint(request.path), request.body).ask
        at.append(clock())
        now = time.monotonic()
        route = fleet.route(ask, now, proxy.rng)
        at.append(clock())
        if not isinstance(route, Route):
            raise _misfit(f"no route for a prompt of {ask.size} bytes")
        lease = fleet.lease(route, ask, now)
        at.append(clock())
        self._send(request)
        at.append(clock())
        usage = self._relay(request, route)
        at.append(clock())
        lease.first_token(now)
        lease.finish(Outcome.OK, usage, now)
        at.append(clock())
        proxy.describe(self._record, ask)
        at.append(clock())
        return at

    def _send(self, request: Request) -> None:
        head = request_head(request, self._address.authority, self._address.base, _PEER, "0123456789abcdef-1")
        self._connection.send(self._nobody, head, request.body, False)

    def _relay(self, request: Request, route: Route) -> Usage | None:
        self._response.begin(False)
        data = self._response.feed(self._answer)
        lines = f"x-homing-replica: {route.replica}\r\nx-homing-reason: {route.reason.value}\r\n"
        relay = Relay(request, self._response, (lines.encode(),), self._nobody)
        relay.pass_on(data)
        return relay.usage()


def _misfit(what: str) -> RuntimeError:
    return RuntimeError(f"{what}: the profile does not fit the router any more")


def clock_ns() -> float:
    """What reading the clock costs, as it shows between two readings."""
    clock = time.thread_time_ns
    return median(-(clock() - clock()) for _ in range(PASSES))


def typical_us(work: Callable[[], object], calls: int) -> float:
    """Microseconds of CPU of a call, the median of so many."""
    clock = time.thread_time_ns
    spent = []
    for _ in range(calls):
        began = clock()
        work()
        spent.append(clock() - began)
    return (median(spent) - clock_ns()) / 1000


def request_bytes(content: bytes) -> bytes:
    """A chat request as a client writes it."""
    head = b"POST %b HTTP/1.1\r\nHost: %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    return head % (_PATH.encode(), HOST.encode(), len(content)) + content


def answer_bytes(tokens: int) -> bytes:
    """A whole answer to a prompt of so many tokens, which the replica had cached but for the last 16."""
    usage = {"prompt_tokens": tokens, "total_tokens": tokens + 8, "completion_tokens": 8,
             "prompt_tokens_details": {"cached_tokens": max(0, tokens - 16)}}  # fmt: skip
    message = {"role": "assistant", "content": "It went home, to the replica that knew it."}
    choices = [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}]
    content = json.dumps({"id": "chatcmpl-0a1b2c3d4e5f6071", "object": "chat.completion", "created": 1767225600,
                          "model": MODEL, "choices": choices, "usage": usage}).encode()  # fmt: skip
    head = b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % len(content) + content


def profile(passes: int = PASSES) -> Profile:
    """Measure. Raises RuntimeError when the router does not do as it should."""
    return uvloop.run(_profile(passes))


async def _profile(passes: int) -> Profile:
    bed = Bed(_worker())
    try:
        asker = bed.worker.proxy.asker
        long_ms, slice_ms = _long_prompt_us(asker, passes // 10) / 1000, _slice_us(asker, passes // 100 + 1) / 1000
        return Profile(is_compiled(), _stages(bed, passes), _chunk_us(bed, passes), long_ms, slice_ms)
    finally:
        for pool in bed.worker.pools.values():
            pool.close()


def is_compiled() -> bool:
    """Whether the router that this interpreter imports is the compiled one."""
    return not str(router.core.fleet.__file__).endswith(".py")


def _worker() -> Worker:
    """As a process of `homing serve` builds it; it is never started, and what it tells its supervisor is encoded and
    dropped."""
    replicas = [{"id": name, "url": f"http://{HOST}:{port}"} for port, name in enumerate(_REPLICAS, 1)]
    with tempfile.TemporaryDirectory(prefix="homing-profile-") as name:
        path = Path(name) / "router.yaml"
        path.write_text(yaml.safe_dump({"replicas": replicas}), encoding="utf-8")
        nobody = Channel(Codec(), lambda *_: None, lambda: None)
        return Worker(asyncio.get_running_loop(), load(path).config, None, Pems(), None, (), "profiled", nobody)


class _Way:
    """A request of one size: what each of its ways took, in ns."""

    def __init__(self, bed: Bed, kib: float) -> None:
        content = body(round(kib * KIB), 0)
        self._bed, self._raw, self._answer = bed, request_bytes(content), answer_bytes(len(content) // 4)
        self._kib, self._hand = kib, Hand(bed, self._raw, self._answer, _record(bed, self._raw, self._answer))
        self._wholes: list[int] = []
        self._stages: list[list[int]] = []

    def go(self) -> None:
        """Both ways once."""
        began = time.thread_time_ns()
        self._bed.whole(self._raw, self._answer)
        self._wholes.append(time.thread_time_ns() - began)
        self._stages.append([after - before for before, after in pairwise(self._hand.go())])

    def typical(self, clock: float) -> Stages:
        """The medians, less the `clock`'s own cost in ns."""
        columns = zip(STAGES, zip(*self._stages, strict=True), strict=True)
        of = {name: (median(column) - clock) / 1000 for name, column in columns}
        return Stages(self._kib, of, (median(self._wholes) - clock) / 1000)


def _stages(bed: Bed, passes: int) -> list[Stages]:
    """All sizes in turn, pass after pass, so that a machine that slows down slows all of them."""
    ways = [_Way(bed, kib) for kib in SIZES_KIB]
    for _ in range(passes):
        for way in ways:
            way.go()
    clock = clock_ns()
    return [way.typical(clock) for way in ways]


def _record(bed: Bed, raw: bytes, answer: bytes) -> Record:
    """The record of one whole request."""
    proxy, told = bed.worker.proxy, list[Record]()
    describe, proxy.describe = proxy.describe, lambda record, _: told.append(record)
    try:
        bed.whole(raw, answer)
    finally:
        proxy.describe = describe
    return told[0]


def _chunk_us(bed: Bed, passes: int) -> float:
    """A streamed chunk, from the replica's connection to the client's, in the middle of one stream."""
    connection = bed.send(request_bytes(body(2 * KIB, 0, events=64)))
    connection.data_received(_STREAM_HEAD)
    event = b"%x\r\n%b\r\n" % (len(_EVENT), _EVENT)
    spent = typical_us(lambda: connection.data_received(event), passes)
    connection.data_received(b"0\r\n\r\n")
    return spent


def _long_prompt_us(asker: openai.Asker, calls: int) -> float:
    """Framing, JSON, prompt and chain of a prompt of LONG_PROMPT bytes."""
    raw, reader = request_bytes(body(LONG_PROMPT, 0)), RequestReader(MAX_BODY)
    endpoint = openai.endpoint(_PATH)

    def read() -> None:
        [request] = reader.feed(raw)
        asker.read(endpoint, request.body)

    return typical_us(read, calls)


def _slice_us(asker: openai.Asker, calls: int) -> float:
    """The longest stretch in which reading a big body lets nobody else in, as the median of so many bodies."""
    content, endpoint, clock = body(BIG, 0), openai.endpoint(_PATH), time.thread_time_ns
    longest = []
    for _ in range(calls):
        condenser, at = Condenser(content), [clock()]
        at += [clock() for _ in condenser.slices()]
        asker.read_condensed(endpoint, content, condenser)
        longest.append(max(after - before for before, after in pairwise([*at, clock()])))
    return median(longest) / 1000
