"""A file and the environment -> settings, with the origin of each value.

`HOMING__ROUTING__PREFIX_BLOCK=256` overrides `routing.prefix_block`; a value is read as the file's are. Variables that
begin with a single underscore's HOMING_ are Kubernetes' (a Service named `homing` makes them) and mean nothing here.
Reading opens this one file and the secrets that it names, never a socket, and resolves no name.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path as File
from typing import NamedTuple

from router.certificates import examine, examine_redis
from router.config import Config, RoutingConfig, tree, validate
from router.contradictions import contradictions
from router.diagnose import LEAST, Doctor
from router.diagnostics import ConfigError, Path, Problem, Severity, Source, Span, dotted, mask, nearest
from router.document import Document, parse
from router.settings import ITEM, Section, Setting, find, walk
from router.tls import PEM_SETTINGS, REDIS_PEM_SETTINGS, Pems
from router.values import literal, written

MAX_BYTES = 1 << 20
"""Ten thousand replicas; anything larger is another file than was meant."""

MIN_SECRET = 16
"""Characters of the fleet's secret: fewer could be tried one after the other by who knows a hash and its prompt."""

PREFIX = "HOMING__"
ENVIRONMENT = "environment"
"""The name of the variables as a text: those with our prefix, sorted, one a line."""
BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Secrets:
    """What the files named by `admin.token_file`, `replicas[].api_key_file`, `tls` and in `gossip` hold. Not for any
    log. And, where a shadow is wanted, the section `routing` that it goes by (`shadow.file`)."""

    admin_token: str | None
    api_keys: Mapping[str, str]
    pems: Pems
    gossip: str | None = None
    redis_password: str | None = None
    shadow: RoutingConfig | None = None


class Row(NamedTuple):
    """An effective value, as the file would write it, and whence it is: `FILE:LINE`, `env` or `default`."""

    name: str
    value: str
    origin: str
    changed: bool


