"""How long a step takes, per model and GPU: constants with their sources, and one formula.

Pure values. A profile knows nothing of scheduling; `engine` asks it for the duration of the batch that it built.
`Profile.at_speed` scales every time and no size, for tests and demos that cannot wait for a real GPU's pace.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

MICROSECOND: Final = 1e-6


@dataclass(frozen=True, slots=True)
class Profile:
    """One model on one kind of replica.

    `step_seconds` is the decode step of one sequence without context (reading all weights once);
    `sequence_seconds` what each further sequence adds to it; `kv_seconds_per_token` what each context token of a
    decoding sequence adds (reading its keys and values); `kv_tokens` how many tokens fit in the KV cache.
    """

    name: str
    prefill_tokens_per_second: float
    step_seconds: float
    sequence_seconds: float
    kv_seconds_per_token: float
    kv_tokens: int
    kv_bytes_per_token: int

    def duration(self, prefill_tokens: int, decodes: int, context: int) -> float:
        """Seconds of one step: max(decode floor, prefill time) + KV reads.

        Prefill and decode share the step: the weights are read once for both, so the shorter hides behind the longer;
        the reads of the decodes' context (in tokens, all sequences together) come on top. A step without a decode
        still reads the weights, so the floor of one sequence holds for it as well.
        """
        floor = self.step_seconds + self.sequence_seconds * max(0, decodes - 1)
        return max(floor, prefill_tokens / self.prefill_tokens_per_second) + self.kv_seconds_per_token * context

    def at_speed(self, speed: float) -> "Profile":
        """The same replica, `speed` times as fast."""
        if not speed > 0:
            raise ValueError(f"speed must be above 0, not {speed}")
        return replace(
            self,
            prefill_tokens_per_second=self.prefill_tokens_per_second * speed,
            step_seconds=self.step_seconds / speed,
            sequence_seconds=self.sequence_seconds / speed,
            kv_seconds_per_token=self.kv_seconds_per_token / speed,
        )


def _slope(step_of_1: float, step_of_64: float) -> float:
    """What each further sequence adds, from the decode steps of 1 and of 64 sequences."""
    return (step_of_64 - step_of_1) / 63


# KV bytes per token = 2 (key and value) * layers * KV heads * head size * 2 bytes: 32 * 8 * 128 for Llama 3 8B,
# 64 * 8 * 128 for Qwen3 32B, 80 * 8 * 128 for Llama 3 70B.
# KV seconds per token = those bytes / HBM bandwidth of all GPUs: 3.35 TB/s per H100, 2.0 TB/s per A100.
_ALL: Final = (
    Profile(
        name="llama3-8b-h100",
        prefill_tokens_per_second=32_000,  # Between 30,000 and 35,000; taken from no public profile.
        step_seconds=6.0e-3,  # 16 GB of weights over 3.35 TB/s, and launch overhead.
        sequence_seconds=_slope(6.0e-3, 6.3e-3),
        kv_seconds_per_token=0.039 * MICROSECOND,  # 131,072 bytes / 3.35 TB/s.
        kv_tokens=467_000,  # 0.9 of 80 GiB less 15 GiB of weights, over 131,072 bytes.
        kv_bytes_per_token=131_072,
    ),
    Profile(
        name="llama3-8b-a100",
        prefill_tokens_per_second=15_000,  # Vidur operator profiles, A100 80 GB.
        step_seconds=9.7e-3,  # Vidur.
        sequence_seconds=_slope(9.7e-3, 11.2e-3),  # Vidur.
        kv_seconds_per_token=0.066 * MICROSECOND,  # 131,072 bytes / 2.0 TB/s.
        kv_tokens=467_000,  # As on the H100: equal memory.
        kv_bytes_per_token=131_072,
    ),
    Profile(
        name="qwen3-32b-2xh100",
        prefill_tokens_per_second=15_928,  # llm-d calibration matrix, measured end to end.
        step_seconds=18e-3,  # llm-d calibration matrix; no difference between batch sizes was reported.
        sequence_seconds=0.0,
        kv_seconds_per_token=0.04 * MICROSECOND,  # 262,144 bytes / (2 * 3.35 TB/s).
        kv_tokens=302_000,  # llm-d calibration matrix.
        kv_bytes_per_token=262_144,
    ),
    Profile(
        name="llama3-70b-4xa100",
        prefill_tokens_per_second=6_200,  # Vidur operator profiles, four A100 80 GB.
        step_seconds=24.9e-3,  # Vidur.
        sequence_seconds=_slope(24.9e-3, 26.9e-3),  # Vidur.
        kv_seconds_per_token=0.041 * MICROSECOND,  # 327,680 bytes / (4 * 2.0 TB/s).
        kv_tokens=450_000,  # Four times 0.9 of 80 GB less 141 GB of weights, over 327,680 bytes; rounded.
        kv_bytes_per_token=327_680,
    ),
)

PROFILES: Final[Mapping[str, Profile]] = MappingProxyType({profile.name: profile for profile in _ALL})
