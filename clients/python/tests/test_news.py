"""Holders are told at once: with a ttl of five minutes, no heartbeat is due for over a minute."""

from __future__ import annotations

import asyncio
import unittest

from solehold_client import Client, Session
from .support.server import Solehold

TTL = 300.0
# A bound for a busy machine; the heartbeat alone would take 80 s or more.
SOON = 20.0


class News(unittest.IsolatedAsyncioTestCase):
    server: Solehold

    @classmethod
    def setUpClass(cls) -> None:
        cls.server = Solehold()
        cls.addClassCleanup(cls.server.stop)

    async def asyncSetUp(self) -> None:
        self.client = Client(self.server.url)
        self.addAsyncCleanup(self.client.close)

    async def revoke(self, key: str) -> None:
        await self.client.request("POST", f"/api/v1/resources/scene/{key}/lease/revoke", {})

    async def test_a_revoked_lease_is_known_at_once(self) -> None:
        async with Session.open(self.client, "told", ttl=TTL) as session:
            # Again and again: the next word may come while the heartbeat after the last one is answered.
            for key in map(str, range(20)):
                guard = await session.acquire("scene", key)
                kept = await session.acquire("scene", f"{key}-kept")
                await self.revoke(key)
                lost = await asyncio.wait_for(guard.lost(), SOON)
                self.assertEqual(lost.why, "ended")
                self.assertTrue(kept.is_live() and session.is_live())
                await kept.release()

    async def test_one_question_serves_all_sessions_of_a_client(self) -> None:
        async with (
            Session.open(self.client, "one", ttl=TTL) as one,
            Session.open(self.client, "two", ttl=TTL) as two,
        ):
            guards = [await one.acquire("scene", "of-one"), await two.acquire("scene", "of-two")]
            await self.revoke("of-two")
            await asyncio.wait_for(guards[1].lost(), SOON)
            self.assertTrue(guards[0].is_live())
            await self.revoke("of-one")
            await asyncio.wait_for(guards[0].lost(), SOON)

    async def test_a_session_that_another_one_supersedes_is_told(self) -> None:
        first = await Session.open(self.client, "same", ttl=TTL)
        self.addAsyncCleanup(first.close)
        guard = await first.acquire("scene", "superseded")
        async with Session.open(self.client, "same", ttl=TTL):
            await self.revoke("superseded")
            lost = await asyncio.wait_for(guard.lost(), SOON)
            self.assertEqual(lost.code, "session_superseded")


if __name__ == "__main__":
    unittest.main()
