"""One request's life: route, lease, send, relay, and sending again where that is safe. It owns the lease.

Every way out goes through `_settle`, once for each lease: the answer's end, the client's leaving, the replica's
failure. A request is sent again only while nothing went to the client, and then (invariant 5):

- without having been written whole, or after a 429 or 503 before any body: no work was done; at most
  `max_refusals` times, each time to a replica not yet tried;
- once, when the connection closed before a response byte and it had been idle (keep-alive race), or a fresh connect to
  the same address is refused (the process is gone, with whatever it was sent), while the retry budget lasts.

Never after a time-out: a stopped engine may wake and generate.

How each send ended is told to the fleet, which ejects a replica that fails too often. A refusal, a client that left and
the end of an idle connection say nothing of a replica.
"""

import asyncio
import time
from collections.abc import Coroutine
from typing import Any

from router.core.lease import Lease
from router.core.record import Phase, UpstreamError
from router.core.types import Ask, Outcome, Refusal, RefusalCause, ReplicaId, Route, Usage, Wait
from router.proxy import answers, explaining, openai, verdict
from router.proxy.answers import Answer, Style
from router.proxy.context import Client, Proxy
from router.proxy.journal import Journal, Stage
from router.proxy.openai import Reading, Use
from router.proxy.relay import Relay
from router.proxy.responses import ResponseReader
from router.proxy.upstream import Connection, Loss, Pool
from router.proxy.wire import Request, request_head, response_head

MAX_RESENDS = 1
"""Sends that may have been read before the process died: one, since each may be work lost."""


