"""The load client: runs a workload against one base URL with streaming chat completions and notes what it saw.

It is honest in three ways. A request has a due time before it is sent, and the difference is kept, so a client that
falls behind shows it. The first token is the first event that carries text; the chunk that only names the role does
not count (vLLM sends it together with the first token, other engines at once). Nothing is retried: a failure is a
record with its cause, and its session goes on with the next turn as if the question had not been asked, so that a
failing arm gets as much work as the other.

It never reads a prompt, never chooses a replica and knows nothing of routers but one response header.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import aiohttp
import msgspec

from loadtests.answer import Answer, request_body
from loadtests.records import Record
from loadtests.workloads import Message, Session, Turn, Workload

REPLICA_HEADER = "x-homing-replica"

# The first match names the failure; each class stands before those it derives from.
_CAUSES: tuple[tuple[type[Exception], str], ...] = (
    (TimeoutError, "timeout"),
    (aiohttp.ClientConnectorError, "connect"),
    (aiohttp.ClientPayloadError, "cut_short"),
    (aiohttp.ServerDisconnectedError, "reset"),
    (aiohttp.ClientOSError, "reset"),
    (aiohttp.ClientError, "protocol"),
    (msgspec.DecodeError, "bad_event"),
)
_FAILURES = tuple(kind for kind, _ in _CAUSES)


@dataclass(frozen=True, slots=True)
class Target:
    """Where requests go. A request that takes longer than `timeout_s` counts as failed."""

    url: str
    model: str
    timeout_s: float = 120.0


async def run(
    workload: Workload, target: Target, *, seconds: float | None = None, on_record: Callable[[Record], None]
) -> list[Record]:
    """Runs the whole workload and returns its records in order of sending.

    seconds: after this long no request is started any more; those in flight run to their end.
    on_record: called as each request ends, for progress; it must not block.
    """
    timeout = aiohttp.ClientTimeout(total=target.timeout_s)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as http:
        runner = _Runner(http, target, seconds, on_record)
        async with asyncio.TaskGroup() as tasks:
            for session in workload.sessions:
                tasks.create_task(runner.session(session))
    return sorted(runner.records, key=lambda record: record.sent_s)


class _Runner:
    """One run: its clock starts when it is made."""

    def __init__(
        self, http: aiohttp.ClientSession, target: Target, seconds: float | None, on_record: Callable[[Record], None]
    ) -> None:
        self._http = http
        self._target = target
        self._seconds = seconds
        self._on_record = on_record
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self.records: list[Record] = []

    async def session(self, session: Session) -> None:
        history = session.opening
        due_s = session.start_s
        for number, turn in enumerate(session.turns):
            due_s += turn.think_s
            if self._seconds is not None and due_s >= self._seconds:
                return
            await asyncio.sleep(due_s - self._now())
            record = await self._request(session.id, number, (*history, turn.question), turn, due_s)
            self.records.append(record)
            self._on_record(record)
            due_s = record.end_s
            if session.remembers and record.error is None:
                history = (*record.messages, Message("assistant", (record.answer,)))

    async def _request(
        self, session: str, number: int, messages: tuple[Message, ...], turn: Turn, due_s: float
    ) -> Record:
        body = request_body(self._target.model, messages, turn.max_tokens)
        answer = Answer()
        sent_s = self._now()
        replica, error = await self._exchange(body, answer)
        return Record(
            session=session,
            turn=number,
            messages=messages,
            answer=answer.text,
            scheduled_s=due_s,
            sent_s=sent_s,
            first_token_s=answer.first_token_s,
            end_s=self._now(),
            prompt_tokens=answer.prompt_tokens,
            completion_tokens=answer.completion_tokens,
            cached_tokens=answer.cached_tokens,
            replica=replica,
            error=error,
            gaps_s=tuple(answer.gaps_s),
        )

    async def _exchange(self, body: bytes, answer: Answer) -> tuple[str | None, str | None]:
        """Sends one request and feeds its answer; returns the serving replica and the cause of failure."""
        replica = None
        headers = {"content-type": "application/json"}
        try:
            async with self._http.post(
                f"{self._target.url}/v1/chat/completions", data=body, headers=headers
            ) as response:
                replica = response.headers.get(REPLICA_HEADER)
                if response.status != 200:
                    return replica, f"status_{response.status}"
                async for data in response.content.iter_any():
                    answer.feed(data, self._now())
        except _FAILURES as error:
            return replica, next(label for kind, label in _CAUSES if isinstance(error, kind))
        return replica, answer.error

    def _now(self) -> float:
        return self._loop.time() - self._began
