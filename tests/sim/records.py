"""Builds records for tests; every field has a plain default."""

from loadtests.records import Record
from loadtests.workloads import Message

BLANK = Record(
    session="s",
    turn=0,
    messages=(Message("user", ("hi",)),),
    answer="yes",
    scheduled_s=0.0,
    sent_s=0.0,
    first_token_s=0.1,
    end_s=0.5,
    prompt_tokens=1_000,
    completion_tokens=5,
    cached_tokens=0,
    replica="r1",
    error=None,
    gaps_s=(),
)
