"""What other routers tell: opened, checked, handed on for the workers; and which routers there are.

Whatever is not signed by this fleet, is of another version or has another form is dropped (flaws.py). A router that is
silent for TTL, or says goodbye, is said goodbye for to the workers: its load is gone at once. What has been heard
before, or would be out of its order, is left out (numbered.py). News only ever speaks of replicas that the
configuration names; of others it is ignored where it is used (core/peers.py).
"""

from collections.abc import Callable, Mapping

import msgspec

from router.core.peers import TTL, PeerId
from router.gossip.flaws import Flaws
from router.gossip.messages import Batch, Bye, Full, Load
from router.gossip.numbered import Hearing, without
from router.gossip.seal import Flaw, Seal, Unusable

MAX_PEERS = 64
"""Routers that are believed to be there: four times as many as anybody runs in front of one fleet."""


class Incoming:
    """`heard` is called with each batch, its bytes, and whether it holds all of a router's load, and so all that one
    who joins must know of it; `gone` with the name of each router that is there no more."""

    def __init__(
        self, seal: Seal, block: int, heard: Callable[[Batch, bytes, bool], None], gone: Callable[[PeerId], None]
    ) -> None:
        self._seal, self._block, self._heard, self._gone = seal, block, heard, gone
        self._decoder = msgspec.msgpack.Decoder(Batch)
        self._hearing = Hearing()
        self._heard_at: dict[PeerId, float] = {}
        self._came_at: dict[PeerId, float] = {}
        self.flaws = Flaws()

    @property
    def peers(self) -> list[PeerId]:
        """The routers that are there."""
        return list(self._heard_at)

    @property
    def lacks(self) -> Mapping[PeerId, int]:
        """Routers that have told something that was not heard, and from which number on."""
        return self._hearing.lacks

    def settled(self, by: float) -> list[PeerId]:
        """Those that were there by then."""
        return [peer for peer, at in self._came_at.items() if at <= by]

    def oldest(self, now: float) -> float:
        """Seconds since the last news of whoever was heard longest ago; 0 when nobody is there."""
        return now - min(self._heard_at.values(), default=now)

    def take(self, sealed: bytes, now: float, place: str = "") -> None:
        """Something came over the channel, or was stored at `place`."""
        try:
            payload = self._seal.open(sealed, place.encode())
            batch = self._decode(payload)
        except Unusable as error:
            self.flaws.note(error, now)
            return
        whole = False
        for message in batch.news:
            if isinstance(message, Load):
                whole = whole or message.whole
            elif isinstance(message, Bye):
                self._lose(batch.peer)
                return
        if batch.peer not in self._heard_at:
            self._came_at[batch.peer] = now
        self._heard_at[batch.peer] = now
        known = self._hearing.take(batch)
        if known:
            batch.news = list(without(batch.news, known))
            payload = msgspec.msgpack.encode(batch)
        self._heard(batch, payload, whole)

    def expire(self, now: float) -> None:
        """Part with those that have been silent for too long."""
        for peer in [peer for peer, at in self._heard_at.items() if now - at > TTL]:
            self._lose(peer)

    def _lose(self, peer: PeerId) -> None:
        if self._heard_at.pop(peer, None) is not None:
            del self._came_at[peer]
            self._hearing.lose(peer)
            self._gone(peer)

    def _decode(self, payload: bytes) -> Batch:
        """A batch that a router like this one can have sent. Raises Unusable."""
        try:
            batch = self._decoder.decode(payload)
        except msgspec.DecodeError as error:
            raise Unusable(Flaw.MALFORMED) from error
        for message in batch.news:
            if not isinstance(message, Full) and message.peer != batch.peer:
                raise Unusable(Flaw.MALFORMED)
        if batch.block != self._block:
            raise Unusable(Flaw.SETTINGS, f"{batch.block} there, {self._block} here")
        if batch.peer not in self._heard_at and len(self._heard_at) >= MAX_PEERS:
            raise Unusable(Flaw.PEERS)
        return batch
