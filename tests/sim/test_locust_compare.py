"""Locust's figures are read from its JSON file."""

import json

import msgspec
import pytest

from loadtests.locust_compare import Run, read_stats

POST = {"method": "POST", "name": "/v1", "num_requests": 240, "num_failures": 2, "response_times": {"600": 240}}
TTFT = {"method": "TTFT", "name": "/v1", "num_requests": 4, "num_failures": 0, "response_times": {"180": 1, "40": 3}}


def test_requests_and_first_tokens_are_told_apart() -> None:
    run = read_stats("p", json.dumps([TTFT, POST]).encode(), 30)
    assert (run.requests, run.failures, run.requests_per_s, run.ttft_p50_ms) == (240, 2, 8.0, 40.0)
    # 40, 40, 40, 180: rank .95 * 3 = 2.85.
    assert run.ttft_p95_ms == pytest.approx(40 + 0.85 * 140)


def test_a_run_without_a_first_token_has_no_ttft() -> None:
    assert read_stats("p", json.dumps([POST]).encode(), 30) == Run("p", 240, 2, 8.0, None, None)


def test_a_run_without_a_request_has_none() -> None:
    assert read_stats("p", b"[]", 30) == Run("p", 0, 0, 0.0, None, None)


def test_another_file_is_not_read_as_zero() -> None:
    with pytest.raises(msgspec.DecodeError):
        read_stats("p", b'[{"method": "POST"}]', 30)
