"""What a load client notes about one request. Every figure of a report is computed from these and nothing else."""

from dataclasses import dataclass

from loadtests.workloads import Message


@dataclass(frozen=True, slots=True)
class Record:
    """One request, from the time it was due to its end. All times are seconds since the run began.

    `error` is None for a whole answer, else the cause as a short label (`connect`, `timeout`, `status_503`, ...).
    The token counts are the engine's own (`usage`); `cached_tokens` is 0 where an engine reports none.
    `gaps_s` are the times between one content-bearing event and the next (ITL).
    """

    session: str
    turn: int
    messages: tuple[Message, ...]
    answer: str
    scheduled_s: float
    sent_s: float
    first_token_s: float | None
    end_s: float
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    replica: str | None
    error: str | None
    gaps_s: tuple[float, ...]

    @property
    def schedule_delay_s(self) -> float:
        return self.sent_s - self.scheduled_s

    @property
    def e2e_s(self) -> float:
        return self.end_s - self.sent_s

    @property
    def ttft_s(self) -> float | None:
        """From sending to the first content-bearing event; None when there was none."""
        return None if self.first_token_s is None else self.first_token_s - self.sent_s

    @property
    def tpot_s(self) -> float | None:
        """(e2e - ttft) / (output tokens - 1), UX section 7; None for answers of fewer than two tokens."""
        ttft_s = self.ttft_s
        if ttft_s is None or self.completion_tokens < 2:
            return None
        return (self.e2e_s - ttft_s) / (self.completion_tokens - 1)
