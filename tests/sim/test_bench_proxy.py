"""The proxy benchmark: its meter, maths, arms and C programs, and one run, too short for its figures to mean much."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from rich.console import Console

from loadtests import bench_arms, bench_profile, bench_proxy, bench_report, bench_stages, meter
from loadtests.bench_arms import Arm, ArmError, Site
from loadtests.bench_cells import ADDED, BESIDE, CHUNK, Bench, Bodies, Plan, Sample, Subject, body, per, write_bodies
from loadtests.bench_report import Goal, Verdict
from loadtests.native import COMPILERS, NoCompilerError, Tools, build, compiler, listening_port
from loadtests.processes import HOST, Process, ProcessError, free_port, running
from router.members import engine

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it needs Linux: /proc and epoll"),
    pytest.mark.xdist_group("bench proxy"),  # The C programs are built once.
]

INTERVAL_MS = 1
TINY = Plan(rounds=1, seconds=0.3, connections=4, sizes=(0.5,), prompts=2, events=3, pairs=1, turn_seconds=0.1)


# The meter.


def test_a_process_is_read_whatever_its_name_holds() -> None:
    stat = "71 (a) b (c) S 12 71 71 0 -1 4194560 9 0 0 0 100 20 3 4 20 0 1 0 8 9 10"
    assert meter.read_stat(stat) == meter.Usage(parent=12, ticks=127)


def test_a_tree_is_all_that_a_process_started_and_nothing_else() -> None:
    of = {1: meter.Usage(0, 1000), 5: meter.Usage(1, 10), 6: meter.Usage(5, 200), 7: meter.Usage(6, 3)}
    of |= {8: meter.Usage(1, 5000)}
    assert meter.tree_ticks(5, of) == 213


def test_what_has_ended_is_not_read_as_nothing() -> None:
    with pytest.raises(meter.GoneError, match="process 9 has ended"):
        meter.tree_ticks(9, {1: meter.Usage(0, 1)})


def test_a_childs_cpu_counts_while_it_lives_and_when_it_has_ended() -> None:
    burn = "import sys, time\nwhile time.process_time() < .2: pass\nprint('hot', flush=True)\nsys.stdin.read()"
    before = meter.cpu_seconds(os.getpid())
    with subprocess.Popen([sys.executable, "-c", burn], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"hot\n"
        alive = meter.cpu_seconds(os.getpid())
    assert alive - before >= 0.15
    assert meter.cpu_seconds(os.getpid()) >= alive


def test_children_run_where_they_are_told_and_we_where_we_were() -> None:
    before = os.sched_getaffinity(0)
    one = frozenset([min(before)])
    tell = [sys.executable, "-c", "import os; print(sorted(os.sched_getaffinity(0)))"]
    with meter.on(one):
        told = subprocess.run(tell, capture_output=True, text=True, check=True).stdout
    assert told == f"{sorted(one)}\n"
    assert os.sched_getaffinity(0) == before


def test_a_core_of_its_own_takes_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 5})
    assert meter.split_cores() == meter.Cores(frozenset([5]), frozenset([0, 1]))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3})
    with pytest.raises(ValueError, match="--pin gives the proxy a core of its own"):
        meter.split_cores()


# The maths.


def sample(arm: str, cell: str, value: float | None, number: int = 1, problem: str | None = None) -> Sample:
    return Sample(arm, number, cell, value, problem=problem)


def rounds(arm: str, cell: str, *values: float | None) -> list[Sample]:
    return [sample(arm, cell, value, number) for number, value in enumerate(values, 1)]


def test_cpu_is_shared_out_over_what_was_completed() -> None:
    assert per(0.5, 10_000) == pytest.approx(50.0)
    assert per(0.5, 0) == 0.0


def test_a_median_leaves_out_what_could_not_be_measured() -> None:
    of = bench_report.figures(
        [*rounds("a", "8 KB", 30.0, 10.0, 20.0), *rounds("b", "8 KB", None, 5.0, 7.0), *rounds("c", CHUNK, None)]
    )
    assert [bench_report.middle(of, arm, "8 KB") for arm in ("a", "b", "c", "d")] == [20.0, 6.0, None, None]
    assert list(of) == ["a", "b", "c"]


def test_a_ratio_is_the_median_of_the_rounds_ratios() -> None:
    """The machine is twice as slow in the second round, and in the third one side could not be measured."""
    of = bench_report.figures([*rounds("a", "8 KB", 20.0, 40.0, 90.0), *rounds("b", "8 KB", 80.0, 160.0, None)])
    assert bench_report.ratio(of, "a", "b", "8 KB") == 0.25


def test_a_ratio_needs_both_sides() -> None:
    of = {"a": {"8 KB": {1: 20.0}}, "b": {"8 KB": {2: 80.0}}, "c": {"8 KB": {1: 0.0}}}
    for arm, to, cell in (
        ("a", "b", "8 KB"),
        ("a", "d", "8 KB"),
        ("d", "a", "8 KB"),
        ("a", "b", CHUNK),
        ("a", "c", "8 KB"),
    ):
        assert bench_report.ratio(of, arm, to, cell) is None


@pytest.mark.parametrize(
    ("measured", "word"), [(None, "not measured"), (0.36, "missed"), (0.35, "met"), (0.25, "stretch met")]
)
def test_a_goal_is_met_up_to_its_bound(measured: float | None, word: str) -> None:
    assert Verdict(Goal("8 KB", "peer", 0.35, 0.25), measured).word == word


def test_a_goal_without_a_stretch_is_met_or_missed() -> None:
    assert [Verdict(Goal(ADDED, None, 0.5), value).word for value in (0.1, 0.6)] == ["met", "missed"]


def test_goals_are_judged_as_ratios_or_as_they_stand() -> None:
    of = {"homing": {"8 KB": {1: 30.0}, ADDED: {1: 0.2}}, "peer": {"8 KB": {1: 100.0}}}
    goals = [Goal("8 KB", "peer", 0.35), Goal(ADDED, None, 0.5), Goal(CHUNK, "peer", 1.0)]
    assert [verdict.measured for verdict in bench_report.judge(of, "homing", goals)] == [0.3, 0.2, None]


def test_every_goal_is_of_a_cell_that_is_measured() -> None:
    plan = Plan()
    assert {goal.cell for goal in bench_report.GOALS} == {*plan.cpu_cells, *plan.latency_cells}
    assert {goal.against for goal in bench_report.GOALS} <= {None, *bench_arms.PEERS}


def printed(*what: object) -> str:
    console = Console(width=100)
    with console.capture() as capture:
        for one in what:
            console.print(one)
    return capture.get()


def test_the_tables_show_figures_ratios_and_verdicts() -> None:
    of = {"homing": {"8 KB": {1: 30.0}, ADDED: {1: 0.2}}, "nginx": {"8 KB": {1: 120.0}}}
    cpu = printed(bench_report.cpu_table(of, "homing", ["8 KB", CHUNK]))
    assert "120 (0.25x)" in cpu
    assert "30.0 " in cpu
    assert "0.200" in printed(bench_report.latency_table(of, [ADDED]))
    goals = printed(bench_report.goals_table(bench_report.judge(of, "homing")))
    assert "8 KB over nginx" in goals
    assert "0.25x" in goals
    assert "not measured" in goals


def test_notes_tell_failures_and_a_run_too_short() -> None:
    failed = sample("nginx", CHUNK, None, 2, "3 failed, the last: status 502")
    plan = Plan()
    assert bench_report.notes([failed], plan) == ["nginx, chunk, round 2: 3 failed, the last: status 502"]
    assert bench_report.notes([], plan) == []
    [note] = bench_report.notes([], TINY)
    assert note.startswith("1 rounds of 0.3 s: indicative")


# Bodies.


@pytest.mark.parametrize("size", [512, 8192, 100_000])
def test_bodies_have_their_size_a_common_beginning_and_an_end_of_their_own(size: int) -> None:
    one, other = body(size, 0), body(size, 1)
    assert len(one) == len(other) == size
    assert one == body(size, 0)
    first, second = (json.loads(content)["messages"] for content in (one, other))
    assert first[0] == second[0]
    assert first[1] != second[1]


def test_a_stream_is_asked_for_with_its_events() -> None:
    asked = json.loads(body(512, 0, events=7))
    assert (asked["stream"], asked["max_tokens"]) == (True, 7)
    assert json.loads(body(512, 0))["stream"] is False


def test_a_body_too_small_for_its_fields_is_refused() -> None:
    with pytest.raises(ValueError, match="no room for a prompt"):
        body(64, 0)


# Arms.


def site(tmp_path: Path) -> Site:
    return Site(tmp_path, 7001, 7002, ["http://127.0.0.1:8001", "http://127.0.0.1:8002"])


def program(directory: Path, name: str, says: str = "") -> Path:
    path = directory / name
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o755)
    return path


def test_peers_are_found_on_the_path_and_get_their_flags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    known = {"vllm-router": bench_arms.PEERS["vllm-router"], "smg": bench_arms.PEERS["smg"]}
    monkeypatch.setattr(bench_arms, "PEERS", known)
    assert bench_arms.found() == []
    peer = program(tmp_path, "smg")
    [arm] = bench_arms.found()
    words = arm.command(site(tmp_path))
    assert (arm.name, list(words[:2])) == ("smg", [str(peer), "launch"])
    assert " ".join(words).count("http://127.0.0.1:800") == 2
    assert words[words.index("--port") + 1] == "7001"


def test_nginx_proxies_to_every_replica(tmp_path: Path) -> None:
    words = bench_arms.PEERS["nginx"].flags(site(tmp_path))
    config = Path(words[words.index("-c") + 1]).read_text()
    assert "server 127.0.0.1:8001; server 127.0.0.1:8002;" in config
    assert "listen 127.0.0.1:7001;" in config


def test_homing_is_started_with_its_defaults(tmp_path: Path) -> None:
    words = bench_arms.homing(("homing",))(site(tmp_path))
    assert words[:3] == ("homing", "serve", "-c")
    config = Path(words[3]).read_text()
    assert "listen: 127.0.0.1:7001" in config
    assert "routing" not in config


def test_a_known_peers_command_gets_its_flags_and_any_other_its_ports(tmp_path: Path) -> None:
    known = bench_arms.given("smg=/bin/echo -x").command(site(tmp_path))
    assert list(known[:2]) == ["/bin/echo", "-x"]
    assert "--worker-urls" in known
    other = bench_arms.given("mine=/bin/echo --listen=:{port} --more {spare_port} {urls}")
    assert other.command(site(tmp_path)) == ["/bin/echo", "--listen=:7001", "--more", "7002", *site(tmp_path).urls]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("nginx", "write NAME=COMMAND"),
        ("=x", "write NAME=COMMAND"),
        ("smg=/nonexistent/smg", "there is no program /nonexistent/smg"),
        ("mine=/bin/echo hello", "only nginx, vllm-router, sglang-router, smg are known"),
    ],
)
def test_a_peer_that_cannot_be_is_refused_in_plain_words(text: str, why: str) -> None:
    with pytest.raises(ArmError, match=why):
        bench_arms.given(text)


def test_only_what_is_there_can_be_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bench_arms, "PEERS", {})
    peers = ["mine=/bin/echo {port}"]
    assert [arm.name for arm in bench_arms.choose(None, peers, [])] == ["homing", "mine"]
    assert [arm.name for arm in bench_arms.choose(None, peers, ["mine"])] == ["mine"]
    with pytest.raises(ArmError, match="--only nginx: not found here; there are homing, mine"):
        bench_arms.choose(None, peers, ["nginx"])


def test_a_compiled_build_is_believed_only_when_it_is_one(tmp_path: Path) -> None:
    with pytest.raises(ArmError, match="is not there: `make compiled` builds it"):
        bench_arms.compiled(tmp_path / "homing")
    homing = program(tmp_path, "homing")
    program(tmp_path, "python", "/somewhere/router/core/fleet.py")
    with pytest.raises(ArmError, match="is not a compiled build"):
        bench_arms.compiled(homing)
    program(tmp_path, "python", "/somewhere/router/core/fleet.cpython-311.so")
    arm = bench_arms.compiled(homing)
    assert arm.name == "homing-compiled"
    assert arm.command(site(tmp_path))[:3] == (str(tmp_path / "python"), "-I", "-m")


# The C programs.


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Tools:
    try:
        compiler()
    except NoCompilerError as error:
        pytest.skip(f"no stand-in, no load generator: {error}")
    return asyncio.run(build(tmp_path_factory.mktemp("native")))


@asynccontextmanager
async def standin(tools: Tools) -> AsyncIterator[tuple[int, Process]]:
    """A stand-in's port and process."""
    replica = tools.replica("replica", INTERVAL_MS)
    async with running([replica], 2.0):
        yield await listening_port(replica), replica


