"""Named locks: first come, first served, across all processes."""

from __future__ import annotations

from types import TracebackType

from . import check
from .acquire import Acquire
from .client import Client
from .enterable import Enterable
from .guard import Guard
from .kept import KeptSession
from .renewer import Policy
from .session import Session

KIND = "lock"
"""A lock is a resource of this kind. Locks are not declared."""


class Locks:
    """Locks that are attached to a session: the one given, or one of its own that it opens with a client."""

    def __init__(
        self,
        owner: Client | Session,
        *,
        holder: str | None = None,
        ttl: float = 30.0,
        policy: Policy = Policy.DEADLINE,
    ) -> None:
        self._kept = KeptSession(owner, holder=holder, ttl=ttl, policy=policy)

    def acquire(self, name: str, *, timeout: float | None = None) -> Enterable[Guard]:
        """Waits in line for a lock: up to `timeout` seconds, forever if None, not at all if 0.

        `async with locks.acquire(...) as guard`, or `guard = await locks.acquire(...)`. When the time is up it raises
        the last refusal. However it ends without a guard, the line is left and nothing is held.
        """
        check.name("name", name)
        check.timeout(timeout)
        return Enterable(self._acquire(name, timeout))

    async def _acquire(self, name: str, timeout: float | None) -> Guard:
        until = self._kept.client.tick_after(timeout)
        session = await self._kept.live(until=min(until, self._kept.client.tick_after(self._kept.client.retry_for)))
        return await Acquire(session, KIND, name, until).run()

    async def try_acquire(self, name: str) -> Guard:
        """Takes a free lock, or raises `Refused` with its holder."""
        return await self.acquire(name, timeout=0.0)

    async def close(self) -> None:
        """Closes the session, if it is its own: its locks are released."""
        await self._kept.close()

    async def __aenter__(self) -> Locks:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
