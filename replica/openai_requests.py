"""Bodies of OpenAI requests -> what the replica has to compute.

Reads only the fields that change the work; everything else is accepted unseen, as a stand-in must not refuse what a
real engine takes. What vLLM would refuse raises BadRequestError. Pure: no clock, no I/O.
"""

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from replica import tokens
from replica.engine import Work
from replica.errors import BadRequestError
from replica.template import render_chat
from replica.tokens import Tokenizer

MAX_SEQUENCES: Final = 2_048  # Works per request (prompts times n); the bound is ours, to keep one body from a flood.
_COMPLETION_MAX_TOKENS: Final = 16  # OpenAI's and vLLM's default for /v1/completions.
_WORDS: Final = ("a", "the", "cache", "prefix", "token", "block", "home", "spill", "route", "lease", "warm", "cold")


@dataclass(frozen=True, slots=True)
class Model:
    """What the replica serves: the names, and the limits that a request is checked against."""

    name: str
    adapters: tuple[str, ...]
    tokenizer: Tokenizer
    block_size: int
    max_model_len: int
    seed: int


@dataclass(frozen=True, slots=True)
class Sampling:
    """`max_tokens` None is whatever the model length leaves."""

    max_tokens: int | None
    min_tokens: int
    n: int
    ignore_eos: bool


@dataclass(frozen=True, slots=True)
class Generation:
    """A parsed request: packed prompts, each to be answered `sampling.n` times."""

    model: str
    prompts: tuple[bytes, ...]
    root: int
    sampling: Sampling
    stream: bool
    include_usage: bool

    @property
    def prompt_tokens(self) -> int:
        return sum(map(tokens.count, self.prompts))


@dataclass(frozen=True, slots=True)
class Answer:
    """One choice: its text, and how many tokens of it make how much text."""

    text: str
    tokens: int
    reason: str


