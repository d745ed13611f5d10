"""A worker's process: `python -m router.joining CHANNEL CLIENTS...`, descriptors that it inherits from its supervisor.

It begins to serve when it knows how it is set and who is in the fleet, so that no request of its is refused for want
of either.
"""

import asyncio
import contextlib
import gc
import logging
import signal
import socket
import sys
from collections.abc import Sequence

import uvloop

from router import parts
from router.admin import requestlog
from router.app import Worker
from router.gossip.channel import Channel
from router.gossip.messages import AnyMessage, Applied, Codec, Drain, Members, Settings
from router.sockets import close_others
from router.tls import Pems

COLLECT = 10_000
"""More objects made than freed, between two looks for unreachable cycles: a busy worker's in a second."""

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class _Joining:
    """What the supervisor tells, before there is a worker to hear it and then."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.settings: asyncio.Future[Settings] = loop.create_future()
        self._early: list[AnyMessage] = []
        self._worker: Worker | None = None

    def heard(self, message: AnyMessage, _: bytes) -> None:
        if self._worker is not None:
            self._worker.hear(message)
            return
        self._early.append(message)
        if isinstance(message, Members) and not self.settings.done():  # The settings come before the first of these.
            self.settings.set_result(next(each for each in self._early if isinstance(each, Settings)))

    def lost(self) -> None:
        if not self.settings.done():
            self.settings.set_exception(ConnectionError("the supervisor is gone"))
        elif self._worker is not None and not self._worker.draining:
            self._worker.orphaned()

    async def begin(self, worker: Worker) -> None:
        """Let a worker know its fleet, then serve, then hear what else it was told meanwhile."""
        orders = []
        for message in self._early:
            if isinstance(message, Settings | Drain):
                orders.append(message)
            else:
                worker.hear(message)
        self._worker = worker
        await worker.start()
        for message in orders[1:]:
            worker.hear(message)


async def join(line: socket.socket, clients: Sequence[socket.socket]) -> Worker:
    """A worker that serves, set as the supervisor at the other end of `line` says.

    Raises ConnectionError when the supervisor is gone before it has said what is needed.
    """
    loop = asyncio.get_running_loop()
    joining = _Joining(loop)
    channel = await Channel.over(line, Codec(), joining.heard, joining.lost)
    settings = await joining.settings
    worker = Worker(
        loop,
        parts.configuration(settings),
        settings.token,
        Pems(*settings.pems),
        settings.root,
        clients,
        settings.peer,
        channel,
    )
    await joining.begin(worker)
    channel.send(Applied(settings.serial), must=True)
    return worker


async def _work(line: socket.socket, clients: Sequence[socket.socket]) -> None:
    worker = await join(line, clients)
    _collect_less()
    logging.getLogger().setLevel(worker.config.log.level.upper())
    await worker.stopped.wait()


def _collect_less() -> None:
    """What was imported and built stays for good, and a request leaves no cycle behind; yet the collector would look
    through all of it every few hundred requests: a twentieth of the CPU, and tens of milliseconds at once."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT)


def main(channel: int, *clients: int) -> None:
    """The process: `channel` and `clients` are descriptors of sockets."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2):
        # A terminal and systemd send them to all; the supervisor says what to do.
        signal.signal(number, signal.SIG_IGN)
    close_others([channel, *clients])
    logging.basicConfig(level=logging.INFO, format=LOG_FORMAT)
    requestlog.to(sys.stdout)
    with contextlib.suppress(ConnectionError):  # The supervisor has ended before this process was up.
        uvloop.run(_work(socket.socket(fileno=channel), [socket.socket(fileno=each) for each in clients]))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
