"""Locust users for any OpenAI-compatible chat endpoint: `locust -f loadtests/locustfile.py --host URL`.

The only file that imports locust, which patches sockets at import: start it as a process, never import it.
Each user plays the chat sessions of `loadtests.workloads` one after another: a preamble shared with other users, then
turns that carry the whole chat so far. Answers are streamed; the time to the first text is fired as an event of its own
(request type `TTFT`). HOMING_MODEL and HOMING_SEED choose the model's name and the workload.
"""

import itertools
import os
import time
from collections.abc import Iterator

import msgspec
from locust import HttpUser, between, task
from locust.clients import ResponseContextManager
from requests.exceptions import RequestException

from loadtests.answer import Answer, request_body
from loadtests.workloads import Message, Session, chat_workload

PATH = "/v1/chat/completions"
MODEL = os.environ.get("HOMING_MODEL", "sim")
SESSIONS: Iterator[Session] = itertools.cycle(chat_workload(int(os.environ.get("HOMING_SEED", "1"))).sessions)


class ChatUser(HttpUser):
    """One user: a chat over a shared preamble that grows turn by turn, then another."""

    wait_time = between(2.0, 4.0)

    def on_start(self) -> None:
        self.begin(next(SESSIONS))

    def begin(self, session: Session) -> None:
        self.turns = iter(session.turns)
        self.history = session.opening

    @task
    def turn(self) -> None:
        turn = next(self.turns, None)
        if turn is None:
            self.begin(next(SESSIONS))
            return
        messages = (*self.history, turn.question)
        body = request_body(MODEL, messages, turn.max_tokens)
        headers = {"content-type": "application/json"}
        began = time.perf_counter()
        with self.client.post(PATH, data=body, headers=headers, stream=True, catch_response=True) as response:
            if response.status_code != 200:
                return  # Locust counts this failure by itself.
            answer = Answer()
            error = read(response, answer, began) or answer.error
            # Locust stopped the clock at the head of the response; the request ends with its stream.
            response.request_meta = {**response.request_meta, "response_time": (time.perf_counter() - began) * 1_000}
            if error is not None:
                response.failure(error)
                return
        self.history = (*messages, Message("assistant", (answer.text,)))
        first_ms = (answer.first_token_s or 0.0) * 1_000
        self.environment.events.request.fire(
            request_type="TTFT", name=PATH, response_time=first_ms, response_length=0, exception=None, context={}
        )


def read(response: ResponseContextManager, answer: Answer, began: float) -> str | None:
    """Feeds the stream to `answer` as it arrives; what broke it, if anything did."""
    try:
        for data in response.iter_content(chunk_size=None):
            answer.feed(data, time.perf_counter() - began)
    except (RequestException, msgspec.DecodeError) as error:
        return str(error)
    return None
