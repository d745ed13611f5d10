"""Continuous batching with chunked prefill, as vLLM V1 schedules it; time passes only in `step`.

One step takes from its token budget, in this order: the running requests in order of admission (decodes, then the one
unfinished prefill), then the waiting requests in order of arrival while budget, sequences and blocks allow. An
unfinished prefill means that its step's budget ran out, so nothing was admitted after it: there is at most one, it is
the last of the running, and one pass over them serves decodes before prefill.

- The prefix is looked up at admission. The last token of a prompt is always computed, since its output is needed, so a
  full hit recomputes its last block.
- A running request that cannot get a block preempts the latest admitted, if need be itself. The victim loses its
  blocks, goes to the front of the waiting queue, and is recomputed with the tokens that it had generated; what is
  still resident of it is hit. A step that preempted admits nobody.
- A request that did not fit is looked up again when more blocks are free than then, not in every step: what others
  take or compute in the meantime hardly makes it fit, and a long prompt's lookup would cost more than the step itself.
- Blocks of the answer are named when they are full, like those of the prompt.

This file never reads a clock, draws nothing at random, and does no work per token of a prompt. The real-time driver
and the discrete-event simulator both run it: they hand over `now` and are told how long the step takes. The simulator
jumps over *quiet* steps, in which requests only decode and nobody comes or goes: `quiet` says which they are, `skip`
does any number of them at once, with the result that `step` would have had.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from replica.kvcache import PrefixCache
from replica.profiles import Profile


class DoesNotFitError(ValueError):
    """The request alone needs more blocks than the engine has; it could never finish."""


@dataclass(frozen=True, slots=True)
class Work:
    """One request.

    `names` are the chained hashes of its leading full engine blocks, prompt first and then answer, as far as they are
    known (`replica.tokens.chain` makes them from token ids; a trace brings its own). Blocks beyond `names` take memory
    but can never be hit. `output_tokens` of 0 is a request that only prefills, as an embedding does.
    """

    id: str
    prompt_tokens: int
    output_tokens: int
    names: Sequence[int] = ()

    def __post_init__(self) -> None:
        if self.prompt_tokens < 1 or self.output_tokens < 0:
            raise ValueError(f"{self.id}: {self.prompt_tokens} prompt and {self.output_tokens} output tokens")


@dataclass(frozen=True, slots=True)
class Limits:
    """vLLM's two batch limits under its own names; 2,048 tokens is its choice for small GPUs."""

    max_num_batched_tokens: int = 8_192
    max_num_seqs: int = 256

    def __post_init__(self) -> None:
        if not 1 <= self.max_num_seqs <= self.max_num_batched_tokens:
            raise ValueError("max_num_seqs must be at least 1 and at most max_num_batched_tokens")


class Admission(NamedTuple):
    """A request left the queue for the first time: what its prefix lookup found, and how long it had waited."""

    id: str
    cached_tokens: int
    waited: float


@dataclass(slots=True)
class StepResult:
    """What one step did. All of it becomes true `duration` seconds after the step began."""

    duration: float = 0.0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    context: int = 0
    admitted: list[Admission] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    """Ids of the requests that got one output token each."""
    finished: list[str] = field(default_factory=list)
    preempted: list[str] = field(default_factory=list)


