"""The client of a chaos test: requests at a steady rate, half of them streams, and what became of each.

It is open loop: a request is sent when it is due, however the others fare. Nothing is sent again. Each has an id of its
own, which router and replicas pass on, so that what was generated for it can be counted at the replicas.

A failure is told by what the client had in hand: nothing (an error instead of an answer, or none), or a part of the
answer. A part must be seen to be one: the connection breaks off, or the stream says `error`. One that ends as if it
were whole is the worst that a router can do, and is counted apart.
"""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import aiohttp
import msgspec

from loadtests.answer import EventData
from loadtests.fleet import MODEL
from loadtests.workloads import pseudo_text

PREAMBLES = 8
PREAMBLE_BYTES = 4_096  # Eight of the router's blocks: prompts have homes and holders, as real ones have.
QUESTION_BYTES = 200
STREAM_TOKENS = 100  # 0.65 s on the simulated H100: several streams are open whenever something strikes.
WHOLE_TOKENS = 50

_BREAKS = (aiohttp.ClientError, TimeoutError, ConnectionError)


class End(StrEnum):
    """How a request ended for its client."""

    WHOLE = "whole"
    NOTHING = "nothing"  # failed before a byte of an answer
    MIDWAY = "midway"  # failed after that, and it shows
    UNSEEN = "unseen"  # a part that ends as if it were the whole


@dataclass(frozen=True, slots=True)
class Sent:
    """One request. Seconds since the run began; `replica` is who answered, None when nobody did."""

    id: str
    streams: bool
    sent_s: float
    end_s: float
    end: End
    status: int
    replica: str | None


@dataclass(frozen=True, slots=True)
class Pace:
    """`rate` requests/s for `seconds`; a client gives up after `timeout_s`."""

    rate: float
    seconds: float
    timeout_s: float
    seed: int = 0

    @property
    def requests(self) -> int:
        return round(self.rate * self.seconds)


class _Usage(msgspec.Struct):
    completion_tokens: int


class _Whole(msgspec.Struct):
    usage: _Usage


async def run(url: str, pace: Pace) -> list[Sent]:
    """All of the requests, when the last one has ended, in order of sending."""
    loop = asyncio.get_running_loop()
    timeout = aiohttp.ClientTimeout(total=pace.timeout_s)
    bodies = _bodies(pace)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as http:
        client = _Client(http, f"{url}/v1/chat/completions", loop.time())
        async with asyncio.TaskGroup() as tasks:
            sending = []
            for number, body in enumerate(bodies):
                await asyncio.sleep(client.began + number / pace.rate - loop.time())
                sending.append(tasks.create_task(client.send(f"chaos-{number}", number % 2 == 0, body)))
    return [each.result() for each in sending]


def _bodies(pace: Pace) -> Sequence[bytes]:
    rng = random.Random(pace.seed)
    preambles = [pseudo_text(rng, PREAMBLE_BYTES) for _ in range(PREAMBLES)]
    return [
        _body(rng.choice(preambles), pseudo_text(rng, QUESTION_BYTES), number % 2 == 0)
        for number in range(pace.requests)
    ]


def _body(preamble: str, question: str, streams: bool) -> bytes:
    messages = [{"role": "system", "content": preamble}, {"role": "user", "content": question}]
    tokens = STREAM_TOKENS if streams else WHOLE_TOKENS
    return msgspec.json.encode(
        {"model": MODEL, "messages": messages, "max_tokens": tokens, "ignore_eos": True, "stream": streams}
    )


class _Answer:
    """One answer as far as it has come."""

    def __init__(self) -> None:
        self.status = 0
        self.replica: str | None = None
        self.data = b""
        self.broke = False

    def end(self, streams: bool) -> End:
        if self.status != 200:
            return End.NOTHING
        whole = _is_whole_stream(self.data) if streams else _is_whole(self.data)
        if whole and not self.broke:
            return End.WHOLE
        seen = self.broke or b'"error"' in self.data.rpartition(b"data:")[2]
        return End.MIDWAY if seen else End.UNSEEN


class _Client:
    def __init__(self, http: aiohttp.ClientSession, url: str, began: float) -> None:
        self._http, self._url, self.began = http, url, began

    async def send(self, id: str, streams: bool, body: bytes) -> Sent:
        loop, answer = asyncio.get_running_loop(), _Answer()
        sent_s = loop.time() - self.began
        headers = {"content-type": "application/json", "x-request-id": id}
        try:
            async with self._http.post(self._url, data=body, headers=headers) as response:
                answer.status, answer.replica = response.status, response.headers.get("x-homing-replica")
                async for data in response.content.iter_any():
                    answer.data += data
        except _BREAKS:
            answer.broke = True
        end_s = loop.time() - self.began
        return Sent(id, streams, sent_s, end_s, answer.end(streams), answer.status, answer.replica)


def _is_whole(data: bytes) -> bool:
    try:
        return msgspec.json.decode(data, type=_Whole).usage.completion_tokens == WHOLE_TOKENS
    except msgspec.DecodeError:
        return False


def _is_whole_stream(data: bytes) -> bool:
    payloads = EventData().feed(data)
    return payloads.count(b"[DONE]") == 1 and sum(b'"content"' in payload for payload in payloads) >= STREAM_TOKENS
