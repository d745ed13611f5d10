"""The figures of a report, against examples computed by hand."""

import json
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from loadtests.records import Record
from loadtests.report import (
    COLUMNS,
    SHORT_COLUMNS,
    Arm,
    Distribution,
    Replicas,
    Report,
    Slo,
    causes,
    distribution,
    notes,
    percentile,
    rate,
    summarise,
    table,
)
from tests.sim.records import BLANK

FAILED = replace(BLANK, error="timeout", first_token_s=None, prompt_tokens=0, completion_tokens=0, replica=None)
# 4 requests, sent at 0, 1, 2 and 3 s; the third failed; TTFT .1, .2 and .4 s; TPOT .1, .2 and (one token) none.
RECORDS = [
    replace(BLANK, sent_s=0.0, first_token_s=0.1, end_s=0.5, gaps_s=(0.1, 0.1, 0.1, 0.1)),
    replace(BLANK, scheduled_s=0.9, sent_s=1.0, first_token_s=1.2, end_s=2.0, cached_tokens=800, replica="r2"),
    replace(FAILED, scheduled_s=2.0, sent_s=2.0, end_s=9.0),
    replace(BLANK, scheduled_s=3.0, sent_s=3.0, first_token_s=3.4, end_s=3.4, completion_tokens=1, cached_tokens=400),
]


def report(*arms: Arm, speed: float = 1.0) -> Report:
    return Report("ab" * 32, [1], 1, Slo().at_speed(speed), Replicas(3, "p", 10, 16, speed), 0.75, list(arms))


def printed(shown: Report, columns: dict[str, object] | None, width: int) -> str:
    out = StringIO()
    Console(file=out, width=width).print(table(shown, columns))  # type: ignore[arg-type]
    return out.getvalue()


def test_percentiles_interpolate_between_the_nearest_ranks() -> None:
    values = [10.0, 20.0, 30.0, 40.0]
    assert percentile(values, 0.0) == 10.0
    assert percentile(values, 0.5) == 25.0
    assert percentile(values, 0.9) == pytest.approx(37.0)
    assert percentile(values, 1.0) == 40.0
    assert percentile([5.0], 0.99) == 5.0
    assert percentile([], 0.5) is None


def test_a_distribution_of_hundred_and_one_values() -> None:
    expected = Distribution(50.0, 50.0, 90.0, 95.0, 99.0)
    assert distribution([None, *map(float, reversed(range(101))), None]) == expected
    assert distribution([None]) is None


def test_a_rate_counts_the_intervals_between_events() -> None:
    assert rate([1.0, 2.0, 5.0]) == pytest.approx(2 / 4)
    assert rate([1.0]) is None
    assert rate([]) is None


def test_an_arm_is_what_its_records_say() -> None:
    arm = summarise("p", RECORDS, ["r1", "r2", "r3"], Slo(ttft_s=0.3, ttft_s_per_1k_prompt_tokens=0.05, tpot_s=0.15))
    assert (arm.requests, arm.errors) == (4, 1)
    assert arm.hit_ratio == pytest.approx(1_200 / 3_000)
    # The limits are .35 s and .15 s: the second is too slow in TPOT, the third failed, the fourth too slow in TTFT.
    assert arm.goodput == pytest.approx(1 / 4)
    assert arm.ttft_s is not None
    assert arm.ttft_s.mean == pytest.approx(0.7 / 3)
    assert arm.ttft_s.p50 == pytest.approx(0.2)
    assert arm.tpot_s is not None
    assert arm.tpot_s.mean == pytest.approx(0.15)
    assert arm.itl_s is not None
    assert arm.itl_s.p99 == pytest.approx(0.1)
    assert arm.e2e_s is not None
    assert arm.e2e_s.mean == pytest.approx((0.5 + 1.0 + 0.4) / 3)
    assert arm.output_tokens_per_s == pytest.approx(11 / 3.4)
    assert arm.requests_per_replica == {"r1": 2, "r2": 1, "r3": 0}
    assert arm.max_over_mean == pytest.approx(2.0)
    assert arm.requested_rate == pytest.approx(3 / 3)
    assert arm.achieved_rate == pytest.approx(3 / 3)
    # Delays 0, 0, 0 and .1 s: rank .99 * 3 = 2.97.
    assert arm.schedule_delay_p99_s == pytest.approx(0.097)


