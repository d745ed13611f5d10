"""Reads and writes traces in Mooncake's format and turns them into workloads.

One JSON object a line: `timestamp` (ms), `input_length` and `output_length` (tokens), `hash_ids` (one per 512-token
block of the prompt, the last one may be partial; equal ids mean equal text with equal text before it), and for
sessions `session_id`, `turn` and `delay` (think time, s). Format: kvcache-ai/Mooncake, FAST25 release. `homing record`
adds `block_size`, the tokens of a block where it is not 512, and `model`; what else is in a line is not read.

A trace holds no text. Here each id has one text, made from the id and a seed alone, so equal ids give equal text in
every request and every run. Nothing is sent and no clock is read here.
"""

import random
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated

import msgspec

from loadtests.workloads import BYTES_PER_TOKEN, Message, Session, Turn, Workload, pseudo_text

BLOCK_TOKENS = 512
TICK_MS = 3_000  # Mooncake's conversation trace notes arrivals on a 3-second tick.
TICK_SLACK_MS = 1  # Many of its stamps are 1 ms short of the tick.

_Count = Annotated[int, msgspec.Meta(ge=1)]
_Time = Annotated[int, msgspec.Meta(ge=0)] | Annotated[float, msgspec.Meta(ge=0)]


class TraceError(ValueError):
    """A line of a trace is not what the format says; the message names file and line."""


class TraceRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line. `timestamp` in ms, lengths in tokens, `delay` in seconds after the session's previous answer,
    `block_size` in tokens."""

    timestamp: _Time
    input_length: _Count
    output_length: _Count
    hash_ids: tuple[int, ...]
    session_id: str | None = None
    turn: int | None = None
    delay: _Time = 0
    block_size: _Count = BLOCK_TOKENS
    model: str | None = None


class BlockTexts:
    """The text of each hash id: `block_size * bytes_per_token` bytes, made once and shared by every prompt."""

    def __init__(self, seed: int, bytes_per_token: float = BYTES_PER_TOKEN) -> None:
        self._seed = seed
        self._bytes_per_token = bytes_per_token
        self._texts: dict[int, str] = {}

    def prompt(self, request: TraceRequest) -> tuple[str, ...]:
        """The prompt in parts, one per block; the last is cut so that the whole has `input_length` tokens."""
        parts = [self._text(hash_id, request.block_size) for hash_id in request.hash_ids]
        last_tokens = request.input_length - request.block_size * (len(parts) - 1)
        parts[-1] = parts[-1][: round(last_tokens * self._bytes_per_token)]
        return tuple(parts)

    def _text(self, hash_id: int, tokens: int) -> str:
        text = self._texts.get(hash_id)
        if text is None:
            # A string seeds Random by its SHA-512: stable over processes and versions, and near ids are unrelated.
            rng = random.Random(f"{self._seed}:{hash_id}")
            text = pseudo_text(rng, round(tokens * self._bytes_per_token))
            self._texts[hash_id] = text
        return text


def read(path: Path, limit: int | None = None, model: str | None = None) -> list[TraceRequest]:
    """The first `limit` requests of the file (all without it) that are for `model` (needed where there are several).

    Recorded requests stand in the order in which they ended; they are put into the order of their arrival. Sessions
    stay as they stand. A last line that was not written to its end, as a recorder that was killed leaves it, is left
    out, which is said on stderr.

    Raises OSError when the file cannot be read, TraceError when a line breaks the format, there is none, or they are
    for several models.
    """
    requests = list(_of(path, model, _lines(path)))
    if not requests:
        raise TraceError(f"{path}: no request in this trace" + (f" for the model {model}" if model else ""))
    if all(request.session_id is None for request in requests):
        requests.sort(key=lambda request: request.timestamp)
    return requests[:limit]


def write(path: Path, requests: Iterable[TraceRequest]) -> None:
    """Replaces the file. Raises OSError."""
    path.write_bytes(msgspec.json.Encoder().encode_lines(requests))


def arrivals(requests: Sequence[TraceRequest]) -> list[float]:
    """Seconds of each request since time 0 of the trace, in the trace's order.

    On Mooncake's tick, the requests of one tick are spread evenly over it: the *k*-th of *n* arrives *k/n* of a tick
    later. (Replayed as they stand they would be bursts that nobody sent.)
    """
    numbers = ticks(requests)
    if numbers is None:
        return [request.timestamp / 1_000 for request in requests]
    sizes, seen = Counter(numbers), Counter[int]()
    times = []
    for number in numbers:
        times.append((number + seen[number] / sizes[number]) * TICK_MS / 1_000)
        seen[number] += 1
    return times


def ticks(requests: Sequence[TraceRequest]) -> list[int] | None:
    """The number of each request's tick; None for a trace that notes arrivals finer than that."""
    numbers = [round(request.timestamp / TICK_MS) for request in requests]
    off = [abs(request.timestamp - number * TICK_MS) for request, number in zip(requests, numbers, strict=True)]
    return numbers if max(off) <= TICK_SLACK_MS else None


def trace_workload(requests: Sequence[TraceRequest], seed: int, bytes_per_token: float = BYTES_PER_TOKEN) -> Workload:
    """A trace as a workload: open loop at the arrival times, except that a session's later turns are closed loop.

    A request without `session_id` is a session of its own. Time 0 is the trace's own, not its first request.
    """
    texts = BlockTexts(seed, bytes_per_token)
    starts: dict[str, float] = {}
    turns: dict[str, list[Turn]] = defaultdict(list)
    for number, (request, at_s) in enumerate(zip(requests, arrivals(requests), strict=True)):
        session = request.session_id or f"request-{number}"
        think_s = float(request.delay) if session in starts else 0.0
        starts.setdefault(session, at_s)
        turns[session].append(Turn(Message("user", texts.prompt(request)), request.output_length, think_s))
    return Workload(
        tuple(Session(name, start_s, (), tuple(turns[name]), remembers=False) for name, start_s in starts.items())
    )


def _lines(path: Path) -> Iterator[TraceRequest]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                if line.strip():
                    yield _decode(line, f"{path}:{number}")
            except TraceError:
                if line.endswith(b"\n"):
                    raise
                print(f"{path}:{number}: the last line breaks off and is left out", file=sys.stderr)


def _of(path: Path, model: str | None, requests: Iterable[TraceRequest]) -> Iterator[TraceRequest]:
    """Those for the model; all of them are for one where none was named."""
    sizes: dict[int, int] = {}
    first: TraceRequest | None = None
    for request in requests:
        if model is not None and request.model != model:
            continue
        first = first or request
        if request.model != first.model:
            raise TraceError(f"{path}: requests for {first.model} and {request.model}: choose one, with --model")
        for block in request.hash_ids:
            if sizes.setdefault(block, request.block_size) != request.block_size:
                raise TraceError(f"{path}: block {block} has {sizes[block]} tokens and {request.block_size}")
        yield request


def _decode(line: bytes, where: str) -> TraceRequest:
    try:
        request = msgspec.json.decode(line, type=TraceRequest)
    except msgspec.DecodeError as error:
        raise TraceError(f"{where}: {error}") from error
    blocks = -(-request.input_length // request.block_size)
    if blocks != len(request.hash_ids):
        raise TraceError(
            f"{where}: input_length {request.input_length} makes {blocks} blocks, hash_ids has {len(request.hash_ids)}"
        )
    return request
