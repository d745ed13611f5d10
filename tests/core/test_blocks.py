"""Bytes -> chain, against the values that the xxHash project publishes: other hashes throw away a fleet's cache."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.core.blocks import BLOCK_BYTES, chain

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "chains.json").read_text())


def sanity_buffer(size: int) -> bytes:
    """The buffer over which xxHash publishes its vectors (its tests/sanity_test.c)."""
    state, data = 2_654_435_761, bytearray()
    for _ in range(size):
        data.append(state >> 56)
        state = state * 11_400_714_785_074_694_797 % 2**64
    return bytes(data)


@pytest.mark.parametrize("vector", GOLDEN["published"], ids=lambda vector: f"{vector['size']} bytes, {vector['root']}")
def test_one_block_hashes_to_what_xxhash_publishes(vector: dict[str, Any]) -> None:
    data, root, published = (sanity_buffer(vector["size"]), int(vector["root"], 16), int(vector["hash"], 16))
    assert chain(data, root, max(1, len(data))) == ([published] if data else [], published)
    assert chain(data, root, len(data) + 1) == ([], published)


@pytest.mark.parametrize("golden", GOLDEN["chains"], ids=lambda golden: f"{golden['size']} bytes, {golden['root']}")
def test_a_prompt_in_default_blocks_hashes_to_its_golden_chain(golden: dict[str, Any]) -> None:
    hashes, tail = chain(sanity_buffer(golden["size"]), int(golden["root"], 16))
    assert [f"{block:016x}" for block in hashes] == golden["hashes"]
    assert f"{tail:016x}" == golden["tail"]


def test_the_first_block_of_1024_bytes_is_the_published_hash_of_512() -> None:
    published = {(vector["size"], vector["root"]): vector["hash"] for vector in GOLDEN["published"]}
    for golden in GOLDEN["chains"]:
        assert golden["hashes"][0] == published[512, golden["root"]]


def test_the_default_block_is_512_bytes() -> None:
    assert BLOCK_BYTES == 512
    assert len(chain(bytes(5 * 512 + 511), 1)[0]) == 5


def test_the_tail_of_whole_blocks_is_the_last_block() -> None:
    hashes, tail = chain(bytes(1024), 7)
    assert tail == hashes[-1]


def test_the_tail_of_nothing_still_tells_roots_apart() -> None:
    (none, tail), (_, other) = chain(b"", 1), chain(b"", 2)
    assert none == []
    assert tail != other


@settings(deadline=None, max_examples=60)
@given(head=st.binary(max_size=64), left=st.binary(max_size=64), right=st.binary(max_size=64), block=st.integers(1, 16))
def test_chains_share_exactly_the_blocks_that_their_prompts_share(
    head: bytes, left: bytes, right: bytes, block: int
) -> None:
    (one, tail), (other, other_tail) = chain(head + left, 3, block), chain(head + right, 3, block)
    assert len(one) == len(head + left) // block
    for i, (a, b) in enumerate(zip(one, other, strict=False)):
        end = (i + 1) * block
        assert (a == b) == ((head + left)[:end] == (head + right)[:end])
    assert (tail == other_tail) == (left == right)


@settings(deadline=None, max_examples=60)
@given(data=st.binary(min_size=1, max_size=64), roots=st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)))
def test_no_hash_survives_another_root(data: bytes, roots: tuple[int, int]) -> None:
    (one, tail), (other, other_tail) = (chain(data, root, 8) for root in roots)
    shared = {*one, tail} & {*other, other_tail}
    assert bool(shared) == (roots[0] == roots[1])
