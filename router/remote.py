"""Commands that ask a running router, over its admin port. Nothing here is on a request's path."""

import asyncio
import sys
from pathlib import Path
from typing import Annotated, Any

import aiohttp
import typer
from rich.console import Console
from rich.table import Table

UNREACHABLE = 4
"""Exit code when the admin port does not answer (UX R5)."""

TIMEOUT = 10.0
"""Seconds for one answer of the admin port, which takes milliseconds."""

Admin = Annotated[str, typer.Option(help="The router's admin URL.", envvar="HOMING_ADMIN_URL")]

COLUMNS = (
    "replica",
    "state",
    "cached",
    "uncached",
    "cold",
    "backlog",
    "prefill",
    "cold s",
    "context",
    "interrupt.",
    "score",
)


def explain(
    file: Annotated[Path, typer.Option("--file", "-f", help="A request's JSON body; - for standard input.")],
    path: Annotated[str, typer.Option(help="The endpoint it would be sent to.")] = "/v1/chat/completions",
    admin: Admin = "http://127.0.0.1:9100",
    json: Annotated[bool, typer.Option("--json", help="Print the whole answer as JSON.")] = False,
) -> None:
    """Show where a running router would send a request now, and why. Nothing is sent.

    The score's columns are seconds: own wait and prefill, stickiness of cold tokens, decoding beside the others,
    interruption by recent prefills; the least total wins, ties go in ring order.

    Examples:

      homing explain -f request.json

      homing explain -f request.json --path /v1/completions --admin http://router:9100
    """
    try:
        body = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as error:
        _complain(f"{file}: cannot be read: {error.strerror}", 2)
    answer = asyncio.run(_post(f"{admin.rstrip('/')}/explain", body, {"path": path}))
    if json:
        Console().print_json(data=answer)
    else:
        _print(answer)


async def _post(url: str, body: bytes, query: dict[str, str]) -> Any:
    timeout = aiohttp.ClientTimeout(total=TIMEOUT)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.post(url, data=body, params=query) as answer,
        ):
            if answer.status != 200:
                _complain(f"{url} answers {answer.status}: {(await answer.text())[:500]}", 1)
            return await answer.json()
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        _complain(
            f"{url}: no router answers ({error or 'time-out'}). Is it running, and is --admin its admin URL?",
            UNREACHABLE,
        )


def _complain(text: str, code: int) -> Any:
    print(f"homing: {text}", file=sys.stderr)  # noqa: T201
    raise SystemExit(code)


def _print(answer: dict[str, Any]) -> None:
    prompt, key, decision = answer["prompt"], answer["key"], answer["decision"]
    console = Console()
    depth = f"{key['depth_blocks']} blocks deep" if key["depth_blocks"] else "the whole prompt"
    console.print(f"prompt   {prompt['bytes']} bytes, about {prompt['tokens']} tokens, {prompt['blocks']} blocks")
    console.print(f"key      {key['hash']}, {depth}; ring order {', '.join(answer['ring_order']) or '(none)'}")
    table = Table(box=None, pad_edge=False)
    for column in COLUMNS:
        table.add_column(column, justify="left" if column in {"replica", "state"} else "right")
    for candidate in answer["candidates"]:
        table.add_row(*_row(candidate))
    console.print(table)
    console.print("decision " + ", ".join(f"{name}: {value}" for name, value in decision.items() if value is not None))


def _row(candidate: dict[str, Any]) -> list[str]:
    state = candidate["state"] + (f" ({candidate['cut']})" if candidate["cut"] else "")
    tokens = [candidate.get(f"{name}_tokens", "") for name in ("cached", "uncached", "cold", "backlog")]
    score = candidate.get("score_seconds", {})
    seconds = [f"{value:.4f}" for value in score.values()] or [""] * 5
    return [candidate["replica"], state, *map(str, tokens), *seconds]
