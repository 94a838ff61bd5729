"""Two servers over one PostgreSQL: either may go."""

from __future__ import annotations

import asyncio
import unittest

from solehold_client import Client, Locks, Session

from .support.server import Postgres, Solehold, wait_until


@unittest.skipUnless(Postgres.programs(), "PostgreSQL is not installed")
class Failover(unittest.IsolatedAsyncioTestCase):
    postgres: Postgres

    @classmethod
    def setUpClass(cls) -> None:
        cls.postgres = Postgres()
        cls.addClassCleanup(cls.postgres.stop)

    def setUp(self) -> None:
        self.servers = [Solehold("--engine", self.postgres.url) for _ in range(2)]
        for server in self.servers:
            self.addCleanup(server.stop)

    async def test_a_session_survives_the_loss_of_its_server(self) -> None:
        first, second = self.servers
        async with Client([first.url, second.url]) as client, Session.open(client, "survivor", ttl=6.0) as session:
            left = session.deadline - client.clock.now()
            self.assertLessEqual(left, 6.0 - 0.12 - 0.5, "PostgreSQL's clock may run ahead unnoticed")
            async with await session.acquire("scene", "failover") as guard:
                token, deadline = guard.token, guard.deadline
                first.kill()

                async def moved_on() -> bool:
                    self.assertTrue(guard.is_live())
                    return guard.deadline > deadline + 3.0

                await wait_until("two heartbeats at the second server", moved_on)
                self.assertEqual(guard.check(), token)
                await guard.write_state({"kept": True})
            async with await session.acquire("scene", "failover") as again:
                self.assertGreater(again.token, token)
                assert again.state is not None
                self.assertEqual(again.state.document, {"kept": True})

    async def test_waiting_at_one_server_for_what_is_held_at_the_other(self) -> None:
        first, second = self.servers
        async with Client(first.url) as one, Client(second.url) as other:
            async with Session.open(one, "one") as holder, Session.open(other, "other") as waiter:
                guard = await holder.acquire("scene", "failover")
                waiting = asyncio.ensure_future(waiter.acquire("scene", "failover"))
                await guard.release()
                async with await waiting as heir:
                    self.assertGreater(heir.token, guard.token)

    async def test_a_lock_is_waited_for_across_servers_and_the_loss_of_one(self) -> None:
        first, second = self.servers
        async with Client(second.url) as one, Client([first.url, second.url]) as other:
            async with Session.open(one, "one") as holder, Session.open(other, "other") as waiter:
                guard = await Locks(holder).acquire("shared")
                waiting = asyncio.ensure_future(Locks(waiter).acquire("shared"))

                async def in_line() -> bool:
                    return await self.waiting(one) > 0

                await wait_until("someone in line", in_line)
                first.kill()
                await guard.release()
                async with await waiting as heir:
                    self.assertGreater(heir.token, guard.token)

    async def waiting(self, client: Client) -> int:
        lock = await client.request("GET", "/api/v1/locks/shared")
        assert isinstance(lock, dict)
        return int(str(lock["waiting"]))
