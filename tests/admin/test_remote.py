"""The commands that ask a running router, against an admin port that a test answers for."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp.test_utils import TestServer

from router.admin import api
from router.cli import main
from router.core.shadow import Counts
from router.core.types import EngineSample, State
from tests.admin.routers import replicas_of, router_over
from tests.admin.test_api import TOKEN, Port, shadow_of

NOBODY = "http://127.0.0.1:9"


class Stranger:
    """Whoever listens at an admin port's address: it gives one answer, or none."""

    def __init__(self) -> None:
        self.answer = b""
        self.url = ""

    async def __aenter__(self) -> "Stranger":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = "http://{}:{}".format(*self._server.sockets[0].getsockname())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(self.answer)
        if not self.answer:
            await reader.read()  # Until the command has had enough.
        writer.close()


@pytest.fixture
def port() -> Port:
    port = Port()
    port.fleet.sampled("r0", EngineSample(9.0, 4, 2, 0.25))
    return port


@pytest.fixture
async def url(port: Port) -> AsyncIterator[str]:
    async with TestServer(api.make(port.admin())) as server:
        yield str(server.make_url("")).rstrip("/")


@pytest.fixture
def token(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    return file


async def command(*arguments: str) -> int:
    """Run one command to its end, in a thread, since it has a loop of its own; its exit code."""

    def run() -> int:
        try:
            main(arguments)
        except SystemExit as left:
            return int(left.code or 0)
        return 0

    return await asyncio.to_thread(run)


Output = pytest.CaptureFixture[str]


async def test_status_shows_the_router_and_its_replicas(url: str, port: Port, capsys: Output) -> None:
    assert await command("status", "--admin", url) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "router   ready, 1 workers, policy prefix_affinity"
    assert lines[1].split() == [
        *("replica", "state", "model", "since", "requests", "no", "token", "running", "waiting", "KV")
    ]
    assert lines[2].split() == ["r0", "ready", "llama", "10", "s", "0", "0", "4", "2", "25%"]
    assert lines[3].split() == ["r1", "ready", "llama", "10", "s", "0", "0"]


async def test_status_tells_how_another_policy_would_have_done(url: str, port: Port, capsys: Output) -> None:
    port.shadow = shadow_of()
    assert await command("status", "--admin", url) == 0
    assert capsys.readouterr().out.splitlines()[1] == (
        "shadow   round_robin: hit 41% against 78%, agrees on 13% of 200 asks"
    )
    port.shadow = Counts("round_robin")
    assert await command("status", "--admin", url) == 0
    assert capsys.readouterr().out.splitlines()[1] == "shadow   round_robin: 0 asks so far, none with a prompt"


async def test_status_of_a_router_that_is_not_ready_says_why_and_fails(url: str, port: Port, capsys: Output) -> None:
    port.fleet.mark("r0", State.DOWN, "test", 0.0)
    assert await command("status", "--admin", url) == 1
    said = capsys.readouterr().out
    assert "router   not ready" in said
    assert "1 of 2 are ready, 2 wanted" in said
    assert await command("status", "--json", "--admin", url) == 1
    assert '"ready": false' in capsys.readouterr().out


async def test_a_reload_shows_what_has_changed_and_what_needs_a_restart(
    url: str, port: Port, token: Path, capsys: Output
) -> None:
    port.reloaded = (True, {"changed": ["a 1 -> 2"], "needs_restart": ["b 3 -> 4"]})
    assert await command("reload", "--admin", url, "--token-file", str(token)) == 0
    assert capsys.readouterr().out == "a 1 -> 2\nneeds a restart: b 3 -> 4\n"
    port.reloaded = (True, {"changed": [], "needs_restart": []})
    assert await command("reload", "--admin", url, "--token-file", str(token)) == 0
    assert capsys.readouterr().out == "nothing has changed\n"


async def test_a_reload_of_what_is_invalid_shows_what_is_wrong_where(
    url: str, port: Port, token: Path, capsys: Output
) -> None:
    found = {"file": "f.yaml", "line": 3, "column": 5, "severity": "error", "code": "H103", "message": "unknown"}
    port.reloaded = (False, {"diagnostics": [found, found | {"line": None, "column": None}]})
    assert await command("reload", "--admin", url, "--token-file", str(token)) == 1
    said = capsys.readouterr().err
    assert said.startswith("f.yaml:3:5: error[H103]: unknown\nf.yaml: error[H103]: unknown\n")


@pytest.mark.parametrize(("name", "drained"), [("drain", True), ("undrain", False)])
async def test_a_replica_is_drained_and_undrained(
    url: str, port: Port, token: Path, name: str, drained: bool, capsys: Output
) -> None:
    arguments = ("--admin", url, "--token-file", str(token))
    assert await command(name, "r1", *arguments) == 0
    assert capsys.readouterr().out == "r1 is draining, with 3 requests under way\n"
    assert await command(name, "r9", *arguments) == 1
    assert "no replica 'r9' here" in capsys.readouterr().err
    assert port.drains == [("r1", drained), ("r9", drained)]


@pytest.mark.parametrize("name", [("reload",), ("drain", "r1"), ("undrain", "r1")])
async def test_without_the_token_the_router_says_what_it_wants(
    url: str, port: Port, name: tuple[str, ...], tmp_path: Path, capsys: Output
) -> None:
    assert await command(*name, "--admin", url) == 1
    assert "answers 401: this takes the token of admin.token_file" in capsys.readouterr().err
    assert await command(*name, "--admin", url, "--token-file", str(tmp_path / "none")) == 2
    assert "the token cannot be read" in capsys.readouterr().err
    assert (port.drains, port.reloads) == ([], 0)


@pytest.mark.parametrize("name", [("status",), ("reload",), ("drain", "r1"), ("undrain", "r1")])
async def test_when_no_router_answers_the_exit_code_says_so(name: tuple[str, ...], capsys: Output) -> None:
    assert await command(*name, "--admin", NOBODY) == 4
    assert "no router answers" in capsys.readouterr().err


async def test_explain_asks_with_the_body_of_a_file(url: str, port: Port, tmp_path: Path, capsys: Output) -> None:
    file = tmp_path / "request.json"
    file.write_text("{}")
    assert await command("explain", "-f", str(file), "--json", "--path", "/v1/messages", "--admin", url) == 0
    assert port.explained == [("/v1/messages", b"{}")]
    assert '"decision": "route"' in capsys.readouterr().out


LONG = "replica-of-a-stateful-set-with-a-name-as-long-as-names-are-in-large-fleets"
EXPLAINED = {
    "endpoint": "chat",
    "model": "llama",
    "unexplained": None,
    "prompt": {"bytes": 2048, "tokens": 512, "blocks": 4},
    "key": {"hash": "00ff", "depth_blocks": 2},
    "ring_order": [f"{LONG}-{i}" for i in range(8)],
    "candidates": [
        {"replica": f"{LONG}-0", "state": "ready", "cut": None}
        | {f"{name}_tokens": 1234567 for name in ("cached", "uncached", "cold", "backlog")}
        | {"score_seconds": dict.fromkeys(("prefill", "cold", "context", "interruption", "ramp", "total"), 1234.5)}
    ],
    "decision": {"answer": "route", "replica": f"{LONG}-0", "reason": "holder"},
}


async def test_an_explanation_is_printed_whole_where_no_terminal_gives_a_width(
    url: str, port: Port, tmp_path: Path, capsys: Output
) -> None:
    file = tmp_path / "request.json"
    file.write_text("{}")
    port.explanation = json.dumps(EXPLAINED).encode()
    assert await command("explain", "-f", str(file), "--admin", url) == 0
    request, _, key, head, row, decision = capsys.readouterr().out.splitlines()
    assert request == "request  chat, model llama"
    assert key.endswith(f"{LONG}-6, {LONG}-7")
    assert head.split()[-3:] == ["interrupt.", "ramp", "score"]
    assert row.split() == [f"{LONG}-0", "ready", *["1234567"] * 4, *["1234.5000"] * 6]
    assert decision == f"decision answer: route, replica: {LONG}-0, reason: holder"


@pytest.mark.parametrize("form", [(), ("--json",)])
async def test_what_cannot_be_explained_fails_and_says_why(
    url: str, port: Port, form: tuple[str, ...], tmp_path: Path, capsys: Output
) -> None:
    file = tmp_path / "request.json"
    file.write_text("no JSON")
    port.explanation = json.dumps(EXPLAINED | {"unexplained": "there is no prompt"}).encode()
    assert await command("explain", "-f", str(file), *form, "--admin", url) == 1
    told = capsys.readouterr()
    assert told.err == "homing: not explained: there is no prompt\n"
    assert bool(told.out) == bool(form)


# Who answers is no router, or none in time.


@pytest.fixture
def two_lines(tmp_path: Path) -> Path:
    file = tmp_path / "two"
    file.write_text("one\ntwo\n")
    return file


@pytest.fixture
async def stranger() -> AsyncIterator[Stranger]:
    async with Stranger() as stranger:
        yield stranger


COMMANDS = [("status",), ("reload",), ("drain", "r1"), ("undrain", "r1")]


@pytest.mark.parametrize("answer", [b"ok", b"{}", b"[]", b'"replicas"'], ids=repr)
@pytest.mark.parametrize("name", COMMANDS, ids=lambda name: name[0])
async def test_an_answer_of_something_else_is_no_routers(
    name: tuple[str, ...], answer: bytes, stranger: Stranger, token: Path, capsys: Output
) -> None:
    stranger.answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b" % (len(answer), answer)
    words = (*name, "--admin", stranger.url, *(() if name == ("status",) else ("--token-file", str(token))))
    assert await command(*words) == 4
    assert "no router answers (what answers is something else, with status 200)" in capsys.readouterr().err


@pytest.mark.parametrize("answer", ['{"detail":"Not Found"}', '{"error":{"message":"Not Found","type":"x"}}', "gone"])
async def test_an_error_of_something_else_is_no_routers(answer: str, stranger: Stranger, capsys: Output) -> None:
    stranger.answer = (
        f"HTTP/1.1 404 Not Found\r\nContent-Length: {len(answer)}\r\nConnection: close\r\n\r\n{answer}".encode()
    )
    assert await command("status", "--admin", stranger.url) == 4
    assert "no router answers (what answers is something else, with status 404)" in capsys.readouterr().err


@pytest.mark.parametrize("name", COMMANDS, ids=lambda name: name[0])
async def test_the_clients_port_is_told_from_the_admin_port(name: tuple[str, ...], token: Path, capsys: Output) -> None:
    async with replicas_of(1) as replicas, router_over(replicas) as router:
        url = router.url
        words = (*name, "--admin", url, *(() if name == ("status",) else ("--token-file", str(token))))
        assert await command(*words) == 4
        said = capsys.readouterr().err
        assert "that is the port for clients; --admin is the one of `admin.listen`, 9100 by default" in said


async def test_an_answer_that_is_no_http_is_no_routers(stranger: Stranger, capsys: Output) -> None:
    stranger.answer = b"\x00\x01\r\n\r\n"
    assert await command("status", "--admin", stranger.url) == 4
    said = capsys.readouterr().err
    assert "no router answers (what answers speaks no HTTP: Bad status line" in said
    assert said.count("\n") == 1


async def test_a_router_that_hangs_is_not_waited_for_long(
    stranger: Stranger, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("router.asking.TIMEOUT", 0.3)
    assert await command("status", "--admin", stranger.url) == 4
    assert "no router answers (nothing within 0.3 s)" in capsys.readouterr().err


@pytest.mark.parametrize("url", ["router", "http://", "127.0.0.1:9100", "ftp://127.0.0.1"])
async def test_an_address_that_is_none_is_told_as_such(url: str, capsys: Output) -> None:
    assert await command("status", "--admin", url) == 4
    assert "that is no URL, as http://127.0.0.1:9100" in capsys.readouterr().err


async def test_a_file_with_more_than_a_token_is_not_sent(url: str, port: Port, two_lines: Path, capsys: Output) -> None:
    assert await command("reload", "--admin", url, "--token-file", str(two_lines)) == 2
    assert "that is no token, which is one line" in capsys.readouterr().err
    assert port.reloads == 0
