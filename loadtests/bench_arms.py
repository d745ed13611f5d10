"""The arms of bench_proxy: which proxies there are on this machine, and how each is started before two stand-ins.

A peer is never a dependency: it is measured when it is found on the PATH, or where `--peer NAME=COMMAND` says. Each
gets its usual flags: one worker where that can be said, its cache-aware policy, no access log. Only words come from
here; who runs them is bench_proxy.
"""

import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import yaml

from loadtests.processes import HOST

HOMING = "homing"
COMPILED = "homing-compiled"
COMPILED_DEFAULT = Path(".venv-compiled/bin/homing")

Words = Sequence[str]


class ArmError(RuntimeError):
    """An arm that was asked for cannot be; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Site:
    """Where an arm is started: its directory, its port, a port for whatever else it listens on, its replicas' URLs."""

    directory: Path
    port: int
    spare_port: int
    urls: Sequence[str]


@dataclass(frozen=True, slots=True)
class Arm:
    """A proxy by its name in the report; `command` writes what it needs into the site and gives the words to run."""

    name: str
    command: Callable[[Site], Words]


@dataclass(frozen=True, slots=True)
class Peer:
    """A proxy that we know how to start: the programs that it may be, and its flags."""

    programs: Sequence[str]
    flags: Callable[[Site], Words]
    words: Words = ()


def homing(start: Words) -> Callable[[Site], Words]:
    """Homing with the defaults of its configuration, as `start` begins its command line."""

    def command(site: Site) -> Words:
        config = site.directory / "router.yaml"
        settings = {
            "listen": f"{HOST}:{site.port}",
            "admin": f"{HOST}:{site.spare_port}",
            "replicas": [{"id": f"r{number}", "url": url} for number, url in enumerate(site.urls, 1)],
            "drain": {"timeout": "1s"},
        }
        config.write_text(yaml.safe_dump(settings), encoding="utf-8")
        return (*start, "serve", "-c", str(config))

    return command


def _nginx(site: Site) -> Words:
    """One worker, kept connections on both sides, bodies in memory, answers passed on as they come."""
    servers = " ".join(f"server {url.removeprefix('http://')};" for url in site.urls)
    temporary = " ".join(
        f"{kind}_temp_path {site.directory}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    config = site.directory / "nginx.conf"
    config.write_text(
        f"""
worker_processes 1; daemon off; pid {site.directory}/nginx.pid; error_log stderr warn;
events {{ worker_connections 4096; }}
http {{
  access_log off; {temporary}
  client_max_body_size 64m; client_body_buffer_size 32m; keepalive_requests 100000000;
  upstream replicas {{ {servers} keepalive 256; keepalive_requests 100000000; }}
  server {{
    listen {HOST}:{site.port};
    location / {{
      proxy_pass http://replicas; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off;
    }}
  }}
}}
""",
        encoding="utf-8",
    )
    return ("-p", str(site.directory), "-e", "stderr", "-c", str(config))


def _router(site: Site, warn: str) -> Words:
    """vllm-router, sglang-router and smg are of one family; what differs is how the level `warn` is called."""
    ports = ("--port", str(site.port), "--prometheus-port", str(site.spare_port), "--prometheus-host", HOST)
    return ("--worker-urls", *site.urls, "--policy", "cache_aware", "--host", HOST, *ports, "--log-level", warn)


PEERS: Mapping[str, Peer] = {
    "nginx": Peer(("nginx", "/usr/sbin/nginx", "/usr/local/sbin/nginx"), _nginx),
    "vllm-router": Peer(("vllm-router",), partial(_router, warn="warning")),
    "sglang-router": Peer(("sglang-router",), partial(_router, warn="warn"), ("launch",)),
    "smg": Peer(("smg",), partial(_router, warn="warn"), ("launch",)),
}
"""In the order in which they are measured. Never written to."""


def given(text: str) -> Arm:
    """`NAME=COMMAND`: a known peer's command without its flags (they are appended), or any proxy's whole command with
    {port} and {urls} in it, and {spare_port} where it needs another. Raises ArmError."""
    name, _, command = text.partition("=")
    words = shlex.split(command)
    if not name or not words:
        raise ArmError(f"--peer {text}: write NAME=COMMAND")
    if shutil.which(words[0]) is None:
        raise ArmError(f"--peer {name}: there is no program {words[0]}")
    if "{port}" in command:
        return Arm(name, lambda site: _filled(words, site))
    if name not in PEERS:
        known = ", ".join(PEERS)
        raise ArmError(f"--peer {name}: only {known} are known; write the whole command with {{port}} and {{urls}}")
    return Arm(name, lambda site: (*words, *PEERS[name].flags(site)))


def _filled(words: Words, site: Site) -> Words:
    """The words with ports put in; a word that is {urls} becomes one for each replica."""
    filled: list[str] = []
    for word in words:
        if word == "{urls}":
            filled.extend(site.urls)
        else:
            filled.append(word.replace("{port}", str(site.port)).replace("{spare_port}", str(site.spare_port)))
    return filled


def found() -> list[Arm]:
    """The known peers that are installed."""
    arms = []
    for name, peer in PEERS.items():
        program = next(filter(None, map(shutil.which, peer.programs)), None)
        if program is not None:
            arms.append(Arm(name, _command((program, *peer.words), peer)))
    return arms


def _command(start: Words, peer: Peer) -> Callable[[Site], Words]:
    return lambda site: (*start, *peer.flags(site))


def compiled(program: Path) -> Arm:
    """The compiled build, by its `homing`. Raises ArmError when it is not there, or not compiled."""
    python = program.parent / "python"
    if not program.exists() or not python.exists():
        raise ArmError(f"{program} is not there: `make compiled` builds it")
    # -I: no PYTHONPATH and no current directory, either of which may hold the source, which would be taken first.
    where = subprocess.run(  # noqa: S603
        [str(python), "-I", "-c", "import router.core.fleet as it; print(it.__file__)"],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    if not where.stdout.strip().endswith(".so"):
        said = (where.stdout + where.stderr).strip().splitlines() or ["nothing"]
        raise ArmError(f"{program} is not a compiled build ({said[-1]}): `make compiled` builds one")
    return Arm(COMPILED, homing((str(python), "-I", "-m", "router.cli")))


def choose(program: Path | None, peers: Sequence[str], only: Sequence[str]) -> list[Arm]:
    """Every arm to measure, Homing first; `peers` replace what is found under their names, `only` keeps these names.

    Without `program` the compiled build is measured where `make compiled` leaves it, if it is there. Raises ArmError.
    """
    arms = [Arm(HOMING, homing((sys.executable, "-m", "router.cli")))]
    if program is not None or COMPILED_DEFAULT.exists():
        arms.append(compiled(program or COMPILED_DEFAULT))
    others = {arm.name: arm for arm in found()} | {arm.name: arm for arm in map(given, peers)}
    arms += others.values()
    unknown = set(only) - {arm.name for arm in arms}
    if unknown:
        here = ", ".join(arm.name for arm in arms)
        raise ArmError(f"--only {', '.join(sorted(unknown))}: not found here; there are {here}")
    return [arm for arm in arms if not only or arm.name in only]
