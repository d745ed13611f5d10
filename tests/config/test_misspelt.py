"""Every key, misspelt by one edit: the caret covers it, and what is suggested is among the nearest names."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router import render
from router.config import tree
from router.diagnostics import distance, dotted
from router.loading import inspect
from router.manual import sample
from router.settings import ITEM, Section, walk

ALPHABET = "abcdefghijklmnopqrstuvwxyz_"
TREE = tree()
SAMPLE = "\n".join(line for line in sample(TREE).split("\n") if not line.lstrip().startswith("#"))
KEYS = [path for path, _ in walk(TREE)]


def siblings(path: tuple[str | int, ...]) -> set[str]:
    """The names that are allowed where a key stands."""
    return {str(other[-1]) for other in KEYS if other[:-1] == path[:-1]}


def edits(word: str) -> Iterator[str]:
    """All words that are one edit away, and still a plain word of YAML."""
    for i in range(len(word) + 1):
        yield from (word[:i] + letter + word[i:] for letter in ALPHABET)
        if i < len(word):
            yield word[:i] + word[i + 1 :]
            yield from (word[:i] + letter + word[i + 1 :] for letter in ALPHABET)
        if i + 1 < len(word):
            yield word[:i] + word[i + 1] + word[i] + word[i + 2 :]


def with_key(path: tuple[str | int, ...], wrong: str) -> tuple[str, int, int]:
    """The sample with one key's name changed; the line and column (from 1) where it stands."""
    lines = SAMPLE.split("\n")
    at = 0
    for depth, part in enumerate(path):
        if part != ITEM:
            indent = sum(2 for _ in path[:depth])
            at = next(n for n in range(at, len(lines)) if re.match(f" {{{indent}}}{part}:", lines[n]))
    column = len(lines[at]) - len(lines[at].lstrip()) + 1
    lines[at] = lines[at].replace(f"{path[-1]}:", f"{wrong}:", 1)
    return "\n".join(lines), at + 1, column


@pytest.mark.parametrize("path", KEYS, ids=[dotted(path) for path in KEYS])
@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_a_key_misspelt_by_one_edit_is_found_and_the_nearest_name_is_suggested(
    path: tuple[str | int, ...], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    allowed = siblings(path)
    wrong = data.draw(st.sampled_from(sorted({word for word in edits(str(path[-1])) if word} - allowed - {"y", "n"})))
    text, line, column = with_key(path, wrong)
    file = tmp_path_factory.getbasetemp() / "misspelt.yaml"
    file.write_text(text)
    problem = next(problem for problem in inspect(file, {})[1] if problem.path[-1:] == (wrong,))
    assert problem.code == "H103"
    assert problem.span is not None
    assert (problem.span.line, problem.span.column, problem.span.text) == (line, column, wrong)
    nearest = min(distance(wrong, name) for name in allowed)
    assert problem.suggestion in {name for name in allowed if distance(wrong, name) == nearest}
    shown, under = (part.split("| ", 1)[1] for part in render.problem_text(problem).split("\n")[2:4])
    assert shown[under.index("^") : under.rindex("^") + 1] == wrong


def test_every_key_of_the_tree_was_there_to_misspell() -> None:
    assert len(KEYS) > 40
    assert all(isinstance(node, Section) or f"{path[-1]}:" in SAMPLE for path, node in walk(TREE))


def test_the_sample_itself_is_valid(tmp_path: Path) -> None:
    file = tmp_path / "router.yaml"
    file.write_text(SAMPLE)
    assert inspect(file, {})[1] == []


@pytest.mark.parametrize(
    ("a", "b", "edits_between"),
    [
        ("", "", 0),
        ("url", "", 3),
        ("url", "uri", 1),
        ("url", "ulr", 1),
        ("drain", "darins", 2),
        ("kitten", "sitting", 3),
    ],
)
def test_distance_counts_edits(a: str, b: str, edits_between: int) -> None:
    assert distance(a, b) == distance(b, a) == edits_between
