"""The settings, and values -> settings -> plain values for the core.

The models are the one source of the sample file, the reference page, the JSON Schema and the diagnostics: each setting
tells its default, its bounds, why it is so and whether a change needs a restart. A setting that nothing reads has no
place here. Strict: an unknown key, a wrong type and a duration without a unit are errors, and all are told at once.
How the process itself is run is in operation.py, what passes through it in traffic.py, TLS in tlsconfig.py, what
routers share in sharing.py, what a value may be in fields.py.
"""

from typing import Annotated, Literal

from pydantic import Field, ValidationError

from router.core.baselines import BASELINES
from router.core.ejection import EjectionSettings
from router.core.fleet import FleetSettings
from router.core.member import ReplicaSpec
from router.core.policy import Limits, PrefixAffinity, Weights
from router.core.ramp import SECONDS
from router.core.types import Policy
from router.fields import (
    Duration,
    Integer,
    Listen,
    MaybeInteger,
    MaybeNumber,
    MaybeShare,
    Model,
    Number,
    OneOf,
    Url,
    Workers,
)
from router.operation import AdminConfig, DrainConfig, LogConfig, ReadyConfig
from router.settings import About, Fault, Section, section
from router.sharing import GossipConfig
from router.tlsconfig import TlsConfig
from router.traffic import LimitsConfig, ProxyConfig, RetryConfig, TimeoutsConfig
from router.values import Endpoint


class ReplicaConfig(Model):
    """One replica: its name, its address, and what the router need not learn."""

    text = "The fleet, at least one replica. What a null leaves open the router learns, or asks the engine."

    id: Annotated[
        str,
        Field(min_length=1, max_length=128, pattern="^[A-Za-z0-9._-]+$"),
        About(
            "Its name, which must survive restarts and changes of address: homes on the ring follow from it.",
            example="r1",
        ),
    ]
    url: Annotated[Url, About("Where the engine listens, http or https; without /v1.", example="http://127.0.0.1:8101")]
    api_key_file: Annotated[
        str | None,
        About(
            "File with the engine's API key, for the router's own calls; clients' requests bring their own. A "
            "relative path begins in this file's directory.",
        ),
    ] = None
    prefill_tokens_per_second: Annotated[
        MaybeNumber,
        About(
            "Speed at which it computes prompts, until it is learned; null: as the others, or 16,000.", unit="tokens/s"
        ),
    ] = None
    step_seconds: Annotated[
        MaybeNumber,
        About("Time of a decode step without context; null: 0.006, an 8B model on an H100.", unit="seconds"),
    ] = None
    kv_seconds_per_token: Annotated[
        MaybeNumber, About("Time that a decode step takes for a token of context; null: as above.", unit="seconds")
    ] = None
    kv_tokens: Annotated[
        MaybeInteger,
        About(
            "Size of its KV cache where its /metrics does not tell; null: 400,000, an 8B model on 80 GB.", unit="tokens"
        ),
    ] = None
    max_concurrency: Annotated[
        MaybeInteger, About("Most requests at a time on this replica; null: routing.max_concurrency.", unit="requests")
    ] = None

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


class ModelConfig(Model):
    text = "What the router must know of a model, by the name that clients send; one without an entry has the defaults."
    example = "meta-llama/Llama-3.1-8B-Instruct"

    template_order: Annotated[
        Literal["system_first", "tools_first"],
        About("Which of the two the model's chat template puts first; prompts are compared in that order."),
    ] = "system_first"


class SpillConfig(Model):
    text = "Hard limits on one replica, checked before anything else is weighed; null switches one off."

    max_queued_requests: Annotated[
        MaybeInteger,
        About("Requests there without a first token. 32: more only lengthens the engine's own queue.", unit="requests"),
    ] = 32
    max_backlog_seconds: Annotated[
        MaybeNumber,
        About("How much longer the wait for prefill may be there than on the least loaded replica.", unit="seconds"),
    ] = 18.0
    max_kv_usage: Annotated[
        MaybeShare,
        About(
            "Share of its KV cache that running requests hold, as the engine tells. null: cutting the holder makes "
            "another compute and keep the same prompt; 0.95 spares preemptions where long answers share nothing.",
            unit="ratio",
        ),
    ] = None


