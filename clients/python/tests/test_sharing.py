"""Shared holds, and several resources at once, all or none, against a real server."""

from __future__ import annotations

import asyncio
import json
import signal
import tempfile
import unittest
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from solehold_client import (
    AnswerLost,
    Client,
    Gate,
    Guard,
    Locks,
    NotFound,
    Refused,
    Request,
    Response,
    Server,
    Session,
    Unavailable,
    sync,
)

from .support.server import Solehold, python, wait_until

SERVER: Solehold
WORKER = str(Path(__file__).with_name("worker.py"))
ROUNDS = 20
SOON = 60.0
# A bound for a broken test on a busy machine, not a measure.
ROUNDS_SECONDS_MAX = 240.0


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

    async def in_line(self, name: str, place: int, *, slots: int | None = None) -> asyncio.Task[Guard]:
        """A task that waits at this place in line."""
        task = asyncio.ensure_future(self.locks.acquire(name, timeout=SOON, slots=slots))

        async def is_there() -> bool:
            lock = await self.client.request("GET", f"/api/v1/locks/{name}")
            return isinstance(lock, dict) and lock["waiting"] == place

        await wait_until(f"{place} in line for {name}", is_there)
        return task

    async def assert_free(self, *names: str) -> None:
        for name in names:
            with self.subTest(name):
                await (await self.locks.acquire(name, timeout=0)).release()


class Sharing(Case):
    async def test_so_many_hold_it_at_once_and_the_next_waits(self) -> None:
        guards = [await self.locks.acquire("printers", slots=3) for _ in range(3)]
        self.assertEqual([(guard.slot, guard.slots) for guard in guards], [(1, 3), (2, 3), (3, 3)])
        self.assertEqual(len({guard.token for guard in guards}), 3)
        for slots in (3, None):
            with self.assertRaises(Refused) as refused:
                await self.locks.acquire("printers", timeout=0, slots=slots)
            self.assertEqual(refused.exception.code, "held")
        waiter = await self.in_line("printers", 1, slots=3)
        await guards[1].release()
        async with await waiter as heir:
            self.assertEqual((heir.slot, heir.is_live()), (2, True))
            self.assertGreater(heir.token, guards[1].token)
            self.assertTrue(guards[0].is_live() and guards[2].is_live())
        for guard in (guards[0], guards[2]):
            self.assertTrue(await guard.release())
        async with self.locks.acquire("printers", timeout=0) as alone:
            self.assertEqual((alone.slot, alone.slots), (None, None))

    async def test_nobody_overtakes_one_who_waits_for_all_of_it(self) -> None:
        first = await self.session.acquire("lock", "fair", slots=3)
        alone = await self.in_line("fair", 1)
        late = await self.in_line("fair", 2, slots=3)
        with self.assertRaises(Refused):
            await self.locks.try_acquire("fair", slots=3)
        await first.release()
        done, _ = await asyncio.wait({alone, late}, timeout=SOON, return_when=asyncio.FIRST_COMPLETED)
        self.assertEqual(done, {alone})
        async with alone.result() as guard:
            self.assertIsNone(guard.slot)
        async with await late as guard:
            self.assertEqual(guard.slot, 1)

    async def test_the_slot_of_a_killed_holder_goes_to_one_who_waits(self) -> None:
        kept = await self.session.acquire("scene", "killed", slots=2)
        worker = python(WORKER, SERVER.url, "killed", "killed", "2", "2")
        self.addCleanup(worker.end)
        token = int(worker.wait_line("held "))
        with self.assertRaises(Refused):
            await self.session.try_acquire("scene", "killed", slots=2)
        worker.end(signal.SIGKILL)
        async with self.session.acquire("scene", "killed", timeout=SOON, slots=2) as heir:
            self.assertEqual(heir.slot, 2)
            self.assertGreater(heir.token, token)
        self.assertTrue(await kept.release())

    async def test_it_has_no_state_document(self) -> None:
        async with self.session.acquire("scene", "stateless", slots=2) as guard:
            with self.assertRaises(Refused) as refused:
                await guard.write_state({"frames": 1})
            self.assertEqual(refused.exception.code, "conflict")

    async def test_without_asyncio(self) -> None:
        await asyncio.to_thread(self.blocking)

    def blocking(self) -> None:
        with sync.Client(SERVER.url) as client, sync.Session.open(client, "sync-sharer") as session:
            locks = sync.Locks(session)
            with locks.acquire("sync", slots=2) as one, session.try_acquire("lock", "sync", slots=2) as other:
                self.assertEqual([(guard.slot, guard.slots) for guard in (one, other)], [(1, 2), (2, 2)])
                with self.assertRaises(Refused):
                    locks.acquire_all(["sync-free", ("sync", 2)], timeout=0)
            with locks.acquire_all(["sync-free", ("sync", 2)], timeout=SOON) as guards:
                self.assertEqual([guard.key for guard in guards], ["sync-free", "sync"])
            with session.acquire_all([("lock", "sync"), ("lock", "sync-free")], timeout=0) as guards:
                self.assertTrue(all(guard.is_live() for guard in guards))


