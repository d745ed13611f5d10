"""What `homing check` says of bad files, word for word.

`UPDATE_GOLDEN=1 pytest tests/config` writes tests/golden/config/*.txt anew; read the difference before it is committed.
"""

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router import render
from router.loading import inspect

GOLDEN = Path(__file__).parents[1] / "golden" / "config"
FILES = sorted(GOLDEN.glob("*.yaml"))


def test_there_are_sixty_files_and_no_orphans() -> None:
    assert len(FILES) >= 60
    assert {path.stem for path in GOLDEN.glob("*.txt")} == {path.stem for path in FILES}


def test_each_file_has_a_number_of_its_own() -> None:
    assert sorted(int(path.stem.partition("-")[0]) for path in FILES) == list(range(1, len(FILES) + 1))


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_a_bad_file_gets_this_answer(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(GOLDEN)
    loaded, problems = inspect(Path(path.name), {})
    if loaded is not None:
        problems = [*problems, *loaded.files(datetime.now(UTC))[1]]
    answer = render.text(problems, path.name) + "\n"
    expected = path.with_suffix(".txt")
    if os.environ.get("UPDATE_GOLDEN"):
        expected.write_text(answer, encoding="utf-8")
    assert answer == expected.read_text(encoding="utf-8")
    assert problems
    assert all(len(render.problem_text(problem).split("\n")) <= 6 for problem in problems)
    assert all(char.isprintable() for line in answer.split("\n") for char in line)


TEN_USUAL_MISTAKES = {
    "tab-indent": "H110",
    "duplicate-key": "H108",
    "duration-without-unit": "H105",
    "port-as-string": "H111",
    "url-without-scheme": "H112",
    "url-ending-in-v1": "H113",
    "two-replicas-one-url": "H114",
    "bare-no-as-id": "H116",
    "key-too-deep": "H117",
    "secret-in-plain-text": "H118",
}


@pytest.mark.parametrize(("name", "code"), TEN_USUAL_MISTAKES.items())
def test_the_ten_usual_mistakes_have_a_diagnosis_of_their_own(name: str, code: str) -> None:
    (path,) = [path for path in FILES if path.stem.partition("-")[2] == name]
    assert code in {problem.code for problem in inspect(path, {})[1]}


MORSELS = [
    ":",
    " ",
    "\n",
    "- ",
    "[",
    "]",
    "{",
    "}",
    "&a ",
    "*a",
    "<<: ",
    "'",
    '"',
    "\t",
    "|\n",
    "?",
    "!x ",
    "---\n",
    "\r\n",
]
SAID = [path.read_bytes().decode(errors="surrogateescape") for path in FILES if path.stat().st_size < 300]


@settings(max_examples=150, deadline=None)
@given(text=st.sampled_from(SAID), at=st.floats(0, 1), cut=st.integers(0, 8), put=st.lists(st.sampled_from(MORSELS)))
def test_whatever_a_file_holds_the_answer_is_settings_or_problems(
    text: str, at: float, cut: int, put: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    start = int(at * len(text))
    file = tmp_path_factory.getbasetemp() / "mangled.yaml"
    file.write_bytes((text[:start] + "".join(put) + text[start + cut :]).encode(errors="surrogateescape"))
    loaded, problems = inspect(file, {})
    assert loaded is not None or problems
    assert render.text(problems, "f").endswith(" in f")
    for problem in problems:
        if problem.span is not None:
            assert 1 <= problem.span.line <= len(problem.span.source.lines)
            assert problem.span.end > problem.span.column
