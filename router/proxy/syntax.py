"""What a request's head may say beyond what llhttp refuses: the version, the target's form, one Host that is one, no
transfer coding but `chunked` and none in HTTP/1.0, no expectation but 100-continue.

Each check takes what was parsed, and raises the WireError that the client is told. docs/http.md is the list.
"""

import re

Headers = list[tuple[bytes, bytes, bytes]]
"""Fields in their order: lower-case name, name as it came, value."""

VERSIONS = frozenset(("1.0", "1.1"))
"""llhttp lets 0.9 and 2.0 pass in a request line."""

NOT_SERVED = frozenset((b"CONNECT", b"TRACE"))
"""A tunnel goes past all that a router is for, and an echo gives away what it adds to a request."""

_HOST = re.compile(rb"(?:\[[0-9A-Fa-f:.]+\]|[\w.~%!$&'()*+,;=-]*)(?::[0-9]*)?")
"""RFC 3986 section 3.2.2: an address in brackets or a name, which may be empty; and a port."""

_AUTHORITY = re.compile(rb"https?://(?:\[[0-9A-Fa-f:.]+\]|[\w.~%!$&'()*+,;=-]+)(?::[0-9]*)?(?=[/?]|\Z)", re.IGNORECASE)
"""RFC 9110 section 4.2: what precedes the path of an http URI. An empty host is refused, and a user before it too."""


class WireError(Exception):
    """A request that cannot be taken; its connection closes. `reason` is as the metric names it."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


def target(url: bytes, method: bytes, version: str) -> bytes:
    """The target as it goes on. Raises WireError for what is none, and for a method or version that is not served.

    That is the origin form; of the absolute form, which clients of a forward proxy write and any server must take, the
    path (RFC 9112 section 3.2.2); of OPTIONS also the asterisk (section 3.2.4). A fragment is no part of a target: the
    replica would drop it, and find another path than the one that was looked at here.
    """
    if version not in VERSIONS:
        raise WireError(505, "bad_request", "this server speaks HTTP/1.1")
    if method in NOT_SERVED:
        raise WireError(501, "bad_request", f"{method.decode()} is not served")
    path = url
    if not url.startswith(b"/") and (found := _AUTHORITY.match(url)):
        path = url[found.end() :]
        if not path.startswith(b"/"):
            path = b"*" if method == b"OPTIONS" and not path else b"/" + path
    if b"#" in path or not (path.startswith(b"/") or (path == b"*" and method == b"OPTIONS")):
        raise WireError(400, "bad_request", "the target is neither a path nor an http URL")
    return path


def check_host(headers: Headers, host: bytes | None, version: str) -> None:
    """RFC 9112 section 3.2. `host` is looked at too; None where it is known to be good. Raises WireError."""
    hosts = [name for name, _, _ in headers].count(b"host")
    if hosts != 1 and not (hosts == 0 and version == "1.0"):
        raise WireError(400, "bad_request", "a request names exactly one Host")
    if host is not None and not _HOST.fullmatch(host.strip()):
        raise WireError(400, "bad_request", "the Host is neither a name nor an address")


def check_codings(headers: Headers, version: str) -> None:
    """RFC 9112 section 6.1. llhttp has refused those that do not end with `chunked`. Raises WireError."""
    if version == "1.0":
        raise WireError(400, "bad_request", "HTTP/1.0 has no transfer codings")
    fields = [value for name, _, value in headers if name == b"transfer-encoding"]
    codings = [coding.strip().lower() for coding in b",".join(fields).split(b",")]
    if codings != [b"chunked"]:
        status = 400 if codings.count(b"chunked") != 1 or b"" in codings else 501
        raise WireError(status, "bad_request", "the only transfer coding that is understood is `chunked`, once")


def waits(expectation: bytes, version: str) -> bool:
    """Whether the client waits for a 100 (RFC 9110 section 10.1.1), which HTTP/1.0 does not know. Raises WireError for
    another expectation: the field goes no further, and must not pass unnoticed."""
    if version == "1.0":
        return False
    if expectation.strip().lower() != b"100-continue":
        raise WireError(417, "bad_request", "the only expectation that is understood is 100-continue")
    return True
