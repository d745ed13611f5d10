"""One request's life: route, lease, send, relay, and sending again where that is safe. It owns the lease.

Every way out goes through `_settle`, once for each lease: the answer's end, the client's leaving, the replica's
failure. A request is sent again only while nothing went to the client, and then (invariant 5):

- without having been written whole, or after a 429 or 503 before any body: no work was done; at most MAX_UNWORKED
  times, each time to a replica not yet tried;
- once, when the connection closed before a response byte and it had been idle (keep-alive race), or a fresh connect to
  the same address is refused (the process is gone).

Never after a time-out: a stopped engine may wake and generate.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import Any, Protocol
from uuid import uuid4

from router.core.fleet import Fleet
from router.core.lease import Lease, Settled
from router.core.record import Record
from router.core.types import Ask, Outcome, Refusal, RefusalCause, ReplicaId, Route, Usage, Wait
from router.proxy import openai
from router.proxy.openai import Answer, Asker, Endpoint, Use
from router.proxy.relay import Relay
from router.proxy.upstream import Connection, Loss, Pool
from router.proxy.waiting import Waiting
from router.proxy.wire import Request, ResponseReader, request_head, response_head

MAX_UNWORKED = 3
"""Sends that did no work and are followed by another: they cost a client's patience only (retry.max_refusals)."""

MAX_RESENDS = 1
"""Sends that may have been read before the process died: one, since each may be work lost."""

REFUSED_SECONDS = 1.0
"""How long a replica that refused counts as full when its answer has no Retry-After."""

REFUSALS = frozenset((429, 503))


@dataclass
class Proxy:
    """What every exchange of a worker uses. `describe` takes the finished request's record, `unreachable` the id of a
    replica that refused a connection."""

    loop: asyncio.AbstractEventLoop
    fleet: Fleet
    asker: Asker
    pools: Mapping[ReplicaId, Pool]
    waiting: Waiting
    rng: Random
    describe: Callable[[Record], None]
    unreachable: Callable[[ReplicaId], None]

    def __post_init__(self) -> None:
        self.tasks: set[asyncio.Task[None]] = set()
        self._prefix = uuid4().hex[:16]
        self._count = count(1)

    def request_id(self) -> str:
        """A new id: random for this process, counted within it."""
        return f"{self._prefix}-{next(self._count):x}"


class Client(Protocol):
    """The client's connection."""

    def write(self, data: bytes) -> None: ...

    def done(self, keep_alive: bool) -> None:
        """The answer is out; the connection may carry another."""
        ...

    def abort(self) -> None:
        """Close without an end, so that the client sees that its answer is not whole."""
        ...