class Together(Case):
    async def test_all_are_acquired_in_the_order_of_the_caller(self) -> None:
        async with self.session.acquire_all([("lock", "z"), ("lock", "a", 2), ("scene", "a")], timeout=0) as guards:
            self.assertEqual([(guard.kind, guard.key) for guard in guards], [("lock", "z"), ("lock", "a"), ("scene", "a")])
            self.assertEqual([guard.slot for guard in guards], [None, 1, None])
            self.assertTrue(all(guard.is_live() for guard in guards))
        await self.assert_free("z", "a")

    async def test_a_refusal_takes_nothing(self) -> None:
        held = await self.locks.acquire("held")
        for timeout in (0, 0.3):
            with self.subTest(timeout=timeout), self.assertRaises(Refused) as refused:
                await self.locks.acquire_all(["before", "held", "under"], timeout=timeout)
            self.assertEqual((refused.exception.code, refused.exception.token), ("held", held.token))
            await self.assert_free("before", "under")
        self.assertEqual(self.session.unsettled(), 0)
        await held.release()

    async def test_it_waits_for_what_is_held(self) -> None:
        first, second = await self.locks.acquire_all(["first", "second"])
        waiter = asyncio.ensure_future(self.locks.acquire_all(["third", "second", "first"], timeout=SOON))

        async def is_waiting() -> bool:
            lock = await self.client.request("GET", "/api/v1/locks/first")
            return isinstance(lock, dict) and lock["waiting"] == 1

        await wait_until("one in line for the first", is_waiting)
        await self.assert_free("third")
        await second.release()
        await first.release()
        async with await waiter as guards:
            self.assertEqual([guard.key for guard in guards], ["third", "second", "first"])

    async def test_two_that_want_the_same_never_wait_for_each_other(self) -> None:
        inside = 0

        async def work(holder: str, names: list[str]) -> None:
            nonlocal inside
            async with Client(SERVER.url) as client, Session.open(client, holder) as session:
                for _ in range(ROUNDS):
                    async with Locks(session).acquire_all(names, timeout=ROUNDS_SECONDS_MAX):
                        inside += 1
                        self.assertEqual(inside, 1)
                        await asyncio.sleep(0)
                        inside -= 1

        both = asyncio.gather(work("forwards", ["left", "right"]), work("backwards", ["right", "left"]))
        await asyncio.wait_for(both, ROUNDS_SECONDS_MAX)

    async def test_cancelling_leaves_nothing_held(self) -> None:
        held = await self.locks.acquire("y")
        waiter = asyncio.ensure_future(self.locks.acquire_all(["x", "y"], timeout=SOON))

        async def is_waiting() -> bool:
            lock = await self.client.request("GET", "/api/v1/locks/y")
            return isinstance(lock, dict) and lock["waiting"] == 1

        await wait_until("one in line", is_waiting)
        with self.assertRaises(Refused):
            await self.locks.try_acquire("x")
        waiter.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await waiter
        await self.assert_free("x")
        await held.release()
        await self.assert_free("y")

    def test_what_is_given_is_checked(self) -> None:
        session = self.session
        wrongs: list[tuple[type[Exception], str, Callable[[], object]]] = [
            (ValueError, "^0 resources were given", lambda: session.acquire_all([])),
            (ValueError, "^101 resources were given", lambda: self.locks.acquire_all(map(str, range(101)))),
            (ValueError, "a resource was given twice", lambda: self.locks.acquire_all(["a", ("a", 2)])),
            (TypeError, "^names must be a list of names", lambda: self.locks.acquire_all("ab")),
            (ValueError, "^slots is 0: give 1 to 1000", lambda: session.acquire("scene", "a", slots=0)),
            (ValueError, "^slots is 1001: give 1 to 1000", lambda: session.acquire_all([("scene", "a", 1001)])),
            (TypeError, "^slots must be a whole number, not bool", lambda: self.locks.acquire("a", slots=True)),
        ]
        for kind, told, call in wrongs:
            with self.subTest(told), self.assertRaisesRegex(kind, told):
                call()


