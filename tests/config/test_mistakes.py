"""What operators do wrong, through the real `homing`: an answer of a few lines that says what to do, no traceback."""

import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

HOMING = (sys.executable, "-m", "router.cli")
REPLICAS = 'replicas: [{id: r1, url: "http://127.0.0.1:1"}]\n'
FREE = "listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\n" + REPLICAS
SHOW = ("config", "show", "-c", "router.yaml")
TIMEOUT = 60.0
"""Seconds for one process that should leave at once, on a machine that is busy with others."""


@dataclass(frozen=True)
class Mistake:
    """What is run, in a directory with `file` as router.yaml; how it must end and what it must say."""

    says: str
    file: str | bytes | None = FREE
    args: Sequence[str] = ("serve", "-c", "router.yaml")
    code: int = 1
    environ: Mapping[str, str] = field(default_factory=dict)
    made: Sequence[str] = ()


MISTAKES = {
    "file that is not there": Mistake("H101]: cannot be read: No such file or directory", None),
    "directory as file": Mistake("H101]: cannot be read: Is a directory", args=("serve", "-c", ".")),
    "file that cannot be read": Mistake("H101]: cannot be read: ", args=("serve", "-c", "/proc/self/mem")),
    "empty file": Mistake("H123]: is empty", "", args=SHOW),
    "binary file": Mistake("H120]: is not a text file", b"\x7fELF\0\0", args=SHOW),
    "tab in the indentation": Mistake("H110]: a tab in the indentation", "replicas:\n\t- {id: r1}\n", args=SHOW),
    "misspelt key": Mistake("did you mean `routing`?", FREE + "ruoting: {policy: random}\n", args=SHOW),
    "unknown policy": Mistake(
        "did you mean `prefix_affinity`?", FREE + "routing: {policy: prefix_afinity}\n", args=SHOW
    ),
    "bad url": Mistake(
        "did you mean `http://127.0.0.1:8101`?", "replicas: [{id: r1, url: '127.0.0.1:8101'}]\n", args=SHOW
    ),
    "two replicas with one url": Mistake(
        "H114]", "replicas:\n- {id: a, url: 'http://127.0.0.1:1'}\n- {id: b, url: 'http://127.0.0.1:1'}\n", SHOW
    ),
    "duration without a unit": Mistake("did you mean `300s`?", FREE + "drain: {timeout: 300}\n", args=SHOW),
    "port in use": Mistake("port {port} is in use by process {pid} (", "listen: 127.0.0.1:{port}\n" + REPLICAS),
    "admin port in use": Mistake(
        "router.yaml:2:8: error[H128]: cannot listen: port {port} is in use by process {pid} (",
        "listen: 127.0.0.1:0\nadmin: 127.0.0.1:{port}\n" + REPLICAS,
    ),
    "address of another machine": Mistake(
        "192.0.2.1 is not an address of this machine", "listen: 192.0.2.1:8080\n" + REPLICAS
    ),
    "host without an address": Mistake("no address is known for the host", "listen: a..b:8080\n" + REPLICAS),
    "token file that is not there": Mistake(
        "H127]: the file token cannot be read: No such file", FREE.replace("127.0.0.1:0\nr", "{token_file: token}\nr")
    ),
    "token file that is a directory": Mistake(
        "H127]: the file token cannot be read: Is a directory",
        FREE.replace("127.0.0.1:0\nr", "{token_file: token}\nr"),
        made=("token/",),
    ),
    "key file that is not there": Mistake(
        "H127]: the file key cannot be read",
        FREE.replace("http://127.0.0.1:1", 'http://127.0.0.1:1", api_key_file: "key'),
    ),
    "unknown variable": Mistake(
        "did you mean `HOMING__ROUTING__POLICY`?", environ={"HOMING__ROUTING__POLICI": "random"}
    ),
    "bad value in a variable": Mistake("did you mean `5s`?", environ={"HOMING__HEALTH__TIMEOUT": "5"}, args=SHOW),
    "no file named": Mistake("Missing option", args=("serve",), code=2),
    "misspelt command": Mistake("Did you mean `homing serve`?", args=("srve", "-c", "router.yaml"), code=2),
    "misspelt flag": Mistake("--config", args=("serve", "--confg", "router.yaml"), code=2),
    "command without its second word": Mistake("homing config show", args=("config",), code=2),
    "check without a file": Mistake("Missing argument", args=("check",), code=2),
}


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str


def make(mistake: Mistake, directory: Path, port: int) -> Answer:
    """Run one in this directory."""
    for name in mistake.made:
        (directory / name).mkdir() if name.endswith("/") else (directory / name).touch()
    if mistake.file is not None:
        content = mistake.file
        data = content.replace("{port}", str(port)).encode() if isinstance(content, str) else content
        (directory / "router.yaml").write_bytes(data)
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path), **mistake.environ}
    done = subprocess.run(
        [*HOMING, *mistake.args],
        cwd=directory,
        env=environ,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    return Answer(done.returncode, done.stdout, done.stderr)


def test_there_are_twenty_mistakes() -> None:
    assert len(MISTAKES) >= 20


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_gets_a_short_answer_and_no_traceback(name: str, tmp_path: Path) -> None:
    mistake = MISTAKES[name]
    with socket.create_server(("127.0.0.1", 0)) as taken:  # By this process.
        port = taken.getsockname()[1]
        answer = make(mistake, tmp_path, port)
    said = answer.out + answer.err
    assert "Traceback" not in said
    assert mistake.says.replace("{port}", str(port)).replace("{pid}", str(os.getpid())) in said
    assert answer.code == mistake.code
    assert len(answer.err.splitlines()) <= 6
    assert bool(answer.out) == (mistake.args[0] == "check" and mistake.code == 1)
