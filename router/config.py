"""The only file that knows YAML and pydantic: a file -> settings -> plain values for the core.

Strict: an unknown key, a wrong type and a duration without a unit are errors, all reported at once with their path.
"""

import difflib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple
from urllib.parse import urlsplit

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from router.core.baselines import BASELINES
from router.core.fleet import FleetSettings
from router.core.member import ReplicaSpec
from router.core.policy import Limits, PrefixAffinity, Weights
from router.core.types import Policy

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_SIZE = re.compile(r"(\d+)(KiB|MiB|GiB)")
_BYTES = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


class ConfigError(Exception):
    """A configuration that cannot be used; `problems` holds a line for each thing that is wrong."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class Endpoint(NamedTuple):
    """A host and port to listen on."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def _duration(value: object) -> float:
    found = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise ValueError(f"a duration has a unit: 500ms, 2s, 5m, 1h; not {value!r}")
    return float(found[1]) * _SECONDS[found[2]]


def _size(value: object) -> int:
    found = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise ValueError(f"a size has a unit: 512KiB, 32MiB, 1GiB; not {value!r}")
    return int(found[1]) * _BYTES[found[2]]


def _endpoint(value: object) -> Endpoint:
    host, colon, port = str(value).rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65_535:
        raise ValueError(f"an address is HOST:PORT, as 127.0.0.1:8080; not {value!r}")
    return Endpoint(host.strip("[]"), int(port))


Duration = Annotated[float, BeforeValidator(_duration)]
Size = Annotated[int, BeforeValidator(_size)]
Listen = Annotated[Endpoint, BeforeValidator(_endpoint)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, arbitrary_types_allowed=True)


class ReplicaConfig(_Section):
    id: str = Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9._-]+$")
    url: str
    prefill_tokens_per_second: Annotated[float, Field(gt=0)] | None = None
    step_seconds: Annotated[float, Field(gt=0)] | None = None
    kv_seconds_per_token: Annotated[float, Field(gt=0)] | None = None
    kv_tokens: Annotated[int, Field(gt=0)] | None = None
    max_concurrency: Annotated[int, Field(gt=0)] | None = None

    @model_validator(mode="after")
    def _check_url(self) -> "ReplicaConfig":
        url = urlsplit(self.url)
        if url.scheme != "http" or not url.hostname:
            raise ValueError(f"replica {self.id}: url is http://HOST:PORT; not {self.url!r}")
        if url.path.rstrip("/").endswith("/v1"):
            raise ValueError(f"replica {self.id}: url ends in /v1, which clients' paths bring; leave it out")
        if url.query or url.fragment or url.username:
            raise ValueError(f"replica {self.id}: url has a query, a fragment or a user, which is not supported")
        return self

    def spec(self) -> ReplicaSpec:
        """What the core needs of it."""
        return ReplicaSpec(
            self.id,
            self.prefill_tokens_per_second,
            self.step_seconds,
            self.kv_seconds_per_token,
            self.kv_tokens,
            self.max_concurrency,
        )


class SpillConfig(_Section):
    max_queued_requests: Annotated[int, Field(gt=0)] | None = 32
    max_backlog_seconds: Annotated[float, Field(gt=0)] | None = 18.0
    max_kv_usage: Annotated[float, Field(gt=0, le=1)] | None = 0.95


class QueueConfig(_Section):
    max_requests: int = Field(default=1000, ge=0)
    max_seconds: float = Field(default=30.0, gt=0)


class RoutingConfig(_Section):
    policy: Literal["prefix_affinity", "round_robin", "random", "least_requests", "consistent_hash"] = "prefix_affinity"
    prefix_block: int = Field(default=512, ge=64, le=65_536)
    home_slack: Duration = 0.1
    max_concurrency: Annotated[int, Field(gt=0)] | None = None
    spill: SpillConfig = SpillConfig()
    queue: QueueConfig = QueueConfig()

    def make(self) -> Policy:
        """The policy that this names."""
        if self.policy in BASELINES:
            return BASELINES[self.policy]()
        limits = Limits(self.spill.max_queued_requests, self.spill.max_backlog_seconds, self.spill.max_kv_usage)
        return PrefixAffinity(Weights(home_slack=self.home_slack), limits)


class LimitsConfig(_Section):
    body: Size = 32 << 20
    index_blocks: int = Field(default=1_000_000, ge=1000)


class TimeoutsConfig(_Section):
    connect: Duration = 2.0


class HealthConfig(_Section):
    interval: Duration = 1.0
    timeout: Duration = 2.0
    failures: int = Field(default=2, ge=1)
    stall: Duration = 3.0
    models_interval: Duration = 5.0


class DrainConfig(_Section):
    timeout: Duration = 300.0


class Config(_Section):
    """The whole file."""

    listen: Listen = Endpoint("127.0.0.1", 8080)
    admin: Listen = Endpoint("127.0.0.1", 9100)
    replicas: list[ReplicaConfig] = Field(min_length=1)
    routing: RoutingConfig = RoutingConfig()
    limits: LimitsConfig = LimitsConfig()
    timeouts: TimeoutsConfig = TimeoutsConfig()
    health: HealthConfig = HealthConfig()
    drain: DrainConfig = DrainConfig()

    @model_validator(mode="after")
    def _check_replicas(self) -> "Config":
        for field in ("id", "url"):
            values = [getattr(replica, field).rstrip("/") for replica in self.replicas]
            twice = sorted({value for value in values if values.count(value) > 1})
            if twice:
                raise ValueError(f"two replicas have the same {field}: {', '.join(twice)}")
        return self

    def fleet_settings(self) -> FleetSettings:
        """What the core needs of it."""
        return FleetSettings(
            self.routing.prefix_block, self.limits.index_blocks, self.routing.max_concurrency, self.health.stall
        )


def load(path: Path) -> Config:
    """Read and check a file. Raises ConfigError, whose text names the file, each setting and the remedy."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError([f"{path}: cannot be read: {error.strerror}"]) from error
    except UnicodeDecodeError as error:
        raise ConfigError([f"{path}: is not UTF-8: {error.reason} at byte {error.start}"]) from error
    try:
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError([f"{path}: is not YAML: {' '.join(str(error).split())}"]) from error
    if not isinstance(values, dict):
        raise ConfigError([f"{path}: is not a mapping of settings; the least that works names `replicas`"])
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise ConfigError([f"{path}: {problem}" for problem in _problems(error)]) from error


def _problems(error: ValidationError) -> Iterator[str]:
    for problem in error.errors(include_url=False):
        where = ".".join(str(part) for part in problem["loc"])
        message = problem["msg"].removeprefix("Value error, ")
        if problem["type"] == "extra_forbidden":
            message = "unknown setting" + _suggestion(problem["loc"])
        yield f"{where}: {message}" if where else message


def _suggestion(where: tuple[int | str, ...]) -> str:
    allowed: Any = Config
    for part in where[:-1]:
        if isinstance(part, int):
            continue
        kind = allowed.model_fields[part].annotation
        allowed = ReplicaConfig if part == "replicas" else kind
    names = sorted(allowed.model_fields)
    near = difflib.get_close_matches(str(where[-1]), names, n=1)
    return f"; did you mean `{near[0]}`?" if near else f"; allowed here: {', '.join(names)}"
