"""Settings of which each is good and that contradict each other: one of them never has any effect. Pure.

Only what the operator wrote is complained of, never a default that another setting makes meaningless: who wants
requests to end after a minute need not shorten every other time.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from router.config import Config
from router.diagnostics import Path, dotted

_Value = Callable[[Config], float | None]


class _Bound(NamedTuple):
    """One setting that is over when the other is; None: without end."""

    path: Path
    value: _Value
    by: Path
    most: _Value
    then: str


_BOUNDS = (
    _Bound(
        ("drain", "accept"), lambda it: it.drain.accept, ("drain", "timeout"), lambda it: it.drain.timeout,
        "both begin with the signal, and requests taken at the end have no time left",
    ),
    _Bound(
        ("timeouts", "first_byte"), lambda it: it.timeouts.first_byte,
        ("timeouts", "request"), lambda it: it.timeouts.request, "the request is over before",
    ),
    _Bound(
        ("timeouts", "idle"), lambda it: it.timeouts.idle, ("timeouts", "request"), lambda it: it.timeouts.request,
        "the request is over before",
    ),
    _Bound(
        ("limits", "body"), lambda it: it.limits.body, ("limits", "buffered"), lambda it: it.limits.buffered,
        "a body of that size never finds room, and is refused as too large",
    ),
    _Bound(
        ("ready", "min_replicas"), lambda it: it.ready.min_replicas, ("replicas",), lambda it: len(it.replicas),
        "there are not that many, and this router never becomes ready",
    ),
)  # fmt: skip


def contradictions(config: Config) -> Iterator[tuple[Path, str, str]]:
    """Path, what is wrong and the remedy, for each setting that is more than one that bounds it."""
    for bound in _BOUNDS:
        value, most = bound.value(config), bound.most(config)
        if most is not None and value is not None and value > most:
            message = f"`{bound.path[-1]}` is more than `{dotted(bound.by)}` allows: {bound.then}"
            yield bound.path, message, f"less here, or more in `{dotted(bound.by)}`"
