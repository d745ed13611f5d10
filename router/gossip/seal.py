"""What one router's news looks like in Redis: signed, versioned, and told from the news of other fleets. Pure.

    16 bytes   blake2b over the rest, keyed by the fleet's secret: who cannot sign is not believed
     8 bytes   the router's life: random, so that one which comes back under its old name is another
     1 byte    VERSION
    the rest   a message (messages.py)

All keys and channels but one begin with `homing:` and eight digits that follow from the secret: fleets that share a
Redis have nothing in common. A stored value is signed together with its key, so that it cannot stand in for another.
"""

import hmac
from collections.abc import Sequence
from enum import StrEnum
from hashlib import blake2b

VERSION = 2
"""To be raised when a message's form or a hash's making changes: routers of two versions do not understand another."""

_MAC, _LIFE = 16, 8
_HEAD = _MAC + _LIFE + 1


class Flaw(StrEnum):
    """Why something from Redis is not taken."""

    FOREIGN = "foreign"  # Not signed with this fleet's secret.
    VERSION = "version"
    MALFORMED = "malformed"
    SETTINGS = "settings"  # From a router with another routing.prefix_block, whose hashes mean nothing here.
    PEERS = "peers"  # From more routers than can be.
    SECRET = "secret"  # noqa: S105  Not even heard: a router before the same replicas has another secret (link.py).


class Unusable(ValueError):
    """Something that is not taken. `detail` says more of it, in a few words."""

    def __init__(self, flaw: Flaw, detail: str = "") -> None:
        super().__init__(flaw)
        self.flaw, self.detail = flaw, detail


def root_key(secret: str) -> bytes:
    """What keys the chains' root (core/prompt.py): equal for all routers of the fleet, and not the signing key."""
    return _key(secret, b"root")


def _key(secret: str, use: bytes) -> bytes:
    return blake2b(secret.encode(), digest_size=32, person=b"homing " + use).digest()


def common(replicas: Sequence[str]) -> str:
    """The one key that follows from no secret: where routers in front of the same replicas find out whether theirs is
    the same. It holds the digits of the last one's secret, which tell as little as its channel's name."""
    names = "\n".join(sorted(replicas))
    return f"homing:same:{blake2b(names.encode(), digest_size=8).hexdigest()}"


class Seal:
    """Signs for one router, and opens what the others of the fleet have signed. `life` is 8 random bytes."""

    def __init__(self, secret: str, life: bytes) -> None:
        self._key = _key(secret, b"sign")
        self._life = life
        self.prefix = f"homing:{blake2b(_key(secret, b'name'), digest_size=4).hexdigest()}:"

    def close(self, payload: bytes, place: bytes = b"") -> bytes:
        """What goes to Redis. `place` is the key it is stored at."""
        signed = self._life + bytes((VERSION,)) + payload
        return self._mac(signed, place) + signed

    def is_own(self, sealed: bytes) -> bool:
        """Whether this router has sent it."""
        return sealed[_MAC : _MAC + _LIFE] == self._life

    def open(self, sealed: bytes, place: bytes = b"") -> bytes:
        """The payload. Raises Unusable."""
        if len(sealed) <= _HEAD:
            raise Unusable(Flaw.MALFORMED)
        if not hmac.compare_digest(sealed[:_MAC], self._mac(sealed[_MAC:], place)):
            raise Unusable(Flaw.FOREIGN)
        if sealed[_HEAD - 1] != VERSION:
            raise Unusable(Flaw.VERSION, f"{sealed[_HEAD - 1]} there, {VERSION} here")
        return sealed[_HEAD:]

    def _mac(self, signed: bytes, place: bytes) -> bytes:
        digest = blake2b(signed, digest_size=_MAC, key=self._key)
        digest.update(place)
        return digest.digest()
