"""The ceiling of the hit ratio: what one infinite cache would have answered from, over the same requests.

It counts as an engine reports: full engine blocks only, an answer's blocks like a prompt's, and never the last token of
a prompt, which is always computed. Tokens are those of the simulated replicas, so the ceiling of a run against them is
exact but for one thing: a request is held to find everything of every request that was *sent* before it.
"""

from collections.abc import Sequence

from loadtests.fleet import MODEL, FleetShape
from loadtests.records import Record
from loadtests.report import ratio
from replica import tokens
from replica.template import render_chat
from replica.tokens import Tokenizer


def ceiling_hit_ratio(records: Sequence[Record], shape: FleetShape) -> float | None:
    """Cached over all prompt tokens, 0 to 1, for `records` in order of sending; None when no request succeeded.

    A failed request leaves its prompt in the cache and counts for nothing else, as in the hit ratio of an arm.
    """
    tokenizer = Tokenizer(MODEL, shape.seed)
    root = tokens.root(MODEL, None, None)
    resident: set[int] = set()
    cached = total = 0
    for record in records:
        messages = [{"role": message.role, "content": message.text} for message in record.messages]
        prompt = render_chat({"messages": messages}, tokenizer)
        names = tokens.chain(prompt + _computed(tokenizer.encode(record.answer)), shape.block_size, root)
        if record.error is None:
            prompt_tokens = tokens.count(prompt)
            cached += shape.block_size * _leading(names[: (prompt_tokens - 1) // shape.block_size], resident)
            total += prompt_tokens
        resident.update(names)
    return ratio(cached, total)


def _computed(answer: bytes) -> bytes:
    """The part of an answer whose keys and values exist: its last token is never fed back to the model."""
    return answer[: -tokens.TOKEN_BYTES]


def _leading(names: Sequence[int], resident: set[int]) -> int:
    return next((index for index, name in enumerate(names) if name not in resident), len(names))
