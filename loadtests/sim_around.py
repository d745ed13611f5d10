"""What changes of a fleet made of its traffic: the requests sent just before each, and those sent just after. Pure.

Windows are by the moment at which a request was sent. A change that came when all was over made nothing, and is said.
"""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.table import Table

from loadtests.records import Record

WINDOW_S = 30.0


@dataclass(frozen=True, slots=True)
class Figures:
    """Of the requests of a window: mean TTFT in seconds, cached over all prompt tokens (both None where nothing was
    answered), and how many failed in it, whenever they were sent."""

    ttft: float | None
    hit_ratio: float | None
    failed: int


def figures(records: Iterable[Record], begin: float, end: float) -> Figures:
    """Of those sent in [begin, end)."""
    known = list(records)
    failed = sum(record.error is not None and begin <= record.end_s < end for record in known)
    whole = [record for record in known if record.error is None and begin <= record.sent_s < end]
    ttfts = [record.ttft_s for record in whole if record.ttft_s is not None]
    prompts = sum(record.prompt_tokens for record in whole)
    hit_ratio = sum(record.cached_tokens for record in whole) / prompts if prompts else None
    return Figures(math.fsum(ttfts) / len(ttfts) if ttfts else None, hit_ratio, failed)


@dataclass(frozen=True, slots=True)
class Moment:
    """An event of one run, as it was written, with what lies WINDOW_S before and after it."""

    arm: str
    event: str
    before: Figures
    after: Figures


def moments(arm: str, records: Sequence[Record], events: Iterable[tuple[str, float]], over_s: float) -> list[Moment]:
    """One for each event (its text, its second) that came before the run was over."""
    return [
        Moment(arm, text, figures(records, at - WINDOW_S, at), figures(records, at, at + WINDOW_S))
        for text, at in events
        if at < over_s
    ]


def table(found: Sequence[Moment]) -> Table:
    """A row for each arm and event: medians over the seeds."""
    grid = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in ("event", "arm", "TTFT mean s before", "after", "hit % before", "after", "failed after"):
        grid.add_column(name, justify="left" if name in ("event", "arm") else "right")
    for event, arm in dict.fromkeys((each.event, each.arm) for each in found):
        own = [each for each in found if (each.event, each.arm) == (event, arm)]
        grid.add_row(
            event, arm,
            _median([each.before.ttft for each in own], 1, 3), _median([each.after.ttft for each in own], 1, 3),
            _median([each.before.hit_ratio for each in own], 100, 1),
            _median([each.after.hit_ratio for each in own], 100, 1),
            f"{statistics.median([each.after.failed for each in own]):g}",
        )  # fmt: skip
    return grid


def _median(values: Sequence[float | None], scale: float, digits: int) -> str:
    known = [value for value in values if value is not None]
    return f"{statistics.median(known) * scale:.{digits}f}" if known else "-"
