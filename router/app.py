"""Wiring of one worker: builds each object once, hands it over by constructor, starts and stops in order.

A worker serves clients and knows nothing of files, probes or signals: its supervisor tells it over a channel how it is
set, who is in the fleet and when to stop, and is told what was served. A worker whose supervisor is gone drains.

Start: fleet, pools, gossip, clients' ports last. Stop: clients' ports first, then what is under way, then gossip and
pools. joining.py makes a process of it.
"""

import asyncio
import contextlib
import logging
import socket
import time
from collections import Counter
from collections.abc import Sequence
from importlib.metadata import version as installed
from random import Random

import msgspec

from router import parts
from router.admin import lag
from router.admin.requestlog import RequestLog
from router.config import Config
from router.core.budget import RetryBudget
from router.core.fleet import Fleet
from router.core.member import Transition
from router.core.peers import PeerId
from router.core.record import Record
from router.core.trace import trace
from router.core.types import Ask, ReplicaId, State
from router.gossip import messages
from router.gossip.channel import Channel
from router.gossip.messages import (
    AnyMessage,
    Applied,
    Drain,
    Ejected,
    Explain,
    Explained,
    Heard,
    Member,
    Members,
    Placed,
    Records,
    Refused,
    Report,
    Reported,
    Settings,
    Shadowed,
    Summarise,
    Summarised,
    Summary,
    Traces,
    Tracing,
)
from router.gossip.news import News
from router.gossip.reporter import Reporter
from router.gossip.tap import Tap
from router.proxy import tcp
from router.proxy.clients import Clients
from router.proxy.context import Proxy
from router.proxy.entrance import Entrance
from router.proxy.explaining import explain
from router.proxy.upstream import Address, Pool
from router.proxy.waiting import Waiting
from router.tls import Pems, for_clients

log = logging.getLogger("homing.worker")

BACKLOG = 4096
"""Connections that wait to be accepted: what a worker that is being replaced may miss in a second or two."""

GOODBYE = 1.0
"""Seconds that the last news may take to reach the supervisor, which may be gone or stopped."""

REMOVED = "removed from the configuration"


