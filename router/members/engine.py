"""An engine's /metrics text -> the few numbers that routing uses, by line prefix.

A dozen names are looked for in what may be 2,000 lines, so the text is searched and not parsed. Data-parallel engines
behind one address show a line each: counts and capacities add up, of usage the highest tells. Names are vLLM's, the
older ones too, since engines renamed theirs.
"""

import math
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

RUNNING = ("vllm:num_requests_running",)
WAITING = ("vllm:num_requests_waiting",)
KV_USAGE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
CACHE_CONFIG = ("vllm:cache_config_info",)
START_TIME = ("process_start_time_seconds",)

MOST = 10**15
"""No count, capacity or time of an engine is larger; what is cannot be meant, and would not fit the sums made of it."""

_LABEL = re.compile(r'(\w+)="([^"]*)"')


class EngineMetrics(NamedTuple):
    """None for what the engine does not export; `missing` names those by their current name."""

    epoch: float | None
    kv_tokens: int | None
    running: int | None
    waiting: int | None
    kv_usage: float | None
    missing: Sequence[str]


def read(text: str) -> EngineMetrics:
    """Never raises: a line that is not understood counts as missing."""
    running, waiting = _values(text, RUNNING), _values(text, WAITING)
    usage, start = _values(text, KV_USAGE), _values(text, START_TIME)
    tokens = _kv_tokens(text)
    found = ((RUNNING, running), (WAITING, waiting), (KV_USAGE, usage), (CACHE_CONFIG, tokens), (START_TIME, start))
    return EngineMetrics(
        max(start) if start else None,
        sum(tokens) if tokens else None,
        int(sum(running)) if running else None,
        int(sum(waiting)) if waiting else None,
        max(usage) if usage else None,
        [names[0] for names, values in found if not values],
    )


def _lines(text: str, names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(labels, value) of each sample of the first of these names that is there."""
    for name in names:
        found = False
        at = 0 if text.startswith(name) else text.find("\n" + name) + 1
        while at or text.startswith(name, at):
            end = text.find("\n", at)
            line = text[at : end if end >= 0 else len(text)]
            labels, _, value = line[len(name) :].rpartition(" ")
            if not labels or labels.startswith("{"):  # A longer name that begins alike is another metric.
                found = True
                yield labels, value
            at = text.find("\n" + name, at) + 1
            if not at:
                break
        if found:
            return


def _values(text: str, names: Sequence[str]) -> list[float]:
    """Those that are counts, shares or times: Prometheus's format knows NaN and infinity, too."""
    return [value for _, told in _lines(text, names) if 0 <= (value := _number(told)) <= MOST]


def _number(text: str) -> float:
    """NaN for what is no number."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def _kv_tokens(text: str) -> list[int]:
    tokens = []
    for labels, _ in _lines(text, CACHE_CONFIG):
        of = dict(_LABEL.findall(labels))
        capacity = _number(of.get("num_gpu_blocks", "")) * _number(of.get("block_size", ""))
        if 1 <= capacity <= MOST:
            tokens.append(int(capacity))
    return tokens
