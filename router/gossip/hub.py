"""The supervisor's end of all its workers' channels: a star. What workers tell one another passes through here.

News is passed on as the bytes it came in. A worker that joins is told the last load of each of the others, so that its
first pick sees what they have; one whose connection ends is said goodbye for to the others.
"""

import asyncio
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from typing import get_args

from router.core.peers import PeerId
from router.gossip.channel import Channel, frame
from router.gossip.messages import AnyMessage, Bye, Codec, Heard, Load, Message, Shared

_SHARED = get_args(Shared)


class Hub:
    """`heard` is called with each message and who sent it; `lost` when a worker's connection has ended."""

    def __init__(self, heard: Callable[[PeerId, AnyMessage], None], lost: Callable[[PeerId], None]) -> None:
        self._heard, self._lost = heard, lost
        self._codec = Codec()
        self._channels: dict[PeerId, Channel] = {}
        self._loads: dict[PeerId, bytes] = {}
        self._dropped: Counter[str] = Counter()

    @property
    def peers(self) -> list[PeerId]:
        """The workers that are connected."""
        return list(self._channels)

    @property
    def dropped(self) -> Counter[str]:
        """Messages that a worker did not take, by kind."""
        return sum((channel.dropped for channel in self._channels.values()), self._dropped)

    async def join(self, peer: PeerId, line: socket.socket) -> asyncio.Event:
        """Speak with a worker over this socket, which the hub owns from now on; the answer is set when that is over."""

        def heard(message: AnyMessage, whole: bytes) -> None:
            self._take(peer, message, whole)

        channel = await Channel.over(line, self._codec, heard, lambda: self._leave(peer))
        for load in self._loads.values():
            channel.pass_on(load, Load.__name__)
        self._channels[peer] = channel
        return channel.closed

    def cut(self, peer: PeerId) -> None:
        """End the connection with a worker at once; nothing happens when it is gone."""
        if peer in self._channels:
            self._channels[peer].cut()

    def send(self, peer: PeerId, message: Message, must: bool = False) -> None:
        """To one worker; nothing happens when it is gone."""
        if peer in self._channels:
            self._channels[peer].send(message, must)

    def broadcast(self, message: Message, must: bool = False) -> None:
        """To all of them."""
        data = frame(self._codec.encode(message))
        for channel in self._channels.values():
            channel.pass_on(data, type(message).__name__, must)

    def relay(self, batches: Sequence[bytes]) -> None:
        """Other routers' news to all workers, in one message."""
        data = frame(self._codec.together(batches))
        for channel in self._channels.values():
            channel.pass_on(data, Heard.__name__)

    def remember(self, peer: PeerId, batch: bytes) -> None:
        """All of another router's load: those who join later are told it first."""
        self._loads[peer] = frame(self._codec.together([batch]))

    def part(self, peer: PeerId) -> None:
        """Another router is gone."""
        self._loads.pop(peer, None)
        self.broadcast(Bye(peer))

    def close(self) -> None:
        """End all connections, once what was sent is out."""
        for channel in list(self._channels.values()):
            channel.close()

    def _take(self, peer: PeerId, message: AnyMessage, whole: bytes) -> None:
        if isinstance(message, _SHARED):
            for other, channel in self._channels.items():
                if other != peer:
                    channel.pass_on(whole, type(message).__name__)
            if isinstance(message, Load) and message.whole:
                self._loads[peer] = whole
        self._heard(peer, message)

    def _leave(self, peer: PeerId) -> None:
        self._dropped += self._channels.pop(peer).dropped
        self._loads.pop(peer, None)
        self.broadcast(Bye(peer))
        self._lost(peer)
