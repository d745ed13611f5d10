"""Seeded workloads: who asks what, and when.

Pure: no socket, no clock, no global randomness. The same seed gives the same workload, byte for byte, on every machine,
so two arms of a comparison can prove by `Workload.sha256` that they were given the same work.
An answer is not part of a workload: whoever runs a session appends the answer that it really got.
Token counts here are nominal (4 bytes a token); what an engine counts is in its `usage`.
"""

import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Literal

BYTES_PER_TOKEN = 4.0  # English text in today's vocabularies of 100k to 200k entries; also the router's first guess.

Role = Literal["system", "user", "assistant"]

_ONSETS = ("b", "br", "d", "dr", "f", "g", "k", "l", "m", "n", "p", "pl", "r", "s", "st", "t", "tr", "v", "z")
_SYLLABLES = tuple(onset + vowel for onset in _ONSETS for vowel in "aeiou")
_WORDS = tuple(first + second for first in _SYLLABLES for second in _SYLLABLES)
_SHORTEST_WORD = 4  # Two syllables of two letters.


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message. Its text is the concatenation of `parts`, so that long texts are shared and not copied."""

    role: Role
    parts: tuple[str, ...]

    @property
    def text(self) -> str:
        return "".join(self.parts)


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of a session: sent `think_s` seconds after the previous answer (the first: after the start)."""

    question: Message
    max_tokens: int
    think_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Session:
    """Turns sent one after another, closed loop, the first `start_s` seconds after the run began.

    With `remembers`, a turn carries `opening`, every earlier question and every earlier answer. Without, it carries
    `opening` and its own question only: a trace's requests bring their whole prompt themselves.
    """

    id: str
    start_s: float
    opening: tuple[Message, ...]
    turns: tuple[Turn, ...]
    remembers: bool = True


@dataclass(frozen=True, slots=True)
class Workload:
    """Sessions and how they are to be replayed; equal seeds give equal workloads, which `sha256` shows."""

    sessions: tuple[Session, ...]

    @property
    def requests(self) -> int:
        return sum(len(session.turns) for session in self.sessions)

    def at_speed(self, speed: float) -> "Workload":
        """The same work in `1/speed` of the time: starts and think times shrink, texts and lengths stay."""
        return Workload(tuple(_hurried(session, speed) for session in self.sessions))

    def sha256(self) -> str:
        """Hex digest over every field. Each text is preceded by its length, so no two workloads share an encoding."""
        digest = hashlib.sha256()
        for field in self._fields():
            data = field.encode()
            digest.update(b"%d:" % len(data))
            digest.update(data)
        return digest.hexdigest()

    def _fields(self) -> Iterator[str]:
        for session in self.sessions:
            yield f"{session.id} {session.start_s!r} {session.remembers} {len(session.opening)} {len(session.turns)}"
            for message in session.opening:
                yield message.role
                yield message.text
            for turn in session.turns:
                yield f"{turn.max_tokens} {turn.think_s!r} {turn.question.role}"
                yield turn.question.text


@dataclass(frozen=True, slots=True)
class ChatShape:
    """The demo's workload: chats that begin with one of a few long preambles.

    The defaults hold 24 * 6,000 + 40 * 1,500 = 204,000 tokens: a fleet of 4 * 6,000 engine blocks of 16 tokens
    (384,000 tokens) holds that once, no replica (96,000) holds it all. A session grows by at most
    `turns * (question_tokens[1] + answer_tokens[1])` = 1,440 tokens besides the chat template's own few.
    """

    preambles: int = 24
    preamble_tokens: int = 6_000
    sessions: int = 40
    turns: int = 8
    question_tokens: tuple[int, int] = (40, 100)
    answer_tokens: tuple[int, int] = (40, 80)
    think_s: tuple[float, float] = (2.0, 4.0)
    stagger_s: float = 8.0
    bytes_per_token: float = BYTES_PER_TOKEN


def chat_workload(seed: int, shape: ChatShape | None = None) -> Workload:
    """Chat sessions over shared preambles; which session has which preamble is skewed (see `_choices`)."""
    shape = shape or ChatShape()
    rng = random.Random(seed)
    size = round(shape.preamble_tokens * shape.bytes_per_token)
    preambles = [Message("system", (pseudo_text(rng, size),)) for _ in range(shape.preambles)]
    chosen = _choices(rng, shape.preambles, shape.sessions)
    pace = shape.stagger_s / shape.sessions
    return Workload(
        tuple(
            Session(f"chat-{number}", number * pace, (preambles[preamble],), _chat_turns(rng, shape))
            for number, preamble in enumerate(chosen)
        )
    )


def pseudo_text(rng: random.Random, size: int) -> str:
    """Exactly `size` ASCII bytes of pronounceable words, drawn from about 9,000."""
    words = rng.choices(_WORDS, k=size // (_SHORTEST_WORD + 1) + 1)
    return " ".join(words)[:size].ljust(size)


def _choices(rng: random.Random, preambles: int, sessions: int) -> list[int]:
    """The preamble of each session: every preamble once while sessions last, the others by Zipf's law (1/rank).

    Without the first rule a seed would decide how many preambles are used at all, and with it the working set.
    """
    once = list(range(min(preambles, sessions)))
    weights = list(accumulate(1.0 / rank for rank in range(1, preambles + 1)))
    chosen = once + rng.choices(range(preambles), cum_weights=weights, k=sessions - len(once))
    rng.shuffle(chosen)
    return chosen


def _chat_turns(rng: random.Random, shape: ChatShape) -> tuple[Turn, ...]:
    return tuple(
        Turn(
            question=Message("user", (pseudo_text(rng, _bytes(rng, shape)),)),
            max_tokens=rng.randint(*shape.answer_tokens),
            think_s=rng.uniform(*shape.think_s) if number else 0.0,
        )
        for number in range(shape.turns)
    )


def _bytes(rng: random.Random, shape: ChatShape) -> int:
    return round(rng.randint(*shape.question_tokens) * shape.bytes_per_token)


def _hurried(session: Session, speed: float) -> Session:
    turns = tuple(replace(turn, think_s=turn.think_s / speed) for turn in session.turns)
    return replace(session, start_s=session.start_s / speed, turns=turns)
