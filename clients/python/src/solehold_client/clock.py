"""The one place that reads a clock.

A tick is a number of seconds on a clock that never goes back and counts on while the machine sleeps. It has nothing to
do with the time of day, and ticks of two machines cannot be compared.
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

from .limits import STEP_SECONDS_MAX


class Clock(Protocol):
    """Reads the tick. An argument everywhere, so that time can be simulated."""

    def now(self) -> float:
        """The tick, in seconds."""


class BootClock:
    """`CLOCK_BOOTTIME`; where there is none, the monotonic clock, which on some systems stands still during sleep."""

    def now(self) -> float:
        boottime = getattr(time, "CLOCK_BOOTTIME", None)
        return time.monotonic() if boottime is None else time.clock_gettime(boottime)


async def sleep_until(clock: Clock, tick: float) -> None:
    """Sleeps until the tick, in bounded steps: asyncio's own timers would oversleep a suspended machine."""
    while (left := tick - clock.now()) > 0:
        await asyncio.sleep(min(left, STEP_SECONDS_MAX))
