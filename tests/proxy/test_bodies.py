"""What a client sends reaches the replica as it came, and what the replica sends reaches the client as it came."""

import asyncio
from hashlib import sha256
from random import Random

import aiohttp
import pytest

from replica.server import SimulatedReplica
from replica.settings import ReplicaSettings
from tests.browser import asked, chat, connected, get, post
from tests.rig import routing, scripted
from tests.scripted import Call, Script, chunks, whole

BODIES = {
    "unusual json": b'  {"model" : "sim","messages":[ {"content":"\\u00e4\\/", "role":"user"}],"model":"sim",\n'
    b'"return_token_ids":true,"chat_template_kwargs":{"x":1} }\r\n',
    "no json": b"{{{",
    "another form": b'{"model":"sim","messages":"text"}',
    "an unknown role": b'{"model":"sim","messages":[{"role":"latest_reminder"}],"tools":[{"type":"function"}]}',
    "every byte": bytes(range(256)) * 17,
    "nothing": b"",
    "5 MB": b'{"model":"sim","messages":[{"role":"user","content":"' + b"long " * 1_000_000 + b'"}]}',
}


def pieces(data: bytes, rng: Random) -> list[bytes]:
    found = []
    while data:
        size = rng.choice([1, 7, 100, 5_000, 70_000])
        found.append(data[:size])
        data = data[size:]
    return found


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/anything"])
@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
async def test_a_body_reaches_the_replica_byte_for_byte(body: bytes, path: str) -> None:
    async with scripted(whole()) as (rig, [replica]):
        assert (await asked(rig, post(path, body))).status == 200
        assert sha256(replica.calls[0].body).digest() == sha256(body).digest()
        assert replica.calls[0].field("content-length") == str(len(body))


async def test_a_body_sent_in_pieces_and_in_chunks_is_the_same_body() -> None:
    rng = Random(3)
    body = rng.randbytes(400_000)
    async with scripted(whole()) as (rig, [replica]), connected(rig) as client:
        for piece in pieces(post("/v1/anything", body), rng):
            await client.send(piece)
        assert (await client.answer()).status == 200
        await client.send(b"POST /v1/anything HTTP/1.1\r\nHost: homing\r\nTransfer-Encoding: chunked\r\n\r\n")
        for piece in pieces(body, rng):
            await client.send(b"%x\r\n%b\r\n" % (len(piece), piece))
        assert (await client.asks(b"0\r\nX-Trailer: 1\r\n\r\n")).status == 200
        assert [call.body == body for call in replica.calls] == [True, True]


@pytest.mark.parametrize("size", [0, 1, 65_536, 3_000_000])
async def test_an_answer_reaches_the_client_byte_for_byte(size: int) -> None:
    body = Random(size).randbytes(size)
    async with scripted(whole(body)) as (rig, _):
        answer = await asked(rig, chat())
        assert (answer.whole, answer["content-length"]) == (True, str(size))
        assert sha256(answer.body).digest() == sha256(body).digest()


@pytest.mark.parametrize("seed", range(3))
async def test_a_stream_reaches_the_client_chunk_for_chunk(seed: int) -> None:
    """The framing passes through as well: a chunk of the engine's is a chunk of the client's."""
    rng = Random(seed)
    sent = [rng.randbytes(rng.choice([1, 50, 300, 9_000, 100_000])) for _ in range(60)]
    framed = b"".join([b"%x\r\n%b\r\n" % (len(piece), piece) for piece in sent]) + b"0\r\n\r\n"
    async with scripted(chunks(*sent, gap=0.001)) as (rig, _), connected(rig) as client:
        await client.send(chat(stream=True))
        data = b""
        while not data.endswith(b"0\r\n\r\n"):
            data += await client.read()
        assert data.partition(b"\r\n\r\n")[2] == framed


