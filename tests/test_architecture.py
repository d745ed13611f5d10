"""Invariants and budgets of DESIGN that the source itself can show; import-linter and ruff hold the others.

The checks read the files as they stand and import nothing, so a room with a missing dependency is checked too.
"""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("router", "replica", "loadtests")
FUNCTION_LINES = 40
FILE_LINES = 400

PURE = frozenset({
    "bisect", "collections", "collections.abc", "copy", "dataclasses", "enum", "hashlib", "itertools", "json", "math",
    "typing", "uhashring", "xxhash",
})  # fmt: skip
"""What the core may import: no clock, no I/O, no randomness, no logging, no tasks (invariants 1 and 2)."""

IMPURE_BUILTINS = frozenset({"breakpoint", "eval", "exec", "hash", "input", "open", "print"})
"""`hash` of a text differs from process to process: whatever it decided, two routers would decide differently."""

CONTAINERS = (ast.Dict, ast.List, ast.Set, ast.DictComp, ast.ListComp, ast.SetComp)
MUTABLE = frozenset({
    "bytearray", "Condition", "ContextVar", "Counter", "count", "cycle", "defaultdict", "deque", "dict", "Event",
    "list", "Lock", "OrderedDict", "Queue", "Random", "Semaphore", "set", "WeakKeyDictionary", "WeakSet",
    "WeakValueDictionary",
})  # fmt: skip
CHANGES = frozenset({
    "add", "append", "clear", "discard", "extend", "insert", "pop", "popitem", "remove", "reverse", "setdefault",
    "sort", "update",
})  # fmt: skip
CACHES = frozenset({"cache", "lru_cache"})

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Source(NamedTuple):
    """A file and its syntax tree; `name` is its path in the project."""

    name: str
    text: str
    tree: ast.Module

    def __repr__(self) -> str:
        return self.name


def sources(*rooms: str) -> list[Source]:
    found = []
    for path in sorted(path for room in rooms for path in (ROOT / room).rglob("*.py")):
        text = path.read_text()
        found.append(Source(str(path.relative_to(ROOT)), text, ast.parse(text)))
    return found


def parse(text: str) -> Source:
    """A source for the checks' own tests."""
    return Source("example.py", text, ast.parse(text))


EVERYTHING = sources(*ROOMS)
CORE = [source for source in EVERYTHING if source.name.startswith("router/core/")]
ROUTER = [source for source in EVERYTHING if source.name.startswith("router/")]


def imported(source: Source) -> Iterator[str]:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None
            yield node.module


def called(node: ast.Call) -> str:
    """The last part of a called name: `Queue` of asyncio.Queue(); nothing for what is not a name."""
    function = node.func
    return function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")


def impure(source: Source) -> list[str]:
    """What a pure file must not do."""
    found = [f"imports {name}" for name in imported(source) if name not in PURE and not name.startswith("router.core.")]
    for node in ast.walk(source.tree):
        if isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.AsyncFor | ast.AsyncWith):
            found.append(f"line {node.lineno} is asynchronous")
        elif isinstance(node, ast.Global):
            found.append(f"line {node.lineno} has a global")
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in IMPURE_BUILTINS:
            found.append(f"line {node.lineno} calls {node.func.id}")
    return found