async def told(port: int, *requests: bytes) -> list[bytes]:
    """The answers to these requests, sent at once over one connection."""
    async with asyncio.timeout(10):
        reader, writer = await asyncio.open_connection(HOST, port)
        writer.write(b"".join(requests))
        answers = [await whole(reader) for _ in requests]
        writer.close()
        return answers


async def whole(reader: asyncio.StreamReader) -> bytes:
    """One answer to its end, as its framing says."""
    head = await reader.readuntil(b"\r\n\r\n")
    if b"transfer-encoding: chunked" in head:
        return head + await reader.readuntil(b"\r\n0\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head)
    assert length is not None
    return head + await reader.readexactly(int(length[1]))


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode()


def post(content: bytes) -> bytes:
    return b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(content), content)


def content_of(answer: bytes) -> bytes:
    return answer.partition(b"\r\n\r\n")[2]


def test_a_missing_compiler_is_told_with_its_remedy() -> None:
    with pytest.raises(NoCompilerError, match="apt install gcc"):
        compiler({"PATH": "/nonexistent"})
    with pytest.raises(NoCompilerError, match="no nocc on the PATH"):
        compiler({"CC": "nocc", "PATH": os.environ["PATH"]})


def test_the_first_compiler_on_the_path_is_taken(tmp_path: Path) -> None:
    for name in reversed(COMPILERS):
        path = program(tmp_path, name)
        assert compiler({"PATH": str(tmp_path)}) == str(path)


