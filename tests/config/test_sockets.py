"""Listening, and who has a port that is taken."""

import os
import socket
import subprocess
import sys

import pytest

from router.sockets import CannotListen, is_at, listen, owner_of
from router.values import Endpoint

LOOPBACK = "127.0.0.1"


def test_a_port_of_zero_is_any_free_one() -> None:
    with listen(Endpoint(LOOPBACK, 0)) as one, listen(Endpoint(LOOPBACK, 0)) as other:
        assert one.getsockname()[1] != other.getsockname()[1]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc")
def test_the_owner_of_a_port_is_found_and_named() -> None:
    with listen(Endpoint(LOOPBACK, 0)) as mine:
        port = mine.getsockname()[1]
        owner = owner_of(port)
        assert owner is not None
        assert owner[0] == os.getpid()
        with pytest.raises(CannotListen, match=rf"port {port} is in use by process {os.getpid()} \(") as raised:
            listen(Endpoint(LOOPBACK, port))
        assert raised.value.remedy == "stop that process, or choose another port"


def test_a_port_that_is_bound_and_not_listened_on_has_no_owner() -> None:
    with socket.socket() as idle:
        idle.bind((LOOPBACK, 0))
        assert owner_of(idle.getsockname()[1]) is None


@pytest.mark.parametrize(
    ("host", "says"),
    [("192.0.2.1", "192.0.2.1 is not an address of this machine"), ("a..b", "no address is known for the host a..b")],
)
def test_a_host_that_is_not_here_is_told_as_such(host: str, says: str) -> None:
    with pytest.raises(CannotListen, match=says):
        listen(Endpoint(host, 0))


@pytest.mark.parametrize(
    ("host", "at"),
    [(LOOPBACK, True), ("127.0.0.2", False), ("localhost", True), ("::1", False), ("0.0.0.0", False)],
)
def test_a_socket_is_where_it_listens_and_a_name_is_taken_at_its_word(host: str, at: bool) -> None:
    with listen(Endpoint(LOOPBACK, 0)) as mine:
        port = mine.getsockname()[1]
        assert is_at(mine, Endpoint(host, port)) is at
        assert is_at(mine, Endpoint(host, 0)) is at
        assert not is_at(mine, Endpoint(host, port - 1))


ALLOW = """
import logging, resource, sys
from router.sockets import allow_descriptors
logging.basicConfig(format="%(levelname)s %(message)s", stream=sys.stdout)
resource.setrlimit(resource.RLIMIT_NOFILE, (300, 2256))
allow_descriptors(int(sys.argv[1]))
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def allowed(connections: int) -> list[str]:
    """What a process says that may have 2,256 descriptors, and begins with 300."""
    command = [sys.executable, "-c", ALLOW, str(connections)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.splitlines()


def test_a_process_takes_the_descriptors_that_it_may_have_and_says_nothing_when_they_are_enough() -> None:
    assert allowed(1000) == ["2256 2256"]


def test_where_the_system_grants_too_few_descriptors_the_log_says_how_many_it_takes_and_what_to_do() -> None:
    warning, limits = allowed(1001)
    assert warning.startswith("WARNING limits.connections: 1001 may take 2258 file descriptors in a worker")
    assert "at most 2256 are granted: have the hard limit raised (LimitNOFILE=" in warning
    assert warning.endswith("or set limits.connections: 1000")
    assert limits == "2256 2256"


def test_an_address_is_the_same_however_it_is_spelled() -> None:
    with listen(Endpoint("::1", 0)) as mine:
        assert is_at(mine, Endpoint("0:0::0001", mine.getsockname()[1]))
