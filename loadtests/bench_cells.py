"""What bench_proxy measures of one proxy: a cell is one kind of work on it and one number that comes of it.

cpu          microseconds of CPU per request, of the proxy's whole process tree, for bodies of each size
chunk        microseconds of CPU per streamed event
added        milliseconds that an answer takes longer than from the replica itself, one connection, median
first byte   the same of a stream's first body byte
beside       the slowest of the small requests, in milliseconds, while bodies of 16 MiB pass

CPU time is read before and after a load whose every request has ended, so it is exactly what those requests cost (and
the probes that fell in between). The two latencies are paired: a short turn directly, a short turn through the proxy,
and so on; the value is the median of the pairs' differences, so that a machine that slows down slows both.
"""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import median

from loadtests.meter import GoneError, cpu_seconds
from loadtests.native import Load, Tools
from loadtests.processes import Process, ProcessError

MODEL = "bench"
CHUNK = "chunk"
ADDED = "added"
FIRST_BYTE = "first byte"
BESIDE = "beside 16 MiB"

KIB = 1024
BIG = 16 * KIB * KIB
STREAM_BODY = 2 * KIB
# Enough to see a stream's first byte, few enough to see many of them.
SHORT_STREAM = 2

_VOCABULARY = (
    "the cache holds what was computed once and a router that remembers sends each prompt home to its replica where "
    "the longest part of it waits until waiting costs more than to compute it again on another machine"
)


def size_name(kib: float) -> str:
    """A CPU cell by the size of its bodies: `0.5 KB`."""
    return f"{kib:g} KB"


@dataclass(frozen=True, slots=True)
class Plan:
    """How much of what. `seconds` for a load and `turn_seconds` for a turn of a pair; `sizes` of bodies in KiB;
    `prompts` different ones of each size; streams of `events`, one each `interval_ms`."""

    rounds: int = 3
    seconds: float = 2.0
    connections: int = 32
    sizes: tuple[float, ...] = (0.5, 8.0, 32.0)
    prompts: int = 16
    events: int = 64
    interval_ms: int = 5
    pairs: int = 5
    turn_seconds: float = 0.3

    @property
    def warm_seconds(self) -> float:
        """Before each load that counts: connections are open, caches know the prompts."""
        return self.seconds / 4

    @property
    def cpu_cells(self) -> tuple[str, ...]:
        """Names of the cells in microseconds of CPU."""
        return (*map(size_name, self.sizes), CHUNK)

    @property
    def latency_cells(self) -> tuple[str, ...]:
        """Names of the cells in milliseconds."""
        return (ADDED, FIRST_BYTE, BESIDE)


@dataclass(frozen=True, slots=True)
class Sample:
    """One cell of one arm in one round. `value` is None where it could not be measured, `problem` says why, or what
    went wrong besides; `ended` when the arm is gone. Rate and latencies are those of the load behind it."""

    arm: str
    round: int
    cell: str
    value: float | None
    completed: int = 0
    errors: int = 0
    requests_per_s: float | None = None
    p50_ms: float | None = None
    p99_ms: float | None = None
    problem: str | None = None
    ended: bool = False


@dataclass(frozen=True, slots=True)
class Bodies:
    """Files with requests: those of each CPU cell by its name, then one kind of each other load."""

    sized: dict[str, list[Path]]
    streams: list[Path]
    short_streams: list[Path]
    big: Path


@dataclass(frozen=True, slots=True)
class Subject:
    """A proxy that runs."""

    name: str
    process: Process
    port: int


def text(size: int, seed: str) -> str:
    """So many bytes of words; the same for the same seed, on every machine."""
    rng, vocabulary = Random(seed), _VOCABULARY.split()
    words: list[str] = []
    length = 0
    while length < size:
        words.append(rng.choice(vocabulary))
        length += len(words[-1]) + 1
    return " ".join(words)[:size].ljust(size)


def body(size: int, which: int, *, events: int = 0) -> bytes:
    """A chat request of `size` bytes: a system text that all of this size share, and a question of its own.

    With `events` it asks for a stream of so many. Raises ValueError for a size that the fields alone exceed.
    """
    request = {"model": MODEL, "stream": bool(events), "max_tokens": events or 8, "messages": []}
    roles = ("system", "user")
    bare = len(json.dumps(request | {"messages": [{"role": role, "content": ""} for role in roles]}))
    if size <= bare:
        raise ValueError(f"a request of {size} bytes has no room for a prompt: its fields alone take {bare}")
    shared = (size - bare) // 2
    own = size - bare - shared
    texts = (_long(shared, f"{size}"), _long(own, f"{size}/{which}"))
    messages = [{"role": role, "content": content} for role, content in zip(roles, texts, strict=True)]
    return json.dumps(request | {"messages": messages}).encode()


