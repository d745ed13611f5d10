"""The sample file, the reference page and the JSON Schema, all out of the one tree of settings. Pure.

deploy/router.yaml and docs/configuration.md are what these functions give; a test fails when they differ.
"""

import textwrap
from collections.abc import Iterator, Mapping

from router.diagnostics import Path
from router.loading import variable
from router.settings import ITEM, Node, Section, Setting, title, walk
from router.values import AUTO, MAX_WORKERS, Kind, literal

WIDTH = 110

HEAD = """\
# Homing's settings: all that there are, each with its default. `replicas` is the only one that you must write; the
# entries of `replicas` and `models` are examples.
#
#   homing check FILE                       tells what is wrong, and where
#   homing config show --origin -c FILE     tells every value in effect, and whence it is
#   HOMING__ROUTING__PREFIX_BLOCK=256       in the environment overrides routing.prefix_block, and so on
#
# live: a running router takes a change by SIGHUP or `homing reload`, without touching a stream. restart: it takes a new
# process; SIGUSR2 puts one in place without refusing a connection.
"""

PAGE = """\
# Settings

Generated from router/config.py by `UPDATE_GOLDEN=1 pytest tests/config`; do not edit. `homing config init` prints a
file with all of them, `homing config schema` their JSON Schema. Unknown keys are errors, see [errors](errors.md).

A duration is a number with `ms`, `s`, `m` or `h`; a size is a whole number with `KiB`, `MiB` or `GiB`. Settings whose
name ends in a unit (`max_seconds`) are plain numbers. An environment variable's value is read as the file's are, and
takes precedence; lists and maps of names are set whole: `HOMING__REPLICAS='[{id: r1, url: "http://10.0.0.1:8000"}]'`.

*live*: a running router takes a change by SIGHUP or `homing reload`, without touching a stream; *restart*: it takes a
new process, which SIGUSR2 puts in place without refusing a connection.
"""

_SCHEMA_TYPES: Mapping[Kind, str] = {Kind.INTEGER: "integer", Kind.NUMBER: "number", Kind.FLAG: "boolean"}


def sample(tree: Section) -> str:
    """The commented file: every setting with its default, kind, range, reason and reload class."""
    return "\n".join([HEAD, *_lines(tree, "")]).rstrip() + "\n"


def _lines(section: Section, indent: str) -> Iterator[str]:
    """The lines of a section's children, an empty line between those of the top."""
    for name, child in section.children.items():
        if isinstance(child, Setting):
            yield from _comment(child.text, indent)
            yield from _comment(facts(child), indent)
            yield f"{indent}{name}: {_value(child)}"
        else:
            yield from _comment(child.text, indent)
            yield f"{indent}{name}:"
            yield from _items(child, f"{indent}  ")
        if not indent:
            yield ""


def _items(section: Section, indent: str) -> Iterator[str]:
    if section.many == "names":
        yield f"{indent}{section.example}:"
        yield from _lines(section, f"{indent}  ")
    elif section.many == "list":
        yield f"{indent}-"
        yield from _lines(section, f"{indent}  ")
    else:
        yield from _lines(section, indent)


def _comment(text: str, indent: str) -> Iterator[str]:
    yield from (f"{indent}# {line}" for line in textwrap.wrap(text, WIDTH - len(indent)))


def _value(setting: Setting) -> str:
    return literal(setting.example if setting.required else setting.default)


def facts(setting: Setting) -> str:
    """Kind, range, default and reload class in one line."""
    what = f"one of {', '.join(setting.choices)}" if setting.choices else setting.kind.value.partition(", as")[0]
    parts = [
        what + (f" ({setting.unit})" if setting.unit else "") + (" or null" if setting.nullable else ""),
        setting.range,
        "required" if setting.required else f"default {literal(setting.default)}",
        setting.reload,
    ]
    return "; ".join(part for part in parts if part)


def reference(tree: Section) -> str:
    """docs/configuration.md."""
    parts = [PAGE]
    top = [child for child in tree.children.values() if isinstance(child, Setting)]
    parts += [_table((), {child.name: child for child in top})]
    for path, node in walk(tree):
        if isinstance(node, Section):
            inside = (*path, ITEM) if node.many else path
            parts.append(f"\n## `{title(inside)}`\n\n{node.text}\n")
            settings = {name: child for name, child in node.children.items() if isinstance(child, Setting)}
            if settings:
                parts.append(_table(inside, settings))
    return "\n".join(parts)


def _table(path: Path, settings: Mapping[str, Setting]) -> str:
    rows = ["| setting | what it is | default | change | meaning |", "| --- | --- | --- | --- | --- |"]
    for name, setting in settings.items():
        what = " or ".join(f"`{choice}`" for choice in setting.choices) or setting.kind.value.partition(", as")[0]
        what += (f" ({setting.unit})" if setting.unit else "") + (", or null" if setting.nullable else "")
        what += f"; {setting.range}" if setting.range else ""
        default = "*required*" if setting.required else f"`{literal(setting.default)}`"
        override = "" if ITEM in path else f"<br>`{variable((*path, name))}`"
        rows.append(f"| `{title((*path, name))}`{override} | {what} | {default} | {setting.reload} | {setting.text} |")
    return "\n".join(rows) + "\n"


def schema(tree: Section) -> dict[str, object]:
    """JSON Schema, draft 2020-12. What it cannot say (two replicas with one URL) `homing check` does."""
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Homing's settings"}
    return head | _object(tree, tree.text)


def _schema(node: Node) -> dict[str, object]:
    if isinstance(node, Setting):
        return _leaf(node)
    if node.many == "list":
        return {"type": "array", "minItems": 1, "description": node.text, "items": _object(node)}
    if node.many == "names":
        items = _object(node) | {"type": ["object", "null"]}
        return {"type": ["object", "null"], "description": node.text, "additionalProperties": items}
    section = _object(node) | {"type": ["object", "null"], "description": node.text}
    if node.shorthand is None:
        return section
    return {"description": node.text, "anyOf": [section, _schema(node.children[node.shorthand])]}


def _object(section: Section, text: str = "") -> dict[str, object]:
    required = [name for name, child in section.children.items() if child.required]
    return {
        "type": "object",
        **({"description": text} if text else {}),
        "properties": {name: _schema(child) for name, child in section.children.items()},
        **({"required": required} if required else {}),
        "additionalProperties": False,
    }


def _leaf(setting: Setting) -> dict[str, object]:
    kind = _SCHEMA_TYPES.get(setting.kind, "string")
    leaf: dict[str, object] = {"description": f"{setting.text} ({facts(setting)})"}
    if setting.kind is Kind.TEXTS:
        leaf |= {"type": "array", "items": {"type": "string", "pattern": setting.pattern}}
    elif setting.choices:
        leaf["enum"] = [*setting.choices, *([None] if setting.nullable else [])]
    elif setting.kind is Kind.WORKERS:
        leaf |= {"type": ["integer", "string"], "minimum": 1, "maximum": MAX_WORKERS, "pattern": f"^{AUTO}$"}
    else:
        leaf["type"] = [kind, "null"] if setting.nullable else kind
        leaf |= {} if setting.pattern is None else {"pattern": setting.pattern}
    if kind in {"integer", "number"}:
        limits = {
            "minimum": setting.bounds.least,
            "exclusiveMinimum": setting.bounds.above,
            "maximum": setting.bounds.most,
        }
        leaf |= {name: bound for name, bound in limits.items() if bound is not None}
    return leaf if setting.required else leaf | {"default": setting.default}
