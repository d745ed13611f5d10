"""What workers report of themselves at a scrape, as one router's numbers. Pure.

Counters go on when a worker is replaced: what it had counted stays in the sum. Beliefs are shared, each worker has a
copy of nearly the same ones: the index is as large as the largest copy, and its memory is that of all of them.
"""

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple


class Report(NamedTuple):
    """One worker's: requests that wait, by model; blocks in the index by replica and in all; since its start what was
    evicted, and the log lines and messages dropped; the share of its retry budget that is left."""

    queued: Mapping[str, int]
    held: Mapping[str, int]
    blocks: int
    evictions: int
    log_dropped: int
    dropped: Mapping[str, int]
    budget: float


class Reports:
    """The last report of each worker that is there, and the counters of all that ever were."""

    def __init__(self) -> None:
        self._last: dict[str, Report] = {}
        self.evictions = self.log_dropped = 0
        self.dropped: Counter[str] = Counter()

    def take(self, worker: str, report: Report) -> None:
        """A worker has reported."""
        last = self._last.get(worker)
        self._last[worker] = report
        self.evictions += report.evictions - (last.evictions if last else 0)
        self.log_dropped += report.log_dropped - (last.log_dropped if last else 0)
        for kind, count in report.dropped.items():
            self.dropped[kind] += count - (last.dropped.get(kind, 0) if last else 0)

    def forget(self, worker: str) -> None:
        """A worker is gone."""
        self._last.pop(worker, None)

    def queued(self) -> Counter[str]:
        """Requests that wait, by model; those that name none under the empty one."""
        return sum((Counter(report.queued) for report in self._last.values()), Counter())

    @property
    def blocks(self) -> int:
        """Blocks believed resident, over all replicas."""
        return max((report.blocks for report in self._last.values()), default=0)

    @property
    def copies(self) -> int:
        """The same, over all workers."""
        return sum(report.blocks for report in self._last.values())

    def held(self, replica: str) -> int:
        """Blocks believed resident on one replica."""
        return max((report.held.get(replica, 0) for report in self._last.values()), default=0)

    @property
    def budget(self) -> float:
        """The share of the retry budget that is left where it is least: each worker has its own, and there a request
        whose replica failed is not sent again. 1 while none has reported."""
        return min((report.budget for report in self._last.values()), default=1.0)
