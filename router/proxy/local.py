"""What the router answers without a replica: models, health, version, and no to engine control."""

from router.proxy import answers
from router.proxy.answers import Answer
from router.proxy.context import Proxy
from router.proxy.openai import Use

ANSWERED = frozenset((Use.MODELS, Use.HEALTH, Use.VERSION, Use.CONTROL))
REJECTED = {Use.CONTROL: "forbidden_path"}
"""What of these counts as refused, and as what. Never written to."""


def answer(proxy: Proxy, use: Use, path: str) -> Answer:
    """The answer to what is `ANSWERED`."""
    ready = proxy.fleet.ready
    if use is Use.CONTROL:
        return answers.forbidden(path)
    if use is Use.VERSION:
        return answers.version(proxy.version)
    if use is Use.MODELS and ready:
        return answers.models([replica.models for replica in ready])
    return answers.health(len(ready))
