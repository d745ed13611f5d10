"""What the admin port answers."""

import asyncio
import io
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer, make_mocked_request

from router.admin import api, checks, report
from router.admin.api import MAX_EXPLAINED, PATHS, Admin, Rights
from router.admin.checks import Check
from router.admin.metrics import CATALOGUE
from router.admin.recording import Lines, Recording
from router.admin.tally import Tally
from router.core.fleet import Fleet
from router.core.policy import PrefixAffinity
from router.core.shadow import Counts, Side
from router.core.types import EngineSample, State
from tests.admin.making import MODEL, OPENMETRICS, fleet_of, metrics_of, report_of, reports_of

Client = TestClient[Any, Any]

TOKEN = "t0ken"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
DRAINED = {"replica": "r1", "state": "draining", "requests": 3}
MUTATIONS = ("/reload", "/drain?replica=r1", "/undrain?replica=r1", "/record")


class Port:
    """An admin port over a fleet of two, and the router that it acts on; `open` is what its listener says."""

    def __init__(self) -> None:
        self.fleet: Fleet = fleet_of(2)
        self.open = self.answers = True
        self.rights = Rights(token=TOKEN)
        self.refreshed = 0
        self.explained: list[tuple[str, bytes]] = []
        self.explanation = b'{"decision": "route"}'
        self.reloads = 0
        self.reloaded: tuple[bool, dict[str, Any]] = (True, {"changed": ["a 1 -> 2"], "needs_restart": []})
        self.drains: list[tuple[str, bool]] = []
        self.shadow: Counts | None = None
        self.recording: Recording | None = None

    async def refresh(self) -> None:
        self.refreshed += 1

    async def explain(self, path: str, body: bytes) -> bytes | None:
        self.explained.append((path, body))
        return self.explanation if self.answers else None

    async def reload(self) -> tuple[bool, dict[str, Any]]:
        self.reloads += 1
        return self.reloaded

    def drain(self, replica: str, drained: bool) -> dict[str, Any] | None:
        self.drains.append((replica, drained))
        return {"replica": replica, "state": "draining", "requests": 3} if replica in {"r0", "r1"} else None

    def record(self) -> Recording | None:
        if self.recording is not None and not self.recording.ended:
            return None
        self.recording = Recording(Lines(512, 1_000, lambda _: 0.25, 0.0), 0.0)
        return self.recording

    def recorded(self, recording: Recording) -> None:
        recording.end()

    def admin(self) -> Admin:
        reports = reports_of(report_of(queued={MODEL: 3}))
        return Admin(
            self.fleet,
            metrics_of(self.fleet, Tally(self.fleet, 200), reports=reports),
            reports,
            self,
            lambda: "prefix_affinity",
            lambda: 1,
            lambda: self.rights,
            lambda: self.shadow,
            (Check("listener", lambda: None if self.open else "the clients' port is not open"),),
            (checks.replicas(self.fleet, lambda: 2),),
            lambda: 10.0,
        )


@pytest.fixture
def port() -> Port:
    return Port()


@pytest.fixture
async def client(port: Port) -> AsyncIterator[Client]:
    async with TestClient(TestServer(api.make(port.admin()))) as client:
        yield client


async def test_livez_depends_on_nothing(client: Client, port: Port) -> None:
    port.open = False
    port.fleet.mark("r0", State.DOWN, "test", 0.0)
    async with client.get("/livez") as response:
        assert (response.status, await response.text()) == (200, "ok")


async def test_startupz_waits_for_the_listener_and_not_for_replicas(client: Client, port: Port) -> None:
    port.fleet.mark("r0", State.DOWN, "test", 0.0)
    async with client.get("/startupz") as response:
        assert response.status == 200
    port.open = False
    async with client.get("/startupz") as response:
        assert response.status == 503


async def test_readyz_is_ok_in_one_word_or_lists_its_checks(client: Client) -> None:
    async with client.get("/readyz") as response:
        assert (response.status, await response.text()) == (200, "ok")
    async with client.get("/readyz?verbose") as response:
        assert await response.text() == "[+]listener ok\n[+]replicas ok\nreadyz check passed\n"


async def test_readyz_that_fails_says_what_even_when_not_asked(client: Client, port: Port) -> None:
    port.fleet.mark("r0", State.DOWN, "test", 0.0)
    async with client.get("/readyz") as response:
        assert response.status == 503
        assert await response.text() == (
            "[+]listener ok\n[-]replicas failed: 1 of 2 are ready, 2 wanted\nreadyz check failed\n"
        )


async def test_with_no_least_number_a_router_without_replicas_is_ready() -> None:
    fleet = Fleet(PrefixAffinity())
    assert checks.verdict("readyz", [checks.replicas(fleet, lambda: 0)], verbose=False) == (True, "ok")
    assert not checks.verdict("readyz", [checks.replicas(fleet, lambda: 1)], verbose=False)[0]


