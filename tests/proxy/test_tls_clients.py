"""TLS for clients: who gets in, what the others get, and that everything is as it is without."""

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from router.core.record import HandshakeError, Phase
from router.core.types import Outcome
from tests.authority import Authority, Pair
from tests.browser import Answer, asked, chat, connected, get, passes_unchanged, post
from tests.rig import WITHIN, Rig, scripted, until
from tests.scripted import HOST, STREAM, Call, Script, ScriptedReplica, backwards, chunks, hang, sent, whole

BIG = 30_000_000


def section(pair: Pair, **more: Any) -> dict[str, Any]:
    """The settings `tls` with this certificate."""
    return {"certificate_file": str(pair.certificate), "key_file": str(pair.key), **more}


@asynccontextmanager
async def secured(
    authority: Authority, *scripts: Script, tls: dict[str, Any] | None = None, **settings: Any
) -> AsyncIterator[tuple[Rig, list[ScriptedReplica]]]:
    """As `scripted`, and clients speak TLS."""
    async with scripted(*scripts, tls=section(authority.pair(), **tls or {}), **settings) as (rig, replicas):
        rig.tls = authority.trusting()
        yield rig, replicas


def failed(rig: Rig) -> dict[HandshakeError, int]:
    """Handshakes that failed, as the supervisor counts them."""
    return {error: count for error, count in rig.control.tally.handshakes.items() if count}


async def counted(rig: Rig, error: HandshakeError, times: int = 1) -> None:
    """Wait until failures of this kind are counted, and see that nothing else is: neither they nor requests."""
    await until(lambda: failed(rig))
    assert (failed(rig), rig.records, len(rig.worker.clients)) == ({error: times}, [], 0)


