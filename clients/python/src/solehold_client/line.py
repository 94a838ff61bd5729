"""Waiting in line for a resource: first come, first served, across all processes.

The server waits, and answers when the resource is granted. One request waits for 30 s at most. Well before it ends the
next one is made under the same request id, which keeps the place. The former is let run out: given up before the next
has arrived, it would leave the line, and nobody can tell when that is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from .clock import Clock
from .errors import Unknown
from .limits import WAIT_SECONDS_MAX
from .wire import Grant

# A place in line is asked for again after this share of a wait.
ASK_AGAIN_SHARE = 2 / 3

Ask = Callable[[float], Coroutine[Any, Any, Grant]]
"""Asks for a place in line, for some seconds."""


async def wait_in_line(ask: Ask, *, clock: Clock, until: float, leeway: float) -> Grant:
    """Waits until the tick `until`, by as many requests as it takes. If the server has not ended the wait by then, it
    ends after `leeway` seconds more.
    """
    calls: set[asyncio.Task[Grant]] = set()
    try:
        while (left := until - clock.now()) + leeway > 0:
            wait = min(WAIT_SECONDS_MAX, left)
            if wait > 0:
                calls.add(asyncio.ensure_future(ask(wait)))
            next_at = clock.now() + wait * ASK_AGAIN_SHARE if left > wait else until + leeway
            if grant := await _granted_before(next_at, clock, calls):
                return grant
        raise Unknown(f"no server has answered within {leeway:.3g} s after the wait was over")
    finally:
        await _give_up(calls)


async def _granted_before(tick: float, clock: Clock, calls: set[asyncio.Task[Grant]]) -> Grant | None:
    while (left := tick - clock.now()) > 0:
        done, _ = await asyncio.wait(calls, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        for call in done:
            calls.remove(call)
            failed = call.exception()
            if failed is None:
                return call.result()
            if not calls:  # whatever else a former request says, the later one has its place
                raise failed
    return None


async def _give_up(calls: set[asyncio.Task[Grant]]) -> None:
    for call in calls:
        call.cancel()
    if calls:
        await asyncio.wait(calls)
    for call in calls:
        if not call.cancelled():
            call.exception()  # looked at, so that nobody logs it
