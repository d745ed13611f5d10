"""TLS to replicas: whom the router trusts, what it says when it does not, and that everything is as it is without."""

import asyncio
import contextlib
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from router.core.record import UpstreamError
from router.core.types import Outcome, State
from tests.authority import Authority
from tests.browser import asked, chat, connected, passes_unchanged
from tests.rig import WITHIN, Rig, routing, scripted, until
from tests.scripted import HOST, STREAM, Call, Script, ScriptedReplica, backwards, closing, hang, sent, whole

BIG = 30_000_000
SELDOM = {"interval": "60s"}


@asynccontextmanager
async def secured(
    authority: Authority, *scripts: Script, tls: dict[str, Any] | None = None, **settings: Any
) -> AsyncIterator[tuple[Rig, list[ScriptedReplica]]]:
    """As `scripted`, with replicas that speak TLS."""
    replicas = [ScriptedReplica(script, tls=authority.serving()) for script in scripts]
    trust = {"replicas": {"ca_file": str(authority.ca), **(tls or {})}}
    async with scripted(*replicas, tls=trust, **settings) as (rig, replicas):
        yield rig, replicas


@asynccontextmanager
async def distrusted(replica: ScriptedReplica | str, **tls: str) -> AsyncIterator[tuple[Rig, str]]:
    """A router that does not get to talk to this replica, and why, as operators are told."""
    async with routing({"r1": replica}, ready=False, tls={"replicas": tls}, health={"failures": 1}) as rig:
        await until(lambda: rig.state("r1") is State.DOWN)
        yield rig, rig.worker.fleet.replica("r1").reason
        assert (await asked(rig, chat())).status == 503


async def test_a_replica_is_spoken_to_by_tls(authority: Authority) -> None:
    async with secured(authority, whole(b"ok")) as (rig, [replica]):
        for _ in range(3):
            answer = await asked(rig, chat())
            assert (answer.status, answer.body) == (200, b"ok")
        assert [call.number for call in replica.calls] == [1, 2, 3]  # One connection.
        assert replica.calls[0].field("host") == f"{HOST}:{replica.port}"


async def test_plain_and_secure_replicas_serve_side_by_side(authority: Authority) -> None:
    plain, secure = ScriptedReplica(whole(b"plain")), ScriptedReplica(whole(b"secure"), tls=authority.serving())
    settings = {"tls": {"replicas": {"ca_file": str(authority.ca)}}, "routing": {"policy": "round_robin"}}
    async with scripted(plain, secure, **settings) as (rig, _):
        assert {(await asked(rig, chat())).body for _ in range(4)} == {b"plain", b"secure"}


async def test_a_replicas_own_certificate_can_be_trusted_without_a_ca(authority: Authority) -> None:
    pair = authority.pair()
    replica = ScriptedReplica(whole(), tls=authority.serving(pair))
    async with scripted(replica, tls={"replicas": {"ca_file": str(pair.certificate)}}) as (rig, _):
        assert (await asked(rig, chat())).status == 200


async def test_the_name_can_be_another_than_the_urls_host(authority: Authority) -> None:
    named: list[str | None] = []
    context = authority.serving(authority.pair("DNS:engine.example"))
    context.sni_callback = lambda _, name, __: named.append(name)
    replica = ScriptedReplica(whole(), tls=context)
    settings = {"ca_file": str(authority.ca), "server_name": "engine.example"}
    async with scripted(replica, tls={"replicas": settings}) as (rig, _):
        assert (await asked(rig, chat())).status == 200
        assert set(named) == {"engine.example"}


async def test_a_replica_that_asks_is_shown_the_routers_certificate(authority: Authority) -> None:
    ours = authority.pair()
    replica = ScriptedReplica(whole(), tls=authority.serving(asks=True))
    shown = {"certificate_file": str(ours.certificate), "key_file": str(ours.key)}
    async with scripted(replica, tls={"replicas": {"ca_file": str(authority.ca), **shown}}) as (rig, _):
        assert (await asked(rig, chat())).status == 200


# Distrust.


async def test_another_ca_than_the_configured_one_is_not_trusted(authority: Authority, tmp_path: Path) -> None:
    stranger = Authority(tmp_path, "stranger")
    async with (
        ScriptedReplica(whole(), tls=stranger.serving()) as replica,
        distrusted(replica, ca_file=str(authority.ca)) as (rig, why),
    ):
        assert "TLS fails: its certificate: " in why
        assert "tls.replicas.ca_file" in why
        assert rig.control.tally.replicas["r1"].probe_failures["tls"] > 0
        assert replica.calls == []


async def test_without_a_ca_file_only_the_systems_cas_are_trusted(authority: Authority) -> None:
    async with ScriptedReplica(whole(), tls=authority.serving()) as replica, distrusted(replica) as (_, why):
        assert "tls.replicas.ca_file" in why


