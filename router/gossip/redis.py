"""The line over Redis: pub/sub for news, keys with a time to live for who joins. The supervisor holds it.

Nothing here is on a request's path, and no failure here is anybody's error: a session with Redis ends with the first
thing that goes wrong, the End is told once, and the next session is tried after a pause with jitter. It counts as alive
once our own heartbeat has come back, and as dead when that has not come for SILENCE.

News goes over plain connections (talk.py): PUBLISH reaches all nodes of a cluster, and Redis 6 and later serve alike.
Keys carry hash tags, so that a cluster spreads them.
"""

import asyncio
import contextlib
import logging
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import Any, TypeVar, cast

from redis.asyncio import Redis
from redis.asyncio.cluster import RedisCluster
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    NoPermissionError,
    ReadOnlyError,
    RedisClusterException,
    RedisError,
    ResponseError,
)

from router.gossip.lines import End
from router.gossip.talk import TIMEOUT, Refusal, Talk

log = logging.getLogger("homing.gossip")

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 0.8
"""Seconds before a new session, doubling, each times 0.5 to 1.5. The longest is short because sixteen routers that try
once a second are nothing to Redis, and because the fleet should agree again within 3 s after it is back: 1.2 of them
for the pause, and 1 until a heartbeat tells who comes back what it has missed."""

STEADY = 10.0
"""Seconds that a session must have lasted for the pauses to begin small again."""

_HINTS: tuple[tuple[type[BaseException], str], ...] = (
    (AuthenticationError, "see `gossip.user` and `gossip.password_file`"),
    (NoPermissionError, "`gossip.user` needs the keys and channels `homing:*`"),
    (ssl.SSLCertVerificationError, "see `gossip.tls.ca_file`"),
    (ssl.SSLError, "see `gossip.tls`, and whether `gossip.url` is right to say rediss"),
    (socket.gaierror, "see `gossip.url`"),
)
"""By what was raised, the special before the general."""

T = TypeVar("T")

Observe = Callable[[str, str, float], None]
"""Takes an operation's name, its outcome (ok, error) and its seconds."""


@dataclass(frozen=True, slots=True)
class Access:
    """Where Redis is and who we are. `form`: "", "sentinel" or "cluster" (redisurl.py); the files are for TLS."""

    form: str
    hosts: Sequence[tuple[str, int]]
    service: str = ""
    database: int = 0
    user: str | None = None
    password: str | None = None
    tls: bool = False
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None

    def options(self) -> dict[str, Any]:
        """For any of the library's clients. It retries nothing itself: sessions are what is retried."""
        options: dict[str, Any] = {
            "protocol": 2,
            "socket_timeout": None,  # It would use wait_for, which can lose a cancellation before Python 3.12.
            "socket_connect_timeout": TIMEOUT,
            "retry": Retry(NoBackoff(), 0),
        }
        if self.tls:
            options |= {
                "ssl": True,
                "ssl_ca_certs": self.ca_file,
                "ssl_certfile": self.cert_file,
                "ssl_keyfile": self.key_file,
            }
            if (
                self.form != "cluster"
            ):  # Which knows no such option. Without it OpenSSL asks at the terminal, and waits.
                options["ssl_password"] = ""
        return options

    def credentials(self) -> dict[str, Any]:
        """User and password, of the servers and not of their Sentinels."""
        return {"username": self.user, "password": self.password}


class RedisLine:
    """lines.Line. `channel` is what the fleet's news goes over."""

    def __init__(self, access: Access, channel: str, end: End, observe: Observe, rng: Random) -> None:
        self._access, self._channel, self._end, self._observe, self._rng = access, channel, end, observe, rng
        self._news: Redis | None = None
        self._talk: Talk | None = None
        self._alive = self._closed = False
        self._problem: str | None = None

    def wake(self) -> None:
        if self._talk is not None:
            self._talk.wake()

    async def run(self) -> None:
        pause = FIRST_PAUSE
        while True:
            began = time.monotonic()
            try:
                await self._session()
            except* (RedisError, RedisClusterException, OSError) as failed:
                self._turn(reason(failed))
            if self._closed:  # What fails at that moment, as to close a connection in time, hides a cancellation.
                return
            pause = FIRST_PAUSE if time.monotonic() - began > STEADY else min(LONGEST_PAUSE, 2 * pause)
            await asyncio.sleep(pause * self._rng.uniform(0.5, 1.5))

    async def close(self, last: bytes) -> None:
        self._closed = True
        if self._talk is not None:
            self._talk.hush()
        if self._news is not None and self._alive:
            with contextlib.suppress(RedisError, OSError):
                await self._timed("publish", self._news.publish(self._channel, last))

    async def _session(self) -> None:
        """Speak with Redis until something goes wrong."""
        async with connected(self._access) as (news, keys):
            ear, mouth = [await self._timed("connect", _transport(news)) for _ in range(2)]
            self._talk = Talk(ear, mouth, self._channel, self._end, self._observe, self._echoed)
            self._news, store = news, RedisStore(keys, self._timed, self._partly)
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(_translated(self._talk))
                    tasks.create_task(self._keep(store))
            finally:
                self._news, self._talk, self._alive = None, None, False

    def _echoed(self) -> None:
        if not self._alive:
            self._alive = True
            self._turn(self._problem)

    async def _keep(self, store: "RedisStore") -> None:
        await self._end.join(store)
        await self._end.keep(store)

    async def _timed(self, operation: str, awaited: Awaitable[T]) -> T:
        began, outcome = time.monotonic(), "error"
        try:
            async with within(TIMEOUT):
                answer = await awaited
            outcome = "ok"
        finally:
            self._observe(operation, outcome, time.monotonic() - began)
        return answer

    # What is said of it: once for each change.

    def _partly(self, problem: str | None) -> None:
        """Whether Redis takes what is written; news may go through all the same."""
        self._problem = problem
        if self._alive:
            self._turn(problem)

    def _turn(self, problem: str | None) -> None:
        self._end.turned(problem)


