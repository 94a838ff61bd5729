"""One acquire: asks until it is granted, and leaves nothing behind when it is not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from .backoff import Backoff, BackoffConfig
from .channel import Doubts
from .clock import sleep_until
from .errors import Lost, NoSession, Refused, SoleholdError, Unavailable, Unknown
from .limits import SPEND_SECONDS_MAX, UNSETTLED_MAX
from .wire import Grant

if TYPE_CHECKING:
    from .guard import Guard
    from .session import Session

# Worth another try: the resource may become free.
_PASSING = ("held", "held_back", "already_pending", "request_spent", "lost")


class Acquire:
    """The attempts of one acquire, under one request id for as long as that can get anything."""

    def __init__(self, session: Session, kind: str, key: str, timeout: float | None, backoff: BackoffConfig) -> None:
        if timeout is not None and not timeout >= 0:
            raise ValueError(f"a timeout of {timeout} makes no sense: give seconds, 0 to try once, or None to wait forever")
        self.session = session
        self.client = session.client
        self.kind = kind
        self.key = key
        self.request_id = self.client.request_id()
        self.doubts = Doubts()
        """Set when some attempt may have got the lease, or a place in line, without an answer."""
        self.backoff = Backoff(backoff, self.client.rng)
        self._until = float("inf") if timeout is None else self.client.clock.now() + timeout

    def time_left(self) -> float:
        """Seconds that the caller still wants to wait."""
        return max(0.0, self._until - self.client.clock.now())

    def retry_until(self) -> float:
        """The tick until which one attempt may be repeated without an answer."""
        return min(self._until, self.client.clock.now() + self.client.retry_for)

    async def run(self, attempt: Callable[[Acquire], Awaitable[Grant]]) -> Guard:
        """Attempts until it is granted, the time is up, or the authority refuses for a reason that waiting does not
        change.
        """
        if self.session.unsettled() >= UNSETTLED_MAX:
            raise Unavailable(f"{UNSETTLED_MAX} requests of this session have no known outcome: no more are made until they do")
        try:
            while True:
                delay = 0.0
                try:
                    return self.session._granted(self.kind, self.key, await self._attempt(attempt))
                except Refused as error:
                    failed: SoleholdError = error
                    delay = self._after_refusal(error)
                except (Unavailable, Unknown) as error:
                    failed = error
                    self.doubts.any |= isinstance(error, Unknown)
                    delay = self.backoff.delay(least=error.retry_after or 0.0)
                if delay >= self.time_left():
                    raise failed
                await sleep_until(self.client.clock, self.client.clock.now() + delay)
        except Unknown as error:
            if await self.spend():
                raise Unavailable(f"{error.detail}; the request was cancelled and holds nothing") from error
            raise
        except BaseException:
            await self.spend()
            raise

    async def _attempt(self, attempt: Callable[[Acquire], Awaitable[Grant]]) -> Grant:
        try:
            return await self.session._while_live(attempt(self))
        except (asyncio.CancelledError, Lost):
            self.doubts.any = True  # it was under way
            raise

    def _after_refusal(self, error: Refused) -> float:
        if isinstance(error, NoSession):
            self.session._refused(error)
        if error.code not in _PASSING:
            raise error
        if error.code in ("request_spent", "lost"):
            self.renew_request()
            return self.backoff.delay()
        if error.code == "held":
            # The holder may release it at any time, and at the latest its lease runs out.
            return self.backoff.delay(most=float("inf") if error.retry_after is None else error.retry_after)
        return self.backoff.delay(least=error.retry_after or 0.0)

    def renew_request(self) -> None:
        """Goes on under another request id: the old one is spent."""
        self.request_id = self.client.request_id()
        self.doubts.any = False

    async def spend(self) -> bool:
        """Spends the request id if it may have got something. Returns whether it is known to hold nothing."""
        if not self.doubts.any:
            return True
        session, kind, key, request_id = self.session, self.kind, self.key, self.request_id
        task = session._settle(
            lambda: session.client.cancel(kind, key, holder=session.holder, request_id=request_id)
        )
        done, _ = await asyncio.wait({task}, timeout=SPEND_SECONDS_MAX)
        return bool(done) and task.result()
