"""`homing check` and `homing config ...`: what an operator asks about a configuration, with no router running.

Nothing here opens a socket or resolves a name, so that it can run where the fleet cannot be reached: in
CI. Where certificates and secrets are not either, there is `--no-files`.
"""

import json
import sys
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from router import manual, render
from router.config import tree
from router.diagnostics import ConfigError
from router.loading import inspect, load

INVALID = 1

ConfigFile = Annotated[Path, typer.Option("--config", "-c", help="The YAML file.", metavar="FILE")]


class Output(StrEnum):
    TEXT = "text"
    JSON = "json"
    GITHUB = "github"
    SARIF = "sarif"


def check(
    file: Annotated[Path, typer.Argument(help="The YAML file.", metavar="FILE")],
    output: Annotated[Output, typer.Option(help="How to tell.")] = Output.TEXT,
    strict: Annotated[bool, typer.Option("--strict", help="Fail on warnings, too.")] = False,
    files: Annotated[
        bool,
        typer.Option(
            "--files/--no-files", help="Whether the files that it names are read, too: certificates, tokens, keys."
        ),
    ] = True,
) -> None:
    """Check a configuration, HOMING__* variables included. Connects to nothing.

    Exit code 0: valid, 1: invalid, 2: wrong usage. Codes are explained in docs/errors.md.

    Examples:

      homing check router.yaml

      homing check --strict --output github --no-files deploy/router.yaml
    """
    loaded, problems = inspect(file)
    if files and loaded is not None:
        problems = [*problems, *loaded.files(datetime.now(UTC))[1]]
    if output is Output.TEXT:
        _print(render.text(problems, str(file), render.is_colored(sys.stdout)))
    else:
        _print(render.FORMATS[output](problems, str(file)))
    errors, warnings = render.count(problems)
    if errors or (strict and warnings):
        raise SystemExit(INVALID)


def init() -> None:
    """Print a configuration with every setting, its default, bounds and reason.

    Examples:

      homing config init > router.yaml

      homing config init | grep -A3 home_slack
    """
    _print(manual.sample(tree()).rstrip("\n"))


def schema() -> None:
    """Print the JSON Schema of the configuration, for editors and other checkers.

    Examples:

      homing config schema > homing.schema.json

      homing config schema | check-jsonschema --schemafile /dev/stdin router.yaml
    """
    _print(json.dumps(manual.schema(tree()), indent=2))


def show(
    config: ConfigFile,
    origin: Annotated[bool, typer.Option("--origin", help="And whence each is: FILE:LINE, env or default.")] = False,
) -> None:
    """Print every value in effect.

    Examples:

      homing config show -c router.yaml

      homing config show --origin -c router.yaml | grep -v default
    """
    try:
        rows = load(config).rows()
    except ConfigError as error:
        for problem in error.problems[: render.MAX_SHOWN]:
            print(render.problem_text(problem, render.is_colored(sys.stderr)), file=sys.stderr)  # noqa: T201
        raise SystemExit(INVALID) from error
    name, value = max(len(row.name) for row in rows), max(len(row.value) for row in rows)
    for row in rows:
        line = (
            f"{row.name:<{name}}  {row.value:<{value}}  {row.origin}" if origin else f"{row.name:<{name}}  {row.value}"
        )
        _print(line.rstrip())


def _print(text: str) -> None:
    print(text)  # noqa: T201
