"""The one report format of every load test, `homing.report/1` (UX R29): records in, figures out, JSON and table.

Pure but for `Report.write`. All times are seconds, all shares are ratios from 0 to 1. Latencies count from sending;
what lies before it is the schedule delay, printed beside them. Percentiles interpolate linearly between the two
nearest ranks (numpy's default, which `vllm bench serve` uses too). A figure that has no sample is null, never 0.
Failed requests have no part in latencies, rates of tokens and hit ratio; in goodput they count as not good.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.table import Table

from loadtests.records import Record

SCHEMA = "homing.report/1"
MAX_SCHEDULE_DELAY_S = 0.05  # Beyond this at p99 the client did not keep up and a run is not valid (UX section 7).


@dataclass(frozen=True, slots=True)
class Slo:
    """TTFT <= ttft_s + ttft_s_per_1k_prompt_tokens * prompt tokens / 1,000, and TPOT <= tpot_s (POLICY section 6)."""

    ttft_s: float = 1.0
    ttft_s_per_1k_prompt_tokens: float = 0.0625
    tpot_s: float = 0.05
    scaled_by: float = 1.0

    def at_speed(self, speed: float) -> "Slo":
        """The same demand on replicas that run `speed` times as fast; `scaled_by` says that it was done."""
        return Slo(
            self.ttft_s / speed, self.ttft_s_per_1k_prompt_tokens / speed, self.tpot_s / speed, self.scaled_by / speed
        )

    def met_by(self, record: Record) -> bool:
        """A whole answer within both limits; an answer of one token has no TPOT and is judged by TTFT alone."""
        ttft_s, tpot_s = record.ttft_s, record.tpot_s
        if record.error is not None or ttft_s is None:
            return False
        limit_s = self.ttft_s + self.ttft_s_per_1k_prompt_tokens * record.prompt_tokens / 1_000
        return ttft_s <= limit_s and (tpot_s is None or tpot_s <= self.tpot_s)


@dataclass(frozen=True, slots=True)
class Replicas:
    """The fleet under test: `n` replicas of `blocks` engine blocks of `block_size` tokens each."""

    n: int
    profile: str
    blocks: int
    block_size: int
    speed: float


@dataclass(frozen=True, slots=True)
class Distribution:
    """Mean and percentiles of one quantity, in seconds."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True)
class Arm:
    """What one policy (or target) made of the work."""

    policy: str
    requests: int
    errors: int
    hit_ratio: float | None
    goodput: float | None
    ttft_s: Distribution | None
    tpot_s: Distribution | None
    itl_s: Distribution | None
    e2e_s: Distribution | None
    output_tokens_per_s: float | None
    max_over_mean: float | None
    requests_per_replica: dict[str, int]
    requested_rate: float | None
    achieved_rate: float | None
    schedule_delay_p99_s: float | None


@dataclass(frozen=True, slots=True)
class Report:
    """A whole report in the format homing.report/1 (UX R29); seconds and ratios."""

    trace_sha256: str
    seeds: list[int]
    repeats: int
    slo: Slo
    replicas: Replicas
    ceiling_hit_ratio: float | None
    arms: list[Arm]
    schema: str = field(default=SCHEMA, init=False)

    @property
    def errors(self) -> int:
        return sum(arm.errors for arm in self.arms)

    def to_json(self) -> str:
        fields = asdict(self)
        return json.dumps({"schema": fields.pop("schema"), **fields}, indent=2, allow_nan=False) + "\n"

    def write(self, path: Path) -> None:
        """Raises OSError."""
        path.write_text(self.to_json(), encoding="utf-8")


def summarise(policy: str, records: Sequence[Record], replica_ids: Iterable[str], slo: Slo) -> Arm:
    """The figures of one arm. `replica_ids` are all replicas, also those that no request reached."""
    whole = [record for record in records if record.error is None]
    served = Counter(record.replica for record in records if record.replica is not None)
    per_replica = {name: served.pop(name, 0) for name in replica_ids} | {str(name): n for name, n in served.items()}
    return Arm(
        policy=policy,
        requests=len(records),
        errors=len(records) - len(whole),
        hit_ratio=ratio(sum(r.cached_tokens for r in whole), sum(r.prompt_tokens for r in whole)),
        goodput=ratio(sum(slo.met_by(record) for record in records), len(records)),
        ttft_s=distribution(record.ttft_s for record in whole),
        tpot_s=distribution(record.tpot_s for record in whole),
        itl_s=distribution(gap_s for record in whole for gap_s in record.gaps_s),
        e2e_s=distribution(record.e2e_s for record in whole),
        output_tokens_per_s=_token_rate(whole),
        max_over_mean=ratio(max(per_replica.values(), default=0) * len(per_replica), sum(per_replica.values())),
        requests_per_replica=per_replica,
        requested_rate=rate([record.scheduled_s for record in records]),
        achieved_rate=rate([record.sent_s for record in records]),
        schedule_delay_p99_s=percentile(sorted(record.schedule_delay_s for record in records), 0.99),
    )


def causes(records: Iterable[Record]) -> Counter[str]:
    """Failures by label."""
    return Counter(record.error for record in records if record.error is not None)


def ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def percentile(ordered: Sequence[float], q: float) -> float | None:
    """The value at rank `q * (n - 1)` of ascending values, between two ranks by linear interpolation."""
    if not ordered:
        return None
    rank = q * (len(ordered) - 1)
    below, above = ordered[math.floor(rank)], ordered[math.ceil(rank)]
    return below + (above - below) * (rank - math.floor(rank))


