"""Commands that ask a running router, over its admin port. Nothing here is on a request's path."""

import asyncio
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from router.asking import INVALID, URL, Admin, Answer, TokenFile, ask, complain, good, token_of, told_of

WIDTH = 4096
"""Columns of what is printed, so that no cell is ever cut: a pipe has no width, and a terminal breaks lines itself."""

AsJson = Annotated[bool, typer.Option("--json", help="Print the whole answer as JSON.")]
ReplicaName = Annotated[str, typer.Argument(help="The replica's id.", metavar="ID")]

STATUS_COLUMNS = ("replica", "state", "model", "since", "requests", "no token", "running", "waiting", "KV")

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
    "ramp",
    "score",
)


def explain(
    file: Annotated[Path, typer.Option("--file", "-f", help="A request's JSON body; - for standard input.")],
    path: Annotated[str, typer.Option(help="The endpoint it would be sent to.")] = "/v1/chat/completions",
    admin: Admin = URL,
    json: AsJson = False,
) -> None:
    """Show where a running router would send a request now, and why. Nothing is sent.

    The score's columns are seconds: own wait and prefill, stickiness of cold tokens, decoding beside the others,
    interruption by recent prefills, and what a replica that has just come empty is slowed by; the least total wins,
    ties go in ring order. Exit code 0: explained, 1: it cannot be, for what is no request that is routed by its prompt,
    4: no router answers.

    Examples:

      homing explain -f request.json

      homing explain -f request.json --path /v1/completions --admin http://router:9100
    """
    try:
        body = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as error:
        complain(f"{file}: cannot be read: {error.strerror}", 2)
    answer = good(asyncio.run(ask("POST", admin, "/explain", {"path": path}, body)), "decision")
    why = answer.get("unexplained")
    if json:
        Console().print_json(data=answer)
    elif why is None:
        _print(answer)
    if why is not None:
        complain(f"not explained: {why}", INVALID)


def status(admin: Admin = URL, json: AsJson = False) -> None:
    """Show a running router: whether it is ready, its replicas with state and load.

    Exit code 0: ready, 1: not ready, 4: no router answers.

    Examples:

      homing status

      homing status --json --admin http://router:9100
    """
    ready = asyncio.run(ask("GET", admin, "/readyz"))
    fleet = good(asyncio.run(ask("GET", admin, "/fleet")), "replicas", "workers", "policy")
    if json:
        Console().print_json(data={"ready": ready.status == 200, "why": ready.text, **fleet})
    else:
        _print_fleet(ready, fleet)
    if ready.status != 200:
        raise SystemExit(INVALID)


def reload(admin: Admin = URL, token_file: TokenFile = None) -> None:
    """Have a running router read its configuration again, and show what has changed.

    Streams go on. An invalid configuration changes nothing. Exit code 0: taken, 1: refused, 4: no router answers.

    Examples:

      homing reload --token-file /run/secrets/homing

      HOMING_ADMIN_TOKEN_FILE=token homing reload --admin http://router:9100
    """
    answer = asyncio.run(ask("POST", admin, "/reload", token=token_of(token_file)))
    if answer.status == 422:
        for found in told_of(answer, "diagnostics")["diagnostics"]:
            place = ":".join(str(part) for part in (found["file"], found["line"], found["column"]) if part is not None)
            print(f"{place}: {found['severity']}[{found['code']}]: {found['message']}", file=sys.stderr)  # noqa: T201
        complain("not reloaded: the configuration is not valid", INVALID)
    told = good(answer, "changed", "needs_restart")
    for line in told["changed"] or ["nothing has changed"]:
        print(line)  # noqa: T201
    for line in told["needs_restart"]:
        print(f"needs a restart: {line}")  # noqa: T201


def drain(replica: ReplicaName, admin: Admin = URL, token_file: TokenFile = None) -> None:
    """Let a replica of a running router get nothing new; its answers under way go on.

    It stays so until it is undrained, over reloads and SIGUSR2; a restart of the router forgets it. `homing status`
    shows when it is empty.

    Examples:

      homing drain r1 --token-file /run/secrets/homing

      homing drain r1 --token-file token --admin http://router:9100
    """
    _drain("/drain", replica, admin, token_file)


