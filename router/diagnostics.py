"""What can be wrong with a configuration, and where: codes, places in the text, problems, the nearest name.

Pure: it neither reads files nor writes output, and knows neither YAML nor pydantic. Each code has its anchor in
docs/errors.md (a test holds the two equal); a code is never given a new meaning.
"""

import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

Path = tuple[str | int, ...]
"""A setting's place in the tree: `("replicas", 0, "url")`."""

_LINE_BREAK = re.compile("\r\n|[\n\r\x85\u2028\u2029]")
"""The line breaks that YAML 1.1 counts, so that our line numbers are its."""

_SECRETS = (
    re.compile(r"(://)[^\s/@]+(?=@)"),  # user and password in a URL
    re.compile(r"(?i)\b()(?:sk|hf|ghp|gho|xox[abp])[-_][\w-]{8,}"),  # keys of well-known services
    re.compile(r"()-----BEGIN [A-Z ]*PRIVATE KEY-----[^\"'#]*"),
    re.compile(r"(?i)((?:_key|(?<!per_)token|password|secret)[\"']?\s*[:=]\s*[\"']?)[^\s#,}\"']+"),
)

_SECRET_NAME = re.compile(r"(?i)(?:.*_)?(?:key|(?<!per_)token|password|secret)")


class Severity(StrEnum):
    ERROR = "error"
    WARNING = "warning"


CODES: Mapping[str, str] = {
    "H101": "The file cannot be read",
    "H102": "The file is not YAML",
    "H103": "Unknown key",
    "H104": "Wrong type",
    "H105": "A unit is missing, unknown or not wanted",
    "H106": "Out of range",
    "H107": "Not one of the choices",
    "H108": "Duplicate key",
    "H109": "A required setting is missing",
    "H110": "Tab in the indentation",
    "H111": "Not an address to listen on",
    "H112": "Not a replica's URL",
    "H113": "URL ends in /v1",
    "H114": "Two replicas have one URL",
    "H115": "Two replicas have one id",
    "H116": "Bare on, off, yes or no",
    "H117": "Key in the wrong section",
    "H118": "Secret in plain text",
    "H119": "Unknown environment variable",
    "H120": "Not UTF-8 text",
    "H121": "More than one document",
    "H122": "Too many aliases, or nested too deep",
    "H123": "Empty, or not a mapping",
    "H124": "Text of the wrong form",
    "H125": "Number in quotes",
    "H126": "Two ports are the same",
    "H127": "A secret's file cannot be used",
    "H128": "Cannot listen",
    "H129": "A feature of YAML that is not supported",
    "H130": "Not a Redis URL",
    "H131": "Gossip without a secret",
    "H132": "Settings that contradict each other",
    "H140": "A file for TLS cannot be read",
    "H141": "No certificate or key of PEM form",
    "H142": "A key that is not the certificate's",
    "H143": "A key with a password",
    "H144": "A certificate is out of date",
    "H145": "TLS settings that belong together",
    "H150": "The shadow cannot be made",
}
"""Code -> title, as in docs/errors.md."""

WARNINGS = frozenset({"H118", "H132", "H144"})
"""The codes that do not make a configuration invalid."""


@dataclass(frozen=True, slots=True)
class Source:
    """A text with a name, line by line without the line breaks."""

    name: str
    lines: tuple[str, ...]

    @classmethod
    def of(cls, name: str, text: str) -> "Source":
        return cls(name, tuple(_LINE_BREAK.split(text)))


class Span(NamedTuple):
    """A token in one line. All three count characters from 1; `end` is the column behind the token."""

    source: Source
    line: int
    column: int
    end: int

    @property
    def text(self) -> str:
        return self.source.lines[self.line - 1][self.column - 1 : self.end - 1]


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong; `span` is None where it is about a whole file. `suggestion` is what to write instead."""

    code: str
    message: str
    file: str
    span: Span | None = None
    path: Path = ()
    suggestion: str | None = None
    help: str | None = None

    @property
    def severity(self) -> Severity:
        return Severity.WARNING if self.code in WARNINGS else Severity.ERROR

    @property
    def docs(self) -> str:
        return f"docs/errors.md#{self.code.lower()}"


class ConfigError(Exception):
    """A configuration that cannot be used, with all that is wrong with it."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = list(problems)
        super().__init__("; ".join(f"{problem.file}: {problem.message}" for problem in self.problems))


def dotted(path: Path) -> str:
    """The path as people write it: `replicas[0].url`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")


def mask(text: str) -> str:
    """The text with what looks like a secret starred out, at its old width: diagnostics end up in CI logs."""
    for secret in _SECRETS:
        text = secret.sub(lambda found: found[1] + "*" * (len(found[0]) - len(found[1])), text)
    return text


def is_secret(name: str, text: str) -> bool:
    """Whether a setting of this name and text looks like a secret."""
    return bool(text) and (_SECRET_NAME.fullmatch(name) is not None or mask(text) != text)


def width(text: str) -> int:
    """Columns that a terminal gives to printable text: two for wide characters, none for combining ones."""
    return sum(_cells(char) for char in text)


def _cells(char: str) -> int:
    if unicodedata.category(char) in {"Mn", "Me"}:
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def nearest(wrong: str, names: Iterable[str]) -> str | None:
    """The name fewest edits away, by order where it is a tie; None when all are more than a third of it away."""
    distances = [(distance(wrong.lower(), name.lower()), name) for name in sorted(names)]
    least = min(distances, default=None)
    if least is None or least[0] > max(1, len(wrong) // 3):
        return None
    return least[1]


def distance(a: str, b: str) -> int:
    """Edits from `a` to `b`: a character more, less, another, or two neighbours swapped (optimal string alignment)."""
    before: list[int] = []
    row = list(range(len(b) + 1))
    for i, char in enumerate(a, 1):
        above, before = before, row
        row = [i]
        for j, other in enumerate(b, 1):
            edits = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (char != other))
            if i > 1 and j > 1 and char == b[j - 2] and a[i - 2] == other:
                edits = min(edits, above[j - 2] + 1)
            row.append(edits)
    return row[-1]
