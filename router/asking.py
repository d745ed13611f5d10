"""How commands ask a running router over its admin port, and how they end when that fails.

Exit codes: INVALID when the router refuses, UNREACHABLE when none answers, 2 for what cannot be asked.
"""

import sys
from collections.abc import Mapping
from json import loads as decode
from pathlib import Path
from typing import Annotated, Any, NamedTuple, NoReturn

import aiohttp
import typer

UNREACHABLE = 4
"""Exit code when the admin port does not answer (UX R5)."""

TIMEOUT = 10.0
"""Seconds for one answer of the admin port, which takes milliseconds."""

INVALID = 1
"""Exit code when the router refuses: a configuration that is not valid, a token that is not right."""

URL = "http://127.0.0.1:9100"

Admin = Annotated[str, typer.Option(help="The router's admin URL.", envvar="HOMING_ADMIN_URL")]
TokenFile = Annotated[
    Path | None,
    typer.Option(help="File with the token of admin.token_file.", envvar="HOMING_ADMIN_TOKEN_FILE", metavar="FILE"),
]
ROUTED = "x-homing-request-id"
"""A header of all that the clients' port answers, and of nothing on the admin port."""


class Answer(NamedTuple):
    """What was answered. `routed`: it came by the clients' port, which passes on to a replica what it does not know."""

    url: str
    status: int
    text: str
    routed: bool

    def json(self) -> Any:
        return decode(self.text)


async def ask(
    method: str, admin: str, path: str, query: Mapping[str, str] | None = None, body: bytes = b"", token: str = ""
) -> Answer:
    """Ask once. Ends the command when nothing answers."""
    url = admin.rstrip("/") + path
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    timeout = aiohttp.ClientTimeout(total=TIMEOUT)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, headers=headers) as session,
            session.request(method, url, data=body or None, params=query) as answer,
        ):
            return Answer(url, answer.status, await answer.text(), ROUTED in answer.headers)
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        unreachable(url, why_not(error))


def why_not(error: Exception) -> str:
    """One line of what went wrong with a connection."""
    match error:
        case TimeoutError():
            return f"nothing within {TIMEOUT:g} s"
        case aiohttp.InvalidURL() | aiohttp.NonHttpUrlClientError():
            return "that is no URL, as http://127.0.0.1:9100"
        case aiohttp.ClientConnectorError():
            return error.os_error.strerror or str(error)
        case aiohttp.ClientResponseError():
            return f"what answers speaks no HTTP: {error.message.splitlines()[0]}"
        case _:
            return str(error) or type(error).__name__


def good(answer: Answer, *keys: str) -> Any:
    """What a 200 says, a dictionary with these keys; any other ends the command with the router's own words."""
    if answer.status != 200:
        refused(answer)
    return told_of(answer, *keys)


def refused(answer: Answer) -> NoReturn:
    """End the command with the router's own words of why not."""
    words = None if answer.routed else words_of(answer)
    if words is None:
        stranger(answer)
    complain(f"{answer.url} answers {answer.status}: {words}", INVALID)


def told_of(answer: Answer, *keys: str) -> Any:
    """The answer's dictionary. Ends the command when it has not these keys: that is no router."""
    try:
        told = answer.json()
    except ValueError:
        told = None
    if not isinstance(told, dict) or not told.keys() >= set(keys):
        stranger(answer)
    return told


def stranger(answer: Answer) -> NoReturn:
    """What answers is no admin port."""
    if answer.routed:
        where = "that is the port for clients; --admin is the one of `admin.listen`, 9100 by default"
        complain(f"{answer.url}: {where}", UNREACHABLE)
    unreachable(answer.url, f"what answers is something else, with status {answer.status}")


def unreachable(url: str, why: str) -> NoReturn:
    """End the command: nothing answers, and why."""
    complain(f"{url}: no router answers ({why}). Is it running, and is --admin its admin URL?", UNREACHABLE)


def words_of(answer: Answer) -> str | None:
    """What an admin port says of an error: a message, and none of what errors of OpenAI's API have besides. None of
    anything else."""
    try:
        error = answer.json()["error"]
        return None if "type" in error else str(error["message"])
    except (ValueError, KeyError, TypeError):
        return None


def token_of(file: Path | None) -> str:
    """Without a file none is brought, and the router says what it wants."""
    if file is None:
        return ""
    try:
        token = file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        complain(f"{file}: the token cannot be read: {error}", 2)
    if not token.isprintable():
        complain(f"{file}: that is no token, which is one line", 2)
    return token


def complain(text: str, code: int) -> NoReturn:
    """End the command with a line on stderr."""
    print(f"homing: {text}", file=sys.stderr)  # noqa: T201
    raise SystemExit(code)
