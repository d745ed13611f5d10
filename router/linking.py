"""Builds the link to the other routers from the settings: where Redis is, who we are there, the fleet's secret."""

import os
from pathlib import Path
from random import Random

from router.config import Config
from router.core.fleet import Fleet
from router.crew import Crew
from router.gossip.link import Link
from router.gossip.redis import Access, Observe, RedisLine
from router.loading import Secrets
from router.redisurl import parse


def link(config: Config, secrets: Secrets, directory: Path, fleet: Fleet, crew: Crew, observe: Observe) -> Link | None:
    """The link; None when the router shares nothing. File names of the settings begin in `directory`."""
    if config.gossip.url is None:
        return None
    assert secrets.gossip is not None  # Or the configuration would not be valid.
    found = Link(
        fleet, crew.hub, crew.snapshot, crew.recall, secrets.gossip, os.urandom(8), config.routing.prefix_block
    )
    found.line = RedisLine(access(config, secrets, directory), found.channel, found, observe, Random())
    return found


def access(config: Config, secrets: Secrets, directory: Path) -> Access:
    """Where Redis is and who we are."""
    gossip, tls = config.gossip, config.gossip.tls
    url = parse(gossip.url)
    files = [None if name is None else str(directory / name) for name in (tls.ca_file, tls.cert_file, tls.key_file)]
    return Access(url.form, url.hosts, url.service, url.database, gossip.user, secrets.redis_password, url.tls, *files)
