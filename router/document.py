"""The only file that knows YAML: a text -> plain values, and where each of them stands.

Nothing in the file is ever executed or looked up: scalars become null, true or false, numbers and texts by YAML 1.2's
core rules (so `22:30` is no number and a date is text), and a tag is an error. Everything is bounded: a file's size,
the depth of nesting, and how many values it may grow to through aliases.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import yaml

from router.diagnostics import Path, Problem, Source, Span

MAX_DEPTH = 20
"""The tree of settings is five deep."""
MAX_VALUES = 50_000
"""Five thousand replicas with every setting; it is aliases of aliases that grow beyond."""

_TAGS = frozenset(f"tag:yaml.org,2002:{name}" for name in ("str", "seq", "map", "merge")) | {"!"}
_WORDS = {"true": True, "false": False, "null": None, "~": None, "": None}
_INTEGER = re.compile(r"[-+]?[0-9]{1,18}|[-+]?[0-9]{1,3}(?:_[0-9]{3}){1,5}")
_NUMBER = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_SPECIAL = {".inf": float("inf"), "-.inf": float("-inf"), ".nan": float("nan")}
_BARE = frozenset(("on", "off", "yes", "no"))

_IN_OTHER_WORDS = (
    ("mapping values are not allowed", "a `:` where none can stand",
     "is this line indented as the one above it? A text that contains `: ` needs quotes"),
    ("could not find expected ':'", "a line that is neither `key: value` nor `- item`",
     "a space must follow the colon: `key: value`"),
    ("expected <block end>", "the indentation fits no line above",
     "keys of one section begin in the same column; is a quote above closed?"),
    ("found undefined alias", "an alias without its anchor", "`*x` repeats what `&x` marked before; as text, quote it"),
    ("cannot start any token", "no value can begin with this character", "quote the value"),
    ("unexpected end of stream", "a quote that is never closed", "the value begins here; close its quote"),
    ("expected ',' or", "a bracket is never closed, or a comma is missing", "close it, or put `, ` between items"),
    ("expected the node content", "a value is missing here", None),
    ("found duplicate anchor", "two anchors with one name", "give each `&name` a name of its own"),
)  # fmt: skip
"""The parser's words -> what it means and what to do."""


class _Refused(yaml.error.MarkedYAMLError):
    """What the parser would take and we do not."""

    def __init__(self, code: str, problem: str, mark: yaml.error.Mark | None) -> None:
        super().__init__(problem=problem, problem_mark=mark)
        self.code = code


class Bare(NamedTuple):
    """An unquoted on, off, yes or no: a boolean to YAML 1.1, text to YAML 1.2."""

    path: Path
    word: str


@dataclass(slots=True)
class Document:
    """Values with their places: `keys` has those of mapping keys, `places` those of values.

    The place of a list or mapping is that of its first token.
    """

    source: Source
    values: object = None
    keys: dict[Path, Span] = field(default_factory=dict)
    places: dict[Path, Span] = field(default_factory=dict)
    bare: list[Bare] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    def forget(self, path: Path) -> None:
        """Drop what is noted of a value and all below it."""
        for places in (self.keys, self.places):
            for below in [below for below in places if below[: len(path)] == path]:
                del places[below]
        self.bare = [bare for bare in self.bare if bare.path[: len(path)] != path]

    def place(self, path: Path) -> Span | None:
        """Where a setting stands: its value, else its key, else the nearest section around it."""
        for length in range(len(path), 0, -1):
            span = self.places.get(path[:length]) or self.keys.get(path[:length])
            if span is not None:
                return span
        return self.places.get(())


def parse(source: Source) -> Document:
    """Read a text. What is wrong with it as YAML is in `problems`, and then there may be no values."""
    document = Document(source)
    try:
        root = _compose(source)
        if root is not None:
            document.values = _Converter(document).value(root, ())
    except yaml.error.MarkedYAMLError as error:
        document.values = None
        document.problems += list(_syntax(source, error))
    except yaml.reader.ReaderError as error:
        place = _at(source, error.position)
        document.problems.append(
            Problem("H102", f"the character U+{_code(error):04X} cannot stand in YAML", source.name, place)
        )
    return document


def _code(error: yaml.reader.ReaderError) -> int:
    return error.character if isinstance(error.character, int) else ord(error.character)


