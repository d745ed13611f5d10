"""The workers as their supervisor deals with them: what they are told, what they tell, what they are asked.

Everything goes over the hub. A question has a number and a bound on how long it is waited for, so a worker that hangs
makes an answer staler or leaves itself out of it, and holds nobody up.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count

from router.admin.recording import Recording
from router.admin.reports import Report, Reports
from router.admin.tally import Tally
from router.core.fleet import Fleet
from router.core.member import Replica
from router.core.peers import PeerId
from router.core.types import ReplicaId, State
from router.gossip import messages
from router.gossip.hub import Hub
from router.gossip.link import Link
from router.gossip.messages import (
    AnyMessage,
    Applied,
    Bye,
    Corrected,
    Drain,
    Ejected,
    Explain,
    Explained,
    Full,
    Heard,
    Learned,
    Load,
    Member,
    Members,
    Message,
    Placed,
    Records,
    Refused,
    Reported,
    Settings,
    Shadowed,
    Shared,
    Summarise,
    Summarised,
    Summary,
    Traces,
    Tracing,
)
from router.gossip.seal import root_key
from router.gossip.snapshot import Snapshot, pause
from router.reloading import Running
from router.shadowing import Shadowing

log = logging.getLogger("homing.supervisor")

FRESH = 0.25
"""Seconds that a scrape waits for the workers to tell what they have not told yet; they take a millisecond."""

PATIENCE = 5.0
"""Seconds that an operator waits: for a reload to be in effect, or a request to be explained."""


HUNG = 30
"""Seconds of silence after which a worker is replaced, as long as gunicorn's `timeout`. Workers tell something every
second, but the first word comes after an interpreter's start, on a machine that may be busy."""


@dataclass
class _Asked:
    """A question, and who has not answered yet."""

    left: set[PeerId]
    answered: asyncio.Event = field(default_factory=asyncio.Event)
    body: bytes | None = None

    def had(self, peer: PeerId) -> None:
        """That one has answered, or will not."""
        self.left.discard(peer)
        if not self.left:
            self.answered.set()


