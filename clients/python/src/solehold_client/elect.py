"""A role that one of many has at a time, for jobs that exactly one of them must do."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from . import check
from .client import Client
from .errors import Lost
from .guard import Guard
from .kept import KeptSession
from .log import LOG
from .renewer import Policy
from .session import Session

KIND = "role"
"""A role is a resource of this kind."""

T = TypeVar("T")


class Candidate:
    """One that stands for a role, again and again, in the session given or in one of its own."""

    def __init__(
        self, owner: Client | Session, role: str, *, holder: str | None, ttl: float, policy: Policy
    ) -> None:
        self._role = check.name("role", role)
        self._kept = KeptSession(owner, holder=holder, ttl=ttl, policy=policy)

    async def stand(self) -> Guard:
        """Waits in line for the role."""
        while True:
            session = await self._kept.live(until=float("inf"))
            try:
                guard = await session.acquire(KIND, self._role)
            except Lost as lost:
                if not self._kept.is_own:
                    raise
                LOG.info("%s stands for election as %s again: %s", session.holder, self._role, lost)
                continue
            LOG.info("%s was elected %s with token %d", session.holder, self._role, guard.token)
            return guard

    def deposed(self, guard: Guard, lost: Lost) -> None:
        """The work of a term has ended by this loss; one of something else that the work holds is raised again."""
        if guard.is_live():
            raise lost
        LOG.warning("lost the role %s with token %d; standing for election again: %s", self._role, guard.token, lost)

    async def close(self) -> None:
        """Closes the session, if it is its own."""
        await self._kept.close()


async def elect(
    owner: Client | Session,
    role: str,
    lead: Callable[[Guard], Awaitable[T]],
    *,
    holder: str | None = None,
    ttl: float = 30.0,
    policy: Policy = Policy.DEADLINE,
) -> T:
    """Waits to be elected, leads, and stands again whenever it lost the role, until `lead` returns by itself; then the
    role is released, and its result returned.

    `lead` gets the guard of its term, whose token fences what it does; when the role is lost, it is cancelled. With a
    client it stands in a session of its own, which is opened again after a loss. With a session it ends with that one.
    """
    check.function("lead", lead, "a function that takes the guard of its term")
    candidate = Candidate(owner, role, holder=holder, ttl=ttl, policy=policy)
    try:
        while True:
            async with await candidate.stand() as guard:
                try:
                    return await guard.run(lead(guard))
                except Lost as lost:
                    candidate.deposed(guard, lost)
    finally:
        await candidate.close()
