"""`homing check` and `homing config`: exit codes, formats, colours; and that nothing is connected to."""

import json
import re
import socket
from collections.abc import Sequence
from pathlib import Path

import pytest

from router import render
from router.cli import main
from router.diagnostics import Problem, Source, Span, mask, width
from router.loading import inspect

VALID = 'replicas: [{id: r1, url: "http://127.0.0.1:8101"}]\n'
WARNED = VALID + "admin: {token_file: hf_AbCdEfGhIjKlMnOp}\n"
INVALID = VALID + "routing: {prefix_blok: 512}\n"


def run(args: Sequence[str]) -> int:
    """The exit code of a command."""
    with pytest.raises(SystemExit) as left:
        main(args)
    code = left.value.code
    assert code is None or isinstance(code, int)
    return code or 0


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path("router.yaml")


@pytest.mark.parametrize(
    ("text", "flags", "code"),
    [
        (VALID, (), 0),
        (WARNED, ("--no-files",), 0),
        (WARNED, ("--no-files", "--strict"), 1),
        (INVALID, (), 1),
        (INVALID, ("--output", "json"), 1),
        (INVALID, ("--output", "xml"), 2),
        (INVALID, ("--strickt",), 2),
    ],
)
def test_the_exit_code_tells_valid_invalid_and_wrong_usage(
    text: str, flags: tuple[str, ...], code: int, file: Path
) -> None:
    file.write_text(text)
    assert run(["check", str(file), *flags]) == code


