"""The endpoints of a simulated replica that generate text from a chat or a prompt, and the small ones around them.

Each handler is a line from body to Generation and a Shape; the work between is `serving`'s.
"""

from aiohttp import web

from replica import anthropic_answers, openai_answers, prometheus, tokens
from replica.anthropic_answers import MessagesShape
from replica.conversations import chat_of_messages
from replica.errors import BadRequestError, anthropic_error_body
from replica.openai_answers import ChatShape, CompletionShape
from replica.openai_requests import (
    Generation,
    check_model,
    parse_body,
    parse_chat,
    parse_completion,
    parse_prompts,
)
from replica.prometheus import MetricNames
from replica.serving import Serving, json_response, now
from replica.template import render_chat

VERSION = "0.32.0+simulated"


class TextApi:
    """Chat, completions, Messages. A refusal of the Messages API is in its own shape; vLLM's has the OpenAI shape
    where its request validation strikes before the handler."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    def routes(self) -> list[web.RouteDef]:
        serving = self._serving
        return [
            serving.post_faulty("/v1/chat/completions", self._chat),
            serving.post_faulty("/v1/completions", self._complete),
            serving.post_faulty("/v1/messages", self._messages, anthropic_error_body),
            serving.post("/v1/messages/count_tokens", self._count_tokens, anthropic_error_body),
            serving.post("/tokenize", self._tokenize),
            serving.post("/detokenize", self._detokenize),
        ]

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        generation = parse_chat(parse_body(await request.read()), self._serving.model)
        name = self._serving.name(request)
        shape = ChatShape(name, now(), generation.model, generation.include_usage)
        return await self._serving.answer(request, generation, shape)

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        generation = parse_completion(parse_body(await request.read()), self._serving.model)
        name = self._serving.name(request)
        shape = CompletionShape(name, now(), generation.model, generation.include_usage)
        return await self._serving.answer(request, generation, shape)

    async def _messages(self, request: web.Request) -> web.StreamResponse:
        generation = self._parse_messages(parse_body(await request.read()))
        shape = MessagesShape(self._serving.name(request), generation.model, generation.prompt_tokens)
        return await self._serving.answer(request, generation, shape)

    def _parse_messages(self, body: dict[str, object]) -> Generation:
        if body.get("max_tokens") is None:
            raise BadRequestError("max_tokens is required", "max_tokens")
        return parse_chat(chat_of_messages(body), self._serving.model)

    async def _count_tokens(self, request: web.Request) -> web.StreamResponse:
        chat = chat_of_messages(parse_body(await request.read()))
        check_model(chat, self._serving.model)
        counted = tokens.count(render_chat(chat, self._serving.model.tokenizer))
        return web.Response(body=anthropic_answers.count_tokens(counted), content_type="application/json")

    async def _tokenize(self, request: web.Request) -> web.StreamResponse:
        body = parse_body(await request.read())
        model = self._serving.model
        if "messages" in body:
            packed = render_chat(body, model.tokenizer)
        else:
            (packed, *_) = parse_prompts(body, "prompt", model)
        ids = tokens.unpack(packed)
        return json_response(
            {"count": len(ids), "max_model_len": model.max_model_len, "tokens": ids, "token_strs": None}
        )

    async def _detokenize(self, request: web.Request) -> web.StreamResponse:
        (packed, *_) = parse_prompts(parse_body(await request.read()), "tokens", self._serving.model)
        return json_response({"prompt": tokens.decode(packed)})


class StateApi:
    """What an operator and a router look at. None of it takes part in a fault but `refuse`."""

    def __init__(self, serving: Serving, names: MetricNames) -> None:
        self._serving = serving
        self._names = names

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/v1/models", self._models),
            web.get("/health", self._alive),
            web.get("/ping", self._alive),
            web.post("/ping", self._alive),
            web.get("/version", self._version),
            web.get("/metrics", self._metrics),
            web.get("/load", self._load),
        ]

    async def _models(self, _: web.Request) -> web.StreamResponse:
        model = self._serving.model
        body = openai_answers.models((model.name, *model.adapters), int(self._serving.started), model.max_model_len)
        return web.Response(body=body, content_type="application/json")

    async def _alive(self, _: web.Request) -> web.StreamResponse:
        return web.Response()

    async def _version(self, _: web.Request) -> web.StreamResponse:
        return json_response({"version": VERSION})

    async def _metrics(self, _: web.Request) -> web.StreamResponse:
        driver = self._serving.driver
        snapshot = prometheus.Snapshot(self._serving.model.name, self._serving.started, driver.endings, self._names)
        text = prometheus.render(driver.engine, snapshot)
        return web.Response(body=text.encode(), headers={"Content-Type": prometheus.CONTENT_TYPE})

    async def _load(self, _: web.Request) -> web.StreamResponse:
        return json_response({"server_load": self._serving.driver.in_flight})


async def not_found(_: web.Request) -> web.StreamResponse:
    return json_response({"detail": "Not Found"}, 404)
