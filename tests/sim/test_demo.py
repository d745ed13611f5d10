"""The demo's flags, its mistakes in one line each, and the commands that it prints."""

import json
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from loadtests.demo import _chat_plan, _trace_plan, _welcome
from loadtests.fleet import FleetShape
from loadtests.processes import HOST
from loadtests.traces import TraceRequest, write
from router import cli


def demo(*flags: str) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.main(["demo", *flags])
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--json", "out.json"], "only together with --compare"),
        (["--seconds", "5"], "only together with --compare"),
        (["--compare", "--limit", "5"], "only together with --trace"),
        (["--compare", "--json", "/nonexistent/out.json"], "no directory /nonexistent"),
        (["--compare", "--trace", "/nonexistent.jsonl"], "does not exist"),
        (["--speed", "0"], "--speed"),
    ],
)
def test_a_flag_that_cannot_work_is_refused(
    flags: Sequence[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert demo(*flags) == 2
    err = capsys.readouterr().err
    assert complaint in err
    assert "Traceback" not in err


def test_a_broken_trace_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text("{}\n")
    assert demo("--compare", "--trace", str(trace)) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"homing demo: {trace}:1: ")


@pytest.mark.parametrize("flag", ["--port", "--admin-port"])
def test_a_taken_port_names_its_flag(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        listener.listen()
        other = {"--port": "--admin-port", "--admin-port": "--port"}[flag]
        assert demo(flag, str(listener.getsockname()[1]), other, "64999") == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.endswith(f"choose another with {flag}")


def test_the_help_is_short_and_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert demo("--help") == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 40
    assert "homing demo --compare --json out.json" in [line.strip() for line in lines]


def test_the_printed_curl_lines_send_valid_requests() -> None:
    shown = _welcome("http://127.0.0.1:8080", "http://127.0.0.1:9100", {"r1": "http://127.0.0.1:1"})
    lines = [line.strip() for line in shown.splitlines() if line.strip().startswith("curl")]
    assert len(lines) == 2
    for line, stream in zip(lines, (False, True), strict=True):
        script = """curl() { for word; do printf '%s\\0' "$word"; done; }\n""" + line
        words = subprocess.run(["bash", "-c", script], capture_output=True, check=True, text=True).stdout.split("\0")
        assert "http://127.0.0.1:8080/v1/chat/completions" in words
        body = json.loads(words[words.index("-d") + 1])
        assert body.get("stream", False) is stream
        assert len(body["messages"][0]["content"]) > 2_000


def test_a_shorter_time_means_fewer_turns_for_both_arms() -> None:
    shape = FleetShape()
    assert _chat_plan(shape, None).workload.requests == 40 * 8
    assert _chat_plan(shape, 20.0).workload.requests == 40 * 3
    assert _chat_plan(shape, 1.0).workload.requests == 40


def test_speed_is_that_of_replicas_and_arrivals(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    write(trace, [TraceRequest(0, 10, 1, (0,)), TraceRequest(5_000, 10, 1, (0,)), TraceRequest(9_000, 10, 1, (0,))])
    plan = _trace_plan(FleetShape(speed=5.0), trace, 2, None)
    assert [session.start_s for session in plan.workload.sessions] == [0.0, 1.0]
    assert (plan.shape.blocks, plan.shape.speed, plan.seconds) == (29_000, 5.0, None)


def test_a_short_comparison_runs_both_arms_on_the_same_work_and_reports_them(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    command = [sys.executable, "-m", "router.cli", "demo", "--compare", "--seconds", "1", "--json", str(out)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    report = json.loads(out.read_text())
    assert report["trace_sha256"] == _chat_plan(FleetShape(seed=1), 1.0).workload.sha256()
    assert report["replicas"] == {"n": 4, "profile": "llama3-8b-h100", "blocks": 6_000, "block_size": 16, "speed": 1.0}
    first, second = report["arms"]
    assert (first["policy"], second["policy"]) == ("round_robin", "prefix_affinity")
    assert (first["errors"], second["errors"]) == (0, 0)
    # Sessions start every .2 s.
    assert first["requests"] == second["requests"] == 5
    assert sum(second["requests_per_replica"].values()) == 5
    assert "Total wall time" in ran.stdout
