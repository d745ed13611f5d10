"""What the measurements of memory, of scrapes and of two workers make of what they see."""

import asyncio
import os
from pathlib import Path

import pytest
from aiohttp import web

from loadtests import scrape, soak, two_workers
from loadtests.meter import GoneError, resident_mb
from loadtests.paced import BROKEN, Answered, Paced
from loadtests.report import Arm, Distribution
from loadtests.scrape import Seconds, scraped, summarise, within_noise
from loadtests.soak import Memory, Soaked, unique
from loadtests.two_workers import Pair, hits, slower
from tests.sim.chat_server import serving

# The client at a steady rate.


async def test_a_request_goes_out_when_it_is_due_however_the_others_fare() -> None:
    bodies: list[bytes] = []
    over = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        bodies.append(await request.read())
        if len(bodies) == 10:
            over.set()
        await over.wait()  # Each of them waits for the last one to be sent.
        return web.Response(text="x" * 100_000)

    async with serving(answer) as url:
        client = Paced(int(url.rpartition(":")[2]), lambda number: b"%d" % number)
        answered = await client.run(rate=200.0, seconds=0.05)
        assert sorted(bodies) == [b"%d" % number for number in range(10)]
        assert sorted(each.due_s for each in answered) == [number / 200.0 for number in range(10)]
        assert {each.status for each in answered} == {200}
        await client.run(rate=200.0, seconds=0.005)
        assert bodies[-1] == b"10"
        client.close()


async def test_an_answer_that_breaks_off_is_told_and_its_connection_not_used_again() -> None:
    count = 0

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal count
        count += 1
        if count == 1:
            assert request.transport is not None
            request.transport.abort()
        return web.Response(status=503)

    async with serving(answer) as url:
        client = Paced(int(url.rpartition(":")[2]), lambda _: b"{}")
        assert [each.status for each in await client.run(1000.0, 0.001)] == [BROKEN]
        assert [each.status for each in await client.run(1000.0, 0.001)] == [503]
        client.close()


# Scrapes.


def seconds_of(*worsts: float) -> Seconds:
    return Seconds("some", 10, 0, 1.0, 2.0, worsts)


def test_requests_are_told_apart_by_the_second_in_which_they_were_due() -> None:
    answered = [
        Answered(0.1, 0.001, 200), Answered(0.9, 0.003, 200), Answered(1.0, 0.5, 503), Answered(2.5, 0.002, 200),
    ]  # fmt: skip
    without = summarise("without", answered, lambda second: not scraped(second))
    assert (without.requests, without.failed, without.worsts) == (3, 0, [3.0, 2.0])
    assert without.p50 == 2.0
    beside = summarise("beside", answered, scraped)
    assert (beside.requests, beside.failed, beside.worsts) == (1, 1, [500.0])
    with pytest.raises(ValueError, match="no request"):
        summarise("none", answered, lambda _: False)


def test_noise_is_what_seconds_without_a_scrape_have() -> None:
    without = seconds_of(*range(1, 11), 100)
    assert within_noise(without, seconds_of(9, 10, 500))
    assert not within_noise(without, seconds_of(9, 11, 12))


async def test_a_scrape_counts_series() -> None:
    async def metrics(request: web.Request) -> web.Response:
        assert "openmetrics" in request.headers["Accept"]
        return web.Response(text="# HELP a b\n# TYPE a gauge\na 1\nb 2\n# EOF\n")

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    told = await asyncio.to_thread(scrape.scrape, f"http://127.0.0.1:{runner.addresses[0][1]}")
    await runner.cleanup()
    assert (told.series, told.size) == (2, 40)


# Memory.


def test_memory_is_what_of_a_process_is_in_ram(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "status").write_text("Name:\tx\nVmHWM:\t  99999 kB\nVmRSS:\t   50000 kB\nThreads:\t1\n")
    assert resident_mb(7, tmp_path) == 51.2
    (tmp_path / "7" / "status").write_text("Name:\tx\nState:\tZ (zombie)\n")
    for gone in (7, 8):
        with pytest.raises(GoneError):
            resident_mb(gone, tmp_path)
    assert resident_mb(os.getpid()) > 1.0


@pytest.mark.parametrize(
    ("after", "failed", "good"),
    [(Memory(54.9, 44.9), 0, True), (Memory(55.0, 40.0), 0, False), (Memory(50.0, 45.0), 0, False),
     (Memory(49.0, 39.0), 1, False)],
)  # fmt: skip
def test_neither_process_may_grow_by_five_megabytes_and_no_request_fail(after: Memory, failed: int, good: bool) -> None:
    row = Soaked("row", 10, failed, Memory(50.0, 40.0), after)
    assert row.good is good
    [cells] = zip(*(column.cells for column in soak.table([row]).columns), strict=True)
    assert cells[-1] == ("yes" if good else "NO")


def test_prompts_that_are_unlike_differ_in_their_first_block() -> None:
    first, second = unique(1, b"x" * 1000), unique(2, b"x" * 1000)
    assert first[:100] != second[:100]
    assert len(first) == len(second)


# Two workers.


def arm(hit_ratio: float | None, e2e: float | None) -> Arm:
    whole = None if e2e is None else Distribution(e2e, e2e, e2e, e2e, e2e)
    return Arm("arm", 10, 0, hit_ratio, None, None, None, None, whole, None, 1.5, {"r1": 4, "r2": 6}, None, None, None)


def test_what_counts_is_the_median_of_the_ratios_of_neighbouring_runs() -> None:
    pairs = [Pair("chat", arm(0.5, 2.0), arm(hit, e2e)) for hit, e2e in ((0.5, 2.0), (0.4, 4.0), (0.45, 2.2))]
    assert hits(pairs) == pytest.approx(0.9)
    assert slower(pairs) == pytest.approx(1.1)
    assert hits([*pairs, Pair("chat", arm(0.5, 2.0), arm(None, None))]) is None
    assert hits([Pair("chat", arm(0.0, 2.0), arm(0.0, 2.0))]) is None
    rows = list(zip(*(column.cells for column in two_workers.table(pairs[:1]).columns), strict=True))
    assert rows == [
        ("chat", "1", "10", "0", "0.500", "1.500", "2.000", "4 6"),
        ("chat", "2", "10", "0", "0.500", "1.500", "2.000", "4 6"),
    ]
