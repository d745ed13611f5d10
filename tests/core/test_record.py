"""The record of a request: frozen, and without a word of the prompt, the answer or a key."""

import pytest

from router.core.lease import Settled
from router.core.record import Attempt, Phase, Record, Stages, UpstreamError
from router.core.types import Outcome

SETTLED = Settled("r0", Outcome.OK, 100, 40, 30, 20, 10, 0.5, 2.0, 0)
RECORD = Record("id", "chat", "m", True, 200, 2.0, Stages(parse=0.1, body=1.0), attempts=(Attempt(SETTLED, None),))


def test_a_record_and_its_parts_are_frozen() -> None:
    for part, name in (
        (RECORD, "status"),
        (RECORD.stages, "parse"),
        (RECORD.attempts[0], "error"),
        (SETTLED, "seconds"),
    ):
        with pytest.raises(AttributeError):
            setattr(part, name, 1)


def test_a_record_has_no_field_for_what_must_not_be_logged() -> None:
    """Invariant 9. A new field is a decision: add it here after asking whether it can carry a prompt or a key."""
    assert Record._fields == (
        "request_id", "endpoint", "model", "streams", "status", "seconds", "stages", "reason", "attempts", "cuts",
        "blocks", "chunks", "first_chunk", "last_chunk", "rejected", "left",
    )  # fmt: skip


def test_what_did_not_happen_is_none_and_not_zero() -> None:
    assert Stages() == Stages(None, None, None, None, None, None)
    bare = Record("id", "chat", None, False, 0, 0.0, Stages())
    assert (bare.reason, bare.blocks, bare.first_chunk, bare.last_chunk, bare.rejected, bare.left) == (None,) * 6
    assert (tuple(bare.attempts), tuple(bare.cuts), bare.chunks) == ((), (), 0)


def test_the_names_in_metrics_and_logs_are_these() -> None:
    assert [str(phase) for phase in Phase] == ["uploading", "queued", "waiting", "streaming"]
    assert [str(error) for error in UpstreamError] == [
        "connect", "reset", "timeout_first_byte", "timeout_idle", "protocol", "status_5xx", "status_429",
    ]  # fmt: skip