async def test_the_stand_in_looks_like_an_engine(tools: Tools) -> None:
    async with standin(tools) as (port, _):
        health, models, text, unknown = await told(port, *map(get, ("/health", "/v1/models", "/metrics", "/unknown")))
    assert health.startswith(b"HTTP/1.1 200 OK\r\n")
    assert [card["id"] for card in json.loads(content_of(models))["data"]] == ["bench"]
    metrics = engine.read(content_of(text).decode())
    assert (metrics.missing, metrics.kv_tokens) == ([], 448_000)
    assert unknown.startswith(b"HTTP/1.1 404 ")


async def test_the_stand_in_serves_the_model_that_it_is_told_to(tools: Tools) -> None:
    replica = tools.replica("named", INTERVAL_MS, "org/model-1")
    async with running([replica], 2.0):
        [models] = await told(await listening_port(replica), get("/v1/models"))
    assert [card["id"] for card in json.loads(content_of(models))["data"]] == ["org/model-1"]


@pytest.mark.parametrize("size", [512, 32 * 1024, 300_000])
async def test_the_stand_in_answers_a_chat_with_usage(tools: Tools, size: int) -> None:
    async with standin(tools) as (port, _):
        [answer] = await told(port, post(body(size, 0)))
    tokens = size // 4
    assert json.loads(content_of(answer))["usage"] == {
        "prompt_tokens": tokens, "total_tokens": tokens + 8, "completion_tokens": 8,
        "prompt_tokens_details": {"cached_tokens": (tokens - 1) // 16 * 16},
    }  # fmt: skip


async def test_the_stand_in_streams_as_many_events_as_tokens_were_asked_for(tools: Tools) -> None:
    async with standin(tools) as (port, _):
        [answer] = await told(port, post(body(512, 0, events=5)))
    head, _, content = answer.partition(b"\r\n\r\n")
    assert b"content-type: text/event-stream" in head
    assert content.count(b'"content":" home"') == 5
    assert content.count(b'"usage":{"prompt_tokens":128,') == 1
    assert content.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


async def test_the_stand_in_answers_pipelined_requests_in_their_order(tools: Tools) -> None:
    async with standin(tools) as (port, _):
        stream, health, chat = await told(port, post(body(512, 0, events=3)), get("/health"), post(body(512, 0)))
    assert b"[DONE]" in stream
    assert content_of(health) == b""
    assert b'"chat.completion"' in chat


async def test_the_stand_in_refuses_what_it_would_not_understand(tools: Tools) -> None:
    chunked = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"
    async with standin(tools) as (port, _):
        [refusal] = await told(port, chunked)
        assert refusal.startswith(b"HTTP/1.1 411 ")
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await told(port, b"GET / HTTP/1.1\r\nx: " + b"y" * 200_000)


async def test_the_load_generator_counts_what_was_answered(tools: Tools, tmp_path: Path) -> None:
    bodies = [tmp_path / name for name in ("chat", "stream")]
    bodies[0].write_bytes(body(40_000, 0))
    bodies[1].write_bytes(body(512, 0, events=4))
    async with standin(tools) as (port, _):
        load = await tools.drive(port, 3, 0.3, bodies)
        assert load.errors == 0
        assert load.completed >= 2
        # Bodies take turns, and each stream has its usage and [DONE] behind its four events.
        assert load.events in {load.completed // 2 * 6, (load.completed + 1) // 2 * 6}
        assert 0 < load.first_byte_us.p50 <= load.latency_us.p50 <= load.latency_us.p99 <= load.latency_us.max


@asynccontextmanager
async def scripted(answer: bytes, *, closes: bool) -> AsyncIterator[int]:
    """A server that gives this answer to each request that ends in `}]}`; its port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await reader.readuntil(b"]}"):
                writer.write(answer)
                await writer.drain()
                if closes:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # The load is over.
        finally:
            writer.close()

    server = await asyncio.start_server(serve, HOST, 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


@pytest.fixture
def small(tmp_path: Path) -> list[Path]:
    path = tmp_path / "small.json"
    path.write_bytes(body(512, 0))
    return [path]


async def test_a_server_may_close_after_a_whole_answer(tools: Tools, small: list[Path]) -> None:
    async with scripted(b"HTTP/1.1 200 OK\r\nConnection: close\r\ncontent-length: 2\r\n\r\nok", closes=True) as port:
        load = await tools.drive(port, 2, 0.2, small)
    assert load.completed > 0
    assert (load.errors, load.last_error) == (0, "")


@pytest.mark.parametrize(
    ("answer", "closes", "why"),
    [
        (b"HTTP/1.1 503 No\r\ncontent-length: 0\r\n\r\n", False, "status 503"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf", True, "closed midway"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n", True, "closed midway"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok and more", True, "not an HTTP answer"),
        (b"", True, "closed without an answer"),
    ],
)
async def test_any_other_end_is_an_error(
    tools: Tools, small: list[Path], answer: bytes, closes: bool, why: str
) -> None:
    async with scripted(answer, closes=closes) as port:
        with pytest.raises(ProcessError, match=f"200 requests in a row failed: {why}"):
            await tools.drive(port, 1, 30.0, small)


async def test_nobody_listening_is_told(tools: Tools, small: list[Path]) -> None:
    with pytest.raises(ProcessError, match="cannot connect"):
        await tools.drive(free_port(), 1, 1.0, small)


# Cells, and the whole.


@pytest.fixture
def bodies(tmp_path: Path) -> Bodies:
    return write_bodies(TINY, tmp_path)


@pytest.mark.parametrize("cell", [*TINY.cpu_cells, *TINY.latency_cells])
async def test_every_cell_of_the_stand_in_itself_can_be_measured(tools: Tools, bodies: Bodies, cell: str) -> None:
    async with standin(tools) as (port, process):
        found = await Bench(tools, TINY, bodies, port).measure(Subject("it", process, port), 1, cell)
    assert (found.cell, found.errors, found.problem) == (cell, 0, None)
    assert found.value is not None
    assert found.completed > 0


@pytest.mark.parametrize("cell", ["0.5 KB", CHUNK, ADDED, BESIDE])
async def test_a_cell_that_fails_tells_why_and_has_no_value(tools: Tools, bodies: Bodies, cell: str) -> None:
    async with standin(tools) as (port, process):
        found = await Bench(tools, TINY, bodies, port).measure(Subject("it", process, free_port()), 1, cell)
    assert (found.value, found.errors) == (None, 1)
    assert found.problem is not None
    assert "cannot connect" in found.problem


QUITS = """
import http.server, os, sys
class Quits(http.server.BaseHTTPRequestHandler):
    protocol_version, left = "HTTP/1.1", 40
    def log_message(self, *_): pass
    def do_POST(self):
        if not Quits.left: print("I have had enough", flush=True); os._exit(7)
        Quits.left -= 1
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"{}")
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Quits).serve_forever()
"""


async def test_an_arm_that_ends_is_left_out_and_the_others_go_on(
    tools: Tools, capfd: pytest.CaptureFixture[str]
) -> None:
    quits = Arm("quits", lambda site: [sys.executable, "-c", QUITS, str(site.port)])
    never = Arm("never", lambda site: ["/bin/sh", "-c", "echo no GPU; exit 3"])
    samples = await bench_proxy._run(TINY, [quits, never], None)
    lost = {sample.arm: sample for sample in samples if sample.errors}
    assert lost["never"].problem == "never ended with code 3 before it was ready"
    assert lost["quits"].problem == "quits ended with code 7"
    assert {sample.value for sample in lost.values()} == {None}
    cells = [sample.cell for sample in samples if sample.arm == "stand-in"]
    assert cells == [*TINY.cpu_cells, *TINY.latency_cells]
    assert [sample.cell for sample in samples if sample.arm == "quits"] == [cells[0]]
    said = capfd.readouterr().err
    assert "I have had enough" in said
    assert "no GPU" in said


COMMAND = [sys.executable, "-m", "loadtests.bench_proxy", "--quick", "--seconds", "0.3", "--only", "homing"]


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory without a compiled build, for temporary files too, from which the project can be imported."""
    root = str(Path(__file__).parents[2])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")])))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_run_measures_homing_beside_the_stand_in(tools: Tools, elsewhere: Path) -> None:
    done = subprocess.run([*COMMAND, "--json", "out.json"], capture_output=True, text=True, timeout=120, check=False)
    assert (done.stderr, done.returncode) == ("", 0)
    assert "Goals, by homing:" in done.stdout
    assert "1 rounds of 0.3 s: indicative" in done.stdout
    run = json.loads((elsewhere / "out.json").read_text())
    plan = Plan()
    assert (run["schema"], run["judged"]) == ("homing.bench_proxy/1", "homing")
    assert list(run["medians"]) == ["stand-in", "homing"]
    assert list(run["medians"]["homing"]) == [*plan.cpu_cells, *plan.latency_cells]
    assert all(sample["completed"] for sample in run["samples"])
    assert {goal["verdict"] for goal in run["goals"] if goal["against"]} == {"not measured"}
    assert [path.name for path in elsewhere.iterdir()] == ["out.json"]


