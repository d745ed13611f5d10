"""The chaos test's own honesty: what counts as failed, as unseen, as generated twice, and which goals that misses.

(That the table is good is for `python -m loadtests.chaos` to show; one row of it runs in tests/e2e.)
"""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from loadtests import chaos_client
from loadtests.chaos import Result, judge, table, twice
from loadtests.chaos_client import STREAM_TOKENS, WHOLE_TOKENS, End, Pace, Sent
from loadtests.chaos_rows import Life, OfItsOwn, Row, Victim, established, read_ids, rows
from loadtests.fleet import FleetShape
from replica.faults import Fault

# What a request came to.

HEAD = b"HTTP/1.1 200 OK\r\nX-Homing-Replica: r2\r\n"
WHOLE = json.dumps({"usage": {"completion_tokens": WHOLE_TOKENS}}).encode()
TOKEN = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
STREAM = TOKEN * STREAM_TOKENS + b"data: [DONE]\n\n"
ERROR = b'data: {"error":{"message":"gone"}}\n\n'


def sized(body: bytes, claims: int | None = None) -> bytes:
    return HEAD + b"Content-Length: %d\r\n\r\n" % (len(body) if claims is None else claims) + body


async def answered(data: bytes, number: int, *, hangs: bool = False) -> Sent:
    """What the client says of its request number 0 (a stream) or 1 (none) when this is all that it gets."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        [length] = [int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        await reader.readexactly(length)
        writer.write(data)
        if hangs:
            await reader.read()  # Until the client leaves.
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        sent = await chaos_client.run(f"http://{host}:{port}", Pace(rate=100.0, seconds=0.02, timeout_s=0.5))
    return sent[number]


ANSWERS = {
    "whole": (sized(WHOLE), 1, End.WHOLE),
    "whole stream": (sized(STREAM), 0, End.WHOLE),
    "error": (b"HTTP/1.1 502 X\r\nContent-Length: 2\r\n\r\n{}", 1, End.NOTHING),
    "closed": (b"", 0, End.NOTHING),
    "head only": (sized(b"", 5), 1, End.MIDWAY),
    "half": (sized(b"half", 9), 1, End.MIDWAY),
    "half a stream": (sized(TOKEN, 900), 0, End.MIDWAY),
    "stream that says so": (sized(TOKEN + ERROR), 0, End.MIDWAY),
    "stream that says so and breaks": (sized(TOKEN + ERROR, 900), 0, End.MIDWAY),
    "a part as if it were the whole": (sized(WHOLE[:-3]), 1, End.UNSEEN),
    "fewer tokens than asked for": (sized(b'{"usage":{"completion_tokens":3}}'), 1, End.UNSEEN),
    "stream without its end": (sized(TOKEN * STREAM_TOKENS), 0, End.UNSEEN),
    "stream with a hole": (sized(TOKEN * 9 + b"data: [DONE]\n\n"), 0, End.UNSEEN),
    "nothing as if it were a stream": (sized(b""), 0, End.UNSEEN),
}


@pytest.mark.parametrize(("data", "number", "end"), ANSWERS.values(), ids=ANSWERS)
async def test_a_request_ends_in_one_of_four_ways(data: bytes, number: int, end: End) -> None:
    sent = await answered(data, number)
    assert (sent.id, sent.streams, sent.end) == (f"chaos-{number}", number == 0, end)


async def test_a_client_gives_up_in_the_end() -> None:
    assert (await answered(b"", 1, hangs=True)).end is End.NOTHING
    assert (await answered(sized(TOKEN, 900), 0, hangs=True)).end is End.MIDWAY


async def test_the_replica_that_answered_is_noted() -> None:
    assert (await answered(sized(WHOLE), 1)).replica == "r2"
    assert (await answered(b"", 1)).replica is None


def test_half_of_the_requests_are_streams_and_a_seed_makes_them() -> None:
    bodies = [json.loads(body) for body in chaos_client._bodies(Pace(20, 8, 1))]
    assert len(bodies) == 160
    assert [body["stream"] for body in bodies[:4]] == [True, False, True, False]
    assert chaos_client._bodies(Pace(20, 8, 1, seed=1)) == chaos_client._bodies(Pace(20, 8, 1, seed=1))
    assert chaos_client._bodies(Pace(20, 8, 1, seed=1)) != chaos_client._bodies(Pace(20, 8, 1, seed=2))
    assert len({body["messages"][0]["content"] for body in bodies}) == chaos_client.PREAMBLES


# What was generated.


def test_a_generation_counts_from_its_beginning_unless_it_died_with_its_process() -> None:
    assert Life(["a", "b"], ["a"], killed=False).generated == ["a", "b"]
    assert Life(["a", "b"], ["a"], killed=True).generated == ["a"]


def test_twice_is_whatever_is_beyond_the_first() -> None:
    assert twice([Life(["a", "b"], [], False), Life(["c"], [], False)]) == 0
    assert twice([Life(["a", "b"], [], False), Life(["a"], [], False), Life(["a"], [], False)]) == 2
    assert twice([Life(["a", "a"], [], False)]) == 1, "on one replica, too"
    assert twice([Life(["a"], [], True), Life(["a"], [], False)]) == 0
    assert twice([Life(["a"], ["a"], True), Life(["a"], [], False)]) == 1, "it ended, and only its answer was lost"


def test_a_life_is_read_from_what_the_process_told(tmp_path: Path) -> None:
    path = tmp_path / "ids"
    path.write_text("begin chaos-1\nbegin chaos-2\nend chaos-1\n")
    assert read_ids(path) == Life(["chaos-1", "chaos-2"], ["chaos-1"], False)
    assert read_ids(tmp_path / "never", killed=True) == Life([], [], True)


def test_a_victim_says_how_it_fails_and_where_it_tells(tmp_path: Path) -> None:
    victim = Victim("r9", FleetShape(), Fault.SLOW, tmp_path)
    assert victim.flags() == ("--record-ids", str(tmp_path / "r9.0.ids"), "--fail", "slow", "--fail-on-signal")
    assert victim.told() == [Life([], [], False)]


SOCKETS = """  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1
   1: 0100007F:1F90 0100007F:D431 01 00000000:00000000 00:00000000 00000000     0        0 2 1
   2: 0100007F:D431 0100007F:1F90 01 00000000:00000000 00:00000000 00000000     0        0 3 1
   3: 0100007F:D432 0100007F:1F90 01 00000000:00000000 00:00000000 00000000     0        0 4 1
   4: 0100007F:D433 0100007F:1F90 06 00000000:00000000 00:00000000 00000000     0        0 5 1