@asynccontextmanager
async def raw(rig: Rig) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection without TLS."""
    reader, writer = await asyncio.open_connection(HOST, rig.port)
    try:
        yield reader, writer
    finally:
        writer.close()


async def ended(reader: asyncio.StreamReader) -> None:
    """Wait until the router closes, in whatever way, and see that it says nothing."""
    with contextlib.suppress(ConnectionResetError):
        assert await asyncio.wait_for(reader.read(), WITHIN) == b""


async def settled(value: Callable[[], int]) -> int:
    """The value when it has stopped growing."""
    seen = -1
    while seen < value():
        seen = value()
        await asyncio.sleep(0.2)
    return seen


async def test_a_client_is_answered_and_its_connection_knows_its_scheme(authority: Authority) -> None:
    async with secured(authority, whole(b"ok")) as (rig, [replica]):
        async with connected(rig) as client:
            for _ in range(3):
                answer = await client.asks(chat())
                assert (answer.status, answer.body, answer.whole) == (200, b"ok", True)
        assert replica.calls[0].field("x-forwarded-proto") == "https"
        assert (len(replica.calls), failed(rig)) == (3, {})


async def test_the_protocol_agreed_on_is_http_1_1(authority: Authority) -> None:
    async with secured(authority, whole()) as (rig, _):
        assert rig.tls is not None
        rig.tls.set_alpn_protocols(["h2", "http/1.1"])
        _, writer = await asyncio.open_connection(HOST, rig.port, ssl=rig.tls, server_hostname="localhost")
        assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == "http/1.1"
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize("least", ["TLSv1.2", "TLSv1.3"])
async def test_older_versions_than_the_least_one_are_refused(authority: Authority, least: str) -> None:
    async with secured(authority, whole(), tls={"min_version": least}) as (rig, _):
        assert rig.tls is not None
        rig.tls.maximum_version = ssl.TLSVersion.TLSv1_2
        if least == "TLSv1.2":
            assert (await asked(rig, chat())).status == 200
        else:
            with pytest.raises(ssl.SSLError):
                await asked(rig, chat())
            await counted(rig, HandshakeError.VERSION)


# Client certificates.


async def test_with_a_client_ca_who_has_a_certificate_is_served(authority: Authority) -> None:
    async with secured(authority, whole(), tls={"client_ca_file": str(authority.ca)}) as (rig, _):
        rig.tls = authority.trusting(authority.pair())
        assert (await asked(rig, chat())).status == 200


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize(
    ("shown", "error"),
    [
        ("none", HandshakeError.NO_CERTIFICATE),
        ("another's", HandshakeError.BAD_CERTIFICATE),
        ("expired", HandshakeError.BAD_CERTIFICATE),
    ],
)
async def test_and_who_has_none_or_another_is_not(
    authority: Authority, tmp_path: Path, version: ssl.TLSVersion, shown: str, error: HandshakeError
) -> None:
    async with secured(authority, whole(), tls={"client_ca_file": str(authority.ca)}) as (rig, [replica]):
        stranger = Authority(tmp_path, "stranger")
        pairs = {"none": None, "another's": stranger.pair(), "expired": authority.pair(days=-1)}
        rig.tls = authority.trusting(pairs[shown])
        rig.tls.maximum_version = version
        with pytest.raises(ssl.SSLError):  # In TLS 1.3 it shows only when the client reads.
            await refused(rig)
        await counted(rig, error)
        assert replica.calls == []


async def refused(rig: Rig) -> None:
    """Ask, and raise what the connection ends with."""
    reader, writer = await asyncio.open_connection(HOST, rig.port, ssl=rig.tls, server_hostname="localhost")
    try:
        writer.write(chat())
        assert await reader.read() == b""
    finally:
        writer.close()


# Who speaks no TLS, or breaks it off.


async def test_a_client_that_speaks_plain_http_is_told_so(authority: Authority) -> None:
    async with secured(authority, whole()) as (rig, [replica]):
        async with raw(rig) as (reader, writer):
            writer.write(chat())
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 ")
        assert b"content-length: %d\r\n" % len(body) in head
        assert b"https://" in body
        await counted(rig, HandshakeError.PLAIN_HTTP)
        assert replica.calls == []


async def test_noise_is_cut_off(authority: Authority) -> None:
    async with secured(authority, whole()) as (rig, _):
        async with raw(rig) as (reader, writer):
            writer.write(b"\x00" * 100)
            await asyncio.wait_for(reader.read(), WITHIN)
        await counted(rig, HandshakeError.OTHER)


@pytest.mark.parametrize("begun", [b"", b"\x16\x03\x01\x02\x00\x01"], ids=["silent", "slow"])
async def test_a_handshake_that_hangs_is_cut_off_in_time(authority: Authority, begun: bytes) -> None:
    async with (
        secured(authority, whole(), timeouts={"handshake": "100ms"}) as (rig, _),
        raw(rig) as (reader, writer),
    ):
        writer.write(begun)
        await ended(reader)
        await counted(rig, HandshakeError.TIMEOUT)


async def test_who_leaves_midway_is_counted_and_forgotten(authority: Authority) -> None:
    async with secured(authority, whole()) as (rig, _):
        async with raw(rig) as (_, writer):
            writer.write(b"\x16\x03\x01")
            await until(lambda: rig.worker.clients)
        await counted(rig, HandshakeError.CLOSED)


async def test_a_client_that_does_not_trust_the_certificate_is_counted(authority: Authority) -> None:
    async with secured(authority, whole()) as (rig, _):
        code, said = await curl("--data", "{}", f"https://localhost:{rig.port}/v1/anything")
        assert (code, b"certificate" in said) == (60, True)
        await counted(rig, HandshakeError.REFUSED)


async def test_handshakes_count_among_the_connections_and_one_too_many_is_told_so(authority: Authority) -> None:
    async with (
        secured(authority, whole(), limits={"connections": 2}) as (rig, _),
        raw(rig),
        connected(rig) as served,
    ):
        assert (await served.asks(chat())).status == 200
        async with connected(rig) as one_too_many:
            assert (await one_too_many.asks(chat())).status == 503
        assert (await served.asks(chat())).status == 200


async def test_and_far_too_many_are_closed_before_any_cryptography(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("router.proxy.entrance.EXCESS", 0)
    async with secured(authority, whole(), limits={"connections": 1}) as (rig, _), connected(rig) as served:
        with pytest.raises((ConnectionError, ssl.SSLError)):
            await asked(rig, chat())
        await until(lambda: failed(rig))
        assert failed(rig) == {HandshakeError.CONNECTIONS_FULL: 1}
        assert (await served.asks(chat())).status == 200


async def test_a_router_that_stops_does_not_wait_for_handshakes(authority: Authority) -> None:
    async with secured(authority, whole()) as (rig, _), raw(rig) as (reader, _), connected(rig) as idle:
        assert (await idle.asks(chat())).status == 200
        await until(lambda: len(rig.worker.clients) == 2)
        await asyncio.wait_for(rig.stop(), WITHIN)
        await ended(reader)
        assert await idle.closed()
        assert failed(rig) == {}


# As without.


async def test_big_bodies_pass_unchanged_both_ways(authority: Authority) -> None:
    async with secured(authority, backwards) as (rig, _):
        await passes_unchanged(rig, BIG)


async def test_a_client_that_leaves_a_stream_ends_it(authority: Authority) -> None:
    async with secured(authority, sent(STREAM + b"3\r\none\r\n")) as (rig, [replica]):
        async with connected(rig) as client:
            await client.send(chat(stream=True))
            data = b""
            while b"one" not in data:
                data += await client.read()
        await asyncio.wait_for(replica.calls[0].gone.wait(), 2.0)
        await rig.quiet()
        assert (rig.record.left, rig.record.attempts[0].settled.outcome) == (Phase.STREAMING, Outcome.ABORTED)


async def test_a_client_that_says_it_is_done_has_left(authority: Authority) -> None:
    """As one that shuts its writing side: close_notify comes before TCP's end, which waits for ours."""
    async with secured(authority, hang) as (rig, [replica]):
        _, writer = await asyncio.open_connection(HOST, rig.port, ssl=rig.tls, server_hostname="localhost")
        writer.write(chat())
        await until(lambda: replica.calls)
        writer.close()
        await asyncio.wait_for(replica.calls[0].gone.wait(), 2.0)
        await writer.wait_closed()


