"""The metrics of a simulated replica under vLLM's names, in Prometheus text format.

`current` are the names of vLLM 0.32. `old` are those of vLLM 0.9 and before, which said `gpu_` where the cache was
meant and did not count cached prompt tokens; its samples carry no `engine` label. `none` is a page without any of
vLLM's metrics.

Written by hand: a dozen samples need no client library, and its import alone would double the start-up time. Values are
read at the moment of the scrape; nothing is kept here.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from replica.engine import Engine

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
MetricNames = Literal["current", "old", "none"]
_OLD_NAMES: Final = {
    "kv_cache_usage_perc": "gpu_cache_usage_perc",
    "prefix_cache_queries_total": "gpu_prefix_cache_queries_total",
    "prefix_cache_hits_total": "gpu_prefix_cache_hits_total",
}
_NOT_IN_OLD: Final = frozenset({"prompt_tokens_cached_total"})
_REASONS: Final = ("stop", "length", "abort", "error")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a scrape reports beside the engine itself. `endings` counts finished requests by reason."""

    model: str
    started: float
    """Unix time of the start; a new value tells a reader that the cache is a new one."""
    endings: Mapping[str, int]
    names: MetricNames = "current"


def render(engine: Engine, snapshot: Snapshot) -> str:
    return "\n".join(_lines(engine, snapshot)) + "\n"


def _lines(engine: Engine, snapshot: Snapshot) -> Iterator[str]:
    if snapshot.names != "none":
        yield from _engine_lines(engine, snapshot)
    yield "# HELP process_start_time_seconds Start time of the process since unix epoch in seconds."
    yield "# TYPE process_start_time_seconds gauge"
    yield f"process_start_time_seconds {snapshot.started}"


def _engine_lines(engine: Engine, snapshot: Snapshot) -> Iterator[str]:
    old = snapshot.names == "old"
    model = _escape(snapshot.model)
    of_engine = "" if old else 'engine="0",'
    for name, kind, text, value in _samples(engine):
        if old and name in _NOT_IN_OLD:
            continue
        name_here = _OLD_NAMES.get(name, name) if old else name
        yield f"# HELP vllm:{name_here} {text}"
        yield f"# TYPE vllm:{name_here} {kind}"
        yield f'vllm:{name_here}{{{of_engine}model_name="{model}"}} {value}'
    yield "# HELP vllm:request_success_total Count of successfully processed requests."
    yield "# TYPE vllm:request_success_total counter"
    for reason in _REASONS:
        count = float(snapshot.endings.get(reason, 0))
        yield f'vllm:request_success_total{{{of_engine}finished_reason="{reason}",model_name="{model}"}} {count}'
    yield "# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig"
    yield "# TYPE vllm:cache_config_info gauge"
    yield f"vllm:cache_config_info{{{_cache_config(engine)}}} 1.0"


def _samples(engine: Engine) -> Iterator[tuple[str, str, str, float]]:
    counters = engine.counters
    yield "num_requests_running", "gauge", "Number of requests in model execution batches.", float(engine.running)
    yield "num_requests_waiting", "gauge", "Number of requests waiting to be processed.", float(engine.waiting)
    yield "kv_cache_usage_perc", "gauge", "KV-cache usage. 1 means 100 percent usage.", engine.cache.usage
    for name, text, value in (
        (
            "prefix_cache_queries",
            "Prefix cache queries, in terms of number of queried tokens.",
            counters.prefix_queries,
        ),
        ("prefix_cache_hits", "Prefix cache hits, in terms of number of cached tokens.", counters.prefix_hits),
        ("prompt_tokens", "Number of prefill tokens processed.", counters.prompt_tokens),
        ("prompt_tokens_cached", "Number of cached prompt tokens.", counters.prefix_hits),
        ("generation_tokens", "Number of generation tokens processed.", counters.generation_tokens),
        ("num_preemptions", "Cumulative number of preemption from the engine.", counters.preemptions),
    ):
        yield f"{name}_total", "counter", text, float(value)


def _cache_config(engine: Engine) -> str:
    """vLLM exposes its whole cache configuration as labels of a gauge that is always 1."""
    config = {
        "block_size": engine.block_size,
        "cache_dtype": "auto",
        "enable_prefix_caching": engine.prefix_caching,
        "engine": 0,
        "num_gpu_blocks": engine.cache.blocks,
        "num_gpu_blocks_override": None,
        "prefix_caching_hash_algo": "xxhash",
    }
    return ",".join(f'{key}="{value}"' for key, value in config.items())


def _escape(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