@dataclass(frozen=True, slots=True)
class Loaded:
    """Valid settings, and where each came from."""

    config: Config
    document: Document

    def origin(self, path: Path) -> str:
        """`FILE:LINE`, `env` or `default`."""
        span = self.document.places.get(path)
        if span is None:
            return "default"
        return "env" if span.source is not self.document.source else f"{span.source.name}:{span.line}"

    def rows(self) -> list[Row]:
        """Every setting with its value, in the order of the manual; `changed` are those that differ from the default
        and are no replica's."""
        return [self._row(path, setting, value) for path, setting, value in _leaves(tree(), self.config, ())]

    def _row(self, path: Path, setting: Setting, value: object) -> Row:
        value = written(setting.kind, value)
        return Row(dotted(path), literal(value), self.origin(path), path[0] != "replicas" and value != setting.default)

    def problem(self, code: str, path: Path, message: str, remedy: str | None = None) -> Problem:
        """What turned out to be wrong with a setting once it was used."""
        span = None if self.origin(path) == "default" else self.document.place(path)
        file = span.source.name if span else self.document.source.name
        return Problem(code, mask(message), file, span, path, help=remedy)

    def secrets(self) -> Secrets:
        """Read the files that hold secrets. Raises ConfigError with all that cannot be used."""
        return self.examined()[0]

    def examined(self) -> tuple[Secrets, list[Problem]]:
        """The same, and warnings of what can be used all the same."""
        secrets, found = self.files(datetime.now(UTC))
        problems = [*self.contradictions(), *found]
        errors = [problem for problem in problems if problem.severity is Severity.ERROR]
        if errors:
            raise ConfigError(errors)
        return secrets, problems

    def contradictions(self) -> list[Problem]:
        """Warnings of settings that have no effect beside others."""
        return [
            self.problem("H132", path, message, remedy)
            for path, message, remedy in contradictions(self.config)
            if path in self.document.places
        ]

    def files(self, now: datetime) -> tuple[Secrets, list[Problem]]:
        """What the files hold that the configuration names, and everything that is wrong with them, warnings included.
        What cannot be used is left out."""
        problems: list[Problem] = []
        token = self._secret(("admin", "token_file"), self.config.admin.token_file, problems)
        keys = {
            replica.id: self._secret(("replicas", i, "api_key_file"), replica.api_key_file, problems)
            for i, replica in enumerate(self.config.replicas)
        }
        gossip = self.config.gossip
        secret = self._secret(("gossip", "secret_file"), gossip.secret_file, problems, MIN_SECRET)
        password = self._secret(("gossip", "password_file"), gossip.password_file, problems)
        pems = self._pems(now, problems)
        shadow = self._shadow(problems)
        known = {replica: key for replica, key in keys.items() if key is not None}
        return Secrets(token, known, pems, secret, password, shadow), problems

    def _pems(self, now: datetime, problems: list[Problem]) -> Pems:
        """What the files of the section `tls` hold; those of `gossip.tls` are looked at as well."""
        pems = Pems(*[self._pem(setting, problems) for setting in PEM_SETTINGS])
        ca, certificate, key = [self._pem(setting, problems) for setting in REDIS_PEM_SETTINGS]
        for code, path, message, remedy in [*examine(pems, now), *examine_redis(ca, certificate, key, now)]:
            problems.append(self.problem(code, path, f"the file {self._named(path)} {message}", remedy))
        return pems

    def _shadow(self, problems: list[Problem]) -> RoutingConfig | None:
        """The section that the shadow goes by, if there is one."""
        shadow, routing = self.config.shadow, self.config.routing
        if shadow.file is None:
            return None if shadow.policy is None else routing.model_copy(update={"policy": shadow.policy})
        other, found = inspect(self._beside(shadow.file), {})
        wrong, remedy = None, f"`homing check {shadow.file}` tells all of it"
        if other is None:
            first = next(problem for problem in found if problem.severity is Severity.ERROR)
            wrong = f"is no valid configuration: {first.message} ({first.code})"
        elif other.config.routing.prefix_block != routing.prefix_block:
            wrong = f"has a `prefix_block` of {other.config.routing.prefix_block}, and this one {routing.prefix_block}"
            remedy = "prompts are compared in pieces of one length: have it the same in both"
        if wrong is not None:
            problems.append(self.problem("H150", ("shadow", "file"), f"the file {shadow.file} {wrong}", remedy))
        return other.config.routing if other else None

    def _pem(self, setting: str, problems: list[Problem]) -> bytes | None:
        """What the file holds that a setting names, if it names one and that can be read."""
        path: Path = tuple(setting.split("."))
        name = self._named(path)
        if name is None:
            return None
        if "-----BEGIN" in name:
            why = f"`{path[-1]}` is the name of a file, and not what it holds"
            problems.append(self.problem("H140", path, why))
            return None
        try:
            return _read(self._beside(name))
        except (OSError, ValueError) as error:  # ValueError: a name that no file can have.
            why = f"the file {name} cannot be read: {getattr(error, 'strerror', None) or error}"
            problems.append(self.problem("H140", path, why, "is it there, and may this user read it?"))
            return None

    def _named(self, path: Path) -> str | None:
        """The name of a file that a plain section of settings has."""
        value: object = self.config
        for part in path:
            value = getattr(value, str(part))
        assert value is None or isinstance(value, str)
        return value

    def _beside(self, name: str) -> File:
        """A file that the configuration names: a relative path begins at its directory."""
        return File(self.document.source.name).parent / name

    def _secret(self, path: Path, name: str | None, problems: list[Problem], least: int = 1) -> str | None:
        if name is None:
            return None
        file = self._beside(name)
        try:
            text = _read(file).decode().strip()
            wrong = _unusable(text, least)
        except OSError as error:
            text, wrong = "", f"cannot be read: {error.strerror}"
        except ValueError as error:  # What it holds, or a name that no file can have.
            text, wrong = "", "is not text" if isinstance(error, UnicodeDecodeError) else f"cannot be read: {error}"
        if wrong is not None:
            problems.append(self.problem("H127", path, f"the file {file} {wrong}"))
            return None
        return text


