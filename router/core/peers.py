"""Other routers of the same fleet: what they have told, and what they must have added since. Pure.

Load is kept per (router, replica) and summed here; an engine's gauges are never added to it (backlog.py compares them
with the sum). News is absolute, so losing or repeating one is harmless; a router that falls silent is dropped after
TTL, with all that it had.

News is always a little old, and routers that read the same old news choose the same idle replica. So, since a router's
last `Load`, it is assumed to have added what this router has added, scaled by its share of the traffic, until it
confirms that nothing was sent since (POLICY section 4: best or within noise of the best at every age of news).
"""

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple, Protocol

from router.core.backlog import Assumed, Learned, LearnedNews, Totals
from router.core.member import Replica
from router.core.recent import Recent
from router.core.types import ReplicaId

PeerId = str

TTL = 2.0
"""Seconds of silence after which a router's load is dropped: two heartbeats (`Learned`, every second) were missed."""

ASSUMED = 512
"""Own dispatches that are remembered to extrapolate from. News comes every 25 ms, so this many are 20,000 a second."""

HOT = 4096
"""Hot blocks taken over from one router. A window has at most some dozens of them, so more is not meant well."""


NOBODY: AbstractSet[ReplicaId] = frozenset()


class ModelNews(NamedTuple):
    """What a router has learned of a model: requests in its window, hot blocks in there, and its means."""

    model: str
    window: int
    hot: Sequence[int]
    learned: LearnedNews


class RateNews(NamedTuple):
    """What a router has learned of a replica's speed, and from how many samples; None: nothing yet."""

    replica: ReplicaId
    lin: float | None
    lin_seen: int
    step: float | None
    step_seen: int


class Group(Protocol):
    """What a fleet keeps of a model that other routers tell of, too."""

    recent: Recent
    learned: Learned


class _Peer:
    """One router. `settled`: it has sent nothing since its last news. `share`: its traffic in ours, at most 1."""

    __slots__ = ("heard_at", "hot", "loads", "news_at", "sequence", "settled", "share")

    def __init__(self, now: float) -> None:
        self.heard_at = self.news_at = now
        self.sequence = -1
        self.settled = True
        self.share = 1.0
        self.loads: dict[ReplicaId, tuple[Totals, float]] = {}
        self.hot: dict[str, frozenset[int]] = {}


class _Sent(NamedTuple):
    """One of our own dispatches."""

    at: float
    replica: ReplicaId
    uncached: int
    tokens: int


