"""Settings of what several routers of one fleet share, over Redis."""

from typing import Annotated

from pydantic import Field

from router.fields import Model, RedisAddress
from router.settings import About


class RedisTlsConfig(Model):
    text = "For rediss:// addresses; a relative path begins in this file's directory."

    ca_file: Annotated[
        str | None, About("Authorities (PEM) that may vouch for Redis; null: those of this machine.", "restart")
    ] = None
    cert_file: Annotated[str | None, About("Certificate (PEM) that this router shows; null: none.", "restart")] = None
    key_file: Annotated[
        str | None, About("Its private key (PEM), where the certificate's file does not hold it.", "restart")
    ] = None


class GossipConfig(Model):
    text = (
        "How several routers in front of one fleet decide as one: they tell one another of load and placements through "
        "Redis. No request waits for it, and without it each goes on from what it knows. Settings here, replicas' ids "
        "and routing.prefix_block must be the same on all of them."
    )

    url: Annotated[
        RedisAddress,
        About(
            "redis://HOST:PORT/DATABASE; rediss:// for TLS; redis+sentinel://HOST,HOST/SERVICE; "
            "redis+cluster://HOST,HOST. null: this router shares nothing.",
            "restart",
        ),
    ] = None
    secret_file: Annotated[
        str | None,
        About(
            "File with a secret of at least 16 characters, the same on all routers of the fleet, needed with a url: "
            "prompts' hashes are keyed by it, so that who reads Redis cannot guess prompts, and news signed, so that "
            "nobody else is believed. A relative path begins in this file's directory.",
            "restart",
        ),
    ] = None
    user: Annotated[
        str | None,
        Field(min_length=1, max_length=128, pattern="^[A-Za-z0-9._-]+$"),
        About("Redis' ACL user; null: its default one. It needs the keys and channels `homing:*`.", "restart"),
    ] = None
    password_file: Annotated[str | None, About("File with that user's password; null: it has none.", "restart")] = None
    tls: RedisTlsConfig = RedisTlsConfig()
