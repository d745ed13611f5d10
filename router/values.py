"""What a single value may be: kinds, the units that they are written in, and what was probably meant instead.

Pure. A parser raises `Wrong`, whose text completes "`setting` ..." and whose suggestion could stand in the file.
"""

import json
import re
from enum import StrEnum
from ipaddress import AddressValueError, IPv4Address, ip_address
from typing import Final, NamedTuple
from urllib.parse import SplitResult, urlsplit

_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_WORDS: Final = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours"}
_BYTES: Final = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}

DURATION_PATTERN: Final = r"^[0-9]{1,9}(\.[0-9]{1,9})?(ms|s|m|h)$"
SIZE_PATTERN: Final = r"^[0-9]{1,9}(KiB|MiB|GiB)$"
ADDRESS_PATTERN: Final = r"^(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}$"
URL_PATTERN: Final = r"^https?://[^/?#@\s]+(/[^?#\s]*)?$"
REDIS_PATTERN: Final = r"^rediss?(\+sentinel|\+cluster)?://[^/?#@\s]+(/[^?#@\s]*)?$"
"""Patterns of the JSON Schema; what they cannot say (a port's range, a trailing /v1) the parsers here do."""

MAX_PORT = 65_535
MAX_WORKERS = 256
AUTO: Final = "auto"
EVERYWHERE: Final = "0.0.0.0"  # noqa: S104 - It is suggested and compared with, not bound.


class Kind(StrEnum):
    """What a value is; the text completes "is ..."."""

    DURATION = "a duration with a unit, as 500ms, 2s, 5m, 1h"
    SIZE = "a size with a unit, as 512KiB, 32MiB, 1GiB"
    INTEGER = "a whole number"
    NUMBER = "a number"
    FLAG = "true or false"
    TEXT = "text"
    ADDRESS = "an address to listen on, HOST:PORT"
    URL = "a URL, http://HOST:PORT or https://HOST:PORT"
    REDIS = "a Redis URL, redis://HOST:PORT"
    WORKERS = "a whole number, or auto"
    CHOICE = "a word out of a few"
    TEXTS = "a list of texts"


class Wrong(ValueError):
    """A value that cannot be used."""

    def __init__(self, code: str, message: str, suggestion: str | None = None, remedy: str | None = None) -> None:
        super().__init__(message)
        self.code, self.suggestion, self.remedy = code, suggestion, remedy


class Endpoint(NamedTuple):
    """A host and port to listen on."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def shown(value: object) -> str:
    """A value in a message: short, and as the file writes it."""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if value is None:
        return "`null`"
    if isinstance(value, (list, dict)):
        return "a list" if isinstance(value, list) else "a section of settings"
    text = str(value)
    return f"`{text}`" if len(text) <= 60 else f"`{text[:57]}...`"


def duration(value: object) -> float:
    """Seconds. Raises Wrong."""
    found = re.fullmatch(DURATION_PATTERN, value) if isinstance(value, str) else None
    if found is None or not isinstance(value, str):
        raise Wrong("H105", f"is {Kind.DURATION}, not {shown(value)}", _as_duration(value))
    return float(value.removesuffix(found[2])) * _SECONDS[found[2]]


def maybe_duration(value: object) -> float | None:
    """Seconds, or None as it is. Raises Wrong."""
    return None if value is None else duration(value)


def size(value: object) -> int:
    """Bytes. Raises Wrong."""
    found = re.fullmatch(SIZE_PATTERN, value) if isinstance(value, str) else None
    if found is None or not isinstance(value, str):
        raise Wrong("H105", f"is {Kind.SIZE}, not {shown(value)}", _as_size(value))
    return int(value.removesuffix(found[1])) * _BYTES[found[1]]


def unitless(value: object) -> object:
    """A value whose unit is in its setting's name: the same. Raises Wrong where it brings a unit all the same."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*[A-Za-z]+", value) if isinstance(value, str) else None
    if found is not None:
        raise Wrong("H105", f"is a number, whose unit is in the setting's name, not {shown(value)}", found[1])
    return value


def workers(value: object) -> int:
    """A number of processes; 0 for `auto`. Raises Wrong."""
    if value == AUTO:
        return 0
    if not isinstance(value, int) or isinstance(value, bool):
        text = value.strip().lower() if isinstance(value, str) else ""
        raise Wrong("H104", f"is {Kind.WORKERS}, not {shown(value)}", text if text.isdigit() or text == AUTO else None)
    if not 1 <= value <= MAX_WORKERS:
        raise Wrong("H106", f"must be at least 1 and at most {MAX_WORKERS}, or auto, not {shown(value)}")
    return value


def address(value: object) -> Endpoint:
    """Where to listen; port 0 is any free one. Raises Wrong."""
    if isinstance(value, Endpoint):
        return value
    text = str(value)
    host, _, port = text.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    if not port.isascii() or not port.isdigit() or not bare:
        raise Wrong("H111", f"is {Kind.ADDRESS}, not {shown(value)}", _as_address(text))
    if int(port) > MAX_PORT:
        raise Wrong("H111", f"has the port {port}, and {MAX_PORT} is the last one")
    if (":" in bare) != host.startswith("["):
        raise Wrong("H111", f"has an IPv6 address without brackets, {shown(value)}", f'"[{bare}]:{port}"')
    if re.fullmatch(ADDRESS_PATTERN, text) is None or not _is_host(bare):
        raise Wrong("H111", f"has no host that can be listened on, {shown(value)}", _as_address(text))
    return Endpoint(bare, int(port))


