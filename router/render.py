"""Problems as text for people, JSON for programs, and what GitHub and SARIF viewers take.

The text's excerpt keeps the caret under its token: tabs are expanded, wide characters take two columns, what a
terminal would not print is replaced, long lines are cut around the token, and secrets are starred out.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from typing import Protocol

from router.diagnostics import CODES, WARNINGS, Problem, Severity, Span, dotted, mask, width

MAX_SHOWN = 50
"""Problems that are told in one run; the rest is a number."""

MAX_COLUMNS = 160
"""Longest excerpt of a line; a token's neighbourhood is what helps."""

TAB = 8
CUT = "..."

_RED, _YELLOW, _BOLD, _PLAIN = "\x1b[1;31m", "\x1b[1;33m", "\x1b[1m", "\x1b[0m"

Format = Callable[[Sequence[Problem], str], str]
"""Problems and the checked file's name -> the whole output, without the last line break."""


class Stream(Protocol):
    """Where text goes."""

    def isatty(self) -> bool: ...


def is_colored(stream: Stream) -> bool:
    """Whether to print colours there: to a terminal, unless NO_COLOR is set (no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR")


def text(problems: Sequence[Problem], file: str, color: bool = False) -> str:
    """For people: each problem with its line, then a summary."""
    parts = [problem_text(problem, color) for problem in problems[:MAX_SHOWN]]
    if len(problems) > MAX_SHOWN:
        parts.append(f"... and {len(problems) - MAX_SHOWN} more")
    errors, warnings = count(problems)
    parts.append(f"check: {_plural(errors, 'error')}, {_plural(warnings, 'warning')} in {file}")
    return "\n".join(parts)


def problem_text(problem: Problem, color: bool = False) -> str:
    """One problem: what, where, the line, what to write instead, what helps; at most six lines."""
    ink = (_YELLOW if problem.severity is Severity.WARNING else _RED) if color else ""
    bold, plain = (_BOLD, _PLAIN) if color else ("", "")
    span = problem.span
    where = f"{problem.file}:{span.line}:{span.column}" if span else problem.file
    lines = [f"{bold}{where}:{plain} {ink}{problem.severity}[{problem.code}]{plain}: {_clean(problem.message)}"]
    gutter = " " * (len(str(span.line)) if span else 1)
    if span is not None:
        shown, before, carets = excerpt(span)
        mark = f"{' ' * before}{ink}{'^' * carets}{plain}"
        hint = f" did you mean `{_clean(problem.suggestion)}`?" if problem.suggestion else ""
        lines += [f"{gutter} |", f"{span.line} | {shown}".rstrip(), f"{gutter} | {mark}{hint}"]
    if problem.help:
        lines.append(f"{gutter} = help: {_clean(problem.help)}")
    lines.append(f"{gutter} = docs: {problem.docs}")
    return "\n".join(lines)


def excerpt(span: Span) -> tuple[str, int, int]:
    """The line to print, and in terminal columns where the token begins in it and how wide it is."""
    line = mask(span.source.lines[span.line - 1])
    before = _expand(line[: span.column - 1])
    token = _expand(line[span.column - 1 : span.end - 1], width(before)) or " "
    rest = _expand(line[span.end - 1 :], width(before) + width(token))
    if width(before) + width(token) + width(rest) > MAX_COLUMNS:
        token = token if width(token) <= MAX_COLUMNS // 2 else token[: MAX_COLUMNS // 4] + CUT
        before = before if width(before) <= MAX_COLUMNS // 4 else CUT + before[-(MAX_COLUMNS // 8) :]
        rest = rest if width(rest) <= MAX_COLUMNS // 4 else rest[: MAX_COLUMNS // 8] + CUT
    return before + token + rest, width(before), max(1, width(token))


def _expand(part: str, column: int = 0) -> str:
    """Printable: a tab goes on to the next multiple of eight, what has no glyph becomes one that says so."""
    out: list[str] = []
    for char in part:
        shown = " " * (TAB - column % TAB) if char == "\t" else char if char.isprintable() else "\ufffd"
        column += width(shown)
        out.append(shown)
    return "".join(out)


def _clean(message: str) -> str:
    """A message in one line that no value from the file can steer a terminal with."""
    return "".join(char if char.isprintable() else "\ufffd" for char in message)


def _plural(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def count(problems: Sequence[Problem]) -> tuple[int, int]:
    """Errors and warnings."""
    warnings = sum(problem.severity is Severity.WARNING for problem in problems)
    return len(problems) - warnings, warnings


def plain(problem: Problem) -> dict[str, object]:
    """One problem as JSON's values. Columns count characters from 1, `end_column` is the one behind the token."""
    span = problem.span
    return {
        "code": problem.code,
        "severity": problem.severity.value,
        "file": problem.file,
        "line": span.line if span else None,
        "column": span.column if span else None,
        "end_column": span.end if span else None,
        "path": dotted(problem.path) or None,
        "message": problem.message,
        "suggestion": problem.suggestion,
        "docs": problem.docs,
    }