async def test_a_stream_arrives_as_it_is_made_and_not_at_its_end() -> None:
    first_chunk = asyncio.Event()

    async def slow(call: Call) -> None:
        await call.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n")
        await first_chunk.wait()
        await call.send(b"3\r\ntwo\r\n0\r\n\r\n")

    async with scripted(slow) as (rig, _), connected(rig) as client:
        await client.send(chat(stream=True))
        data = b""
        while not data.endswith(b"one\r\n"):
            data += await client.read()
        first_chunk.set()
        while not data.endswith(b"0\r\n\r\n"):
            data += await client.read()
        assert b"two" in data


# Heads.


async def test_fields_go_both_ways_as_they_came_but_for_those_of_one_hop() -> None:
    fields = [b"Server: uvicorn", b"Date: now", b"Set-Cookie: a=1", b"set-cookie: b=2", b"X-Custom: \xe4", b"ETag: 1"]
    hop = [b"Connection: keep-alive, X-Own", b"X-Own: 1", b"Keep-Alive: timeout=5", b"Trailer: X"]
    async with scripted(whole(b"ok", 200, *fields, *hop)) as (rig, [replica]):
        theirs = ["Authorization: Bearer secret", "X-Tenant: t", "X-Tenant: u", "Accept-Encoding: br"]
        answer = await asked(rig, chat("hello", *theirs, "Connection: X-Private", "X-Private: 1", "TE: trailers"))
        [call] = replica.calls
        ours = {"host", "content-length", "x-request-id", "x-forwarded-for", "x-forwarded-proto", "via"}
        got = [f"{name}: {value}" for name, value in call.fields if name not in ours]
        assert [field.lower() for field in got] == [field.lower() for field in theirs]
        assert (call.field("host"), call.field("x-private")) == (f"127.0.0.1:{replica.port}", None)
        assert call.field("x-request-id") == answer["x-homing-request-id"]
        assert answer.all("server") == ["uvicorn"]
        assert answer.all("date") == ["now"]
        assert answer.all("set-cookie") == ["a=1", "b=2"]
        assert (answer["x-custom"], answer["etag"]) == ("\xe4", "1")
        for name in ("connection", "x-own", "keep-alive", "trailer", "transfer-encoding"):
            assert answer.all(name) == []
        assert (answer.replica, answer["x-homing-reason"]) == ("r1", "only")
        assert int(answer["x-homing-predicted-cached-tokens"]) >= 0


async def test_a_clients_own_request_id_is_kept() -> None:
    async with scripted(whole()) as (rig, [replica]):
        answer = await asked(rig, chat("hello", "X-Request-Id: mine-\xe4"))
        assert answer["x-homing-request-id"] == "mine-\xe4"
        assert replica.calls[0].field("x-request-id") == "mine-\xe4"
        assert rig.record.request_id == "mine-\xe4"


async def test_a_query_reaches_the_replica_as_it_is() -> None:
    async with scripted(whole()) as (rig, [replica]):
        await asked(rig, post("/v1/chat/completions?api-version=1&x=%2F", b"{}"))
        assert replica.calls[0].target == "/v1/chat/completions?api-version=1&x=%2F"


HEAD_ONLY = b"HTTP/1.1 200 OK\r\nContent-Length: 12\r\nX-Size: 12\r\n\r\n"


@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE", "PUT", "PATCH", "OPTIONS"])
async def test_any_method_reaches_the_replica(method: str) -> None:
    async def script(call: Call) -> None:
        await (call.send(HEAD_ONLY) if call.method == "HEAD" else whole(b"hello, world")(call))

    async with scripted(script) as (rig, [replica]), connected(rig) as client:
        for _ in range(2):
            answer = await client.asks(get("/v1/anything", method=method), method)
            assert (answer.status, answer["content-length"]) == (200, "12")
            assert answer.body == (b"" if method == "HEAD" else b"hello, world")
        assert [call.method for call in replica.calls] == [method] * 2