def test_an_arm_in_which_everything_failed_has_no_figures() -> None:
    arm = summarise("p", [FAILED], ["r1"], Slo())
    assert (arm.errors, arm.goodput) == (1, 0.0)
    assert arm.hit_ratio is None
    assert arm.ttft_s is None
    assert arm.output_tokens_per_s is None
    assert arm.max_over_mean is None
    assert "-" in printed(report(arm), None, 300)


def test_a_replica_that_nobody_named_is_counted_too() -> None:
    arm = summarise("p", RECORDS, ["r1"], Slo())
    assert arm.requests_per_replica == {"r1": 2, "r2": 1}


def test_failures_are_counted_by_cause() -> None:
    assert causes([*RECORDS, replace(FAILED, error="reset"), FAILED]) == {"timeout": 2, "reset": 1}


@pytest.mark.parametrize(
    ("record", "good"),
    [
        (replace(BLANK, first_token_s=1.06, end_s=1.2), True),
        (replace(BLANK, first_token_s=1.07, end_s=1.2), False),
        (replace(BLANK, prompt_tokens=16_000, first_token_s=1.99, end_s=2.0), True),
        (replace(BLANK, first_token_s=0.1, end_s=0.29), True),
        (replace(BLANK, first_token_s=0.1, end_s=0.31), False),
        (replace(BLANK, completion_tokens=1, first_token_s=0.1, end_s=9.0), True),
        (FAILED, False),
    ],
)
def test_the_slo_grows_with_the_prompt_and_limits_the_output_time(record: Record, good: bool) -> None:
    assert Slo().met_by(record) is good


def test_the_slo_of_faster_replicas_is_as_much_stricter() -> None:
    assert Slo().at_speed(5) == Slo(0.2, 0.0125, 0.01, 0.2)


def test_the_json_has_the_fields_of_the_format(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    report(summarise("p", RECORDS, ["r1"], Slo())).write(path)
    read = json.loads(path.read_text())
    assert next(iter(read)) == "schema"
    assert read["schema"] == "homing.report/1"
    assert set(read) == {"schema", "trace_sha256", "seeds", "repeats", "slo", "replicas", "ceiling_hit_ratio", "arms"}
    assert set(read["replicas"]) == {"n", "profile", "blocks", "block_size", "speed"}
    assert set(read["arms"][0]) == {
        *("policy", "requests", "errors", "hit_ratio", "goodput", "ttft_s", "tpot_s", "itl_s", "e2e_s"),
        *("output_tokens_per_s", "max_over_mean", "requests_per_replica"),
        *("requested_rate", "achieved_rate", "schedule_delay_p99_s"),
    }
    assert set(read["arms"][0]["ttft_s"]) == {"mean", "p50", "p90", "p95", "p99"}


def test_the_short_table_fits_a_terminal_of_80_columns() -> None:
    arm = summarise("prefix_affinity", RECORDS, ["r1", "r2"], Slo())
    text = printed(report(arm), SHORT_COLUMNS, 80)  # type: ignore[arg-type]
    assert "…" not in text
    assert all(word in text for name in SHORT_COLUMNS for word in name.split())
    assert " 40.0 " in text


def test_the_long_table_has_every_column_in_order() -> None:
    arm = summarise("prefix_affinity", RECORDS, ["r1", "r2"], Slo())
    text = printed(report(arm), None, 300)
    places = [text.index(name) for name in COLUMNS]
    assert places == sorted(places)
    # Little: 1 request/s of .633 s each.
    assert "0.6" in text


def test_the_notes_name_ceiling_slo_and_repeats() -> None:
    text = " ".join(notes(report(summarise("p", RECORDS[:1], ["r1"], Slo()))))
    assert "75.0%" in text
    assert "1 s + 62.5 ms per 1,000 prompt tokens, TPOT <= 50 ms." in text
    assert "1 repeat: indicative" in text
    assert "Not valid" not in text


def test_the_notes_say_when_the_slo_was_scaled_and_when_the_client_fell_behind() -> None:
    text = " ".join(notes(report(summarise("p", RECORDS, ["r1"], Slo()), speed=2)))
    assert "TTFT <= 0.5 s + 31.25 ms" in text
    assert "x 0.5" in text
    assert "Schedule delay p99: p 97.0 ms. Not valid: the client did not keep up (limit 50 ms)." in text
