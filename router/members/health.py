"""Probes every member, and reads what its engine says of itself.

One loop for each replica, with jitter so that routers do not probe in step: `/health` (out after two failures, or at
once on a refused connection; in after one success), then `/metrics`, and `/v1/models` every few seconds. A replica
becomes ready when it answers the probe and has told its models; one that is drained is `draining` instead, until it is
undrained. One that was ejected for what probes do not see comes back when the fleet says so, which is asked after each
good probe. Counters of load are never touched here: they change by a request's start and end only.
"""

import asyncio
import json
import logging
import ssl
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Protocol

import aiohttp
import msgspec

from router.core.fleet import Fleet
from router.core.member import Transition
from router.core.types import EngineSample, ReplicaId, State
from router.handshakes import Trust, in_words
from router.members import engine

log = logging.getLogger("homing.health")

_Get = AbstractAsyncContextManager[aiohttp.ClientResponse]

COMPLAIN_AFTER = 10
"""Failures in a row after which the log says once what is tried and what to check: the address may be wrong."""

NEWS = 0.03
"""Seconds after which workers have told of any request that an engine's answer can have counted (gossip/news.py)."""

DRAINED = "drained by an operator"

MAX_ANSWER = 4 << 20
"""Bytes of an engine's answer that are read: vLLM's metrics are some 100 KB, a card of a model is half of one."""

UNSAID = " (over TLS: does it want a certificate, tls.replicas.certificate_file?)"
"""What may be behind a connection that just ends: uvloop's and asyncio's servers do not say why they refuse."""

JITTER = 0.1
"""Share of an interval by which each wait differs."""


class Cause(StrEnum):
    """What a probe found, and what a change of state is due to, in one word."""

    ANSWERS = "answers"
    REFUSED = "refused"  # nobody listens there
    UNREACHABLE = "unreachable"  # no connection, for another reason
    TLS = "tls"  # it is reached, and the handshake fails
    TIMEOUT = "timeout"
    STATUS = "status"  # it answers, but not with 200
    BROKEN = "broken"  # what it answers breaks off, or is no HTTP
    FAILURES = "failures"  # of clients' requests: it is ejected, whatever it answers to probes
    READMITTED = "readmitted"  # after that
    DRAINED = "drained"  # an operator wants it to get nothing new, or has removed it
    UNDRAINED = "undrained"
    MOVED = "moved"  # it has another address


class Observer(Protocol):
    """Who is told of every probe, with the seconds it took and how it failed if it did, and of every change."""

    def probed(self, replica: ReplicaId, seconds: float, failure: str | None) -> None: ...

    def turned(self, transition: Transition, cause: str) -> None: ...


@dataclass(frozen=True, slots=True)
class HealthSettings:
    """Seconds; `failures` in a row take a replica out."""

    interval: float = 1.0
    timeout: float = 2.0
    failures: int = 2
    models_interval: float = 5.0


