"""A session that is opened again after it was lost, against a real server that goes away and comes back."""

from __future__ import annotations

import asyncio
import queue
import threading
import unittest

from solehold_client import Client, Guard, Lost, Session, SessionConfig, Unauthorized, keep_session, sync

from .support.server import Solehold, free_port, wait_for
from .test_server import stop_heartbeats


class Case:
    """A server at one address, which may be started again."""

    server: Solehold

    def start(self) -> None:
        self.server = Solehold()
        self.address = self.server.url

    def outage(self) -> None:
        self.server.kill()

    def come_back(self) -> Solehold:
        return Solehold(port=int(self.address.rpartition(":")[2]), data_dir=self.server.data_dir)


class Keeping(Case, unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self) -> None:
        self.start()
        self.addCleanup(self.server.stop)
        self.client = Client(self.address, retry_for=0.5)
        self.addAsyncCleanup(self.client.close)
        self.sessions: asyncio.Queue[Session] = asyncio.Queue()
        self.guards: asyncio.Queue[Guard] = asyncio.Queue()
        self.losses: asyncio.Queue[Lost] = asyncio.Queue()
        self.done = asyncio.Event()

    async def hold(self, session: Session) -> str:
        await self.sessions.put(session)
        async with session.acquire("scene", "hall") as guard:
            await self.guards.put(guard)
            await self.done.wait()
        return "done"

    def keep(self, holder: str | SessionConfig = "keeper", ttl: float = 5.0) -> asyncio.Task[str]:
        kept = keep_session(self.client, holder, self.hold, ttl=ttl, on_lost=self.losses.put_nowait)
        return asyncio.ensure_future(kept)

    async def test_a_session_that_is_lost_in_an_outage_is_followed_by_the_next(self) -> None:
        keeping = self.keep()
        first, former = await self.sessions.get(), await self.guards.get()
        self.outage()
        self.assertEqual((await self.losses.get()).why, "deadline")
        self.assertFalse(first.is_live())
        again = self.come_back()
        self.addCleanup(again.stop)
        second, guard = await self.sessions.get(), await self.guards.get()
        self.assertNotEqual(second.session_id, first.session_id)
        self.assertTrue(second.is_live())
        self.assertGreater(guard.token, former.token)
        self.done.set()
        self.assertEqual(await keeping, "done")
        self.assertEqual((await second.lost()).why, "closed")
        self.assertTrue(self.losses.empty(), "a session that is closed is not lost")

    async def test_a_server_that_is_not_there_yet_is_waited_for(self) -> None:
        port = free_port()
        async with Client(f"127.0.0.1:{port}", retry_for=0.1) as client:
            keeping = asyncio.ensure_future(keep_session(client, "early", self.hold))
            ended, _ = await asyncio.wait({keeping}, timeout=0.5)
            self.assertEqual(ended, set())
            late = Solehold(port=port)
            self.addCleanup(late.stop)
            await self.guards.get()
            self.done.set()
            self.assertEqual(await keeping, "done")

    async def test_one_that_is_superseded_does_not_fight(self) -> None:
        keeping = self.keep("twin")
        await self.guards.get()
        async with Session.open(self.client, "twin", ttl=30.0) as twin:
            with self.assertRaises(Lost) as lost:
                await keeping
            self.assertEqual(lost.exception.code, "session_superseded")
            self.assertEqual((await self.losses.get()).code, "session_superseded")
            self.assertTrue(twin.is_live())

    async def test_one_that_comes_back_late_does_not_end_its_successor(self) -> None:
        keeping = self.keep("twin", ttl=2.0)
        session = await self.sessions.get()
        await self.guards.get()
        stop_heartbeats(session)  # so that it does not hear of the successor
        async with Session.open(self.client, "twin", ttl=30.0) as twin:
            with self.assertRaises(Lost) as lost:
                await asyncio.wait_for(keeping, 60.0)
            self.assertEqual((await self.losses.get()).why, "deadline")
            self.assertEqual(lost.exception.code, "session_superseded")
            self.assertTrue(twin.is_live())
            async with twin.acquire("scene", "hall", timeout=30):
                pass  # the server agrees

    async def test_an_error_of_the_work_is_raised_and_closes_the_session(self) -> None:
        opened: list[Session] = []

        async def fails(session: Session) -> None:
            opened.append(session)
            raise ZeroDivisionError

        with self.assertRaises(ZeroDivisionError):
            await keep_session(self.client, "failing", fails, on_lost=self.losses.put_nowait)
        self.assertEqual([(await session.lost()).why for session in opened], ["closed"])
        self.assertTrue(self.losses.empty())

    async def test_a_lease_that_is_lost_is_no_lost_session(self) -> None:
        keeping = self.keep(ttl=30.0)
        guard = await self.guards.get()
        path = f"/api/v1/resources/scene/{guard.key}/lease/revoke"
        await self.client.request("POST", path, {"token": guard.token, "fenced": True})
        await guard.lost()
        self.done.set()
        with self.assertRaises(Lost) as lost:
            await keeping
        self.assertEqual((lost.exception.why, self.losses.empty()), ("ended", True))

    async def test_cancelling_it_closes_the_session(self) -> None:
        keeping = self.keep(ttl=30.0)
        session = await self.sessions.get()
        await self.guards.get()
        keeping.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await keeping
        self.assertEqual((await session.lost()).why, "closed")
        async with Session.open(self.client, "next") as heir, heir.acquire("scene", "hall", timeout=0):
            pass

    async def test_a_former_session_is_replaced_once(self) -> None:
        former = await Session.open(self.client, "keeper", ttl=30.0)
        self.addAsyncCleanup(former.close)
        keeping = self.keep(SessionConfig("keeper", replace=former.session_id))
        for _ in range(2):
            stop_heartbeats(await self.sessions.get())
        self.done.set()
        self.assertEqual(await keeping, "done")

    async def test_a_key_that_is_refused_ends_it(self) -> None:
        await self.client.request("POST", "/api/v1/admin/keys", {"name": "test", "role": "admin"})
        with self.assertRaises(Unauthorized):
            await self.keep()


