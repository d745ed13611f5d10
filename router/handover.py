"""One supervisor's sockets and beliefs to the next: what is inherited, and how the new one says that it serves.

The old process starts the new one with its sockets' descriptors named in the environment, and waits at a pipe. Both
take connections from the same sockets until the old one has let go of its own; the sockets themselves are never
closed, so nobody is refused in between. What an operator has said and no file knows, who is drained, goes along.
"""

import os
import socket
from collections.abc import Collection, MutableMapping, Sequence
from dataclasses import dataclass
from typing import BinaryIO

import msgspec

from router.sockets import close_others

VARIABLE = "HOMING_INHERITED"
"""JSON of `_Told`. Not a setting: those begin with HOMING__."""

READY = b"ready"


class _Told(msgspec.Struct):
    """Descriptors, and the ids of the replicas that are drained."""

    ready: int
    snapshot: int
    admin: int
    clients: list[int]
    drained: list[str]


@dataclass(frozen=True, slots=True)
class Inherited:
    """What a new process got from the one that it replaces. `ready` is the pipe's end to write to, `snapshot` what that
    one believed of its replicas (gossip/snapshot.py)."""

    ready: int
    snapshot: bytes
    admin: socket.socket
    clients: list[socket.socket]
    drained: Collection[str]

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
    variable = environ.pop(VARIABLE, None)
    if variable is None:
        return None
    told = msgspec.json.decode(variable, type=_Told)
    close_others([told.ready, told.snapshot, told.admin, *told.clients])
    sockets = [socket.socket(fileno=number) for number in (told.admin, *told.clients)]
    for one in (told.ready, told.admin, *told.clients):
        os.set_inheritable(one, False)
    with os.fdopen(told.snapshot, "rb") as file:
        file.seek(0)
        return Inherited(told.ready, file.read(), sockets[0], sockets[1:], told.drained)


def told(
    ready: int, snapshot: BinaryIO, admin: socket.socket, clients: Sequence[socket.socket], drained: Collection[str]
) -> tuple[dict[str, str], list[int]]:
    """The environment's entry for a new process, and the descriptors that it must get. `snapshot` is a file."""
    numbers = [one.fileno() for one in clients]
    text = msgspec.json.encode(_Told(ready, snapshot.fileno(), admin.fileno(), numbers, sorted(drained))).decode()
    return {VARIABLE: text}, [ready, snapshot.fileno(), admin.fileno(), *numbers]