class Health:
    """All probes of one router. `changed` is called with each replica that was probed, and after each change."""

    def __init__(
        self,
        fleet: Fleet,
        urls: Mapping[ReplicaId, str],
        settings: HealthSettings,
        rng: Random,
        changed: Callable[[ReplicaId], None],
        observer: Observer,
        keys: Mapping[ReplicaId, str] | None = None,
        trust: Trust | None = None,
    ) -> None:
        """`keys` are the API keys of the replicas that want one, for the router's own calls only; `trust` is for those
        whose URL begins with https://."""
        self._trust = trust
        self._headers = _headers(keys or {})
        self._fleet, self._urls, self._settings = fleet, dict(urls), settings
        self._rng, self._changed, self._observer = rng, changed, observer
        self._failures = dict.fromkeys(urls, 0)
        self.drained: set[ReplicaId] = set()
        self._loops: dict[ReplicaId, asyncio.Task[None]] = {}
        self._start: Callable[[ReplicaId], None] | None = None
        self.missing: dict[ReplicaId, frozenset[str]] = {}

    async def run(self) -> None:
        """Probe until cancelled."""
        # One connection for each of the loops; more would outlive the engine's patience between two probes.
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=3.0)
        async with aiohttp.ClientSession(connector=connector) as session, asyncio.TaskGroup() as group:

            def start(replica: ReplicaId) -> None:
                self._loops[replica] = group.create_task(self._watch(session, replica))

            for replica in self._urls:
                start(replica)
            self._start = start
            await asyncio.Event().wait()

    def adjust(
        self,
        urls: Mapping[ReplicaId, str],
        settings: HealthSettings,
        keys: Mapping[ReplicaId, str] | None = None,
        trust: Trust | None = None,
    ) -> None:
        """Probe these replicas, in this way. The fleet has those that are new; one that is left out is drained."""
        before, headers, old = self._urls, self._headers, self._settings
        self._urls, self._headers, self._settings = dict(urls), _headers(keys or {}), settings
        self._trust = trust
        for replica in before.keys() - urls.keys():
            self._remove(replica)
        for replica, url in urls.items():
            now = (url, self._headers.get(replica), settings)
            if now == (before.get(replica), headers.get(replica), old):
                continue
            self._failures[replica] = 0
            if before.get(replica, url) != url:
                self._mark(replica, State.STARTING, "its address has changed", Cause.MOVED)
            self._end(replica)
            if self._start is not None:
                self._start(replica)

    def _remove(self, replica: ReplicaId) -> None:
        self._end(replica)
        del self._failures[replica]
        self.missing.pop(replica, None)
        self.drained.discard(replica)
        self._mark(replica, State.DRAINING, "removed from the configuration", Cause.DRAINED)

    def _end(self, replica: ReplicaId) -> None:
        loop = self._loops.pop(replica, None)
        if loop is not None:
            loop.cancel()

    def drain(self, replica: ReplicaId) -> None:
        """Let it get nothing new, whatever probes say, until it is undrained."""
        self.drained.add(replica)
        if self._fleet.replica(replica).alive:
            self._mark(replica, State.DRAINING, DRAINED, Cause.DRAINED)

    def undrain(self, replica: ReplicaId) -> None:
        """Let it take part again, if it is well."""
        self.drained.discard(replica)
        if self._fleet.replica(replica).state is State.DRAINING:
            self._mark(replica, State.READY, "undrained", Cause.UNDRAINED)

    def unreachable(self, replica: ReplicaId) -> None:
        """The data plane's connection was refused: nobody listens there, so the replica is out at once."""
        self._mark(replica, State.DOWN, "connection refused", Cause.REFUSED)

    def ejected(self, transition: Transition) -> None:
        """The data plane's requests failed there too often; the fleet has let go of it for a while."""
        self._tell(transition, Cause.FAILURES)

    async def _watch(self, session: aiohttp.ClientSession, replica: ReplicaId) -> None:
        """One replica's loop."""
        clock = time.monotonic
        models_at = clock()
        while True:
            due = clock() + self._settings.interval * self._rng.uniform(1 - JITTER, 1 + JITTER)
            if await self._probe(session, replica):
                state, why = self._wanted(replica)
                joins = self._fleet.replica(replica).state is not state
                await self._scrape(session, replica)
                if (joins or clock() >= models_at) and await self._models(session, replica):
                    models_at = clock() + self._settings.models_interval
                if joins and self._fleet.replica(replica).models:
                    self._mark(replica, state, why, Cause.ANSWERS)
                self._readmit()
                self._changed(replica)
            await asyncio.sleep(due - clock())

    def _wanted(self, replica: ReplicaId) -> tuple[State, str]:
        """The state of a replica that is well."""
        return (State.DRAINING, DRAINED) if replica in self.drained else (State.READY, "answers /health")

    async def _probe(self, session: aiohttp.ClientSession, replica: ReplicaId) -> bool:
        begun = time.monotonic()
        cause, problem = await self._ask(session, replica)
        now = time.monotonic()
        good = cause is Cause.ANSWERS
        self._observer.probed(replica, now - begun, None if good else cause)
        if not good:
            self._failed(replica, problem, cause)
            return False
        self._failures[replica] = 0
        self._fleet.sign_of_life(replica, now)
        return True

    async def _ask(self, session: aiohttp.ClientSession, replica: ReplicaId) -> tuple[Cause, str]:
        """One probe: what it found, and that in words."""
        try:
            async with self._get(session, replica, "/health") as response:
                await _body(response)
                cause = Cause.ANSWERS if response.status == 200 else Cause.STATUS
                return cause, f"/health answers {response.status}"
        except aiohttp.ClientError as error:
            cause, problem = _unwell(error)
            silent = cause in {Cause.UNREACHABLE, Cause.BROKEN} and self._urls[replica].startswith("https:")
            return cause, problem + (UNSAID if silent else "")
        except TimeoutError:
            return Cause.TIMEOUT, "/health: no answer in time"

    def _get(self, session: aiohttp.ClientSession, replica: ReplicaId, path: str) -> _Get:
        """Not elsewhere: who redirects a probe redirects requests, too."""
        return session.get(
            f"{self._urls[replica]}{path}",
            headers=self._headers.get(replica),
            allow_redirects=False,
            ssl=self._trust.context if self._trust else True,
            server_hostname=self._trust.name if self._trust else None,
            timeout=aiohttp.ClientTimeout(total=self._settings.timeout),
        )

    def _failed(self, replica: ReplicaId, problem: str, cause: Cause) -> None:
        """Count it. A refused connection is as good as all failures: who is gone is out at once."""
        self._failures[replica] += 1
        if cause is Cause.REFUSED:
            self._failures[replica] = max(self._failures[replica], self._settings.failures)
        if self._failures[replica] == COMPLAIN_AFTER:
            log.warning(
                "replica %s at %s failed %d probes in a row (%s): is the URL right, and is the engine running?",
                replica,
                self._urls[replica],
                COMPLAIN_AFTER,
                problem,
            )
        if self._failures[replica] >= self._settings.failures:
            self._mark(replica, State.DOWN, problem, cause)

    async def _scrape(self, session: aiohttp.ClientSession, replica: ReplicaId) -> None:
        """Read the engine's gauges. Our own counts, of all workers, are taken before and after, and the larger count: a
        request that came or went while the engine wrote its answer must not look like somebody else's."""
        member = self._fleet.replica(replica)
        before = member.whole
        text = await self._text(session, replica, "/metrics")
        metrics = engine.read(text or "")
        self.missing[replica] = frozenset(metrics.missing)
        if text is None:
            return
        if self._fleet.engine(replica, metrics.epoch, metrics.kv_tokens, time.monotonic()):
            log.info("replica %s has restarted; what it had cached is forgotten", replica)
        now = time.monotonic()
        await asyncio.sleep(NEWS)
        after = member.whole
        requests, unstarted = max(before.requests, after.requests), max(before.unstarted, after.unstarted)
        sample = EngineSample(now, metrics.running, metrics.waiting, metrics.kv_usage, requests, unstarted)
        self._fleet.sampled(replica, sample)

    async def _models(self, session: aiohttp.ClientSession, replica: ReplicaId) -> bool:
        text = await self._text(session, replica, "/v1/models")
        try:
            cards = json.loads(text or "")["data"]
            models = {card["id"]: card for card in cards if isinstance(card["id"], str)}
            msgspec.msgpack.encode(
                models
            )  # Workers are told of them, and what cannot be told would keep all else back.
        except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
            return False
        self._fleet.serves(replica, models)
        return True

    async def _text(self, session: aiohttp.ClientSession, replica: ReplicaId, path: str) -> str | None:
        """The body of a good answer; None for any other, and for none."""
        try:
            async with self._get(session, replica, path) as response:
                body = await _body(response)
                return body.decode("utf-8", "replace") if response.status == 200 else None
        except (aiohttp.ClientError, TimeoutError) as error:
            log.debug("replica %s: %s: %s", replica, path, error)
            return None

    def _mark(self, replica: ReplicaId, state: State, reason: str, cause: Cause) -> None:
        transition = self._fleet.mark(replica, state, reason, time.monotonic())
        if transition is not None:
            self._tell(transition, cause)
            self._readmit()

    def _readmit(self) -> None:
        for transition in self._fleet.readmit(time.monotonic()):
            self._tell(transition, Cause.READMITTED)

    def _tell(self, transition: Transition, cause: Cause) -> None:
        self._observer.turned(transition, cause)
        log.info("replica %s: %s -> %s (%s)", transition.replica, transition.old, transition.new, transition.reason)
        self._changed(transition.replica)


