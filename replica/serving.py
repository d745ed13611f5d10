"""What every endpoint of a simulated replica shares: refusals, faults, and the way from a Generation to its answer.

A handler parses and hands a Generation over; here its works are submitted as one job, what the driver publishes is
written, and the job is withdrawn on every way out. When the client leaves, aiohttp cancels the handler, so the way out
is the same and the engine frees everything at once. No request may make a handler raise anything but BadRequestError.

It knows no endpoint and no shape; `handlers`, `responses`, `pooling` and `control` are built on it.
"""

import asyncio
import dataclasses
import time
from collections.abc import Awaitable, Callable, Sequence
from itertools import count, repeat
from typing import Literal

from aiohttp import web

from replica import answers
from replica.answers import Choice, Shape, Usage
from replica.driver import Driver, Job
from replica.errors import BadRequestError, ErrorShape, error_body
from replica.faults import Fault, reset
from replica.generations import GenerationLog
from replica.openai_requests import Answer, Generation, Model, pieces, plan

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Serving:
    """One replica's way to serve. `fault` is read anew at each place where one can strike.

    `model` is replaced as a whole when adapters come and go. `details` is vLLM's `--enable-prompt-tokens-details`.
    """

    def __init__(
        self,
        driver: Driver,
        model: Model,
        fault: Callable[[], Fault],
        details: bool,
        generations: GenerationLog | None = None,
    ) -> None:
        self._generations = generations
        self.driver = driver
        self.model = model
        self.started = time.time()
        self._fault = fault
        self._details = details
        self._ids = count(1)

    def adapt(self, adapters: Sequence[str]) -> None:
        """Serve these adapters from now on."""
        self.model = dataclasses.replace(self.model, adapters=tuple(adapters))

    def new_id(self) -> str:
        return f"{next(self._ids):016x}"

    def name(self, request: web.Request) -> str:
        """What the answer's id is made of: the client's own request id, else a number."""
        return _request_id(request) or self.new_id()

    # Ways through every handler.

    def post(self, path: str, handler: Handler, refusal: ErrorShape = error_body) -> web.RouteDef:
        """A route whose BadRequestErrors become answers in the shape `refusal`."""
        return web.post(path, _guarded(handler, refusal))

    def get(self, path: str, handler: Handler) -> web.RouteDef:
        return web.get(path, _guarded(handler, error_body), allow_head=False)

    def post_faulty(self, path: str, handler: Handler, refusal: ErrorShape = error_body) -> web.RouteDef:
        """The same for what generates: the faults that strike before any work come first. Each has read the request
        whole, as a real engine would have."""

        async def faulty(request: web.Request) -> web.StreamResponse:
            await request.read()
            match self._fault():
                case Fault.RESET:
                    self._note("begin", request)  # Whether a real engine had begun, nobody could know.
                    return await _reset_connection(request)
                case Fault.HANG:
                    self._note("begin", request)
                    return await _hang()
                case Fault.FULL:
                    full = refusal("The engine is full, try again later.", 503, None, None)
                    return json_response(full, 503, {"Retry-After": "1"})
                case Fault.FAST_500:
                    return json_response(refusal("Internal server error", 500, None, None), 500)
                case _:
                    return await handler(request)

        return self.post(path, faulty, refusal)

    def _note(self, event: Literal["begin", "end"], request: web.Request) -> None:
        if self._generations is not None:
            self._generations.note(event, _request_id(request))

    # From a Generation to its answer.

    async def answer(self, request: web.Request, generation: Generation, shape: Shape) -> web.StreamResponse:
        self._note("begin", request)
        if not generation.stream:
            body = shape.whole(*await self.run(generation))
            self._note("end", request)
            return await self.send(request, body)
        job, planned = self._submit(generation)
        try:
            return await self._stream(request, generation, shape, job, planned)
        finally:
            self.driver.withdraw(job)

    async def run(self, generation: Generation) -> tuple[list[Choice], Usage]:
        """Generate to the end. Cancelling it aborts the work."""
        job, planned = self._submit(generation)
        try:
            await job.end()
        finally:
            self.driver.withdraw(job)
        return _choices(planned), self._usage(generation, job)

    async def send(self, request: web.Request, body: bytes) -> web.StreamResponse:
        """A whole body, unless a fault cuts it."""
        if self._fault() is not Fault.RESET_MIDWAY:
            return web.Response(body=body, content_type="application/json", headers=_echo(request))
        response = web.StreamResponse(headers={"Content-Type": "application/json"} | _echo(request))
        response.content_length = len(body)
        await response.prepare(request)
        await response.write(body[: len(body) // 2])
        return await _reset_connection(request)

    def _submit(self, generation: Generation) -> tuple[Job, list[Answer]]:
        planned = plan(generation, self.model, self.new_id)
        job = self.driver.submit([(work, answer.reason) for work, answer in planned])
        return job, [answer for _, answer in planned]

    async def _stream(
        self, request: web.Request, generation: Generation, shape: Shape, job: Job, planned: list[Answer]
    ) -> web.StreamResponse:
        """Head and prologue go out at once, each tick's tokens together; the reader's pace is the socket's."""
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"} | _echo(request))
        await response.prepare(request)
        await response.write(shape.prologue())
        sent = [0] * len(planned)
        finished = False
        while not finished:
            await job.changed()
            finished = job.finished
            cut = self._fault() is Fault.RESET_MIDWAY
            ready = [part.produced for part in job.parts]
            if cut:
                ready = list(map(_at_most_half, ready, planned, sent))
            events = b"".join(map(self._events, repeat(shape), count(), planned, sent, ready))
            if cut and (finished or any(part.produced > stop for part, stop in zip(job.parts, ready, strict=True))):
                await response.write(events)
                return await _reset_connection(request)
            sent = ready
            if finished:
                self._note("end", request)
                events += shape.epilogue(_choices(planned), self._usage(generation, job))
            await response.write(events)
        return response

    def _events(self, shape: Shape, index: int, answer: Answer, start: int, stop: int) -> bytes:
        """The events of one choice's tokens `start` to `stop`, with its opening before the first."""
        events = [shape.opening(index)] if start == 0 < stop else []
        for position, text in enumerate(pieces(answer, self.model, start, stop), start + 1):
            events.append(shape.delta(index, text, answer.reason if position == answer.tokens else None))
        return b"".join(events)

    def _usage(self, generation: Generation, job: Job) -> Usage:
        """As vLLM counts with several choices: the prompt once, the answers all, cached tokens of the first choice."""
        first = job.parts[:: generation.sampling.n]
        return Usage(
            prompt_tokens=generation.prompt_tokens,
            completion_tokens=sum(part.produced for part in job.parts),
            cached_tokens=sum(part.cached_tokens for part in first),
            details=self._details,
        )


def _guarded(handler: Handler, refusal: ErrorShape) -> Handler:
    async def guarded(request: web.Request) -> web.StreamResponse:
        try:
            return await handler(request)
        except BadRequestError as error:
            return json_response(refusal(str(error), error.status, error.param, error.kind), error.status)

    return guarded


def _choices(planned: Sequence[Answer]) -> list[Choice]:
    return [Choice(index, answer.text, answer.reason) for index, answer in enumerate(planned)]


def _at_most_half(produced: int, answer: Answer, sent: int) -> int:
    """How far an answer goes before `reset-midway` cuts it; what was sent before the fault stays sent."""
    return max(sent, min(produced, -(-answer.tokens // 2)))


def now() -> int:
    return int(time.time())


def json_response(value: object, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(body=answers.encode(value), status=status, content_type="application/json", headers=headers)


def _request_id(request: web.Request) -> str | None:
    """The client's id, if it can be written back: a head may carry bytes that are no text."""
    value = request.headers.get("X-Request-Id", "")
    return value if value.isascii() and value.isprintable() and value else None


def _echo(request: web.Request) -> dict[str, str]:
    value = _request_id(request)
    return {} if value is None else {"X-Request-Id": value}


async def _reset_connection(request: web.Request) -> web.StreamResponse:
    if request.transport is not None:
        reset(request.transport)
    return await _hang()


async def _hang() -> web.StreamResponse:
    """Never answers. Ends by cancellation, when the connection is gone or the replica stops."""
    await asyncio.get_running_loop().create_future()
    raise AssertionError("a future that nobody resolves was resolved")
