"""Runs an engine in real time: one task for the whole replica, whatever the number of requests.

The engine's clock is an absolute schedule: each step begins where the last one ended, so late timers do not add up.
Steps shorter than the tick are run several at a time and their tokens published together, because waking up for every
half a millisecond at a high `speed` would burn a core for timers alone.
A process that was stopped or starved catches up by not sleeping, but for at most `MAX_LAG`: beyond that the lost time
is lost, as it would be on a GPU that was stalled.

It knows no HTTP. A handler submits the works of one request as a Job, waits for `Job.changed`, and withdraws the job in
the end, which aborts what is unfinished.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from replica.engine import Engine, StepResult, Work

TICK: Final = 0.002  # Seconds. Timers of epoll and libuv have a millisecond's grain; twice that keeps them apart.
MAX_LAG: Final = 0.5  # Seconds; several times a scheduler's longest pause on a busy machine.


class Progress:
    """How far one work has come. `reason` is what its end will be called (`stop` or `length`)."""

    __slots__ = ("cached_tokens", "finished", "job", "produced", "reason", "work")

    def __init__(self, work: Work, reason: str, job: "Job") -> None:
        self.work = work
        self.reason = reason
        self.job = job
        self.produced = 0
        self.cached_tokens = 0
        self.finished = False


class Job:
    """The works of one request; `changed` returns whenever at least one of them has come further."""

    __slots__ = ("_changed", "parts")

    def __init__(self, works: Sequence[tuple[Work, str]]) -> None:
        self.parts = [Progress(work, reason, self) for work, reason in works]
        self._changed = asyncio.Event()

    @property
    def finished(self) -> bool:
        return all(part.finished for part in self.parts)

    @property
    def cached_tokens(self) -> int:
        return sum(part.cached_tokens for part in self.parts)

    def wake(self) -> None:
        self._changed.set()

    async def changed(self) -> None:
        await self._changed.wait()
        self._changed.clear()

    async def end(self) -> None:
        while not self.finished:
            await self.changed()


class _Turn(NamedTuple):
    ends: float
    results: list[StepResult]


class Driver:
    """Owns the engine's clock. `run` is a task of the replica's owner; an error in it is the owner's to raise."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.slowdown = 1.0
        self.endings: Counter[str] = Counter()
        self._parts: dict[str, Progress] = {}
        self._work = asyncio.Event()

    @property
    def in_flight(self) -> int:
        """Works submitted and neither finished nor withdrawn."""
        return len(self._parts)

    def submit(self, works: Sequence[tuple[Work, str]]) -> Job:
        """Queue the works of one request, each with the name of its ending. Errors of `Engine.add` pass; then nothing
        is queued."""
        now = asyncio.get_running_loop().time()
        job = Job(works)
        try:
            for part in job.parts:
                self.engine.add(part.work, now)
                self._parts[part.work.id] = part
        except ValueError:
            self.withdraw(job)
            raise
        self._work.set()
        return job

    def withdraw(self, job: Job) -> None:
        """Abort what is unfinished of a job; the engine frees its blocks now."""
        for part in job.parts:
            if self._parts.pop(part.work.id, None) is not None:
                self.engine.abort(part.work.id)
                self.endings["abort"] += 1

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._work.wait()
            self._work.clear()
            clock = loop.time()
            while self.engine.busy:
                clock, results = self._turn(max(clock, loop.time() - MAX_LAG))
                await asyncio.sleep(max(0.0, clock - loop.time()))
                self._publish(results)

    def _turn(self, clock: float) -> _Turn:
        """Run steps from `clock` on until they make up a tick."""
        results = []
        end = clock + TICK
        while self.engine.busy and clock < end:
            result = self.engine.step(clock)
            clock += result.duration * self.slowdown
            results.append(result)
        return _Turn(clock, results)

    def _publish(self, results: Sequence[StepResult]) -> None:
        """Tell the jobs what came of them; one wake-up per job, whatever the number of its new tokens.

        A withdrawn work is no longer in `_parts`: what the engine did for it in the meantime goes nowhere.
        """
        parts = self._parts
        changed: set[Job] = set()
        for result in results:
            for request, cached_tokens, _ in result.admitted:
                if part := parts.get(request):
                    part.cached_tokens = cached_tokens
            for request in result.tokens:
                if part := parts.get(request):
                    part.produced += 1
                    changed.add(part.job)
            changed.update(self._finish(result.finished))
        for job in changed:
            job.wake()

    def _finish(self, finished: Sequence[str]) -> Iterator[Job]:
        for request in finished:
            if part := self._parts.pop(request, None):
                part.finished = True
                self.endings[part.reason] += 1
                yield part.job