class Exchange:
    """One request between a client and the replica that serves it; `paused` when the client is not reading now."""

    __slots__ = (
        "_arrived", "_ask", "_attempts", "_client", "_connecting", "_connection", "_endpoint", "_fresh", "_id",
        "_lease", "_over", "_paused", "_proxy", "_relay", "_request", "_resends", "_route", "_status",
        "_tried", "_unworked", "_waits",
    )  # fmt: skip

    def __init__(self, proxy: Proxy, client: Client, request: Request, paused: bool) -> None:
        self._proxy, self._client, self._request = proxy, client, request
        self._arrived = proxy.loop.time()
        self._endpoint: Endpoint = openai.endpoint(request.path)
        self._id = proxy.request_id() if request.id is None else request.id.decode("latin-1")
        self._ask = Ask(None)
        self._route: Route | None = None
        self._lease: Lease | None = None
        self._connection: Connection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._relay: Relay | None = None
        self._tried: list[ReplicaId] = []
        self._unworked = self._resends = self._attempts = 0
        self._waits = self._over = self._fresh = False
        self._paused = paused
        self._status = 0

    def start(self) -> None:
        """Answer, or find a replica."""
        fleet, use = self._proxy.fleet, self._endpoint.use
        if use is Use.MODELS:
            ready = [replica.models for replica in fleet.ready]
            self._answer(openai.models(ready) if ready else openai.health(0))
        elif use is Use.HEALTH:
            self._answer(openai.health(len(fleet.ready)))
        else:
            self._ask = self._proxy.asker.ask(self._endpoint, self._request.body)
            self._find()

    # Route and lease. No await between the two.

    def _find(self) -> None:
        waiting, model = self._proxy.waiting, self._ask.model
        if (waiting and waiting.depth(model)) or not self.try_route():
            self._waits = True
            refusal = waiting.park(model, self)
            if refusal is not None:
                self._waits = False
                self.refuse(refusal)

    def try_route(self) -> bool:
        """waiting.Waiter: route, and go on unless the answer is to wait."""
        now = self._proxy.loop.time()
        match self._proxy.fleet.route(self._ask, now, self._proxy.rng, self._tried):
            case Wait():
                return False
            case Refusal() as refusal:
                self._waits = False
                self.refuse(refusal)
            case Route() as route:
                self._waits = False
                self._dispatch(route, now)
        return True

    def refuse(self, refusal: Refusal) -> None:
        """waiting.Waiter: the end of the way."""
        self._waits = False
        if self._attempts and refusal.cause is RefusalCause.NO_REPLICA:
            self._fail(502, "The replica failed before it answered, and no other one is left to try.", "replica_lost")
        else:
            self._answer(openai.refused(refusal, self._ask.model), refusal.cause)

    def _dispatch(self, route: Route, now: float) -> None:
        proxy = self._proxy
        self._route = route
        self._lease = proxy.fleet.lease(route, self._ask, now)
        self._attempts += 1
        pool = proxy.pools[route.replica]
        connection = None if self._fresh else pool.take()
        if connection is not None:
            self._send(connection, pool)
        else:
            self._spawn(self._connect(pool))

    async def _connect(self, pool: Pool) -> None:
        """Cancelled when the client leaves; asyncio then closes a half-made connection."""
        try:
            connection = await pool.connect()
        except OSError as error:
            self._connecting = None
            self._not_reached(error)
        else:
            self._connecting = None
            self._send(connection, pool)

    def _send(self, connection: Connection, pool: Pool) -> None:
        self._connection = connection
        extra = (b"x-request-id: %b\r\n" % self._id.encode(),) if self._request.id is None else ()
        address, request = pool.address, self._request
        head = request_head(request, address.authority, address.base, extra)
        connection.send(self, head, request.body, request.method == b"HEAD")

    # What the connection tells (upstream.Sender).

    def on_response(self, response: ResponseReader, data: bytes) -> None:
        """Bytes of the answer."""
        now = self._proxy.loop.time()
        relay = self._relay
        if relay is None:
            if response.status in REFUSALS and self._refused(response, now):
                return
            relay = self._relay = self._open(response)
        lease = self._lease
        assert lease is not None
        if response.complete:
            self._connection = None  # It is back in its pool; pausing it would pause the next request.
        elif self._paused and self._connection is not None:
            self._connection.pause(True)
        self._proxy.fleet.sign_of_life(lease.replica, now)
        if data and not lease.started and response.status < 300:
            lease.first_token(now)
        relay.pass_on(data)
        if response.excess:
            self._broken("the replica sent more than its answer")
        elif response.complete:
            outcome = Outcome.FAILED if response.status >= 500 else Outcome.OK
            self._end(outcome, relay.usage(), now)

    def on_lost(self, loss: Loss) -> None:
        """The connection broke before the answer was whole."""
        self._connection = None
        if self._relay is not None:
            self._broken(f"the replica broke off: {loss.reason}")
        elif not loss.written:
            self._settle(Outcome.NOT_REACHED)
            self._again_unworked()
        elif loss.reused:
            self._settle(Outcome.FAILED)
            self._tried.pop()  # A dead connection was tried, not the replica: a fresh one may go there.
            self._fresh = True
            self._resend()
        else:
            self._settle(Outcome.FAILED)
            self._spawn(self._resend_if_gone())

    def _open(self, response: ResponseReader) -> Relay:
        assert self._route is not None
        self._status = response.status
        route = self._route
        ours = (
            f"x-homing-replica: {route.replica}\r\nx-homing-reason: {route.reason.value}\r\n"
            f"x-homing-predicted-cached-tokens: {route.cached}\r\nx-homing-request-id: {self._id}\r\n"
        )
        return Relay(self._request, response, (ours.encode("latin-1"),), self._client)

    def _refused(self, response: ResponseReader, now: float) -> bool:
        """The replica is full: no failure. True when the request goes on to another one or into the queue."""
        assert self._lease is not None
        replica = self._lease.replica
        self._proxy.fleet.full(replica, now + _retry_after(response))
        if self._unworked >= MAX_UNWORKED:
            return False
        tried = [*self._tried, replica]
        if isinstance(self._proxy.fleet.route(self._ask, now, self._proxy.rng, tried), Refusal):
            return False
        connection, self._connection = self._connection, None
        if connection is not None and not response.complete:
            connection.drain()
        self._settle(Outcome.REFUSED)
        self._again_unworked()
        return True

    # Sending again.

    def _not_reached(self, error: OSError) -> None:
        assert self._lease is not None
        if isinstance(error, ConnectionRefusedError):
            self._proxy.unreachable(self._lease.replica)
        self._settle(Outcome.NOT_REACHED)
        self._again_unworked()

    def _again_unworked(self) -> None:
        self._unworked += 1
        if self._unworked > MAX_UNWORKED:
            self._fail(502, "No replica could be reached.", "replica_unreachable")
        else:
            self._find()

    async def _resend_if_gone(self) -> None:
        replica = self._tried[-1]
        gone = await self._proxy.pools[replica].refuses()
        self._connecting = None
        if gone:
            self._proxy.unreachable(replica)
            self._resend()
        else:
            self._fail(502, "The replica closed the connection before it answered.", "replica_lost")

    def _resend(self) -> None:
        self._resends += 1
        if self._resends > MAX_RESENDS:
            self._fail(502, "The replica closed the connection before it answered.", "replica_lost")
        else:
            self._find()

    # Ends.

    def client_left(self) -> None:
        """The client is gone: whatever phase this is in, the replica stops working for it."""
        if self._over:
            return
        if self._waits:
            self._proxy.waiting.leave(self._ask.model, self)
            self._waits = False
        if self._connecting is not None:
            self._connecting.cancel()
        self._drop_connection()
        self._end(Outcome.ABORTED, None, self._proxy.loop.time(), answered=False)

    def client_paused(self, paused: bool) -> None:
        """The client reads slower than the replica writes, or fast enough again."""
        self._paused = paused
        if self._connection is not None:
            self._connection.pause(paused)

    def _broken(self, message: str) -> None:
        """Midway: what the client has is not whole, and it must see that."""
        assert self._relay is not None
        self._drop_connection()
        self._relay.broken("The replica broke off while it answered.")
        self._end(Outcome.FAILED, None, self._proxy.loop.time(), answered=False, error=message)
        self._client.abort()

    def _fail(self, status: int, message: str, code: str) -> None:
        self._answer(openai.error(status, message, "server_error", code), code)

    def _answer(self, answer: Answer, error: str | None = None) -> None:
        """The router's own answer."""
        self._status = answer.status
        lines = [
            b"content-type: application/json\r\ncontent-length: %d\r\n" % len(answer.body),
            b"x-homing-request-id: %b\r\n" % self._id.encode("latin-1"),
        ]
        if answer.retry_after is not None:
            lines.append(b"retry-after: %d\r\n" % max(1, round(answer.retry_after)))
        if not self._request.keep_alive:
            lines.append(b"connection: close\r\n")
        body = b"" if self._request.method == b"HEAD" else answer.body
        self._client.write(response_head(answer.status, b"", lines) + body)
        self._end(Outcome.OK, None, self._proxy.loop.time(), error=error)

    def _end(
        self, outcome: Outcome, usage: Usage | None, now: float, answered: bool = True, error: str | None = None
    ) -> None:
        if self._over:
            return
        self._over = True
        route, relay = self._route, self._relay
        settled = self._settle(outcome, usage)
        if answered:
            self._client.done(relay.keep_alive if relay else self._request.keep_alive)
        ask, reason = self._ask, route.reason if route else None
        self._proxy.describe(
            Record(
                self._id, self._endpoint.name, ask.model, ask.streams, self._status, reason, settled, self._attempts,
                now - self._arrived, error,
            )
        )  # fmt: skip

    def _settle(self, outcome: Outcome, usage: Usage | None = None) -> Settled | None:
        """End the lease, if there is one, and let those who wait try."""
        lease, self._lease = self._lease, None
        if lease is None:
            return None
        self._tried.append(lease.replica)
        settled = lease.finish(outcome, usage, self._proxy.loop.time())
        if self._proxy.waiting:
            self._proxy.loop.call_soon(self._proxy.waiting.wake)
        return settled

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._connecting = self._proxy.loop.create_task(work)
        self._proxy.tasks.add(self._connecting)
        self._connecting.add_done_callback(self._proxy.tasks.discard)


def _retry_after(response: ResponseReader) -> float:
    """Seconds of a Retry-After in its numeric form; the default for a date or nonsense."""
    for name, _, value in response.headers:
        if name == b"retry-after" and value.isdigit():
            return float(value)
    return REFUSED_SECONDS