class Crew:
    """All workers; `link` leads to the other routers, where there are any. `refused` is called with a replica that
    nobody listens at, `ejected` with one whose requests failed too often, why, and for how many seconds it is out."""

    def __init__(
        self,
        fleet: Fleet,
        tally: Tally,
        running: Running,
        now: Callable[[], float],
        refused: Callable[[ReplicaId], None],
        ejected: Callable[[ReplicaId, str, float], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._fleet, self._tally, self._running, self._now = fleet, tally, running, now
        self._refused, self._ejected = refused, ejected
        self.hub = Hub(self._heard, self._gone)
        self.link: Link | None = None
        self.shadowing = Shadowing(fleet, now)
        self.snapshot = Snapshot()
        self.reports = Reports()
        self.serving: set[PeerId] = set()
        self.recording: Recording | None = None
        self.has_served = False
        self._silent: dict[PeerId, int] = {}
        self._began = asyncio.Event()
        self._serials = count(1)
        self._asked: dict[int, _Asked] = {}
        self._changed: set[ReplicaId] = set()
        self._told: dict[ReplicaId, tuple[State, Mapping[str, object]]] = {}

    async def join(self, peer: PeerId, line: socket.socket) -> asyncio.Event:
        """Take in a worker that was just started; it serves some time later. The answer is set when it is lost."""
        lost = await self.hub.join(peer, line)
        self._silent[peer] = 0
        self._set(peer, next(self._serials))
        now = self._now()
        for replica in self._fleet.replicas:
            if replica.state is State.EJECTED:
                self.hub.send(peer, Ejected(replica.id, replica.reason, replica.conduct.until - now), must=True)
            if replica.full_until > now:
                self.hub.send(peer, Full(replica.id, replica.full_until - now), must=True)
        for told in self.snapshot.messages():
            self.hub.send(peer, told, must=True)
        if self.recording is not None and not self.recording.ended:
            self.hub.send(peer, Tracing(True), must=True)
        return lost

    def watch(self) -> None:
        """Called every second. Part with a worker that has said nothing for HUNG of them: it hangs, and so would its
        clients, until another one serves its sockets. Turns are counted and not seconds, since after a stop of the
        whole machine all would look silent."""
        for peer, turns in self._silent.items():
            self._silent[peer] = turns + 1
        for peer in [peer for peer, turns in self._silent.items() if turns > HUNG]:
            log.error("worker %s has said nothing for %d s: it hangs, and is left to itself", peer, HUNG)
            del self._silent[peer]
            self.hub.cut(peer)

    async def complete(self, count: int) -> None:
        """Returns when so many serve."""
        while len(self.serving) < count:
            self._began.clear()
            await self._began.wait()

    # What they are told.

    def changed(self, replica: ReplicaId) -> None:
        """Something about a replica may have changed: tell of it, together with what else changes in this turn."""
        if not self._changed:
            self._loop.call_soon(self._tell_changed)
        self._changed.add(replica)

    async def adjust(self, running: Running) -> bool:
        """Have all take other settings; whether all have in time."""
        self._running = running
        serial = next(self._serials)
        asked = self._asked[serial] = _Asked(set(self.hub.peers))
        for peer in self.hub.peers:
            self._set(peer, serial)
        # Who was removed is new if it comes again: workers that had let go of it know nothing of it.
        self._told = {replica.id: (replica.state, replica.models) for replica in self._fleet.replicas}
        return await self._answered(serial, asked, PATIENCE)

    def record(self, recording: Recording) -> None:
        """Have all of them tell of their requests, until it has ended and `stop_recording` is called."""
        self.recording = recording
        self.hub.broadcast(Tracing(True), must=True)

    def stop_recording(self) -> None:
        """Nobody records any more; how the last recording stands can still be asked for."""
        self.hub.broadcast(Tracing(False), must=True)

    def drain(self, order: Drain) -> None:
        """Have all of them stop."""
        self.hub.broadcast(order, must=True)

    # What they are asked.

    async def refresh(self) -> None:
        """Have all tell what they have not told yet."""
        serial = next(self._serials)
        asked = self._asked[serial] = _Asked(set(self.serving))
        self._ask(asked, messages.Report(serial))
        await self._answered(serial, asked, FRESH)

    async def explain(self, path: str, body: bytes) -> bytes | None:
        """One worker's answer to where a request would go; None when there is none."""
        if not self.serving:
            return None
        serial, peer = next(self._serials), min(self.serving)
        asked = self._asked[serial] = _Asked({peer})
        self._ask(asked, Explain(serial, path, body))
        await self._answered(serial, asked, PATIENCE)
        return asked.body

    async def summarise(self, replica: ReplicaId) -> None:
        """Have the snapshot's part of a replica renewed, by the worker that has served longest."""
        peer = next((peer for peer in self.hub.peers if peer in self.serving), None)
        if peer is not None:
            serial = next(self._serials)
            asked = self._asked[serial] = _Asked({peer})
            self._ask(asked, Summarise(serial, replica))
            await self._answered(serial, asked, PATIENCE)

    async def keep_snapshot(self) -> None:
        """Have each replica's part renewed in its turn. Runs until cancelled."""
        while True:
            for replica in list(self._fleet.replicas):
                await asyncio.sleep(pause(self.snapshot.summaries.get(replica.id), len(self._fleet.replicas)))
                await self.summarise(replica.id)

    def recall(self, summary: Summary) -> None:
        """Have all workers believe a part of another's snapshot."""
        self.snapshot.take(summary)
        self.hub.broadcast(summary)

    def _ask(self, asked: _Asked, question: Message) -> None:
        for peer in asked.left:
            self.hub.send(peer, question, must=True)

    async def _answered(self, serial: int, asked: _Asked, seconds: float) -> bool:
        """Wait for the answers; whether all came in time."""
        if asked.left:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):  # wait_for can lose a cancellation, and the router would not end.
                    await asked.answered.wait()
        del self._asked[serial]
        if asked.left:
            log.warning("workers that have not answered within %g s: %s", seconds, ", ".join(sorted(asked.left)))
        return not asked.left

    def _set(self, peer: PeerId, serial: int) -> None:
        """Tell a worker how it is set, and of all replicas."""
        running, secrets = self._running, self._running.secrets
        root = root_key(secrets.gossip) if secrets.gossip else None
        settings = Settings(serial, peer, running.values, secrets.admin_token, secrets.pems, root)
        self.hub.send(peer, settings, must=True)
        self.hub.send(peer, Members([_member(replica, True) for replica in self._fleet.replicas]), must=True)

    def _tell_changed(self) -> None:
        """What a probe finds may be lost, the next one tells it anew; a change of state or of models may not."""
        changed, self._changed = self._changed, set()
        members, must = [], False
        for replica in self._fleet.replicas:
            if replica.id in changed:
                state, models = self._told.get(replica.id, (None, None))
                members.append(_member(replica, models != replica.models))
                must |= state is not replica.state or models != replica.models
                self._told[replica.id] = replica.state, replica.models
        self.hub.broadcast(Members(members), must)

    # What they tell.

    def _heard(self, peer: PeerId, message: AnyMessage) -> None:
        self._silent[peer] = 0
        match message:
            case Records() | Traces():
                self._count(message)
            case Shadowed():
                self.shadowing.take(peer, message)
            case Reported() | Explained() | Applied() | Summarised():
                self._answer(peer, message)
            case Refused():
                self._refused(message.replica)
            case (
                Settings() | Members() | Drain() | messages.Report() | Tracing()
                | Explain() | Heard() | Summarise() | Summary()
            ):  # fmt: skip
                log.error("worker %s sent %s, which is the supervisor's to send", peer, type(message).__name__)
            case _:
                self._news(peer, message)
                if self.link is not None:
                    self.link.take(peer, message)

    def _count(self, told: Records | Traces) -> None:
        """Requests that have ended."""
        if isinstance(told, Records):
            for row in told.records:
                self._tally.record(messages.record(row))
            for lag in told.lags:
                self._tally.lag.observe(lag)
            self._tally.handshakes.update(told.handshakes)
        elif self.recording is not None and not self.recording.ended:
            self.recording.take(map(messages.trace, told.traces), told.left_out)

    def _news(self, peer: PeerId, message: Shared) -> None:
        """What workers tell one another. Beliefs are their own: the hub has passed them on."""
        match message:
            case Load():
                loads = {replica: messages.totals(row) for replica, row in message.loads.items()}
                self._fleet.peers.loaded(peer, message.sequence, loads, message.whole, self._now())
            case Full():
                self._fleet.told_full(message.replica, self._now() + message.seconds)
            case Ejected():
                self._ejected(message.replica, message.reason, message.seconds)
            case Learned():
                self.snapshot.learned = message
                self._learn(message)
            case Bye():
                self._fleet.peers.bye(peer, self._now())
            case Placed() | Corrected():
                pass

    def _learn(self, learned: Learned) -> None:
        """The speed of a replica, to show: what was told last, since all workers learn of the same replicas."""
        known = {replica.id: replica for replica in self._fleet.replicas}
        for rate in map(messages.rate, learned.rates):
            if rate.replica in known:
                member = known[rate.replica]
                member.lin = rate.lin or member.lin
                member.known_step = rate.step or member.known_step
                member.step = rate.step or member.step

    def _gone(self, peer: PeerId) -> None:
        self._fleet.peers.bye(peer, self._now())
        self.reports.forget(peer)
        self.serving.discard(peer)
        self._silent.pop(peer, None)
        self.shadowing.gone(peer)
        if self.link is not None:
            self.link.gone(peer)
        for asked in self._asked.values():
            asked.had(peer)

    def _answer(self, peer: PeerId, message: Reported | Explained | Applied | Summarised) -> None:
        """One that nobody waits for any more is taken all the same."""
        asked = self._asked.get(message.serial)
        if isinstance(message, Reported):
            self.reports.take(peer, _report(message))
        elif isinstance(message, Applied):
            self.serving.add(peer)
            self.has_served = True
            self._began.set()
        elif isinstance(message, Summarised):
            if message.summary is not None:
                self.snapshot.take(message.summary)
        elif asked is not None:
            asked.body = message.body
        if asked is not None:
            asked.had(peer)


def _report(told: Reported) -> Report:
    return Report(told.queued, told.held, told.blocks, told.evictions, told.log_dropped, told.dropped, told.budget)


def _member(replica: Replica, models: bool) -> Member:
    """A replica as workers are told of it: what probes say. Ejections they tell one another, each with its end."""
    return Member(
        replica.id,
        State.READY if replica.state is State.EJECTED else replica.state,
        replica.reason,
        replica.last_sign,
        dict(replica.models) if models else None,
        replica.epoch,
        replica.kv_tokens,
        replica.sample,
    )