async def test_fleet_has_the_schema_that_tools_rely_on(client: Client, port: Port) -> None:
    port.fleet.sampled("r1", EngineSample(8.5, 4, 1, 0.25))
    async with client.get("/fleet") as response:
        told = await response.json()
    first, second = told.pop("replicas")
    assert told == {
        "policy": "prefix_affinity",
        "workers": 1,
        "models": {MODEL: {"ready": 2, "replicas": 2, "queued": 3}},
        "residency": {"blocks": 0, "evictions": 0},
        "shadow": None,
    }
    assert first == {
        "id": "r0", "state": "ready", "reason": "test", "since_seconds": 10.0, "models": [MODEL], "model": MODEL,
        "requests": 0, "without_first_token": 0, "backlog_tokens": 0, "context_tokens": 0, "kv_tokens": 400_000,
        "resident_blocks": 0, "prefill_tokens_per_second": None, "step_seconds": 0.006, "engine": None,
    }  # fmt: skip
    assert second["engine"] == {"running": 4, "waiting": 1, "kv_cache_usage_ratio": 0.25, "age_seconds": 1.5}


async def test_fleet_tells_how_the_shadow_would_have_done(client: Client, port: Port) -> None:
    port.shadow = shadow_of()
    async with client.get("/fleet") as response:
        told = (await response.json())["shadow"]
    assert told == {
        "policy": "round_robin", "asks": 200, "same": 26, "prompt_tokens": 1000, "live_cached_tokens": 780,
        "shadow_cached_tokens": 410,
    }  # fmt: skip
    assert all(f"`{key}`" in (report.__doc__ or "") for key in told)


def shadow_of() -> Counts:
    """A shadow of 200 asks, 26 of which went to the same replica; it hit 41 % against 78 %."""
    counts = Counts("round_robin")
    counts.same, counts.other, counts.nowhere, counts.prompt_tokens = 26, 170, 4, 1000
    counts.live, counts.shadow = Side(780), Side(410)
    return counts


async def test_fleet_documents_each_of_its_keys(client: Client) -> None:
    async with client.get("/fleet") as response:
        told = await response.json()
    documented = report.__doc__ or ""
    assert all(f"| {key} |" in documented for key in told)
    assert all(f".{key}" in documented for key in told["replicas"][0])


async def test_metrics_come_in_the_format_that_was_asked_for(client: Client) -> None:
    async with client.get("/metrics", headers={"Accept": OPENMETRICS}) as response:
        assert response.content_type == "application/openmetrics-text"
        assert (await response.text()).endswith("# EOF\n")
    async with client.get("/metrics") as response:
        assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        assert "# EOF" not in await response.text()


async def test_requests_go_on_while_a_scrape_is_rendered(port: Port) -> None:
    """CASES A31, in turns of the loop rather than in seconds, which depend on the machine."""
    request = make_mocked_request("GET", "/metrics", app=api.make(port.admin()))
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(others())
    await api.metrics(request)
    task.cancel()
    assert turns >= len(CATALOGUE)


async def test_the_index_and_a_404_list_what_there_is(client: Client) -> None:
    async with client.get("/") as response:
        index = await response.text()
    assert [line.split()[0] for line in index.splitlines()] == list(PATHS)
    async with client.get("/metrix") as response:
        assert response.status == 404
        assert await response.json() == {"error": {"message": "no /metrix here", "paths": list(PATHS)}}
    for path in PATHS:
        async with client.get(path) as response:
            assert response.status in (200, 405)


READS = ("/livez", "/startupz", "/readyz", "/fleet", "/metrics")


@pytest.mark.parametrize("path", READS)
async def test_what_only_tells_takes_no_post(client: Client, path: str) -> None:
    async with client.post(path) as response:
        assert response.status == 405
        assert response.headers["Allow"] == "GET,HEAD"
        assert "error" in await response.json()


async def test_a_get_of_explain_is_told_to_post(client: Client, port: Port) -> None:
    async with client.get("/explain") as response:
        assert (response.status, response.headers["Allow"]) == (405, "POST")
    assert port.explained == []


async def test_explain_hands_over_path_and_body_as_they_came(client: Client, port: Port) -> None:
    async with client.post("/explain", data=b'{"model": 1') as response:
        assert await response.json() == {"decision": "route"}
    async with client.post("/explain?path=/v1/messages", data=b"") as response:
        assert response.status == 200
    assert port.explained == [("/v1/chat/completions", b'{"model": 1'), ("/v1/messages", b"")]


async def test_explain_refuses_a_path_that_is_none_and_a_body_without_end(client: Client, port: Port) -> None:
    async with client.post("/explain?path=v1", data=b"{}") as response:
        assert response.status == 400
        assert "v1" in (await response.json())["error"]["message"]
    async with client.post("/explain", data=io.BytesIO(bytes(MAX_EXPLAINED + 1))) as response:
        assert response.status == 413
        assert json.loads(await response.text())["error"]["message"] == f"a body here is at most {MAX_EXPLAINED} bytes"
    assert port.explained == []


