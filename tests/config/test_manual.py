"""The sample file, the reference page, the schema and the page of errors say what the models say.

`UPDATE_GOLDEN=1 pytest tests/config` writes deploy/router.yaml and docs/configuration.md anew.
"""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from router import manual
from router.config import Config, ModelConfig, tree
from router.diagnostics import CODES
from router.loading import inspect, load
from router.settings import ITEM, Section, Setting, find, title, walk

ROOT = Path(__file__).parents[2]
SAMPLE = ROOT / "deploy" / "router.yaml"
TREE = tree()
SCHEMA: Any = manual.schema(TREE)
LEAVES = [(path, node) for path, node in walk(TREE) if isinstance(node, Setting)]


@pytest.mark.parametrize(
    ("file", "text"),
    [(SAMPLE, manual.sample(TREE)), (ROOT / "docs" / "configuration.md", manual.reference(TREE))],
    ids=["deploy/router.yaml", "docs/configuration.md"],
)
def test_a_generated_file_is_what_the_models_say(file: Path, text: str) -> None:
    if os.environ.get("UPDATE_GOLDEN"):
        file.write_text(text, encoding="utf-8")
    assert file.read_text(encoding="utf-8") == text


# The sample.


def values() -> Any:
    return yaml.safe_load(SAMPLE.read_text(encoding="utf-8"))


def concrete(path: tuple[str | int, ...]) -> list[str | int]:
    """A path of the tree as one of the sample's: its first replica, its one model."""
    found: list[str | int] = []
    for i, part in enumerate(path):
        if part == ITEM:
            section = find(TREE, path[:i])
            assert isinstance(section, Section)
            found.append(0 if section.many == "list" else section.example)
        else:
            found.append(part)
    return found


def test_the_sample_passes_the_check() -> None:
    assert inspect(SAMPLE, {})[1] == []


def test_the_sample_is_the_defaults() -> None:
    config = load(SAMPLE, {}).config
    (replica,) = config.replicas
    least = Config.model_validate({"replicas": [{"id": replica.id, "url": replica.url}]})
    assert config.model_copy(update={"models": {}}) == least
    assert list(config.models.values()) == [ModelConfig()]


def test_the_sample_has_every_setting_with_default_range_unit_reason_and_reload_class() -> None:
    text = " ".join(line.strip(" #") for line in SAMPLE.read_text(encoding="utf-8").split("\n"))
    for path, setting in LEAVES:
        value = values()
        for part in concrete(path):
            value = value[part]
        assert value == (setting.example if setting.required else setting.default)
        fact = manual.facts(setting)
        assert f"{fact} {path[-1]}: " in text
        assert fact.endswith(f"; {setting.reload}")
        assert setting.range in fact
        assert setting.unit in fact
        assert setting.text.split(". ")[0][:40] in text


@pytest.mark.parametrize("path", [path for path, _ in LEAVES], ids=[title(path) for path, _ in LEAVES])
def test_a_key_taken_out_of_the_sample_is_missed_only_where_it_is_required(
    path: tuple[str | int, ...], tmp_path: Path
) -> None:
    setting = find(TREE, path)
    assert isinstance(setting, Setting)
    changed = values()
    parent = changed
    *above, name = concrete(path)
    for part in above:
        parent = parent[part]
    del parent[name]
    file = tmp_path / "router.yaml"
    file.write_text(yaml.safe_dump(changed))
    codes = [problem.code for problem in inspect(file, {})[1]]
    assert codes == (["H109"] if setting.required else [])
    assert bool(list(complaints(SCHEMA, changed))) == setting.required
    if not setting.required:
        assert load(file, {}).config.model_copy(update={"models": {}}) == load(SAMPLE, {}).config.model_copy(
            update={"models": {}}
        )


READERS = ("app.py", "config.py", "control.py", "linking.py", "loading.py", "parts.py", "supervisor.py", "tls.py")


def test_every_setting_is_read_by_something() -> None:
    readers = "".join((ROOT / "router" / name).read_text() for name in READERS)
    unread = [title(path) for path, setting in LEAVES if not re.search(rf"\.{setting.name}\b(?!:)", readers)]
    assert unread == []


# The schema. What follows judges by as much of JSON Schema as ours uses, and refuses any other keyword.

TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}


def complaints(schema: dict[str, Any], value: Any) -> Iterator[str]:
    """What is wrong with a value, by a schema."""
    for keyword, wanted in schema.items():
        yield from (f"{keyword}: {value!r}" for _ in range(1) if not JUDGES[keyword](schema, wanted, value))


def is_type(name: str, value: Any) -> bool:
    if name in {"integer", "number"}:
        return isinstance(value, int if name == "integer" else (int, float)) and not isinstance(value, bool)
    return isinstance(value, TYPES[name])


def fits(schema: dict[str, Any], value: Any) -> bool:
    return not list(complaints(schema, value))


def additional(schema: dict[str, Any], wanted: Any, value: Any) -> bool:
    others = [value[key] for key in value if key not in schema.get("properties", {})] if isinstance(value, dict) else []
    return all(wanted is not False and fits(wanted, other) for other in others)


