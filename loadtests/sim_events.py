"""Changes of a simulated fleet as one writes them on a command line: `join@60`, `restart 2 for 30@120`. Pure.

Every mistake is an EventError that says what to write instead. What is read is checked against the fleet as it will be
at that moment, so that the simulation never meets a change that it cannot make.
"""

import difflib
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from loadtests.simulation import Change, Join, Leave, Restart, RouterRestart, Slow
from router.core.types import ReplicaId

DOWN_S = 30.0
"""Seconds until a restarted replica is back, where nothing else is said: an 8B model from a warm page cache."""

EVERYBODY: Final = "all"

_NUMBER = r"(?:\d+(?:\.\d+)?|\.\d+)"
_ONE = r"(?:r|router-)?(?P<who>\d+)"


class EventError(ValueError):
    """An event that cannot be read, or that the fleet of its moment cannot have."""


@dataclass(frozen=True, slots=True)
class _Form:
    """How one kind of event is written: after its name, as a pattern; and an example for who has it wrong."""

    pattern: str
    example: str
    teaches: str


FORMS: Final[Mapping[str, _Form]] = MappingProxyType(
    {
        "join": _Form(rf"(?:x(?P<speed>{_NUMBER}))?", "join x0.5@60", "a new replica, cold, here half as fast"),
        "leave": _Form(_ONE, "leave 2@60", "replica 2 drains and goes"),
        "restart": _Form(
            rf"(?:{_ONE}|(?P<all>{EVERYBODY}))(?: for (?P<down>{_NUMBER}))?(?P<drains> drained)?",
            "restart 2 for 30@60",
            "its process dies, and is back empty after 30 s; `all` for 2, `drained` at the end",
        ),
        "slow": _Form(rf"{_ONE} x(?P<speed>{_NUMBER})", "slow 2 x0.5@60", "from then on half as fast"),
        "router": _Form(
            rf"{_ONE}(?P<cold> cold)?", "router 1@60", "a new process with the old one's snapshot; or `cold`"
        ),
    }
)
"""Kind -> form. Times in seconds of the simulation."""


@dataclass(frozen=True, slots=True)
class Events:
    """All of a run, in order of time: the changes that they are, and each as it was written with its second."""

    changes: Sequence[Change] = ()
    told: Sequence[tuple[str, float]] = ()

    @property
    def name(self) -> str:
        """All of them, to tell runs apart by; `-` where nothing changes."""
        return ", ".join(text for text, _ in self.told) or "-"


def read(texts: Sequence[str], replicas: int, routers: int) -> Events:
    """What these texts say of a fleet with so many at the start. Raises EventError."""
    events = sorted((_read(text) for text in texts), key=lambda event: event.at)
    fleet = _Fleet(replicas, routers)
    return Events(
        [change for event in events for change in fleet.take(event)], [(event.text, event.at) for event in events]
    )


@dataclass(frozen=True, slots=True)
class _Event:
    """One text, taken apart; `parts` are the pattern's groups that are there."""

    text: str
    kind: str
    at: float
    parts: Mapping[str, str]

    def wrong(self, remedy: str) -> EventError:
        return EventError(f"{self.text!r}: {remedy}")

    @property
    def speed(self) -> float:
        speed = float(self.parts.get("speed", "1"))
        if not speed:
            raise self.wrong(f"a speed is above 0: {FORMS[self.kind].example}")
        return speed


def _read(text: str) -> _Event:
    what, sign, when = text.strip().rpartition("@")
    if not sign:
        raise EventError(f"{text!r}: say at which second: {text.strip() or 'join'}@60")
    if not re.fullmatch(_NUMBER, when.strip()):
        raise EventError(f"{text!r}: {when!r} is no number of seconds: {what.strip()}@60")
    kind, _, rest = " ".join(what.split()).partition(" ")
    form = FORMS.get(kind)
    if form is None:
        near = difflib.get_close_matches(kind, FORMS, 1)
        hint = f"did you mean {near[0]}?" if near else f"one of {', '.join(FORMS)}."
        raise EventError(f"{text!r}: no such event: {hint} For example {FORMS[near[0] if near else 'join'].example}")
    match = re.fullmatch(form.pattern, rest)
    if match is None:
        raise EventError(f"{text!r}: write it like {form.example} ({form.teaches})")
    return _Event(text, kind, float(when), {name: part for name, part in match.groupdict().items() if part})


class _Fleet:
    """Who will be there when. `_back` has, for each replica, from when on it is there."""

    def __init__(self, replicas: int, routers: int) -> None:
        self._back = {f"r{number}": 0.0 for number in range(1, replicas + 1)}
        self._named, self._routers = replicas, routers
        self._makes: Mapping[str, Callable[[_Event], Iterator[Change]]] = {
            "join": self._join,
            "leave": self._leave,
            "restart": self._restart,
            "slow": self._slow,
            "router": self._router,
        }

    def take(self, event: _Event) -> Iterator[Change]:
        """The changes that an event is. Raises EventError."""
        return self._makes[event.kind](event)

    def _one(self, event: _Event) -> ReplicaId:
        """The replica that an event is about, which is there."""
        name = f"r{event.parts['who']}"
        back = self._back.get(name)
        if back is None:
            raise event.wrong(f"no replica {name} at {event.at:g} s: there are {', '.join(self._back)}")
        if back == math.inf:
            raise event.wrong(f"{name} drains and restarts before, which takes as long as it takes: choose another one")
        if back > event.at:
            raise event.wrong(f"{name} is back at {back:g} s only: write @{back:g} or later")
        return name

    def _join(self, event: _Event) -> Iterator[Change]:
        self._named += 1
        self._back[f"r{self._named}"] = event.at
        yield Join(event.at, f"r{self._named}", event.speed)

    def _leave(self, event: _Event) -> Iterator[Change]:
        name = self._one(event)
        if len(self._back) == 1:
            raise event.wrong("it is the last one: have another one join before, or more --replicas")
        del self._back[name]
        yield Leave(event.at, name)

    def _restart(self, event: _Event) -> Iterator[Change]:
        down_s, drains = float(event.parts.get("down", DOWN_S)), "drains" in event.parts
        for name in list(self._back) if "all" in event.parts else [self._one(event)]:
            if self._back[name] <= event.at:  # One of `all` that is down comes back empty anyhow.
                self._back[name] = math.inf if drains else event.at + down_s
                yield Restart(event.at, name, down_s, drains)

    def _slow(self, event: _Event) -> Iterator[Change]:
        yield Slow(event.at, self._one(event), event.speed)

    def _router(self, event: _Event) -> Iterator[Change]:
        number = int(event.parts["who"])
        if not 1 <= number <= self._routers:
            raise event.wrong(f"routers count from 1 to {self._routers}: {FORMS['router'].example}, or more --routers")
        yield RouterRestart(event.at, number, "cold" not in event.parts)
