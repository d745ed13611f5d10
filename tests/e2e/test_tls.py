"""Certificates as operators deal with them: replaced while streams run, wrong ones refused, kept over new processes."""

import asyncio
import os
import shutil
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest

from tests.authority import Authority, Pair
from tests.e2e.supervised import (
    WITHIN,
    Crewed,
    Engine,
    Face,
    Router,
    crewed,
    eventually,
    finished,
    listed,
    streaming,
    supervised,
)
from tests.rig import until
from tests.scripted import ScriptedReplica

DAY = 86_400.0
SECTION = {"certificate_file": "tls.crt", "key_file": "tls.key"}
CHANGED = [f"tls.{name} (its content) *** -> ***" for name in SECTION]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def put(pair: Pair, directory: Path) -> str:
    """Make it the router's, in place, as what renews certificates does. The answer is its serial number."""
    shutil.copy(pair.certificate, directory / "tls.crt")
    shutil.copy(pair.key, directory / "tls.key")
    return pair.serial


@asynccontextmanager
async def secured(
    directory: Path, authority: Authority, engine: Engine, **settings: Any
) -> AsyncIterator[tuple[Crewed, list[ScriptedReplica]]]:
    """Two workers that speak TLS with clients."""
    put(authority.pair(), directory)
    async with crewed(directory, engine, tls=SECTION, **settings) as (router, replicas):
        router.tls = authority.trusting()
        yield router, replicas


async def shown(router: Face) -> str:
    """The serial number of the certificate that a new connection gets."""
    parts = urlsplit(router.url)
    _, writer = await asyncio.open_connection(parts.hostname, parts.port, ssl=router.tls)
    try:
        return str(writer.get_extra_info("peercert")["serialNumber"])
    finally:
        writer.close()
        await writer.wait_closed()


async def all_shown(router: Face, connections: int = 12) -> set[str]:
    """Of so many new connections, which the kernel spreads over the workers."""
    return {await shown(router) for _ in range(connections)}


async def test_a_reload_replaces_the_certificate_and_touches_no_stream(
    tmp_path: Path, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="homing")
    engine = Engine()
    async with secured(tmp_path, authority, engine) as (router, _):
        [first] = await all_shown(router)
        streams = await streaming(router, 50)
        second = put(authority.pair(days=60), tmp_path)
        assert await all_shown(router) == {first}
        assert await router.post("/reload") == (200, {"changed": CHANGED, "needs_restart": []})
        assert await all_shown(router) == {second}
        assert await router.metric("homing_tls_certificate_expiry_timestamp_seconds") == pytest.approx(
            time.time() + 60 * DAY, abs=DAY
        )
        assert not any(stream.task.done() for stream in streams)
        assert sum((await router.requests()).values()) == 50
        engine.end()
        await finished(streams)
        assert all(stream.whole for stream in streams)
        assert (await router.post("/reload"))[1]["changed"] == []
    assert "PRIVATE" not in caplog.text


@pytest.mark.parametrize(
    ("broken", "code"),
    [("tls.key", "H142"), ("tls.crt", "H142"), ("nothing", "H140"), ("torn", "H141")],
)
async def test_a_pair_that_is_none_is_refused_and_the_old_one_stays(
    tmp_path: Path, authority: Authority, broken: str, code: str
) -> None:
    """Half of a renewal, above all."""
    async with secured(tmp_path, authority, Engine()) as (router, _):
        before = await all_shown(router)
        other = authority.pair()
        if broken == "tls.key":
            shutil.copy(other.key, tmp_path / "tls.key")
        elif broken == "tls.crt":
            shutil.copy(other.certificate, tmp_path / "tls.crt")
        elif broken == "nothing":
            (tmp_path / "tls.crt").unlink()
        else:
            (tmp_path / "tls.crt").write_text("-----BEGIN CERTIFICATE-----")
        status, told = await router.post("/reload")
        assert (status, [found["code"] for found in told["diagnostics"]]) == (422, [code])
        assert await all_shown(router) == before
        assert await router.metric("homing_config_last_reload_successful") == 0
        after = put(other, tmp_path)
        assert (await router.post("/reload"))[0] == 200
        assert await all_shown(router) == {after}


async def test_tls_can_be_turned_on_and_off(tmp_path: Path, authority: Authority) -> None:
    put(authority.pair(), tmp_path)
    async with crewed(tmp_path, Engine()) as (router, _):
        plain = router.url
        async with router.client() as open_before:
            assert (await chat_over(open_before)) == 200
            router.write(tls=SECTION)
            assert (await router.post("/reload"))[0] == 200
            router.url, router.tls = plain.replace("http:", "https:"), authority.trusting()
            assert (await router.chat()).status == 200
            assert (await chat_over(open_before)) == 200  # Its connection goes on as it was.
            router.write(tls={})
            assert (await router.post("/reload"))[0] == 200
            with pytest.raises(aiohttp.ClientError):
                await router.chat()
            router.url, router.tls = plain, None
            assert (await router.chat()).status == 200


async def chat_over(session: aiohttp.ClientSession) -> int:
    async with session.post("/v1/anything", data=b"{}") as response:
        await response.read()
        return response.status


