"""What bench_stages has measured, for a reader: a table of the stages, and what else there is to say."""

import json
from dataclasses import asdict
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from loadtests.bench_stages import LONG_PROMPT, LONG_PROMPT_GOAL_MS, Profile, profile


def table(of: Profile) -> Table:
    """A row for each stage, a column for each size."""
    grid = Table(box=SIMPLE_HEAD)
    for name in ("stage", *(f"{size.kib:g} KB" for size in of.sizes)):
        grid.add_column(name, justify="left" if name == "stage" else "right")
    for stage in of.sizes[0].stages:
        grid.add_row(stage, *(f"{size.stages[stage]:.1f}" for size in of.sizes))
    grid.add_row("the exchange between", *(f"{size.rest:.1f}" for size in of.sizes), end_section=True)
    grid.add_row("whole", *(f"{size.whole:.1f}" for size in of.sizes))
    return grid


def show(console: Console, out: Path | None) -> None:
    """Measure, print, and write as JSON where asked. Raises OSError."""
    measured = profile()
    if out is not None:
        out.write_text(json.dumps(asdict(measured), indent=2) + "\n", encoding="utf-8")
    build = "compiled" if measured.compiled else "plain Python"
    console.print(f"CPU in us per request, by stage; the router is {build}.", highlight=False)
    console.print(table(measured))
    console.print(f"A streamed chunk: {measured.chunk:.1f} us.", highlight=False)
    verdict = "met" if measured.long_prompt_ms < LONG_PROMPT_GOAL_MS else "missed"
    console.print(
        f"Parse and hash of a prompt of {LONG_PROMPT // 1000} KB: {measured.long_prompt_ms:.2f} ms "
        f"(goal: under {LONG_PROMPT_GOAL_MS:g} ms, {verdict}).", highlight=False,
    )  # fmt: skip
    console.print(f"The longest slice in which a body of 16 MiB is read: {measured.slice_ms:.1f} ms.", highlight=False)
