"""What is wrong with certificates and keys, told before anybody meets it in a handshake. No socket, no own clock.

OpenSSL judges what fits together; dates are read here, since Python tells them of a verified peer only.
"""

import ssl
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import NamedTuple

from router import tls
from router.diagnostics import Path
from router.tls import PasswordWanted, Pems

_SEQUENCE, _UTC_TIME, _VERSION = 0x30, 0x17, 0xA0
"""Tags of DER (X.690) that a certificate's validity is found by (RFC 5280, section 4.1)."""

_PAIRS = (("certificate", "key", ("tls",)), ("replicas_certificate", "replicas_key", ("tls", "replicas")))
_REDIS = ("gossip", "tls")
_CAS = (("client_ca", ("tls", "client_ca_file")), ("replicas_ca", ("tls", "replicas", "ca_file")))

_NOT_ITS_KEY = frozenset(("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED"))
"""OpenSSL's reasons for a key of another certificate; the last one is for a key of another kind, RSA and EC."""

_CONVERT = "openssl {} -inform der -in FILE -out FILE.pem makes PEM of DER"


class Finding(NamedTuple):
    """Something about one file: `message` completes "the file NAME ..."."""

    code: str
    path: Path
    message: str
    remedy: str | None = None


def examine(pems: Pems, now: datetime) -> list[Finding]:
    """Everything that is wrong with what the files hold; what has expired is a warning."""
    found: list[Finding] = []
    for certificate, key, section in _PAIRS:
        shown, private = getattr(pems, certificate), getattr(pems, key)
        if shown is not None and private is not None:
            found += _pair(shown, private, (*section, "certificate_file"), (*section, "key_file"), now)
    for name, path in _CAS:
        pem = getattr(pems, name)
        if pem is not None:
            found += _trusted(pem, path, now)
    return found


def examine_redis(ca: bytes | None, certificate: bytes | None, key: bytes | None, now: datetime) -> list[Finding]:
    """The same of the section `gossip.tls`, where the certificate's file may hold the key, too."""
    found: list[Finding] = []
    of_certificate, of_key = (*_REDIS, "cert_file"), (*_REDIS, "key_file")
    if certificate is not None:
        held = certificate if key is None else key
        found += _pair(certificate, held, of_certificate, of_certificate if key is None else of_key, now)
    if ca is not None:
        found += _trusted(ca, (*_REDIS, "ca_file"), now)
    return found


def _pair(certificate: bytes, key: bytes, of_certificate: Path, of_key: Path, now: datetime) -> Iterator[Finding]:
    """A certificate and what should be its key."""
    texts = tls.certificates(certificate)
    if not texts:
        yield _no_certificate(certificate, of_certificate)
    if b"PRIVATE KEY-----" not in key:
        yield Finding("H141", of_key, "holds no private key in PEM form", _swapped(key))
    elif texts:
        unfit = _unfit(lambda: tls.show(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), certificate, key), of_certificate)
        if unfit is not None and unfit.code in {"H142", "H143"}:
            unfit = unfit._replace(path=of_key)
        yield from _dated(texts[:1], of_certificate, now) if unfit is None else [unfit]


def _trusted(pem: bytes, path: Path, now: datetime) -> Iterator[Finding]:
    """Certificates that others are verified by."""
    texts = tls.certificates(pem)
    if not texts:
        yield _no_certificate(pem, path)
        return
    unfit = _unfit(lambda: tls.trust(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), pem), path)
    yield from _dated(texts, path, now) if unfit is None else [unfit]


def _no_certificate(pem: bytes, path: Path) -> Finding:
    remedy = "are certificate and key swapped?" if b"PRIVATE KEY-----" in pem else None
    if pem[:1] == bytes((_SEQUENCE,)):
        remedy = _CONVERT.format("x509")
    return Finding("H141", path, "holds no certificate in PEM form", remedy)


def _swapped(key: bytes) -> str | None:
    if key[:1] == bytes((_SEQUENCE,)):
        return _CONVERT.format("pkey")
    return "are certificate and key swapped?" if tls.certificates(key) else None


def _unfit(use: Callable[[], None], path: Path) -> Finding | None:
    """What OpenSSL says against using it. Its reasons are constants and never quote what a file holds."""
    try:
        use()
    except PasswordWanted:
        remedy = "write one without: openssl pkey -in FILE -out NEW, and let nobody else read it"
        return Finding("H143", path, "is protected by a password", remedy)
    except ssl.SSLError as error:
        if error.reason in _NOT_ITS_KEY:
            return Finding("H142", path, "does not hold the key of the certificate", "both come from one request")
        why = f" says {error.reason.lower().replace('_', ' ')}" if error.reason else " cannot read it"
        return Finding("H141", path, f"cannot be used: OpenSSL{why}")
    return None


def _dated(texts: list[str], path: Path, now: datetime) -> Iterator[Finding]:
    """A warning when none of these certificates holds now: bundles often have an old one among them."""
    spans = [validity(text) for text in texts]
    if any(begin <= now <= end for begin, end in spans):
        return
    begin, end = spans[0]
    if now > end:
        yield Finding("H144", path, f"holds a certificate that has expired, on {end:%Y-%m-%d %H:%M} UTC", "renew it")
    else:
        message = f"holds a certificate that is not valid before {begin:%Y-%m-%d %H:%M} UTC"
        yield Finding("H144", path, message, "is this machine's clock right?")


# Dates.


def expiries(pems: Pems) -> dict[str, float]:
    """Until when, in Unix seconds, the certificates are valid that clients and replicas are shown; of files that
    `examine` finds nothing wrong with."""
    pairs = (("clients", pems.certificate), ("replicas", pems.replicas_certificate))
    return {to: validity(tls.certificates(pem)[0])[1].timestamp() for to, pem in pairs if pem is not None}


def validity(pem: str) -> tuple[datetime, datetime]:
    """From when until when a certificate, which OpenSSL has read, is valid."""
    certificate = next(_items(ssl.PEM_cert_to_DER_cert(pem)))[1]
    signed = next(_items(certificate))[1]
    items = [content for tag, content in _items(signed) if tag != _VERSION]
    # What is signed: serial number, algorithm, issuer, validity, ...
    begin, end = (_time(tag, content) for tag, content in _items(items[3]))
    return begin, end


def _items(der: bytes) -> Iterator[tuple[int, bytes]]:
    """Tag and content of each item in DER. Their tags have one byte in a certificate's outer part."""
    at = 0
    while at < len(der):
        tag, length = der[at], der[at + 1]
        at += 2
        if length & 0x80:
            more = length & 0x7F
            length = int.from_bytes(der[at : at + more], "big")
            at += more
        yield tag, der[at : at + length]
        at += length


def _time(tag: int, content: bytes) -> datetime:
    """A time of RFC 5280, which is in UTC and has seconds; of two digits the years from 50 on are 19xx."""
    text = content.decode("ascii")
    if tag == _UTC_TIME:
        text = ("19" if text[:2] >= "50" else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)
