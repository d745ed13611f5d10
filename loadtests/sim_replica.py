"""One simulated replica on a hand-turned clock: an engine whose steps take simulated time, and no socket.

What a step did becomes true at its end, when the replica tells. Quiet steps (engine.py) are jumped over; a request that
arrives meanwhile waits, as in an engine, for the end of the step that it falls into.

A replica that is stopped tells nothing any more. One that restarts is a new object of the same name.
"""

from typing import Protocol

from loadtests.clock import Clock
from replica.engine import Engine, Quiet, StepResult, Work
from replica.profiles import Profile


class Listener(Protocol):
    """Whoever sent a request. All is told at the moment of the clock."""

    def on_first_token(self) -> None: ...

    def on_end(self, cached_tokens: int) -> None:
        """The answer is whole. `cached_tokens` as its usage tells."""
        ...

    def on_lost(self) -> None:
        """The replica is gone."""
        ...


class _Request:
    """In the engine: who waits for it, and what of its prompt was cached."""

    __slots__ = ("cached_tokens", "listener")

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.cached_tokens = 0


class SimReplica:
    """`computed_tokens` of prompts (after a preemption again), `output_tokens` and `busy_s` are totals."""

    def __init__(self, name: str, engine: Engine, clock: Clock) -> None:
        self.id = name
        self.engine = engine
        self.computed_tokens = self.output_tokens = 0
        self.busy_s = 0.0
        self._clock = clock
        self._requests: dict[str, _Request] = {}
        self._unstarted: set[str] = set()
        self._turn = 0  # The number of the wake-up that counts; any earlier one was overtaken.
        self._asleep = True
        self._began_at = 0.0
        self._quiet: Quiet | None = None
        self._result = StepResult()

    def submit(self, work: Work, listener: Listener) -> None:
        """Queue a request. Raises DoesNotFitError, and then nothing is queued."""
        comes_after_others = self.engine.waiting > 0
        self.engine.add(work, self._clock.now)
        self._requests[work.id] = _Request(listener)
        self._unstarted.add(work.id)
        if self._asleep:
            self._asleep = False
            self._begin()
        elif self._quiet is not None and not comes_after_others:
            self._cut_short(self._quiet)

    def change_profile(self, profile: Profile) -> None:
        """Run at another speed from the next step on."""
        if self._quiet is not None:
            self._cut_short(self._quiet)
        self.engine.profile = profile

    def stop(self) -> None:
        """The process ends; every request in it is lost."""
        self._turn += 1
        requests, self._requests = self._requests, {}
        for request in requests.values():
            request.listener.on_lost()

    def _begin(self) -> None:
        """The next steps begin now."""
        now = self._began_at = self._clock.now
        self._quiet = self.engine.quiet()
        if self._quiet is not None:
            self._wake_in(self._quiet.seconds(self._quiet.steps))
        else:
            self._result = self.engine.step(now)
            self.computed_tokens += self._result.prefill_tokens
            self._wake_in(self._result.duration)

    def _wake_in(self, seconds: float) -> None:
        self._turn += 1
        self._clock.at(self._began_at + seconds, self._wake, self._turn)

    def _cut_short(self, quiet: Quiet) -> None:
        """End the quiet steps with the one that is going on."""
        steps = quiet.until(self._clock.now - self._began_at)
        self._skip(quiet, steps)
        self._quiet, self._result = None, StepResult()
        self._wake_in(quiet.seconds(steps))

    def _skip(self, quiet: Quiet, steps: int) -> None:
        self.engine.skip(steps)
        self.output_tokens += steps * quiet.decodes
        self.busy_s += quiet.seconds(steps)

    def _wake(self, turn: int) -> None:
        """The steps that were going on are over."""
        if turn != self._turn:
            return
        if self._quiet is not None:
            self._skip(self._quiet, self._quiet.steps)
            self._quiet = None
        else:
            self._tell(self._result)
        if self.engine.busy:
            self._begin()
        else:
            self._asleep = True

    def _tell(self, result: StepResult) -> None:
        requests, unstarted = self._requests, self._unstarted
        self.output_tokens += len(result.tokens)
        self.busy_s += result.duration
        for request, cached_tokens, _ in result.admitted:
            requests[request].cached_tokens = cached_tokens
        if unstarted:
            for request in result.tokens:  # In the engine's order: a set's would differ from run to run.
                if request in unstarted:
                    unstarted.remove(request)
                    requests[request].listener.on_first_token()
        for request in result.finished:
            done = requests.pop(request)
            done.listener.on_end(done.cached_tokens)