@pytest.mark.parametrize(
    ("names", "days", "says"),
    [
        ("DNS:localhost,IP:127.0.0.1", -1, "certificate has expired (it must be renewed there)"),
        ("DNS:engine.example", 30, "tls.replicas.server_name"),
    ],
)
async def test_what_is_wrong_with_a_certificate_is_told(authority: Authority, names: str, days: int, says: str) -> None:
    async with (
        ScriptedReplica(whole(), tls=authority.serving(authority.pair(names, days))) as replica,
        distrusted(replica, ca_file=str(authority.ca)) as (_, why),
    ):
        assert says in why


@contextlib.contextmanager
def strict(context: ssl.SSLContext) -> Iterator[int]:
    """A server by OpenSSL's own calls: its alerts say why it refuses, which those of asyncio and uvloop forget to send.
    Yields its port."""

    def serve() -> None:
        while True:
            try:
                line, _ = listening.accept()
            except OSError:  # Closed.
                return
            line.settimeout(WITHIN)
            with context.wrap_socket(line, server_side=True, do_handshake_on_connect=False) as secure:
                with contextlib.suppress(OSError):
                    secure.do_handshake()
                with contextlib.suppress(OSError):  # Closing with something unread would destroy the alert.
                    while socket.socket.recv(secure, 65_536):
                        pass

    with socket.create_server((HOST, 0)) as listening:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_replica_that_wants_a_certificate_and_gets_none_is_told_of(
    authority: Authority, version: ssl.TLSVersion
) -> None:
    context = authority.serving(asks=True)
    context.maximum_version = version
    with strict(context) as port:
        async with distrusted(f"https://{HOST}:{port}", ca_file=str(authority.ca)) as (_, why):
            assert "TLS fails: " in why
            assert "tls.replicas.certificate_file" in why


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_and_one_that_does_not_say_so_is_asked_about(authority: Authority, version: ssl.TLSVersion) -> None:
    context = authority.serving(asks=True)
    context.maximum_version = version
    async with (
        ScriptedReplica(whole(), tls=context) as replica,
        distrusted(replica, ca_file=str(authority.ca)) as (_, why),
    ):
        assert "tls.replicas.certificate_file" in why


async def test_a_replica_that_speaks_no_tls_is_told_of(authority: Authority) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, HOST, 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with distrusted(f"https://{HOST}:{port}", ca_file=str(authority.ca)) as (_, why):
            assert "should its url begin with http://?" in why