class QueueConfig(Model):
    text = (
        "Where a request waits while every replica is at its limits: one queue for each model, first come first served."
    )

    max_requests: Annotated[
        Integer,
        Field(ge=0),
        About("Requests that may wait; one more is answered 429. 0: none waits.", unit="requests"),
    ] = 1000
    max_seconds: Annotated[
        Number, Field(gt=0), About("Longest wait, then 429: most clients have given up by then.", unit="seconds")
    ] = 30.0


class RoutingConfig(Model):
    """Which policy, and its limits."""

    text = "Where a request goes."

    policy: Annotated[
        str,
        OneOf("prefix_affinity", *BASELINES),
        About("prefix_affinity sends a prompt to where its prefix is cached; the others are there to compare with."),
    ] = "prefix_affinity"
    prefix_block: Annotated[
        Integer,
        Field(ge=64, le=65_536),
        About(
            "Length of the pieces in which prompts are compared. Smaller finds shorter shared prefixes and costs more "
            "time and memory; 512 is about 128 tokens. Another length forgets what is believed cached.",
            "restart",
            "bytes",
        ),
    ] = 512
    home_slack: Annotated[
        Duration,
        Field(ge=0, le=60),
        About(
            "How much worse than the best a prompt's home may be, at most, and still get it: it makes several routers "
            "agree, and all replicas hold what everybody asks for. Never more than these two save."
        ),
    ] = 0.1
    max_concurrency: Annotated[
        MaybeInteger,
        About("Most requests at a time on a replica. null: the engine's batching knows best.", unit="requests"),
    ] = None
    spill: SpillConfig = SpillConfig()
    queue: QueueConfig = QueueConfig()

    def make(self) -> Policy:
        """The policy that this names."""
        if self.policy in BASELINES:
            return BASELINES[self.policy]()
        limits = Limits(self.spill.max_queued_requests, self.spill.max_backlog_seconds, self.spill.max_kv_usage)
        return PrefixAffinity(Weights(home_slack=self.home_slack), limits)


class ShadowConfig(Model):
    """Whose choices are counted beside those that are made."""

    text = (
        "What another policy would have done with a sample of the requests: counted, beside what was done, as "
        "homing_shadow_* and in `homing status`, so that a change is judged before it is made. Nothing goes where it "
        "says, and no request waits for it."
    )

    policy: Annotated[
        str | None,
        OneOf("prefix_affinity", *BASELINES),
        About("A policy, with the limits of `routing`. null: that of `file`, and without one there is no shadow."),
    ] = None
    file: Annotated[
        str | None,
        About(
            "Another configuration, whose section `routing` is tried; environment variables do not count for it. A "
            "relative path begins in this file's directory.",
        ),
    ] = None
    sample: Annotated[
        Number,
        Field(gt=0, le=1),
        About(
            "Share of the prompts' families that it is asked about: all turns of a chat or none. 0.1 costs some "
            "8 us of CPU a request, nearly all in the supervisor, and tells policies apart that are far from one "
            "another; 1 costs 30 to 60 us, and is for the others and for a few large families. Of memory it takes at "
            "most twice this share of what limits.index_blocks allows.",
            unit="ratio",
        ),
    ] = 0.1

    @property
    def followed(self) -> float:
        """The share that workers tell of; 0 without a shadow."""
        return 0.0 if self.policy is None and self.file is None else self.sample


class EjectionConfig(Model):
    text = (
        "A replica that answers its probes and fails its requests (5xx, broken off, no connection) is ejected for a "
        "while: at most half of those that are ready, never the last one. 4xx, 429 and 503 are no failures."
    )

    failures: Annotated[
        MaybeInteger,
        About("Failures within 10 s that eject it, if in a row or half of its requests; null: never.", unit="requests"),
    ] = 5
    first: Annotated[
        Duration,
        Field(gt=0, le=3600),
        About("How long the first ejection lasts. Each further one is twice as long; then one request tries it."),
    ] = 5.0
    longest: Annotated[
        Duration,
        Field(gt=0, le=3600),
        About("The longest ejection; so long without any, and the next is half as long."),
    ] = 60.0