async def _body(response: aiohttp.ClientResponse) -> bytes:
    """Raises aiohttp.ClientPayloadError for one that is longer than any engine's."""
    body = bytearray()
    async for piece in response.content.iter_any():
        body += piece
        if len(body) > MAX_ANSWER:
            raise aiohttp.ClientPayloadError(f"an answer of more than {MAX_ANSWER} bytes")
    return bytes(body)


def _unwell(error: aiohttp.ClientError) -> tuple[Cause, str]:
    """Why there was no answer."""
    found = getattr(error, "os_error", None) or getattr(error, "certificate_error", None) or error
    if isinstance(found, ssl.SSLError) or (isinstance(found.__cause__, ssl.SSLError) and (found := found.__cause__)):
        return Cause.TLS, f"TLS fails: {in_words(found)}"
    if isinstance(error, aiohttp.ClientConnectorError):
        cause = Cause.REFUSED if isinstance(error.os_error, ConnectionRefusedError) else Cause.UNREACHABLE
        return cause, f"cannot connect: {error.os_error.strerror or error}"
    return Cause.BROKEN, f"/health: {error or 'no answer'}"


def _headers(keys: Mapping[ReplicaId, str]) -> dict[ReplicaId, dict[str, str]]:
    return {replica: {"Authorization": f"Bearer {key}"} for replica, key in keys.items()}
