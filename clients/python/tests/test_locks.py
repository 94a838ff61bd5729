"""Locks against a real server: in order, exclusive, and with a clean line."""

from __future__ import annotations

import asyncio
import unittest
from collections import Counter
from contextvars import ContextVar
from typing import Any
from unittest import mock

from solehold_client import Client, Guard, Locks, Lost, NotFound, Refused, Session, Unavailable, client, line
from solehold_client.wire import Grant

from .support.server import Solehold, wait_until

SERVER: Solehold
WAITERS = 200
# So many requests of theirs are repeats before anyone is served.
ASKED_AGAIN = 20
NUMBER: ContextVar[int] = ContextVar("NUMBER")


def setUpModule() -> None:
    global SERVER
    SERVER = Solehold()


def tearDownModule() -> None:
    SERVER.stop()


class Case(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self) -> None:
        self.client = Client(SERVER.url)
        self.addAsyncCleanup(self.client.close)
        self.session = await Session.open(self.client, self.id()[-200:])
        self.addAsyncCleanup(self.session.close)
        self.locks = Locks(self.session)

    async def waiting(self, name: str) -> int:
        """How many wait in line, by the server's word."""
        try:
            lock = await self.client.request("GET", f"/api/v1/locks/{name}")
        except NotFound:
            return 0
        assert isinstance(lock, dict)
        return int(str(lock["waiting"]))

    async def until_waiting(self, name: str, count: int) -> None:
        async def are_there() -> bool:
            return await self.waiting(name) == count

        await wait_until(f"{count} in line for {name}", are_there)

    async def in_line(self, name: str, place: int, *, timeout: float | None = None) -> asyncio.Task[Guard]:
        """A task that waits at this place in line."""
        task = asyncio.ensure_future(self.locks.acquire(name, timeout=timeout))
        await self.until_waiting(name, place)
        return task


class Order(Case):
    async def test_many_waiters_are_handed_the_lock_in_order(self) -> None:
        first = await self.locks.acquire("many")
        ask, asked = self.client.acquire, Counter[int]()
        requests: dict[int, set[str]] = {}
        order: list[int] = []
        inside = 0

        async def counted(kind: str, key: str, **options: Any) -> tuple[float, Grant]:
            asked[NUMBER.get()] += 1
            requests.setdefault(NUMBER.get(), set()).add(options["request_id"])
            return await ask(kind, key, **options)

        async def work(number: int) -> int:
            nonlocal inside
            NUMBER.set(number)
            async with await self.locks.acquire("many") as guard:
                inside += 1
                self.assertEqual(inside, 1)
                order.append(number)
                await asyncio.sleep(0)
                inside -= 1
                return guard.token

        short = mock.patch.object(line, "WAIT_SECONDS_MAX", 10.0)
        with short, mock.patch.object(self.client, "acquire", counted):
            tasks = []
            for number in range(WAITERS):
                tasks.append(asyncio.ensure_future(work(number)))
                await self.until_waiting("many", number + 1)
            while sum(asked.values()) < WAITERS + ASKED_AGAIN:
                await asyncio.sleep(0.01)
            await first.release()
            tokens = await asyncio.gather(*tasks)
        self.assertEqual(sorted(order), list(range(WAITERS)))
        self.assertEqual([tokens[number] for number in order], sorted(set(tokens)))
        self.assertGreater(min(tokens), first.token)
        # A waiter that asks again keeps its place. Only on a machine so slow that a grant lapses before it is confirmed
        # does a waiter go to the end of the line, under another request id; the others keep their places.
        steady = [number for number in order if len(requests[number]) == 1]
        self.assertEqual(steady, sorted(steady))
        self.assertTrue([number for number in steady if asked[number] > 1], "nobody who asked again is among them")

    async def test_a_wait_longer_than_one_request_keeps_its_place(self) -> None:
        first = await self.locks.acquire("patient")
        requests = mock.patch.object(self.client, "acquire", wraps=self.client.acquire)
        with mock.patch.object(line, "WAIT_SECONDS_MAX", 3.0), requests as requested:
            early = await self.in_line("patient", 1)
            late = await self.in_line("patient", 2)
            while requested.call_count < 6:
                await asyncio.sleep(0.01)
            self.assertEqual(len({call.kwargs["request_id"] for call in requested.call_args_list}), 2, "one id for each wait")
            await first.release()
            done, _ = await asyncio.wait({early, late}, return_when=asyncio.FIRST_COMPLETED)
            self.assertEqual(done, {early})
            async with early.result() as guard:
                self.assertGreater(guard.token, first.token)
            async with await late:
                pass


