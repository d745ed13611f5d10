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
from router.core.types import Ask, Outcome, Refusal, RefusalCause, Route, Usage, Wait
from router.proxy import answers, bounds, explaining, local, openai, verdict
from router.proxy.answers import Answer, Style
from router.proxy.bounds import Late
from router.proxy.context import Client, Proxy
from router.proxy.heads import request_head
from router.proxy.journal import Journal, Stage
from router.proxy.openai import Reading, Use
from router.proxy.relay import Relay, added
from router.proxy.responses import ResponseReader
from router.proxy.tries import Tries
from router.proxy.upstream import Connection, Loss, Pool
from router.proxy.wire import Request

LARGE = 64 * 1024
"""Bytes of a body that is not held any longer than it may be sent again: a stream may go on for hours."""


class Exchange:
    """One request between a client and the replica that serves it."""

    __slots__ = (
        "_ask", "_client", "_connecting", "_connection", "_endpoint", "_explained", "_held", "_id", "_journal",
        "_lease", "_over", "_paused", "_proxy", "_relay", "_request", "_route", "_since", "_tries", "_waits",
    )  # fmt: skip

    def __init__(self, proxy: Proxy, client: Client, request: Request) -> None:
        self._proxy, self._client, self._request = proxy, client, request
        self._endpoint = openai.endpoint(request.path, proxy.allow_paths)
        self._id = proxy.request_id() if request.id is None else request.id.decode("latin-1")
        self._since = time.monotonic()  # When the replica, or the client that is waited for, last did something.
        self._journal = Journal(self._id, self._endpoint.name, self._since)
        self._held = len(request.body)
        proxy.buffered += self._held
        self._ask = Ask(None)
        self._route: Route | None = None
        self._lease: Lease | None = None
        self._connection: Connection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._relay: Relay | None = None
        self._tries = Tries()
        self._waits = self._over = self._paused = False
        self._explained = b""

    def start(self) -> None:
        """Answer, or find a replica."""
        proxy, use = self._proxy, self._endpoint.use
        if use in local.ANSWERED:
            self._journal.rejected = local.REJECTED.get(use)
            self._answer(local.answer(proxy, use, self._request.path))
        elif self._held and proxy.buffered > proxy.bounds.buffered:
            self._journal.rejected = "buffer_full"
            self._answer(answers.buffer_full(self._endpoint.style))
        else:
            proxy.budget.request(self._since)
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
        self._ask = self._proxy.stored.ask(reading)
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
        decision = self._proxy.fleet.route(self._ask, now, self._proxy.rng, self._tries.replicas)
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
        connection = None if self._tries.fresh else pool.take()
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
        self._connection, request, address = connection, self._request, pool.address
        head = request_head(request, address.authority, address.base, self._client.peer, self._id)
        connection.send(self, head, request.body, request.method == b"HEAD")
        self._since = time.monotonic()
        self._journal.ended(Stage.CONNECT, self._since)
        if self._proxy.tap is not None and self._lease is not None:
            self._proxy.tap(self._lease)

    # What the connection tells (upstream.Sender).

    def on_response(self, response: ResponseReader, data: bytes) -> None:
        """Bytes of the answer."""
        now = self._since = time.monotonic()
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
            self._broken(Outcome.FAILED, error, "The replica broke off while it answered.", "replica_lost")
        elif not loss.written:
            self._settle(Outcome.NOT_REACHED, error, tells=not loss.reused)
            self._again_unworked()
        elif loss.garbled or loss.begun:
            self._settle(Outcome.FAILED, error)
            self._fail("The replica's answer broke off, or is not HTTP.", "replica_lost")
        elif loss.reused:
            self._settle(Outcome.FAILED, error, tells=False)
            self._proxy.pools[self._tries.raced()].drop_idle()
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
        if self._held > LARGE and self._connection is not None and self._connection.written:
            self._request = self._request._replace(body=b"")
            self._release()
        extra = (added(self._route, self._id), self._explained, b"" if response.dated else self._proxy.date())
        return Relay(self._request, response, extra, self._client)

    def _refused(self, response: ResponseReader, now: float) -> bool:
        """The replica is full: no failure. True when the request goes on to another one or into the queue."""
        assert self._lease is not None
        proxy, replica = self._proxy, self._lease.replica
        proxy.fleet.full(replica, now + verdict.retry_after(response))
        if not self._tries.may_be_refused(proxy.max_refusals):
            return False
        if isinstance(proxy.fleet.route(self._ask, now, proxy.rng, [*self._tries.replicas, replica]), Refusal):
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
        if self._tries.unworked(self._proxy.max_refusals):
            self._find()
        else:
            self._fail("No replica could be reached.", "replica_unreachable")

    async def _resend_if_gone(self) -> None:
        replica = self._tries.replicas[-1]
        gone = await self._proxy.is_gone(replica)
        self._connecting = None
        if gone:
            self._tries.died(replica)
            self._resend()
        else:
            self._fail("The replica closed the connection before it answered.", "replica_lost")

    def _resend(self) -> None:
        wrong = self._tries.lost(self._proxy.budget, time.monotonic())
        if wrong is None:
            self._find()
        else:
            self._fail(*wrong)

    # Ends.

    def client_left(self) -> None:
        """The client is gone: whatever phase this is in, the replica stops working for it."""
        if self._over:
            return
        unread = Phase.UPLOADING if self._route is None else Phase.WAITING
        self._journal.left = Phase.STREAMING if self._relay is not None else unread
        if self._waits:
            self._journal.left = Phase.QUEUED
        self._stop()
        self._end(Outcome.ABORTED, None, answered=False)

    def client_paused(self, paused: bool) -> None:
        """The client reads slower than the replica writes, or fast enough again."""
        self._paused = paused
        self._since = time.monotonic()  # While it was not read, the replica could not show that it goes on.
        if self._connection is not None:
            self._connection.pause(paused)

    def sweep(self, now: float) -> None:
        """End what takes too long. Looked at some times a second, so that no request needs a timer."""
        sent, begun = self._connection is not None, self._relay is not None
        late = bounds.late(self._proxy.times, now - self._journal.arrived, now - self._since, sent, begun, self._paused)
        if late is not None:
            self.give_up(late)

    def give_up(self, late: Late) -> None:
        """Nobody has more time for it: say so, and end it."""
        (outcome, error), message = verdict.LATE[late], bounds.TOO_LATE[late]
        if error is None:
            self._journal.rejected = late.value
        if self._relay is not None:
            self._broken(outcome, error, message, late.value)
            if late is Late.CLIENT:
                self._client.cut()
        else:
            self._stop()
            self._settle(outcome, error)
            self._request = self._request._replace(keep_alive=self._request.keep_alive and late is not Late.DRAINING)
            self._answer(answers.late(message, late, self._endpoint.style))

    def _stop(self) -> None:
        """Nobody works for this request any more, in whatever phase it is."""
        if self._waits:
            self._waits = False
            self._proxy.waiting.leave(self._ask.model, self)
            self._journal.ended(Stage.QUEUE, time.monotonic())
        if self._connecting is not None:
            self._connecting.cancel()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()

    def _broken(self, outcome: Outcome, error: UpstreamError | None, message: str, code: str) -> None:
        """Midway: what the client has is not whole, and it must see that."""
        assert self._relay is not None
        self._stop()
        self._relay.broken(message, code, self._endpoint.style)
        self._end(outcome, None, answered=False, error=error)
        self._client.abort()

    def _fail(self, message: str, code: str) -> None:
        self._answer(answers.error(502, message, code, self._endpoint.style))

    def _answer(self, answer: Answer) -> None:
        """The router's own answer."""
        self._journal.status = answer.status
        request, date = self._request, self._proxy.date()
        self._client.write(answers.written(answer, self._id, date, request.keep_alive, request.method == b"HEAD"))
        self._end(Outcome.OK, None)

    def _end(
        self, outcome: Outcome, usage: Usage | None, answered: bool = True, error: UpstreamError | None = None
    ) -> None:
        if self._over:
            return
        self._over, relay = True, self._relay
        self._release()
        self._settle(outcome, error, usage)
        now = time.monotonic()
        if relay is not None:
            self._journal.ended(Stage.BODY, now)
        if answered:
            self._client.done(relay.keep_alive if relay else self._request.keep_alive)
        self._proxy.describe(self._journal.record(self._ask, now), self._ask)

    def _settle(
        self, outcome: Outcome, error: UpstreamError | None, usage: Usage | None = None, tells: bool = True
    ) -> None:
        """End the lease, if there is one, and let those who wait try. Unless `tells`, it says nothing of it."""
        lease, self._lease = self._lease, None
        if lease is None:
            return
        proxy, now = self._proxy, time.monotonic()
        self._tries.replicas.append(lease.replica)
        self._journal.settled(lease.finish(outcome, usage, now), error)
        if tells and outcome in verdict.TELLING:
            ejection = proxy.fleet.ended(lease, outcome is not Outcome.OK, now)
            if ejection is not None:
                proxy.ejected(ejection)
        if proxy.waiting:
            proxy.loop.call_soon(proxy.waiting.wake)

    def _release(self) -> None:
        """The body will not be sent again."""
        held, self._held = self._held, 0
        self._proxy.buffered -= held

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._connecting = self._proxy.spawn(work)