class Worker:
    """One router in one process. `clients` are listening sockets and `channel` leads to the supervisor; it closes them
    when it stops."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        config: Config,
        token: str | None,
        pems: Pems,
        root: bytes | None,
        clients: Sequence[socket.socket],
        peer: PeerId,
        channel: Channel,
    ) -> None:
        self._loop, self._config, self._listening, self._channel = loop, config, clients, channel
        self.fleet = Fleet(config.routing.make(), config.fleet_settings())
        self.waiting = Waiting(loop, config.routing.queue.max_requests, config.routing.queue.max_seconds)
        self._reporter = Reporter(loop, channel.send)
        self._news = News(loop, self.fleet, peer, channel.send, time.monotonic, time.time)
        self._tap = Tap(loop, self.fleet, channel.send)
        self._log: RequestLog | None = None
        self.pools: dict[ReplicaId, Pool] = {}
        self._retired: list[Pool] = []
        self._leaving: set[ReplicaId] = set()
        self.proxy = Proxy(
            loop,
            self.fleet,
            parts.asker(config, root),
            self.pools,
            self.waiting,
            Random(),
            self._describe,
            self._unreachable,
            self._ejected,
            RetryBudget(config.retry.budget),
            parts.bounds(config),
            parts.times(config),
            installed("homing"),
            frozenset(config.proxy.allow_paths),
            config.retry.max_refusals,
            token.encode() if token else None,
            config.proxy.half_close,
        )
        self.clients = Clients(self.proxy)
        self.entrance = Entrance(self.proxy, self.clients, self._reporter.handshake)
        self._secured: tuple[object, object] = None, None
        self._secure(config, pems)
        self._servers: list[asyncio.Server] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._draining: asyncio.Task[None] | None = None
        self.stopped = asyncio.Event()
        self._populate(config)
        self._write_log(config.log.requests)

    async def start(self) -> None:
        """Serve. Returns when the clients' ports are open."""
        self._tasks.append(self._loop.create_task(lag.sample(self._reporter.lag)))
        self._news.start()
        self.proxy.tap = self._tap.follow(self._config.shadow.followed)
        self.clients.sweep()
        for listening in self._listening:
            tcp.keep_alive(listening)
            self._servers.append(await self._loop.create_server(self.entrance.admit, sock=listening, backlog=BACKLOG))

    # What the supervisor tells.

    def hear(self, message: AnyMessage) -> None:
        """Do what a message says."""
        match message:
            case Heard() | Summary() | Summarise():  # First, since it comes at every tick.
                self._news.take(message)
            case Settings():
                self._adjust(message)
            case Members():
                self._take_all(message.members)
            case Drain():
                self.drain(message.accept, message.idle, message.timeout)
            case Report() | Explain():
                self._answer(message)
            case Tracing():
                self._reporter.tracing = message.on
            case Applied() | Records() | Traces() | Shadowed() | Reported() | Explained() | Summarised() | Refused():
                log.error("the supervisor sent %s, which is a worker's to send", type(message).__name__)
            case _:
                self._news.hear(message)

    def _adjust(self, settings: Settings) -> None:
        """Take another configuration; what needs a restart is as it was."""
        config, old = parts.configuration(settings), self._config
        self._config = config
        if config.log.level != old.log.level:
            logging.getLogger().setLevel(config.log.level.upper())
        self.fleet.adjust(None if config.routing == old.routing else config.routing.make(), config.fleet_settings())
        self.waiting.adjust(config.routing.queue.max_requests, config.routing.queue.max_seconds)
        proxy = self.proxy
        proxy.asker = parts.asker(config, settings.root)
        proxy.allow_paths = frozenset(config.proxy.allow_paths)
        proxy.half_close = config.proxy.half_close
        proxy.max_refusals = config.retry.max_refusals
        proxy.budget.share = config.retry.budget
        proxy.bounds, proxy.times = parts.bounds(config), parts.times(config)
        self.clients.adjust()
        proxy.token = settings.token.encode() if settings.token else None
        self._secure(config, Pems(*settings.pems))
        self._populate(config)
        self.proxy.tap = self._tap.follow(config.shadow.followed)
        self._write_log(config.log.requests)
        self.waiting.wake()
        self._channel.send(Applied(settings.serial), must=True)

    def _take_all(self, members: Sequence[Member]) -> None:
        for member in members:
            self._take(member)
        self.fleet.readmit(time.monotonic())
        self._let_go()
        self.waiting.wake()

    def _take(self, member: Member) -> None:
        """How a replica is, as the probes found it."""
        fleet, now = self.fleet, time.monotonic()
        if member.id not in self.pools:
            return  # It has left, and the supervisor does not know yet.
        if member.models is not None:
            fleet.serves(member.id, member.models)
        if fleet.engine(member.id, member.epoch, member.kv_tokens, now):
            log.info("replica %s has restarted; what it had cached is forgotten", member.id)
        if member.last_sign > fleet.replica(member.id).last_sign:
            fleet.sign_of_life(member.id, member.last_sign)
        if member.sample is not None:
            fleet.sampled(member.id, messages.sample(member.sample))
        if member.id not in self._leaving:
            fleet.mark(member.id, member.state, member.reason, now)

    def _answer(self, question: Report | Explain) -> None:
        if isinstance(question, Report):
            self._report(question.serial)
        else:
            told = explain(self.proxy, question.path, question.body)
            self._channel.send(Explained(question.serial, msgspec.json.encode(told)), must=True)

    def _report(self, serial: int) -> None:
        """Tell everything, so that a scrape counts what has ended before it."""
        self._reporter.flush()
        self._tap.flush()
        self._news.tell_loads()
        index = self.fleet.residency
        held = {replica.id: index.held(replica.id) for replica in self.fleet.replicas}
        queued = {model or "": depth for model, depth in self.waiting.depths.items()}
        lines = self._log.dropped if self._log else 0
        dropped = self._channel.dropped + Counter({Placed.__name__: self._news.dropped})
        budget = self.proxy.budget.left(time.monotonic())
        told = Reported(serial, queued, held, len(index), index.evictions, lines, dropped, budget)
        self._channel.send(told, must=True)

    # What the data plane tells.

    def _describe(self, record: Record, ask: Ask) -> None:
        """One record feeds the metrics and the log line, and a recording of the traffic where there is one."""
        if self._reporter.tracing:
            self._reporter.trace(trace(ask, record, time.monotonic()))
        self._reporter.record(record)
        if self._log is not None:
            self._log.record(record)
        if self._leaving:
            self._loop.call_soon(self._let_go)

    def _unreachable(self, replica: ReplicaId) -> None:
        """Nobody listens there: out at once here, and the supervisor tells the others."""
        if replica in self.pools:
            self.fleet.mark(replica, State.DOWN, "connection refused", time.monotonic())
            self.fleet.readmit(time.monotonic())
        self._channel.send(Refused(replica))

    def _ejected(self, transition: Transition) -> None:
        """Requests failed there too often: the others need not find that out by theirs."""
        replica, seconds = transition.replica, self.fleet.replica(transition.replica).conduct.until - time.monotonic()
        self._channel.send(Ejected(replica, transition.reason, seconds))

    # TLS.

    def _secure(self, config: Config, pems: Pems) -> None:
        """Have new connections as settings and certificates say. Nothing happens to open ones of clients, nor where all
        is as it was: a new context knows no sessions of the old one, and replicas' idle connections go with theirs."""
        clients, replicas = (config.tls, *pems[:3]), (parts.by_tls(config), config.tls.replicas, *pems[3:])
        was, self._secured = self._secured, (clients, replicas)
        if clients != was[0]:
            self.entrance.context = for_clients(config.tls, pems)
        if replicas != was[1]:
            self._trust = parts.trust(config, pems)

    # Members of the fleet.

    def _populate(self, config: Config) -> None:
        """Make the fleet what the configuration says. Who is removed gets nothing new and goes with its last answer."""
        wanted = {replica.id: replica for replica in config.replicas}
        now = time.monotonic()
        for replica in self.pools.keys() - wanted.keys():
            self._leaving.add(replica)
            self.fleet.mark(replica, State.DRAINING, REMOVED, now)
        self.fleet.join([each.spec() for name, each in wanted.items() if name not in self.pools], now)
        for name, each in wanted.items():
            self._leaving.discard(name)
            self.fleet.replica(name).respec(each.spec())
            self._connect(name, parts.address(each), config.timeouts.connect)
        self._let_go()

    def _connect(self, replica: ReplicaId, address: Address, timeout: float) -> None:
        """A pool for a replica; one for another address takes the place of the old one, whose answers go on."""
        pool = self.pools.get(replica)
        if pool is not None and pool.address != address:
            pool.retire()
            self._retired.append(pool)
            pool = None
        trust = self._trust if address.secure else None
        if pool is None:
            pool = self.pools[replica] = Pool(self._loop, address, timeout, trust)
        pool.connect_timeout = timeout
        pool.secure(trust)

    def _let_go(self) -> None:
        """Part with removed replicas that have nothing under way here."""
        for replica in [each for each in self._leaving if not self.fleet.replica(each).requests]:
            self._leaving.remove(replica)
            self.fleet.leave(replica)
            pool = self.pools.pop(replica)
            pool.retire()
            self._retired.append(pool)
        self._retired = [pool for pool in self._retired if pool.open]

    def _write_log(self, wanted: bool) -> None:
        if wanted and self._log is None:
            self._log = RequestLog()
            self._log.start()
        elif not wanted and self._log is not None:
            self._loop.run_in_executor(None, self._log.close)
            self._log = None

    # The end.

    def drain(self, accept: float, idle: float, timeout: float) -> None:
        """Begin to stop (messages.Drain); a second call ends it at once."""
        if self._draining is not None:
            self.clients.cut()
            return
        self.clients.leaving = True
        if not accept:
            self._close_ports()
        self._draining = self._loop.create_task(self._drain(accept, idle, time.monotonic() + timeout))

    @property
    def config(self) -> Config:
        """What is in effect."""
        return self._config

    @property
    def draining(self) -> bool:
        """Whether it has begun to stop."""
        return self._draining is not None

    def orphaned(self) -> None:
        """The supervisor is gone: nobody would tell of the fleet any more, or replace this worker."""
        log.warning("the supervisor is gone: draining")
        self.drain(0.0, 0.0, self._config.drain.timeout)

    async def stop(self) -> None:
        """Take no new connection, let what is under way end within drain.timeout, then close everything."""
        if self._draining is None:
            self.drain(0.0, 0.0, self._config.drain.timeout)
        await self.stopped.wait()

    def _close_ports(self) -> None:
        for server in self._servers:
            server.close()

    async def _drain(self, accept: float, idle: float, end: float) -> None:
        await asyncio.sleep(min(accept, end - time.monotonic()))
        self._close_ports()
        await self.clients.gone(min(idle, end - time.monotonic()))
        broken = await self.clients.drain(max(0.0, end - time.monotonic()))
        if broken:
            log.warning("%d requests had not ended within drain.timeout and were broken off", broken)
        self.waiting.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._reporter.flush()
        self._tap.follow(0.0)
        self._news.stop()
        for pool in [*self.pools.values(), *self._retired]:
            pool.close()
        if self._log is not None:
            await self._loop.run_in_executor(None, self._log.close)
        self._channel.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GOODBYE):
                await self._channel.closed.wait()
        self.stopped.set()
