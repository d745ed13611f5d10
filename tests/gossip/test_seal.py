"""What goes to Redis is signed: only this fleet's routers of this version are believed, each thing in its place."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.gossip import seal
from router.gossip.seal import Flaw, Seal, Unusable, root_key

SECRET = "a secret of the fleet"
ONE, OTHER = Seal(SECRET, b"1" * 8), Seal(SECRET, b"2" * 8)


def flaw(data: bytes, place: bytes = b"") -> Flaw:
    with pytest.raises(Unusable) as caught:
        OTHER.open(data, place)
    return caught.value.flaw


@given(payload=st.binary(min_size=1, max_size=100))
def test_what_one_has_signed_another_of_the_fleet_opens(payload: bytes) -> None:
    assert OTHER.open(ONE.close(payload)) == payload
    assert OTHER.open(ONE.close(payload, b"key"), b"key") == payload


def test_one_knows_what_is_its_own() -> None:
    sealed = ONE.close(b"news")
    assert ONE.is_own(sealed)
    assert not OTHER.is_own(sealed)


@given(payload=st.binary(min_size=1, max_size=100), position=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_a_changed_bit_is_found(payload: bytes, position: int, bit: int) -> None:
    sealed = bytearray(ONE.close(payload))
    sealed[position % len(sealed)] ^= 1 << bit
    assert flaw(bytes(sealed)) is Flaw.FOREIGN


@given(data=st.binary(max_size=200))
def test_any_bytes_are_refused(data: bytes) -> None:
    assert flaw(data) in {Flaw.FOREIGN, Flaw.MALFORMED}


def test_another_fleets_news_is_foreign_and_has_another_channel() -> None:
    stranger = Seal(SECRET + ".", b"3" * 8)
    assert flaw(stranger.close(b"news")) is Flaw.FOREIGN
    assert stranger.prefix != ONE.prefix == OTHER.prefix


def test_a_value_is_good_only_where_it_was_put() -> None:
    assert flaw(ONE.close(b"load", b"here"), b"there") is Flaw.FOREIGN
    assert flaw(ONE.close(b"load", b"here")) is Flaw.FOREIGN


def test_another_version_is_told_from_a_forgery(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seal, "VERSION", seal.VERSION + 1)
    newer = ONE.close(b"news")
    monkeypatch.undo()
    assert flaw(newer) is Flaw.VERSION


def test_the_roots_key_is_the_fleets_and_tells_nothing_of_the_others() -> None:
    assert root_key(SECRET) == root_key(SECRET) != root_key(SECRET + ".")
    assert len(root_key("x" * 1000)) == 32
    assert SECRET.encode() not in root_key(SECRET)


def test_what_is_on_the_wire_stays_as_it_is() -> None:
    """Routers of two builds of one version must understand another."""
    assert ONE.close(b"news").hex() == GOLDEN
    assert ONE.prefix == "homing:6f7ed557:"


GOLDEN = "97537f6ecade255a6ade7e18fbd27b2a3131313131313131026e657773"
