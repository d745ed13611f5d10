"""Requests as lines of a trace: numbers for hashes, lengths that agree with blocks, bounds."""

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.admin import recording
from router.admin.recording import Lines, Numbers, Recording
from router.core.trace import LeftOut, Trace

BLOCK = 512
TRACE = Trace(12.25, "m", [901, 902], 903, 1_100, None, 275, 256, 8)


def lines(rate: float = 0.25, bound: int = 1_000) -> Lines:
    return Lines(BLOCK, bound, lambda _: rate, 10.0)


def told(text: bytes) -> dict[str, Any]:
    assert text.endswith(b"\n")
    line: dict[str, Any] = json.loads(text)
    return line


def test_a_line_has_what_mooncake_has_and_what_the_engine_counted() -> None:
    assert told(lines().line(TRACE)) == {
        "timestamp": 2_250, "input_length": 275, "output_length": 8, "hash_ids": [0, 1, 2], "block_size": 128,
        "model": "m", "prompt_tokens": 275, "cached_tokens": 256,
    }  # fmt: skip


def test_what_nobody_told_is_not_in_a_line() -> None:
    line = told(lines().line(TRACE._replace(model=None, prompt_tokens=None, cached_tokens=None)))
    assert set(line) == {"timestamp", "input_length", "output_length", "hash_ids", "block_size"}


def test_equal_blocks_have_equal_numbers_and_no_number_tells_a_hash() -> None:
    make = lines()
    first, second = told(make.line(TRACE)), told(make.line(TRACE._replace(chain=[901, 904, 905], tail=906, size=1_700)))
    assert (first["hash_ids"], second["hash_ids"]) == ([0, 1, 2], [0, 3, 4, 5])


@given(size=st.integers(1, 100_000), rate=st.floats(0.001, 2.0))
def test_a_prompts_length_is_that_of_its_blocks_whatever_a_token_is(size: int, rate: float) -> None:
    full = size // BLOCK
    line = told(lines(rate, 10_000).line(TRACE._replace(chain=list(range(full)), tail=-1, size=size)))
    blocks = len(line["hash_ids"])
    assert blocks == -(-size // BLOCK)
    assert (blocks - 1) * line["block_size"] < line["input_length"] <= blocks * line["block_size"]


def test_token_ids_have_their_exact_length() -> None:
    exact = TRACE._replace(chain=list(range(7)), size=4 * 1_000, tokens=1_000)
    line = told(lines(rate=0.4).line(exact))
    assert (line["block_size"], line["input_length"]) == (128, 1_000)


def test_the_tokens_of_a_models_blocks_do_not_change_while_it_is_recorded() -> None:
    rates = {"a": 0.25, "b": 0.5}
    make = Lines(BLOCK, 1_000, lambda model: rates[model or ""], 10.0)
    before = [told(make.line(TRACE._replace(model=model)))["block_size"] for model in rates]
    rates["a"] = rates["b"] = 1.0
    assert before == [told(make.line(TRACE._replace(model=model)))["block_size"] for model in rates] == [128, 256]


def test_what_is_not_read_of_a_huge_body_is_never_found_again() -> None:
    make = lines()
    huge = TRACE._replace(size=10 * BLOCK)
    first, second = told(make.line(huge))["hash_ids"], told(make.line(huge))["hash_ids"]
    assert len(first) == len(second) == 10
    assert set(first) & set(second) == {first[0], first[1], first[-1]}
    assert first[:2] == second[:2]


def test_blocks_that_nobody_used_for_long_are_forgotten_and_new_again() -> None:
    numbers = Numbers(bound=8)
    numbers.of([1, 2])
    for start in range(10, 30, 2):
        numbers.of([start, start + 1])
        assert numbers.of([1, 2]) == [0, 1], "it is in use"
    assert numbers.forgotten > 0
    highest = max(numbers.of([28, 29]))
    assert min(numbers.of([10, 11])) > highest


@given(chains=st.lists(st.tuples(st.integers(0, 5), st.integers(1, 6)), max_size=60))
def test_a_known_block_never_follows_one_that_is_new(chains: list[tuple[int, int]]) -> None:
    numbers = Numbers(bound=12)
    highest = -1
    for root, length in chains:
        known = [number <= highest for number in numbers.of([root * 100 + depth for depth in range(length)])]
        highest = max(highest, numbers._next - 1)
        assert known == sorted(known, reverse=True)
        assert len(numbers._young) + len(numbers._old) <= 12 + 6


async def test_lines_wait_to_be_read_and_the_end_comes_after_them() -> None:
    taking = Recording(lines(), 10.0)
    taking.take([TRACE], {LeftOut.NO_PROMPT: 2})
    taking.take([TRACE], {})
    taking.end()
    assert (await taking.read(1.0) or b"").count(b"\n") == 2
    assert await taking.read(1.0) is None
    assert taking.told() == {
        "running": False, "recorded": 2, "dropped": 0, "forgotten_blocks": 0,
        "left_out": {"earlier": 0, "no_prompt": 2, "not_answered": 0},
    }  # fmt: skip


async def test_who_reads_is_woken_by_a_line_and_by_the_end() -> None:
    taking = Recording(lines(), 10.0)
    assert await taking.read(0.01) == b""
    reading = asyncio.get_running_loop().create_task(taking.read(60.0))
    await asyncio.sleep(0)
    taking.take([TRACE], {})
    assert await reading
    reading = asyncio.get_running_loop().create_task(taking.read(60.0))
    await asyncio.sleep(0)
    taking.end()
    assert await reading is None


async def test_what_had_arrived_before_is_left_out() -> None:
    taking = Recording(lines(), 12.5)
    taking.take([TRACE], {})
    assert (taking.recorded, taking.left_out[LeftOut.EARLIER]) == (0, 1)


async def test_a_slow_reader_loses_lines_and_is_told_how_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "MAX_WAITING", 300)
    taking = Recording(lines(), 10.0)
    taking.take([TRACE] * 5, {})
    assert (taking.recorded, taking.dropped) == (3, 2)
    assert (await taking.read(1.0) or b"").count(b"\n") == 3
    taking.take([TRACE], {})
    assert taking.recorded == 4, "there is room again"