def parse_body(raw: bytes) -> dict[str, object]:
    """The JSON object of a body. Raises BadRequestError."""
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise BadRequestError(f"The body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise BadRequestError("The body must be a JSON object")
    return body


def parse_chat(body: Mapping[str, object], model: Model) -> Generation:
    """A chat body. Raises ApiError, in vLLM's words, for what vLLM refuses."""
    max_tokens = _integer(body, "max_completion_tokens", least=1)
    if max_tokens is None:
        max_tokens = _integer(body, "max_tokens", least=1)
    prompt = render_chat(body, model.tokenizer)
    return _generation(body, model, (prompt,), max_tokens)


def parse_completion(body: Mapping[str, object], model: Model) -> Generation:
    """A completion body, of one or several prompts. Raises ApiError for what vLLM refuses."""
    max_tokens = _integer(body, "max_tokens", least=1)
    prompts = parse_prompts(body, "prompt", model)
    return _generation(body, model, prompts, _COMPLETION_MAX_TOKENS if max_tokens is None else max_tokens)


def parse_embedding(body: Mapping[str, object], model: Model) -> Generation:
    """`input` as in a completion, or `messages` as in a chat; nothing is generated."""
    if "messages" in body:
        prompts: tuple[bytes, ...] = (render_chat(body, model.tokenizer),)
    else:
        prompts = parse_prompts(body, "input", model)
    return prefill(body, model, prompts)


def prefill(body: Mapping[str, object], model: Model, prompts: tuple[bytes, ...]) -> Generation:
    """What only reads these prompts: nothing is generated, whatever else the body asks for."""
    return _generation({**body, "n": 1, "stream": False, "min_tokens": 0}, model, prompts, 0)


def parse_prompts(body: Mapping[str, object], key: str, model: Model) -> tuple[bytes, ...]:
    """A string, a list of strings, token ids, or a list of token-id lists -> packed prompts."""
    value = body.get(key)
    prompts = value if isinstance(value, list) and value and not _is_token(value[0]) else [value]
    return tuple(_prompt(prompt, key, model) for prompt in prompts)


def _prompt(value: object, key: str, model: Model) -> bytes:
    if isinstance(value, str) and value:
        return model.tokenizer.encode(value)
    if isinstance(value, list) and value and all(map(_is_token, value)):
        try:
            return tokens.pack(value)
        except ValueError as error:
            raise BadRequestError(str(error), key) from error
    raise BadRequestError(f"{key} must be a string, a list of strings, token ids or a list of token ids", key)


def _is_token(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _generation(
    body: Mapping[str, object], model: Model, prompts: tuple[bytes, ...], max_tokens: int | None
) -> Generation:
    name = check_model(body, model)
    salt = body.get("cache_salt")
    if salt is not None and not (isinstance(salt, str) and salt):
        raise BadRequestError("cache_salt must be a non-empty string", "cache_salt")
    options = body.get("stream_options")
    sampling = Sampling(
        max_tokens=max_tokens,
        min_tokens=_integer(body, "min_tokens", least=0) or 0,
        n=_integer(body, "n", least=1) or 1,
        ignore_eos=body.get("ignore_eos") is True,
    )
    if len(prompts) * sampling.n > MAX_SEQUENCES:
        raise BadRequestError(f"prompts times n must be at most {MAX_SEQUENCES}", "n")
    for prompt in prompts:
        _check_length(tokens.count(prompt), sampling, model)
    return Generation(
        model=name,
        prompts=prompts,
        root=tokens.root(model.name, None if name == model.name else name, salt),
        sampling=sampling,
        stream=body.get("stream") is True,
        include_usage=isinstance(options, dict) and options.get("include_usage") is True,
    )


def check_model(body: Mapping[str, object], model: Model) -> str:
    """The model or adapter that a body names; the model when it names none."""
    name = body.get("model") or model.name
    if not isinstance(name, str):
        raise BadRequestError("model must be a string", "model")
    if name != model.name and name not in model.adapters:
        raise BadRequestError(f"The model `{name}` does not exist.", "model", status=404)
    return name


def _check_length(prompt_tokens: int, sampling: Sampling, model: Model) -> None:
    wanted = 1 if sampling.max_tokens is None else sampling.max_tokens
    if prompt_tokens + wanted > model.max_model_len:
        raise BadRequestError(
            f"This model's maximum context length is {model.max_model_len} tokens. However, you requested {wanted} "
            f"output tokens and your prompt contains {prompt_tokens} input tokens. Please reduce the length.",
            "input_tokens",
        )


def _integer(body: Mapping[str, object], key: str, least: int) -> int | None:
    value = body.get(key)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise BadRequestError(f"{key} must be an integer of at least {least}", key)
    return value


def plan(generation: Generation, model: Model, new_id: Callable[[], str]) -> list[tuple[Work, Answer]]:
    """The works of a request, choice by choice, and what each will say.

    An answer depends on model, prompt and choice alone. Its tokens follow the prompt's, so its blocks have names, too,
    and the next turn of the conversation finds them.
    """
    planned = []
    for prompt in generation.prompts:
        names = tokens.chain(prompt, model.block_size, generation.root)
        unfinished = prompt[len(names) * model.block_size * tokens.TOKEN_BYTES :]
        parent = names[-1] if names else generation.root
        seed = tokens.fingerprint(prompt, model.seed)
        for choice in range(generation.sampling.n):
            answer = _answer(tokens.count(prompt), generation.sampling, model, random.Random(seed + choice))
            tail = tokens.chain(unfinished + model.tokenizer.encode(answer.text), model.block_size, parent)
            planned.append((Work(new_id(), tokens.count(prompt), answer.tokens, names + tail), answer))
    return planned


def _answer(prompt_tokens: int, sampling: Sampling, model: Model, rng: random.Random) -> Answer:
    most = model.max_model_len - prompt_tokens if sampling.max_tokens is None else sampling.max_tokens
    # A median of 100 tokens, nine answers of ten between 30 and 340: chat traffic as ShareGPT has it, roughly.
    natural = max(sampling.min_tokens, 8, int(rng.lognormvariate(4.6, 0.75)))
    ends_itself = not sampling.ignore_eos and natural <= most
    length = natural if ends_itself else most
    size = model.tokenizer.text_bytes(length)
    text = " ".join(rng.choices(_WORDS, k=size // 2 + 1))[:size]
    return Answer(text, length, "stop" if ends_itself or not most else "length")


def pieces(answer: Answer, model: Model, start: int, stop: int) -> Sequence[str]:
    """The texts of the answer's tokens `start` to `stop`; its text is ASCII, so bytes are characters."""
    ends = [model.tokenizer.text_bytes(count) for count in range(start, stop + 1)]
    return [answer.text[left:right] for left, right in pairwise(ends)]
