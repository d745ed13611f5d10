"""What every exchange of a worker uses."""

import asyncio
import hmac
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Coroutine, Mapping
from dataclasses import dataclass
from email.utils import formatdate
from random import Random
from typing import Any, Protocol
from uuid import uuid4

from router.core.budget import RetryBudget
from router.core.fleet import Fleet
from router.core.lease import Lease
from router.core.member import Transition
from router.core.record import Record
from router.core.types import Ask, ReplicaId
from router.proxy.bounds import Bounds, Times
from router.proxy.condense import Condenser
from router.proxy.heads import Peer
from router.proxy.openai import Asker, Endpoint, Reading
from router.proxy.upstream import Pool
from router.proxy.waiting import Waiting
from router.proxy.wire import Body

MAX_STORED = 100_000
"""Response ids whose replica is remembered: some 20 MB, an hour of 30 stored responses a second."""


class Stored:
    """Which replica stores a response: a bounded map from id to replica, the oldest forgotten first."""

    def __init__(self, bound: int = MAX_STORED) -> None:
        self._bound = bound
        self._replicas: OrderedDict[str, ReplicaId] = OrderedDict()

    def get(self, stored: str | None) -> ReplicaId | None:
        """The replica; None for an id that is not known, which any engine refuses in its own words."""
        return None if stored is None else self._replicas.get(stored)

    def ask(self, reading: Reading) -> Ask:
        """The ask that was read, bound to the replica that has what it goes on from."""
        ask, previous = reading.ask, reading.previous
        return ask if previous is None else ask._replace(only=self.get(previous))

    def put(self, stored: str, replica: ReplicaId) -> None:
        """Remember an id."""
        self._replicas[stored] = replica
        if len(self._replicas) > self._bound:
            self._replicas.popitem(last=False)


class Client(Protocol):
    """The client's connection."""

    @property
    def peer(self) -> Peer:
        """Who it is."""
        ...

    def write(self, data: bytes) -> None: ...

    def done(self, keep_alive: bool) -> None:
        """The answer is out; the connection may carry another."""
        ...

    def abort(self) -> None:
        """Close without an end, so that the client sees that its answer is not whole."""
        ...

    def cut(self) -> None:
        """Close at once: it does not even read what there is."""
        ...


@dataclass
class Proxy:
    """One worker's data plane.

    `describe` takes each finished request's record and its ask, `unreachable` the id of a replica that refused a
    connection, `ejected` the change of state of one that failed too often; `budget` bounds sends again of work that may
    have been done, over all requests, `max_refusals` those of work that was not, for each; who knows the `token` may
    have a live request's route explained, without one nobody may. `buffered` counts the bytes of the bodies that are
    held; with `half_close` a client that has closed its writing side is still there. `tap` is told of each send once it
    is out, while a shadow is wanted; it only notes.
    """

    loop: asyncio.AbstractEventLoop
    fleet: Fleet
    asker: Asker
    pools: Mapping[ReplicaId, Pool]
    waiting: Waiting
    rng: Random
    describe: Callable[[Record, Ask], None]
    unreachable: Callable[[ReplicaId], None]
    ejected: Callable[[Transition], None]
    budget: RetryBudget
    bounds: Bounds
    times: Times
    version: str = ""
    allow_paths: Collection[str] = ()
    max_refusals: int = 3
    token: bytes | None = None
    half_close: bool = False
    tap: Callable[[Lease], None] | None = None

    def __post_init__(self) -> None:
        self.stored = Stored()
        self.buffered = 0
        self.tasks: set[asyncio.Task[None]] = set()
        self.reading = asyncio.Lock()  # Held while a big body is read.
        self._prefix = uuid4().hex[:16]
        self._serial = 0
        self._dated = 0
        self._date = b""

    async def read_big(self, endpoint: Endpoint, body: Body) -> Reading:
        """An ask of a big body, made in slices; of one body at a time, so that a turn of the loop has one slice."""
        async with self.reading:
            condenser = Condenser(body)
            for _ in condenser.slices():
                await asyncio.sleep(0)
            return self.asker.read_condensed(endpoint, body, condenser)

    async def is_gone(self, replica: ReplicaId) -> bool:
        """Whether nobody listens any more at a replica that closed a connection."""
        pool = self.pools.get(replica)  # A reload may have removed the replica meanwhile.
        gone = pool is not None and await pool.refuses()
        if gone:
            self.unreachable(replica)
        return gone

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A task that is known while it runs."""
        task = self.loop.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    def date(self) -> bytes:
        """A Date of now, which RFC 9110 section 6.6.1 wants in an answer that has none. It is written once a second."""
        now = int(time.time())
        if now != self._dated:
            self._dated = now
            self._date = f"date: {formatdate(now, usegmt=True)}\r\n".encode()
        return self._date

    def may_debug(self, token: bytes | None) -> bool:
        """Whether this token is the admin's; compared in constant time."""
        return self.token is not None and token is not None and hmac.compare_digest(token, self.token)

    def request_id(self) -> str:
        """A new id: random for this process, counted within it."""
        self._serial += 1
        return f"{self._prefix}-{self._serial}"
