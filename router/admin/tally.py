"""What is counted of finished requests, probes and changes of state. Pure: a scrape renders it (metrics.py).

`record` takes every request of all workers, so it finds its row by one look-up and then only adds. Labels are settled
when a row is made: a model is a known one of the fleet or `other`, and each label has a bounded number of values.

Four counters make the locality ledger (UX 5.3), over the requests whose prompt an engine has prefilled (a first token
came): prompt tokens, reachable, predicted, reported. Many engines and most streams do not say what was cached; what
they leave unsaid is counted apart, since it must not look like a cache that did not deliver:

    gap 1, workload  prompt - reachable
    gap 2, routing   reachable - predicted
    gap 3, belief    (predicted - predicted_unreported) - reported
"""

from collections import Counter
from collections.abc import Collection

from router.admin import histogram
from router.admin.histogram import Histogram
from router.admin.labels import OTHER, Labels
from router.core.fleet import Fleet
from router.core.lease import Settled
from router.core.member import Transition
from router.core.record import Attempt, HandshakeError, Phase, Record, Stages, UpstreamError
from router.core.types import Limit, Outcome, Reason, ReplicaId

NO_STATUS = "client_closed"
"""`code` of a request whose client left before there was a status."""

REJECTED = (
    *("queue_full", "queue_timeout", "no_replica", "unknown_model", "forbidden_path", "too_large", "bad_request"),
    *("buffer_full", "connections_full", "slow_client", "timeout_request", "draining"),
)
"""Why this router refuses, or gives up; exported from the start, so that the first one is an increase."""


class Times:
    """Histograms of one model and way of answering (streamed or not)."""

    __slots__ = ("first_chunk", "per_chunk", "per_token", "request")

    def __init__(self) -> None:
        self.request = Histogram(histogram.REQUEST)
        self.first_chunk = Histogram(histogram.FIRST_CHUNK)
        self.per_chunk = Histogram(histogram.PER_CHUNK)
        self.per_token = Histogram(histogram.PER_TOKEN)


class Ledger:
    """One model's locality ledger, in prompt tokens; `short` counts prompts shorter than a block."""

    __slots__ = ("error", "predicted", "predicted_unreported", "prompt", "reachable", "reported", "short", "unreported")

    def __init__(self) -> None:
        self.prompt = self.reachable = self.predicted = self.reported = 0
        self.unreported = self.predicted_unreported = self.short = 0
        self.error = Histogram(histogram.ERROR_RATIO)

    def add(self, settled: Settled) -> None:
        """Count one prompt that was prefilled."""
        tokens, predicted, reported = settled.prompt_tokens, settled.predicted, settled.reported
        self.prompt += tokens
        self.reachable += settled.reachable
        self.predicted += predicted
        if reported is None:
            self.unreported += tokens
            self.predicted_unreported += predicted
            return
        self.reported += reported
        if tokens:
            self.error.observe(abs(predicted - reported) / tokens)


class Row:
    """The requests that are alike in every label, and where their times and tokens go."""

    __slots__ = ("ledger", "requests", "times")

    def __init__(self, times: Times, ledger: Ledger) -> None:
        self.requests = 0
        self.times, self.ledger = times, ledger


class ReplicaTally:
    """What one replica was sent and how it answered, its probes too. Tokens are prompt tokens."""

    __slots__ = ("errors", "first_chunk", "outcomes", "probe_failures", "probes", "prompt", "reported")

    def __init__(self) -> None:
        self.outcomes = dict.fromkeys(Outcome, 0)
        self.errors = dict.fromkeys(UpstreamError, 0)
        self.probe_failures: Counter[str] = Counter()
        self.prompt = self.reported = 0
        self.first_chunk = Histogram(histogram.REPLICA_FIRST_CHUNK)
        self.probes = Histogram(histogram.PROBE)