class Peers:
    """All other routers that are heard of. `replicas` and `groups` are the fleet's own, kept by the fleet."""

    def __init__(self, replicas: Mapping[ReplicaId, Replica], groups: Mapping[str, Group]) -> None:
        self._replicas, self._groups = replicas, groups
        self._peers: dict[PeerId, _Peer] = {}
        self._sent: deque[_Sent] = deque(maxlen=ASSUMED)

    def __len__(self) -> int:
        """How many there are."""
        return len(self._peers)

    # What they tell.

    def loaded(self, name: PeerId, sequence: int, loads: Mapping[ReplicaId, Totals], whole: bool, now: float) -> None:
        """A router's own load on these replicas, and with `whole` none on any other.

        A sequence number older than the last one is no news; the last one again says that nothing was sent since.
        """
        self.sum(self.noted(name, sequence, loads, whole, now), now)

    def noted(
        self, name: PeerId, sequence: int, loads: Mapping[ReplicaId, Totals], whole: bool, now: float
    ) -> AbstractSet[ReplicaId]:
        """The same but for the sums, which are due for these replicas before anything else is asked: so that what
        several routers tell at once is summed once."""
        peer = self._peer(name, now)
        if sequence <= peer.sequence:
            peer.settled = peer.settled or sequence == peer.sequence
            return NOBODY
        peer.sequence, peer.news_at, peer.settled = sequence, now, False
        changed = ({*loads, *peer.loads} if whole else loads.keys()) & self._replicas.keys()
        for replica in changed:
            if replica in loads:
                peer.loads[replica] = loads[replica], now
                member, sign = self._replicas[replica], now - loads[replica].quiet
                if sign > member.last_sign:
                    member.last_sign = sign
            else:
                del peer.loads[replica]
        return changed

    def sum(self, replicas: Iterable[ReplicaId], now: float) -> None:
        """Sum the others' load on these replicas anew."""
        for replica in replicas:
            self._sum(replica, now)

    def learned(self, name: PeerId, models: Iterable[ModelNews], rates: Iterable[RateNews], now: float) -> None:
        """What a router has learned; it also says that the router is there.

        Means and rates are taken over while this router has seen fewer samples than it needs for its own.
        """
        peer = self._peer(name, now)
        peer.hot.clear()
        window = ours = 0
        for news in models:
            group = self._groups.get(news.model)
            if group is None:
                continue
            window += news.window
            ours += len(group.recent)
            peer.hot[news.model] = frozenset(news.hot[:HOT])
            group.learned.adopt(news.learned)
        peer.share = min(1.0, window / ours) if ours else 1.0
        for rate in rates:
            member = self._replicas.get(rate.replica)
            if member is not None:
                member.adopt(rate.lin, rate.lin_seen, rate.step, rate.step_seen)
        self._share_hot()

    def bye(self, name: PeerId, now: float) -> None:
        """A router is gone, and its load with it. Nothing happens when it was not known."""
        peer = self._peers.pop(name, None)
        if peer is not None:
            self.sum(peer.loads, now)
            self._share_hot()

    def expire(self, now: float) -> list[PeerId]:
        """Drop those that have been silent for too long; returns who that was."""
        silent = [name for name, peer in self._peers.items() if now - peer.heard_at > TTL]
        for name in silent:
            self.bye(name, now)
        return silent

    def left(self, replica: ReplicaId) -> None:
        """A replica has left the fleet."""
        for peer in self._peers.values():
            peer.loads.pop(replica, None)

    # What is assumed.

    def sent(self, replica: ReplicaId, uncached: int, tokens: int, now: float) -> None:
        """This router has sent a request."""
        self._sent.append(_Sent(now, replica, uncached, tokens))

    def assumed(self) -> dict[ReplicaId, Assumed]:
        """What the others are taken to have added, by replica, since each was last heard."""
        unsettled = sorted([(peer.news_at, peer.share) for peer in self._peers.values() if not peer.settled])
        sent = self._sent
        if not unsettled:
            sent.clear()  # What was sent before the next news is in its past.
            return {}
        while sent and sent[0].at <= unsettled[0][0]:
            sent.popleft()
        added: dict[ReplicaId, list[float]] = {}
        older, share = 0, 0.0  # Routers whose last news is older than what was sent, and their shares.
        for at, replica, uncached, tokens in sent:
            while older < len(unsettled) and unsettled[older][0] < at:
                share += unsettled[older][1]
                older += 1
            sums = added.setdefault(replica, [0.0, 0.0, 0.0])
            sums[0] += share
            sums[1] += share * uncached
            sums[2] += share * tokens
        return {replica: Assumed(*sums) for replica, sums in added.items()}

    def _peer(self, name: PeerId, now: float) -> _Peer:
        peer = self._peers.get(name)
        if peer is None:
            peer = self._peers[name] = _Peer(now)
        peer.heard_at = now
        return peer

    def _sum(self, replica: ReplicaId, now: float) -> None:
        """Sum the others' load on a replica anew, with what was recent decayed to now."""
        member, found = self._replicas[replica], False
        requests = unstarted = backlog = context = drained_requests = 0
        drained_tokens, recent, tau = 0.0, 0.0, member.tau
        for peer in self._peers.values():
            told = peer.loads.get(replica)
            if told is not None:
                found, (load, at) = True, told
                requests += load.requests
                unstarted += load.unstarted
                backlog += load.backlog
                context += load.context
                drained_requests += load.drained_requests
                drained_tokens += load.drained_tokens
                recent += load.recent and load.recent * math.exp((at - now) / tau)
        member.changes += 1
        member.others_at = now
        member.others = None
        if found:
            member.others = Totals(requests, unstarted, backlog, context, drained_requests, drained_tokens, recent)

    def _share_hot(self) -> None:
        nothing: frozenset[int] = frozenset()
        for model, group in self._groups.items():
            group.recent.others(nothing.union(*[peer.hot.get(model, nothing) for peer in self._peers.values()]))
