"""What is wrong with a document, in an operator's words: each complaint with its place and what was probably meant.

Pure: it knows the tree of settings, and neither YAML nor pydantic. `Doctor.faults` explains what the models complained
of; the other methods find what no single model can see: two replicas with one URL, a secret in the open.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from router import values
from router.diagnostics import Path, Problem, distance, dotted, is_secret, mask, nearest
from router.document import Document, scalar
from router.settings import Fault, Section, Setting, find, title, walk
from router.values import Kind, Wrong, shown

WILDCARDS = frozenset((values.EVERYWHERE, "::"))

LEAST = 'the least that works: `replicas: [{id: r1, url: "http://127.0.0.1:8101"}]`'

_CERTIFICATE, _KEY = "certificate_file", "key_file"
_TOGETHER: tuple[tuple[Path, Path], ...] = (
    (("tls", _CERTIFICATE), ("tls", _KEY)),
    (("tls", _KEY), ("tls", _CERTIFICATE)),
    (("tls", "client_ca_file"), ("tls", _CERTIFICATE)),
    (("tls", "replicas", _CERTIFICATE), ("tls", "replicas", _KEY)),
    (("tls", "replicas", _KEY), ("tls", "replicas", _CERTIFICATE)),
    (("gossip", "tls", "key_file"), ("gossip", "tls", "cert_file")),
)
"""The first means nothing without the second."""

_NUMERIC = frozenset((Kind.INTEGER, Kind.NUMBER))


class Doctor:
    """Diagnoses of one document."""

    def __init__(self, document: Document, tree: Section) -> None:
        self._document, self._tree = document, tree

    def problems(self, faults: Sequence[Fault]) -> list[Problem]:
        """Everything that is wrong, one complaint for each place, in the order of the text."""
        found = [
            *self._bare(),
            *self.faults(faults),
            *self._twins(),
            *self._one_port(),
            *self._gossip(),
            *self._secrets(),
            *self._pairs(),
            *self._shadow(),
        ]
        told: dict[tuple[Path, bool], Problem] = {}
        for problem in found:
            told.setdefault((problem.path, problem.code == "H118"), problem)
        return list(told.values())

    def faults(self, faults: Sequence[Fault]) -> list[Problem]:
        """What the models complained of. A key that is missing because it is misspelt is told once."""
        problems = [_EXPLAIN.get(fault.kind, Doctor._type)(self, fault) for fault in faults]
        meant = {(*problem.path[:-1], problem.suggestion) for problem in problems if problem.code == "H103"}
        meant |= {problem.path[-1:] for problem in problems if problem.code == "H117"}
        return [problem for problem in problems if problem.code != "H109" or problem.path not in meant]

    # One complaint each.

    def _problem(
        self, code: str, path: Path, message: str, suggestion: str | None = None, remedy: str | None = None
    ) -> Problem:
        of_key = code in {"H103", "H117"}
        span = self._document.keys.get(path) if of_key else self._document.place(path)
        file = span.source.name if span else self._document.source.name
        return Problem(code, mask(message), file, span, path, suggestion, remedy)

    def _setting(self, path: Path) -> Setting | Section | None:
        """What stands at a path; for an item of a plain list the list."""
        return find(self._tree, path) or find(self._tree, path[:-1])

    def _unknown(self, fault: Fault) -> Problem:
        key, above = str(fault.path[-1]), fault.path[:-1]
        section = find(self._tree, above)
        names = section.children if isinstance(section, Section) else {}
        near = nearest(key, names)
        homes = [path for path, _ in walk(self._tree) if path[-1] == key]
        if homes and (near is None or distance(key, near) > 1):
            return self._misplaced(fault.path, homes)
        remedy = f"allowed here: {', '.join(sorted(names))}"
        return self._problem("H103", fault.path, f"unknown key `{key}` {_in(dotted(above))}", near, remedy)

    def _misplaced(self, path: Path, homes: Sequence[Path]) -> Problem:
        where = " or ".join(_in(title(home[:-1])) for home in homes)
        message = f"`{path[-1]}` belongs {where}, not {_in(dotted(path[:-1]))}"
        suggestion = title(homes[0]) if len(homes) == 1 and len(homes[0]) > 1 else None
        return self._problem("H117", path, message, suggestion, "check how far it is indented")

    def _missing(self, fault: Fault) -> Problem:
        node, name = find(self._tree, fault.path), fault.path[-1]
        remedy = f"write `{name}: {node.example}`" if isinstance(node, Setting) else LEAST
        return self._problem("H109", fault.path, f"`{name}` is missing {_in(dotted(fault.path[:-1]))}", remedy=remedy)

    def _none(self, fault: Fault) -> Problem:
        return self._problem("H109", fault.path, f"`{dotted(fault.path)}` is empty", remedy=LEAST)

    def _choice(self, fault: Fault) -> Problem:
        node = self._setting(fault.path)
        choices = node.choices if isinstance(node, Setting) else ()
        near = nearest(str(fault.value), choices)
        message = f"`{fault.path[-1]}` cannot be {shown(fault.value)}"
        return self._problem("H107", fault.path, message, near, f"one of: {', '.join(choices)}")

    def _wrong(self, fault: Fault) -> Problem:
        wrong = fault.wrong
        assert isinstance(wrong, Wrong)
        return self._problem(wrong.code, fault.path, f"`{fault.path[-1]}` {wrong}", wrong.suggestion, wrong.remedy)

    def _range(self, fault: Fault) -> Problem:
        node = self._setting(fault.path)
        assert isinstance(node, Setting)
        bounds = node.range if math.isfinite(_number(fault.value)) else "finite"
        must = bounds + (", or null" if node.nullable else "")
        return self._problem("H106", fault.path, f"`{node.name}` must be {must}, not {shown(fault.value)}")

    def _form(self, fault: Fault) -> Problem:
        if fault.path[-1] == "id":
            form, name = "letters, digits, `.`, `_` and `-`, at most 128 of them", "`id`"
        else:
            form, name = "a path that begins with `/`, without a query", f"`{dotted(fault.path)}`"
        return self._problem("H124", fault.path, f"{name} is {form}; not {shown(fault.value)}")

    def _type(self, fault: Fault) -> Problem:
        node, value, name = self._setting(fault.path), fault.value, dotted(fault.path[-1:])
        if isinstance(node, Setting):
            return self._leaf(fault, node)
        section = node or self._tree
        if section.many == "list" and name == section.name:
            if value is None:
                return self._none(fault)
            remedy = "begin each item with `- `"
            return self._problem("H104", fault.path, f"`{name}` is a list, not {shown(value)}", remedy=remedy)
        keys = f"its keys: {', '.join(sorted(section.children))}"
        remedy = "its keys are names of your choice" if section.many and name == section.name else keys
        message = f"`{dotted(fault.path)}` is a section of settings, not {shown(value)}"
        return self._problem("H104", fault.path, message, remedy=remedy)

    def _leaf(self, fault: Fault, setting: Setting) -> Problem:
        """A value of another type than the setting's."""
        kind, value = setting.kind, fault.value
        listed = kind is Kind.TEXTS and fault.path[-1] != setting.name
        expected = Kind.TEXT if listed else kind
        read = scalar(value) if isinstance(value, str) else None
        is_number = isinstance(read, (int, float)) and not isinstance(read, bool)
        or_null = " or null" if setting.nullable else ""
        name = dotted(fault.path) if listed else setting.name
        quoted = f"`{name}` is {kind}, and in quotes it is text"
        if kind is Kind.FLAG and isinstance(read, bool):
            return self._problem("H104", fault.path, quoted, str(value).lower())
        if kind in _NUMERIC and is_number:
            return self._problem("H125", fault.path, quoted, str(value).strip())
        message = f"`{name}` is {expected}{or_null}, not {shown(value)}"
        return self._problem("H104", fault.path, message, _retyped(expected, value))

    # What no single setting can see.

    def _bare(self) -> Iterator[Problem]:
        for path, word in self._document.bare:
            setting = self._setting(path)
            if not isinstance(setting, Setting):
                continue
            as_flag = str(word.lower() in {"on", "yes"}).lower()
            suggestion = as_flag if setting.kind is Kind.FLAG else f'"{word}"'
            message = f"a bare `{word}` is {as_flag} to some readers of YAML and text to others"
            yield self._problem("H116", path, message, suggestion)

    def _twins(self) -> Iterator[Problem]:
        for code, field in (("H114", "url"), ("H115", "id")):
            seen: dict[str, int] = {}
            for i, replica in enumerate(_list(_get(self._document.values, ("replicas",)))):
                value = _get(replica, (field,))
                if not isinstance(value, str):
                    continue
                first = seen.setdefault(value.rstrip("/"), i)
                if first != i:
                    message = f"`replicas[{first}]` has the {'URL' if field == 'url' else field} {shown(value)} already"
                    remedy = "each replica has its own"
                    yield self._problem(code, ("replicas", i, field), message, remedy=remedy)

    def _one_port(self) -> Iterator[Problem]:
        try:
            one = values.address(_get(self._document.values, ("listen",)) or values.Endpoint("127.0.0.1", 8080))
            other = values.address(
                _get(self._document.values, ("admin", "listen")) or values.Endpoint("127.0.0.1", 9100)
            )
        except Wrong:
            return
        overlap = one.host == other.host or {one.host, other.host} & WILDCARDS
        if one.port == other.port != 0 and overlap:
            path: Path = ("admin", "listen") if ("admin",) in self._document.keys else ("listen",)
            yield self._problem("H126", path, f"clients and operators cannot share the port {one.port}")

    def _gossip(self) -> Iterator[Problem]:
        gossip = _get(self._document.values, ("gossip",))
        if _get(gossip, ("url",)) is not None and _get(gossip, ("secret_file",)) is None:
            remedy = "`openssl rand -hex 32 > secret`, on every router the same, and `secret_file: secret`"
            message = "`gossip.secret_file` is missing: hashes of prompts without a secret can be guessed"
            yield self._problem("H131", ("gossip", "url"), message, remedy=remedy)

    def _pairs(self) -> Iterator[Problem]:
        """Of TLS: settings that say nothing without another one."""
        for path, other in _TOGETHER:
            if _get(self._document.values, path) and not _get(self._document.values, other):
                message = f"`{path[-1]}` needs `{other[-1]}` beside it"
                yield self._problem("H145", path, message, remedy=f"set `{dotted(other)}`, or neither")

    def _shadow(self) -> Iterator[Problem]:
        shadow = _get(self._document.values, ("shadow",))
        if _get(shadow, ("policy",)) is not None and _get(shadow, ("file",)) is not None:
            message = "`shadow.policy` and `shadow.file` both say what the shadow is"
            yield self._problem("H150", ("shadow", "file"), message, remedy="there is one shadow: take one of them out")

    def _secrets(self) -> Iterator[Problem]:
        for path in self._document.places:
            value, name = _get(self._document.values, path), next((p for p in path[::-1] if isinstance(p, str)), "")
            if isinstance(value, str) and is_secret(name, value):
                remedy = "keep it in a file of its own, and name that file here (`..._file`)"
                yield self._problem("H118", path, f"`{dotted(path)}` holds a secret in plain text", remedy=remedy)


