"""One supervisor's sockets to the next: what is inherited, and how the new one says that it serves.

The old process starts the new one with its sockets' descriptors named in the environment, and waits at a pipe. Both
take connections from the same sockets until the old one has let go of its own; the sockets themselves are never
closed, so nobody is refused in between.
"""

import os
import socket
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass

VARIABLE = "HOMING_INHERITED"
"""`ready:admin:clients,clients,...`, descriptors. Not a setting: those begin with HOMING__."""

READY = b"ready"


@dataclass(frozen=True, slots=True)
class Inherited:
    """What a new process got from the one that it replaces. `ready` is the pipe's end to write to."""

    ready: int
    admin: socket.socket
    clients: list[socket.socket]

    def tell_ready(self) -> None:
        """Say that this process serves now; nothing happens when nobody waits for that any more."""
        try:
            os.write(self.ready, READY)
        except BrokenPipeError:
            return
        finally:
            os.close(self.ready)


def inherited(environ: MutableMapping[str, str]) -> Inherited | None:
    """What this process was given, which it hands on to none of its children; None for an ordinary start.

    Raises ValueError and OSError for what no router has given.
    """
    told = environ.pop(VARIABLE, None)
    if told is None:
        return None
    ready, admin, clients = told.split(":")
    sockets = [socket.socket(fileno=int(number)) for number in (admin, *clients.split(","))]
    for one in sockets:
        os.set_inheritable(one.fileno(), False)
    os.set_inheritable(int(ready), False)
    return Inherited(int(ready), sockets[0], sockets[1:])


def told(ready: int, admin: socket.socket, clients: Sequence[socket.socket]) -> tuple[dict[str, str], list[int]]:
    """The environment's entry for a new process, and the descriptors that it must get."""
    numbers = [one.fileno() for one in clients]
    text = f"{ready}:{admin.fileno()}:{','.join(map(str, numbers))}"
    return {VARIABLE: text}, [ready, admin.fileno(), *numbers]
