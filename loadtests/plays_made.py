"""Seeded plays: the kinds of traffic that a prefix-aware policy must be good at, or must at least not be bad at. Pure.

Each takes a seed, how many requests, and how many of them come in a second (Poisson, unless it says otherwise), and
sizes in tokens that are its own. WORKLOADS has them by name.
"""

import random
from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate, count
from types import MappingProxyType
from typing import Final

from loadtests.plays import Line, Names, Part, Play, Text

Make = Callable[[int, int, float], Play]
"""Seed, requests, requests a second -> play."""


class _Author:
    """What every kind needs: seeded chance, names, and texts that nobody else has."""

    def __init__(self, kind: str, seed: int) -> None:
        self.rng = random.Random(f"{seed}:{kind}")
        self._names = Names(seed)
        self._ids = count()

    def text(self, tokens: int) -> Text:
        return Text(next(self._ids), tokens)

    def line(self, shared: Text | None, own: int, output: int) -> Line:
        """A request of one turn: what it shares, then what is its own."""
        texts = [self.text(own)] if shared is None else [shared, self.text(own)]
        return self._names.line(texts, output)

    def turn(self, prompt: list[Text], answer: Text, think_s: float, answers: Mapping[int, int] | None) -> Line:
        """One turn of a talk, whose answer later turns carry."""
        return self._names.line(prompt, answer.tokens, [*prompt, answer], think_s, answers)

    def arrivals(self, rate: float) -> Iterator[float]:
        at = 0.0
        while True:
            at += self.rng.expovariate(rate)
            yield at


def _single(name: str, lines: list[tuple[float, Line]]) -> Play:
    """A play whose sessions are one request each."""
    return Play(name, tuple(Part(f"request-{i}", at, (line,)) for i, (at, line) in enumerate(lines)))


def ladder(seed: int, requests: int, rate: float) -> Play:
    """Groups of 5 prompts with 6,000 tokens in common and 1,200 of their own, 1,000 out, in random order; the rate
    rises steadily from half of `rate` to one and a half."""
    return _ladder("ladder", seed, requests, rate, 6_000, 1_200)


def ladder_inverse(seed: int, requests: int, rate: float) -> Play:
    """The same with 1,200 tokens in common and 6,000 of their own: little to gain, much to lose."""
    return _ladder("ladder_inverse", seed, requests, rate, 1_200, 6_000)


def _ladder(name: str, seed: int, requests: int, rate: float, shared: int, own: int) -> Play:
    author = _Author(name, seed)
    groups = [author.text(shared) for _ in range(-(-requests // 5))]
    order = (groups * 5)[:requests]
    author.rng.shuffle(order)
    at, lines = 0.0, []
    for number, group in enumerate(order):
        at += author.rng.expovariate(rate * (0.5 + number / requests))
        lines.append((at, author.line(group, own, 1_000)))
    return _single(name, lines)


def chat(seed: int, requests: int, rate: float) -> Play:
    """Talks of 6 turns over 40 preambles of 1,500 tokens, chosen by Zipf's law; people think 10 s on the mean, and add
    a document of 5,000 tokens to one turn in four."""
    author, turns = _Author("chat", seed), 6
    rng = author.rng
    preambles = [author.text(1_500) for _ in range(40)]
    weights = list(accumulate(1 / rank for rank in range(1, len(preambles) + 1)))
    parts = []
    for number, at in zip(range(-(-requests // turns)), author.arrivals(rate / turns), strict=False):
        prompt = list(rng.choices(preambles, cum_weights=weights))
        answers: dict[int, int] | None = None
        lines = []
        for turn in range(turns):
            prompt.append(author.text(rng.randint(30, 300) + 5_000 * (rng.random() < 0.25)))
            answer = author.text(rng.randint(100, 500))
            think_s = rng.expovariate(0.1) if turn else 0.0
            lines.append(author.turn(prompt, answer, think_s, answers))
            begin = lines[-1].prompt_tokens
            answers = {begin: begin + answer.tokens}
            prompt = [*prompt, answer]
        parts.append(Part(f"talk-{number}", at, tuple(lines)))
    return Play("chat", tuple(parts))


def classifier(seed: int, requests: int, rate: float) -> Play:
    """One preamble of 15,000 tokens before 200 of each request's own, 4 out: meant for high rates."""
    author = _Author("classifier", seed)
    preamble = author.text(15_000)
    arrivals = zip(range(requests), author.arrivals(rate), strict=False)
    return _single("classifier", [(at, author.line(preamble, 200, 4)) for _, at in arrivals])


def cold_burst(seed: int, requests: int, rate: float) -> Play:
    """Bursts of 20 within 0.2 s on a prefix of 4,000 tokens that nobody has seen, 300 own, 200 out."""
    author, burst = _Author("cold_burst", seed), 20
    lines = []
    for _, start in zip(range(-(-requests // burst)), author.arrivals(rate / burst), strict=False):
        prefix = author.text(4_000)
        offsets = sorted(author.rng.uniform(0.0, 0.2) for _ in range(burst))
        lines += [(start + offset, author.line(prefix, 300, 200)) for offset in offsets]
    return _single("cold_burst", sorted(lines, key=lambda line: line[0]))


def flash_crowd(seed: int, requests: int, rate: float) -> Play:
    """Half of all requests share nothing (2,000 tokens); the other half come in the middle third of the time, on one
    prefix of 6,000 tokens with 200 own. 200 out."""
    author = _Author("flash_crowd", seed)
    prefix, seconds = author.text(6_000), requests / rate
    lines = []
    for number in range(requests):
        at = author.rng.uniform(0.0, seconds)
        if number % 2:
            lines.append(((seconds + at) / 3, author.line(prefix, 200, 200)))
        else:
            lines.append((at, author.line(None, 2_000, 200)))
    return _single("flash_crowd", sorted(lines, key=lambda line: line[0]))


def whale(seed: int, requests: int, rate: float) -> Play:
    """60 % of all requests are one tenant's, on one prefix of 8,000 tokens with 300 own; 40 others share the rest, each
    with a prefix of 2,000 tokens and 500 own. 200 out."""
    author = _Author("whale", seed)
    biggest, others = author.text(8_000), [author.text(2_000) for _ in range(40)]
    lines = []
    for _, at in zip(range(requests), author.arrivals(rate), strict=False):
        is_whale = author.rng.random() < 0.6
        shared, own = (biggest, 300) if is_whale else (author.rng.choice(others), 500)
        lines.append((at, author.line(shared, own, 200)))
    return _single("whale", lines)


def uniform(seed: int, requests: int, rate: float) -> Play:
    """Nothing is shared. Prompts of 100 to 16,000 tokens, half of them below 2,000 (lognormal), 250 out on the mean."""
    author = _Author("uniform", seed)
    rng, lines = author.rng, []
    for _, at in zip(range(requests), author.arrivals(rate), strict=False):
        own = round(min(16_000.0, max(100.0, rng.lognormvariate(7.6, 0.8))))  # e**7.6 = 1,998
        lines.append((at, author.line(None, own, 1 + round(rng.expovariate(1 / 250)))))
    return _single("uniform", lines)


WORKLOADS: Final[Mapping[str, Make]] = MappingProxyType(
    {
        make.__name__: make
        for make in (ladder, ladder_inverse, chat, classifier, cold_burst, flash_crowd, whale, uniform)
    }
)
