"""One router's end of the line to the other routers: its workers' news out, the others' news in, and how that goes.

It is told what the workers tell, passes what others tell to the hub, and forgets nobody longer than it must. It has no
part in any request; when the line is dead the workers go on from what they know.
"""

import asyncio
import logging
import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import count

import msgspec

from router.core.fleet import Fleet
from router.core.peers import TTL, PeerId
from router.core.snapshots import RECALLED
from router.core.types import ReplicaId
from router.gossip.hub import Hub
from router.gossip.incoming import Incoming
from router.gossip.lines import BEAT, Line, Store
from router.gossip.messages import Batch, Codec, Shared, Summary
from router.gossip.outgoing import Outgoing
from router.gossip.seal import Flaw, Seal, Unusable, common
from router.gossip.snapshot import HASH_BYTES, REST, Snapshot, owned
from router.gossip.standing import Standing

log = logging.getLogger("homing.gossip")

LOOK = 0.1
"""Seconds between looks at who has fallen silent, when somebody may have."""

JOIN = 2.0
"""Seconds that a start waits for the others' load and beliefs; it takes a few milliseconds when Redis is there."""

MEET = 0.002
"""Seconds in which the news that several workers tell at one moment (news.py) comes together to one batch."""

SETTLING = 5.0
"""Seconds, more when a round of the snapshot takes longer, for which who has just come writes no part of it while
others can: of chains that go on where the snapshot tells nothing it lacks the ends, and would write over them. A
heartbeat before that it reads once more: by then the others have told each part anew, and written it."""

COMPARE = 4
"""Heartbeats between looks for routers in front of the same replicas that have another secret."""

BYE = 0.5
"""Seconds for the last word."""


