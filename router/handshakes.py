"""TLS as the data plane and the probes see it: whom they trust, and why a handshake failed, as one word for counts and
in words that name what to look at. Pure."""

import ssl
from collections.abc import Mapping
from typing import NamedTuple

from router.core.record import HandshakeError


class Trust(NamedTuple):
    """How replicas are spoken to: `name` is what their certificates must be for, None: the host of each URL."""

    context: ssl.SSLContext
    name: str | None = None


_KINDS: Mapping[str, HandshakeError] = {
    "HTTP_REQUEST": HandshakeError.PLAIN_HTTP,
    "HTTPS_PROXY_REQUEST": HandshakeError.PLAIN_HTTP,
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": HandshakeError.NO_CERTIFICATE,
    "CERTIFICATE_VERIFY_FAILED": HandshakeError.BAD_CERTIFICATE,
    "UNSUPPORTED_PROTOCOL": HandshakeError.VERSION,
    "VERSION_TOO_LOW": HandshakeError.VERSION,
    "NO_SHARED_CIPHER": HandshakeError.CIPHER,
}
"""OpenSSL's reason -> ours."""

_CA, _NAME = "is tls.replicas.ca_file the CA that signed it?", "is tls.replicas.server_name the name it is for?"
_VERIFY: Mapping[int, str] = {
    9: "is one of the two clocks wrong?",
    10: "it must be renewed there",
    18: _CA,
    19: _CA,
    20: _CA,
    21: _CA,
    62: _NAME,
    64: _NAME,
}
"""OpenSSL's X509_V_ERR_* of what operators meet -> what to look at (x509_vfy.h)."""


def kind(error: OSError) -> HandshakeError:
    """Why a client's handshake failed."""
    if not isinstance(error, ssl.SSLError):
        return HandshakeError.CLOSED
    reason = error.reason or ""
    if reason in _KINDS:
        return _KINDS[reason]
    return HandshakeError.REFUSED if "ALERT" in reason else HandshakeError.OTHER


def in_words(error: ssl.SSLError) -> str:
    """Why a handshake with a replica failed, and the setting to look at."""
    if isinstance(error, ssl.SSLCertVerificationError):
        remedy = _VERIFY.get(error.verify_code)
        return f"its certificate: {error.verify_message.rstrip('.')}" + (f" ({remedy})" if remedy else "")
    reason = error.reason or str(error)
    words = reason.lower().replace("_", " ")
    if "ALERT" in reason and ("CERTIFICATE" in reason or "HANDSHAKE_FAILURE" in reason):
        return f"{words} (is tls.replicas.certificate_file one that it accepts?)"
    if reason in {"WRONG_VERSION_NUMBER", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE"}:
        return f"{words} (does it speak TLS there, or should its url begin with http://?)"
    return words
