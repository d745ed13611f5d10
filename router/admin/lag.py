"""How late a worker's event loop is: a timer that tells. Anything that holds the loop shows here, whatever it is."""

import asyncio
import time
from collections.abc import Callable

PERIOD = 0.25
"""Seconds between samples: 40 in a scrape of 10 s, for some microseconds of work."""


async def sample(observe: Callable[[float], None], period: float = PERIOD) -> None:
    """Give `observe` the seconds that each timer fired late, until cancelled."""
    while True:
        due = time.monotonic() + period
        await asyncio.sleep(period)
        observe(max(0.0, time.monotonic() - due))
