"""The client for programs without asyncio, against a real server: the same safety, in threads that block."""

from __future__ import annotations

import asyncio
import gc
import queue
import signal
import threading
import unittest
import warnings
from pathlib import Path

from solehold_client import Client as AsyncClient
from solehold_client import Event, Lost, NotFound, Refused, Snapshot
from solehold_client.sync import Client, Gate, Guard, Locks, Session, elect

from .support.server import Process, Solehold, python, wait_for
from .test_server import stop_heartbeats

WORKER = str(Path(__file__).with_name("worker_sync.py"))


class Case(unittest.TestCase):
    def setUp(self) -> None:
        self.server = Solehold()
        self.addCleanup(self.server.stop)
        self.client = Client(self.server.url)
        self.addCleanup(self.client.close)

    def open(self, holder: str, ttl: float = 30.0) -> Session:
        session = Session.open(self.client, holder, ttl=ttl)
        self.addCleanup(session.close)
        return session

    def holder(self, key: str) -> str | None:
        try:
            resource = self.client.request("GET", f"/api/v1/resources/scene/{key}")
        except NotFound:
            return None
        assert isinstance(resource, dict)
        lease = resource["lease"]
        return str(lease["holder"]) if isinstance(lease, dict) else None

    def waiting(self, key: str) -> int:
        try:
            resource = self.client.request("GET", f"/api/v1/resources/scene/{key}")
        except NotFound:
            return 0
        assert isinstance(resource, dict)
        return int(str(resource["waiting"]))


class Gates(Case):
    def test_a_gate_refuses_an_old_token(self) -> None:
        one, two = self.open("one"), self.open("two")
        with Gate(self.client, kinds=["scene"]) as gate:
            self.assertTrue(gate.ready(timeout=30.0))
            first = one.acquire("scene", "lobby")
            self.assertTrue(gate.decide("scene", "lobby", first.token, one.session_id).is_admitted)
            first.release()
            second = two.acquire("scene", "lobby")
            self.assertTrue(gate.decide("scene", "lobby", second.token, two.session_id).is_admitted)
            for verdict in (gate.judge("scene", "lobby", first.token), gate.decide("scene", "lobby", first.token)):
                self.assertEqual(str(verdict), f"stale {second.token}")
            self.assertIsNotNone(gate.lag)
            second.release()
        with self.assertRaisesRegex(ValueError, "0 kinds were given"):
            Gate(self.client, kinds=[])
        with Client("127.0.0.1:1", retry_for=0) as nobody, Gate(nobody, kinds=["scene"]) as blind:
            self.assertFalse(blind.ready(timeout=0.05))
            self.assertFalse(blind.judge("scene", "lobby", 1).is_admitted)