async def test_requests_that_meet_distrust_go_elsewhere_and_the_log_says_why_once(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stranger = Authority(tmp_path, "stranger")
    async with secured(authority, whole(b"1"), whole(b"2"), health=SELDOM) as (rig, replicas):
        impostor, honest = replicas
        impostor.stop_listening()
        impostor.tls = stranger.serving()
        await impostor.listen()
        ends = [(await asked(rig, chat(f"{number}" * 600))).body for number in range(6)]
        assert set(ends) == {b"2"}
        errors = [attempt.error for record in rig.records for attempt in record.attempts if attempt.error]
        assert errors
        assert set(errors) == {UpstreamError.CONNECT}
        assert rig.state("r2") is State.READY
        assert len(honest.calls) == 6
        assert impostor.calls == []
    said = [record.getMessage() for record in caplog.records if "TLS fails" in record.getMessage()]
    assert len(said) == 1
    assert "tls.replicas.ca_file" in said[0]


async def test_a_replica_that_refuses_our_certificate_after_the_handshake_is_told_of_in_the_log(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    """TLS 1.3: the router's handshake is over before the replica has looked."""
    async with secured(authority, whole(), health=SELDOM) as (rig, [replica]):
        pool = rig.worker.pools["r1"]
        with strict(authority.serving(asks=True)) as port:
            pool.address = pool.address._replace(port=port)
            assert [(await asked(rig, chat())).status for _ in range(3)] == [502] * 3
        assert replica.calls == []
    assert caplog.text.count("tls.replicas.certificate_file") == 1


# As without.


async def test_big_bodies_pass_unchanged_both_ways(authority: Authority) -> None:
    async with secured(authority, backwards) as (rig, _):
        await passes_unchanged(rig, BIG)


async def test_a_client_that_leaves_ends_the_work_of_its_replica(authority: Authority) -> None:
    async with secured(authority, sent(STREAM + b"3\r\none\r\n")) as (rig, [replica]):
        async with connected(rig) as client:
            await client.send(chat(stream=True))
            await until(lambda: replica.calls)
        await asyncio.wait_for(replica.calls[0].gone.wait(), 2.0)
        await rig.quiet()
        assert rig.record.attempts[0].settled.outcome is Outcome.ABORTED


@pytest.mark.parametrize("said", [True, False], ids=["said", "cut"])
async def test_an_answer_that_ends_with_its_connection_is_whole_only_when_that_was_said(
    authority: Authority, said: bool
) -> None:
    """Whoever sits between can end a connection, and cannot say so in its cipher."""

    async def unframed(call: Call) -> None:
        await call.send(b"HTTP/1.1 200 OK\r\n\r\nall of it")
        if said:
            call.close()
        else:
            await asyncio.sleep(0.02)
            end_tcp(call)

    async with secured(authority, unframed) as (rig, _):
        answer = await asked(rig, chat())
        assert (answer.status, answer.body, answer.whole) == (200, b"all of it", said)


def end_tcp(call: Call) -> None:
    """Shut the connection below TLS."""
    line = call._line.transport.get_extra_info("socket")
    with socket.socket(fileno=socket.dup(line.fileno())) as own:
        own.shutdown(socket.SHUT_WR)


async def test_idle_connections_that_the_replica_closes_are_not_used(authority: Authority) -> None:
    async with secured(authority, whole()) as (rig, [replica]):
        for _ in range(3):
            assert (await asked(rig, chat())).status == 200
            pool = rig.worker.pools["r1"]
            for line in list(replica.connections):
                line.transport.close()
            await until(lambda: pool.open == 0)  # noqa: B023 - Asked at once.
        assert [record.status for record in rig.records] == [200] * 3
        assert {len(record.attempts) for record in rig.records} == {1}


async def test_the_keep_alive_race_is_no_failure(authority: Authority) -> None:
    async def script(call: Call) -> None:
        await (closing(hard=True) if call.number > 1 else whole())(call)

    async with secured(authority, script) as (rig, _):
        for _ in range(3):
            assert (await asked(rig, chat())).status == 200
        assert [attempt.settled.outcome for attempt in rig.record.attempts] == [Outcome.FAILED, Outcome.OK]
        assert rig.state("r1") is State.READY


async def test_a_dead_replicas_request_is_sent_again(authority: Authority) -> None:
    async with secured(authority, hang, hang, health=SELDOM) as (rig, replicas):
        request = asyncio.create_task(asked(rig, chat()))
        await until(lambda: any(replica.calls for replica in replicas))
        dying, heir = sorted(replicas, key=lambda replica: -len(replica.calls))
        heir.script = whole()
        dying.die()
        assert (await request).status == 200
        assert (dying.generated, len(heir.calls)) == (1, 1)


@contextlib.contextmanager
def mute(rig: Rig) -> Iterator[socket.socket]:
    """In the place of r1: takes connections, and says nothing to those who want to shake hands."""
    pool = rig.worker.pools["r1"]
    with socket.create_server((HOST, 0)) as listening:
        pool.address = pool.address._replace(port=listening.getsockname()[1])
        yield listening


async def test_a_handshake_that_hangs_is_a_connection_that_could_not_be_made(authority: Authority) -> None:
    async with secured(authority, whole(), health=SELDOM, timeouts={"connect": "100ms"}) as (rig, _):
        with mute(rig):
            assert (await asked(rig, chat())).status == 502
            assert {attempt.error for attempt in rig.record.attempts} == {UpstreamError.CONNECT}
        await rig.quiet()


async def test_a_client_that_leaves_during_a_handshake_leaves_no_connection(authority: Authority) -> None:
    async with secured(authority, whole(), health=SELDOM) as (rig, _):
        with mute(rig) as listening:
            async with connected(rig) as client:
                await client.send(chat())
                await until(lambda: rig.worker.proxy.tasks)
                listening.setblocking(False)
                accepted, _ = await asyncio.get_running_loop().sock_accept(listening)
            with accepted:
                await rig.quiet()
                with contextlib.suppress(ConnectionResetError):
                    while await asyncio.get_running_loop().sock_recv(accepted, 65_536):
                        pass  # The ClientHello, then the end.


@pytest.mark.parametrize("turns", range(8))
async def test_a_connection_that_is_given_up_at_any_turn_of_its_making_is_closed(
    authority: Authority, turns: int
) -> None:
    async with secured(authority, whole(), health=SELDOM) as (rig, [replica]):
        pool = rig.worker.pools["r1"]
        for _ in range(20):
            connecting = asyncio.create_task(pool.connect())
            for _ in range(turns):
                await asyncio.sleep(0)
            if connecting.done():
                connecting.result().abort()
            else:
                connecting.cancel()
            await asyncio.gather(connecting, return_exceptions=True)
        await until(lambda: pool.open == 0)
        await until(lambda: len(replica.connections) <= 1)  # The probes'.
