"""One acquire: waits in line until it is granted, and leaves nothing behind when it is not."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from .backoff import Backoff
from .channel import Doubts
from .clock import sleep_until
from .errors import Lost, NoSession, NotFound, Refused, SoleholdError, Unavailable, Unknown
from .limits import SPEND_SECONDS_MAX, WAIT_LEEWAY_SECONDS
from .line import wait_in_line
from .wire import Grant, Json

if TYPE_CHECKING:
    from .guard import Guard
    from .session import Session

# Worth another try: the resource may become free.
PASSING = ("held", "held_back", "already_pending", "request_spent", "lost")


class Acquire:
    """The attempts of one acquire, under one request id for as long as that can get anything.

    `until` is the tick until which the caller wants to wait; one that has passed asks once.
    """

    def __init__(
        self,
        session: Session,
        kind: str,
        key: str,
        until: float,
        attributes: Mapping[str, Json] | None = None,
        slots: int | None = None,
    ) -> None:
        self.session = session
        self.client = session.client
        self.kind = kind
        self.key = key
        self.attributes = attributes
        self.slots = slots
        self.request_id = self.client.request_id()
        self.doubts = Doubts()
        """Set when some attempt may have got the lease, or a place in line, without an answer."""
        self._backoff = Backoff(session.config.backoff, self.client.rng)
        self._until = until
        # A caller that asks once gives the server its usual time; one that waits gives it little more than the wait.
        self._leeway = min(self.client.timeout, WAIT_LEEWAY_SECONDS if self._time_left() > 0 else float("inf"))

    async def run(self) -> Guard:
        """Attempts until it is granted, the time is up, or the authority refuses for a reason that waiting does not
        change.
        """
        self.session.check_unsettled(1)
        try:
            while True:
                try:
                    return self.session._granted(self.kind, self.key, await self._attempt())
                except Refused as error:
                    failed: SoleholdError = error
                    delay = self._after_refusal(error)
                except (Unavailable, Unknown) as error:
                    failed = error
                    self.doubts.any |= isinstance(error, Unknown)
                    delay = self._backoff.delay(least=error.retry_after or 0.0)
                left = self._time_left()
                if left <= 0:
                    raise failed.with_traceback(None)
                # When the time is up it is asked for once more: it may have become free.
                await sleep_until(self.client.clock, self.client.clock.now() + min(delay, left))
        except Unknown as error:
            if await self._spend():
                raise Unavailable(f"{error.detail}; the request was cancelled and holds nothing") from None
            raise
        except BaseException:
            await self._spend()
            raise

    def _time_left(self) -> float:
        return max(0.0, self._until - self.client.clock.now())

    async def _attempt(self) -> Grant:
        try:
            return await self.session._while_live(self._ask_or_wait())
        except (asyncio.CancelledError, Lost):
            self.doubts.any = True  # it was under way
            raise

    async def _ask_or_wait(self) -> Grant:
        if self._time_left() <= 0:
            return await self._ask(0.0)
        with self.client.waiter():
            # Until it is granted or spent, the request may have a place in line.
            self.doubts.any = True
            grant = await wait_in_line(self._ask, clock=self.client.clock, until=self._until, leeway=self._leeway)
        return grant if grant.confirm_within is None else await self._confirm(grant, grant.confirm_within)

    async def _ask(self, wait: float) -> Grant:
        _, grant = await self.client.acquire(
            self.kind,
            self.key,
            holder=self.session.holder,
            session_id=self.session.session_id,
            request_id=self.request_id,
            attributes=self.attributes,
            slots=self.slots,
            wait=wait,
            timeout=self._leeway,
            doubts=self.doubts,
        )
        return grant

    async def _confirm(self, grant: Grant, within: float) -> Grant:
        """A grant that was waited for is trusted after a renewal (rule 15), for as long as heartbeats keep its
        session.
        """
        until = self.client.clock.now() + within
        what = f"{self.kind}/{self.key}"
        try:
            _, renewed = await self.client.renew(
                self.kind, self.key, grant=grant, session_id=self.session.session_id, until=until
            )
        except NotFound as error:
            raise Refused(f"the lease on {what} lapsed before it was confirmed: {error.detail}", code="lost") from error
        if renewed.token != grant.token:
            raise Refused(f"{what} changed hands before it was confirmed", code="lost", token=renewed.token)
        return grant

    def _after_refusal(self, error: Refused) -> float:
        if isinstance(error, NoSession):
            self.session._refused(error)
        if error.code not in PASSING:
            raise error
        if error.code in ("request_spent", "lost"):
            # Goes on under another request id: the old one is spent.
            self.request_id = self.client.request_id()
            self.doubts.any = False
        return self._backoff.delay()

    async def _spend(self) -> bool:
        """Spends the request id if it may have got something. Returns whether it is known to hold nothing."""
        task = self.spend()
        if task is None:
            return True
        done, _ = await asyncio.wait({task}, timeout=SPEND_SECONDS_MAX)
        return bool(done) and task.result()

    def spend(self) -> asyncio.Task[bool] | None:
        """Begins to spend the request id, unless it is known to hold nothing."""
        if not self.doubts.any:
            return None
        session, kind, key, request_id = self.session, self.kind, self.key, self.request_id
        return session._settle(
            lambda: session.client.cancel(kind, key, holder=session.holder, request_id=request_id)
        )
