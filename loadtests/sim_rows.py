"""What a simulated run comes to: one JSON line with its key, a report in R29's format, and what only a simulator knows.

Lines are appended to a file, one for each run, and are all that tables and plots are made of: whoever repeats a run
that is in the file already wastes time and gets the same bits.
"""

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from loadtests.plays import NAME_TOKENS, Play, ceiling_hit_ratio
from loadtests.report import Replicas, Report, Slo, summarise
from loadtests.simulation import FleetPlan, Outcome


@dataclass(frozen=True, slots=True)
class Key:
    """Which run. `arm` is a policy or a setting, `load` how the rate is called, `rate` in requests a second."""

    workload: str
    load: str
    rate: float
    arm: str
    seed: int


@dataclass(frozen=True, slots=True)
class Row:
    """The figures of one run: shares, seconds, and prompt tokens of all leases that ended well (the ledger: what the
    best replica had, what the chosen one was believed to have, what it had)."""

    key: Key
    requests: int
    errors: int
    goodput: float
    hit_ratio: float
    ceiling: float
    ttft_mean: float
    ttft_p90: float
    ttft_p99: float
    tpot_mean: float
    work_skew: float
    reachable: float
    predicted: float


class NothingAnsweredError(RuntimeError):
    """Not one request of a run was answered, so that it has no figures."""


def line(key: Key, play: Play, plan: FleetPlan, outcome: Outcome) -> bytes:
    """One run as a line. Raises NothingAnsweredError."""
    slo, blocks = Slo(), plan.blocks
    arm = summarise(key.arm, outcome.records, outcome.done, slo)
    ceiling = ceiling_hit_ratio(play)
    replicas = Replicas(len(plan.speeds), plan.profile, blocks, NAME_TOKENS, 1.0)
    report = Report(play.sha256(), [key.seed], 1, slo, replicas, ceiling, [arm])
    if arm.ttft_s is None or arm.goodput is None or arm.hit_ratio is None:
        raise NothingAnsweredError(f"{key.workload} at {key.rate:g}/s, {key.arm}: no request was answered")
    prompts = sum(lease.prompt_tokens for lease in outcome.settled)
    row = Row(
        key, arm.requests, arm.errors, arm.goodput, arm.hit_ratio, ceiling, arm.ttft_s.mean, arm.ttft_s.p90,
        arm.ttft_s.p99, arm.tpot_s.mean if arm.tpot_s else 0.0, outcome.work_skew,
        sum(lease.reachable for lease in outcome.settled) / prompts,
        sum(lease.predicted for lease in outcome.settled) / prompts,
    )  # fmt: skip
    told: dict[str, Any] = {**asdict(row), "records_sha256": outcome.sha256(), "report": json.loads(report.to_json())}
    return json.dumps(told, allow_nan=False).encode() + b"\n"


def parse(text: bytes) -> Row:
    """A line's figures. Raises ValueError, KeyError or TypeError for what is none."""
    told = json.loads(text)
    del told["report"], told["records_sha256"]
    return Row(**{**told, "key": Key(**told["key"])})


def append(path: Path, text: bytes) -> None:
    """Add one line in one write, so that several processes can. Raises OSError."""
    with path.open("ab", buffering=0) as file:
        file.write(text)


def read(path: Path) -> list[Row]:
    """All rows; none where there is no file. A last line without its end, as a killed run leaves it, is left out."""
    return [parse(text) for text in _whole(path)]


def repair(path: Path) -> None:
    """Take such a last line out, before more are appended. Raises OSError."""
    whole = b"".join(_whole(path))
    if path.exists() and len(whole) < path.stat().st_size:
        path.write_bytes(whole)


def _whole(path: Path) -> list[bytes]:
    if not path.exists():
        return []
    return [text for text in path.read_bytes().splitlines(keepends=True) if text.endswith(b"\n")]


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and range over seeds."""

    median: float
    least: float
    most: float

    def text(self, scale: float = 1.0, digits: int = 1) -> str:
        """`median [least, most]`; the median alone where there is nothing else."""
        shown = [f"{value * scale:.{digits}f}" for value in (self.median, self.least, self.most)]
        return shown[0] if self.least == self.most else f"{shown[0]} [{shown[1]}, {shown[2]}]"


def spread(values: Iterable[float]) -> Spread:
    """Raises ValueError when there are none."""
    known: Sequence[float] = list(values)
    return Spread(statistics.median(known), min(known), max(known))
