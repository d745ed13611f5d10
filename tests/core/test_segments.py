"""Chains as a tree of segments, against a plain set of the blocks that were put in."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.core.recent import _Count
from router.core.segments import Segment, Segments


def path(digits: Sequence[int]) -> list[int]:
    blocks, block = [], 1
    for digit in digits:
        block = block * 4 + digit
        blocks.append(block)
    return blocks


def whole(segment: _Count | None) -> list[int]:
    """The blocks of a path, from the root to the segment's end."""
    blocks: list[int] = []
    while segment is not None:
        assert segment.hashes
        assert segment.start == (segment.parent.start + len(segment.parent.hashes) if segment.parent else 0)
        blocks = segment.hashes + blocks
        segment = segment.parent
    return blocks


CHAINS = st.lists(st.lists(st.integers(0, 2), max_size=8).map(path), max_size=12)


@settings(deadline=None, max_examples=80)
@given(chains=CHAINS)
def test_whatever_was_put_in_is_found_as_a_path_of_segments(chains: list[list[int]]) -> None:
    segments, blocks, uses = Segments(_Count), set[int](), dict[int, int]()
    for chain in chains:
        depth = sum(block in blocks for block in chain)
        assert segments.depth(chain) == depth
        last = segments.extend(chain, depth, len(chain))
        assert whole(last) == chain
        while last is not None:
            last.count += 1
            last = last.parent
        blocks.update(chain)
        for block in chain:
            uses[block] = uses.get(block, 0) + 1
    assert len(segments) == len(blocks)
    for block in blocks:
        holder = segments.get(block)
        assert holder is not None
        assert holder.count == uses[block]
    every = [block for segment in segments for block in segment.hashes]
    assert sorted(every) == sorted(blocks)
    assert all(block in segments for block in blocks)
    assert -1 not in segments
    assert segments.get(-1) is None


@settings(deadline=None, max_examples=60)
@given(
    chain=st.lists(st.integers(0, 2), min_size=1, max_size=9).map(path), ends=st.lists(st.integers(0, 9), max_size=5)
)
def test_a_split_leaves_the_path_and_the_notes_as_they_were(chain: list[int], ends: list[int]) -> None:
    segments = Segments(_Count)
    last = segments.extend(chain, 0, len(chain))
    assert last is not None
    last.count = 7
    for end in ends:
        if end <= len(chain):
            head = segments.end_at(chain, end)
            assert whole(head) == chain[:end]
            assert head is None or head.count == 7
        assert whole(segments.get(chain[-1])) == chain
        assert segments.get(chain[-1]) is last  # The tail keeps its identity: placements point at it.


def test_a_chain_that_goes_on_hangs_on_what_is_there() -> None:
    segments = Segments(_Count)
    first = segments.extend([1, 2], 0, 2)
    second = segments.extend([1, 2, 3, 4], 2, 3)
    assert second is not None
    assert (second.start, second.hashes, second.parent) == (2, [3], first)
    assert segments.depth([1, 2, 3, 4]) == 3
    assert segments.extend([1, 2], 2, 2) is first


def test_cutting_takes_the_last_blocks_and_no_more_than_there_are() -> None:
    segments = Segments(_Count)
    last = segments.extend([1, 2, 3], 0, 3)
    assert last is not None
    assert segments.cut(last, 2) == [2, 3]
    assert segments.depth([1, 2, 3]) == len(segments) == 1
    assert segments.cut(last, 5) == [1]
    assert (last.hashes, len(segments)) == ([], 0)


def test_a_bare_segment_has_no_notes_to_hand_on() -> None:
    with pytest.raises(NotImplementedError):
        Segment(0, [1, 2], None).head([1])