def bindings(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Names that a module binds at its top level, each with its value."""
    for node in tree.body:
        if isinstance(node, ast.Assign):
            yield from ((target.id, node.value) for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            yield node.target.id, node.value


def changed(node: ast.AST) -> Iterator[str]:
    """Names that a statement or a call changes in place, whether they stand alone or behind a module's name."""
    targets: list[ast.expr] = []
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGES:
        targets = [node.func.value]
    elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
        targets = [node.value]
    elif isinstance(node, ast.AugAssign):
        targets = [node.target]
    for target in targets:
        if isinstance(target, ast.Name):
            yield target.id
        elif isinstance(target, ast.Attribute):
            yield target.attr


def caches(node: ast.AST) -> bool:
    """Whether it brings in one of functools' caches."""
    if isinstance(node, ast.ImportFrom):
        return node.module == "functools" and any(alias.name in CACHES for alias in node.names)
    return isinstance(node, ast.Attribute) and ast.unparse(node) in {f"functools.{name}" for name in CACHES}


def module_state(checked: list[Source]) -> list[str]:
    """Module-level state that changes, or looks as if it were made to: conservative, by name and syntax only.

    A table is allowed: a container literal under an UPPER_CASE name that nothing in the room ever changes.
    """
    touched = {name for source in checked for node in ast.walk(source.tree) for name in changed(node)}
    found = []
    for source in checked:
        for name, value in bindings(source.tree):
            table = name.isupper() or name == "__all__"
            if isinstance(value, CONTAINERS) and (not table or name in touched):
                found.append(f"{source.name}: {name} is a container that changes or has no constant's name")
            elif isinstance(value, ast.Call) and called(value) in MUTABLE:
                found.append(f"{source.name}: {name} is a {called(value)}")
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Global):
                found.append(f"{source.name}: line {node.lineno} has a global")
            if caches(node):
                found.append(f"{source.name}: {ast.unparse(node)} keeps a cache behind a function")
    return found


def documented(source: Source) -> Iterator[tuple[str, bool]]:
    """Public names that need a docstring, and whether they have one.

    Modules, functions of more than one statement, and classes with methods of their own. A class of fields is said by
    their names; a method that is an interface's is said there, so that methods are asked of the core alone.
    """
    yield source.name, ast.get_docstring(source.tree) is not None
    for node in source.tree.body:
        if isinstance(node, Function) and len(node.body) > 1 and not node.name.startswith("_"):
            yield f"{source.name}: {node.name}", ast.get_docstring(node) is not None
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            methods = [each for each in node.body if isinstance(each, Function)]
            if methods:
                yield f"{source.name}: {node.name}", ast.get_docstring(node) is not None
            for method in methods if source in CORE else []:
                if len(method.body) > 3 and not method.name.startswith("_"):
                    yield f"{source.name}: {node.name}.{method.name}", ast.get_docstring(method) is not None


def long_functions(source: Source) -> list[str]:
    """Functions over the budget. A command's flags and help are data: of a signature its first line counts."""
    found = []
    for node in ast.walk(source.tree):
        if isinstance(node, Function) and node.end_lineno:
            said = ast.get_docstring(node) is not None and len(node.body) > 1
            lines = node.end_lineno - node.body[1 if said else 0].lineno + 2
            if lines > FUNCTION_LINES:
                found.append(f"{source.name}: {node.name} has {lines} lines")
    return found


def clamped(source: Source) -> list[str]:
    """Attributes that are set to a max or min of themselves.

    Invariant 3: what is added once is removed once, and a mistake must show. Formulas over readings may clamp.
    """
    found = []
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and called(node.value) in {"max", "min"}:
            target = ast.unparse(node.targets[0])
            if "." in target and target in ast.unparse(node.value):
                found.append(f"line {node.lineno} clamps {target}")
    return found


# The rules.


def test_there_is_something_to_check() -> None:
    assert {source.name.split("/")[0] for source in EVERYTHING} == set(ROOMS)
    assert {Path(source.name).name for source in CORE} >= {"fleet.py", "policy.py", "residency.py", "ring.py"}


@pytest.mark.parametrize("source", CORE, ids=repr)
def test_the_core_never_awaits_and_knows_no_clock_no_chance_no_log_and_no_other_room(source: Source) -> None:
    assert impure(source) == []


def test_the_router_has_no_module_level_state() -> None:
    assert module_state(ROUTER) == []


@pytest.mark.parametrize("room", ROOMS)
def test_no_function_is_longer_than_forty_lines(room: str) -> None:
    assert [
        found for source in EVERYTHING if source.name.startswith(f"{room}/") for found in long_functions(source)
    ] == []


@pytest.mark.parametrize("room", ROOMS)
def test_no_file_is_longer_than_four_hundred_lines(room: str) -> None:
    here = [source for source in EVERYTHING if source.name.startswith(f"{room}/")]
    assert [source.name for source in here if len(source.text.splitlines()) > FILE_LINES] == []


