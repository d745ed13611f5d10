"""A stand-in tokenizer: text in, token ids out, with the properties that routing depends on and no vocabulary.

- The lengths of the tokens repeat every 16 tokens, drawn per model name and seed: 3.1 to 4.7 bytes per token on the
  mean, the span of today's tokenizers on English, code and JSON. Where a token ends depends only on its position, so
  texts with a common prefix have common token ids, but for the one token in which they part.
- A token id *is* its bytes, little-endian, so equal ids mean equal text and `decode` needs no table. Ids from
  `special` lie above every text id; they stand for the control tokens of a chat template.
- Inside this package tokens travel packed, 8 bytes each (little-endian): a 30,000-token prompt is one bytes object,
  and no Python runs per token (60 to 130 MB/s of text).

Known difference from a real tokenizer: NUL characters at the end of a token do not survive `decode`.
"""

import json
import random
import struct
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

from xxhash import xxh3_64_intdigest

TOKEN_BYTES = 8
_PERIOD = 16
_LONGEST = 6  # 48 bits: an id then fits in the 53 bits that every JSON reader keeps, the special mark included.
_SPECIAL = 1 << (8 * _LONGEST)
_UNPACKED = struct.Struct(f"{TOKEN_BYTES}s" * _PERIOD)


class Tokenizer:
    """The tokenizer of one model. Equal `model` and `seed` give equal tokens on every replica."""

    def __init__(self, model: str, seed: int = 0) -> None:
        lengths = _lengths(random.Random(f"{seed}:{model}"))
        self._ends = list(accumulate(lengths))
        self._period_bytes = self._ends[-1]
        self._pieces = struct.Struct("".join(f"{length}s" for length in lengths))

    @property
    def bytes_per_token(self) -> float:
        return self._period_bytes / _PERIOD

    def encode(self, text: str) -> bytes:
        """Packed tokens of one run of text. Lone surrogates, which JSON can carry, pass as their three bytes."""
        data = text.encode("utf-8", "surrogatepass")
        periods, rest = divmod(len(data), self._period_bytes)
        count = periods * _PERIOD
        if rest:
            count += bisect_left(self._ends, rest) + 1
            data = data.ljust((periods + 1) * self._period_bytes, b"\0")
        pack = _UNPACKED.pack
        return b"".join([pack(*pieces) for pieces in self._pieces.iter_unpack(data)])[: count * TOKEN_BYTES]

    def text_bytes(self, tokens: int) -> int:
        """How many bytes the first `tokens` tokens of a run of text span."""
        periods, rest = divmod(tokens, _PERIOD)
        return periods * self._period_bytes + (self._ends[rest - 1] if rest else 0)


def _lengths(rng: random.Random) -> list[int]:
    """Token lengths in bytes, 1 to 6 each, of one period; their mean lies in 3.1 to 4.7."""
    total = rng.randint(50, 75)
    lengths = [total // _PERIOD + (index < total % _PERIOD) for index in range(_PERIOD)]
    for _ in range(2 * _PERIOD):
        longer, shorter = rng.sample(range(_PERIOD), 2)
        if lengths[longer] < _LONGEST and lengths[shorter] > 1:
            lengths[longer] += 1
            lengths[shorter] -= 1
    return lengths


def special(*words: str, count: int = 1) -> bytes:
    """`count` packed control tokens that stand for `words`."""
    text = json.dumps(words).encode()
    ids = (_SPECIAL | xxh3_64_intdigest(text, index) % _SPECIAL for index in range(count))
    return struct.pack(f"<{count}Q", *ids)


def pack(ids: Sequence[int]) -> bytes:
    """Token ids from a client, packed. Raises ValueError for what is not an integer of 64 bits without sign."""
    try:
        return struct.pack(f"<{len(ids)}Q", *ids)
    except struct.error as error:
        raise ValueError(f"not a token id: {error}") from error


def unpack(packed: bytes) -> list[int]:
    return list(struct.unpack(f"<{count(packed)}Q", packed))


def count(packed: bytes) -> int:
    return len(packed) // TOKEN_BYTES


def decode(packed: bytes) -> str:
    """The text of packed tokens; control tokens have none."""
    pieces = (token.to_bytes(TOKEN_BYTES, "little") for token in unpack(packed) if token < _SPECIAL)
    return b"".join(piece.rstrip(b"\0") for piece in pieces).decode("utf-8", "replace")


def root(*extras: str | None) -> int:
    """What a chain of engine blocks starts from: all that makes equal tokens different KV (adapter, cache_salt)."""
    return xxh3_64_intdigest(json.dumps(extras).encode())


def chain(packed: bytes, block_size: int, parent: int) -> list[int]:
    """Names of the full engine blocks of packed tokens: each is the hash of its tokens, seeded with its parent's."""
    width = block_size * TOKEN_BYTES
    view = memoryview(packed)
    names: list[int] = []
    for start in range(0, len(packed) - width + 1, width):
        parent = xxh3_64_intdigest(view[start : start + width], parent)
        names.append(parent)
    return names


def fingerprint(packed: bytes, seed: int) -> int:
    """A hash of a whole prompt, its unfinished last block included; answers are drawn from it."""
    return xxh3_64_intdigest(packed, seed)
