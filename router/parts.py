"""Settings -> what a worker's parts are built from, in their own terms. Pure."""

from urllib.parse import urlsplit

from router.config import Config, ReplicaConfig, validate
from router.core.prompt import NO_SECRET
from router.gossip.messages import Settings
from router.proxy.bounds import Bounds, Times
from router.proxy.openai import Asker
from router.proxy.upstream import Address


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
