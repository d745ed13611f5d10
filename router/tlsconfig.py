"""Settings of TLS: for clients, and to replicas. Certificates and keys stay in files; loading.py reads those."""

from typing import Annotated, Literal

from router.fields import MaybeHost, Model
from router.settings import About

_RELATIVE = "A relative path begins in this file's directory."


class ReplicaTlsConfig(Model):
    text = "TLS to replicas whose url begins with https://. Their certificates are verified; nothing switches that off."

    ca_file: Annotated[
        str | None,
        About(
            "PEM file with the certificates that are trusted: CAs, or a replica's own that no CA has signed. null: the "
            f"CAs that the system trusts. {_RELATIVE}",
        ),
    ] = None
    certificate_file: Annotated[
        str | None,
        About(f"PEM file with the certificate that the router shows to replicas that ask for one. {_RELATIVE}"),
    ] = None
    key_file: Annotated[str | None, About(f"PEM file with its private key, without a password. {_RELATIVE}")] = None
    server_name: Annotated[
        MaybeHost,
        About(
            "Name that their certificates must be for, also sent as SNI. null: the host in each url. For replicas that "
            "are known by an address and have a certificate for a name.",
        ),
    ] = None


class TlsConfig(Model):
    text = (
        "TLS for clients, if there is a certificate. New connections have what a reload reads, open ones go on. The "
        "admin port has no TLS: keep it on loopback or a network of your own."
    )

    certificate_file: Annotated[
        str | None,
        About(f"PEM file with the certificate, and after it those of the CAs between. null: plain HTTP. {_RELATIVE}"),
    ] = None
    key_file: Annotated[str | None, About(f"PEM file with its private key, without a password. {_RELATIVE}")] = None
    client_ca_file: Annotated[
        str | None,
        About(
            "PEM file with the CAs of the clients' certificates: with it only who has a certificate of theirs is "
            f"served. null: clients need none. {_RELATIVE}",
        ),
    ] = None
    min_version: Annotated[
        Literal["TLSv1.2", "TLSv1.3"],
        About("Least version for clients. 1.2, because older clients are many and it is sound; ciphers: OpenSSL's."),
    ] = "TLSv1.2"
    replicas: ReplicaTlsConfig = ReplicaTlsConfig()