class _Loader(yaml.BaseLoader):
    """Composes nodes, with every scalar as text, up to a depth."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            event = self.peek_event()  # type: ignore[no-untyped-call]
            raise _Refused("H122", f"nested deeper than {MAX_DEPTH}", event.start_mark)
        node: yaml.Node | None = super().compose_node(parent, index)
        self.depth -= 1
        return node


def _compose(source: Source) -> yaml.Node | None:
    loader = _Loader("\n".join(source.lines))
    try:
        return loader.get_single_node()
    finally:
        loader.dispose()


class _Converter:
    """Nodes -> values; one for each document."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._left = MAX_VALUES

    def value(self, node: yaml.Node, path: Path) -> object:
        """The value of one node and all below it, noted in the document."""
        self._check(node, path)
        self._document.places[path] = self._span(node)
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(child, (*path, i)) for i, child in enumerate(node.value)]
        assert isinstance(node, yaml.MappingNode)
        return self._mapping(node, path)

    def _check(self, node: yaml.Node, path: Path) -> None:
        self._left -= 1
        if self._left < 0 or len(path) > MAX_DEPTH:
            raise _Refused("H122", "too many values, or an alias inside what it repeats", node.start_mark)
        if node.tag not in _TAGS:
            tag = node.tag.replace("tag:yaml.org,2002:", "!!")
            raise _Refused("H129", f"the tag `{tag}` is not supported", node.start_mark)

    def _scalar(self, node: yaml.ScalarNode, path: Path) -> object:
        text = str(node.value)
        if node.style is not None:
            return text
        if text.lower() in _BARE:
            self._document.bare.append(Bare(path, text))
        return scalar(text)

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, object]:
        values: dict[str, object] = {}
        lines: dict[str, int] = {}
        for key, child in self._pairs(node, path):
            name = str(key.value)
            below = (*path, name)
            if name in lines:
                self._twice(key, below, lines[name])
                continue
            lines[name] = key.start_mark.line + 1
            self._document.keys[below] = self._span(key)
            values[name] = self.value(child, below)
        return values

    def _twice(self, key: yaml.Node, path: Path, line: int) -> None:
        message = f"duplicate key `{path[-1]}`, which line {line} has already"
        self._document.problems.append(
            Problem("H108", message, self._document.source.name, self._span(key), path, help="keep one of the two")
        )

    def _pairs(self, node: yaml.MappingNode, path: Path) -> Iterator[tuple[yaml.ScalarNode, yaml.Node]]:
        """Keys and values, with those of `<<` behind the mapping's own, which take precedence."""
        merged: list[yaml.Node] = []
        own: set[str] = set()
        for key, child in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _Refused("H129", "a key is a word, not a list or a mapping", key.start_mark)
            if key.value == "<<" and key.style is None:
                merged += child.value if isinstance(child, yaml.SequenceNode) else [child]
                continue
            own.add(str(key.value))
            yield key, child
        for other in merged:
            self._check(other, (*path, "<<"))
            if not isinstance(other, yaml.MappingNode):
                raise _Refused("H129", "`<<` takes a mapping, or a list of mappings", other.start_mark)
            for key, child in self._pairs(other, (*path, "<<")):
                if str(key.value) not in own:
                    own.add(str(key.value))
                    yield key, child

    def _span(self, node: yaml.Node) -> Span:
        """The token, or its part in the first line: of a list its dash or bracket, of a mapping its first key."""
        start, end = node.start_mark, node.end_mark
        if isinstance(node, yaml.MappingNode) and not node.flow_style and isinstance(node.value[0][0], yaml.ScalarNode):
            return self._span(node.value[0][0])
        if isinstance(node, yaml.CollectionNode):
            return Span(self._document.source, start.line + 1, start.column + 1, start.column + 2)
        last = end.column if end.line == start.line else len(self._document.source.lines[start.line].rstrip())
        return Span(self._document.source, start.line + 1, start.column + 1, max(last, start.column + 1) + 1)


def scalar(text: str) -> object:
    """An unquoted scalar's value."""
    if _INTEGER.fullmatch(text):
        return int(text)
    if _NUMBER.fullmatch(text):
        return float(text)
    word = text.lower()
    if word in _WORDS:
        return _WORDS[word]
    return _SPECIAL.get(word, text)


def _syntax(source: Source, error: yaml.error.MarkedYAMLError) -> Iterator[Problem]:
    """What a parser's complaint means."""
    said, mark = error.problem or "cannot be read", error.problem_mark
    if "end of stream" in said and error.context_mark is not None:
        mark = error.context_mark
    if mark is None:
        yield Problem("H102", said, source.name)
        return
    place = _token(source, mark.line, mark.column)
    glued = _glued(source, mark.line)
    if isinstance(error, _Refused):
        yield Problem(error.code, said, source.name, place)
    elif "'\\t'" in said:
        yield from _tabs(source, mark.line, mark.column)
    elif "mapping values" in said and glued is not None:
        mended = ": ".join(glued.text.split(":", 1))
        yield Problem("H102", "a space is missing after the colon", source.name, glued, suggestion=mended)
    elif "single document" in (error.context or ""):
        remedy = "a configuration is one document: take out the `---`"
        yield Problem("H121", "a second document begins here", source.name, place, help=remedy)
    else:
        _, meaning, helps = next((row for row in _IN_OTHER_WORDS if row[0] in said), ("", said, None))
        yield Problem("H102", meaning, source.name, place, help=helps)


def _tabs(source: Source, line: int, column: int) -> Iterator[Problem]:
    """Each line that is indented with a tab; where there is none, the tab that the parser met."""
    indents = [(n, line[: len(line) - len(line.lstrip())]) for n, line in enumerate(source.lines, 1)]
    places = [Span(source, n, indent.index("\t") + 1, len(indent) + 1) for n, indent in indents if "\t" in indent]
    for place in places:
        yield Problem("H110", "a tab in the indentation", source.name, place, help="YAML indents with spaces")
    if not places:
        place = Span(source, line + 1, column + 1, column + 2)
        yield Problem("H110", "a tab where a space must be", source.name, place)


def _glued(source: Source, line: int) -> Span | None:
    """`key:value` in the line above, which made a text of it and of what follows."""
    found = re.match(r"\s*(?:- )?([A-Za-z_]+:[^\s/].*?)\s*$", source.lines[line - 1]) if line else None
    return Span(source, line, found.start(1) + 1, found.end(1) + 1) if found else None


def _at(source: Source, position: int) -> Span | None:
    """The place of a character by its position in the text, whose lines are joined by one character each."""
    for number, line in enumerate(source.lines):
        if position <= len(line):
            return _token(source, number, position)
        position -= len(line) + 1
    return None


def _token(source: Source, line: int, column: int) -> Span:
    """The word that begins at a mark (both from 0), or the one character there; the last line for a mark behind it."""
    while line and (line >= len(source.lines) or not source.lines[line].strip()):
        line, column = line - 1, 1 << 30
    text = source.lines[line]
    column = min(column, max(0, len(text) - 1))
    word = re.match(r"[\w.-]+", text[column:])
    return Span(source, line + 1, column + 1, column + 1 + (word.end() if word else 1))
