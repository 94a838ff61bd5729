"""The session that something works under: one that was given, or one of its own."""

from __future__ import annotations

import asyncio
import os
import socket

from . import check
from .client import Client
from .log import LOG
from .renewer import Policy
from .session import Session, SessionConfig


class KeptSession:
    """A session that was given, or with a client one of its own, opened when it is needed and again after a loss.

    A session whose holder has opened another one elsewhere is not opened again: two would end each other in turn.
    """

    def __init__(self, owner: Client | Session, *, holder: str | None, ttl: float, policy: Policy) -> None:
        check.instance("owner", owner, (Client, Session), "a Client or a Session")
        if isinstance(owner, Session) and holder is not None:
            raise ValueError(f"the session is {owner.holder}'s already: give a holder only together with a client")
        self.client = owner.client if isinstance(owner, Session) else owner
        self.is_own = isinstance(owner, Client)
        self._session = owner if isinstance(owner, Session) else None
        self._config = SessionConfig(_own_name(self.client) if holder is None else holder, ttl=ttl, policy=policy)
        self._opening = asyncio.Lock()

    async def live(self, *, until: float | None = None) -> Session:
        """The session, which is opened if it is its own; until the tick `until` while no server answers."""
        async with self._opening:
            lost = None if self._session is None else self._session._judge()
            if self._session is None or (self.is_own and lost is not None):
                if lost is not None and lost.code == "session_superseded":
                    raise lost.again()
                if self._session is not None:
                    LOG.info("opening another session of %s: the former one is over", self._config.holder)
                    await self._session.close()
                self._session = await Session._open(self.client, self._config, until=until)
            return self._session

    async def close(self) -> None:
        """Closes the session, if it is its own: everything attached to it is released."""
        if self.is_own and self._session is not None:
            await self._session.close()


def _own_name(client: Client) -> str:
    return f"{socket.gethostname()[:200]}-{os.getpid()}-{client.rng.getrandbits(32):08x}"