def is_number(value: Any) -> bool:
    return is_type("number", value)


JUDGES: dict[str, Any] = {
    "$schema": lambda schema, wanted, value: True,
    "title": lambda schema, wanted, value: True,
    "description": lambda schema, wanted, value: True,
    "default": lambda schema, wanted, value: True,
    "type": lambda schema, wanted, value: any(
        is_type(name, value) for name in (wanted if isinstance(wanted, list) else [wanted])
    ),
    "enum": lambda schema, wanted, value: value in wanted,
    "pattern": lambda schema, wanted, value: not isinstance(value, str) or re.search(wanted, value) is not None,
    "minimum": lambda schema, wanted, value: not is_number(value) or value >= wanted,
    "exclusiveMinimum": lambda schema, wanted, value: not is_number(value) or value > wanted,
    "maximum": lambda schema, wanted, value: not is_number(value) or value <= wanted,
    "minItems": lambda schema, wanted, value: not isinstance(value, list) or len(value) >= wanted,
    "items": lambda schema, wanted, value: not isinstance(value, list) or all(fits(wanted, item) for item in value),
    "anyOf": lambda schema, wanted, value: any(fits(form, value) for form in wanted),
    "required": lambda schema, wanted, value: not isinstance(value, dict) or set(wanted) <= set(value),
    "properties": lambda schema, wanted, value: not isinstance(value, dict)
    or all(fits(wanted[key], item) for key, item in value.items() if key in wanted),
    "additionalProperties": additional,
}  # fmt: skip

LEAST = {"replicas": [{"id": "r1", "url": "http://127.0.0.1:8101"}]}


def test_the_schema_takes_the_sample_and_the_shorthand() -> None:
    assert list(complaints(SCHEMA, values())) == []
    assert list(complaints(SCHEMA, LEAST | {"admin": "127.0.0.1:9100", "routing": None})) == []


@pytest.mark.parametrize(
    "change",
    [
        {"replicas": []},
        {"lisen": "127.0.0.1:8080"},
        {"listen": 8080},
        {"admin": {"listn": "127.0.0.1:9100"}},
        {"routing": {"policy": "fastest"}},
        {"routing": {"prefix_block": 5}},
        {"routing": {"home_slack": 30}},
        {"routing": {"spill": {"max_kv_usage": 95}}},
        {"models": {"m": {"order": 1}}},
        {"limits": {"body": "32MB"}},
        {"log": {"requests": "true"}},
        {"proxy": {"allow_paths": ["sleep"]}},
        {"replicas": [{"id": "r 1", "url": "http://127.0.0.1:8101"}]},
        {"replicas": [{"id": "r1", "url": "127.0.0.1:8101"}]},
        {"replicas": [{"id": "r1"}]},
    ],
    ids=str,
)
def test_the_schema_refuses_what_the_check_refuses(change: dict[str, Any], tmp_path: Path) -> None:
    assert list(complaints(SCHEMA, LEAST | change))
    file = tmp_path / "router.yaml"
    file.write_text(yaml.safe_dump(LEAST | change))
    assert inspect(file, {})[0] is None


def test_the_schema_is_plain_json() -> None:
    assert json.loads(json.dumps(SCHEMA)) == SCHEMA


# The page of errors.

PAGE = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
CHAPTERS = dict(re.findall(r"^## (H\d+)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))


def test_every_code_in_the_source_has_its_chapter_and_every_chapter_its_code() -> None:
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "router").rglob("*.py")]
    used = {code for source in sources for code in re.findall(r'"(H\d{3})"', source)}
    raised = {
        code
        for path in (ROOT / "router").rglob("*.py")
        if path.name != "diagnostics.py"
        for code in re.findall(r'"(H\d{3})"', path.read_text(encoding="utf-8"))
    }
    assert used == set(CODES) == set(CHAPTERS)
    assert raised | {"H118"} == set(CODES)


@pytest.mark.parametrize("code", sorted(CODES))
def test_a_chapter_has_the_title_a_cause_an_example_and_a_fix(code: str) -> None:
    chapter = CHAPTERS[code]
    assert chapter.startswith(f"\n**{CODES[code]}.**")
    assert "\nCause: " in chapter
    assert "\nFix: " in chapter
    assert chapter.count("```") >= 2


WITH_EXAMPLES = [code for code in sorted(CODES) if "```yaml" in CHAPTERS.get(code, "")]


@pytest.mark.parametrize("code", WITH_EXAMPLES)
def test_a_chapters_example_has_the_problem_and_its_fix_has_none(code: str, tmp_path: Path) -> None:
    bad, good = re.findall(r"```yaml\n(.*?)```", CHAPTERS[code], re.DOTALL)
    file = tmp_path / "router.yaml"
    file.write_text(bad)
    assert {problem.code for problem in inspect(file, {})[1]} == {code}
    file.write_text(good)
    assert inspect(file, {})[1] == []


def test_only_what_no_file_can_show_has_no_example_file() -> None:
    assert set(CODES) - set(WITH_EXAMPLES) == {
        *("H101", "H119", "H120", "H127", "H128", "H140", "H141", "H142", "H143", "H144")
    }