class Waiting(Case):
    async def test_a_lock_that_was_waited_for_is_confirmed(self) -> None:
        first = await self.locks.acquire("confirmed")
        waiter = await self.in_line("confirmed", 1)
        await first.release()
        async with await waiter as guard:
            # Unconfirmed, it would have lapsed after two seconds.
            with self.assertRaises(Refused) as refused:
                await self.locks.acquire("confirmed", timeout=3.0)
            self.assertEqual(refused.exception.token, guard.token)
            self.assertTrue(guard.is_live())

    async def test_one_that_is_not_confirmed_in_time_is_waited_for_again(self) -> None:
        first = await self.locks.acquire("lapsed")
        renew = self.client.renew
        lapsed: list[int] = []

        async def late(kind: str, key: str, *, grant: Grant, **options: Any) -> tuple[float, Grant]:
            while not lapsed and await self.holds(key, grant.token):
                await asyncio.sleep(0.01)
            lapsed.append(grant.token)
            return await renew(kind, key, grant=grant, **options)

        with mock.patch.object(self.client, "renew", late):
            waiter = await self.in_line("lapsed", 1)
            await first.release()
            async with await waiter as guard:
                self.assertGreater(guard.token, lapsed[0])
                self.assertTrue(guard.is_live())

    async def holds(self, name: str, token: int) -> bool:
        try:
            lock = await self.client.request("GET", f"/api/v1/locks/{name}")
        except NotFound:
            return False
        assert isinstance(lock, dict)
        lease = lock["lease"]
        return isinstance(lease, dict) and lease["token"] == token

    async def test_time_that_is_up_leaves_the_line(self) -> None:
        async with await self.locks.acquire("short") as guard:
            with self.assertRaises(Refused) as refused:
                await self.locks.acquire("short", timeout=0.3)
            self.assertEqual((refused.exception.holder, refused.exception.token), (self.session.holder, guard.token))
            self.assertEqual(await self.waiting("short"), 0)
            with self.assertRaises(Refused):
                await self.locks.acquire("short", timeout=0)

    async def test_cancelling_leaves_the_line_clean(self) -> None:
        async with await self.locks.acquire("cancelled") as first:
            leaver = await self.in_line("cancelled", 1)
            stayer = await self.in_line("cancelled", 2)
            leaver.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await leaver
            self.assertEqual(await self.waiting("cancelled"), 1)
            await first.release()
            async with await stayer as guard:
                self.assertTrue(guard.is_live())
        self.assertEqual(self.session.unsettled(), 0)

    async def test_waiting_ends_with_the_session(self) -> None:
        async with await self.locks.acquire("ended"):
            async with Session.open(self.client, "leaver") as session:
                waiter = asyncio.ensure_future(Locks(session).acquire("ended"))
                await self.until_waiting("ended", 1)
            with self.assertRaises(Lost):
                await waiter

    async def test_more_than_may_wait_at_once_ask_again(self) -> None:
        with mock.patch.object(client, "WAITERS_AT_ONCE_MAX", 2):
            first = await self.locks.acquire("crowded")
            waiters = [await self.in_line("crowded", place) for place in (1, 2)]
            with self.assertRaisesRegex(Unavailable, "2 tasks of this client wait"), self.client.waiter():
                pass
            began = self.client.clock.now()
            with self.assertRaises(Refused) as refused:
                await self.locks.acquire("crowded", timeout=0.3)
            self.assertGreaterEqual(self.client.clock.now() - began, 0.3)
            self.assertEqual(refused.exception.token, first.token, "when its time is up it asks without waiting")
            waiters.append(asyncio.ensure_future(self.locks.acquire("crowded")))
            await first.release()
            for waiter in waiters:
                async with await waiter:
                    pass


class OwnSession(Case):
    async def test_locks_over_a_client_open_a_session_of_their_own(self) -> None:
        async with Locks(self.client, ttl=5.0) as one, Locks(self.client, ttl=5.0) as other:
            guard = await one.acquire("own")
            with self.assertRaises(Refused) as refused:
                await other.acquire("own", timeout=0)
            self.assertNotEqual(refused.exception.holder, self.session.holder)
            await one.close()
            self.assertEqual((await guard.lost()).why, "closed")
            async with await other.acquire("own", timeout=0) as heir:
                self.assertGreater(heir.token, guard.token)
            async with await one.acquire("own") as again:
                self.assertTrue(again.is_live(), "after a loss it opens another session")

    async def test_a_session_has_its_holder_already(self) -> None:
        with self.assertRaisesRegex(ValueError, "holder"):
            Locks(self.session, holder="another")


class Restarted(unittest.IsolatedAsyncioTestCase):
    async def test_a_waiter_survives_a_restart_of_the_server(self) -> None:
        server = Solehold()
        self.addCleanup(server.stop)
        port = int(server.url.rpartition(":")[2])
        async with Client(server.url, retry_for=30.0) as client, Session.open(client, "survivor", ttl=20.0) as session:
            guard = await Locks(session).acquire("restarted")
            waiter = asyncio.ensure_future(Locks(session).acquire("restarted"))
            await asyncio.sleep(0)
            server.kill()
            again = Solehold(port=port, data_dir=server.data_dir)
            self.addCleanup(again.stop)
            await guard.release()
            async with await waiter as heir:
                self.assertGreater(heir.token, guard.token)
