"""Plays: workloads without texts, for the simulator. Who asks what and when, prompts as names of engine blocks. Pure.

A text is a number and a length in tokens; a prompt is a run of texts. Equal leading texts give equal leading names, as
an engine's chained hashes do, and nothing else does. A turn also has the names of its answer as far as the next turn
shows what was answered: the simulated engine caches those blocks, and the router is never told them.

Sizes in bytes are `BYTES_PER_TOKEN` a token, so that a router's block of 512 bytes is two of the engine's.
"""

import hashlib
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from xxhash import xxh3_64_intdigest

from loadtests.workloads import BYTES_PER_TOKEN

NAME_TOKENS = 64
"""Tokens of the simulated engines' blocks. vLLM's 16 would recompute up to 48 tokens less of each prompt and cost four
times the bookkeeping."""

_PIECE = struct.Struct("<qII")


@dataclass(frozen=True, slots=True)
class Text:
    """`tokens` of text number `id`; texts with one number are alike as far as the shorter goes."""

    id: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Line:
    """One request: sent `think_s` seconds after the previous answer (the first: after the session's start).

    `names` are those of the full engine blocks of the prompt, and then of the answer where it is known; `tail` is a
    hash of the whole prompt. `answers` maps where in the prompt an earlier answer begins to where it ends, in tokens.
    """

    names: Sequence[int]
    tail: int
    prompt_tokens: int
    output_tokens: int
    think_s: float = 0.0
    answers: Mapping[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """A session: lines said one after another, closed loop, the first `start_s` seconds after the play began."""

    id: str
    start_s: float
    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True)
class Play:
    """A whole workload. Equal seeds give equal plays, which `sha256` shows."""

    name: str
    parts: tuple[Part, ...]

    @property
    def requests(self) -> int:
        return sum(len(part.lines) for part in self.parts)

    @property
    def rate(self) -> float:
        """Requests a second, up to the start of the last part; an open loop's own rate."""
        seconds = max(part.start_s for part in self.parts)
        return self.requests / seconds if seconds else float(self.requests)

    def at_rate(self, rate: float | None) -> "Play":
        """The same work at another rate; think times, which are people's, stay. None changes nothing."""
        speed = 1.0 if rate is None else rate / self.rate
        return Play(self.name, tuple(replace(part, start_s=part.start_s / speed) for part in self.parts))

    def sha256(self) -> str:
        """Hex digest over every field."""
        digest = hashlib.sha256()
        for part in self.parts:
            digest.update(f"{part.id} {part.start_s!r} {len(part.lines)}\n".encode())
            for line in part.lines:
                sizes = f"{line.prompt_tokens} {line.output_tokens} {line.think_s!r} {line.answers} {line.tail}"
                digest.update(f"{sizes} {len(line.names)}\n".encode())
                digest.update(struct.pack(f"<{len(line.names)}Q", *line.names))
        return digest.hexdigest()


class Names:
    """Texts -> names, seeded: another seed gives other names, and with them other homes on the ring.

    Each name is kept once, since the prompts of a long session share most of theirs.
    """

    def __init__(self, seed: int) -> None:
        self._root = xxh3_64_intdigest(f"{seed}".encode())
        self._kept: dict[int, int] = {}

    def of(self, texts: Iterable[Text]) -> tuple[list[int], int]:
        """The names of the full blocks, and the hash of the whole."""
        name, names, keep = self._root, [], self._kept.setdefault
        block = b""
        for piece, ends in _pieces(texts):
            block += piece
            if ends:
                name = xxh3_64_intdigest(block, name)
                names.append(keep(name, name))
                block = b""
        return names, xxh3_64_intdigest(block, name) if block else name

    def line(
        self,
        prompt: Sequence[Text],
        output_tokens: int,
        known: Sequence[Text] = (),
        think_s: float = 0.0,
        answers: Mapping[int, int] | None = None,
    ) -> Line:
        """A request; `known` is the later prompt that tells its answer, if there is one: it begins with `prompt`.

        The answer's last token is never fed back to the model, so it is in no block.
        """
        names, tail = self.of(prompt)
        tokens = sum(text.tokens for text in prompt)
        if known:
            names, _ = self.of(cut(known, tokens + output_tokens - 1))
        return Line(names, tail, tokens, output_tokens, think_s, answers)


def cut(texts: Iterable[Text], tokens: int) -> list[Text]:
    """The first `tokens` of a prompt."""
    left, kept = tokens, []
    for text in texts:
        if left <= 0:
            break
        kept.append(Text(text.id, min(left, text.tokens)))
        left -= text.tokens
    return kept


def _pieces(texts: Iterable[Text]) -> Iterator[tuple[bytes, bool]]:
    """The texts cut at the ends of engine blocks, each piece with whether it ends one."""
    room, pack = NAME_TOKENS, _PIECE.pack
    for text in texts:
        at = 0
        while at < text.tokens:
            count = min(room, text.tokens - at)
            room -= count
            yield pack(text.id, at, count), not room
            at += count
            room = room or NAME_TOKENS


def size(tokens: int) -> int:
    """Bytes of so many tokens."""
    return round(tokens * BYTES_PER_TOKEN)


def ceiling_hit_ratio(play: Play) -> float:
    """Cached over all prompt tokens of one infinite cache, requests in order of their sessions' starts.

    Full engine blocks only, answers' blocks too, and never the last token of a prompt, as an engine counts. Exact for
    open loops. The turns of closed loops interleave by how fast they are served, so they are taken in their sessions'
    order; only what sessions share can differ.
    """
    resident: set[int] = set()
    cached = total = 0
    for part in sorted(play.parts, key=lambda part: part.start_s):
        for line in part.lines:
            most = (line.prompt_tokens - 1) // NAME_TOKENS
            hits = next((i for i, name in enumerate(line.names[:most]) if name not in resident), most)
            cached += min(hits, most) * NAME_TOKENS
            total += line.prompt_tokens
            resident.update(line.names)
    return cached / total
