"""What a replica began and ended to generate, by request id, in a file: how work that is done twice is counted.

A line for each, `begin ID` or `end ID`, handed to the kernel at once, so that a process that is killed has told all.
An aborted generation has no end. Requests without an id of their own (`X-Request-Id`) are not told.
"""

import os
from pathlib import Path
from typing import Literal


class GenerationLog:
    """Open until `close`. Raises OSError when the file cannot be written."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def note(self, event: Literal["begin", "end"], request_id: str | None) -> None:
        """Tell of one generation."""
        if request_id is not None:
            os.write(self._file, f"{event} {request_id}\n".encode("ascii"))

    def close(self) -> None:
        """No more will be told."""
        os.close(self._file)