def _long(size: int, seed: str) -> str:
    """As `text`, of which more than 64 KiB is made by repetition: it would take seconds to draw."""
    piece = 64 * KIB
    return text(size, seed) if size <= piece else (text(piece, seed) * (size // piece + 1))[:size]


def write_bodies(plan: Plan, directory: Path) -> Bodies:
    """All bodies of a plan as files."""

    def written(name: str, content: bytes) -> Path:
        path = directory / f"{name}.json"
        path.write_bytes(content)
        return path

    def kind(name: str, size: int, events: int = 0) -> list[Path]:
        return [written(f"{name}-{which}", body(size, which, events=events)) for which in range(plan.prompts)]

    return Bodies(
        {size_name(kib): kind(f"body-{kib:g}", round(kib * KIB)) for kib in plan.sizes},
        kind("stream", STREAM_BODY, plan.events),
        kind("short", STREAM_BODY, SHORT_STREAM),
        written("big", body(BIG, 0)),
    )


class Bench:
    """Measures running proxies; `direct` is the port of a replica without anything in front."""

    def __init__(self, tools: Tools, plan: Plan, bodies: Bodies, direct: int) -> None:
        self._tools, self._plan, self._bodies, self._direct = tools, plan, bodies, direct

    async def measure(self, subject: Subject, number: int, cell: str) -> Sample:
        """One cell in round `number`. What fails is told in the sample, so that the other cells go on."""
        try:
            return await self._measured(subject, number, cell)
        except (ProcessError, GoneError) as error:
            lines = str(error).splitlines()
            return Sample(subject.name, number, cell, None, errors=1, problem=lines[-1].strip())

    async def _measured(self, subject: Subject, number: int, cell: str) -> Sample:
        if cell == CHUNK:
            value, load = await self._chunk(subject)
        elif cell == ADDED:
            value, load = await self._added(subject, self._bodies.sized[size_name(self._plan.sizes[0])], first=False)
        elif cell == FIRST_BYTE:
            value, load = await self._added(subject, self._bodies.short_streams, first=True)
        elif cell == BESIDE:
            value, load = await self._beside(subject)
        else:
            value, load = await self._cpu(subject, self._bodies.sized[cell])
        return _sample(subject.name, number, cell, value if load.completed else None, load)

    async def _cpu(self, subject: Subject, bodies: Sequence[Path]) -> tuple[float, Load]:
        plan = self._plan
        await self._tools.drive(subject.port, plan.connections, plan.warm_seconds, bodies)
        before = cpu_seconds(subject.process.pid)
        load = await self._tools.drive(subject.port, plan.connections, plan.seconds, bodies)
        return per(cpu_seconds(subject.process.pid) - before, load.completed), load

    async def _chunk(self, subject: Subject) -> tuple[float, Load]:
        """A stream's head and end are part of the price of its events. Raises ProcessError when events are missing."""
        per_stream, load = await self._cpu(subject, self._bodies.streams)
        if load.events < load.completed * self._plan.events:
            raise ProcessError(f"{load.completed} streams had {load.events} events; each should have had more than "
                               f"{self._plan.events}")  # fmt: skip
        return per_stream / self._plan.events, load

    async def _added(self, subject: Subject, bodies: Sequence[Path], *, first: bool) -> tuple[float, Load]:
        plan, differences = self._plan, []
        for _ in range(plan.pairs):
            direct = await self._tools.drive(self._direct, 1, plan.turn_seconds, bodies)
            through = await self._tools.drive(subject.port, 1, plan.turn_seconds, bodies)
            differences.append(_typical_us(through, first=first) - _typical_us(direct, first=first))
        return median(differences) / 1000, through

    async def _beside(self, subject: Subject) -> tuple[float, Load]:
        """Raises ProcessError when no big body passed: then nothing was beside anything."""
        seconds, small = self._plan.seconds, self._bodies.sized[size_name(self._plan.sizes[0])]
        many, big = await asyncio.gather(
            self._tools.drive(subject.port, 2, seconds, small),
            self._tools.drive(subject.port, 1, seconds, [self._bodies.big]),
            return_exceptions=True,  # Neither is left behind when the other fails.
        )
        if isinstance(many, BaseException):
            raise many
        if isinstance(big, BaseException):
            raise big
        if not big.completed:
            raise ProcessError(f"no body of 16 MiB passed: {big.last_error}")
        return many.latency_us.max / 1000, many


def per(seconds: float, count: int) -> float:
    """Microseconds of each; 0 of none (whose sample has no value)."""
    return seconds * 1e6 / count if count else 0.0


def _typical_us(load: Load, *, first: bool) -> float:
    return (load.first_byte_us if first else load.latency_us).p50


def _sample(arm: str, number: int, cell: str, value: float | None, load: Load) -> Sample:
    rate = load.completed / load.seconds if load.seconds else None
    problem = f"{load.errors} failed, the last: {load.last_error}" if load.errors else None
    p50, p99 = load.latency_us.p50 / 1000, load.latency_us.p99 / 1000
    return Sample(arm, number, cell, value, load.completed, load.errors, rate, p50, p99, problem)