def test_a_secrets_file_that_cannot_be_used_is_an_error_unless_files_are_not_looked_at(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text("admin: {token_file: nowhere}\n" + VALID)
    assert run(["check", str(file)]) == 1
    assert "router.yaml:1:21: error[H127]: the file nowhere cannot be read: No such file" in capsys.readouterr().out
    assert run(["check", str(file), "--no-files"]) == 0


def test_the_text_is_to_the_letter_what_the_format_says(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text("#\n" * 12 + "routing:\n    prefix_blok: 512\n" + VALID)
    assert run(["check", "router.yaml"]) == 1
    assert capsys.readouterr().out == (
        "router.yaml:14:5: error[H103]: unknown key `prefix_blok` in `routing`\n"
        "   |\n"
        "14 |     prefix_blok: 512\n"
        "   |     ^^^^^^^^^^^ did you mean `prefix_block`?\n"
        "   = help: allowed here: home_slack, max_concurrency, policy, prefix_block, queue, spill\n"
        "   = docs: docs/errors.md#h103\n"
        "check: 1 error, 0 warnings in router.yaml\n"
    )


def test_json_carries_every_field_and_all_problems(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(VALID + "routing:\n" + "".join(f"  key{i}: 1\n" for i in range(70)))
    run(["check", str(file), "--output", "json"])
    report = json.loads(capsys.readouterr().out)
    assert (report["file"], report["errors"], report["warnings"]) == ("router.yaml", 70, 0)
    assert len(report["diagnostics"]) == 70
    assert report["diagnostics"][0] == {
        "code": "H103",
        "severity": "error",
        "file": "router.yaml",
        "line": 3,
        "column": 3,
        "end_column": 7,
        "path": "routing.key0",
        "message": "unknown key `key0` in `routing`",
        "suggestion": None,
        "docs": "docs/errors.md#h103",
    }


def test_text_stops_after_fifty_and_counts_the_rest(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(VALID + "routing:\n" + "".join(f"  key{i}: 1\n" for i in range(70)))
    run(["check", str(file)])
    out = capsys.readouterr().out
    assert out.count("error[H103]") == 50
    assert "\n... and 20 more\ncheck: 70 errors, 0 warnings in router.yaml\n" in out


def test_github_annotations_escape_what_would_end_them(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(VALID + '"a,b:c%\\n": 1\n')
    run(["check", str(file), "--output", "github"])
    assert capsys.readouterr().out == (
        "::error file=router.yaml,title=H103 Unknown key,line=2,col=1,endColumn=11"
        "::unknown key `a,b:c%25%0A` at the top level\n"
    )


def test_sarif_has_a_rule_for_each_code_and_a_region_for_each_result(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(INVALID + "admin: {token_file: hf_AbCdEfGhIjKlMnOp}\n")
    run(["check", str(file), "--output", "sarif"])
    log = json.loads(capsys.readouterr().out)
    (one,) = log["runs"]
    assert log["version"] == "2.1.0"
    assert [rule["id"] for rule in one["tool"]["driver"]["rules"]] == ["H103", "H118"]
    assert [(result["ruleId"], result["level"]) for result in one["results"]] == [
        ("H103", "error"),
        ("H118", "warning"),
    ]
    region = one["results"][0]["locations"][0]["physicalLocation"]["region"]
    assert region == {"startLine": 2, "startColumn": 11, "endColumn": 22}


class Terminal:
    def isatty(self) -> bool:
        return True


class Pipe:
    def isatty(self) -> bool:
        return False


def test_colours_are_for_terminals_that_want_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert render.is_colored(Terminal())
    assert not render.is_colored(Pipe())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not render.is_colored(Terminal())


def test_colours_change_nothing_but_colour(file: Path) -> None:
    file.write_text(INVALID)
    _, problems = inspect(file, {})
    colored = render.text(problems, "router.yaml", color=True)
    assert "\x1b[1;31merror[H103]\x1b[0m" in colored
    assert re.sub(r"\x1b\[[0-9;]*m", "", colored) == render.text(problems, "router.yaml")


class Forbidden(Exception):
    pass


def test_a_check_opens_no_socket_and_resolves_no_name(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise Forbidden

    for name in ("socket", "getaddrinfo", "gethostbyname", "create_connection", "create_server"):
        monkeypatch.setattr(socket, name, refuse)
    monkeypatch.setattr("_socket.socket", refuse)
    file.write_text(
        'listen: router.example:8080\nreplicas: [{id: r1, url: "http://engine.example:8000", api_key_file: nowhere}]\n'
    )
    Path("nowhere").write_text("key")
    for command in (["check", "router.yaml"], ["config", "show", "-c", "router.yaml"]):
        assert run(command) == 0
    with pytest.raises(Forbidden):
        socket.getaddrinfo("engine.example", 8000)


def test_show_tells_every_value_and_whence_it_is(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text(VALID + "admin: 127.0.0.1:9200\nrouting:\n  home_slack: 0.25s\n")
    monkeypatch.setenv("HOMING__HEALTH__FAILURES", "3")
    assert run(["config", "show", "--origin", "-c", str(file)]) == 0
    rows = dict(re.split(r"\s{2,}", line, maxsplit=1) for line in capsys.readouterr().out.splitlines())
    told = {name: tuple(re.split(r"\s{2,}", rest)) for name, rest in rows.items()}
    assert told["replicas[0].id"] == ("r1", "router.yaml:1")
    assert told["admin.listen"] == ("127.0.0.1:9200", "router.yaml:2")
    assert told["routing.home_slack"] == ("250ms", "router.yaml:4")
    assert told["health.failures"] == ("3", "env")
    assert told["routing.policy"] == ("prefix_affinity", "default")
    assert told["routing.max_concurrency"] == ("null", "default")
    assert told["limits.body"] == ("32MiB", "default")
    assert told["log.requests"] == ("false", "default")


def test_show_of_a_bad_file_tells_what_check_tells(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(INVALID)
    assert run(["config", "show", "-c", str(file)]) == 1
    assert "error[H103]: unknown key `prefix_blok`" in capsys.readouterr().err


def test_init_prints_a_file_that_passes_and_schema_prints_json(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "init"]) == 0
    file.write_text(capsys.readouterr().out)
    assert run(["check", "--strict", str(file)]) == 0
    capsys.readouterr()
    assert run(["config", "schema"]) == 0
    assert json.loads(capsys.readouterr().out)["type"] == "object"


# The excerpt.


def excerpt(line: str, token: str) -> tuple[str, str]:
    """The printed line and the carets under it."""
    column = line.index(token) + 1
    problem = Problem("H103", "m", "f", Span(Source("f", (line,)), 1, column, column + len(token)))
    lines = render.problem_text(problem).split("\n")
    return lines[2].removeprefix("1 | "), lines[3].removeprefix("  | ")


@pytest.mark.parametrize(
    ("line", "token", "before", "carets"),
    [
        ("key: value", "value", 5, 5),
        ("\tkey: 1", "key", 8, 3),
        ("ab\tkey: 1", "key", 8, 3),
        ("日本: key", "key", 6, 3),
        ("key: 日本", "日本", 5, 4),
        ("key: e\u0301te\u0301", "e\u0301te\u0301", 5, 3),
        ("a: \U0001f600 key", "key", 6, 3),
    ],
)
def test_the_caret_stands_under_its_token_in_terminal_columns(line: str, token: str, before: int, carets: int) -> None:
    shown, under = excerpt(line, token)
    assert under == " " * before + "^" * carets
    assert width(shown[: shown.index(token)]) == before


def test_a_long_line_is_cut_around_its_token() -> None:
    shown, under = excerpt("x" * 5000 + " token " + "y" * 5000, "token")
    assert width(shown) <= render.MAX_COLUMNS
    assert shown[under.index("^") : under.rindex("^") + 1] == "token"
    assert shown.startswith("...")
    assert shown.endswith("...")


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("url: http://user:pass@host:1", "url: http://*********@host:1"),
        ("api_key: topsecret", "api_key: *********"),
        ('api_key: "top secret"', 'api_key: "*** secret"'),
        ("HOMING__X__PASSWORD=hunter2", "HOMING__X__PASSWORD=*******"),
        ("x: sk-0123456789", "x: *************"),
        ("kv_seconds_per_token: 0.00001", "kv_seconds_per_token: 0.00001"),
        ("token_file: /run/secrets/token", "token_file: /run/secrets/token"),
        ("prefill_tokens_per_second: 100", "prefill_tokens_per_second: 100"),
    ],
)
def test_what_looks_like_a_secret_is_starred_out_and_nothing_else(text: str, masked: str) -> None:
    assert mask(text) == masked
