"""The session that something works under: one that was given, or one of its own that is opened again after a loss."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

from . import check
from .backoff import Backoff
from .client import Client
from .clock import sleep_until
from .errors import Lost, SoleholdError, Superseded, Unavailable, Unknown
from .log import LOG
from .renewer import Policy
from .session import Session, SessionConfig

T = TypeVar("T")


class KeptSession:
    """A session that was given, or with a client one of its own, opened when it is needed and again after a loss.

    A session whose holder has opened another one elsewhere is not opened again: two would end each other in turn.
    """

    def __init__(
        self, owner: Client | Session, *, holder: str | SessionConfig | None, ttl: float | None, policy: Policy | None
    ) -> None:
        check.instance("owner", owner, (Client, Session), "a Client or a Session")
        if isinstance(owner, Session) and holder is not None:
            raise ValueError(f"the session is {owner.holder}'s already: give a holder only together with a client")
        self.client = owner.client if isinstance(owner, Session) else owner
        self.is_own = isinstance(owner, Client)
        self._session = owner if isinstance(owner, Session) else None
        name = _own_name(self.client) if holder is None else holder
        self._config = SessionConfig.given(name, ttl=ttl, policy=policy)
        self._opening = asyncio.Lock()

    async def live(self, *, until: float | None = None) -> Session:
        """The session, which is opened if it is its own; until the tick `until` while no server answers."""
        async with self._opening:
            lost = None if self._session is None else self._session._judge()
            if self._session is None or (self.is_own and lost is not None):
                if lost is not None and lost.code == "session_superseded":
                    raise lost.again()
                follows = None
                if self._session is not None:
                    LOG.info("opening a new session for %s: the previous one is over", self._config.holder)
                    await self._session.close()
                    follows = self._session.session_id
                self._session = await self._open(follows, until)
                self._config = replace(self._config, replace=None)  # that was replaced now
            return self._session

    async def _open(self, follows: str | None, until: float | None) -> Session:
        """Opens it. An opening of several requests, or one that took too long, may fail before the tick."""
        clock, backoff = self.client.clock, Backoff(self._config.backoff, self.client.rng)
        while True:
            try:
                return await Session._open(self.client, self._config, follows=follows, until=until)
            except Superseded as error:
                raise Lost("refused", str(error), error.code) from error
            except (Unavailable, Unknown) as error:
                now = clock.now()
                if until is None or now >= until:
                    raise
                LOG.debug("cannot open a session for %s yet; retrying: %s", self._config.holder, error)
                await sleep_until(clock, min(until, now + backoff.delay(least=error.retry_after or 0.0)))

    async def close(self) -> None:
        """Closes the session, if it is its own: everything attached to it is released."""
        if self.is_own and self._session is not None:
            await self._session.close()


async def keep_session(
    client: Client,
    holder: str | SessionConfig,
    work: Callable[[Session], Awaitable[T]],
    *,
    ttl: float | None = None,
    policy: Policy | None = None,
    on_lost: Callable[[Lost], object] | None = None,
) -> T:
    """Opens a session and awaits `work(session)`. Whenever the session is lost, as in an outage, it opens the next one
    and calls `work` again, until `work` returns by itself; then the session is closed, and the result returned.

    When a session is lost, `work` is cancelled; once it has ended, `on_lost` is called with the loss. While no server
    answers, opening is tried for as long as it takes. It ends with an error that `work` raises under a live session,
    with what the server says if it refuses to open one, and with `Lost` if the holder has opened a session elsewhere.
    """
    check.instance("client", client, Client, "a Client")
    check.function("work", work, "a function that takes the session")
    if on_lost is not None:
        check.function("on_lost", on_lost, "a function that takes the loss")
    kept = KeptSession(client, holder=holder, ttl=ttl, policy=policy)
    try:
        while True:
            session = await kept.live(until=float("inf"))
            try:
                return await session._while_live(work(session))
            except Lost as lost:
                if session.is_live():
                    raise
                log_late_error(session, lost.__cause__)
                if on_lost is not None:
                    on_lost(lost)
    finally:
        await kept.close()


def log_late_error(session: Session, cause: BaseException | None) -> None:
    """Says by what error work has ended after its session was lost, where that is not the loss itself."""
    if cause is not None and not isinstance(cause, SoleholdError):
        LOG.warning("the work of %s ended after its session was lost: %s: %s", session.holder, type(cause).__name__, cause)


def _own_name(client: Client) -> str:
    return f"{socket.gethostname()[:200]}-{os.getpid()}-{client.rng.getrandbits(32):08x}"