class Exchange:
    """One request between a client and the replica that serves it."""

    __slots__ = (
        "_ask", "_client", "_connecting", "_connection", "_endpoint", "_explained", "_fresh", "_id", "_journal",
        "_lease", "_over", "_paused", "_proxy", "_raced", "_relay", "_request", "_resends", "_route", "_tried",
        "_unworked", "_waits",
    )  # fmt: skip

    def __init__(self, proxy: Proxy, client: Client, request: Request) -> None:
        self._proxy, self._client, self._request = proxy, client, request
        self._endpoint = openai.endpoint(request.path, proxy.allow_paths)
        self._id = proxy.request_id() if request.id is None else request.id.decode("latin-1")
        self._journal = Journal(self._id, self._endpoint.name, time.monotonic())
        self._ask = Ask(None)
        self._route: Route | None = None
        self._lease: Lease | None = None
        self._connection: Connection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._relay: Relay | None = None
        self._tried: list[ReplicaId] = []
        self._unworked = self._resends = 0
        self._raced: ReplicaId | None = None
        self._waits = self._over = self._fresh = self._paused = False
        self._explained = b""

    def start(self) -> None:
        """Answer, or find a replica."""
        proxy = self._proxy
        match self._endpoint.use:
            case Use.MODELS:
                ready = [replica.models for replica in proxy.fleet.ready]
                self._answer(answers.models(ready) if ready else answers.health(0))
            case Use.HEALTH:
                self._answer(answers.health(len(proxy.fleet.ready)))
            case Use.VERSION:
                self._answer(answers.version(proxy.version))
            case Use.CONTROL:
                self._journal.rejected = "forbidden_path"
                self._answer(answers.forbidden(self._request.path))
            case _:
                proxy.budget.request(time.monotonic())
                self._read()

    def _read(self) -> None:
        endpoint, body = self._endpoint, self._request.body
        if openai.is_big(endpoint, body):
            self._spawn(self._read_big())
        elif endpoint.use is Use.STORED:
            self._asked(Reading(Ask(None), openai.stored_id(self._request.path)))
        else:
            self._asked(self._proxy.asker.read(endpoint, body))

    async def _read_big(self) -> None:
        """Cancelled when the client leaves."""
        reading = await self._proxy.read_big(self._endpoint, self._request.body)
        self._connecting = None
        self._asked(reading)

    def _asked(self, reading: Reading) -> None:
        ask, previous = reading
        self._ask = ask if previous is None else ask._replace(only=self._proxy.stored.get(previous))
        self._find()

    # Route and lease. No await between the two.

    def _find(self) -> None:
        waiting, model = self._proxy.waiting, self._ask.model
        self._journal.ended(Stage.PARSE if not self._journal.attempts else Stage.FIRST_BYTE, time.monotonic())
        if (waiting and waiting.depth(model)) or not self.try_route():
            self._waits = True
            refusal = waiting.park(model, self)
            if refusal is not None:
                self._waits = False
                self.refuse(refusal)

    def try_route(self) -> bool:
        """waiting.Waiter: route, and go on unless the answer is to wait."""
        if self._proxy.may_debug(self._request.token):
            self._explained = explaining.header(self._proxy, self._ask)
        now = time.monotonic()
        decision = self._proxy.fleet.route(self._ask, now, self._proxy.rng, self._tried)
        if isinstance(decision, Wait):
            if not self._waits:
                self._journal.cut(decision.cuts.values())
            return False
        if self._waits:
            self._waits = False
            self._journal.ended(Stage.QUEUE, now)
        if isinstance(decision, Refusal):
            self.refuse(decision)
        else:
            self._dispatch(decision, now)
        return True

    def refuse(self, refusal: Refusal) -> None:
        """waiting.Waiter: the end of the way."""
        if self._waits:
            self._waits = False
            self._journal.ended(Stage.QUEUE, time.monotonic())
        if self._journal.attempts and refusal.cause is RefusalCause.NO_REPLICA:
            self._fail("The replica failed before it answered, and no other one is left to try.", "replica_lost")
        else:
            self._journal.rejected = refusal.cause.value
            self._answer(answers.refused(refusal, self._ask.model, self._endpoint.style))

    def _dispatch(self, route: Route, now: float) -> None:
        proxy, journal = self._proxy, self._journal
        self._route = route
        journal.reason = route.reason
        if route.cuts:
            journal.cut(route.cuts.values())
        self._lease = proxy.fleet.lease(route, self._ask, now)
        journal.ended(Stage.PICK, time.monotonic())
        pool = proxy.pools[route.replica]
        connection = None if self._fresh else pool.take()
        if connection is not None:
            self._send(connection, pool)
        else:
            self._spawn(self._connect(pool))

    async def _connect(self, pool: Pool) -> None:
        """Cancelled when the client leaves; the pool then closes a half-made connection."""
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
        extra = (b"x-request-id: %b\r\n" % self._id.encode("latin-1"),) if self._request.id is None else ()
        address, request = pool.address, self._request
        head = request_head(request, address.authority, address.base, extra)
        connection.send(self, head, request.body, request.method == b"HEAD")
        self._journal.ended(Stage.CONNECT, time.monotonic())

    # What the connection tells (upstream.Sender).

    def on_response(self, response: ResponseReader, data: bytes) -> None:
        """Bytes of the answer."""
        now = time.monotonic()
        relay, lease = self._relay, self._lease
        assert lease is not None
        self._proxy.fleet.sign_of_life(lease.replica, now)
        if relay is None:
            if response.status in verdict.REFUSALS and self._refused(response, now):
                return
            relay = self._relay = self._open(response)
        if response.complete:
            self._connection = None  # It is back in its pool; pausing it would pause the next request.
        elif self._paused and self._connection is not None:
            self._connection.pause(True)
        if data:
            self._heard(relay, lease, response.status, data, now)
        relay.pass_on(data)
        if response.complete:
            outcome, error = verdict.of(response.status)
            self._end(outcome, relay.usage(), error=error)

    def on_lost(self, loss: Loss) -> None:
        """The connection broke before the answer was whole."""
        self._connection = None
        error = UpstreamError.PROTOCOL if loss.garbled else UpstreamError.RESET
        if self._relay is not None:
            self._broken(error)
        elif not loss.written:
            self._settle(Outcome.NOT_REACHED, error, tells=not loss.reused)
            self._again_unworked()
        elif loss.garbled or loss.begun:
            self._settle(Outcome.FAILED, error)
            self._fail("The replica's answer broke off, or is not HTTP.", "replica_lost")
        elif loss.reused:
            self._settle(Outcome.FAILED, error, tells=False)
            self._raced = self._tried.pop()  # A dead connection was tried, not the replica: a fresh one may go there.
            self._fresh = True
            self._proxy.pools[self._raced].drop_idle()
            self._resend()
        else:
            self._settle(Outcome.FAILED, error)
            self._spawn(self._resend_if_gone())

    def _heard(self, relay: Relay, lease: Lease, status: int, data: bytes, now: float) -> None:
        """Body bytes: perhaps the first, perhaps the first token. What precedes generation counts as neither."""
        stores, good = self._endpoint.style is Style.RESPONSES, status < 300
        if stores and (stored := relay.stored_id()):
            self._proxy.stored.put(stored, lease.replica)
        if stores and good and self._ask.streams and not lease.started and not relay.generates(data):
            return
        if self._journal.chunk(now):
            self._journal.ended(Stage.FIRST_BYTE, now)
        if good and not lease.started:
            lease.first_token(now)

    def _open(self, response: ResponseReader) -> Relay:
        assert self._route is not None
        self._journal.status = response.status
        route = self._route
        ours = (
            f"x-homing-replica: {route.replica}\r\nx-homing-reason: {route.reason.value}\r\n"
            f"x-homing-predicted-cached-tokens: {route.cached}\r\nx-homing-request-id: {self._id}\r\n"
        )
        date = b"" if response.dated else self._proxy.date()
        return Relay(self._request, response, (ours.encode("latin-1"), self._explained, date), self._client)

    def _refused(self, response: ResponseReader, now: float) -> bool:
        """The replica is full: no failure. True when the request goes on to another one or into the queue."""
        assert self._lease is not None
        replica = self._lease.replica
        self._proxy.fleet.full(replica, now + verdict.retry_after(response))
        if self._unworked >= self._proxy.max_refusals:
            return False
        tried = [*self._tried, replica]
        if isinstance(self._proxy.fleet.route(self._ask, now, self._proxy.rng, tried), Refusal):
            return False
        connection, self._connection = self._connection, None
        if connection is not None and not response.complete:
            connection.drain()
        self._settle(Outcome.REFUSED, UpstreamError.STATUS_429)
        self._again_unworked()
        return True

    # Sending again.

    def _not_reached(self, error: OSError) -> None:
        assert self._lease is not None
        if isinstance(error, ConnectionRefusedError):
            self._proxy.unreachable(self._lease.replica)
        self._journal.ended(Stage.CONNECT, time.monotonic())
        self._settle(Outcome.NOT_REACHED, UpstreamError.CONNECT)
        self._again_unworked()

    def _again_unworked(self) -> None:
        self._unworked += 1
        if self._unworked > self._proxy.max_refusals:
            self._fail("No replica could be reached.", "replica_unreachable")
        else:
            self._find()

    async def _resend_if_gone(self) -> None:
        replica = self._tried[-1]
        pool = self._proxy.pools.get(replica)  # A reload may have removed the replica meanwhile.
        gone = pool is not None and await pool.refuses()
        self._connecting = None
        if gone:
            self._proxy.unreachable(replica)
            if self._raced == replica:
                self._resends -= 1  # That was no race: the connection died with its process, and so did both sends.
            self._resend()
        else:
            self._fail("The replica closed the connection before it answered.", "replica_lost")

    def _resend(self) -> None:
        self._resends += 1
        if self._resends > MAX_RESENDS:
            self._fail("The replica closed the connection before it answered.", "replica_lost")
        elif not self._proxy.budget.spend(time.monotonic()):
            text = "The replica was lost before it answered, and of late too many requests were sent again already."
            self._fail(text, "retry_budget_exhausted")
        else:
            self._find()

    # Ends.

    def client_left(self) -> None:
        """The client is gone: whatever phase this is in, the replica stops working for it."""
        if self._over:
            return
        unread = Phase.UPLOADING if self._route is None else Phase.WAITING
        self._journal.left = Phase.STREAMING if self._relay is not None else unread
        if self._waits:
            self._proxy.waiting.leave(self._ask.model, self)
            self._journal.left = Phase.QUEUED
        if self._connecting is not None:
            self._connecting.cancel()
        self._drop_connection()
        self._end(Outcome.ABORTED, None, answered=False)

    def client_paused(self, paused: bool) -> None:
        """The client reads slower than the replica writes, or fast enough again."""
        self._paused = paused
        if self._connection is not None:
            self._connection.pause(paused)

    def _broken(self, error: UpstreamError) -> None:
        """Midway: what the client has is not whole, and it must see that."""
        assert self._relay is not None
        self._drop_connection()
        self._relay.broken("The replica broke off while it answered.", self._endpoint.style)
        self._end(Outcome.FAILED, None, answered=False, error=error)
        self._client.abort()

    def _fail(self, message: str, code: str) -> None:
        self._answer(answers.error(502, message, code, self._endpoint.style))

    def _answer(self, answer: Answer) -> None:
        """The router's own answer."""
        self._journal.status = answer.status
        lines = [
            b"content-type: application/json\r\ncontent-length: %d\r\n" % len(answer.body),
            b"x-homing-request-id: %b\r\n" % self._id.encode("latin-1"),
            self._proxy.date(),
        ]
        if answer.retry_after is not None:
            lines.append(b"retry-after: %d\r\n" % max(1, round(answer.retry_after)))
        if not self._request.keep_alive:
            lines.append(b"connection: close\r\n")
        body = b"" if self._request.method == b"HEAD" else answer.body
        self._client.write(response_head(answer.status, b"", lines) + body)
        self._end(Outcome.OK, None)

    def _end(
        self, outcome: Outcome, usage: Usage | None, answered: bool = True, error: UpstreamError | None = None
    ) -> None:
        if self._over:
            return
        self._over = True
        relay = self._relay
        self._settle(outcome, error, usage)
        now = time.monotonic()
        if relay is not None:
            self._journal.ended(Stage.BODY, now)
        if answered:
            self._client.done(relay.keep_alive if relay else self._request.keep_alive)
        self._proxy.describe(self._journal.record(self._ask, now))

    def _settle(
        self, outcome: Outcome, error: UpstreamError | None, usage: Usage | None = None, tells: bool = True
    ) -> None:
        """End the lease, if there is one, and let those who wait try. Unless `tells`, it says nothing of it."""
        lease, self._lease = self._lease, None
        if lease is None:
            return
        proxy, now = self._proxy, time.monotonic()
        self._tried.append(lease.replica)
        self._journal.settled(lease.finish(outcome, usage, now), error)
        if tells and outcome in verdict.TELLING:
            ejection = proxy.fleet.ended(lease, outcome is not Outcome.OK, now)
            if ejection is not None:
                proxy.ejected(ejection)
        if proxy.waiting:
            proxy.loop.call_soon(proxy.waiting.wake)

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._connecting = self._proxy.loop.create_task(work)
        self._proxy.tasks.add(self._connecting)
        self._connecting.add_done_callback(self._proxy.tasks.discard)