class Quiet(NamedTuple):
    """Steps in which each of `decodes` running requests gets one token and nobody comes or goes. `context` is what the
    first of them reads, in tokens; each request adds one token to it in every step."""

    profile: Profile
    steps: int
    decodes: int
    context: int

    def seconds(self, steps: int) -> float:
        """How long the first `steps` of them take."""
        reads = steps * self.context + self.decodes * (steps * (steps - 1) // 2)
        return steps * self.profile.duration(0, self.decodes, 0) + self.profile.kv_seconds_per_token * reads

    def until(self, seconds: float) -> int:
        """The fewest of them that take `seconds` or more: a request that arrives then is looked at after these."""
        low, high = 0, self.steps
        while low < high:
            middle = (low + high) // 2
            if self.seconds(middle) >= seconds:
                high = middle
            else:
                low = middle + 1
        return low


@dataclass(slots=True)
class Counters:
    """Totals since the start, in tokens but for `preemptions`. Queries and hits are those of the prefix cache."""

    prefix_queries: int = 0
    prefix_hits: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    preemptions: int = 0


class _Sequence:
    """A request in the engine. `tokens` = prompt and answer so far; `computed` of them have their KV in `table`.

    `blocked_at` is how many blocks were free when it last did not fit.
    """

    __slots__ = ("arrived", "blocked_at", "computed", "generated", "published", "seen", "table", "tokens", "work")

    def __init__(self, work: Work, now: float) -> None:
        self.work = work
        self.arrived = now
        self.tokens = work.prompt_tokens
        self.generated = 0
        self.seen = False
        self.table: list[int] = []
        self.computed = 0
        self.published = 0
        self.blocked_at = 0


class Engine:
    """One replica's scheduler and cache. Not thread-safe; every method returns at once.

    `blocks` engine blocks of `block_size` tokens each make up the whole KV cache. While `prefix_caching` is off,
    nothing is hit and nothing gets a name; as in vLLM, the counters of queries and hits rest then, too.
    """

    def __init__(self, profile: Profile, blocks: int, block_size: int = 16, limits: Limits | None = None) -> None:
        if block_size < 1:
            raise ValueError(f"block_size must be at least 1, not {block_size}")
        self.profile = profile
        self.block_size = block_size
        self.limits = limits or Limits()
        self.cache = PrefixCache(blocks)
        self.counters = Counters()
        self.prefix_caching = True
        self._waiting: OrderedDict[str, _Sequence] = OrderedDict()
        self._running: list[_Sequence] = []
        self._ids: set[str] = set()

    @property
    def capacity(self) -> int:
        """Tokens, prompt and answer together, that one request may have at most."""
        return self.cache.blocks * self.block_size

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def busy(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._running or self._waiting)

    def add(self, work: Work, now: float) -> None:
        """Queue a request. Raises DoesNotFitError when it could never finish, ValueError when its id is in use."""
        if work.prompt_tokens + work.output_tokens > self.capacity:
            raise DoesNotFitError(
                f"{work.id}: {work.prompt_tokens} + {work.output_tokens} tokens exceed the KV cache of {self.capacity}"
            )
        if work.id in self._ids:
            raise ValueError(f"{work.id}: already in the engine")
        self._ids.add(work.id)
        self._waiting[work.id] = _Sequence(work, now)

    def abort(self, request: str) -> bool:
        """Drop a request and free what it holds. False when it is not here (any more)."""
        if request not in self._ids:
            return False
        self._ids.remove(request)
        if self._waiting.pop(request, None) is None:
            index = next(i for i, sequence in enumerate(self._running) if sequence.work.id == request)
            self.cache.release(self._running.pop(index).table)
        return True

    def step(self, now: float) -> StepResult:
        """Run one step that begins at `now` (seconds on any clock that `add` also uses)."""
        result = StepResult()
        batch = self._advance_running(result)
        if not result.preempted:
            self._admit(batch, result, now)
        self._sample(batch, result)
        if batch:
            result.duration = self.profile.duration(result.prefill_tokens, result.decode_tokens, result.context)
        return result

    def quiet(self) -> Quiet | None:
        """The quiet steps from now on; None when the next step may admit, finish or preempt somebody, or has more to do
        than one token for each running request."""
        running = self._running
        if not running or self._may_admit():
            return None
        if any(sequence.tokens - sequence.computed != 1 or not sequence.generated for sequence in running):
            return None
        steps = min([sequence.work.output_tokens - sequence.generated for sequence in running]) - 1
        if self._growth(steps) > self.cache.free:
            steps = self._steps_that_fit(steps)
        context = sum([sequence.computed for sequence in running])
        return Quiet(self.profile, steps, len(running), context) if steps else None

    def skip(self, steps: int) -> None:
        """Do that many quiet steps at once. Blocks are taken in another order than by `step`, but the same ones.

        Raises ValueError when so many steps are not quiet.
        """
        for sequence in self._running:
            needed = self._blocks(sequence.computed + steps) - len(sequence.table)
            if needed > 0 and not self.cache.extend(sequence.table, needed):
                raise ValueError(f"{steps} steps from here are not quiet")
            sequence.tokens += steps
            sequence.generated += steps
            self._compute(sequence, steps)
        self.counters.generation_tokens += steps * len(self._running)

    def _may_admit(self) -> bool:
        if not self._waiting or len(self._running) >= self.limits.max_num_seqs:
            return False
        return self.cache.free > next(iter(self._waiting.values())).blocked_at

    def _growth(self, steps: int) -> int:
        """Blocks that the running requests need for that many more tokens each."""
        size = self.block_size
        return sum(
            [
                max(0, -(-(sequence.computed + steps) // size) - len(sequence.table))  # A ceiling, as in _blocks.
                for sequence in self._running
            ]
        )

    def _steps_that_fit(self, most: int) -> int:
        low, high = 0, most
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._growth(middle) <= self.cache.free else (low, middle)
        return low

    def _advance_running(self, result: StepResult) -> list[_Sequence]:
        """Schedule the running requests. A victim is always the last of the list, so never one already scheduled."""
        running, block_size = self._running, self.block_size
        budget = self.limits.max_num_batched_tokens
        index = 0
        while index < len(running) and budget:
            sequence = running[index]
            pending = sequence.tokens - sequence.computed
            count = min(pending, budget)
            room = len(sequence.table) * block_size
            if sequence.computed + count > room and not self._grow(sequence, count, result):
                break
            if pending == 1:
                result.decode_tokens += 1
                result.context += sequence.computed
            else:
                result.prefill_tokens += count
            budget -= count
            self._compute(sequence, count)
            index += 1
        return running[:index]

    def _grow(self, sequence: _Sequence, count: int, result: StepResult) -> bool:
        """Get the blocks for `count` more tokens; False when the sequence itself had to go."""
        needed = self._blocks(sequence.computed + count) - len(sequence.table)
        while not self.cache.extend(sequence.table, needed):
            victim = self._running.pop()
            self._preempt(victim, result)
            if victim is sequence:
                return False
        return True

    def _preempt(self, victim: _Sequence, result: StepResult) -> None:
        self.cache.release(victim.table)
        victim.computed = victim.published = 0
        self._waiting[victim.work.id] = victim
        self._waiting.move_to_end(victim.work.id, last=False)
        self.counters.preemptions += 1
        result.preempted.append(victim.work.id)

    def _admit(self, batch: list[_Sequence], result: StepResult, now: float) -> None:
        budget = self.limits.max_num_batched_tokens - result.prefill_tokens - result.decode_tokens
        while budget and self._waiting and len(self._running) < self.limits.max_num_seqs:
            sequence = next(iter(self._waiting.values()))
            if self.cache.free <= sequence.blocked_at:
                return
            hits = self._hits(sequence)
            cached = len(hits) * self.block_size
            count = min(sequence.tokens - cached, budget)
            table = self.cache.hold(hits, self._blocks(cached + count) - len(hits))
            if table is None:
                sequence.blocked_at = self.cache.free
                return
            del self._waiting[sequence.work.id]
            self._running.append(sequence)
            sequence.table, sequence.computed, sequence.published = table, cached, len(hits)
            if not sequence.seen:
                self._count_admission(sequence, cached, result, now)
            result.prefill_tokens += count
            budget -= count
            self._compute(sequence, count)
            batch.append(sequence)

    def _hits(self, sequence: _Sequence) -> list[int]:
        if not self.prefix_caching:
            return []
        return self.cache.lookup(sequence.work.names, (sequence.tokens - 1) // self.block_size)

    def _count_admission(self, sequence: _Sequence, cached: int, result: StepResult, now: float) -> None:
        """A recomputation after a preemption is not counted again: the hit rate is the one that clients saw."""
        sequence.seen = True
        if self.prefix_caching:
            self.counters.prefix_queries += sequence.tokens
            self.counters.prefix_hits += cached
        self.counters.prompt_tokens += sequence.tokens
        result.admitted.append(Admission(sequence.work.id, cached, now - sequence.arrived))

    def _compute(self, sequence: _Sequence, count: int) -> None:
        sequence.computed += count
        full = sequence.computed // self.block_size
        if full > sequence.published and self.prefix_caching:
            named = min(full, len(sequence.work.names))
            self.cache.publish(sequence.table, sequence.work.names, sequence.published, named)
            sequence.published = full

    def _sample(self, batch: list[_Sequence], result: StepResult) -> None:
        """One token for each request whose prompt and answer so far are computed; the finished leave."""
        for sequence in batch:
            if sequence.computed < sequence.tokens:
                continue
            work = sequence.work
            if sequence.generated < work.output_tokens:
                sequence.generated += 1
                sequence.tokens += 1
                result.tokens.append(work.id)
            if sequence.generated == work.output_tokens:
                self.cache.release(sequence.table)
                self._ids.remove(work.id)
                result.finished.append(work.id)
        self.counters.generation_tokens += len(result.tokens)
        if result.finished:
            self._running = [sequence for sequence in self._running if sequence.work.id in self._ids]

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.block_size)
