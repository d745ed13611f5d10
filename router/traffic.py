"""Settings of what passes between clients and replicas: how much, how long, and when it is sent again."""

from typing import Annotated

from pydantic import Field

from router.fields import Duration, Integer, MaybeDuration, Model, Number, RequestPath, Size
from router.settings import About


class ProxyConfig(Model):
    text = "What clients may do."

    allow_paths: Annotated[
        list[RequestPath],
        About(
            "Paths that control an engine (/sleep, /reset_prefix_cache, ...) and that clients may reach all the same. "
            "None, because one client's call would hurt all the others.",
        ),
    ] = []  # noqa: RUF012 - pydantic copies it, as it does every default.
    half_close: Annotated[
        bool,
        About(
            "Whether a client that closes its writing side still waits for its answer. false: it has left, and the "
            "replica stops, because a program that is gone looks just so. Not with TLS."
        ),
    ] = False


class LimitsConfig(Model):
    text = "Bounds on memory, each for one worker."

    body: Annotated[
        Size,
        Field(ge=1 << 10, le=1 << 30),
        About("Largest request body, then 413. 32MiB: a few images in base64 are 8."),
    ] = 32 << 20
    head: Annotated[
        Size,
        Field(ge=1 << 12, le=1 << 20),
        About("Largest head of a request, then 431. nginx takes 32KiB, uvicorn 64KiB; cookies and traces fit."),
    ] = 64 << 10
    buffered: Annotated[
        Size,
        Field(ge=1 << 20, le=1 << 40),
        About(
            "Bytes of all request bodies that are held at a time: large ones until their answer begins, those under "
            "64KiB until it ends. One more is answered 503 with Retry-After, and clients send it again by themselves. "
            "512MiB: 16 of the largest."
        ),
    ] = 512 << 20
    connections: Annotated[
        Integer,
        Field(ge=1, le=1_000_000),
        About(
            "Open connections of clients; a request on one more is answered 503, and it closes. Each takes a file "
            "descriptor and some 10 kB, and the same again to a replica while a request is under way.",
            unit="connections",
        ),
    ] = 10_000
    index_blocks: Annotated[
        Integer,
        Field(ge=1000, le=1_000_000_000),
        About("Blocks that all replicas together may be believed to hold; some 150 bytes each.", unit="blocks"),
    ] = 1_000_000
    label_values: Annotated[
        Integer,
        Field(ge=1, le=10_000),
        About(
            "Values of each of the labels model, endpoint and code that metrics tell apart; any more are counted as "
            "one, `other`.",
            unit="values",
        ),
    ] = 100


class TimeoutsConfig(Model):
    text = (
        "How long the router waits; null: without end. An answer as a whole has no limit: long generations are "
        "ordinary. A time may last a quarter longer, at most 0.5 s."
    )

    connect: Annotated[
        Duration,
        Field(gt=0, le=60),
        About("To connect to a replica; then the next one is tried."),
    ] = 2.0
    handshake: Annotated[
        MaybeDuration,
        About("For a client's TLS handshake, three round trips; then the connection is cut off. No request has begun."),
    ] = 10.0
    head: Annotated[
        MaybeDuration,
        About(
            "For a request's head, from its first byte; then 408. 10s: it is a packet or two; Apache gives 20 to 40s, "
            "nginx 60s."
        ),
    ] = 10.0
    body: Annotated[
        MaybeDuration,
        About(
            "For each MiB of a request's body, begun ones too; then 408. 30s: 35 kB/s, which a poor mobile network "
            "has, and who sends a byte now and then to hold a connection has not."
        ),
    ] = 30.0
    keep_alive: Annotated[
        MaybeDuration,
        About(
            "How long a client's connection stays open without a request; it closes without a word. 620s: longer than "
            "the 600s for which Google's balancers keep theirs (Amazon's and nginx: 60s), so that they close and not "
            "we: a request sent into a connection that closes is lost."
        ),
    ] = 620.0
    first_byte: Annotated[
        MaybeDuration,
        About(
            "For the first byte of an answer, from when the request was sent to a replica; then 504, a failure of the "
            "replica, and it is not sent again: it may have been done. Of an answer that does not stream that is the "
            "whole generation. 10m: OpenAI's clients wait no longer. Rollouts that set 14,400 s there set 4h here."
        ),
    ] = 600.0
    idle: Annotated[
        MaybeDuration,
        About(
            "Between two pieces of an answer; then it ends as a stream that broke. 10m, as above: a preempted request "
            "pauses for minutes. While a client does not read, the replica is not blamed: that ends after as long, "
            "because such a client holds the replica."
        ),
    ] = 600.0
    request: Annotated[
        MaybeDuration,
        About("For a request as a whole, from its last byte to that of its answer; then 504, or the stream breaks."),
    ] = None


class RetryConfig(Model):
    text = "When a request is sent again."

    max_refusals: Annotated[
        Integer,
        Field(ge=0, le=100),
        About(
            "Replicas that may answer 429 or 503 before the client gets that answer; a refusal cost no work.",
            unit="times",
        ),
    ] = 3
    budget: Annotated[
        Number,
        Field(ge=0, le=1),
        About(
            "Share of the last 10 s' requests, and 10 in any case, that may be sent again after a replica was lost "
            "with them: all would double the load of a fleet that fails. Refusals and failed connections cost nothing.",
            unit="ratio",
        ),
    ] = 0.1
