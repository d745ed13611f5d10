"""How many requests may be sent again: a tenth of those of the last ten seconds, and ten in any case. Pure.

A send that may have been read before it was lost is work that may be done twice. When one replica fails, that is
little; when all do, sending everything again doubles the load on a fleet that is failing under it. So only a share of
the traffic may be sent again, and the rest of the failures are told to the clients. Source: Finagle's RetryBudget (20 %
and ten a second), Linkerd's after it; ours is smaller, since a generation costs a thousand times a web page.

What surely did no work draws on nothing: a refusal (429, 503), a connection that could not be made, a request that was
never written whole. `retry.max_refusals` bounds these for each request.
"""

from router.core.window import Window

LEAST = 10
"""Resends in ten seconds whatever the traffic: a tenth of next to nothing would be none."""


class RetryBudget:
    """One worker's: `share` of the requests, and LEAST in any case. Times in monotonic seconds."""

    def __init__(self, share: float = 0.1) -> None:
        self.share = share
        self._requests = Window()
        self._spent = Window()

    def request(self, now: float) -> None:
        """A request came that may be sent to a replica."""
        self._requests.add(now)

    def spend(self, now: float) -> bool:
        """Take one resend, if there is one left."""
        if self._spent.total(now) + 1 > self._allowed(now):
            return False
        self._spent.add(now)
        return True

    def left(self, now: float) -> float:
        """Share of the budget that is left, 0 to 1 (`homing_retry_budget_ratio`).

        Less than none is none: what was spent while there was more traffic may be more than is allowed now.
        """
        return max(0.0, 1 - self._spent.total(now) / self._allowed(now))

    def _allowed(self, now: float) -> float:
        return max(float(LEAST), self.share * self._requests.total(now))
