"""Health checks of the router itself, told as kube-apiserver tells them. Pure.

A check is a name and a function that answers what is wrong, or None. `/livez` has none but the answer itself: the
event loop turns. It must not depend on replicas, or a fleet's outage would have every router restarted on top of it.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from router.core.fleet import Fleet


class Check(NamedTuple):
    """`problem` answers what is wrong in one line; None when nothing is. One that does not `decide` only tells."""

    name: str
    problem: Callable[[], str | None]
    decides: bool = True


def replicas(fleet: Fleet, least: Callable[[], int]) -> Check:
    """At least so many replicas are ready; with 0 a router without any is ready too, and answers 503 itself."""

    def problem() -> str | None:
        ready, wanted = len(fleet.ready), least()
        return None if ready >= wanted else f"{ready} of {len(fleet.replicas)} are ready, {wanted} wanted"

    return Check("replicas", problem)


def verdict(probe: str, checks: Sequence[Check], verbose: bool) -> tuple[bool, str]:
    """Whether all pass, and the text of the answer: `ok`, or a line for each check."""
    found = [(check, check.problem()) for check in checks]
    good = all(problem is None or not check.decides for check, problem in found)
    if good and not verbose:
        return True, "ok"
    lines = [_line(check, problem) for check, problem in found]
    return good, "\n".join([*lines, f"{probe} check {'passed' if good else 'failed'}", ""])


def _line(check: Check, problem: str | None) -> str:
    if problem is None:
        return f"[+]{check.name} ok"
    return f"[-]{check.name} failed: {problem}" if check.decides else f"[~]{check.name} degraded: {problem}"
