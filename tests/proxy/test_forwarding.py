"""Who a request came from, as the replica is told."""

import pytest

from router.proxy.forwarding import Caller, caller
from router.proxy.wire import RequestReader, request_head

PLAIN = caller("10.0.0.9", tls=False)
SECURE = caller("10.0.0.9", tls=True)
HOPS = "X-Forwarded-For: 192.0.2.1, 192.0.2.2\r\nX-Forwarded-Proto: https\r\nVia: 1.1 edge\r\n"


def told(who: Caller, fields: str = "") -> list[str]:
    """The lines that a replica gets of this request, but for its own Host."""
    reader = RequestReader(0)
    reader.caller = who
    [request] = reader.feed(f"GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n".encode())
    return request_head(request, b"r", b"", ()).decode().removesuffix("\r\n\r\n").split("\r\n")[2:]


def test_a_replica_is_told_who_called() -> None:
    assert told(PLAIN) == ["x-forwarded-for: 10.0.0.9", "x-forwarded-proto: http", "via: 1.1 homing"]
    assert told(SECURE)[1] == "x-forwarded-proto: https"


def test_who_called_comes_behind_those_before_it_and_their_scheme_is_kept() -> None:
    assert told(PLAIN, HOPS) == [
        *("X-Forwarded-Proto: https", "Via: 1.1 edge", "x-forwarded-for: 192.0.2.1, 192.0.2.2, 10.0.0.9"),
        "via: 1.1 homing",
    ]


@pytest.mark.parametrize(
    ("fields", "lines"),
    [
        (
            "X-Forwarded-For: a\r\nx-forwarded-for: b\r\n",
            ["x-forwarded-for: a, b, 10.0.0.9", "x-forwarded-proto: http"],
        ),
        ("X-Forwarded-Proto: https\r\n", ["X-Forwarded-Proto: https", "x-forwarded-for: 10.0.0.9"]),
    ],
)
def test_what_a_client_says_of_one_of_them_is_no_word_on_the_other(fields: str, lines: list[str]) -> None:
    assert told(PLAIN, fields) == [*lines, "via: 1.1 homing"]


def test_a_caller_without_an_address_is_none() -> None:
    """A Unix socket's."""
    assert told(caller("", tls=False)) == ["x-forwarded-proto: http", "via: 1.1 homing"]
    assert told(caller("", tls=False), HOPS)[2:] == ["x-forwarded-for: 192.0.2.1, 192.0.2.2", "via: 1.1 homing"]


def test_an_address_of_version_4_is_written_as_one() -> None:
    assert told(caller("::ffff:10.0.0.9", tls=False)) == told(PLAIN)
    assert told(caller("2001:db8::1", tls=False))[0] == "x-forwarded-for: 2001:db8::1"
