"""Builds the link to the other routers from the settings: where Redis is, who we are there, the fleet's secret."""

import os
from collections.abc import Callable
from pathlib import Path
from random import Random

from router.config import Config
from router.core.fleet import Fleet
from router.crew import Crew
from router.gossip.link import Link
from router.loading import Secrets
from router.redisurl import parse


def link(
    config: Config,
    secrets: Secrets,
    directory: Path,
    fleet: Fleet,
    crew: Crew,
    observe: Callable[[str, str, float], None],
) -> Link | None:
    """The link; None when the router shares nothing. File names of the settings begin in `directory`."""
    if config.gossip.url is None:
        return None
    # Only now: Redis's client takes 80 ms and 6 MB to import, which a router that shares nothing does without.
    from router.gossip.redis import Access, RedisLine

    assert secrets.gossip is not None  # Or the configuration would not be valid.
    found = Link(
        fleet, crew.hub, crew.snapshot, crew.recall, secrets.gossip, os.urandom(8), config.routing.prefix_block
    )
    gossip, tls = config.gossip, config.gossip.tls
    url = parse(gossip.url)
    files = [None if name is None else str(directory / name) for name in (tls.ca_file, tls.cert_file, tls.key_file)]
    access = Access(
        url.form, url.hosts, url.service, url.database, gossip.user, secrets.redis_password, url.tls, *files
    )
    found.line = RedisLine(access, found.channel, found, observe, Random())
    return found
