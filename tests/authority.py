"""A certificate authority for tests: real certificates, made by the `openssl` command in a few milliseconds each."""

import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path

LOOPBACK = "DNS:localhost,IP:127.0.0.1"


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key, as files, and its serial number as Python writes it."""

    certificate: Path
    key: Path
    serial: str


class Authority:
    """Signs what it is asked to. Its own certificate is `ca`."""

    def __init__(self, directory: Path, name: str = "authority") -> None:
        self._directory = directory
        self._name = name
        self._count = 0
        self.ca, self._key = directory / f"{name}.pem", directory / f"{name}.key"
        self._make_key(self._key)
        openssl("req", "-x509", "-new", "-key", self._key, "-subj", f"/CN={name}", "-days", 30, "-out", self.ca)

    def pair(self, names: str = LOOPBACK, days: int = 30) -> Pair:
        """A new certificate for these names; with negative days it has expired."""
        self._count += 1
        stem = self._directory / f"{self._name}-{self._count}"
        made = Pair(stem.with_suffix(".pem"), stem.with_suffix(".key"), f"{self._count:02X}")
        self._make_key(made.key)
        request = stem.with_suffix(".csr")
        openssl(
            "req", "-new", "-key", made.key, "-subj", f"/CN={stem.name}", "-addext", f"subjectAltName={names}",
            "-out", request,
        )  # fmt: skip
        openssl(
            "x509", "-req", "-in", request, "-CA", self.ca, "-CAkey", self._key, "-set_serial", self._count,
            "-days", days, "-copy_extensions", "copy", "-out", made.certificate,
        )  # fmt: skip
        return made

    def trusting(self, shows: Pair | None = None) -> ssl.SSLContext:
        """A client's context that trusts this authority, and nobody else."""
        context = ssl.create_default_context(cafile=str(self.ca))
        if shows is not None:
            context.load_cert_chain(shows.certificate, shows.key)
        return context

    def serving(self, pair: Pair | None = None, asks: bool = False) -> ssl.SSLContext:
        """A server's context; with `asks`, clients must show a certificate of this authority."""
        shown = pair or self.pair()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(shown.certificate, shown.key)
        if asks:
            context.load_verify_locations(self.ca)
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    @staticmethod
    def _make_key(path: Path) -> None:
        openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", path)


def openssl(*arguments: object) -> None:
    """Run the command. Raises CalledProcessError."""
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)
