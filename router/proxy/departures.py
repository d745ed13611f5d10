"""Who leaves while nobody reads from them.

Only a read tells that a client has left, and a client that sends too much ahead is not read from until its answer is
out: its replica would generate in vain. So the kernel is asked to tell: one epoll (Linux) for all such sockets, which
lies in the loop's own, so that a departure comes as an event, within a millisecond, and watching costs nothing while
nothing happens. Elsewhere nothing is told, and the sweep ends what takes too long.
"""

import asyncio
import select
import sys
from collections.abc import Callable


class Departures:
    """The sockets of one worker that are not read."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._watched: dict[int, Callable[[], None]] = {}
        self._epoll: select.epoll | None = None

    def watch(self, descriptor: int, left: Callable[[], None], half: bool) -> None:
        """Call `left`, once, when the other end of a socket is gone: closed, or reset; with `half` one that has closed
        only what it writes is not."""
        if sys.platform != "linux":
            return
        if self._epoll is None:
            self._epoll = select.epoll()
            self._loop.add_reader(self._epoll.fileno(), self._tell)
        self._watched[descriptor] = left
        self._epoll.register(descriptor, 0 if half else select.EPOLLRDHUP)  # A reset is told in any case.

    def forget(self, descriptor: int) -> None:
        """It is read again, or about to be closed."""
        if self._watched.pop(descriptor, None) is not None and self._epoll is not None:
            self._epoll.unregister(descriptor)

    def close(self) -> None:
        """Watch nobody any more; who is still watched may be forgotten later."""
        self._watched.clear()
        if self._epoll is not None:
            self._loop.remove_reader(self._epoll.fileno())
            self._epoll.close()

    def _tell(self) -> None:
        assert self._epoll is not None
        for descriptor, _ in self._epoll.poll(0):
            left = self._watched.get(descriptor)  # None: what was told before this one has had it forgotten.
            if left is not None:
                self.forget(descriptor)
                left()