class KeepingWithoutAsyncio(Case, unittest.TestCase):
    def setUp(self) -> None:
        self.start()
        self.addCleanup(self.server.stop)
        self.client = sync.Client(self.address, retry_for=0.5)
        self.addCleanup(self.client.close)

    def test_a_session_that_is_lost_in_an_outage_is_followed_by_the_next(self) -> None:
        sessions: queue.Queue[sync.Session] = queue.Queue()
        stopped: queue.Queue[Lost] = queue.Queue()
        results: queue.Queue[str] = queue.Queue()
        tokens: list[int] = []

        def work(session: sync.Session) -> str:
            with session.acquire("scene", "hall") as guard:
                tokens.append(guard.token)
                sessions.put(session)
                if len(tokens) == 1:
                    stopped.get()  # what blocks until `on_lost` ends it
                    raise ConnectionError("ended by on_lost")
                return "done"

        def keep() -> None:
            results.put(sync.keep_session(self.client, "keeper", work, ttl=5.0, on_lost=stopped.put))

        keeping = threading.Thread(target=keep)
        keeping.start()
        first = sessions.get(timeout=60)
        self.outage()
        wait_for("the session to be lost", lambda: not first.is_live())
        again = self.come_back()
        self.addCleanup(again.stop)
        self.assertNotEqual(sessions.get(timeout=60).session_id, first.session_id)
        self.assertEqual(results.get(timeout=60), "done")
        keeping.join()
        self.assertEqual((len(tokens), tokens, stopped.qsize()), (2, sorted(set(tokens)), 0))

    def test_what_it_returns_after_the_loss_does_not_count(self) -> None:
        rounds: list[sync.Session] = []

        def work(session: sync.Session) -> int:
            rounds.append(session)
            if len(rounds) == 1:
                stop_heartbeats(session._async)
                session.lost()
            return len(rounds)

        self.assertEqual(sync.keep_session(self.client, "late", work, ttl=3.0), 2)

        def fails(session: sync.Session) -> None:
            rounds.append(session)
            raise ZeroDivisionError

        with self.assertRaises(ZeroDivisionError):
            sync.keep_session(self.client, "failing", fails)
        self.assertFalse(any(session.is_live() for session in rounds))

    def test_a_loss_of_a_session_is_told(self) -> None:
        told: queue.Queue[Lost] = queue.Queue()
        with sync.Session.open(self.client, "closed") as session:
            session.on_lost(told.put)
        with sync.Session.open(self.client, "mourner", ttl=1.0) as session:
            session.on_lost(told.put)
            self.outage()
            self.assertEqual(told.get(timeout=60).why, "deadline")
        self.assertTrue(told.empty(), "closing is no loss")
