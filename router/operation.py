"""Settings of how the process is run: the admin port, when it is ready, how it stops, what it writes down."""

from typing import Annotated, Literal

from pydantic import Field

from router.fields import Duration, Integer, Listen, Model
from router.settings import About
from router.values import Endpoint


class AdminConfig(Model):
    text = "The admin port, for operators and Prometheus. `admin: HOST:PORT` is short for `admin: {listen: HOST:PORT}`."
    shorthand = "listen"

    listen: Annotated[
        Listen,
        About(
            "Where /metrics, /livez, /readyz, /fleet and /explain are. Loopback, because they tell much about the "
            "fleet; a Prometheus on another host needs an address that it can reach.",
            "restart",
        ),
    ] = Endpoint("127.0.0.1", 9100)
    token_file: Annotated[
        str | None,
        About(
            "File with the token that whoever changes something brings (reload, drain, undrain), or records, or has a "
            "live request explained; null: nobody can. A relative path begins in this file's directory.",
        ),
    ] = None
    mutations: Annotated[
        bool,
        About("Whether anything can be changed over this port at all, token or not. A GET never changes anything."),
    ] = True


class ReadyConfig(Model):
    text = "When this router is ready."

    min_replicas: Annotated[
        Integer,
        Field(ge=0),
        About("Ready replicas that /readyz wants. 0: a router without replicas answers 503 itself.", unit="replicas"),
    ] = 1


class DrainConfig(Model):
    text = "How the router stops, by SIGTERM or Ctrl-C; a second one ends it at once."

    timeout: Annotated[
        Duration, Field(ge=0, le=86_400), About("How long answers under way may take to end after SIGTERM.")
    ] = 300.0
    accept: Annotated[
        Duration,
        Field(ge=0, le=3600),
        About(
            "How long new requests are served still, each as its connection's last. 0s, because Kubernetes takes a pod "
            "out of its endpoints during preStop, before SIGTERM; a balancer that polls /readyz needs two polls' time."
        ),
    ] = 0.0
    readiness: Annotated[
        Literal["fail", "keep"],
        About("What /readyz says meanwhile: fail is what takes the router out; keep is for who is paged by that."),
    ] = "fail"


class LogConfig(Model):
    text = "What is written down. Prompts, keys and tokens never are."

    level: Annotated[
        Literal["debug", "info", "warning", "error"], About("The least severe that goes to standard error.")
    ] = "info"
    requests: Annotated[
        bool,
        About(
            "A JSON line for each request, on standard output. Off, because metrics count them and a busy fleet would "
            "write gigabytes a day."
        ),
    ] = False
