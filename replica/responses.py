"""The Responses API of a simulated replica: create, get, cancel, and the store between them.

Responses are stored when they are final, before the client sees the end, unless the request says `store: false`. The
store is bounded and forgets the oldest; with room for none it is a vLLM without `VLLM_ENABLE_RESPONSES_API_STORE`: it
never stores, and refuses `background`. A response in the background is stored at once, as `queued`, and goes on when
its client leaves; `background` with `stream` is served as a stream only, so there it ends with its client. A stored
response is told whole: `stream` of a GET is not looked at.

Ids are random, as vLLM's are: two replicas of a fleet never use the same one.
"""

import asyncio
import uuid
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

from aiohttp import web

from replica import tokens
from replica.conversations import Message, chat_of_responses, messages_of
from replica.errors import BadRequestError
from replica.openai_requests import Generation, parse_body, parse_chat
from replica.responses_answers import Response, ResponsesShape
from replica.serving import Serving, json_response, now

_INVALID = "invalid_request_error"


@dataclass(slots=True)
class _Stored:
    """`messages` is the conversation before the answer, as chat messages; `said` the answer, empty until it is there.

    `task` is what still works on it in the background.
    """

    response: Response
    messages: list[Message]
    said: str = ""
    task: asyncio.Task[None] | None = None

    def conversation(self) -> list[Message]:
        answer: list[Message] = [{"role": "assistant", "content": self.said}] if self.said else []
        return [*self.messages, *answer]


class ResponsesApi:
    """`room` is how many responses are kept. `close` ends what runs in the background."""

    def __init__(self, serving: Serving, room: int) -> None:
        self._serving = serving
        self._room = room
        self._stored: OrderedDict[str, _Stored] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()

    def routes(self) -> list[web.RouteDef]:
        return [
            self._serving.post_faulty("/v1/responses", self._create),
            self._serving.get("/v1/responses/{id}", self._retrieve),
            self._serving.post("/v1/responses/{id}/cancel", self._cancel),
        ]

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _create(self, request: web.Request) -> web.StreamResponse:
        body = parse_body(await request.read())
        chat = chat_of_responses(body, self._history(body))
        generation = parse_chat(chat, self._serving.model)
        in_background = body.get("background") is True and not generation.stream
        keeps = body.get("store") is not False and self._room > 0
        if in_background and not keeps:
            raise BadRequestError("background needs stored responses", "background", kind=_INVALID)
        stored = _Stored({}, messages_of(chat))
        chosen = body.get("request_id")
        response_id = chosen if isinstance(chosen, str) else f"resp_{uuid.uuid4().hex}"

        def keep(response: Response, said: str) -> None:
            stored.response, stored.said = response, said
            if keeps:
                self._keep(response_id, stored)

        shape = ResponsesShape(response_id, now(), generation.model, body, self._max_tokens(generation), keep)
        if not in_background:
            return await self._serving.answer(request, generation, shape)
        keep(shape.response("queued"), "")
        stored.task = self._start(generation, shape)
        return json_response(stored.response)

    def _history(self, body: Mapping[str, object]) -> list[Message]:
        previous = body.get("previous_response_id")
        return [] if previous is None else self._find(previous).conversation()

    def _max_tokens(self, generation: Generation) -> int:
        (prompt,) = generation.prompts
        left = self._serving.model.max_model_len - tokens.count(prompt)
        return left if generation.sampling.max_tokens is None else generation.sampling.max_tokens

    def _keep(self, response_id: str, stored: _Stored) -> None:
        self._stored[response_id] = stored
        self._stored.move_to_end(response_id)
        while len(self._stored) > self._room:
            self._stored.popitem(last=False)

    def _find(self, response_id: object) -> _Stored:
        stored = self._stored.get(response_id) if isinstance(response_id, str) else None
        if stored is None:
            raise BadRequestError(f"Response with id '{response_id}' not found.", "response_id", 404, _INVALID)
        return stored

    def _start(self, generation: Generation, shape: ResponsesShape) -> asyncio.Task[None]:
        async def run() -> None:
            shape.whole(*await self._serving.run(generation))

        task = asyncio.get_running_loop().create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _retrieve(self, request: web.Request) -> web.StreamResponse:
        return json_response(self._find(request.match_info["id"]).response)

    async def _cancel(self, request: web.Request) -> web.StreamResponse:
        stored = self._find(request.match_info["id"])
        if stored.task is None or stored.task.done():
            raise BadRequestError("Cannot cancel a synchronous response.", "response_id", kind=_INVALID)
        stored.task.cancel()
        stored.response = {**stored.response, "status": "cancelled"}
        return json_response(stored.response)
