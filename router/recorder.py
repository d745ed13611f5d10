"""`homing record`: a running router's traffic into a file, as a trace to simulate with.

The router tells its requests for as long as this command listens (admin/recording.py); the file and its bounds are
this command's. Only whole lines are written, a batch at a time, so that whatever ends it leaves a good file.
"""

import asyncio
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import aiohttp
import msgspec
import typer

from router import asking
from router.asking import (
    INVALID,
    ROUTED,
    URL,
    Admin,
    Answer,
    TokenFile,
    ask,
    complain,
    good,
    refused,
    stranger,
    token_of,
    unreachable,
    why_not,
)
from router.tape import Tape
from router.values import Wrong, duration, size

T = TypeVar("T")

SILENCE = 10.0
"""Seconds without a sign of the router, which gives one every second, after which it is taken for gone."""

LEFT_OUT = {
    "earlier": "that had arrived before",
    "not_answered": "that no replica answered well",
    "no_prompt": "without a prompt",
}
"""Why requests are not in it, as the router names it and in words. Never written to."""

PROGRESS = 0.5
"""Seconds between two looks at how far it is."""


def record(
    to: Annotated[Path, typer.Option(help="The file to write.", metavar="FILE")],
    lasting: Annotated[
        str | None, typer.Option("--for", help="How long, as 30s, 10m, 2h; without: until Ctrl-C.", metavar="DURATION")
    ] = None,
    requests: Annotated[int | None, typer.Option(min=1, help="How many at most.")] = None,
    max_bytes: Annotated[str, typer.Option(help="How large the file may grow.", metavar="SIZE")] = "1GiB",
    overwrite: Annotated[bool, typer.Option(help="Replace a file that is there.")] = False,
    admin: Admin = URL,
    token_file: TokenFile = None,
) -> None:
    """Write a running router's traffic to a file, as a trace in Mooncake's format: arrivals, lengths, and which
    prompts begin alike. No text, no answer, nothing that a text could be guessed from.

    Requests that a replica has begun to answer well are in it, once they have ended; how many are not, and why, is said
    in the end. What the clients see does not change. One recording at a time; Ctrl-C ends it, and the file is good.

    Exit code 0: recorded, 1: refused, cannot be written, or the router has ended it, 4: no router answers.

    \b
    Examples:
      homing record --to trace.jsonl --for 10m --token-file /run/secrets/homing
      homing simulate -c router.yaml --trace trace.jsonl --replicas 8 --sweep spill.max_backlog_seconds=1,5,18
    """
    seconds = None if lasting is None else _parsed("--for", duration, lasting)
    most = _parsed("--max-bytes", size, max_bytes)
    if to.exists() and not overwrite:
        complain(f"{to}: is there already; --overwrite replaces it", INVALID)
    asyncio.run(_record(admin, token_of(token_file), seconds, lambda: Tape(to, overwrite, most, requests), to))


def _parsed(flag: str, parse: Callable[[str], T], value: str) -> T:
    try:
        return parse(value)
    except Wrong as error:
        raise typer.BadParameter(str(error), param_hint=flag) from None


async def _record(admin: str, token: str, seconds: float | None, make: Callable[[], Tape], to: Path) -> None:
    url = admin.rstrip("/") + "/record"
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=asking.TIMEOUT, sock_read=SILENCE)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, headers=headers) as session,
            session.post(url) as answer,
        ):
            routed = ROUTED in answer.headers
            if answer.status != 200:
                refused(Answer(url, answer.status, await answer.text(), routed))
            if answer.content_type != "application/jsonl":
                stranger(Answer(url, answer.status, "", routed))
            listening = _Listening(answer, make(), seconds, to)
            wrong = await listening.listen()
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        unreachable(url, why_not(error))
    except OSError as error:
        complain(f"{to}: cannot be written: {error.strerror}", INVALID)
    await _tell(listening, admin, to, wrong)


class _Listening:
    """One answer into one file, until an end is reached."""

    def __init__(self, answer: aiohttp.ClientResponse, tape: Tape, seconds: float | None, to: Path) -> None:
        self._answer, self._seconds, self._to = answer, seconds, to
        self._loop = asyncio.get_running_loop()
        self._began = time.monotonic()
        self._ended = False
        self.tape = tape

    async def listen(self) -> str | None:
        """What has ended it, where that was neither a bound nor Ctrl-C."""
        handles = [self._loop.call_later(self._seconds, self._end)] if self._seconds is not None else []
        for number in (signal.SIGINT, signal.SIGTERM):
            self._loop.add_signal_handler(number, self._end)
        progress = self._loop.create_task(self._show())
        try:
            return await self._read()
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                self._loop.remove_signal_handler(number)  # Whoever presses it again means it.
            for handle in handles:
                handle.cancel()
            progress.cancel()
            self.tape.close()

    async def _read(self) -> str | None:
        try:
            async for data in self._answer.content.iter_any():
                self.tape.take(data)
                if self.tape.full:
                    return None
        except (aiohttp.ClientError, TimeoutError) as error:
            return None if self._ended else f"the router is gone: {why_not(error)}"
        except OSError as error:
            return f"{self._to}: {error.strerror}"
        except msgspec.DecodeError as error:
            return f"the router's answer is no trace: {error}"
        return None if self._ended else "the router has ended it"

    def _end(self) -> None:
        self._ended = True
        self._answer.close()

    @property
    def seconds(self) -> float:
        """How long it has lasted."""
        return time.monotonic() - self._began

    async def _show(self) -> None:
        """How far it is, on a terminal."""
        while sys.stderr.isatty():
            left = "" if self._seconds is None else f", {max(0.0, self._seconds - self.seconds):.0f} s left"
            print(f"\r{self.tape.amount}{left}   ", end="", file=sys.stderr, flush=True)  # noqa: T201
            await asyncio.sleep(PROGRESS)


async def _tell(listening: _Listening, admin: str, to: Path, wrong: str | None) -> None:
    """Say what there is, and what is not; the file is good whatever has ended it."""
    tape = listening.tape
    if sys.stderr.isatty():
        print(file=sys.stderr)  # noqa: T201
    print(f"{to}: {tape.amount}, in {listening.seconds:.0f} s")  # noqa: T201
    for line in tape.figures if tape.requests else []:
        print(f"  {line}")  # noqa: T201
    if wrong is not None:
        complain(f"ended early: {wrong}", INVALID)
    told = good(await ask("GET", admin, "/recording"), "left_out", "dropped", "forgotten_blocks")
    print("  " + _left_out(told))  # noqa: T201
    if told["dropped"]:
        print(f"  {told['dropped']:,} more were dropped: this end was too slow")  # noqa: T201
    if tape.requests:
        print(f"replay it: homing simulate -c router.yaml --trace {to} --replicas N --profile P")  # noqa: T201


def _left_out(told: dict[str, Any]) -> str:
    counts = ", ".join(f"{told['left_out'].get(reason, 0):,} {text}" for reason, text in LEFT_OUT.items())
    return f"left out: {counts}"