class Guards(Case):
    def test_a_resource_is_held_and_let_go(self) -> None:
        session = self.open("one")
        with session.acquire("scene", "hall") as guard:
            self.assertEqual((guard.kind, guard.key, guard.check(), self.holder("hall")), ("scene", "hall", guard.token, "one"))
            self.assertTrue(guard.is_live() and not guard.is_in_grace())
            self.assertGreater(guard.deadline, self.client.clock.now())
            self.assertEqual(guard.write_state({"n": 1}).document, {"n": 1})
            with self.assertRaises(Refused) as refused:
                session.try_acquire("scene", "hall")
            self.assertEqual(refused.exception.token, guard.token)
        self.assertIsNone(self.holder("hall"))
        lost = guard.lost()
        assert lost is not None
        self.assertEqual(lost.why, "released")
        state = self.client.read_state("scene", "hall")
        assert state is not None
        self.assertEqual(state.document, {"n": 1})

    def test_heartbeats_go_out_while_the_program_blocks(self) -> None:
        session = self.open("blocked", ttl=3.0)
        with session.acquire("scene", "hall") as guard:
            first = guard.deadline
            self.assertIsNone(guard.lost(timeout=0.05))
            wait_for("two heartbeats", lambda: guard.deadline > first + 1.5)
            self.assertTrue(guard.is_live())

    def test_threads_exclude_each_other_in_order(self) -> None:
        session, inside, most, tokens = self.open("threads"), [0], [0], []

        def work() -> None:
            with session.acquire("scene", "hall") as guard:
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                tokens.append(guard.token)
                inside[0] -= 1

        threads = [threading.Thread(target=work) for _ in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual((most[0], len(tokens), tokens), (1, 12, sorted(tokens)))

    def test_a_loss_is_told_in_every_way(self) -> None:
        session = self.open("loser", ttl=2.0)
        told: queue.Queue[Lost] = queue.Queue()
        with self.assertRaises(Lost) as outlived:
            with session.acquire("scene", "hall") as guard:
                guard.on_lost(told.put)
                stop_heartbeats(session._async)
                lost = guard.lost()
                self.assertFalse(guard.is_live())
        assert lost is not None
        self.assertEqual((lost.why, told.get(timeout=60).why, outlived.exception.why), ("deadline",) * 3)
        again = self.open("loser", ttl=2.0)
        with again.acquire("scene", "yard") as guard:
            stop_heartbeats(again._async)
            guard.lost()
            with self.assertRaises(Lost):
                guard.check()
        self.assertFalse(again.is_live())

    def test_a_release_is_no_loss(self) -> None:
        told: list[Lost] = []
        with self.open("releaser") as session, session.acquire("scene", "hall") as guard:
            guard.on_lost(told.append)
        guard.lost()
        self.assertEqual(told, [])

    def test_a_dropped_guard_is_released(self) -> None:
        guard: Guard | None = self.open("dropper").acquire("scene", "hall")
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            del guard
            gc.collect()
        self.assertIn("scene/hall was dropped", str(warned[0].message))
        with self.open("heir").acquire("scene", "hall", timeout=60):
            pass

    def test_what_is_lost_with_the_server_is_lost_by_the_clock(self) -> None:
        with self.open("mourner", ttl=2.0) as session, session.acquire("scene", "hall") as guard:
            self.server.kill()
            wait_for("the guard to be lost", lambda: not guard.is_live())
            with self.assertRaises(Lost) as lost:
                guard.check()
            self.assertEqual(lost.exception.why, "deadline")
            lost_session = session.lost()
            assert lost_session is not None
            self.assertEqual(lost_session.why, "deadline")


class More(Case):
    def test_locks(self) -> None:
        with Locks(self.client, ttl=5.0) as one, Locks(self.open("other")) as other:
            with one.acquire("lock") as guard:
                with self.assertRaises(Refused):
                    other.try_acquire("lock")
            with other.acquire("lock", timeout=60) as heir:
                self.assertGreater(heir.token, guard.token)

    def test_a_watch(self) -> None:
        session = self.open("watched")
        with self.client.watch(kind="scene") as watch:
            begin = next(watch)
            assert isinstance(begin, Snapshot)
            with session.acquire("scene", "hall"):
                pass
            events = [next(watch), next(watch)]
        told = [event.event_type for event in events if isinstance(event, Event)]
        self.assertEqual((told, list(watch)), (["lease_acquired", "lease_released"], []))
        (resumed,) = [seen for seen, _ in zip(self.client.watch(cursor=begin.cursor), range(1))]
        self.assertEqual(resumed, events[0])

    def test_an_election(self) -> None:
        session, terms = self.open("leader", ttl=2.0), []

        def lead(guard: Guard) -> str:
            terms.append(guard.token)
            if len(terms) == 1:
                path = "/api/v1/resources/role/boss/lease/revoke"
                self.client.request("POST", path, {"token": guard.token, "fenced": True})
                guard.lost()
                return "too late"
            return "done"

        self.assertEqual(elect(session, "boss", lead), "done")
        self.assertEqual(terms, sorted(set(terms)))
        self.assertEqual(len(terms), 2)

        def fail(guard: Guard) -> None:
            raise ZeroDivisionError

        with self.assertRaises(ZeroDivisionError):
            elect(self.client, "boss", fail)
        session.acquire("role", "boss", timeout=0).release()

    def test_a_closed_client_says_so(self) -> None:
        client = Client(self.server.url)
        session = Session.open(client, "closed")
        waiting = threading.Thread(target=lambda: self.assertRaises(RuntimeError, session.lost))
        waiting.start()
        client.close()
        waiting.join()
        for call in (lambda: session.acquire("scene", "hall"), session.close, client.close):
            with self.assertRaisesRegex(RuntimeError, "the client was closed"):
                call()

    def test_its_own_thread_is_not_made_to_wait_for_itself(self) -> None:
        async def inside() -> str:
            with self.assertRaisesRegex(RuntimeError, "would wait for itself"):
                self.client.request("GET", "/readyz")
            return "noticed"

        self.assertEqual(self.client._portal.run(inside()), "noticed")

    def test_it_works_within_an_event_loop(self) -> None:
        async def main() -> None:
            with Session.open(self.client, "nested") as session, session.acquire("scene", "hall"):
                async with AsyncClient(self.server.url) as client:
                    await client.request("GET", "/readyz")

        asyncio.run(main())


class Processes(Case):
    def worker(self, what: str) -> Process:
        worker = python(WORKER, self.server.url, what)
        self.addCleanup(worker.end)
        return worker

    def test_ctrl_c_releases_and_closes(self) -> None:
        worker = self.worker("hold")
        worker.wait_line("step ")
        worker.send(signal.SIGINT)
        worker.wait_line("interrupted")
        self.assertEqual((worker.wait(), self.holder("hall")), (0, None))
        self.assertFalse([line for line in worker.lines if "Traceback" in line], worker.lines)

    def test_ctrl_c_leaves_the_line(self) -> None:
        with self.open("holder").acquire("scene", "hall"):
            worker = self.worker("wait")
            wait_for("the worker to be in line", lambda: self.waiting("hall") == 1)
            worker.send(signal.SIGINT)
            self.assertEqual((worker.wait_line("left "), self.waiting("hall")), ("True", 0))
            worker.send(signal.SIGINT)
            worker.wait_line("interrupted")
            self.assertEqual(worker.wait(), 0)

    def test_a_worker_paused_past_its_ttl_is_dead_before_it_works_on(self) -> None:
        paused = self.worker("hold")
        token = int(paused.wait_line("held "))
        paused.wait_line("step ")
        paused.send(signal.SIGSTOP)
        with self.open("heir").acquire("scene", "hall", timeout=60) as heir:
            self.assertGreater(heir.token, token)
            before = len(paused.lines)
            paused.send(signal.SIGCONT)
            self.assertIn(paused.wait_line("lost "), ("deadline", "refused"))
            late = [line for line in paused.lines[before:] if line.startswith("step ")]
            self.assertLessEqual(len(late), 1, "a step that had begun may end; none begins")
            self.assertEqual((paused.wait(), self.holder("hall")), (0, "heir"))

    def test_a_fork_is_told_to_make_a_client_of_its_own(self) -> None:
        worker = self.worker("fork")
        self.assertIn("belongs to the process that made it", worker.wait_line("child "))
        self.assertEqual((worker.wait_line("parent "), worker.wait()), ("True", 0))
