"""The file that `homing record` writes, and what there is in it. It holds whole lines whatever happens."""

import os
import stat
from pathlib import Path

import msgspec


class _Line(msgspec.Struct):
    """What is counted of a line."""

    input_length: int
    output_length: int
    hash_ids: list[int]
    prompt_tokens: int | None = None
    cached_tokens: int | None = None


class Tape:
    """The file. It is made for its owner alone, and never longer than `most` bytes or `requests` lines."""

    def __init__(self, path: Path, overwrite: bool, most: int, requests: int | None) -> None:
        """Raises OSError; FileExistsError for a file that is there, unless it may be overwritten."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | (os.O_TRUNC if overwrite else os.O_EXCL)
        self._file = os.open(path, flags, 0o600)
        self._is_file = stat.S_ISREG(os.fstat(self._file).st_mode)
        if self._is_file:
            os.fchmod(self._file, 0o600)  # One that was there may have been open to others.
        self._most, self._left = most, requests
        self._rest = b""
        self.full = False
        self.bytes = self.requests = 0
        self.blocks = self.repeats = self._highest = 0
        self.input = self.output = self.untold = self.counted = self.counted_input = self.cached = 0

    def take(self, data: bytes) -> None:
        """Write the lines that are whole. Raises OSError, and then has written none of them."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        kept: list[bytes] = []
        room = self._most - self.bytes
        for line in lines:
            if not line:
                continue  # A sign of life.
            room -= len(line) + 1
            if room < 0 or self._left == 0:
                self.full = True
                break
            if self._left is not None:
                self._left -= 1
            kept.append(line + b"\n")
        self._write(b"".join(kept))
        for line in kept:
            self._count(msgspec.json.decode(line, type=_Line))
        self.full = self.full or self._left == 0

    def close(self) -> None:
        """What is written stays."""
        os.close(self._file)

    def _write(self, data: bytes) -> None:
        try:
            left = memoryview(data)
            while left:
                left = left[os.write(self._file, left) :]
        except OSError:
            if self._is_file:
                os.ftruncate(self._file, self.bytes)  # Half a line may be out.
            raise
        self.bytes += len(data)

    def _count(self, line: _Line) -> None:
        self.requests += 1
        self.input += line.input_length
        self.output += line.output_length
        if line.prompt_tokens is None:
            self.untold += 1
        else:
            self.counted += line.prompt_tokens
            self.counted_input += line.input_length
            self.cached += line.cached_tokens or 0
        for block in line.hash_ids:  # They are numbered as they come: one up to the highest was there before.
            self.repeats += block < self._highest
            self._highest = max(self._highest, block + 1)
        self.blocks += len(line.hash_ids)

    @property
    def amount(self) -> str:
        """How much there is."""
        return f"{self.requests:,} requests, {self.bytes / 1e6:,.1f} MB"

    @property
    def figures(self) -> list[str]:
        """What there is in it, a line each."""
        told = f"{self.input:,} prompt tokens in {self.blocks:,} blocks, {_share(self.repeats, self.blocks)} of which"
        lines = [f"{told} had come before; {self.output:,} output tokens"]
        if self.counted:
            off = self.counted_input / self.counted - 1
            lines.append(
                f"engines counted {self.counted:,} prompt tokens where they told, {off:+.1%} in the trace; "
                f"{_share(self.cached, self.counted)} of them cached"
            )
        if self.untold:
            lines.append(
                f"{self.untold:,} requests of which the engine told nothing: their output is the reads that it came in"
            )
        return lines


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}"