class Tally:
    """All of it. `label_values` bounds the values of each label."""

    def __init__(self, fleet: Fleet, label_values: int) -> None:
        self._fleet = fleet
        self.labels = Labels(label_values)
        self._by_record: dict[tuple[str | None, str, int, bool, Reason | None], Row] = {}
        self.rows: dict[tuple[str, str, str, bool, Reason | None], Row] = {}
        self.times: dict[tuple[str, bool], Times] = {}
        self.ledgers: dict[str, Ledger] = {}
        self.replicas: dict[ReplicaId, ReplicaTally] = {}
        self.stages = {name: Histogram(histogram.STAGE) for name in Stages._fields}
        self._stages = tuple(self.stages.values())
        self.lag = Histogram(histogram.LAG)
        self.cuts = dict.fromkeys(Limit, 0)
        self.left = dict.fromkeys(Phase, 0)
        self.handshakes = Counter(dict.fromkeys(HandshakeError, 0))
        self.rejected = Counter(dict.fromkeys(REJECTED, 0))
        self.retries: Counter[tuple[str, str]] = Counter()
        self.transitions: Counter[tuple[str, str, str]] = Counter()
        self.disproved = 0

    # What happens.

    def record(self, record: Record) -> None:
        """Count one finished request."""
        row = self._by_record.get((record.model, record.endpoint, record.status, record.streams, record.reason))
        if row is None:
            row = self._row(record)
        row.requests += 1
        for stage, seconds in zip(self._stages, record.stages, strict=True):
            if seconds is not None:
                stage.observe(seconds)
        if record.attempts:
            self._sent(record, row)
        if record.rejected is not None:
            self.rejected[record.rejected] += 1
        if record.left is not None:
            self.left[record.left] += 1
        for limit in record.cuts:
            self.cuts[limit] += 1

    def probed(self, replica: ReplicaId, seconds: float, failure: str | None) -> None:
        """A probe was answered, or failed in the way that is named."""
        tally = self._replica(replica)
        tally.probes.observe(seconds)
        if failure is not None:
            tally.probe_failures[failure] += 1

    def turned(self, transition: Transition, cause: str) -> None:
        """A replica changed its state; `cause` is one word of a closed list."""
        self.transitions[transition.old.value, transition.new.value, cause] += 1

    def align(self) -> None:
        """Before a scrape: forget replicas that have left, and let what is new be seen at zero, so that its first
        request is an increase."""
        members = [replica.id for replica in self._fleet.replicas]
        for gone in self.replicas.keys() - set(members):
            del self.replicas[gone]
        for member in members:
            self._replica(member)
        for model in self._fleet.models:
            self._ledger(self.labels.value("model", model))

    # How it is counted.

    def _sent(self, record: Record, row: Row) -> None:
        """A request that went to some replica. What the client waited for the router alone to refuse is no latency."""
        row.times.request.observe(record.seconds)
        if record.blocks == 0:
            row.ledger.short += 1
        for attempt in record.attempts:
            settled, error = attempt
            replica = self._replica(settled.replica)
            replica.outcomes[settled.outcome] += 1
            if error is not None:
                replica.errors[error] += 1
            if settled.dropped_blocks:
                self.disproved += settled.dropped_blocks
        if len(record.attempts) > 1:
            self._retried(record.attempts)
        if settled.seconds_to_first_token is not None:
            replica.first_chunk.observe(settled.seconds_to_first_token)
            self._generated(record, settled, row, replica)

    def _generated(self, record: Record, settled: Settled, row: Row, replica: ReplicaTally) -> None:
        """A first token came."""
        if record.blocks is not None:
            row.ledger.add(settled)
            replica.prompt += settled.prompt_tokens
            if settled.reported is not None:
                replica.reported += settled.reported
        first, last, times = record.first_chunk, record.last_chunk, row.times
        if first is None or last is None:
            return
        times.first_chunk.observe(first)
        if record.streams and record.chunks > 1 and settled.outcome is Outcome.OK:
            times.per_chunk.observe((last - first) / (record.chunks - 1))
            tokens = settled.completion_tokens
            if tokens is not None and tokens > 1:
                times.per_token.observe((record.seconds - first) / (tokens - 1))

    def _retried(self, attempts: Collection[Attempt]) -> None:
        """Each send but the first was one again: because of what ended the one before, and with its own outcome."""
        error: UpstreamError | None = None
        for position, attempt in enumerate(attempts):
            if position:
                self.retries[error.value if error else "unknown", attempt.settled.outcome.value] += 1
            error = attempt.error

    def _row(self, record: Record) -> Row:
        """The row of a record that has none of its own: labels are settled here."""
        model, admitted = self._model(record.model)
        endpoint = self.labels.count("endpoint", record.endpoint)
        said = str(record.status) if record.status else NO_STATUS
        code = self.labels.count("code", said)
        key = (model, endpoint, code, record.streams, record.reason)
        row = self.rows.get(key)
        if row is None:
            row = self.rows[key] = Row(self._times(model, record.streams), self._ledger(model))
        if admitted and endpoint == record.endpoint and code == said:
            self._by_record[record.model, record.endpoint, record.status, record.streams, record.reason] = row
        return row

    def _model(self, name: str | None) -> tuple[str, bool]:
        """The label, and whether it says just that model. A name that no replica serves is not admitted."""
        if name is None:
            return "", True
        if not any(name in replica.models for replica in self._fleet.replicas):
            return OTHER, False
        label = self.labels.count("model", name)
        return label, label == name

    def _times(self, model: str, streams: bool) -> Times:
        return self.times.setdefault((model, streams), Times())

    def _ledger(self, model: str) -> Ledger:
        return self.ledgers.setdefault(model, Ledger())

    def _replica(self, replica: ReplicaId) -> ReplicaTally:
        tally = self.replicas.get(replica)
        if tally is None:
            tally = self.replicas[replica] = ReplicaTally()
        return tally