def undrain(replica: ReplicaName, admin: Admin = URL, token_file: TokenFile = None) -> None:
    """Let a drained replica take part again.

    Examples:

      homing undrain r1 --token-file /run/secrets/homing

      homing undrain r1 --token-file token --admin http://router:9100
    """
    _drain("/undrain", replica, admin, token_file)


def _drain(path: str, replica: str, admin: str, token_file: Path | None) -> None:
    answer = asyncio.run(ask("POST", admin, path, {"replica": replica}, token=token_of(token_file)))
    told = good(answer, "replica", "state", "requests")
    print(f"{told['replica']} is {told['state']}, with {told['requests']} requests under way")  # noqa: T201


def _print(answer: dict[str, Any]) -> None:
    prompt, key, decision = answer["prompt"], answer["key"], answer["decision"]
    console = Console(width=WIDTH)
    depth = f"{key['depth_blocks']} blocks deep" if key["depth_blocks"] else "the whole prompt"
    console.print(f"request  {answer['endpoint']}, model {answer['model']}", highlight=False, markup=False)
    console.print(f"prompt   {prompt['bytes']} bytes, about {prompt['tokens']} tokens, {prompt['blocks']} blocks")
    console.print(f"key      {key['hash']}, {depth}; ring order {', '.join(answer['ring_order']) or '(none)'}")
    table = Table(box=None, pad_edge=False)
    for column in COLUMNS:
        table.add_column(column, justify="left" if column in {"replica", "state"} else "right")
    for candidate in answer["candidates"]:
        table.add_row(*_row(candidate))
    console.print(table)
    console.print("decision " + ", ".join(f"{name}: {value}" for name, value in decision.items() if value is not None))


def _print_fleet(ready: Answer, fleet: dict[str, Any]) -> None:
    console = Console(width=WIDTH)
    word = "ready" if ready.status == 200 else "not ready"
    console.print(f"router   {word}, {fleet['workers']} workers, policy {fleet['policy']}", highlight=False)
    for line in [] if ready.status == 200 else ready.text.strip().splitlines():
        console.print(f"         {line}", highlight=False, markup=False)
    if fleet.get("shadow"):  # A router of an earlier version tells of none.
        console.print(f"shadow   {_shadow(fleet['shadow'])}", highlight=False)
    table = Table(box=None, pad_edge=False)
    for column in STATUS_COLUMNS:
        table.add_column(column, justify="left" if column in {"replica", "state", "model"} else "right")
    for replica in fleet["replicas"]:
        engine = replica["engine"] or {}
        usage = engine.get("kv_cache_usage_ratio")
        cells = [
            replica["id"],
            replica["state"],
            replica["model"] or "",
            f"{replica['since_seconds']:.0f} s",
            replica["requests"],
            replica["without_first_token"],
            engine.get("running"),
            engine.get("waiting"),
            None if usage is None else f"{usage:.0%}",
        ]
        table.add_row(*("" if cell is None else str(cell) for cell in cells))
    console.print(table)


def _shadow(told: dict[str, Any]) -> str:
    """How the shadow's policy would have done."""
    asks, tokens = told["asks"], told["prompt_tokens"]
    if not tokens:
        return f"{told['policy']}: {asks} asks so far, none with a prompt"
    shadow, live = told["shadow_cached_tokens"] / tokens, told["live_cached_tokens"] / tokens
    same = told["same"] / asks
    return f"{told['policy']}: hit {shadow:.0%} against {live:.0%}, agrees on {same:.0%} of {asks} asks"


def _row(candidate: dict[str, Any]) -> list[str]:
    state = candidate["state"] + (f" ({candidate['cut']})" if candidate["cut"] else "")
    tokens = [candidate.get(f"{name}_tokens", "") for name in ("cached", "uncached", "cold", "backlog")]
    score = candidate.get("score_seconds", {})
    seconds = [f"{value:.4f}" for value in score.values()] or [""] * 6
    return [candidate["replica"], state, *map(str, tokens), *seconds]
