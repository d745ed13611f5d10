"""Answers of the endpoints that only read: rerank, score, pooling, classify; and of audio transcription.

Pure. Numbers are drawn from a fingerprint of what was read, so any replica of a fleet gives the same ones; they mean
nothing. Embeddings are in `openai_answers`.
"""

import random
from collections.abc import Sequence
from typing import Final

from replica import openai_answers
from replica.answers import Usage, encode

_LABELS: Final = ("LABEL_0", "LABEL_1")


def rerank(request: str, model: str, documents: Sequence[str], seeds: Sequence[int], top: int, used: Usage) -> bytes:
    """The `top` best documents, best first."""
    results = [
        {"index": index, "document": {"text": text, "multi_modal": None}, "relevance_score": _score(seed)}
        for index, (text, seed) in enumerate(zip(documents, seeds, strict=True))
    ]
    results.sort(key=lambda result: -_score(seeds[int(str(result["index"]))]))
    read = {"prompt_tokens": used.prompt_tokens, "total_tokens": used.total_tokens}
    return encode({"id": f"score-{request}", "model": model, "usage": read, "results": results[:top]})


def score(request: str, created: int, model: str, seeds: Sequence[int], used: Usage) -> bytes:
    """The answer of /score."""
    data = [{"index": index, "object": "score", "score": _score(seed)} for index, seed in enumerate(seeds)]
    return _list(f"score-{request}", created, model, data, used)


def pooling(request: str, created: int, model: str, vectors: Sequence[Sequence[float]], used: Usage) -> bytes:
    """The answer of /pooling."""
    data = [{"index": index, "object": "pooling", "data": vector} for index, vector in enumerate(vectors)]
    return _list(f"pool-{request}", created, model, data, used)


def classify(request: str, created: int, model: str, seeds: Sequence[int], used: Usage) -> bytes:
    """The answer of /classify."""
    data = [_classified(index, seed) for index, seed in enumerate(seeds)]
    return _list(f"classify-{request}", created, model, data, used)


def transcription(text: str, seconds: int) -> bytes:
    """Its usage counts seconds of audio, not tokens."""
    return encode({"text": text, "usage": {"type": "duration", "seconds": seconds}})


def vector(seed: int) -> list[float]:
    """A unit vector that only the text decides."""
    rng = random.Random(seed)
    return [round(rng.uniform(-1, 1), 6) for _ in range(openai_answers.EMBEDDING_SIZE)]


def _list(name: str, created: int, model: str, data: Sequence[object], used: Usage) -> bytes:
    """vLLM never tells these endpoints' cached tokens."""
    silent = Usage(used.prompt_tokens, used.completion_tokens, used.cached_tokens, details=False)
    usage = openai_answers.usage(silent)
    return encode({"id": name, "object": "list", "created": created, "model": model, "data": data, "usage": usage})


def _classified(index: int, seed: int) -> dict[str, object]:
    first = _score(seed)
    label = _LABELS[0] if first >= 0.5 else _LABELS[1]
    return {"index": index, "label": label, "probs": [first, round(1 - first, 6)], "num_classes": len(_LABELS)}


def _score(seed: int) -> float:
    return round(random.Random(seed).random(), 6)