class Link:
    """lines.End. `recalled` is called with each part of the others' snapshot. `secret` is the fleet's, `life` 8 random
    bytes, `block` routing.prefix_block. `line` is set by who builds both."""

    def __init__(
        self,
        fleet: Fleet,
        hub: Hub,
        snapshot: Snapshot,
        recalled: Callable[[Summary], None],
        secret: str,
        life: bytes,
        block: int,
    ) -> None:
        self.name = f"{socket.gethostname()}-{life.hex()}"
        self.seal = Seal(secret, life)
        self.line: Line
        self._fleet, self._hub, self._snapshot, self._recalled = fleet, hub, snapshot, recalled
        self._codec, self._summaries = Codec(), msgspec.msgpack.Decoder(Summary)
        self._outgoing = Outgoing(fleet, self.name, block, time.monotonic)
        self._incoming = Incoming(self.seal, block, self._heard, self._parted)
        self._came: list[bytes] = []  # Batches of this read, for the workers.
        self._alive_at = time.monotonic()
        self._standing = Standing(self._alive_at)
        self._settled = asyncio.Event()
        self._beat = b""
        self._joined_at = 0.0
        self._recollected = False  # The snapshot was read: what was told since is understood now.
        self._asks = False
        self._waking: asyncio.TimerHandle | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self.sent = self.received = 0

    @property
    def channel(self) -> str:
        """What the fleet's news goes over."""
        return f"{self.seal.prefix}news"

    async def start(self) -> None:
        """Begin. Returns when the others' load and beliefs are known, or will not be for now."""
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self.line.run()), loop.create_task(self._look())]
        try:
            async with asyncio.timeout(JOIN):
                await self._settled.wait()
        except TimeoutError:
            log.warning("no word from Redis within %g s; starting without it", JOIN)

    async def stop(self) -> None:
        """Say goodbye, if that is possible at once, and end."""
        try:
            async with asyncio.timeout(BYE):
                await self.line.close(self._sealed(self._outgoing.bye()))
        except TimeoutError:
            log.warning("could not say goodbye to the other routers; they will notice within %g s", TTL)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # What the workers tell.

    def take(self, worker: PeerId, message: Shared) -> None:
        """Note a worker's news, after the fleet has."""
        if self._outgoing.take(worker, message) and self._waking is None:
            if len(self._hub.peers) > 1:
                self._waking = asyncio.get_running_loop().call_later(MEET, self._wake)
            else:
                self.line.wake()

    def _wake(self) -> None:
        self._waking = None
        self.line.wake()

    def gone(self, worker: PeerId) -> None:
        """A worker has ended."""
        self._outgoing.gone(worker)
        self.line.wake()

    # lines.End.

    def tell(self) -> bytes | None:
        lacks = self._incoming.lacks if self._asks else {}
        self._asks = False
        batch = self._outgoing.batch(lacks)
        if self._outgoing.waits:
            self.line.wake()
        return None if batch is None else self._sealed(batch)

    def beat(self) -> bytes:
        self._beat = self._codec.encode(self._outgoing.beat())
        self.sent += len(self._beat)
        self._ask()  # Once more, where nothing has come of it.
        if self._outgoing.waits:
            self.line.wake()
        return self.seal.close(self._beat)

    def _ask(self) -> None:
        """Ask others to tell again what was missed. Placements that go on from what the snapshot tells make no sense
        before that was read."""
        if self._incoming.lacks and self._recollected:
            self._asks = True
            self.line.wake()

    def hear(self, news: Sequence[bytes]) -> bool:
        now, own, lacked = time.monotonic(), False, len(self._incoming.lacks)
        for data in news:
            self.received += len(data)
            if self.seal.is_own(data):
                own = True
            else:
                self._incoming.take(data, now)
        if own:
            self._alive_at = now
        self._pass_on()
        if len(self._incoming.lacks) > lacked:
            self._ask()
        return own

    async def join(self, store: Store) -> None:
        self._joined_at = time.monotonic()
        self._recollected = False
        routers = self._routers
        names = [name for name in await store.members(routers) if name != self.name]
        states = await store.read([self._state(name) for name in names])
        for key, value in states.items():
            self.received += len(value)
            self._incoming.take(value, time.monotonic(), key)
        self._pass_on()
        gone = [name for name in names if self._state(name) not in states]
        if gone:
            await store.strike(routers, gone)
        await self._recall(store)
        self._recollected = True
        self._ask()
        self._settled.set()

    async def _recall(self, store: Store) -> None:
        """Take the others' snapshot, as far as it can be read."""
        values = await store.read([self._part(replica.id) for replica in self._fleet.replicas])
        for key, value in values.items():
            self.received += len(value)
            try:
                summary = self._summaries.decode(self.seal.open(value, key.encode()))
            except (Unusable, msgspec.DecodeError) as error:
                flaw = error if isinstance(error, Unusable) else Unusable(Flaw.MALFORMED)
                self._incoming.flaws.note(flaw, time.monotonic())
            else:
                if key == self._part(summary.replica):
                    self._recalled(summary)

    async def keep(self, store: Store) -> None:
        place = self._state(self.name)
        written: dict[ReplicaId, Summary] = {}
        due = bool(self._incoming.peers)  # To read once more.
        for beats in count():
            if due and time.monotonic() - self._joined_at >= self._settling() - BEAT:
                due = False
                await self._recall(store)
            if beats % COMPARE == 0:
                await self._compare(store)
            if self._beat:
                await store.enlist(self._routers, self.name)
                await store.write(place, self.seal.close(self._beat, place.encode()), TTL)
            for replica in self._owned():
                summary = self._snapshot.summaries[replica]
                if written.get(replica) is not summary:
                    written[replica] = summary
                    await self._write(store, summary)
            await asyncio.sleep(BEAT)

    def _settling(self) -> float:
        """Seconds until who has just come knows all: the round takes longer the more there is to tell."""
        hashes = sum(len(summary.hashes) for summary in self._snapshot.summaries.values()) // HASH_BYTES
        return SETTLING + REST * hashes

    def _owned(self) -> list[ReplicaId]:
        """The replicas whose part is ours to write."""
        now, settling = time.monotonic(), self._settling()
        settled = self._incoming.settled(now - settling)
        if now - self._joined_at < settling:
            if settled:
                return []
            settled = self._incoming.peers  # All have just come, as after an outage.
        return owned(self._snapshot.summaries, self.name, settled)

    async def _compare(self, store: Store) -> None:
        """Leave word for routers in front of the same replicas, and read theirs: with another secret they have another
        channel, so they would never be heard. Names of replicas are in Redis' keys anyway."""
        replicas = [replica.id for replica in self._fleet.replicas]
        if not replicas:
            return
        ours, place = self.seal.prefix.encode(), common(replicas)
        theirs = (await store.read([place])).get(place, ours)
        if theirs != ours:
            self._incoming.flaws.note(Unusable(Flaw.SECRET), time.monotonic())
        await store.write(place, ours, 2 * COMPARE * BEAT)

    async def _write(self, store: Store, summary: Summary) -> None:
        place = self._part(summary.replica)
        sealed = self.seal.close(self._codec.encode(summary), place.encode())
        self.sent += len(sealed)
        await store.write(place, sealed, RECALLED)

    def turned(self, problem: str | None) -> None:
        if problem is not None:
            self._settled.set()
        self._standing.turned(problem, time.monotonic())

    # How it goes.

    @property
    def up(self) -> bool:
        """Whether news goes to the others and comes from them."""
        return self._standing.problem is None

    @property
    def problem(self) -> str | None:
        """What keeps this router from deciding as one with the others."""
        problem, since = self._standing.problem, self._standing.since
        return None if problem is None else f"{problem} (for {time.monotonic() - since:.0f} s)"

    @property
    def peers(self) -> int:
        """Other routers that are there."""
        return len(self._incoming.peers)

    def view_age(self) -> float:
        """Seconds since the last news of the router heard longest ago, or since Redis was last seen to work."""
        now = time.monotonic()
        return self._incoming.oldest(now) if self.up else now - self._alive_at

    @property
    def dropped(self) -> Mapping[str, int]:
        """News that was not taken, by flaw, and not told, as `queue`."""
        return Counter(self._incoming.flaws.counted) + Counter(queue=self._outgoing.dropped)

    # Small things.

    def _heard(self, batch: Batch, payload: bytes, whole: bool) -> None:
        if self.name in batch.lacks:
            self._outgoing.asked(batch.lacks[self.name])
            self.line.wake()
        if batch.news:
            self._came.append(payload)
        if whole:
            self._hub.remember(batch.peer, payload)

    def _pass_on(self) -> None:
        if self._came:
            self._hub.relay(self._came)
            self._came = []

    def _parted(self, peer: PeerId) -> None:
        """A router is gone; what it told before that must not come after it."""
        self._pass_on()
        self._hub.part(peer)

    def _sealed(self, batch: Batch) -> bytes:
        data = self.seal.close(self._codec.encode(batch))
        self.sent += len(data)
        return data

    async def _look(self) -> None:
        while True:
            now = time.monotonic()
            self._incoming.expire(now)
            self._standing.look(now)
            await asyncio.sleep(max(LOOK, TTL - self._incoming.oldest(now)))

    @property
    def _routers(self) -> str:
        return f"{self.seal.prefix}routers"

    def _part(self, replica: ReplicaId) -> str:
        return f"{self.seal.prefix}{{{replica}}}:holds"

    def _state(self, router: PeerId) -> str:
        return f"{self.seal.prefix}{{{router}}}:state"