class LostAnswers(Case):
    """What an acquire of several does when answers are lost: the same request ids again, or none of it."""

    @contextmanager
    def losing(self, losses: int) -> Iterator[list[list[str]]]:
        """Loses this many answers; gives the request ids of each attempt."""
        transport = self.client._channel._transport
        send, attempts = transport.send, list[list[str]]()

        async def lossy(server: Server, request: Request) -> Response:
            response = await send(server, request)
            if request.target.endswith("/leases/batch/acquire"):
                attempts.append([item["request_id"] for item in json.loads(request.body or b"")["items"]])
                if len(attempts) <= losses:
                    raise AnswerLost("this test loses an answer")
            return response

        with mock.patch.object(transport, "send", lossy):
            yield attempts

    async def test_a_repeat_finds_what_was_acquired(self) -> None:
        with self.losing(1) as attempts:
            async with self.locks.acquire_all(["lost-1", "lost-2"], timeout=SOON) as guards:
                self.assertEqual(attempts, [attempts[0]] * 2)
                self.assertEqual(len(set(attempts[0])), 2, "each has an id of its own")
                self.assertTrue(all(guard.is_live() for guard in guards))
        await self.assert_free("lost-1", "lost-2")

    async def test_what_is_given_up_is_not_held(self) -> None:
        with self.losing(1) as attempts, self.assertRaisesRegex(Unavailable, "were cancelled and hold nothing"):
            await self.locks.acquire_all(["up-1", "up-2"], timeout=0)
        self.assertEqual(len(attempts), 1)
        await self.assert_free("up-1", "up-2")

    async def test_what_ended_meanwhile_is_acquired_again(self) -> None:
        with self.losing(1) as attempts:
            waiter = asyncio.ensure_future(self.locks.acquire_all(["end-1", "end-2"], timeout=SOON))

            async def is_revoked() -> bool:
                try:
                    await self.client.request("POST", "/api/v1/resources/lock/end-1/lease/revoke", {"fenced": True})
                except NotFound:
                    return False
                return True

            await wait_until("a lease to revoke", is_revoked)
            for guard in await waiter:
                self.assertTrue(guard.is_live() or guard.key == "end-1")
                await guard.release()
        await self.assert_free("end-1", "end-2")


class Gates(Case):
    async def test_tokens_of_different_slots_do_not_fence_each_other(self) -> None:
        async with Gate(self.client, kinds=["scene"]) as gate:
            await gate.ready()
            one, two = [await self.session.acquire("scene", "gated", slots=2) for _ in range(2)]

            async def verdict(guard: Guard) -> str:
                return str(await gate.decide("scene", "gated", guard.token, self.session.session_id, slot=guard.slot))

            self.assertEqual([await verdict(one), await verdict(two)], ["admit", "admit"])
            await one.release()
            heir = await self.session.acquire("scene", "gated", slots=2)
            self.assertEqual(heir.slot, one.slot)
            self.assertEqual([await verdict(heir), await verdict(two)], ["admit", "admit"])
            self.assertEqual(await verdict(one), f"stale {heir.token}")
            other = await gate.decide("scene", "gated", heir.token, slot=7)
            self.assertEqual((other.word, other.may_pass), ("undecidable", False), "nobody has that slot")
            await heir.release()
            await two.release()
            async with self.session.acquire("scene", "gated") as alone:
                self.assertEqual(await verdict(alone), "admit")
            with self.assertRaisesRegex(ValueError, "^slot is 0"):
                gate.judge("scene", "gated", 1, slot=0)

    async def test_slots_and_exclusive_holders_fence_each_other(self) -> None:
        async with Gate(self.client, kinds=["scene"]) as gate:
            await gate.ready()

            def verdict(guard: Guard) -> str:
                # The store is not read: what is known comes from the watch.
                return str(gate.judge("scene", "alternating", guard.token, slot=guard.slot))

            async def until(guard: Guard, expected: str) -> None:
                async def is_so() -> bool:
                    return verdict(guard) == expected

                await wait_until(f"{expected} of {guard.token}", is_so)

            sharer = await self.session.acquire("scene", "alternating", slots=2)
            await until(sharer, "admit")
            await sharer.release()
            alone = await self.session.acquire("scene", "alternating")
            await until(sharer, f"stale {alone.token}")
            self.assertEqual(verdict(alone), "admit")
            await alone.release()
            heir = await self.session.acquire("scene", "alternating", slots=2)
            await until(alone, f"stale {heir.token}")
            self.assertEqual(verdict(heir), "admit")
            await heir.release()

    async def test_the_store_is_read_by_slot(self) -> None:
        async with Gate(self.client, kinds=["scene"], strict=True) as gate:
            guard = await self.session.acquire("scene", "strict", slots=2)
            self.assertTrue((await gate.decide("scene", "strict", guard.token, slot=1)).is_admitted)
            self.assertEqual((await gate.decide("scene", "strict", guard.token + 1000, slot=1)).why, "never_given")
            await guard.release()

    async def test_a_gate_that_restarts_remembers_slots(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        file = Path(folder.name, "marks")
        # As a client without slots wrote it.
        former = {"token": 3, "session": None, "tenant": "default", "kind": "scene", "key": "former"}
        file.write_text('{"solehold_gate":1}\n{"epoch":1}\n' + json.dumps({"mark": former}) + "\n")
        guard = await self.session.acquire("scene", "kept", slots=2)
        async with Gate(self.client, kinds=["scene"], memory=file) as gate:
            self.assertTrue((await gate.decide("scene", "kept", guard.token, slot=guard.slot)).is_admitted)
        marks = [json.loads(line).get("mark") for line in file.read_text().splitlines()]
        kept = [mark for mark in marks if mark is not None and mark["key"] == "kept"]
        self.assertEqual({(mark["slot"], mark["token"]) for mark in kept if "slot" in mark}, {(1, guard.token)})
        async with Gate(self.client, kinds=["scene"], memory=file) as gate:
            self.assertEqual(str(gate.judge("scene", "kept", guard.token - 1, slot=1)), f"stale {guard.token}")
            self.assertEqual(str(gate.judge("scene", "former", 2)), "stale 3")
        await guard.release()
