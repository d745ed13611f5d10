"""Sockets that listen, who has a port that is taken, and what a process does not keep of what it inherits.

Its words for what fails complete "cannot listen: ...".

The owner of a port is read from /proc (Linux); elsewhere, or where another user's process hides it, nobody is named.
"""

import errno
import logging
import os
import resource
import socket
from collections.abc import Collection
from ipaddress import ip_address
from pathlib import Path

from router.values import Endpoint

log = logging.getLogger("homing.sockets")

BACKLOG = 4096
SPARE = 256
LISTENING = "0A"
"""TCP_LISTEN in /proc/net/tcp."""

STANDARD_ERROR = 2
"""The last of the descriptors that every process has."""


class CannotListen(Exception):
    """An address that cannot be had; `remedy` is what helps."""

    def __init__(self, message: str, remedy: str | None) -> None:
        super().__init__(message)
        self.remedy = remedy


def listen(endpoint: Endpoint) -> socket.socket:
    """A listening socket. Raises CannotListen."""
    try:
        return socket.create_server((endpoint.host, endpoint.port), family=_family(endpoint), backlog=BACKLOG)
    except OSError as error:
        raise CannotListen(*_reason(endpoint, error)) from error


def listen_shared(endpoint: Endpoint, count: int, joining: bool = False) -> list[socket.socket]:
    """So many listening sockets at one address, among which the kernel spreads connections (SO_REUSEPORT).

    Sharing a port would let a second router in by mistake, so first it is tried whether the port can be had alone;
    with `joining` there are such sockets already. Raises CannotListen.
    """
    sockets: list[socket.socket] = []
    try:
        if not joining:
            endpoint = _vacant(endpoint)
        for _ in range(count):
            where = (endpoint.host, endpoint.port)
            sockets.append(socket.create_server(where, family=_family(endpoint), backlog=BACKLOG, reuse_port=True))
    except OSError as error:
        for one in sockets:
            one.close()
        raise CannotListen(*_reason(endpoint, error)) from error
    return sockets


def _vacant(endpoint: Endpoint) -> Endpoint:
    """The address, with a port that nobody listens on. Raises OSError."""
    with socket.socket(_family(endpoint), socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if probe.family == socket.AF_INET6:
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # As create_server has it.
        probe.bind((endpoint.host, endpoint.port))
        return Endpoint(endpoint.host, probe.getsockname()[1])


def allow_descriptors(connections: int) -> None:
    """Take as many descriptors as the system grants this process and those that it starts; a login's usual 1,024 are a
    start value. In a worker a client's connection takes one, and another to a replica; SPARE are for all else."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    wanted = 2 * connections + SPARE
    if resource.RLIM_INFINITY != most < wanted:
        log.warning(
            "limits.connections: %d may take %d file descriptors in a worker, and at most %d are granted: have the "
            "hard limit raised (LimitNOFILE= of systemd, --ulimit nofile= of Docker), or set limits.connections: %d",
            connections, wanted, most, max(1, (most - SPARE) // 2),
        )  # fmt: skip


def is_at(listening: socket.socket, endpoint: Endpoint) -> bool:
    """Whether a socket listens where a setting says; a host's name is taken at its word, port 0 is any."""
    host, port = listening.getsockname()[:2]
    try:
        there = ip_address(endpoint.host) == ip_address(host)  # `::1` has many spellings.
    except ValueError:
        there = True
    return endpoint.port in {0, port} and there


def _family(endpoint: Endpoint) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in endpoint.host else socket.AF_INET


def _reason(endpoint: Endpoint, error: OSError) -> tuple[str, str | None]:
    if error.errno is not None and error.errno < 0:  # getaddrinfo's, which create_server hands on as an OSError.
        return f"no address is known for the host {endpoint.host}", "write an IP address"
    if error.errno == errno.EADDRINUSE:
        owner = owner_of(endpoint.port)
        by = f" by process {owner[0]} ({owner[1]})" if owner else ""
        return f"port {endpoint.port} is in use{by}", "stop that process, or choose another port"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{endpoint.host} is not an address of this machine", "0.0.0.0 stands for all that it has"
    if error.errno == errno.EACCES:
        return f"port {endpoint.port} is not permitted to this user", "ports below 1024 need a privilege; take another"
    return os.strerror(error.errno) if error.errno else str(error), None


def owner_of(port: int) -> tuple[int, str] | None:
    """The process (id, name) that listens on a TCP port, where /proc tells."""
    inodes = _inodes(port)
    if not inodes:
        return None
    for directory in Path("/proc").glob("[0-9]*"):
        if _holds(directory, inodes):
            return int(directory.name), _name(directory)
    return None


def _inodes(port: int) -> set[str]:
    """Of the sockets that listen on a port, as their links in /proc/PID/fd read."""
    found: set[str] = set()
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        try:
            rows = [line.split() for line in table.read_text().splitlines()[1:]]
        except OSError:  # Another system, or no IPv6: nobody is named.
            continue
        found |= {f"socket:[{row[9]}]" for row in rows if row[1].endswith(f":{port:04X}") and row[3] == LISTENING}
    return found


def _holds(process: Path, inodes: set[str]) -> bool:
    try:
        return any(os.readlink(link) in inodes for link in (process / "fd").iterdir())
    except OSError:  # It has ended, or is another user's.
        return False


def _name(process: Path) -> str:
    try:
        return (process / "comm").read_text().strip()
    except OSError:
        return "unknown"


def close_others(wanted: Collection[int]) -> None:
    """Close every descriptor but the standard ones and these; for a process that has just begun.

    uvloop starts children with copies of their standard streams that they inherit beside these. Each generation would
    hand its own on to the next, three more at each handover, until there is no descriptor left.
    """
    before = STANDARD_ERROR
    for one in sorted(wanted):
        os.closerange(before + 1, one)
        before = one
    os.closerange(before + 1, os.sysconf("SC_OPEN_MAX"))