class HealthConfig(Model):
    text = "How replicas are watched."

    interval: Annotated[Duration, Field(ge=0.01, le=3600), About("Between two probes of /health and /metrics.")] = 1.0
    timeout: Annotated[Duration, Field(ge=0.01, le=3600), About("For a probe's answer: an engine at work is slow.")] = (
        2.0
    )
    failures: Annotated[
        Integer,
        Field(ge=1, le=1000),
        About("Failed probes in a row that take a replica out; a refused connection does at once.", unit="probes"),
    ] = 2
    stall: Annotated[
        Duration,
        Field(gt=0, le=3600),
        About("A replica with open requests and no sign of life for so long gets no new ones until it gives one."),
    ] = 3.0
    models_interval: Annotated[
        Duration, Field(ge=0.01, le=3600), About("Between two looks at /v1/models, which changes with adapters.")
    ] = 5.0
    ejection: EjectionConfig = EjectionConfig()


class RampConfig(Model):
    text = (
        "How a replica that joins or has restarted comes in, its cache empty: it gets its share of new prompts and the "
        "prefixes that everybody asks for at once, and what others have no room for by and by."
    )

    seconds: Annotated[
        Number,
        Field(ge=0, le=3600),
        About(
            "How long that lasts at most; the more of its prompts it finds cached, the shorter. 0: not at all. 30: "
            "without, a replica is sent up to five times its share in the first 5 s, with 10 up to three times; or it "
            "is sent nothing at all of a prompt that all others have cached.",
            unit="seconds",
        ),
    ] = SECONDS


class Config(Model):
    """The whole file."""

    text = "Settings of Homing."

    listen: Annotated[
        Listen,
        About(
            "Where clients connect. Loopback: to be reachable is a decision, 0.0.0.0:8080 for all interfaces.",
            "restart",
        ),
    ] = Endpoint("127.0.0.1", 8080)
    admin: AdminConfig = AdminConfig()
    workers: Annotated[
        Workers,
        About(
            "Processes that serve clients; auto: one for each processor. 1: one serves some thousands of requests a "
            "second. They share load and beliefs, so more of them route as one does.",
            "restart",
        ),
    ] = 1
    replicas: Annotated[list[ReplicaConfig], Field(min_length=1)]
    models: dict[str, ModelConfig] = {}  # noqa: RUF012 - As above.
    routing: RoutingConfig = RoutingConfig()
    shadow: ShadowConfig = ShadowConfig()
    proxy: ProxyConfig = ProxyConfig()
    tls: TlsConfig = TlsConfig()
    limits: LimitsConfig = LimitsConfig()
    timeouts: TimeoutsConfig = TimeoutsConfig()
    retry: RetryConfig = RetryConfig()
    health: HealthConfig = HealthConfig()
    ramp: RampConfig = RampConfig()
    ready: ReadyConfig = ReadyConfig()
    drain: DrainConfig = DrainConfig()
    gossip: GossipConfig = GossipConfig()
    log: LogConfig = LogConfig()

    def tools_first(self) -> frozenset[str]:
        """The models whose chat template puts tools before the system text."""
        return frozenset(name for name, model in self.models.items() if model.template_order == "tools_first")

    def fleet_settings(self) -> FleetSettings:
        """What the core needs of it."""
        return FleetSettings(
            self.routing.prefix_block,
            self.limits.index_blocks,
            self.routing.max_concurrency,
            self.health.stall,
            EjectionSettings(self.health.ejection.failures, self.health.ejection.first, self.health.ejection.longest),
            self.ramp.seconds,
            self.gossip.url is not None,
        )


def tree() -> Section:
    """The settings as plain data, in the order of the models."""
    return section("", Config)


def validate(raw: object) -> Config | list[Fault]:
    """The settings, or everything that is wrong with them; never raises for what a file can hold."""
    try:
        return Config.model_validate(raw)
    except ValidationError as error:
        return [
            Fault(found["type"], tuple(found["loc"]), found["input"], found.get("ctx", {}).get("error"))
            for found in error.errors(include_url=False)
        ]