_EXPLAIN: Mapping[str, Callable[[Doctor, Fault], Problem]] = {
    "extra_forbidden": Doctor._unknown,
    "missing": Doctor._missing,
    "too_short": Doctor._none,
    "literal_error": Doctor._choice,
    "value_error": Doctor._wrong,
    **dict.fromkeys(
        ("greater_than", "greater_than_equal", "less_than", "less_than_equal", "finite_number"), Doctor._range
    ),
    **dict.fromkeys(("string_pattern_mismatch", "string_too_short", "string_too_long"), Doctor._form),
}
"""pydantic's name of a complaint -> who explains it; any other is about a type."""


def _in(section: str) -> str:
    return f"in `{section}`" if section else "at the top level"


def _retyped(kind: Kind, value: object) -> str | None:
    """The value as the type that is wanted, where it can be that."""
    if kind in {Kind.TEXT, Kind.CHOICE} and value is not None and not isinstance(value, (list, dict)):
        return f'"{str(value).lower() if isinstance(value, bool) else value}"'
    if kind is Kind.TEXTS and isinstance(value, str):
        return f"[{value}]"
    percent = scalar(value.removesuffix("%")) if isinstance(value, str) and value.endswith("%") else None
    if kind is Kind.NUMBER and isinstance(percent, (int, float)):
        return f"{percent / 100:g}"
    return None


def _number(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _get(value: object, path: Path) -> object:
    """What stands at a path; None where nothing does."""
    for part in path:
        if isinstance(value, dict):
            value = value.get(part)
        elif isinstance(value, list) and isinstance(part, int) and part < len(value):
            value = value[part]
        else:
            return None
    return value