@pytest.mark.parametrize("room", ROOMS)
def test_what_is_public_says_what_it_is(room: str) -> None:
    names = [each for source in EVERYTHING if source.name.startswith(f"{room}/") for each in documented(source)]
    assert [name for name, says in names if not says] == []


@pytest.mark.parametrize("source", CORE, ids=repr)
def test_no_counter_is_clamped(source: Source) -> None:
    assert clamped(source) == []


# The checks themselves.


@pytest.mark.parametrize(
    "text",
    [
        "import time", "import random", "import logging", "import asyncio", "from time import monotonic",
        "from router.proxy import wire", "import router.app", "async def f(): pass", "def f(): print(1)",
        "def f(x): return hash(x)", "def f():\n    global x\n    x = 1", "async def f(x):\n    await x",
    ],
)  # fmt: skip
def test_an_impure_file_is_found(text: str) -> None:
    assert impure(parse(text))


def test_a_pure_file_is_left_alone() -> None:
    text = "import math\nfrom router.core.types import Ask\n\ndef f(x):\n    return math.exp(x.hash())\n"
    assert impure(parse(text)) == []


@pytest.mark.parametrize(
    "text",
    [
        "seen = {}",
        "seen: dict[str, int] = {}",
        "SEEN = {}\ndef f(x): SEEN[x] = 1",
        "SEEN = []\ndef f(x): SEEN.append(x)",
        "TABLE = {1: 2}\ndel TABLE[1]",
        "TABLE = {1: 2}\nTABLE |= {3: 4}",
        "ROWS = [1]\ndef f():\n    other.ROWS.clear()",
        "NAMES = set()",
        "NAMES = collections.defaultdict(list)",
        "LOCK = asyncio.Lock()",
        "SERIAL = itertools.count()",
        "TOTAL = 0\ndef f():\n    global TOTAL\n    TOTAL += 1",
        "import functools\n@functools.lru_cache\ndef f(x): return x",
        "from functools import cache\n@cache\ndef f(x): return x",
    ],
)
def test_module_level_state_is_found(text: str) -> None:
    assert module_state([parse(text)])


def test_state_is_found_when_another_file_changes_it() -> None:
    assert module_state([parse("TABLE = {1: 2}"), parse("from example import TABLE\nTABLE.update({3: 4})")])


@pytest.mark.parametrize(
    "text",
    [
        "TABLE = {1: 2}\ndef f(x): return TABLE[x]",
        "NAMES = frozenset((1, 2))",
        "PAIR = (1, 2)",
        "log = getLogger('x')",
        "__all__ = ['f']",
        "NUMBER = re.compile('x')",
        "def f():\n    seen = {}\n    seen[1] = 2\n    return seen",
        "class A:\n    def f(self): self.cache = {}",
    ],
)
def test_what_is_no_module_level_state_is_left_alone(text: str) -> None:
    assert module_state([parse(text)]) == []


def test_a_clamped_counter_is_found() -> None:
    assert clamped(parse("class A:\n    def end(self): self.requests = max(0, self.requests - 1)"))
    assert (
        clamped(parse("class A:\n    def f(self, left): self.left = max(0.0, left)\n    def g(self): x = max(1, 2)"))
        == []
    )


def test_a_function_of_forty_lines_is_not_too_long_and_one_of_forty_one_is() -> None:
    def of(lines: int) -> Source:
        return parse("class A:\n    def f(self):\n" + "        pass\n" * (lines - 1))

    assert long_functions(of(40)) == []
    assert long_functions(of(41)) == ["example.py: f has 41 lines"]


def test_a_missing_docstring_is_found() -> None:
    text = "def f():\n    a = 1\n    return a\n\nclass A:\n    def g(self): ...\n\ndef _h():\n    a = 1\n    return a\n"
    assert list(documented(parse(text))) == [
        ("example.py", False), ("example.py: f", False), ("example.py: A", False),
    ]  # fmt: skip
    said = '"""M."""\ndef f():\n    """F."""\n    return 1\n\nclass A:\n    """A."""\n    def g(self): ...\n'
    assert all(says for _, says in documented(parse(said)))
