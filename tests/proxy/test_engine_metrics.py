"""An engine's /metrics text, whichever engine wrote it: what is there is read, and nothing in it does harm."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.members.engine import EngineMetrics, read

VLLM = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny"} 3.0
vllm:num_requests_waiting{engine="0",model_name="tiny"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="tiny",reason="capacity"} 99.0
vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.25
vllm:cache_config_info{block_size="32",cache_dtype="auto",engine="0",num_gpu_blocks="1024",sliding_window="None"} 1.0
process_start_time_seconds 1.75e+09
"""


def test_vllms_own_text_is_read() -> None:
    assert read(VLLM) == EngineMetrics(1.75e9, 32 * 1024, 3, 2, 0.25, [])


def test_engines_behind_one_address_are_added_up() -> None:
    other = VLLM.replace('engine="0"', 'engine="1"').replace("0.25", "0.75").replace("1.75e+09", "1.76e+09")
    assert read(VLLM + other) == EngineMetrics(1.76e9, 2 * 32 * 1024, 6, 4, 0.75, [])


def test_older_names_are_known() -> None:
    assert read('vllm:gpu_cache_usage_perc{model_name="m"} 0.5\n').kv_usage == 0.5


def test_what_is_missing_is_named() -> None:
    assert read("") == EngineMetrics(
        None,
        None,
        None,
        None,
        None,
        [
            "vllm:num_requests_running",
            "vllm:num_requests_waiting",
            "vllm:kv_cache_usage_perc",
            "vllm:cache_config_info",
            "process_start_time_seconds",
        ],
    )


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "1e999", "1e308", "-1", "", "many", "\u00b2", "9" * 5000])
def test_a_value_that_is_no_count_counts_as_missing(value: str) -> None:
    told = read(VLLM.replace("3.0", value).replace("0.25", value).replace("1.75e+09", value))
    assert (told.running, told.kv_usage, told.epoch) == (None, None, None)
    assert told.waiting == 2


@pytest.mark.parametrize("value", ["0", "None", "", "-1", "\u00b2", "9" * 5000])
def test_a_capacity_that_is_none_counts_as_missing(value: str) -> None:
    assert read(VLLM.replace('"1024"', f'"{value}"')).kv_tokens is None
    assert read(VLLM.replace('"32"', f'"{value}"')).kv_tokens is None


def test_a_name_is_found_in_the_first_and_in_an_unended_last_line() -> None:
    assert read("process_start_time_seconds 7").epoch == 7
    assert read("# x\nprocess_start_time_seconds 7").epoch == 7
    assert read("other_process_start_time_seconds 7").epoch is None
    assert read("process_start_time_seconds_total 7").epoch is None


LINES = st.sampled_from(VLLM.splitlines()) | st.text(max_size=30)


@settings(deadline=None, max_examples=100)
@given(st.lists(LINES | st.tuples(LINES, st.integers(0, 60)).map(lambda cut: cut[0][: cut[1]]), max_size=8))
def test_no_text_raises(lines: list[str]) -> None:
    assert isinstance(read("\n".join(lines)), EngineMetrics)
