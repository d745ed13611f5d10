"""The tree of settings as plain data.

It is read off the models of `router.config` by their shape; diagnostics, the sample file, the reference page, the JSON
Schema and `homing config show` read it, so that all of them say what the models say. Pure.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import UnionType
from typing import Any, Literal, NamedTuple, Protocol, get_args, get_origin

from router import values
from router.diagnostics import Path
from router.values import Kind, written

Reload = Literal["live", "restart"]

ITEM = "*"
"""In a path, any item of a list or any free name."""


class Bounds(NamedTuple):
    """Least and most, in the base unit (seconds, bytes); `above` is a least that is itself excluded."""

    least: float | None = None
    above: float | None = None
    most: float | None = None


UNBOUNDED = Bounds()


@dataclass(frozen=True, slots=True)
class Setting:
    """A leaf. `default` is as the file writes it: `100ms`, not 0.1; `unit` is of a plain number."""

    name: str
    kind: Kind
    text: str
    reload: Reload
    default: object = None
    required: bool = False
    nullable: bool = False
    unit: str = ""
    bounds: Bounds = UNBOUNDED
    choices: Sequence[str] = ()
    pattern: str | None = None
    example: object = None

    @property
    def range(self) -> str:
        """The bounds as people write them; empty where there is none."""
        words = {"at least": self.bounds.least, "more than": self.bounds.above, "at most": self.bounds.most}
        return " and ".join(f"{word} {written(self.kind, bound)}" for word, bound in words.items() if bound is not None)


@dataclass(frozen=True, slots=True)
class Section:
    """A mapping of settings; `many`: a list of such, or one for each name that the file gives. `shorthand` names the
    child that a plain value in the section's place means."""

    name: str
    text: str
    children: dict[str, "Setting | Section"] = field(default_factory=dict)
    many: Literal["", "list", "names"] = ""
    required: bool = False
    shorthand: str | None = None
    example: str = ""


Node = Setting | Section


class Fault(NamedTuple):
    """A model's complaint about one value: pydantic's name for it, or `value_error` with `wrong`."""

    kind: str
    path: Path
    value: object
    wrong: ValueError | None


def find(root: Section, path: Path) -> Node | None:
    """What the tree has at a path, list positions and free names included; None for what it does not know."""
    node: Node | None = root
    inside = False
    for part in path:
        if not isinstance(node, Section):
            return None
        if node.many and not inside:
            inside = True
            continue
        node, inside = node.children.get(str(part)), False
    return node


def walk(section: Section, prefix: Path = ()) -> Iterator[tuple[Path, Node]]:
    """Every setting and section below, parents first."""
    for name, child in section.children.items():
        path = (*prefix, name)
        yield path, child
        if isinstance(child, Section):
            yield from walk(child, (*path, ITEM) if child.many else path)


def title(path: Path) -> str:
    """A path of the tree as people write it: `replicas[].url`, `models.<name>.template_order`."""
    text = ""
    for position, part in enumerate(path):
        if part == ITEM:
            text += "[]" if path[position - 1] == "replicas" else ".<name>"
        else:
            text += f".{part}"
    return text.removeprefix(".")


# From the models. They are known by their shape alone, so that only router.config knows what they are made of.


@dataclass(frozen=True, slots=True)
class About:
    """What a setting tells beside its type, default and bounds: an entry of its annotation."""

    text: str
    reload: Reload = "live"
    unit: str = ""
    example: object = None


class Field(Protocol):
    """A setting in a model."""

    annotation: Any
    default: Any
    metadata: list[Any]

    def is_required(self) -> bool: ...


_KINDS: Mapping[object, Kind] = {int: Kind.INTEGER, float: Kind.NUMBER, bool: Kind.FLAG, str: Kind.TEXT}
_MANY: Mapping[object, Literal["list", "names"]] = {list: "list", dict: "names"}
_PATTERNS: Mapping[Kind, str] = {
    Kind.DURATION: values.DURATION_PATTERN,
    Kind.SIZE: values.SIZE_PATTERN,
    Kind.ADDRESS: values.ADDRESS_PATTERN,
    Kind.URL: values.URL_PATTERN,
    Kind.REDIS: values.REDIS_PATTERN,
}


def section(name: str, model: Any) -> Section:
    """A model and all below it: `model_fields`, and the class's `text`, `example` and `shorthand`."""
    children = {child: _node(child, field) for child, field in model.model_fields.items()}
    return Section(name, model.text, children, shorthand=model.shorthand, example=model.example)


def _node(name: str, field: Field) -> Node:
    kind = field.annotation
    inner = get_args(kind)[-1] if get_args(kind) else kind
    if hasattr(inner, "model_fields"):
        return replace(section(name, inner), many=_MANY.get(get_origin(kind), ""), required=field.is_required())
    return _setting(name, field)


def _setting(name: str, field: Field) -> Setting:
    about = next(entry for entry in field.metadata if isinstance(entry, About))
    kind, choices, nullable = _kind(field)
    required = field.is_required()
    return Setting(
        name,
        kind,
        about.text,
        about.reload,
        None if required else written(kind, field.default),
        required,
        nullable,
        about.unit,
        Bounds(_bound(field, "ge"), _bound(field, "gt"), _bound(field, "le")),
        choices,
        _PATTERNS.get(kind) or _bound(field, "pattern"),
        about.example,
    )


def _kind(field: Field) -> tuple[Kind, tuple[str, ...], bool]:
    """What the values are, the words to choose from, and whether null is one of them."""
    annotation: Any = field.annotation
    nullable = get_origin(annotation) is UnionType
    inner = get_args(annotation)[0] if nullable else annotation
    if get_origin(inner) is Literal:
        return Kind.CHOICE, get_args(inner), nullable
    if get_origin(inner) is list:
        return Kind.TEXTS, (), nullable
    words = next((tuple(entry.words) for entry in field.metadata if hasattr(entry, "words")), ())
    if words:
        return Kind.CHOICE, words, nullable
    told = next((entry for entry in field.metadata if isinstance(entry, Kind)), None)
    return told or _KINDS[inner], (), nullable


def _bound(field: Field, name: str) -> Any:
    """A constraint by its name in pydantic, of the value or of a list's items; None where there is none."""
    items = [entry for inner in get_args(field.annotation) for entry in getattr(inner, "__metadata__", ())]
    entries = [*field.metadata, *(below for entry in items for below in getattr(entry, "metadata", ()))]
    return next((getattr(entry, name) for entry in entries if hasattr(entry, name)), None)
