"""Settings -> what a worker's parts are built from, in their own terms. Pure."""

from urllib.parse import urlsplit

from router.config import Config, ReplicaConfig, validate
from router.core.prompt import NO_SECRET
from router.gossip.messages import Settings
from router.handshakes import Trust
from router.proxy.bounds import Bounds, Times
from router.proxy.openai import Asker
from router.proxy.upstream import Address
from router.tls import Pems, for_replicas


def asker(config: Config, root: bytes | None) -> Asker:
    """What makes asks of bodies; `root` keys the chains (core/prompt.py), None where nothing is gossiped."""
    return Asker(config.routing.prefix_block, config.tools_first(), root or NO_SECRET)


def bounds(config: Config) -> Bounds:
    """What a client may take up."""
    limits = config.limits
    return Bounds(limits.body, limits.head, limits.buffered, limits.connections)


def times(config: Config) -> Times:
    """How long what may take."""
    each = config.timeouts
    return Times(each.head, each.body, each.keep_alive, each.first_byte, each.idle, each.request, each.handshake)


def configuration(settings: Settings) -> Config:
    """The supervisor has checked them."""
    config = validate(settings.values)
    if not isinstance(config, Config):
        raise TypeError(f"the supervisor sent settings that are none: {config}")
    return config


def address(replica: ReplicaConfig) -> Address:
    """Where a replica listens."""
    url = urlsplit(replica.url)
    assert url.hostname is not None
    base = url.path.rstrip("/").encode()
    secure = url.scheme == "https"
    return Address(url.hostname, url.port or (443 if secure else 80), base, url.netloc.encode(), secure)


def by_tls(config: Config) -> bool:
    """Whether any replica is spoken to by TLS."""
    return any(address(replica).secure for replica in config.replicas)


def trust(config: Config, pems: Pems) -> Trust | None:
    """How replicas are spoken to by TLS; None where none is: a process takes 30 ms to read the system's CAs.

    Raises ssl.SSLError for what is no certificate, or not its key.
    """
    if not by_tls(config):
        return None
    return Trust(for_replicas(config.tls.replicas, pems), config.tls.replicas.server_name)
