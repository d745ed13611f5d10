"""When a replica is ejected for its failures, for how long, and how it comes back. Pure.

A replica that answers 500 in a millisecond has no load, holds its prompts' prefixes, and answers its probes: everything
that routing looks at speaks for it. So it is judged by how its sends end, by rate *and* volume: in the last ten seconds
at least `failures` failed, and these were its very last ones (it has just broken), or half of all (it is broken in
part). A few connection errors among many good answers never eject anybody.

    ready --- fails too often ---> ejected for first * 2**n seconds, at most `longest`
      ^                               |
      |                               v time is over
      +------- first token ------- on trial: one request at a time
                                      |
                                      +--- a failure ---> ejected, n + 1

`n` counts ejections and falls by one for each `longest` that passes without another. On trial a broken replica costs
one request for each of its ejections, and a mended one is back with its first token.

Of those who answer their probes at most half are out (ejected or on trial), in the whole fleet and among the replicas
of each model: when more fail than that, the cause is rarely the replicas, and somebody must serve. When others go down,
those who were out longest are taken back without a trial. It is the fleet that counts them (fleet.py).

What is a failure is the data plane's to say: a 5xx other than a refusal, a connection that cannot be made, breaks off
or times out, an answer that is no HTTP. Never one: a 4xx, a refusal (429, 503), a client that left, a connection that
was closed while it was idle.

Sources: Envoy's outlier detection (consecutive_5xx 5, times growing with the number of ejections, a bound on the share
ejected), and the half-open state of a circuit breaker (Nygard, Release It!).
"""

from dataclasses import dataclass

from router.core.window import Window

SHARE = 0.5
"""Share of a replica's sends that must have failed: below, it does more good than harm."""


@dataclass(frozen=True, slots=True)
class EjectionSettings:
    """`failures` None never ejects; `first` and `longest` in seconds."""

    failures: int | None = 5
    first: float = 5.0
    longest: float = 60.0


class Conduct:
    """How one replica's sends have ended of late. Times in monotonic seconds."""

    __slots__ = ("_ejections", "_failed", "_run", "_sends", "on_trial", "until")

    def __init__(self) -> None:
        self._sends = Window()
        self._failed = Window()
        self._ejections = self._run = 0
        self.on_trial = False
        self.until = 0.0

    def ended(self, failed: bool, settings: EjectionSettings, now: float) -> bool:
        """Count a send; whether the replica should be ejected for it."""
        self._sends.add(now)
        if not failed or settings.failures is None:
            self.on_trial = False
            self._run = 0
            return False
        self._failed.add(now)
        self._run += 1
        if self.on_trial:
            return True
        failures = self._failed.total(now)
        if failures < settings.failures:
            return False
        return self._run >= settings.failures or failures >= SHARE * self._sends.total(now)

    def eject(self, settings: EjectionSettings, now: float) -> float:
        """Begin an ejection; how many seconds it lasts."""
        calm = int(max(0.0, now - self.until) / settings.longest)
        self._ejections -= min(self._ejections, calm)
        seconds: float = min(settings.longest, settings.first * 2.0**self._ejections)
        self._ejections += 1
        self.on_trial = False
        self.until = now + seconds
        return seconds

    def told(self, now: float) -> str:
        """The failures, for people."""
        return f"{self._failed.total(now)} of the last {self._sends.total(now)} requests failed"