@pytest.mark.parametrize("status", [204, 304])
async def test_an_answer_without_a_body_keeps_the_connection(status: int) -> None:
    async def script(call: Call) -> None:
        await call.send(b"HTTP/1.1 %d X\r\nETag: 1\r\n\r\n" % status)

    async with scripted(script) as (rig, _), connected(rig) as client:
        for _ in range(2):
            answer = await client.asks(get("/v1/anything"), "GET")
            assert (answer.status, answer["etag"], answer.whole) == (status, "1", True)


def unframed(version: bytes) -> Script:
    async def script(call: Call) -> None:
        await call.send(b"HTTP/%b 200 OK\r\n\r\nhello" % version)
        call.close()

    return script


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
async def test_an_answer_that_ends_with_its_connection_has_an_end_for_the_client(version: bytes) -> None:
    async with scripted(unframed(version)) as (rig, _), connected(rig) as client:
        for _ in range(2):
            answer = await client.asks(chat())
            assert (answer.body, answer.whole, answer["transfer-encoding"]) == (b"hello", True, "chunked")


async def test_a_client_of_http_1_0_gets_a_stream_without_chunks() -> None:
    async with scripted(chunks(b"one", b"two")) as (rig, _), connected(rig) as client:
        body = b'{"model":"sim","stream":true}'
        await client.send(b"POST /v1/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        data = b""
        while more := await client.read():
            data += more
        head, _, rest = data.partition(b"\r\n\r\n")
        assert (rest, b"chunked" in head) == (b"onetwo", False)


async def test_interim_answers_stay_here() -> None:
    async def script(call: Call) -> None:
        await call.send(b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n")
        await whole(b"ok")(call)

    async with scripted(script) as (rig, _):
        answer = await asked(rig, chat())
        assert (answer.status, answer.body, answer.all("link")) == (200, b"ok", [])


# With a replica that understands what it gets.


async def test_an_engines_own_400_is_relayed_and_no_body_makes_the_router_fail() -> None:
    settings = ReplicaSettings(speed=200, keep_requests=100)
    async with SimulatedReplica(settings) as replica, routing({"r1": replica}) as rig, connected(rig) as client:
        for body in (*BODIES.values(), b"[" * 100_000, b'{"a":' * 100_000, b"null", b'{"messages":[]}'):
            answer = await client.asks(post("/v1/chat/completions", body))
            assert answer.whole
            assert answer.replica == "r1"
            seen = [request.body for request in replica.requests_seen if request.method == "POST"]
            assert seen[-1] == body
            assert answer.status in {200, 400, 404}, body[:80]
        assert {record.status for record in rig.records} >= {200, 400}
        assert all(record.attempts[0].error is None for record in rig.records)


async def test_bodies_of_requests_that_run_beside_each_other_are_not_mixed_up() -> None:
    rng = Random(5)
    bodies = [rng.randbytes(rng.randrange(200_000)) for _ in range(40)]

    async def echo(call: Call) -> None:
        await whole(sha256(call.body).hexdigest().encode())(call)

    async with scripted(echo, echo) as (rig, _), aiohttp.ClientSession(rig.url) as session:

        async def send(body: bytes) -> bytes:
            async with session.post("/v1/anything", data=body) as response:
                return await response.read()

        got = await asyncio.gather(*map(send, bodies))
        assert got == [sha256(body).hexdigest().encode() for body in bodies]


async def test_answers_on_one_connection_come_in_the_order_of_their_requests() -> None:
    """Each from the replica that served it, though the first takes longest."""
    waits = {"a": 0.05, "b": 0.0, "c": 0.02}

    async def script(call: Call) -> None:
        name = call.target[-1]
        await asyncio.sleep(waits[name])
        await whole(name.encode())(call)

    async with scripted(script, script) as (rig, _), connected(rig) as client:
        await client.send(b"".join(get(f"/v1/{name}") for name in "abcba"))
        assert [(await client.answer("GET")).body for _ in range(5)] == [b"a", b"b", b"c", b"b", b"a"]