def _leaves(section: Section, values: object, path: Path) -> Iterator[tuple[Path, Setting, object]]:
    """Each setting of the tree with its value, items of lists and free names included."""
    for name, child in section.children.items():
        value = getattr(values, name)
        below = (*path, name)
        if isinstance(child, Setting):
            yield below, child, value
        elif not child.many:
            yield from _leaves(child, value, below)
        else:
            items = enumerate(value) if isinstance(value, list) else value.items()
            for key, item in items:
                yield from _leaves(child, item, (*below, key))


def _unusable(text: str, least: int) -> str | None:
    """What is wrong with a secret."""
    if not text:
        return "is empty"
    if not text.isascii() or not text.isprintable():
        return "is not one line of ASCII"
    return f"holds fewer than {least} characters" if len(text) < least else None


def load(file: File, environ: Mapping[str, str] = os.environ) -> Loaded:
    """Read and check a file. Raises ConfigError with everything that is wrong."""
    loaded, problems = inspect(file, environ)
    if loaded is None:
        raise ConfigError([problem for problem in problems if problem.severity is Severity.ERROR])
    return loaded


def inspect(file: File, environ: Mapping[str, str] = os.environ) -> tuple[Loaded | None, list[Problem]]:
    """The settings where they are valid, and every problem, warnings included."""
    source = _source(file)
    if isinstance(source, Problem):
        return None, [source]
    document = parse(source)
    if document.problems and document.values is None:
        return None, document.problems
    if not isinstance(document.values, dict):
        return None, [_no_mapping(document)]
    settings = tree()
    _normalise(document, settings)
    strangers = _override(document, settings, environ)
    _normalise(document, settings)
    valid = validate(document.values)
    found = Doctor(document, settings).problems(valid if isinstance(valid, list) else [])
    problems = sorted([*document.problems, *strangers, *found], key=lambda problem: _order(problem, source))
    if isinstance(valid, list) or any(problem.severity is Severity.ERROR for problem in problems):
        return None, problems
    loaded = Loaded(valid, document)
    return loaded, sorted([*problems, *loaded.contradictions()], key=lambda problem: _order(problem, source))


def _order(problem: Problem, file: Source) -> tuple[bool, int, int]:
    span = problem.span
    return (False, 0, 0) if span is None else (span.source is not file, span.line, span.column)


# The file.


def _source(file: File) -> Source | Problem:
    name = str(file)
    try:
        data = _read(file)
    except OSError as error:
        remedy = "`homing config init` prints one to begin with" if isinstance(error, FileNotFoundError) else None
        return Problem("H101", f"cannot be read: {error.strerror}", name, help=remedy)
    if len(data) > MAX_BYTES:
        return Problem("H101", f"is larger than {MAX_BYTES >> 20} MiB; is it the right file?", name)
    try:
        if b"\0" not in data:
            return Source.of(name, data.removeprefix(BOM).decode())
        return _not_text(name, data, data.index(b"\0"))
    except UnicodeDecodeError as error:
        return _not_text(name, data.removeprefix(BOM), error.start)


def _read(file: File) -> bytes:
    """At most a byte more than is allowed. Raises OSError."""
    with file.open("rb") as stream:
        return stream.read(MAX_BYTES + 1)


def _not_text(name: str, data: bytes, start: int) -> Problem:
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return Problem("H120", "is UTF-16", name, help="save it as UTF-8")
    if b"\0" in data:
        return Problem("H120", "is not a text file", name)
    before = Source.of(name, data[:start].decode())
    line, column = len(before.lines), len(before.lines[-1]) + 1
    span = Span(Source.of(name, data.decode(errors="replace")), line, column, column + 1)
    return Problem("H120", f"is not UTF-8: byte 0x{data[start]:02x}", name, span, help="save it as UTF-8")


def _no_mapping(document: Document) -> Problem:
    what = "is empty" if document.values is None else "is not a mapping of settings"
    span = None if document.values is None else document.place(())
    return Problem("H123", what, document.source.name, span, help=LEAST)