"""


def test_connections_are_counted_at_the_clients_side(tmp_path: Path) -> None:
    path = tmp_path / "tcp"
    path.write_text(SOCKETS)
    assert established(8080, path) == 2
    assert established(8081, path) == 0
    assert established(8080, tmp_path / "nothing") is None


# Goals.


def sent(end: End, at: float = 4.0, replica: str | None = "r4") -> Sent:
    return Sent("chaos-0", True, at, at + 1.5, end, 200, replica)


async def none(victim: Victim) -> None:
    raise AssertionError


ROW = Row("a row", none)


def test_the_figures_of_a_row() -> None:
    ends = [End.WHOLE, End.WHOLE, End.NOTHING, End.MIDWAY, End.MIDWAY]
    result = judge(ROW, [sent(end) for end in ends], generated_twice=4, connections=7)
    assert result == Result("a row", 5, 1, 2, 0, 4, 1.5, 0, 7, [], 0)
    assert judge(ROW, [sent(End.NOTHING)], 0, None).slowest_s is None


GOALS: dict[str, tuple[Row, End, str]] = {
    "nothing": (Row("", none, most_nothing=0), End.NOTHING, "failed before a first byte: 1, at most 0"),
    "failed, nothing": (Row("", none, most_failed=0), End.NOTHING, "failed: 1, at most 0"),
    "failed, midway": (Row("", none, most_failed=0), End.MIDWAY, "failed: 1, at most 0"),
    "unseen": (ROW, End.UNSEEN, "ended unseen: 1, at most 0"),
    "twice": (Row("", none, most_twice=1), End.WHOLE, "generated twice: 2, at most 1"),
    "of its connections": (
        Row("", none, most_twice=OfItsOwn.CONNECTIONS),
        End.WHOLE,
        "generated twice: 2, at most 1",
    ),
    "of its requests": (Row("", none, most_failed=OfItsOwn.REQUESTS), End.MIDWAY, "failed: 1, at most 0"),
}


@pytest.mark.parametrize(("row", "end", "missed"), GOALS.values(), ids=GOALS)
def test_a_goal_that_is_missed_is_named(row: Row, end: End, missed: str) -> None:
    assert judge(row, [sent(end)], 2, connections=1).missed == [missed]


def test_goals_that_are_met_are_not_named() -> None:
    row = Row("", none, most_nothing=0, most_failed=OfItsOwn.REQUESTS, most_twice=OfItsOwn.CONNECTIONS)
    before = [sent(End.WHOLE, at) for at in (0.0, 2.9)]
    assert judge(row, [*before, sent(End.MIDWAY), sent(End.MIDWAY)], 2, connections=2).missed == []
    missed = judge(row, [before[0], sent(End.WHOLE, 2.0, "r1"), sent(End.MIDWAY), sent(End.MIDWAY)], 2, 2).missed
    assert missed == ["failed: 2, at most 1"], "the requests that it was given, and no other's"
    assert judge(row, before, 99, connections=None).missed == [], "a goal that cannot be known"
    row = Row("", none, most_failed=OfItsOwn.UNDER_WAY)
    assert judge(row, [*before, sent(End.MIDWAY, 2.9)], 0, None).missed == []
    missed = judge(row, [before[0], sent(End.WHOLE, 2.0), sent(End.MIDWAY), sent(End.MIDWAY)], 0, None).missed
    assert missed == ["failed: 2, at most 1"], "two that were sent later"


def test_every_row_has_a_name_of_its_own() -> None:
    table_ = rows(8.0)
    assert len({row.name for row in table_}) == len(table_) == 11
    named: Callable[[str], Row] = {row.name: row for row in table_}.__getitem__
    assert named("killed").most_nothing == named("killed").most_twice == 0
    assert named("stopped").most_failed is OfItsOwn.REQUESTS
    assert named("resetting before headers").most_twice is OfItsOwn.CONNECTIONS
    assert named("a worker killed").workers == 2
    assert {row.workers for row in table_ if row.name != "a worker killed"} == {1}


def test_the_table_shows_figures_and_missed_goals() -> None:
    results = [Result("killed", 160, 1, 2, 3, 4, 0.75, 0, None, ["failed: 3, at most 0"]), Result("w")]
    cells = [list(column.cells) for column in table(results).columns]
    assert [column[0] for column in cells] == ["killed", "160", "1", "2", "3", "4", "0.8", "failed: 3, at most 0"]
    assert [column[1] for column in cells[-2:]] == ["-", "met"]
