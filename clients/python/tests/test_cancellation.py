"""Whatever is cancelled, in whichever round of the event loop, leaves nothing behind that nobody ends."""

from __future__ import annotations

import asyncio
import itertools
import unittest
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from solehold_client import Client, Guard, Locks, Session, elect, keep_session
from solehold_client.wire import SessionView

from .support.model import Authority
from .support.virtual import VirtualLoop, simulate
from .support.world import world

# In rounds, how much later something is cancelled once more; 0 for not at all.
AGAIN = (0, 1, 3)
# The first round after the first step: nothing is promised of work that never began.
FIRST = 2
TTL = 60.0

Work = Callable[[Client], Awaitable[object]]


class Outcome:
    """What was left after some work was cancelled."""

    def __init__(self) -> None:
        self.rounds = 0
        self.was_cancelled = False
        self.held: list[str] = []
        self.open: list[str] = []
        self.tasks: list[str] = []


def cancelled_in(cancel_at: int, again: int, prepare: Callable[[Client], Awaitable[Work]], forgets: bool) -> Outcome:
    """Runs the work, cancels it in the round `cancel_at`, and looks after a while."""
    outcome, authority = Outcome(), Authority()

    async def whole() -> None:
        at = world(authority=authority)
        at.link.forgets, client = forgets, at.client
        known = sessions_known_to(client)
        work = await prepare(client)
        before = asyncio.all_tasks()
        task = asyncio.create_task(_ended(work(client)), name="work")
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)

        def on_round() -> bool:
            if not task.done():
                outcome.rounds += 1
            if outcome.rounds in {cancel_at, cancel_at + again} and not task.done():
                return task.cancel()
            return False

        loop.on_round(on_round)
        await asyncio.wait({task})
        loop.on_round(lambda: False)
        outcome.was_cancelled = task.cancelled()
        await asyncio.sleep(10.0)
        now = loop.time()
        outcome.held = [key for key, lease in authority.leases.items() if authority.sessions[lease.session_id].deadline > now]
        # One whose opening was not answered has nothing attached to it, and runs out.
        outcome.open = [session_id for session_id in known if authority.sessions[session_id].deadline > now]
        await client.close()
        outcome.tasks = [str(left.get_coro()) for left in asyncio.all_tasks() - before - {task}]

    simulate(whole())
    return outcome


def sessions_known_to(client: Client) -> list[str]:
    """The sessions that the client has opened, as it goes on."""
    known: list[str] = []
    opening = client.open_session

    async def open_session(holder: str, **options: Any) -> tuple[float, SessionView]:
        sent, view = await opening(holder, **options)
        known.append(view.session_id)
        return sent, view

    client.open_session = open_session  # type: ignore[assignment]
    return known


async def _ended(work: Awaitable[object]) -> None:
    """The result is dropped when the work was not cancelled, so it releases by itself."""
    await work


class Cancelled(unittest.TestCase):
    def in_every_round(self, prepare: Callable[[Client], Awaitable[Work]], check: Callable[[Outcome], object]) -> None:
        rounds = cancelled_in(-1, 0, prepare, False).rounds
        self.assertGreater(rounds, 5)
        for forgets, again, cancel_at in itertools.product((False, True), AGAIN, range(FIRST, rounds + 1)):
            with self.subTest(forgets=forgets, cancel_at=cancel_at, again=again, rounds=rounds):
                check(cancelled_in(cancel_at, again, prepare, forgets))

    def holds_nothing(self, outcome: Outcome) -> None:
        self.assertEqual(outcome.held, [])

    def leaves_nothing(self, outcome: Outcome) -> None:
        self.assertEqual((outcome.held, outcome.open, outcome.tasks), ([], [], []))

    def test_an_acquire_and_its_release(self) -> None:
        async def prepare(client: Client) -> Work:
            session = await Session.open(client, "w", ttl=TTL)

            async def work(_: Client) -> None:
                async with session.acquire("scene", "hall"):
                    await asyncio.sleep(0.01)

            return work

        self.in_every_round(prepare, self.holds_nothing)

    def test_an_acquire_that_waits_in_line(self) -> None:
        async def prepare(client: Client) -> Work:
            session, other = await Session.open(client, "w", ttl=TTL), await Session.open(client, "other", ttl=TTL)
            first = await other.acquire("scene", "hall")

            async def work(_: Client) -> None:
                releasing = asyncio.ensure_future(_later(first))
                try:
                    async with session.acquire("scene", "hall"):
                        pass
                finally:
                    await asyncio.shield(releasing)

            return work

        self.in_every_round(prepare, self.holds_nothing)

    def test_a_release_with_a_last_document(self) -> None:
        async def prepare(client: Client) -> Work:
            session = await Session.open(client, "w", ttl=TTL)
            guard = await session.acquire("scene", "hall")
            return lambda _: guard.release()

        self.in_every_round(prepare, self.holds_nothing)

    def test_the_closing_of_a_session(self) -> None:
        async def prepare(client: Client) -> Work:
            session = await Session.open(client, "w", ttl=TTL)
            guard = await session.acquire("scene", "hall")

            async def work(_: Client) -> None:
                await session.close()
                assert not guard.is_live()

            return work

        self.in_every_round(prepare, self.leaves_nothing)

    def test_a_session_whose_program_cancels_all_tasks_is_closed(self) -> None:
        async def prepare(_: Client) -> Work:
            async def work(client: Client) -> None:
                async with Session.open(client, "w", ttl=TTL) as session, session.acquire("scene", "hall"):
                    for task in asyncio.all_tasks():
                        if task.get_name() == "work" or "Session." in str(task.get_coro()):
                            task.cancel()
                    await asyncio.sleep(1.0)

            return work

        outcome = cancelled_in(-1, 0, prepare, True)
        self.assertTrue(outcome.was_cancelled)
        self.leaves_nothing(outcome)

    def test_a_session_with_all_that_it_does(self) -> None:
        async def prepare(_: Client) -> Work:
            async def work(client: Client) -> None:
                async with Session.open(client, "w", ttl=TTL) as session, session.acquire("scene", "hall") as guard:
                    await guard.run(asyncio.sleep(0.01))

            return work

        self.in_every_round(prepare, self.leaves_nothing)

    def test_locks_of_a_client(self) -> None:
        async def prepare(_: Client) -> Work:
            async def work(client: Client) -> None:
                async with Locks(client, ttl=TTL) as locks, locks.acquire("report"):
                    await asyncio.sleep(0.01)

            return work

        self.in_every_round(prepare, self.leaves_nothing)

    def test_an_election_and_a_kept_session(self) -> None:
        async def prepare(_: Client) -> Work:
            async def lead(_: Guard) -> None:
                await asyncio.sleep(0.01)

            async def hold(session: Session) -> None:
                await elect(session, "boss", lead)

            async def work(client: Client) -> None:
                await elect(client, "boss", lead, ttl=TTL)
                await keep_session(client, "w", hold, ttl=TTL)

            return work

        self.in_every_round(prepare, self.leaves_nothing)


async def _later(guard: Guard) -> None:
    await asyncio.sleep(0.1)
    with suppress(asyncio.CancelledError):
        await guard.release()
