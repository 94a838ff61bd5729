"""Named locks: first come, first served, across all processes."""

from __future__ import annotations

import asyncio
import os
import socket
from types import TracebackType

from .acquire import Acquire
from .backoff import BackoffConfig
from .client import Client
from .errors import NotFound, Refused
from .guard import Guard
from .limits import WAIT_SECONDS_MAX
from .renewer import Policy
from .session import Session, SessionConfig
from .wire import Grant

KIND = "lock"
"""A lock is a resource of this kind. Locks are not declared."""
# A place in line is asked for again after this share of a wait.
ASK_AGAIN_SHARE = 2 / 3


class Locks:
    """Locks that are attached to a session: the one given, or one of its own that it opens with a client.

    Waiting is done by the server, in order of arrival; `poll_interval` is for servers that have no line to wait in.
    """

    def __init__(
        self,
        owner: Client | Session,
        *,
        holder: str | None = None,
        ttl: float = 30.0,
        policy: Policy = Policy.DEADLINE,
        poll_interval: float = 0.2,
    ) -> None:
        if isinstance(owner, Session) and holder is not None:
            raise ValueError(f"the session is {owner.holder}'s already: give a holder only together with a client")
        self._client = owner.client if isinstance(owner, Session) else owner
        self._session = owner if isinstance(owner, Session) else None
        self._owned = not isinstance(owner, Session)
        self._config = SessionConfig(holder or _own_name(self._client), ttl=ttl, policy=policy)
        self._poll = BackoffConfig(first=poll_interval, cap=poll_interval)
        self._opening = asyncio.Lock()
        self._has_line = True

    async def acquire(self, name: str, *, timeout: float | None = None) -> Guard:
        """Waits in line for a lock: up to `timeout` seconds, forever if None, not at all if 0.

        When the time is up it raises the last refusal. However it ends without a guard, the line is left and nothing is held.
        """
        acquire = Acquire(await self._live_session(), KIND, name, timeout, self._poll)
        return await acquire.run(self._attempt)

    async def close(self) -> None:
        """Closes the session, if it is its own: its locks are released."""
        if self._owned and self._session is not None:
            await self._session.close()

    async def __aenter__(self) -> Locks:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _live_session(self) -> Session:
        async with self._opening:
            if self._owned and (self._session is None or not self._session.is_live()):
                if self._session is not None:
                    await self._session.close()
                self._session = await Session.open(self._client, self._config)
            assert self._session is not None, "given, or just opened"
            return self._session

    async def _attempt(self, acquire: Acquire) -> Grant:
        if self._has_line:
            try:
                with self._client.waiter():
                    grant = await self._wait_in_line(acquire)
            except NotFound as error:
                if error.code != "no_such_route":
                    raise
                self._has_line = False
            else:
                return grant if grant.confirm_within is None else await self._confirm(acquire, grant, grant.confirm_within)
        _, grant = await self._client.acquire(
            KIND,
            acquire.key,
            holder=acquire.session.holder,
            session_id=acquire.session.session_id,
            request_id=acquire.request_id,
            until=acquire.retry_until(),
            doubts=acquire.doubts,
        )
        return grant

    async def _wait_in_line(self, acquire: Acquire) -> Grant:
        """Waits by as many requests as it takes.

        Well before one ends the next is made under the same request id, which keeps the place. The former is let run out:
        given up before the next has arrived, it would leave the line, and nobody can tell when that is.
        """
        clock = self._client.clock
        calls: set[asyncio.Task[Grant]] = set()
        try:
            while True:
                left = acquire.time_left()
                wait = min(WAIT_SECONDS_MAX, left)
                calls.add(asyncio.ensure_future(self._ask_in_line(acquire, wait)))
                again_at = clock.now() + wait * ASK_AGAIN_SHARE if left > wait else float("inf")
                if grant := await self._granted_before(again_at, calls):
                    return grant
        finally:
            await _give_up(calls)

    async def _granted_before(self, tick: float, calls: set[asyncio.Task[Grant]]) -> Grant | None:
        while (left := tick - self._client.clock.now()) > 0:
            timeout = None if left == float("inf") else left
            done, _ = await asyncio.wait(calls, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            for call in done:
                calls.remove(call)
                failed = call.exception()
                if failed is None:
                    return call.result()
                if not calls:  # whatever else a former request says, the later one has its place
                    raise failed
        return None

    async def _ask_in_line(self, acquire: Acquire, wait: float) -> Grant:
        # Until it is granted or spent, the request may have a place in line.
        acquire.doubts.any = True
        _, grant = await self._client.wait_for_lock(
            acquire.key,
            holder=acquire.session.holder,
            session_id=acquire.session.session_id,
            request_id=acquire.request_id,
            wait=wait,
            doubts=acquire.doubts,
        )
        return grant

    async def _confirm(self, acquire: Acquire, grant: Grant, within: float) -> Grant:
        """A grant that was waited for is trusted after a renewal (rule 15), for as long as heartbeats keep its
        session.
        """
        until = self._client.clock.now() + within
        session = acquire.session
        try:
            _, renewed = await self._client.renew_lock(acquire.key, grant=grant, session_id=session.session_id, until=until)
        except NotFound as error:
            raise Refused(f"the lock lapsed before it was confirmed: {error.detail}", code="lost") from error
        if renewed.token != grant.token:
            raise Refused("the lock changed hands before it was confirmed", code="lost", token=renewed.token)
        return grant


async def _give_up(calls: set[asyncio.Task[Grant]]) -> None:
    for call in calls:
        call.cancel()
    if calls:
        await asyncio.wait(calls)
    for call in calls:
        if not call.cancelled():
            call.exception()  # looked at, so that nobody logs it


def _own_name(client: Client) -> str:
    return f"{socket.gethostname()[:200]}-{os.getpid()}-{client.rng.getrandbits(32):08x}"
