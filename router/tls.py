"""TLS contexts, made of PEM texts and settings.

The supervisor reads the files, once for each start and reload, and hands their content to the workers: were they told
names, two of them could read a pair while it is being replaced, and a new worker one that the reload had refused.
Nothing here reads a file of the operator's, logs, or knows a socket.
"""

import os
import re
import ssl
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from router.tlsconfig import ReplicaTlsConfig, TlsConfig

ALPN = ("http/1.1",)

_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----\s[\sA-Za-z0-9+/=]*-----END CERTIFICATE-----")


PEM_SETTINGS = (
    "tls.certificate_file",
    "tls.key_file",
    "tls.client_ca_file",
    "tls.replicas.ca_file",
    "tls.replicas.certificate_file",
    "tls.replicas.key_file",
)
"""The settings that name files, in the order of Pems."""

REDIS_PEM_SETTINGS = ("gossip.tls.ca_file", "gossip.tls.cert_file", "gossip.tls.key_file")
"""Those that Redis' library reads, each time it connects."""


class Pems(NamedTuple):
    """What these files hold; None where there is no such file."""

    certificate: bytes | None = None
    key: bytes | None = None
    client_ca: bytes | None = None
    replicas_ca: bytes | None = None
    replicas_certificate: bytes | None = None
    replicas_key: bytes | None = None

    def __repr__(self) -> str:
        """Without what they hold: it ends up in logs and tracebacks."""
        return f"Pems({', '.join(name for name, text in self._asdict().items() if text)})"


def certificates(pem: bytes) -> list[str]:
    """The certificates in a PEM file, each as a PEM text. What stands around them is left out: CA bundles have comments
    in any encoding."""
    return _CERTIFICATE.findall(pem.decode("ascii", "replace"))


def for_clients(config: TlsConfig, pems: Pems) -> ssl.SSLContext | None:
    """How clients are served; None: in plain HTTP. Raises ssl.SSLError for what is no certificate, or not its key."""
    if pems.certificate is None or pems.key is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion[config.min_version.replace(".", "_")]
    context.options |= ssl.OP_NO_RENEGOTIATION  # A client could have us compute for it as often as it likes.
    context.set_alpn_protocols(ALPN)
    show(context, pems.certificate, pems.key)
    if pems.client_ca is not None:
        trust(context, pems.client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def for_replicas(config: ReplicaTlsConfig, pems: Pems) -> ssl.SSLContext:
    """How replicas are spoken to, if by TLS. Raises ssl.SSLError for what is no certificate, or not its key."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(ALPN)
    if pems.replicas_ca is not None:
        trust(context, pems.replicas_ca)
    else:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    if pems.replicas_certificate is not None and pems.replicas_key is not None:
        show(context, pems.replicas_certificate, pems.replicas_key)
    return context


def trust(context: ssl.SSLContext, pem: bytes) -> None:
    """Trust these certificates, each of itself: a CA between, or a server's own, needs no root beside it.

    Raises ssl.SSLError.
    """
    context.load_verify_locations(cadata="\n".join(certificates(pem)))
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN


def show(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Have a context show a certificate. Raises ssl.SSLError, and PasswordWanted for a key with a password."""
    with _as_file(certificate) as chain, _as_file(key) as private:
        context.load_cert_chain(chain, private, password=_refuse)


class PasswordWanted(Exception):
    """A key has a password. OpenSSL would ask for it at the terminal."""


def _refuse() -> str:
    raise PasswordWanted


@contextmanager
def _as_file(data: bytes) -> Iterator[str]:
    """A path at which OpenSSL finds the bytes. Python's ssl takes pairs from files only, and a key that came from
    memory or a secret's mount does not belong on a disk: on Linux the file is memory."""
    if sys.platform == "linux":
        file, directory = os.fdopen(os.memfd_create("homing-tls"), "w+b"), "/proc/self/fd"
    else:
        file, directory = tempfile.TemporaryFile(), "/dev/fd"  # noqa: SIM115 - Closed below.
    with file:
        file.write(data)
        file.seek(0)
        yield f"{directory}/{file.fileno()}"
