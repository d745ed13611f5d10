"""What the table of policies is made over: kinds of traffic, each on the fleet that it is meant for, and their knees.

A kind is a name and values only, so that a process can be told of it. Its rate is in requests a second; for agents,
whose loop is closed, in sessions at a time.

The knee is the highest rate at which round robin still has 90 % goodput, to 5 %. The cells lie below, at and above it.
"""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Final

from msgspec.structs import replace

from loadtests.plays import Play
from loadtests.plays_made import WORKLOADS
from loadtests.simulation import FleetPlan
from loadtests.trace_plays import trace_play
from loadtests.traces import TraceRequest, read
from replica.profiles import PROFILES

LOADS: Final = (("below", 0.7), ("at", 1.0), ("above", 1.3))
"""How a cell's load is called, and its rate as a share of the knee."""

KNEE_GOODPUT = 0.9
KNEE_WITHIN = 1.05
MAX_DOUBLINGS = 8  # From the guess: a workload that round robin serves at 256 times that has no knee.

PROFILE: Final[Mapping[str, str]] = MappingProxyType({"chat": "qwen3-32b-2xh100"})
"""Where it is not a small model: people think 10 s before each turn, so on fast replicas a cell's requests have all
come before a rate could load them, and no rate is round robin's knee."""

STAGGER_S = 120.0
"""Seconds over which agents begin their sessions."""

_COPY = 1_000_000_000
"""What sets the block ids of a session's copy apart; traces count theirs from 0."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of traffic. `workload` names a generator, or `trace` a file, of sessions when `closed`."""

    name: str
    workload: str = ""
    trace: Path | None = None
    closed: bool = False
    profile: str = "llama3-8b-h100"
    speeds: tuple[float, ...] = (1.0,) * 8

    @property
    def plan(self) -> FleetPlan:
        return FleetPlan(self.profile, self.speeds)

    def play(self, seed: int, requests: int, rate: float) -> Play:
        """The traffic of one seed. Raises OSError and TraceError for a trace that cannot be read."""
        if self.trace is None:
            return WORKLOADS[self.workload](seed, requests, rate)
        whole = _read(self.trace)
        if self.closed:
            return trace_play(self.name, agents(whole, seed, requests, round(rate)), seed, STAGGER_S)
        return trace_play(self.name, window(whole, seed, requests), seed).at_rate(rate)


def kinds(traces: Mapping[str, Path]) -> list[Kind]:
    """All kinds; those that need a trace (`conversation`, `synthetic`, `agents`) where there is one."""
    slow, big = (1.0,) * 6 + (0.5,) * 2, "qwen3-32b-2xh100"
    found = [Kind(name, workload=name, profile=PROFILE.get(name, "llama3-8b-h100")) for name in WORKLOADS]
    found.append(Kind("slow_chat", workload="chat", profile=PROFILE["chat"], speeds=slow))
    if path := traces.get("conversation"):
        found += [Kind("conversation", trace=path, profile=big), Kind("slow", trace=path, profile=big, speeds=slow)]
    if path := traces.get("synthetic"):
        found.append(Kind("synthetic", trace=path, profile=big))
    if path := traces.get("agents"):
        found.append(Kind("agents", trace=path, closed=True))
    return found


def window(whole: Sequence[TraceRequest], seed: int, requests: int) -> list[TraceRequest]:
    """So many consecutive requests of a trace; where they begin is the seed's, so that seeds are different traffic."""
    room = max(0, len(whole) - requests)
    start = random.Random(f"{seed}:window").randint(0, room)
    return list(whole[start : start + requests])


def agents(whole: Sequence[TraceRequest], seed: int, requests: int, sessions: int) -> list[TraceRequest]:
    """So many sessions of a trace in an order of the seed's, each with an equal share of the requests at most.

    Where the trace has fewer, its sessions come again with other texts.
    """
    by_session: dict[str, list[TraceRequest]] = {}
    for request in whole:
        by_session.setdefault(request.session_id or "", []).append(request)
    names = list(by_session)
    random.Random(f"{seed}:agents").shuffle(names)
    turns = max(1, requests // sessions)
    chosen: list[TraceRequest] = []
    for position in range(sessions):
        copy, number = divmod(position, len(names))
        for request in by_session[names[number]][:turns]:
            ids = tuple(block + copy * _COPY for block in request.hash_ids)
            chosen.append(_recast(request, ids, f"{names[number]}-{copy}"))
    return chosen


def _recast(request: TraceRequest, ids: tuple[int, ...], session: str) -> TraceRequest:
    return replace(request, hash_ids=ids, session_id=session)


def search(kind: Kind, goodput: Callable[[float], float]) -> float:
    """The kind's knee; `goodput` runs round robin at a rate. Sessions are whole numbers."""

    def at(rate: float) -> float:
        return float(round(rate)) if kind.closed else float(f"{rate:.3g}")

    low, high = _bracket(at(_guess(kind)), lambda rate: goodput(at(rate)) >= KNEE_GOODPUT)
    low, high = at(low), at(high)
    while high / low > KNEE_WITHIN:
        middle = at(math.sqrt(low * high))
        if middle in (low, high):
            break
        if goodput(middle) >= KNEE_GOODPUT:
            low = middle
        else:
            high = middle
    return low


def _bracket(guess: float, good: Callable[[float], bool]) -> tuple[float, float]:
    """A rate that is good and twice that, which is not; the last one looked at, twice, where there is no such pair."""
    rate = guess
    if good(rate):
        for _ in range(MAX_DOUBLINGS):
            if not good(rate * 2):
                return rate, rate * 2
            rate *= 2
    else:
        for _ in range(MAX_DOUBLINGS):
            rate /= 2
            if good(rate):
                return rate, rate * 2
    return rate, rate


def _guess(kind: Kind) -> float:
    """A rate not too far from the knee: half of the fleet's time for prefill goes into whole prompts."""
    if kind.closed:
        return 64.0
    play = kind.play(1, 200, 1.0)
    lines = [line for part in play.parts for line in part.lines]
    tokens = sum(line.prompt_tokens for line in lines) / len(lines)
    return 0.5 * PROFILES[kind.profile].prefill_tokens_per_second * sum(kind.speeds) / tokens


@lru_cache(maxsize=4)
def _read(path: Path) -> tuple[TraceRequest, ...]:
    return tuple(read(path))
