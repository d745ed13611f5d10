"""Traces in Mooncake's format as plays.

Each id is a text of a block's tokens, the last of a prompt cut. Two things that a trace leaves open are filled in:

- Arrivals on Mooncake's 3-second tick are drawn anew inside their tick, seeded, in the order of the trace.
- A trace does not say what was answered. Where a later request goes on from a whole prompt (it begins with all of its
  full blocks and is at least as long as prompt and answer), what follows there is taken to be the answer: an engine
  that cached it can be hit. That holds only for the request that brought the prompt's last full block, and only while
  all that come by that block go on alike: a shared preamble is no conversation.
"""

import random
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from loadtests.plays import Names, Part, Play, Text, cut
from loadtests.traces import TICK_MS, TraceRequest, ticks


def trace_play(name: str, requests: Sequence[TraceRequest], seed: int, stagger_s: float | None = None) -> Play:
    """Open loop at the arrival times, from 0 on; the later turns of sessions closed loop.

    With `stagger_s` the sessions begin evenly spread over so many seconds, in the order of the trace, and not when they
    were recorded.
    """
    after = follow_ups(requests)
    texts = _texts(requests, after)
    before = {later: number for number, later in after.items()}
    starts = _arrivals(requests, random.Random(f"{seed}:arrivals"))
    names = Names(seed)
    sessions: dict[str, list[int]] = {}
    for number, request in enumerate(requests):
        sessions.setdefault(request.session_id or f"request-{number}", []).append(number)
    parts = []
    for position, (session, numbers) in enumerate(sessions.items()):
        start = starts[numbers[0]] if stagger_s is None else position * stagger_s / len(sessions)
        lines = []
        for turn, number in enumerate(numbers):
            request = requests[number]
            known = texts[after[number]] if number in after else ()
            answers = _answer(requests[before[number]]) if number in before else None
            think_s = float(request.delay) if turn else 0.0
            lines.append(names.line(texts[number], request.output_length, known, think_s, answers))
        parts.append(Part(session, start, tuple(lines)))
    return Play(name, tuple(parts))


def follow_ups(requests: Sequence[TraceRequest]) -> dict[int, int]:
    """Which later request goes on where a request and its answer end, by their positions in the trace."""
    ends: dict[int, int] = {}
    seen: set[int] = set()
    found: dict[int, int] = {}
    went_on: dict[int, set[int]] = {}
    for number, request in enumerate(requests):
        full = request.input_length // request.block_size
        for block, following in pairwise(request.hash_ids):
            first = ends.get(block)
            if first is not None:
                went_on.setdefault(first, set()).add(following)
                if first not in found and _is_long_enough(requests[first], request):
                    found[first] = number
        if full and request.hash_ids[full - 1] not in seen:
            ends[request.hash_ids[full - 1]] = number
        seen.update(request.hash_ids[:full])
    return {first: number for first, number in found.items() if len(went_on[first]) == 1}


def block_ceiling(requests: Sequence[TraceRequest]) -> tuple[int, int]:
    """References to blocks, and those of them to a block that was referred to before: what any correct counter of
    prefix blocks reproduces (POLICY section 6: 288,500 and 105,710 in the whole conversation trace, 36.641 %)."""
    seen: set[int] = set()
    references = repeats = 0
    for request in requests:
        for block in request.hash_ids:
            references += 1
            repeats += block in seen
            seen.add(block)
    return references, repeats


def _is_long_enough(first: TraceRequest, later: TraceRequest) -> bool:
    return later.input_length >= first.input_length + first.output_length


def _texts(requests: Sequence[TraceRequest], after: dict[int, int]) -> dict[int, list[Text]]:
    """Each prompt in texts. One that another goes on from is the beginning of that one, its last block included."""
    texts: dict[int, list[Text]] = {}
    for number in reversed(range(len(requests))):
        request = requests[number]
        whole = [Text(block, request.block_size) for block in request.hash_ids]
        texts[number] = cut(texts[after[number]] if number in after else whole, request.input_length)
    return texts


def _answer(request: TraceRequest) -> dict[int, int]:
    return {request.input_length: request.input_length + request.output_length}


def _arrivals(requests: Sequence[TraceRequest], rng: random.Random) -> list[float]:
    """Seconds since the first request, drawn within the tick where the trace has one."""
    numbers = ticks(requests)
    if numbers is None:
        times = [request.timestamp / 1_000 for request in requests]
    else:
        drawn = {tick: iter(sorted(rng.random() for _ in range(size))) for tick, size in Counter(numbers).items()}
        times = [(tick + next(drawn[tick])) * TICK_MS / 1_000 for tick in numbers]
    return [at - min(times) for at in times]
