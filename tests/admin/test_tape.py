"""The file of `homing record`: whole lines only, bounded, for its owner alone."""

import json
import resource
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from router.tape import Tape

MANY = 1 << 20


def line(*ids: int, **more: int) -> bytes:
    return json.dumps({"input_length": 100, "output_length": 5, "hash_ids": ids, **more}).encode() + b"\n"


@contextmanager
def disk_of(size: int) -> Iterator[None]:
    """No file grows beyond so many bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_line_is_written_when_it_is_whole_and_signs_of_life_are_not(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    tape = Tape(path, False, MANY, None)
    whole = line(0)
    tape.take(b"\n" + whole + whole[:10])
    assert path.read_bytes() == whole
    tape.take(whole[10:] + b"\n\n")
    assert path.read_bytes() == whole * 2
    tape.close()


def test_a_file_that_is_there_is_replaced_only_if_that_is_wanted_and_is_its_owners_then(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text("old and longer than what comes")
    path.chmod(0o644)
    with pytest.raises(FileExistsError):
        Tape(path, False, MANY, None)
    tape = Tape(path, True, MANY, None)
    tape.take(line(0))
    tape.close()
    assert path.read_bytes() == line(0)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_it_never_grows_beyond_its_bounds(tmp_path: Path) -> None:
    by_bytes = Tape(tmp_path / "bytes", False, 2 * len(line(0)) + 10, None)
    by_bytes.take(line(0) * 2)
    assert not by_bytes.full
    by_bytes.take(line(0))
    assert (by_bytes.full, by_bytes.requests) == (True, 2)
    by_count = Tape(tmp_path / "count", False, MANY, 2)
    by_count.take(line(0) * 3)
    assert (by_count.full, by_count.requests) == (True, 2)
    assert (tmp_path / "bytes").read_bytes() == (tmp_path / "count").read_bytes() == line(0) * 2
    by_bytes.close()
    by_count.close()


def test_a_full_disk_leaves_the_lines_before(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    tape = Tape(path, False, MANY, None)
    tape.take(line(0))
    with disk_of(len(line(0)) + 20), pytest.raises(OSError, match="File too large"):
        tape.take(line(1))
    assert (path.read_bytes(), tape.requests) == (line(0), 1)
    tape.take(line(1))
    assert path.read_bytes() == line(0) + line(1)
    tape.close()


def test_the_figures_are_those_of_what_is_written(tmp_path: Path) -> None:
    tape = Tape(tmp_path / "trace", False, MANY, 3)
    lines = [line(0, 1), line(0, 2, prompt_tokens=80, cached_tokens=20), line(0, 1, 3), line(9)]
    tape.take(b"".join(lines))
    assert tape.amount == "3 requests, 0.0 MB"
    assert tape.figures == [
        "300 prompt tokens in 7 blocks, 42.9% of which had come before; 15 output tokens",
        "engines counted 80 prompt tokens where they told, +25.0% in the trace; 25.0% of them cached",
        "2 requests of which the engine told nothing: their output is the reads that it came in",
    ]
    tape.close()