async def test_a_client_that_is_not_read_has_left_when_it_closes_half_whatever_is_let_without_tls(
    authority: Authority,
) -> None:
    async with secured(authority, hang, proxy={"half_close": True}) as (rig, [replica]), connected(rig) as client:
        await client.send(chat())
        await until(lambda: replica.calls)
        await client.send(post("/v1/anything", b"x" * 1_000_000)[:100_000])
        await until(lambda: not rig.client._transport.is_reading())
        with socket.socket(fileno=os.dup(client._writer.get_extra_info("socket").fileno())) as line:
            line.shutdown(socket.SHUT_WR)
        await asyncio.wait_for(replica.calls[0].gone.wait(), WITHIN)
        await rig.quiet()


async def test_a_client_that_reads_nothing_holds_its_replica_back_and_costs_little(authority: Authority) -> None:
    size = 50_000_000

    async def flood(call: Call) -> None:
        await call.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        for _ in range(size // 10_000):
            await call.send(b"x" * 10_000)

    async with secured(authority, flood) as (rig, [replica]), connected(rig, buffer=4096) as client:
        await client.send(chat(stream=True))
        await until(lambda: replica.calls and replica.calls[0].sent)
        assert await settled(lambda: replica.calls[0].sent) < 20_000_000  # What the kernels take, mostly.
        assert rig.client._transport.get_write_buffer_size() < 1 << 20
        answer = await client.answer()
        assert (answer.whole, len(answer.body)) == (True, size)


async def test_a_client_that_sends_its_whole_body_before_it_reads_sees_why_it_is_refused(authority: Authority) -> None:
    async with secured(authority, whole(), limits={"body": "1KiB"}) as (rig, _), connected(rig) as client:
        answer = await client.asks(post("/v1/anything", b"x" * 3_000_000))
        assert (answer.status, answer.whole) == (413, True)


async def test_streams_pass_and_end_well_or_visibly_badly(authority: Authority) -> None:
    async def breaks(call: Call) -> None:
        await call.send(STREAM + b"9\r\ndata: x\n\n\r\n")
        call.reset()

    good = chunks(*[b"data: %d\n\n" % number for number in range(50)], b"data: [DONE]\n\n", gap=0.001)
    async with secured(authority, good) as (rig, [replica]):
        answer = await asked(rig, chat(stream=True))
        assert (answer.whole, answer.body.count(b"data: ")) == (True, 51)
        replica.script = breaks
        answer = await asked(rig, chat(stream=True))
        assert (answer.whole, b"replica_lost" in answer.body) == (False, True)


async def test_pipelined_requests_are_answered_in_order(authority: Authority) -> None:
    async def echo(call: Call) -> None:
        await whole(call.target.encode())(call)

    async with secured(authority, echo) as (rig, _), connected(rig) as client:
        await client.send(b"".join(get(f"/v1/{number}") for number in range(20)))
        answers: list[Answer] = [await client.answer("GET") for _ in range(20)]
        assert [answer.body for answer in answers] == [b"/v1/%d" % number for number in range(20)]


async def curl(*arguments: str) -> tuple[int, bytes]:
    process = await asyncio.create_subprocess_exec(
        "curl", "--silent", "--show-error", *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await asyncio.wait_for(process.communicate(), 4 * WITHIN)
    return process.returncode or 0, output


async def test_curl_is_served_and_minds_whom_it_talks_to(authority: Authority) -> None:
    async with secured(authority, chunks(b"data: one\n\n", b"data: [DONE]\n\n")) as (rig, _):
        url = f"https://localhost:{rig.port}/v1/chat/completions"
        asking = ("--cacert", str(authority.ca), "--data", '{"model": "sim", "stream": true, "messages": []}')
        assert await curl(*asking, url) == (0, b"data: one\n\ndata: [DONE]\n\n")
        other = url.replace("localhost", "elsewhere.example")
        code, said = await curl(*asking, "--resolve", f"elsewhere.example:{rig.port}:127.0.0.1", other)
        assert (code, b"certificate" in said) == (60, True)