def _normalise(document: Document, section: Section, path: Path = ()) -> None:
    """Give an empty section, whose keys are all commented out, its defaults, and a shorthand its long form."""
    values = document.values
    for part in path:
        assert isinstance(values, dict)
        values = values[part]
    assert isinstance(values, dict)
    for name, child in section.children.items():
        if name not in values or not isinstance(child, Section) or child.many == "list":
            continue
        below = (*path, name)
        if values[name] is None:
            values[name] = {}
        elif child.shorthand is not None and not isinstance(values[name], (dict, list)):
            values[name] = {child.shorthand: values[name]}
            document.places[(*below, child.shorthand)] = document.places[below]
        if isinstance(values[name], dict) and child.many == "names":
            values[name] = {key: {} if item is None else item for key, item in values[name].items()}
        elif isinstance(values[name], dict):
            _normalise(document, child, below)


# The environment.


def _override(document: Document, settings: Section, environ: Mapping[str, str]) -> list[Problem]:
    """Put the variables' values into the document; the answer is what is wrong with them."""
    told = {name: Source.of(ENVIRONMENT, environ[name]) for name in sorted(environ) if name.startswith(PREFIX)}
    source = Source(ENVIRONMENT, tuple(f"{name}={' '.join(value.lines)}" for name, value in told.items()))
    problems: list[Problem] = []
    for line, (name, value) in enumerate(told.items(), 1):
        path: Path = tuple(name.removeprefix(PREFIX).lower().split("__"))
        key = Span(source, line, 1, len(name) + 1)
        many = next((path[:i] for i in range(1, len(path)) if _is_many(settings, path[:i])), None)
        if many is not None or name != variable(path) or find(settings, path) is None:
            problems.append(_stranger(settings, name, key, many))
        else:
            problems += _set(document, path, key, parse(value))
    return problems


def _is_many(settings: Section, path: Path) -> bool:
    """Whether a list or free names are there, which are set as a whole."""
    node = find(settings, path)
    return isinstance(node, Section) and bool(node.many)


def _stranger(settings: Section, name: str, key: Span, many: Path | None) -> Problem:
    known = [variable(path).removeprefix(PREFIX) for path, _ in walk(settings) if ITEM not in path]
    near = nearest(name.removeprefix(PREFIX), known)
    suggestion = variable(many) if many else near and PREFIX + near
    remedy = "HOMING__ROUTING__PREFIX_BLOCK sets `routing.prefix_block`, and so on"
    if many:
        remedy = f"`{dotted(many)}` is set as a whole: {variable(many)}"
    return Problem("H119", f"no setting belongs to {name}", ENVIRONMENT, key, suggestion=suggestion, help=remedy)


def variable(path: Path) -> str:
    """The environment variable that overrides a setting."""
    return PREFIX + "__".join(str(part).upper() for part in path)


def _set(document: Document, path: Path, key: Span, told: Document) -> list[Problem]:
    """Put one variable's value where its setting stands, and the places of its tokens into the environment's line."""

    def moved(span: Span) -> Span:
        before = key.end + sum(len(line) + 1 for line in told.source.lines[: span.line - 1])
        return Span(key.source, key.line, before + span.column, before + span.end)

    problems = [
        replace(problem, span=problem.span and moved(problem.span), path=(*path, *problem.path))
        for problem in told.problems
    ]
    section = _section(document.values, path[:-1])
    if section is None or (told.values is None and problems):
        return problems
    section[str(path[-1])] = told.values
    document.forget(path)
    document.keys[path] = key
    document.keys |= {(*path, *below): moved(span) for below, span in told.keys.items()}
    document.places[path] = Span(key.source, key.line, key.end + 1, key.end + 2)
    document.places |= {(*path, *below): moved(span) for below, span in told.places.items()}
    document.bare += [bare._replace(path=(*path, *bare.path)) for bare in told.bare]
    return problems


def _section(values: object, path: Path) -> dict[str, object] | None:
    """The section at a path, made where there is none; None where the file has something else, which is told anyway."""
    for part in path:
        if not isinstance(values, dict):
            return None
        values = values.setdefault(part, {})
    return values if isinstance(values, dict) else None
