"""What a replica is told of the client and of the proxies before us."""

import pytest

from router.proxy.heads import forwarding, peer
from tests.browser import asked, chat
from tests.proxy.wires import read
from tests.rig import scripted
from tests.scripted import whole

DIRECT = peer("192.0.2.7", "https")


def told(fields: bytes) -> list[bytes]:
    """The lines that tell of the client of a request with these fields."""
    [request] = read(b"GET / HTTP/1.1\r\nHost: a\r\n" + fields + b"\r\n")
    return forwarding(request, DIRECT).removesuffix(b"\r\n").split(b"\r\n")


CHAINS = {
    "none": (b"", b"192.0.2.7", b"https"),
    "one": (b"X-Forwarded-For: 198.51.100.1\r\n", b"198.51.100.1, 192.0.2.7", b"https"),
    "two in one": (b"X-Forwarded-For: 1.1.1.1, 2.2.2.2\r\n", b"1.1.1.1, 2.2.2.2, 192.0.2.7", b"https"),
    "two fields": (b"X-Forwarded-For: a\r\nX: y\r\nx-forwarded-for: b\r\n", b"a, b, 192.0.2.7", b"https"),
    "empty": (b"X-Forwarded-For:\r\n", b"192.0.2.7", b"https"),
    "scheme only": (b"X-Forwarded-Proto: http\r\n", b"192.0.2.7", b"http"),
    "both": (b"X-Forwarded-Proto: http\r\nX-Forwarded-For: a\r\n", b"a, 192.0.2.7", b"http"),
}


@pytest.mark.parametrize(("fields", "clients", "scheme"), CHAINS.values(), ids=CHAINS)
def test_the_client_is_the_last_of_the_list_and_the_first_scheme_stands(
    fields: bytes, clients: bytes, scheme: bytes
) -> None:
    assert told(fields) == [b"x-forwarded-for: " + clients, b"x-forwarded-proto: " + scheme]


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("192.0.2.7", b"192.0.2.7"),
        ("2001:db8::7", b"2001:db8::7"),
        ("fe80::1%eth0", b"fe80::1"),
        ("unknown", b"unknown"),
    ],
)
def test_an_address_is_told_as_proxies_do(address: str, shown: bytes) -> None:
    assert peer(address, "http") == (
        shown, b"http", b"x-forwarded-for: " + shown + b"\r\nx-forwarded-proto: http\r\n"
    )  # fmt: skip


async def test_a_replica_is_told_who_asks_and_through_whom() -> None:
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    ours = [f"traceparent: {trace}", "tracestate: a=1,b=2", "tracestate: c=3", "X-Forwarded-For: 198.51.100.1"]
    async with scripted(whole()) as (rig, [replica]):
        await asked(rig, chat("hello", *ours, "Via: 1.1 edge"))
        fields = replica.calls[0].fields
        assert [value for name, value in fields if name == "traceparent"] == [trace]
        assert [value for name, value in fields if name == "tracestate"] == ["a=1,b=2", "c=3"]
        assert [value for name, value in fields if name == "x-forwarded-for"] == ["198.51.100.1, 127.0.0.1"]
        assert [value for name, value in fields if name == "x-forwarded-proto"] == ["http"]
        assert [value for name, value in fields if name == "via"] == ["1.1 edge", "1.1 homing"]


async def test_a_client_cannot_have_its_address_left_out() -> None:
    """By naming the field as one of this hop."""
    hop = [
        "Connection: x-forwarded-for, x-forwarded-proto",
        "X-Forwarded-For: 198.51.100.1",
        "X-Forwarded-Proto: https",
    ]
    async with scripted(whole()) as (rig, [replica]):
        await asked(rig, chat("hello", *hop))
        assert replica.calls[0].field("x-forwarded-for") == "198.51.100.1, 127.0.0.1"
        assert replica.calls[0].field("x-forwarded-proto") == "https"
