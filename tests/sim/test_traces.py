"""Mooncake traces: read, written, spread over their tick, and turned into texts that share what they share."""

from itertools import pairwise
from pathlib import Path

import pytest

from loadtests.traces import BLOCK_TOKENS, BlockTexts, TraceError, TraceRequest, arrivals, read, trace_workload, write

PLAIN = [
    TraceRequest(0, 1_000, 20, (0, 1)),
    TraceRequest(0, 1_100, 30, (0, 2, 3)),
    TraceRequest(3_000, 512, 1, (0,)),
]
AGENTS = [
    TraceRequest(15_280, 600, 9, (5, 6), "a", 0),
    TraceRequest(16_000, 500, 9, (9,), "b", 0),
    TraceRequest(46_402, 1_500, 9, (5, 6, 7), "a", 1, 29.5),
]


@pytest.mark.parametrize("requests", [PLAIN, AGENTS])
def test_what_is_written_is_read(requests: list[TraceRequest], tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    write(path, requests)
    assert read(path) == requests
    assert read(path, limit=2) == requests[:2]


def test_mooncakes_own_lines_are_read(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"timestamp": 27482, "input_length": 600, "output_length": 52, "hash_ids": [46, 47]}\n\n')
    assert read(path) == [TraceRequest(27_482, 600, 52, (46, 47))]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", "truncated"),
        ('{"timestamp": 0, "input_length": 5, "output_length": 1}', "hash_ids"),
        ('{"timestamp": -1, "input_length": 5, "output_length": 1, "hash_ids": [1]}', "timestamp"),
        ('{"timestamp": 0, "input_length": 0, "output_length": 1, "hash_ids": []}', "input_length"),
        ('{"timestamp": 0, "input_length": 5, "output_length": 0, "hash_ids": [1]}', "output_length"),
        ('{"timestamp": 0, "input_length": 513, "output_length": 1, "hash_ids": [1]}', "makes 2 blocks"),
    ],
)
def test_a_bad_line_is_named(line: str, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    write(path, PLAIN[:1])
    with path.open("a") as lines:
        lines.write(line + "\n")
    with pytest.raises(TraceError, match=complaint) as caught:
        read(path)
    assert f"{path}:2" in str(caught.value)


def test_a_last_line_that_breaks_off_is_left_out_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trace.jsonl"
    write(path, PLAIN)
    path.write_bytes(path.read_bytes()[:-10])
    assert read(path) == PLAIN[:2]
    assert capsys.readouterr().err == f"{path}:3: the last line breaks off and is left out\n"


def test_requests_are_put_in_the_order_of_their_arrival_before_the_first_are_taken(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    write(path, [PLAIN[2], PLAIN[0], PLAIN[1]])
    assert read(path, limit=2) == PLAIN[:2]
    write(path, AGENTS[::-1])
    assert read(path) == AGENTS[::-1], "sessions stay as they stand"


def test_a_recorded_trace_tells_the_tokens_of_its_blocks(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    more = '"block_size": 128, "model": "m", "prompt_tokens": 290, "cached_tokens": 128'
    path.write_text(f'{{"timestamp": 7, "input_length": 300, "output_length": 5, "hash_ids": [4, 5, 6], {more}}}\n')
    [request] = read(path)
    assert (request.block_size, request.model) == (128, "m")
    assert [len(part) for part in BlockTexts(1, 4.0).prompt(request)] == [512, 512, 176]


def test_of_several_models_one_has_to_be_chosen(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    requests = [TraceRequest(i, 100, 1, (i,), model=model) for i, model in enumerate(["a", "b", "a"])]
    write(path, requests)
    with pytest.raises(TraceError, match="requests for a and b: choose one, with --model"):
        read(path)
    assert read(path, model="a") == [requests[0], requests[2]]
    with pytest.raises(TraceError, match="no request in this trace for the model c"):
        read(path, model="c")


def test_a_block_has_one_length(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    write(path, [TraceRequest(0, 100, 1, (3,)), TraceRequest(1, 100, 1, (3,), block_size=128)])
    with pytest.raises(TraceError, match="block 3 has 512 tokens and 128"):
        read(path)


def test_an_empty_trace_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.touch()
    with pytest.raises(TraceError, match="no request"):
        read(path)


def test_the_arrivals_of_a_tick_are_spread_evenly_over_it() -> None:
    assert arrivals([*PLAIN, TraceRequest(3_000, 1, 1, (0,)), TraceRequest(3_000, 1, 1, (0,))]) == [0, 1.5, 3, 4, 5]


def test_arrivals_that_are_finer_than_the_tick_stay_as_they_are() -> None:
    assert arrivals(AGENTS) == [15.28, 16.0, 46.402]


def test_equal_ids_give_equal_text_and_other_ids_other_text() -> None:
    texts = BlockTexts(seed=1)
    first, second = texts.prompt(PLAIN[0]), texts.prompt(PLAIN[1])
    assert first[0] == second[0]
    assert len({first[0], *second}) == 3
    assert all(left[:64] != right[:64] for left, right in pairwise([first[0], second[1], second[2]]))


def test_texts_are_equal_in_every_run_and_differ_by_seed() -> None:
    assert BlockTexts(seed=1).prompt(PLAIN[1]) == BlockTexts(seed=1).prompt(PLAIN[1])
    assert BlockTexts(seed=1).prompt(PLAIN[1])[0] != BlockTexts(seed=2).prompt(PLAIN[1])[0]


@pytest.mark.parametrize("bytes_per_token", [3.125, 4.0, 4.6875])
@pytest.mark.parametrize("tokens", [1, 511, 512, 513, 1_300])
def test_a_prompt_is_as_long_as_its_input_length(tokens: int, bytes_per_token: float) -> None:
    blocks = tuple(range(-(-tokens // BLOCK_TOKENS)))
    text = "".join(BlockTexts(1, bytes_per_token).prompt(TraceRequest(0, tokens, 1, blocks)))
    assert abs(len(text) - tokens * bytes_per_token) <= 1


def test_a_cut_block_is_a_prefix_of_the_whole_one() -> None:
    texts = BlockTexts(seed=1)
    whole = texts.prompt(TraceRequest(0, 512, 1, (4,)))[0]
    cut = texts.prompt(TraceRequest(0, 100, 1, (4,)))[0]
    assert whole.startswith(cut)
    assert texts.prompt(TraceRequest(0, 512, 1, (4,)))[0] == whole


def test_requests_without_a_session_are_open_loop() -> None:
    workload = trace_workload(PLAIN, seed=1)
    assert [session.start_s for session in workload.sessions] == [0, 1.5, 3]
    assert [len(session.turns) for session in workload.sessions] == [1, 1, 1]
    assert [session.turns[0].max_tokens for session in workload.sessions] == [20, 30, 1]
    assert not any(session.remembers or session.opening for session in workload.sessions)


def test_the_later_turns_of_a_session_wait_for_the_earlier_ones() -> None:
    first, second = trace_workload(AGENTS, seed=1).sessions
    assert (first.id, first.start_s, [turn.think_s for turn in first.turns]) == ("a", 15.28, [0, 29.5])
    assert (second.id, second.start_s, len(second.turns)) == ("b", 16.0, 1)
    early, late = (turn.question.text for turn in first.turns)
    assert late.startswith(early[: BLOCK_TOKENS * 4])
