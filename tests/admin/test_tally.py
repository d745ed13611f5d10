"""What one record adds to, and what it must not."""

from router.admin.labels import OTHER, Labels
from router.admin.tally import NO_STATUS, Tally
from router.core.member import Transition
from router.core.record import Phase, Stages, UpstreamError
from router.core.types import Limit, Outcome, Reason, State
from tests.admin.making import MODEL, fleet_of, record_of, sent, settled


def tally_of(replicas: int = 2, label_values: int = 200) -> Tally:
    return Tally(fleet_of(replicas), label_values)


def test_the_ledger_adds_up_what_the_last_send_came_to() -> None:
    tally = tally_of()
    tally.record(record_of())
    tally.record(record_of(attempts=sent((settled(outcome=Outcome.REFUSED), UpstreamError.STATUS_429), settled("r1"))))
    ledger = tally.ledgers[MODEL]
    assert (ledger.prompt, ledger.reachable, ledger.predicted, ledger.reported) == (2000, 1600, 1400, 1200)
    assert ledger.error.counts[ledger.error.bounds.index(0.1)] == 2
    assert tally.replicas["r0"].prompt == tally.replicas["r1"].prompt == 1000


def test_what_an_engine_leaves_unsaid_is_counted_apart_and_no_error() -> None:
    tally = tally_of()
    tally.record(record_of(attempts=sent(settled(reported=None))))
    ledger = tally.ledgers[MODEL]
    assert (ledger.prompt, ledger.predicted, ledger.reported) == (1000, 700, 0)
    assert (ledger.unreported, ledger.predicted_unreported) == (1000, 700)
    assert sum(ledger.error.counts) == 0


def test_a_prompt_that_no_engine_has_prefilled_is_in_no_ledger() -> None:
    tally = tally_of()
    unanswered = settled(outcome=Outcome.NOT_REACHED, seconds_to_first_token=None, reported=None)
    tally.record(record_of(attempts=sent((unanswered, UpstreamError.CONNECT)), status=502))
    tally.record(record_of(attempts=(), status=429, rejected="queue_full", reason=None))
    assert tally.ledgers[MODEL].prompt == 0
    assert tally.rejected["queue_full"] == 1


def test_a_prompt_shorter_than_a_block_is_counted_as_such() -> None:
    tally = tally_of()
    for blocks in (0, 1, None):
        tally.record(record_of(blocks=blocks))
    assert tally.ledgers[MODEL].short == 1


def test_an_output_chunk_and_token_take_the_mean_of_one_response() -> None:
    tally = tally_of()
    tally.record(record_of(attempts=sent(settled(completion_tokens=21))))
    times = tally.times[MODEL, True]
    assert times.request.total == 1.25
    assert times.first_chunk.total == 0.25
    assert times.per_chunk.total == 0.1
    assert times.per_token.total == 0.05


def test_an_answer_that_does_not_stream_or_is_not_whole_has_no_time_per_chunk_or_token() -> None:
    tally = tally_of()
    tally.record(record_of(streams=False))
    tally.record(record_of(chunks=1, attempts=sent(settled(completion_tokens=1))))
    tally.record(record_of(attempts=sent((settled(outcome=Outcome.FAILED), UpstreamError.RESET))))
    for times in tally.times.values():
        assert sum(times.per_chunk.counts) == sum(times.per_token.counts) == 0
    assert sum(tally.times[MODEL, True].first_chunk.counts) == 2


def test_what_the_router_answers_itself_has_no_latency() -> None:
    tally = tally_of()
    tally.record(record_of(endpoint="health", model=None, attempts=(), reason=None, stages=Stages(), streams=False))
    assert sum(tally.times["", False].request.counts) == 0
    assert all(sum(stage.counts) == 0 for stage in tally.stages.values())


def test_stages_are_counted_when_they_were_reached() -> None:
    tally = tally_of()
    tally.record(record_of())
    assert {name: sum(stage.counts) for name, stage in tally.stages.items()} == {
        "parse": 1, "queue": 0, "pick": 1, "connect": 1, "first_byte": 1, "body": 1,
    }  # fmt: skip


