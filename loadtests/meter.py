"""CPU time of a process and of all that it started, from /proc; its memory; and which cores a child may run on.

User and system time of every living member of the tree, with what its ended children had used: a member that ends
between two readings moves its time into its parent's, so that the sum never falls. The kernel counts in ticks of 10 ms
(less exact for a reading of less than a second). Linux only.
"""

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Usage:
    """One process: its parent, and the ticks that it and its ended children have used."""

    parent: int
    ticks: int


class GoneError(RuntimeError):
    """The process that is measured has ended."""


def read_stat(stat: str) -> Usage:
    """The text of /proc/PID/stat (proc_pid_stat(5)): field 4 is the parent, 14 to 17 are utime, stime, cutime, cstime.

    The name in field 2 may hold blanks and parentheses, so that fields are counted from the last parenthesis.
    """
    fields = stat.rpartition(")")[2].split()
    return Usage(int(fields[1]), sum(int(field) for field in fields[11:15]))


def table(proc: Path = PROC) -> dict[int, Usage]:
    """All processes of this machine that live now."""
    found = {}
    for entry in proc.iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # It ended while we looked.
                found[int(entry.name)] = read_stat((entry / "stat").read_text())
    return found


def tree_ticks(root: int, processes: dict[int, Usage]) -> int:
    """Ticks of `root` and all below it. Raises GoneError when there is no such process."""
    if root not in processes:
        raise GoneError(f"process {root} has ended while it was measured")
    children: dict[int, list[int]] = {}
    for pid, usage in processes.items():
        children.setdefault(usage.parent, []).append(pid)
    total, todo = 0, [root]
    while todo:
        pid = todo.pop()
        total += processes[pid].ticks
        todo += children.get(pid, ())
    return total


def cpu_seconds(root: int) -> float:
    """CPU seconds that a process and all below it have used. Raises GoneError."""
    return tree_ticks(root, table()) / os.sysconf("SC_CLK_TCK")


def resident_mb(pid: int, proc: Path = PROC) -> float:
    """Memory of one process that is in RAM (VmRSS), in MB of 1,000,000 bytes. Raises GoneError."""
    try:
        status = (proc / str(pid) / "status").read_text()
    except FileNotFoundError as error:
        raise GoneError(f"process {pid} has ended while it was measured") from error
    found = re.search(r"^VmRSS:\s+(\d+) kB$", status, re.MULTILINE)
    if found is None:
        raise GoneError(f"process {pid} has ended while it was measured")
    return int(found[1]) * 1024 / 1e6


@dataclass(frozen=True, slots=True)
class Cores:
    """Where the measured process and everything else may run."""

    proxy: frozenset[int]
    rest: frozenset[int]


def split_cores() -> Cores:
    """The last core that we may use for the proxy, the others for the rest. Raises ValueError when there is but one."""
    ours = sorted(os.sched_getaffinity(0))
    if len(ours) < 2:
        raise ValueError("--pin gives the proxy a core of its own, and this process may use only one: leave it out")
    return Cores(frozenset(ours[-1:]), frozenset(ours[:-1]))


@contextlib.contextmanager
def on(cores: frozenset[int] | None) -> Iterator[None]:
    """Children started within run on these cores, as all that they start; None changes nothing."""
    if cores is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