class RedisStore:
    """lines.Store. A write that Redis refuses (its memory is full, the user may not) is told, and nothing else follows;
    unless it is a server that has become another's copy, which ends the session."""

    def __init__(
        self,
        keys: "Redis | RedisCluster",
        timed: Callable[[str, Awaitable[Any]], Awaitable[Any]],
        refused: Callable[[str | None], None],
    ) -> None:
        self._keys, self._timed, self._refused = keys, timed, refused

    async def read(self, keys: Sequence[str]) -> Mapping[str, bytes]:
        found: dict[str, bytes] = {}
        for start in range(0, len(keys), 16):
            some = keys[start : start + 16]
            pipeline = self._keys.pipeline(transaction=False)
            for key in some:
                pipeline.get(key)
            values = await self._timed("read", pipeline.execute())
            found |= {key: value for key, value in zip(some, values, strict=True) if isinstance(value, bytes)}
        return found

    async def write(self, key: str, value: bytes, seconds: float) -> None:
        await self._change("write", self._keys.set(key, value, px=int(seconds * 1000)))

    async def members(self, key: str) -> Sequence[str]:
        answer: Any = self._keys.smembers(key)
        return sorted(name.decode() for name in await self._timed("read", answer))

    async def enlist(self, key: str, name: str) -> None:
        answer: Any = self._keys.sadd(key, name)
        await self._change("write", answer)

    async def strike(self, key: str, names: Sequence[str]) -> None:
        answer: Any = self._keys.srem(key, *names)
        await self._change("write", answer)

    async def _change(self, operation: str, command: Awaitable[Any]) -> None:
        try:
            await self._timed(operation, command)
        except ReadOnlyError:
            raise
        except ResponseError as error:
            self._refused(f"Redis does not take what is written: {error}")
        else:
            self._refused(None)


@asynccontextmanager
async def connected(access: Access) -> AsyncIterator["tuple[Redis, Redis | RedisCluster]"]:
    """Clients for news and for keys; the same one unless it is a cluster. They connect when they are used.

    Raises RedisError, RedisClusterException or OSError where a node must be asked first, and does not answer.
    """
    options, credentials = access.options(), access.credentials()
    async with AsyncExitStack() as stack:
        host, port = access.hosts[0]
        if access.form == "sentinel":
            sentinel: Any = Sentinel(list(access.hosts), sentinel_kwargs=options, **options, **credentials)  # type: ignore[no-untyped-call]
            for each in sentinel.sentinels:
                stack.push_async_callback(each.aclose)
            news = sentinel.master_for(access.service, db=access.database, **options, **credentials)
        elif access.form == "cluster":
            host, port = await _first_that_answers(access)
            news = Redis(host=host, port=port, **options, **credentials)
        else:
            news = Redis(host=host, port=port, db=access.database, **options, **credentials)
        stack.push_async_callback(news.aclose)
        keys: Redis | RedisCluster = news
        if access.form == "cluster":
            keys = RedisCluster(host=host, port=port, **options, **credentials)
            stack.push_async_callback(keys.aclose)
        yield news, keys


async def _transport(news: Redis) -> asyncio.Transport:
    """Of a connection that is new and has logged in; the client closes it in the end."""
    connection: AbstractConnection = await news.connection_pool.get_connection()  # type: ignore[no-untyped-call]
    assert connection._writer is not None  # There is no public way to it.
    return cast(asyncio.Transport, connection._writer.transport)


async def _translated(talk: Talk) -> None:
    """A talk whose refusals are the client's."""
    try:
        await talk.run()
    except Refusal as error:
        raise (NoPermissionError if str(error).startswith("NOPERM") else ResponseError)(str(error)) from error


async def _first_that_answers(access: Access) -> tuple[str, int]:
    """One of a cluster's nodes that is there."""
    failed: Exception = OSError("no node is named")
    for host, port in access.hosts:
        async with Redis(host=host, port=port, **access.options(), **access.credentials()) as node:
            try:
                async with within(TIMEOUT):
                    await node.ping()
            except (RedisError, OSError) as error:
                failed = error
            else:
                return host, port
    raise failed


@asynccontextmanager
async def within(seconds: float) -> AsyncIterator[None]:
    """Raises TimeoutError, with a text, for what takes longer."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        raise TimeoutError(f"no answer within {seconds:g} s") from error


def reason(failed: BaseException) -> str:
    """What was raised first, and what to look at. A client's errors hide what they came from: that is asked, too."""
    while isinstance(failed, BaseExceptionGroup):
        failed = failed.exceptions[0]
    text = " ".join(str(failed).split()) or type(failed).__name__
    chain: list[BaseException] = []
    each: BaseException | None = failed
    while each is not None and each not in chain:
        chain.append(each)
        each = each.__cause__ or each.__context__
    for kind, hint in _HINTS:
        if any(isinstance(each, kind) for each in chain):
            return f"{text} ({hint})"
    return text
