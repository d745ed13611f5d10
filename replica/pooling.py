"""The endpoints of a simulated replica that only read, each prompt a prefill: embeddings, rerank, score, pooling,
classify. And audio transcription, whose audio is read as tokens of its own.

A pair of texts is one prompt, as a cross-encoder reads it: the query, a separator, the document. So the documents of
one query share its tokens.
"""

from collections.abc import Mapping, Sequence
from email.message import Message
from email.parser import BytesParser

from aiohttp import web
from xxhash import xxh3_64_hexdigest

from replica import openai_answers, pooling_answers, tokens
from replica.errors import BadRequestError
from replica.openai_requests import Generation, Model, parse_body, parse_completion, parse_embedding, prefill
from replica.serving import Serving, now

_AUDIO_BYTES_PER_SECOND = 32_000  # 16 kHz of 16-bit mono, what speech models resample to.
_AUDIO_TOKENS_PER_SECOND = 50  # Whisper's encoder: 1,500 positions for 30 s.
_MAX_TRANSCRIPT = 448  # Whisper's longest output, in tokens.


class PoolingApi:
    """The endpoints that only prefill: embeddings, ranking, scores, pooling, classification, transcription."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    def routes(self) -> list[web.RouteDef]:
        handlers = {
            "/v1/embeddings": self._embed,
            "/v1/rerank": self._rerank,
            "/v2/rerank": self._rerank,
            "/rerank": self._rerank,
            "/v1/score": self._score,
            "/score": self._score,
            "/pooling": self._pool,
            "/classify": self._classify,
            "/v1/audio/transcriptions": self._transcribe,
        }
        return [self._serving.post_faulty(path, handler) for path, handler in handlers.items()]

    async def _embed(self, request: web.Request) -> web.StreamResponse:
        body = parse_body(await request.read())
        generation = parse_embedding(body, self._serving.model)
        _, used = await self._serving.run(generation)
        vectors = list(map(pooling_answers.vector, self._seeds(generation)))
        packed = body.get("encoding_format") == "base64"
        name = self._serving.name(request)
        answer = openai_answers.embeddings(name, now(), generation.model, vectors, packed, used)
        return await self._serving.send(request, answer)

    async def _rerank(self, request: web.Request) -> web.StreamResponse:
        body = parse_body(await request.read())
        documents = _texts(body, "documents")
        top = body.get("top_n") or len(documents)
        if not isinstance(top, int) or top < 0:
            raise BadRequestError("top_n must be an integer of at least 0", "top_n")
        pairs = [(query, document) for query in _texts(body, "query")[:1] for document in documents]
        generation = _pairs(body, pairs, self._serving.model)
        _, used = await self._serving.run(generation)
        name, seeds = self._serving.name(request), self._seeds(generation)
        answer = pooling_answers.rerank(name, generation.model, documents, seeds, top, used)
        return await self._serving.send(request, answer)

    async def _score(self, request: web.Request) -> web.StreamResponse:
        body = parse_body(await request.read())
        generation = _pairs(body, _scored(body), self._serving.model)
        _, used = await self._serving.run(generation)
        name, seeds = self._serving.name(request), self._seeds(generation)
        return await self._serving.send(request, pooling_answers.score(name, now(), generation.model, seeds, used))

    async def _pool(self, request: web.Request) -> web.StreamResponse:
        generation = parse_embedding(parse_body(await request.read()), self._serving.model)
        _, used = await self._serving.run(generation)
        vectors = list(map(pooling_answers.vector, self._seeds(generation)))
        name = self._serving.name(request)
        return await self._serving.send(request, pooling_answers.pooling(name, now(), generation.model, vectors, used))

    async def _classify(self, request: web.Request) -> web.StreamResponse:
        generation = parse_embedding(parse_body(await request.read()), self._serving.model)
        _, used = await self._serving.run(generation)
        name, seeds = self._serving.name(request), self._seeds(generation)
        return await self._serving.send(request, pooling_answers.classify(name, now(), generation.model, seeds, used))

    async def _transcribe(self, request: web.Request) -> web.StreamResponse:
        form = _form(request.headers.get("Content-Type", ""), await request.read())
        if "file" not in form:
            raise BadRequestError("file is required", "file")
        audio = form["file"]
        seconds = -(-len(audio) // _AUDIO_BYTES_PER_SECOND)
        heard = tokens.special("audio", xxh3_64_hexdigest(audio), count=max(1, seconds * _AUDIO_TOKENS_PER_SECOND))
        named = form["model"].decode("utf-8", "replace") if "model" in form else None
        body = {"model": named, "prompt": tokens.unpack(heard), "max_tokens": _MAX_TRANSCRIPT}
        ((choice,), _) = await self._serving.run(parse_completion(body, self._serving.model))
        return await self._serving.send(request, pooling_answers.transcription(choice.text, seconds))

    def _seeds(self, generation: Generation) -> list[int]:
        return [tokens.fingerprint(prompt, self._serving.model.seed) for prompt in generation.prompts]


def _pairs(body: Mapping[str, object], pairs: Sequence[tuple[str, str]], model: Model) -> Generation:
    encode = model.tokenizer.encode
    separator = tokens.special("separator")
    return prefill(body, model, tuple(encode(left) + separator + encode(right) for left, right in pairs))


def _scored(body: Mapping[str, object]) -> list[tuple[str, str]]:
    """The pairs under any of vLLM's three names; one text on the left goes with every text on the right."""
    names = (("queries", "documents"), ("queries", "items"), ("data_1", "data_2"), ("text_1", "text_2"))
    for left, right in names:
        if left in body and right in body:
            lefts, rights = _texts(body, left), _texts(body, right)
            lefts = lefts * len(rights) if len(lefts) == 1 else lefts
            if len(lefts) != len(rights):
                raise BadRequestError("Input lengths must be either 1:1, 1:N or N:N", left)
            return list(zip(lefts, rights, strict=True))
    raise BadRequestError("text_1 and text_2 are required", "text_1")


def _texts(body: Mapping[str, object], key: str) -> list[str]:
    value = body.get(key)
    given = value if isinstance(value, list) else [value]
    texts = [text for text in given if isinstance(text, str)]
    if not texts or len(texts) < len(given):
        raise BadRequestError(f"{key} must be a string or a non-empty list of strings", key)
    return texts


def _form(content_type: str, raw: bytes) -> dict[str, bytes]:
    """The fields of a multipart body. The standard library reads it as the mail that it looks like."""
    head = f"Content-Type: {content_type}\r\n\r\n".encode("utf-8", "surrogateescape")
    form = BytesParser().parsebytes(head + raw)
    if not form.is_multipart() or form.get_content_type() != "multipart/form-data":
        raise BadRequestError("The body must be multipart/form-data")
    return dict(field for part in form.get_payload() if isinstance(part, Message) and (field := _field(part)))


def _field(part: Message) -> tuple[str, bytes] | None:
    name = part.get_param("name", header="content-disposition")
    value = part.get_payload(decode=True)
    return (name, value) if isinstance(name, str) and isinstance(value, bytes) else None
