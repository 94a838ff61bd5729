"""Named locks: first come, first served, across all processes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import TracebackType

from . import check
from .acquire import Acquire
from .acquire_all import AcquireAll, Shared, check_wanted
from .client import Client
from .enterable import Enterable
from .guard import Guard, Guards
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

    def acquire(self, name: str, *, timeout: float | None = None, slots: int | None = None) -> Enterable[Guard]:
        """Waits in line for a lock: up to `timeout` seconds, forever if None, not at all if 0. With `slots` it is shared
        by up to that many holders.

        `async with locks.acquire(...) as guard`, or `guard = await locks.acquire(...)`. When the time is up it raises
        the last refusal. However it ends without a guard, the line is left and nothing is held.
        """
        check.name("name", name)
        check.timeout(timeout)
        check.slots(slots)
        return Enterable(self._acquire(name, timeout, slots))

    async def _acquire(self, name: str, timeout: float | None, slots: int | None) -> Guard:
        until = self._kept.client.tick_after(timeout)
        return await Acquire(await self._live(until), KIND, name, until, slots=slots).run()

    async def _live(self, until: float) -> Session:
        return await self._kept.live(until=min(until, self._kept.client.tick_after(self._kept.client.retry_for)))

    async def try_acquire(self, name: str, *, slots: int | None = None) -> Guard:
        """Takes a free lock, or raises `Refused` with its holder."""
        return await self.acquire(name, timeout=0.0, slots=slots)

    def acquire_all(
        self, names: Iterable[str | tuple[str, int | None]], *, timeout: float | None = None
    ) -> Enterable[Guards]:
        """Acquires all of the locks or none, as `Session.acquire_all` does: each is a name, or a name and its slots."""
        check.instance("names", names, Iterable, "a list of names")
        if isinstance(names, str):
            raise TypeError("names must be a list of names, not one name")
        wanted = check_wanted((KIND, name) if isinstance(name, str) else (KIND, *name) for name in names)
        check.timeout(timeout)
        return Enterable(self._acquire_all(wanted, timeout))

    async def _acquire_all(self, wanted: Sequence[Shared], timeout: float | None) -> Guards:
        until = self._kept.client.tick_after(timeout)
        return await AcquireAll(await self._live(until), wanted, until).run()

    async def close(self) -> None:
        """Closes the session, if it is its own: its locks are released."""
        await self._kept.close()

    async def __aenter__(self) -> Locks:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
