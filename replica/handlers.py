"""The HTTP surface of a simulated replica: vLLM's paths, heads and failures over a Driver.

A handler parses, submits the works of its request as one job, writes what the driver publishes, and withdraws the job
on every way out. When the client leaves, aiohttp cancels the handler, so the way out is the same and the engine frees
everything at once. No request may make a handler raise anything but BadRequestError.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from itertools import count, repeat

from aiohttp import web

from replica import openai_answers, prometheus, tokens
from replica.driver import Driver, Job
from replica.errors import BadRequestError, error_body
from replica.faults import Fault, reset
from replica.openai_answers import ChatShape, Choice, CompletionShape, Shape
from replica.openai_requests import (
    Answer,
    Generation,
    Model,
    parse_body,
    parse_chat,
    parse_completion,
    parse_embedding,
    parse_prompts,
    pieces,
    plan,
)
from replica.template import render_chat

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
VERSION = "0.32.0+simulated"


class Api:
    """Handlers over one driver. `fault` is read anew at each place where one can strike."""

    def __init__(self, driver: Driver, model: Model, fault: Callable[[], Fault]) -> None:
        self._driver = driver
        self._model = model
        self._fault = fault
        self._started = time.time()
        self._ids = count(1)

    def routes(self) -> list[web.RouteDef]:
        generate = {
            "/v1/chat/completions": self._chat,
            "/v1/completions": self._complete,
            "/v1/embeddings": self._embed,
        }
        return [
            *(web.post(path, self._guarded(self._faulty(handler))) for path, handler in generate.items()),
            web.post("/tokenize", self._guarded(self._tokenize)),
            web.post("/detokenize", self._guarded(self._detokenize)),
            web.get("/v1/models", self._models),
            web.get("/health", self._alive),
            web.get("/ping", self._alive),
            web.post("/ping", self._alive),
            web.get("/version", self._version),
            web.get("/metrics", self._metrics),
            web.get("/load", self._load),
            web.post("/reset_prefix_cache", self._reset_prefix_cache),
            web.route("*", "/{path:.*}", self._not_found),
        ]

    # Ways through every handler.

    def _guarded(self, handler: Handler) -> Handler:
        async def guarded(request: web.Request) -> web.StreamResponse:
            try:
                return await handler(request)
            except BadRequestError as error:
                return _json(error_body(str(error), error.status, error.param), error.status)

        return guarded

    def _faulty(self, handler: Handler) -> Handler:
        """The faults that strike before any work; each has read the request whole, as a real engine would have."""

        async def faulty(request: web.Request) -> web.StreamResponse:
            await request.read()
            match self._fault():
                case Fault.RESET:
                    return await _reset_connection(request)
                case Fault.HANG:
                    return await _hang()
                case Fault.FULL:
                    full = error_body("The engine is full, try again later.", 503)
                    return _json(full, 503, {"Retry-After": "1"})
                case Fault.FAST_500:
                    return _json(error_body("Internal server error", 500), 500)
                case _:
                    return await handler(request)

        return faulty

    # What generates.

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        generation = parse_chat(parse_body(await request.read()), self._model)
        return await self._generate(request, generation, ChatShape(self._name(request), _now(), generation.model))

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        generation = parse_completion(parse_body(await request.read()), self._model)
        return await self._generate(request, generation, CompletionShape(self._name(request), _now(), generation.model))

    async def _generate(self, request: web.Request, generation: Generation, shape: Shape) -> web.StreamResponse:
        planned = plan(generation, self._model, self._new_id)
        answers = [answer for _, answer in planned]
        job = self._driver.submit([(work, answer.reason) for work, answer in planned])
        try:
            if generation.stream:
                return await self._stream(request, generation, shape, job, answers)
            await job.end()
            choices = [Choice(index, answer.text, answer.reason) for index, answer in enumerate(answers)]
            return await self._send(request, shape.whole(choices, _usage(generation, job)))
        finally:
            self._driver.withdraw(job)

    async def _stream(
        self, request: web.Request, generation: Generation, shape: Shape, job: Job, answers: list[Answer]
    ) -> web.StreamResponse:
        """The head goes out at once, each tick's tokens together; the reader's pace is the socket's."""
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"} | _echo(request))
        await response.prepare(request)
        sent = [0] * len(answers)
        finished = False
        while not finished:
            await job.changed()
            finished = job.finished
            cut = self._fault() is Fault.RESET_MIDWAY
            ready = [part.produced for part in job.parts]
            if cut:
                ready = list(map(_at_most_half, ready, answers, sent))
            events = b"".join(map(self._events, repeat(shape), count(), answers, sent, ready))
            if cut and (finished or any(part.produced > stop for part, stop in zip(job.parts, ready, strict=True))):
                await response.write(events)
                return await _reset_connection(request)
            sent = ready
            if finished and generation.include_usage:
                events += shape.usage_event(_usage(generation, job))
            await response.write(events + openai_answers.DONE if finished else events)
        return response

    def _events(self, shape: Shape, index: int, answer: Answer, start: int, stop: int) -> bytes:
        """The events of one choice's tokens `start` to `stop`, with its opening before the first."""
        events = [shape.opening(index)] if start == 0 < stop else []
        for position, text in enumerate(pieces(answer, self._model, start, stop), start + 1):
            events.append(shape.delta(index, text, answer.reason if position == answer.tokens else None))
        return b"".join(events)

    async def _embed(self, request: web.Request) -> web.StreamResponse:
        body = parse_body(await request.read())
        generation = parse_embedding(body, self._model)
        planned = plan(generation, self._model, self._new_id)
        job = self._driver.submit([(work, answer.reason) for work, answer in planned])
        try:
            await job.end()
        finally:
            self._driver.withdraw(job)
        vectors = [_vector(tokens.fingerprint(prompt, self._model.seed)) for prompt in generation.prompts]
        packed = body.get("encoding_format") == "base64"
        answer = openai_answers.embeddings(
            self._name(request), _now(), generation.model, vectors, packed, _usage(generation, job)
        )
        return await self._send(request, answer)

    async def _send(self, request: web.Request, body: bytes) -> web.StreamResponse:
        if self._fault() is not Fault.RESET_MIDWAY:
            return web.Response(body=body, content_type="application/json", headers=_echo(request))
        response = web.StreamResponse(headers={"Content-Type": "application/json"} | _echo(request))
        response.content_length = len(body)
        await response.prepare(request)
        await response.write(body[: len(body) // 2])
        return await _reset_connection(request)

    # What does not generate.

    async def _tokenize(self, request: web.Request) -> web.StreamResponse:
        body = parse_body(await request.read())
        if "messages" in body:
            packed = render_chat(body, self._model.tokenizer)
        else:
            (packed, *_) = parse_prompts(body, "prompt", self._model)
        ids = tokens.unpack(packed)
        return _json({"count": len(ids), "max_model_len": self._model.max_model_len, "tokens": ids, "token_strs": None})

    async def _detokenize(self, request: web.Request) -> web.StreamResponse:
        (packed, *_) = parse_prompts(parse_body(await request.read()), "tokens", self._model)
        return _json({"prompt": tokens.decode(packed)})

    async def _models(self, _: web.Request) -> web.StreamResponse:
        names = (self._model.name, *self._model.adapters)
        body = openai_answers.models(names, int(self._started), self._model.max_model_len)
        return web.Response(body=body, content_type="application/json")

    async def _alive(self, _: web.Request) -> web.StreamResponse:
        return web.Response()

    async def _version(self, _: web.Request) -> web.StreamResponse:
        return _json({"version": VERSION})

    async def _metrics(self, _: web.Request) -> web.StreamResponse:
        snapshot = prometheus.Snapshot(self._model.name, self._started, self._driver.endings)
        text = prometheus.render(self._driver.engine, snapshot)
        return web.Response(body=text.encode(), headers={"Content-Type": prometheus.CONTENT_TYPE})

    async def _load(self, _: web.Request) -> web.StreamResponse:
        return _json({"server_load": self._driver.in_flight})

    async def _reset_prefix_cache(self, _: web.Request) -> web.StreamResponse:
        self._driver.engine.cache.forget()
        return web.Response()

    async def _not_found(self, _: web.Request) -> web.StreamResponse:
        return _json({"detail": "Not Found"}, 404)

    def _new_id(self) -> str:
        return f"{next(self._ids):016x}"

    def _name(self, request: web.Request) -> str:
        """What the answer's id is made of: the client's own request id, else a number."""
        return _request_id(request) or self._new_id()


def _request_id(request: web.Request) -> str | None:
    """The client's id, if it can be written back: a head may carry bytes that are no text."""
    value = request.headers.get("X-Request-Id", "")
    return value if value.isascii() and value.isprintable() and value else None


def _echo(request: web.Request) -> dict[str, str]:
    value = _request_id(request)
    return {} if value is None else {"X-Request-Id": value}


def _usage(generation: Generation, job: Job) -> dict[str, object]:
    """As vLLM counts with several choices: the prompt once, the answers all, cached tokens of the first choice."""
    first = job.parts[:: generation.sampling.n]
    completion = sum(part.produced for part in job.parts)
    return openai_answers.usage(generation.prompt_tokens, completion, sum(part.cached_tokens for part in first))


def _at_most_half(produced: int, answer: Answer, sent: int) -> int:
    """How far an answer goes before `reset-midway` cuts it; what was sent before the fault stays sent."""
    return max(sent, min(produced, -(-answer.tokens // 2)))


def _vector(seed: int) -> list[float]:
    rng = random.Random(seed)
    return [round(rng.uniform(-1, 1), 6) for _ in range(openai_answers.EMBEDDING_SIZE)]


def _json(value: object, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(
        body=openai_answers.encode(value), status=status, content_type="application/json", headers=headers
    )


def _now() -> int:
    return int(time.time())


async def _reset_connection(request: web.Request) -> web.StreamResponse:
    if request.transport is not None:
        reset(request.transport)
    return await _hang()


async def _hang() -> web.StreamResponse:
    """Never answers. Ends by cancellation, when the connection is gone or the replica stops."""
    await asyncio.get_running_loop().create_future()
    raise AssertionError("a future that nobody resolves was resolved")