async def test_explain_without_a_worker_that_answers_says_so(client: Client, port: Port) -> None:
    port.answers = False
    async with client.post("/explain", data=b"{}") as response:
        assert response.status == 504


@pytest.mark.parametrize("path", ["/fleet", "/metrics"])
async def test_load_and_counts_are_asked_of_the_workers_before_they_are_told(
    client: Client, port: Port, path: str
) -> None:
    async with client.get(path) as response:
        assert (response.status, port.refreshed) == (200, 1)


@pytest.mark.parametrize("path", MUTATIONS)
async def test_a_get_changes_nothing(client: Client, port: Port, path: str) -> None:
    async with client.get(path, headers=BEARER) as response:
        assert (response.status, response.headers["Allow"]) == (405, "POST")
    assert (port.reloads, port.drains) == (0, [])


@pytest.mark.parametrize("path", MUTATIONS)
@pytest.mark.parametrize(
    ("rights", "status", "says"),
    [
        (Rights(token=None), 403, "admin.token_file is not set"),
        (Rights(mutations=False, token=TOKEN), 403, "admin.mutations is false"),
    ],
)
async def test_without_a_token_or_where_it_is_not_wanted_nothing_can_be_changed(
    client: Client, port: Port, path: str, rights: Rights, status: int, says: str
) -> None:
    port.rights = rights
    async with client.post(path, headers=BEARER) as response:
        assert response.status == status
        assert says in (await response.json())["error"]["message"]
    assert (port.reloads, port.drains) == (0, [])


@pytest.mark.parametrize("path", MUTATIONS)
@pytest.mark.parametrize("told", [None, "", "Bearer", "Bearer no", f"Basic {TOKEN}", TOKEN, "Bearer t0ken\xe9"])
async def test_another_token_than_the_right_one_changes_nothing(
    client: Client, port: Port, path: str, told: str | None
) -> None:
    headers = {} if told is None else {"Authorization": told}
    async with client.post(path, headers=headers) as response:
        assert (response.status, response.headers["WWW-Authenticate"]) == (401, "Bearer")
        assert TOKEN not in await response.text()
    assert (port.reloads, port.drains) == (0, [])


@pytest.mark.parametrize("scheme", ["Bearer", "bearer"])
async def test_a_reload_answers_what_has_changed_or_what_is_wrong(client: Client, port: Port, scheme: str) -> None:
    async with client.post("/reload", headers={"Authorization": f"{scheme} {TOKEN}"}) as response:
        assert (response.status, await response.json()) == (200, port.reloaded[1])
    port.reloaded = (False, {"errors": 1})
    async with client.post("/reload", headers=BEARER) as response:
        assert (response.status, await response.json()) == (422, {"errors": 1})


async def test_a_replica_is_drained_and_undrained_by_its_name(client: Client, port: Port) -> None:
    for path in ("/drain", "/undrain"):
        async with client.post(f"{path}?replica=r1", headers=BEARER) as response:
            assert (response.status, await response.json()) == (200, DRAINED)
        async with client.post(path, headers=BEARER) as response:
            assert response.status == 400
        async with client.post(f"{path}?replica=r9", headers=BEARER) as response:
            assert (response.status, (await response.json())["error"]["replicas"]) == (404, ["r0", "r1"])
    assert port.drains == [("r1", True), ("r9", True), ("r1", False), ("r9", False)]


@pytest.mark.parametrize("token", [b"wrong", b"\xff\xfe", b"", "t0kén".encode()], ids=repr)
async def test_a_token_of_any_bytes_is_compared_and_none_is_an_error_of_ours(port: Port, token: bytes) -> None:
    async with TestServer(api.make(port.admin())) as server:
        reader, writer = await asyncio.open_connection(server.host, server.port)
        writer.write(
            b"POST /reload HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer %b\r\n\r\n" % token
        )
        assert (await reader.read()).startswith(b"HTTP/1.1 401 ")
        writer.close()
    assert port.reloads == 0


async def test_a_client_that_leaves_amid_its_body_is_no_error_of_ours(
    port: Port, caplog: pytest.LogCaptureFixture
) -> None:
    async with TestServer(api.make(port.admin())) as server:
        _, writer = await asyncio.open_connection(server.host, server.port)
        writer.write(b"POST /explain HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{")
        await writer.drain()
        await asyncio.sleep(0.05)  # The body is awaited.
        writer.transport.abort()
        await asyncio.sleep(0.05)
    assert port.explained == []
    assert caplog.records == []


async def test_a_body_that_does_not_come_is_not_waited_for_and_the_next_one_is_read_then(
    client: Client, port: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "BODY_SECONDS", 0.2)
    reader, writer = await asyncio.open_connection(client.host, client.port)
    writer.write(b"POST /explain HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{")
    await writer.drain()
    await asyncio.sleep(0.05)  # It has its turn.
    async with client.post("/explain", data=b"{}") as response:
        assert response.status == 200
    assert (await reader.readline()).startswith(b"HTTP/1.1 408 ")
    writer.close()
    assert [body for _, body in port.explained] == [b"{}"]