def as_json(problems: Sequence[Problem], file: str) -> str:
    """All problems, without a cap."""
    errors, warnings = count(problems)
    report = {"file": file, "errors": errors, "warnings": warnings, "diagnostics": [plain(each) for each in problems]}
    return json.dumps(report, indent=2, ensure_ascii=False)


def github(problems: Sequence[Problem], file: str) -> str:
    """Workflow commands, which GitHub Actions shows as annotations of the file's lines."""
    return "\n".join(_annotation(problem) for problem in problems)


def _annotation(problem: Problem) -> str:
    span = problem.span
    fields = {"file": problem.file, "title": f"{problem.code} {CODES[problem.code]}"}
    if span is not None:
        fields |= {"line": str(span.line), "col": str(span.column), "endColumn": str(span.end)}
    settings = ",".join(f"{name}={_escape(value, ':,')}" for name, value in fields.items())
    hint = f"; did you mean `{problem.suggestion}`?" if problem.suggestion else ""
    return f"::{problem.severity} {settings}::{_escape(problem.message + hint)}"


def _escape(value: str, also: str = "") -> str:
    """GitHub's own escapes; its percent sign goes first."""
    for char in "%\r\n" + also:
        value = value.replace(char, f"%{ord(char):02X}")
    return value


def sarif(problems: Sequence[Problem], file: str) -> str:
    """SARIF 2.1.0, one run."""
    codes = sorted({problem.code for problem in problems})
    rules = [
        {
            "id": code,
            "shortDescription": {"text": CODES[code]},
            "help": {"text": f"docs/errors.md#{code.lower()}"},
            "defaultConfiguration": {"level": "warning" if code in WARNINGS else "error"},
        }
        for code in codes
    ]
    driver = {"name": "homing", "version": version("homing"), "rules": rules}
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "results": [_result(problem) for problem in problems],
    }
    schema = "https://json.schemastore.org/sarif-2.1.0.json"
    return json.dumps({"$schema": schema, "version": "2.1.0", "runs": [run]}, indent=2, ensure_ascii=False)


def _result(problem: Problem) -> dict[str, object]:
    place: dict[str, object] = {"artifactLocation": {"uri": problem.file}}
    if problem.span is not None:
        place["region"] = {
            "startLine": problem.span.line,
            "startColumn": problem.span.column,
            "endColumn": problem.span.end,
        }
    hint = f"; did you mean `{problem.suggestion}`?" if problem.suggestion else ""
    return {
        "ruleId": problem.code,
        "level": problem.severity.value,
        "message": {"text": problem.message + hint},
        "locations": [{"physicalLocation": place}],
    }


FORMATS: Mapping[str, Format] = {"json": as_json, "github": github, "sarif": sarif}
"""The formats for programs; `text` is for people and knows colours."""
