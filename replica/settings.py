"""What one simulated replica can be told: plain values, checked once, here."""

from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from replica.faults import Fault
from replica.profiles import PROFILES
from replica.prometheus import MetricNames

DEFAULT_PROFILE = "llama3-8b-h100"


@dataclass(frozen=True, slots=True)
class ReplicaSettings:
    """`port` 0 takes a free one. `blocks` None is as many as the profile's GPU has room for.

    `max_model_len` is in tokens; it never exceeds the KV cache. `keepalive_seconds` is uvicorn's default.
    `keep_requests` is how many of the last requests `SimulatedReplica.requests_seen` keeps, bodies included.
    `seed` makes tokenizer and answers; replicas of one fleet share it, so that any of them gives the same answer.
    `prefix_caching` off is an engine that reuses nothing. `prompt_tokens_details` off is an engine without
    `--enable-prompt-tokens-details`: chat, completions and Messages do not tell cached tokens. `metrics` is the names
    that `/metrics` uses (see `prometheus`). `keep_responses` is how many answers of the Responses API are stored;
    0 is vLLM without `VLLM_ENABLE_RESPONSES_API_STORE`, which is its default and not ours. `record_ids` is the file of
    a GenerationLog.
    """

    id: str = "r1"
    host: str = "127.0.0.1"
    port: int = 0
    model: str = "sim"
    adapters: tuple[str, ...] = ()
    profile: str = DEFAULT_PROFILE
    speed: float = 1.0
    blocks: int | None = None
    block_size: int = 16
    max_model_len: int = 131_072
    seed: int = 0
    fault: Fault = Fault.NONE
    keepalive_seconds: float = 5.0
    keep_requests: int = 0
    prefix_caching: bool = True
    prompt_tokens_details: bool = True
    metrics: MetricNames = "current"
    keep_responses: int = 1_000
    record_ids: Path | None = None

    def __post_init__(self) -> None:
        if self.profile not in PROFILES:
            raise ValueError(f"no profile `{self.profile}`; there are {', '.join(PROFILES)}")
        if not self.speed > 0:
            raise ValueError(f"speed must be above 0, not {self.speed}")
        if self.block_size < 1 or (self.blocks is not None and self.blocks < 1):
            raise ValueError("there must be at least one block of at least one token")
        if self.max_model_len < 2:
            raise ValueError("max_model_len must leave room for a prompt token and an output token")
        if self.metrics not in get_args(MetricNames):
            raise ValueError(f"metrics must be one of {', '.join(get_args(MetricNames))}, not `{self.metrics}`")
