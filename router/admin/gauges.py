"""What the fleet is at the moment of a scrape, as rows: nothing is kept, so what is gone has no row. Pure."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

from router.core.fleet import Fleet
from router.core.member import Replica
from router.core.types import ReplicaId, State

INDEX_BLOCK_BYTES = 150
"""Memory of one believed block: a boxed 64-bit hash, its places in two dictionaries, its share of a segment.

tracemalloc, chains of 64 blocks on one replica of each: 125 to 157 bytes from 100,000 blocks to 800,000; 92 for each
of three copies. The sawtooth is the dictionaries' growth."""

Rows = Iterator[tuple[Sequence[str], float]]


def base_model(replica: Replica) -> str:
    """The model that a replica's engine runs: the first of its names, adapters left out. Empty until it has told.

    One engine has one queue and one cache however many adapters it serves, so its gauges have one model. An adapter's
    card names a parent (vLLM's /v1/models).
    """
    cards = replica.models.items()
    return min((name for name, card in cards if not (isinstance(card, Mapping) and card.get("parent"))), default="")


class Gauges:
    """Rows of one scrape. `now` is monotonic; `unix` what must be added to it for seconds since 1970."""

    def __init__(self, fleet: Fleet, queued: Mapping[str, int], now: float, unix: float) -> None:
        self._fleet, self._queued, self._now, self._unix = fleet, queued, now, unix
        self._models = [(replica, base_model(replica)) for replica in fleet.replicas]

    def in_flight(self) -> Rows:
        """Open leases of all workers, by the replicas' models."""
        counts = Counter(dict.fromkeys(("", *self._fleet.models), 0))
        for replica, model in self._models:
            counts[model] += replica.whole.requests
        yield from (((model,), count) for model, count in counts.items() if model or count)

    def queue(self) -> Rows:
        """Waiting requests of every model."""
        depths = dict.fromkeys(self._fleet.models, 0) | dict(self._queued)
        yield from (((model,), depth) for model, depth in depths.items())

    def states(self) -> Rows:
        """1 for the state that a replica is in, 0 for the others."""
        for replica, model in self._models:
            now = replica.state_now(self._now)
            yield from (((replica.id, model, state.value), float(state is now)) for state in State)

    def since(self) -> Rows:
        """When the state began; to the millisecond, so that it changes with the state only."""
        yield from (((replica.id, model), round(replica.since + self._unix, 3)) for replica, model in self._models)

    def replicas_in_flight(self) -> Rows:
        """Open leases of all workers."""
        yield from (((replica.id, model), replica.whole.requests) for replica, model in self._models)

    def load_ratio(self) -> Rows:
        """A ready replica's open leases over the mean of its model's ready replicas; 1 when all of them are idle."""
        requests: Counter[str] = Counter()
        replicas: Counter[str] = Counter()
        ready = [(replica, model) for replica, model in self._models if replica.state is State.READY]
        for replica, model in ready:
            requests[model] += replica.whole.requests
            replicas[model] += 1
        for replica, model in ready:
            total = requests[model]
            yield (replica.id, model), replica.whole.requests * replicas[model] / total if total else 1.0

    def waiting(self) -> Rows:
        """The engine's own queue, where it tells."""
        for replica, model in self._models:
            if replica.sample is not None and replica.sample.waiting is not None:
                yield (replica.id, model), replica.sample.waiting

    def kv_usage(self) -> Rows:
        """Used share of the KV cache, where the engine tells."""
        for replica, model in self._models:
            if replica.sample is not None and replica.sample.kv_usage is not None:
                yield (replica.id, model), replica.sample.kv_usage

    def view_age(self) -> Rows:
        """Seconds since the engine's gauges were last read, where they ever were."""
        for replica, model in self._models:
            if replica.sample is not None:
                yield (replica.id, model), self._now - replica.sample.at


def missing(names: Mapping[ReplicaId, Collection[str]], known: Collection[str]) -> Rows:
    """How many replicas lack each of the engine metrics that some replica lacks."""
    counts = Counter(name for replica, lacks in names.items() if replica in known for name in lacks)
    yield from (((name,), count) for name, count in counts.items())