def test_a_retry_tells_why_it_was_and_how_it_ended() -> None:
    tally = tally_of(3)
    refused, lost = settled(outcome=Outcome.REFUSED), settled("r1", outcome=Outcome.FAILED)
    attempts = sent((refused, UpstreamError.STATUS_429), (lost, UpstreamError.RESET), settled("r2"))
    tally.record(record_of(attempts=attempts))
    assert tally.retries == {("status_429", "failed"): 1, ("reset", "ok"): 1}
    assert tally.replicas["r1"].errors[UpstreamError.RESET] == 1
    assert tally.replicas["r0"].outcomes[Outcome.REFUSED] == tally.replicas["r2"].outcomes[Outcome.OK] == 1


def test_limits_leavings_and_disproved_blocks_are_counted() -> None:
    tally = tally_of()
    tally.record(record_of(cuts=[Limit.STALL, Limit.STALL, Limit.FULL], left=Phase.WAITING, status=0))
    tally.record(record_of(attempts=sent(settled(dropped_blocks=5))))
    assert (tally.cuts[Limit.STALL], tally.cuts[Limit.FULL], tally.left[Phase.WAITING]) == (2, 1, 1)
    assert (MODEL, "chat", NO_STATUS, True, Reason.HOLDER) in tally.rows
    assert tally.disproved == 5


def test_probes_and_changes_of_state_are_counted() -> None:
    tally = tally_of()
    tally.probed("r0", 0.002, None)
    tally.probed("r0", 2.0, "timeout")
    tally.turned(Transition("r0", State.READY, State.DOWN, "no answer in time"), "timeout")
    assert sum(tally.replicas["r0"].probes.counts) == 2
    assert tally.replicas["r0"].probe_failures == {"timeout": 1}
    assert tally.transitions == {("ready", "down", "timeout"): 1}


def test_a_label_takes_values_up_to_its_bound_and_counts_what_goes_to_other() -> None:
    labels = Labels(2)
    assert [labels.count("model", name) for name in ("a", "b", "c", "a", "c")] == ["a", "b", OTHER, "a", OTHER]
    assert labels.value("model", "d") == OTHER
    assert labels.count("code", "200") == "200"
    assert labels.overflow == {"model": 2}


def test_ten_thousand_model_names_of_clients_make_one_series_and_no_memory() -> None:
    tally = tally_of()
    for i in range(10_000):
        tally.record(record_of(model=f"made-up-{i}", attempts=(), status=404, rejected="unknown_model", reason=None))
    assert set(tally.rows) == {(OTHER, "chat", "404", True, None)}
    assert len(tally.ledgers) == len(tally.times) == 1
    assert tally.rows[OTHER, "chat", "404", True, None].requests == 10_000
    assert not tally.labels.overflow
    assert tally._by_record == {}


def test_a_thousand_adapters_of_the_fleet_make_as_many_series_as_the_bound_allows() -> None:
    fleet = fleet_of()
    tally = Tally(fleet, 50)
    fleet.serves("r0", {f"adapter-{i}": {} for i in range(1_000)})
    for i in range(1_000):
        tally.record(record_of(model=f"adapter-{i}"))
    assert len(tally.rows) == len(tally._by_record) + 1 == 51
    assert tally.labels.overflow == {"model": 950}
    tally.align()
    assert len(tally.ledgers) == 51


def test_ten_thousand_statuses_and_endpoints_are_bounded_too() -> None:
    tally = tally_of(label_values=50)
    for i in range(10_000):
        tally.record(record_of(status=1000 + i))
        tally.record(record_of(endpoint=f"endpoint-{i}"))
    assert len({code for _, _, code, _, _ in tally.rows}) == 51
    assert len({endpoint for _, endpoint, _, _, _ in tally.rows}) == 51
    assert len(tally._by_record) < 102


def test_twenty_thousand_requests_take_no_more_rows_than_four() -> None:
    """CASES A23: whatever is kept is kept per row, never per request."""
    tally = tally_of()
    for i in range(4):
        tally.record(record_of(request_id=f"id-{i}"))
    before = _sizes(tally)
    for i in range(20_000):
        tally.record(record_of(request_id=f"id-{i}", seconds=1 + i / 1000))
    assert _sizes(tally) == before


def _sizes(tally: Tally) -> list[int]:
    held = (tally.rows, tally._by_record, tally.times, tally.ledgers, tally.replicas, tally.retries, tally.transitions)
    return [len(each) for each in (*held, tally.rejected, tally.cuts, tally.left, tally.labels.overflow)]
