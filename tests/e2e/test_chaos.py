"""One row of the chaos table, with real processes. The others take minutes: `python -m loadtests.chaos`."""

from loadtests.chaos import SECONDS, play
from loadtests.chaos_rows import rows
from loadtests.fleet import FleetShape


async def test_killing_a_replica_at_twenty_requests_a_second_loses_nothing_that_had_not_begun() -> None:
    [killed] = [row for row in rows(SECONDS) if row.name == "killed"]
    result = await play(killed, FleetShape(), "prefix_affinity", 20.0)
    assert result.sent == 160
    assert result.given > 0, "it had been struck for nothing"
    assert result.missed == []