def url(value: object) -> str:
    """A replica's base URL, without a trailing slash. Raises Wrong."""
    text = str(value)
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:  # A port that is no number up to 65535, or half a bracket.
        raise Wrong("H112", f"is {Kind.URL}, not {shown(value)}") from error
    _check_scheme(text, parts)
    if not parts.hostname or re.search(r"\s", text) or port == 0:
        raise Wrong("H112", f"is {Kind.URL}, not {shown(value)}")
    if parts.scheme == "https" and not _is_certified(parts.hostname):
        raise Wrong("H112", f"has a host that no certificate can be for, {shown(parts.hostname)}")
    if parts.username is not None or parts.password is not None:
        text = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
        raise Wrong("H112", "has a user or password in it", text, "an engine's key goes into `api_key_file`")
    if parts.query or parts.fragment:
        raise Wrong("H112", "has a query or a fragment", parts._replace(query="", fragment="").geturl())
    if parts.path.rstrip("/").endswith("/v1"):
        raise Wrong("H113", "ends in /v1", text.rstrip("/").removesuffix("/v1"), "clients' requests bring the /v1")
    return text.rstrip("/")


def host(value: object) -> object:
    """A host's name or address, or null; what is no text is for others to complain of. Raises Wrong."""
    if isinstance(value, str) and not _is_certified(value):
        found = re.search(r"://([A-Za-z0-9._-]+)", value)
        suggestion = found[1] if found and _is_certified(found[1]) else None
        raise Wrong("H124", f"is a host's name, not {shown(value)}", suggestion)
    return value


def _check_scheme(text: str, parts: SplitResult) -> None:
    if parts.scheme in {"http", "https"} and parts.netloc:
        return
    scheme = parts.scheme if parts.scheme in {"http", "https"} else ""
    rest = text.partition(":")[2].lstrip("/") if scheme else text.rpartition("://")[2].lstrip("/")
    message = f"does not begin with http:// or https://: {shown(text)}"
    raise Wrong("H112", message, f"{scheme or 'http'}://{rest}" if rest else None)


def _is_host(host: str) -> bool:
    """False for what looks like an IPv4 address and is none; names are the resolver's business, not ours."""
    if re.fullmatch(r"[0-9.]+", host) is None:
        return True
    try:
        IPv4Address(host)
    except AddressValueError:
        return False
    return True


def _is_certified(host: str) -> bool:
    """Whether a certificate can be for this host: an address, or labels of at most 63 characters (RFC 1035)."""
    try:
        ip_address(host)
    except ValueError:
        label = r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
        return len(host) <= 253 and re.fullmatch(rf"{label}(\.{label})*", host) is not None
    return True


def _as_address(text: str) -> str | None:
    text = text.strip().rpartition("://")[2].partition("/")[0]
    if text.isascii() and text.isdigit() and int(text) <= MAX_PORT:
        return f"127.0.0.1:{text}"
    if re.fullmatch(r":[0-9]+", text):
        return EVERYWHERE + text
    if re.fullmatch(r"\*:[0-9]+", text):
        return EVERYWHERE + text[1:]
    return text if re.fullmatch(ADDRESS_PATTERN, text) and _is_host(text.rpartition(":")[0]) else None


def written(kind: Kind, value: object) -> object:
    """A value as the file writes it: 0.1 of a duration is `100ms`."""
    if kind is Kind.DURATION and isinstance(value, (int, float)):
        return _write_duration(value)
    if kind is Kind.SIZE and isinstance(value, (int, float)):
        return _write_size(int(value))
    if kind is Kind.ADDRESS and value is not None:
        return str(value)
    if kind is Kind.WORKERS and value == 0:
        return AUTO
    return value


def literal(value: object) -> str:
    """A value (of `written`) as a file has it, in one line."""
    if value is None or isinstance(value, (bool, list, dict)):
        return json.dumps(value, ensure_ascii=False)
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def _write_duration(seconds: float) -> str:
    if 0 < seconds < 1:
        return f"{seconds * 1000:.9g}ms"
    unit = next((unit for unit in ("h", "m") if seconds and seconds % _SECONDS[unit] == 0), "s")
    return f"{seconds / _SECONDS[unit]:.9g}{unit}"


def _write_size(count: int) -> str:
    unit = next((unit for unit in ("GiB", "MiB") if count % _BYTES[unit] == 0), "KiB")
    return f"{count // _BYTES[unit]}{unit}"


def _number_and_unit(value: object) -> tuple[str, str]:
    text = "" if isinstance(value, bool) else str(value).replace(" ", "").replace("_", "")
    found = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([A-Za-z]*)", text)
    return (found[1], found[2].lower()) if found else ("", "")


def _as_duration(value: object) -> str | None:
    number, unit = _number_and_unit(value)
    if not number:
        return _summed(str(value))
    if not unit:
        return f"{number}s"
    near = (short for short, word in _WORDS.items() if unit == short or (len(unit) > 1 and word.startswith(unit)))
    short = next(near, None)
    return short and f"{number}{short}"


def _summed(text: str) -> str | None:
    """`1m30s` is 90s."""
    parts = re.findall(r"([0-9]{1,9})(ms|s|m|h)", text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return None
    return _write_duration(sum(int(number) * _SECONDS[unit] for number, unit in parts))


def _as_size(value: object) -> str | None:
    number, unit = _number_and_unit(value)
    if not number or "." in number:
        return None
    if not unit:
        return _write_size(int(number)) if int(number) >= _BYTES["KiB"] else f"{number}MiB"
    long = next((long for long in _BYTES if unit[0] == long[0].lower()), None)
    return long and f"{number}{long}"
