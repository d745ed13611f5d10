"""What `homing serve` says when it starts, and what each command's help says."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from router.cli import COMMANDS, main
from tests.config.test_loading import KUBERNETES

WITHIN = 30.0
"""Seconds for a process to start on a machine that is busy with others."""


async def start_lines(file: Path, environ: dict[str, str]) -> tuple[list[str], int]:
    """What a router says until it has said where its replicas are and what is not the default, and its exit code."""
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path), **environ}
    command = (sys.executable, "-m", "router.cli", "serve", "-c", str(file))
    process = await asyncio.create_subprocess_exec(*command, env=environ, stderr=asyncio.subprocess.PIPE)
    assert process.stderr is not None
    lines: list[str] = []
    try:
        async with asyncio.timeout(WITHIN):
            while not any("last-setting" in line for line in lines):
                line = await process.stderr.readline()
                assert line, lines
                lines.append(line.decode().rstrip("\n"))
    finally:
        process.send_signal(signal.SIGTERM)
        await process.communicate()
    return lines, await process.wait()


async def test_the_start_takes_at_most_fifteen_lines_and_tells_what_matters(tmp_path: Path) -> None:
    file = tmp_path / "router.yaml"
    replicas = "".join(f"  - {{id: r{i}, url: 'http://127.0.0.1:{i}'}}\n" for i in range(1, 21))
    file.write_text(
        f"listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\nreplicas:\n{replicas}"
        "routing: {prefix_block: 256, home_slack: 50ms}\ndrain: {timeout: 0s}\n"
        "models: {last-setting: {template_order: tools_first}}\n"
    )
    lines, code = await start_lines(
        file, {"HOMING__LOG__LEVEL": "error", "HOMING__HEALTH__FAILURES": "3", **KUBERNETES}
    )
    assert len(lines) <= 15
    said = "\n".join(lines)
    assert re.search(r"^homing \d+\.\d+\.\d+, policy prefix_affinity$", said, re.MULTILINE)
    clients, admin = re.findall(r"http://127\.0\.0\.1:(\d+)$", said, re.MULTILINE)
    assert clients != admin
    assert "0" not in {clients, admin}
    assert re.search("r1 (starting|down), r2 (starting|down)", said)
    assert "and 12 more" in said
    assert f"listen: 127.0.0.1:0 ({file}:1)" in said
    assert f"models.last-setting.template_order: tools_first ({file}:26)" in said
    assert code == 0


def test_the_version_is_told_without_the_rest_of_the_router() -> None:
    program = """
import sys
from router.cli import main
try:
    main(["version"])
finally:
    print(sorted(each for each in sys.modules if each.startswith("router.")))
"""
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=WITHIN, check=True)
    version, modules = told.stdout.splitlines()
    assert re.fullmatch(r"\d+\.\d+\.\d+", version)
    assert modules == "['router.cli', 'router.version']"


@pytest.mark.parametrize("name", COMMANDS)
def test_help_fits_a_screen_has_two_examples_and_needs_no_valid_configuration(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "router.yaml").write_text("\t: broken")
    monkeypatch.setenv("HOMING__NOTHING", "broken")
    with pytest.raises(SystemExit) as left:
        main([*name.split(), "--help"])
    assert not left.value.code
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 40
    assert lines[0].startswith(f"Usage: homing {name}")
    examples = lines[lines.index("  Examples:") :]
    assert sum(line.startswith("    ") and "homing " in line for line in examples) >= 2


def test_the_overview_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--help"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 40
    assert all(any(line.startswith(f"  {name} ") for line in lines) for name in COMMANDS)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["chek", "f"], "Did you mean `homing check`?"),
        (["config", "shwo"], "Did you mean `homing config show`?"),
        (["config", "scheme"], "Did you mean `homing config schema`?"),
        (["xyzzy"], "`homing --help` lists the commands"),
        (["check", "--ouptut", "json", "f"], "--output"),
        (["config", "show", "--orgin", "-c", "f"], "--origin"),
        (["config"], "homing config init"),
    ],
    ids=" ".join,
)
def test_an_unknown_command_or_flag_is_answered_with_the_nearest(
    args: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(args)
    assert left.value.code == 2
    assert said in capsys.readouterr().err


def test_a_groups_help_lists_its_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["config", "--help"])
    assert left.value.code == 0
    out = capsys.readouterr().out
    assert [name for name in COMMANDS if f"homing {name} " in out] == ["config init", "config show", "config schema"]
