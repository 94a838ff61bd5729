"""One leader at a time, and another when it goes."""

from __future__ import annotations

import asyncio
import unittest

from solehold_client import Client, Guard, Lost, Session, elect
from solehold_client.kept import KeptSession

from .support.server import Solehold, wait_until


class Elections(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self) -> None:
        self.server = Solehold()
        self.addCleanup(self.server.stop)
        self.client = Client(self.server.url)
        self.addAsyncCleanup(self.client.close)
        self.leading = self.most = 0
        self.terms: asyncio.Queue[Guard] = asyncio.Queue()

    async def lead(self, guard: Guard) -> None:
        self.leading += 1
        self.most = max(self.most, self.leading)
        try:
            await self.terms.put(guard)
            await asyncio.Event().wait()
        finally:
            self.leading -= 1

    async def revoke(self, guard: Guard) -> None:
        path = f"/api/v1/resources/role/{guard.key}/lease/revoke"
        await self.client.request("POST", path, {"token": guard.token})

    async def test_one_leads_and_the_next_follows(self) -> None:
        async with Session.open(self.client, "one", ttl=2.0) as one, Session.open(self.client, "two", ttl=2.0) as two:
            candidates = [asyncio.ensure_future(elect(session, "compactor", self.lead)) for session in (one, two)]
            first = await self.terms.get()
            await self.in_line("compactor", 1)
            await self.revoke(first)
            second = await self.terms.get()
            self.assertGreater(second.token, first.token)
            self.assertEqual((await first.lost()).why, "ended")
            # The first stands again, and follows when the second goes for good.
            await self.in_line("compactor", 1)
            (leader,) = [session for session in (one, two) if session._holds]
            candidates[0 if leader is one else 1].cancel()
            third = await self.terms.get()
            self.assertGreater(third.token, second.token)
            for candidate in candidates:
                candidate.cancel()
            await asyncio.wait(candidates)
        self.assertEqual((self.most, self.leading), (1, 0))

    async def in_line(self, role: str, count: int) -> None:
        async def are_there() -> bool:
            resource = await self.client.request("GET", f"/api/v1/resources/role/{role}")
            return isinstance(resource, dict) and resource["waiting"] == count

        await wait_until(f"{count} in line", are_there)

    async def test_a_leader_that_is_done_gives_its_answer_and_makes_room(self) -> None:
        async def lead(guard: Guard) -> int:
            return guard.token * 2

        async with Session.open(self.client, "one") as session:
            self.assertGreater(await elect(session, "report", lead), 0)
            async with session.acquire("role", "report", timeout=0):
                pass

    async def test_an_error_of_the_work_is_raised_and_makes_room(self) -> None:
        async def lead(guard: Guard) -> None:
            raise ZeroDivisionError

        async with Session.open(self.client, "one") as session:
            with self.assertRaises(ZeroDivisionError):
                await elect(session, "report", lead)
            async with session.acquire("role", "report", timeout=0):
                pass

    async def test_with_a_session_it_ends_with_that_one(self) -> None:
        async with Session.open(self.client, "one") as session:
            standing = asyncio.ensure_future(elect(session, "boss", self.lead))
            guard = await self.terms.get()
        with self.assertRaises(Lost):
            await standing
        self.assertEqual((await guard.lost()).why, "closed")

    async def test_with_a_client_it_stands_again_in_another_session(self) -> None:
        standing = asyncio.ensure_future(elect(self.client, "boss", self.lead, ttl=2.0))
        first = await self.terms.get()
        await self.client.request("DELETE", f"/api/v1/sessions/{first._session.session_id}")
        second = await self.terms.get()
        self.assertNotEqual(second._session.session_id, first._session.session_id)
        self.assertGreater(second.token, first.token)
        standing.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await standing
        async with Session.open(self.client, "next") as session, session.acquire("role", "boss", timeout=0):
            pass

    async def test_whoever_is_superseded_does_not_fight(self) -> None:
        standing = asyncio.ensure_future(elect(self.client, "boss", self.lead, holder="twin", ttl=2.0))
        await self.terms.get()
        async with Session.open(self.client, "twin", ttl=30.0) as twin:
            with self.assertRaises(Lost) as lost:
                await standing
            self.assertEqual(lost.exception.code, "session_superseded")
            self.assertTrue(twin.is_live())
            kept = KeptSession(twin, holder=None, ttl=30.0, policy=twin.config.policy)
            self.assertIs(await kept.live(), twin)
