"""One worker and its way to the model of the authority, on virtual time."""

from __future__ import annotations

import asyncio
import random
import unittest
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from solehold_client import Client, Guard, Policy, Session

from .model import Authority, Link
from .virtual import VirtualClock, simulate

TTL = 3.0


@dataclass
class World:
    """One worker, and its way to the authority."""

    authority: Authority
    link: Link
    clock: VirtualClock
    client: Client
    sessions: list[Session] = field(default_factory=list)
    guards: list[Guard] = field(default_factory=list)

    async def open(self, holder: str = "w", *, ttl: float = TTL, policy: Policy = Policy.DEADLINE) -> Session:
        """A session that is closed when the test ends."""
        session = await Session.open(self.client, holder, ttl=ttl, policy=policy)
        self.sessions.append(session)
        return session

    async def hold(self, session: Session, key: str = "hall") -> Guard:
        """A guard that is held until its session is closed."""
        guard = await session.acquire("scene", key)
        self.guards.append(guard)
        return guard

    def neighbour(self) -> World:
        """Another worker at the same authority."""
        return world(authority=self.authority, seed=2, sessions=self.sessions)


def world(
    *, authority: Authority | None = None, seed: int = 1, rate: float = 1.0, sessions: list[Session] | None = None
) -> World:
    authority = authority or Authority()
    link = Link(authority, random.Random(seed))
    clock = VirtualClock(rate=rate, offset=1000.0 * seed)
    client = Client(
        "http://model", timeout=0.5, retry_for=2.0, clock=clock, rng=random.Random(seed), transport=link.transport
    )
    return World(authority, link, clock, client, [] if sessions is None else sessions)


def time() -> float:
    """The virtual time."""
    return asyncio.get_running_loop().time()


class WorldCase(unittest.TestCase):
    """Runs work in a world of its own."""

    def run_world(self, work: Callable[[World], Awaitable[None]]) -> None:
        async def whole() -> None:
            at = world()
            try:
                await work(at)
            finally:
                for session in at.sessions:
                    await session.close()

        simulate(whole())