def test_ctrl_c_leaves_nothing_behind(tools: Tools, elsewhere: Path) -> None:
    with subprocess.Popen(COMMAND, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        for line in run.stdout:
            if line.startswith("0.5 KB, round 1:"):
                break
        children = [pid for pid, usage in meter.table().items() if usage.parent == run.pid]
        assert children
        run.send_signal(signal.SIGINT)
        assert run.wait(timeout=30) == 130
    assert not set(children) & set(meter.table())
    assert list(elsewhere.iterdir()) == []


def test_a_mistake_ends_in_one_line(elsewhere: Path) -> None:
    done = subprocess.run([*COMMAND[:-1], "nobody"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("bench_proxy: --only nobody: not found here; there are homing")
    assert done.stderr.count("\n") == 1


# The profile.


def test_the_profile_tells_every_stage_and_fits_the_router() -> None:
    of = bench_stages.profile(passes=30)
    assert [size.kib for size in of.sizes] == [0.5, 8.0, 32.0]
    for size in of.sizes:
        assert tuple(size.stages) == bench_stages.STAGES
        assert min(size.stages.values()) > 0
        assert size.whole == pytest.approx(sum(size.stages.values()) + size.rest)
    assert of.chunk > 0
    assert of.long_prompt_ms > 0
    assert of.slice_ms > 0
    assert "the exchange between" in printed(bench_profile.table(of))


def test_the_profile_goes_the_whole_way_of_each_request() -> None:
    async def served() -> tuple[int, int, int]:
        bed = bench_stages.Bed(bench_stages._worker())
        raw = bench_stages.request_bytes(body(512, 0))
        for _ in range(5):
            bed.whole(raw, bench_stages.answer_bytes(128))
        busy = sum(replica.requests for replica in bed.worker.fleet.replicas)
        for pool in bed.worker.pools.values():
            pool.close()
        return bed.transport.writes, busy, len(bed.worker.proxy.tasks)

    assert asyncio.run(served()) == (5, 0, 0)
