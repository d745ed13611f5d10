"""Where Redis is, as one setting writes it: scheme, hosts, a Sentinel's service, the database. Pure.

    redis://HOST[:PORT][/DATABASE]                            one server
    redis+sentinel://HOST[:PORT],HOST[:PORT]/SERVICE[/DATABASE]   whichever server Sentinel says is the master
    redis+cluster://HOST[:PORT],HOST[:PORT]                   any nodes of a cluster

`rediss` in place of `redis` means TLS. User and password are settings of their own: a URL ends up in logs.
"""

import re
from typing import Final, Literal, NamedTuple

from router.values import MAX_PORT, Kind, Wrong, shown

Form = Literal["", "sentinel", "cluster"]

_URL: Final = re.compile(
    r"(?P<tls>rediss?)(?:\+(?P<form>sentinel|cluster))?://(?P<hosts>[^/?#@\s]+)(?P<path>/[^?#@\s]*)?"
)
_HOST: Final = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(?P<port>[0-9]{1,5}))?")

_FORMS: Final[dict[str, Form]] = {"": "", "sentinel": "sentinel", "cluster": "cluster"}
PORTS: Final[dict[Form, int]] = {"": 6379, "sentinel": 26_379, "cluster": 6379}


class RedisUrl(NamedTuple):
    """The parts. `service` is what Sentinel calls the master."""

    tls: bool
    form: Form
    hosts: tuple[tuple[str, int], ...]
    service: str
    database: int


def check(value: object) -> str | None:
    """The URL itself, or None for null. Raises Wrong for what is no Redis URL."""
    if value is None:
        return None
    parse(value)
    return str(value)


def parse(value: object) -> RedisUrl:
    """The parts of a URL. Raises Wrong."""
    text = str(value)
    if re.match(r"rediss?(\+\w+)?://[^/]*@", text):
        without = re.sub(r"//[^/]*@", "//", text)
        raise Wrong(
            "H130", "has a user or password in it", without, "they go into `gossip.user` and `gossip.password_file`"
        )
    found = _URL.fullmatch(text)
    if found is None:
        raise Wrong("H130", f"is {Kind.REDIS}, not {shown(value)}", _meant(text))
    form = _FORMS[found["form"] or ""]
    hosts = tuple(_host(host, PORTS[form], value) for host in found["hosts"].split(","))
    if len(hosts) > 1 and not form:
        raise Wrong("H130", "names several hosts; is it redis+sentinel:// or redis+cluster://?")
    service, database = _path(form, (found["path"] or "").strip("/"), value)
    return RedisUrl(found["tls"] == "rediss", form, hosts, service, database)


def _host(text: str, port: int, value: object) -> tuple[str, int]:
    found = _HOST.fullmatch(text)
    number = int(found["port"] or port) if found else 0
    if found is None or not 0 < number <= MAX_PORT:
        raise Wrong("H130", f"is {Kind.REDIS}, not {shown(value)}")
    return found["host"].strip("[]"), number


def _path(form: Form, path: str, value: object) -> tuple[str, int]:
    """A Sentinel's service, and the database's number."""
    service = ""
    if form == "sentinel":
        service, _, path = path.partition("/")
        if not service:
            raise Wrong("H130", f"does not name Sentinel's service, as redis+sentinel://HOST/SERVICE; {shown(value)}")
    if path and (form == "cluster" or not path.isascii() or not path.isdigit()):
        raise Wrong("H130", f"ends in `{path}`, where only a database's number can be")
    return service, int(path or 0)


def _meant(text: str) -> str | None:
    """`redis.example:6379` was meant as a URL."""
    return f"redis://{text}" if _HOST.fullmatch(text) and not text.isdigit() else None