async def test_a_client_ca_that_a_reload_takes_away_lets_nobody_in_any_more(
    tmp_path: Path, authority: Authority
) -> None:
    """Not by a session that it had either."""
    other_home = tmp_path / "other"
    other_home.mkdir()
    other = Authority(other_home, "other")
    tls = SECTION | {"client_ca_file": "clients.pem"}
    put(authority.pair(), tmp_path)
    shutil.copy(authority.ca, tmp_path / "clients.pem")
    async with crewed(tmp_path, Engine(), tls=tls) as (router, _):
        router.tls = old = authority.trusting(authority.pair())
        assert (await router.chat()).status == 200
        shutil.copy(other.ca, tmp_path / "clients.pem")
        told = await router.post("/reload")
        assert told == (200, {"changed": ["tls.client_ca_file (its content) *** -> ***"], "needs_restart": []})
        router.tls = authority.trusting(other.pair())
        assert (await router.chat()).status == 200
        router.tls = old
        with pytest.raises(aiohttp.ClientError):
            await router.chat()


async def test_the_cas_of_replicas_are_replaced_without_breaking_streams(tmp_path: Path, authority: Authority) -> None:
    """A fleet that moves from one CA to another: the new replica is trusted once the bundle has both."""
    other_home = tmp_path / "other"
    other_home.mkdir()
    other = Authority(other_home, "other")
    shutil.copy(authority.ca, tmp_path / "cas.pem")
    engine = Engine()
    old, new = ScriptedReplica(engine, tls=authority.serving()), ScriptedReplica(engine, tls=other.serving())
    async with old, new, crewed(tmp_path, engine, tls={"replicas": {"ca_file": "cas.pem"}}) as (router, _):
        router.write(replicas=listed([old, new]))
        assert (await router.post("/reload"))[0] == 200
        await router.ready("r1")
        streams = await streaming(router, 5)
        await eventually(lambda: is_down(router, "r2"))
        with (tmp_path / "cas.pem").open("ab") as bundle:
            bundle.write("# Autorité de test\n".encode() + other.ca.read_bytes())
        assert (await router.post("/reload"))[1]["changed"] == ["tls.replicas.ca_file (its content) *** -> ***"]
        await router.ready("r1", "r2")
        router.write(replicas=listed([new], first=2))
        assert (await router.post("/reload"))[0] == 200
        assert (await router.chat()).headers["x-homing-replica"] == "r2"
        engine.end()
        await finished(streams)
        assert all(stream.whole for stream in streams)


async def test_a_new_certificate_for_clients_costs_no_idle_connection_to_a_replica(
    tmp_path: Path, authority: Authority
) -> None:
    shutil.copy(authority.ca, tmp_path / "ca.pem")
    put(authority.pair(), tmp_path)
    engine = Engine()
    tls = SECTION | {"replicas": {"ca_file": "ca.pem"}}
    async with ScriptedReplica(engine, tls=authority.serving()) as replica, crewed(tmp_path, engine, tls=tls) as crew:
        router = crew[0]
        router.tls = authority.trusting()
        router.write(replicas=listed([replica]))
        assert (await router.post("/reload"))[0] == 200
        await router.ready("r1")
        assert (await router.chat()).status == 200
        pools = [worker.pools["r1"] for worker in router.workers]
        assert sum(pool.idle for pool in pools) == 1
        put(authority.pair(), tmp_path)
        assert (await router.post("/reload"))[1]["changed"] == CHANGED
        assert sum(pool.idle for pool in pools) == 1
        with (tmp_path / "ca.pem").open("ab") as bundle:
            bundle.write(authority.pair().certificate.read_bytes())
        assert (await router.post("/reload"))[0] == 200
        assert sum(pool.idle for pool in pools) == 0


async def is_down(router: Face, replica: str) -> bool:
    found = (await router.fleet())["replicas"].get(replica)
    return found is not None and found["state"] == "down" and "tls.replicas.ca_file" in found["reason"]


# As processes.


async def test_a_worker_that_is_replaced_serves_with_what_was_valid_whatever_the_files_hold_now(
    tmp_path: Path, authority: Authority
) -> None:
    async with processes(tmp_path, authority, Engine()) as router:
        before = await all_shown(router, 2)
        (tmp_path / "tls.key").write_text("rubbish")
        router.signal(signal.SIGHUP)
        await router.said("H141")
        [worker] = router.workers()
        os.kill(worker, signal.SIGKILL)
        await until(lambda: router.workers() not in ([], [worker]), WITHIN)
        assert await all_shown(router, 2) == before
        assert (await router.chat()).status == 200


async def test_a_new_supervisor_takes_over_with_a_new_certificate_and_breaks_no_stream(
    tmp_path: Path, authority: Authority
) -> None:
    engine = Engine()
    async with processes(tmp_path, authority, engine) as router:
        streams = await streaming(router, 10)
        second = put(authority.pair(), tmp_path)
        router.signal(signal.SIGUSR2)
        await router.said("is to take over")
        await until(lambda: any(router.workers(pid) for pid in router.workers()), WITHIN)
        router.pid = next(pid for pid in router.workers() if router.workers(pid))
        await eventually(lambda: shows(router, second))
        assert (await router.chat()).status == 200
        engine.end()
        await finished(streams)
        assert all(stream.whole for stream in streams)
        assert await router.ended() == 0
        assert "PRIVATE" not in router.output()


async def shows(router: Face, serial: str) -> bool:
    return await all_shown(router, 4) == {serial}


@asynccontextmanager
async def processes(directory: Path, authority: Authority, engine: Engine) -> AsyncIterator[Router]:
    put(authority.pair(), directory)
    async with supervised(directory, engine, tls=SECTION) as (router, _):
        assert router.url.startswith("https:")
        router.tls = authority.trusting()
        yield router