def distribution(values: Iterable[float | None]) -> Distribution | None:
    """None where there is no value; values that are None themselves are left out."""
    ordered = sorted(value for value in values if value is not None)
    p50, p90, p95, p99 = (percentile(ordered, q) for q in (0.5, 0.9, 0.95, 0.99))
    if p50 is None or p90 is None or p95 is None or p99 is None:
        return None
    return Distribution(math.fsum(ordered) / len(ordered), p50, p90, p95, p99)


def rate(times_s: Sequence[float]) -> float | None:
    """Events per second between the first and the last: n - 1 intervals over their span."""
    span_s = max(times_s) - min(times_s) if times_s else 0.0
    return ratio(len(times_s) - 1, span_s)


def _token_rate(whole: Sequence[Record]) -> float | None:
    if not whole:
        return None
    span_s = max(record.end_s for record in whole) - min(record.sent_s for record in whole)
    return ratio(sum(record.completion_tokens for record in whole), span_s)


Column = Callable[[Arm], str]


def _number(value: float | None, scale: float = 1.0, digits: int = 2) -> str:
    return "-" if value is None else f"{value * scale:.{digits}f}"


def _ms(take: Callable[[Arm], Distribution | None], *names: str) -> Column:
    def show(arm: Arm) -> str:
        spread = take(arm)
        return "-" if spread is None else "/".join(f"{getattr(spread, name) * 1_000:.0f}" for name in names)

    return show


def _concurrency(arm: Arm) -> str:
    """Little's law: requests in flight on average = rate * mean time in the system."""
    if arm.achieved_rate is None or arm.e2e_s is None:
        return "-"
    return _number(arm.achieved_rate * arm.e2e_s.mean, digits=1)


# The order of UX R29, with units. TPOT = (e2e - ttft) / (output tokens - 1).
COLUMNS: dict[str, Column] = {
    "arm": lambda arm: arm.policy,
    "rate": lambda arm: _number(arm.requested_rate),
    "conc": _concurrency,
    "ok": lambda arm: str(arm.requests - arm.errors),
    "fail": lambda arm: str(arm.errors),
    "req/s": lambda arm: _number(arm.achieved_rate),
    "goodput %": lambda arm: _number(arm.goodput, 100, 1),
    "out tok/s": lambda arm: _number(arm.output_tokens_per_s, digits=0),
    "TTFT p50/p95/p99 ms": _ms(lambda arm: arm.ttft_s, "p50", "p95", "p99"),
    "TPOT p50/p95/p99 ms": _ms(lambda arm: arm.tpot_s, "p50", "p95", "p99"),
    "ITL p99 ms": _ms(lambda arm: arm.itl_s, "p99"),
    "E2E p50/p95/p99 ms": _ms(lambda arm: arm.e2e_s, "p50", "p95", "p99"),
    "hit %": lambda arm: _number(arm.hit_ratio, 100, 1),
    "max/mean": lambda arm: _number(arm.max_over_mean),
    "sched p99 ms": lambda arm: _number(arm.schedule_delay_p99_s, 1_000, 1),
}

# UX R1: what answers the first question and fits 80 columns.
SHORT_COLUMNS: dict[str, Column] = {
    "arm": COLUMNS["arm"],
    "ok": COLUMNS["ok"],
    "fail": COLUMNS["fail"],
    "TTFT\nmean ms": _ms(lambda arm: arm.ttft_s, "mean"),
    "TTFT\np50 ms": _ms(lambda arm: arm.ttft_s, "p50"),
    "TTFT\np95 ms": _ms(lambda arm: arm.ttft_s, "p95"),
    "hit\n%": COLUMNS["hit %"],
    "max/\nmean": COLUMNS["max/mean"],
    "goodput\n%": COLUMNS["goodput %"],
}


def table(report: Report, columns: dict[str, Column] | None = None) -> Table:
    """The arms as rows; with `columns` other than R29's (the default), those."""
    shown = COLUMNS if columns is None else columns
    grid = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in shown:
        grid.add_column(name, justify="left" if name == "arm" else "right", no_wrap=True)
    for arm in report.arms:
        grid.add_row(*(show(arm) for show in shown.values()))
    return grid


def notes(report: Report) -> list[str]:
    """What a reader must know beside the table: the ceiling, the SLO, and what keeps the figures from a verdict."""
    ceiling = "unknown" if report.ceiling_hit_ratio is None else f"{report.ceiling_hit_ratio:.1%}"
    slo, scaled = report.slo, report.slo.scaled_by
    lines = [
        f"Hit ratio of one infinite cache over the same prompts (ceiling): {ceiling}.",
        f"Goodput: TTFT <= {slo.ttft_s:g} s + {slo.ttft_s_per_1k_prompt_tokens * 1_000:g} ms per 1,000 prompt tokens, "
        f"TPOT <= {slo.tpot_s * 1_000:g} ms" + ("." if scaled == 1 else f" (x {scaled:g}: the replicas' speed)."),
    ]
    if report.repeats < 5:
        plural = "" if report.repeats == 1 else "s"
        lines.append(f"{report.repeats} repeat{plural}: indicative.")
    delays = ", ".join(f"{arm.policy} {_number(arm.schedule_delay_p99_s, 1_000, 1)} ms" for arm in report.arms)
    lines.append(f"Schedule delay p99: {delays}.")
    if any((arm.schedule_delay_p99_s or 0.0) > MAX_SCHEDULE_DELAY_S for arm in report.arms):
        lines.append(f"Not valid: the client did not keep up (limit {MAX_SCHEDULE_DELAY_S * 1_000:g} ms).")
    return lines
