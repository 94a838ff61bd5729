"""Whole workers as processes of their own: paused past their ttl, and killed."""

from __future__ import annotations

import signal
import unittest
from pathlib import Path

from solehold_client import Client, Session

from .support.server import Process, Solehold, python, wait_for

WORKER = str(Path(__file__).with_name("worker.py"))
TTL = "3"


class Workers(unittest.IsolatedAsyncioTestCase):
    def setUp(self) -> None:
        self.server = Solehold()
        self.addCleanup(self.server.stop)

    def worker(self, holder: str, key: str) -> Process:
        worker = python(WORKER, self.server.url, holder, key, TTL)
        self.addCleanup(worker.end)
        return worker

    async def test_a_worker_paused_past_its_ttl_is_dead_before_it_works_on(self) -> None:
        paused = self.worker("paused", "hall")
        token = int(paused.wait_line("held "))
        paused.wait_line("step ")
        paused.send(signal.SIGSTOP)
        heir = self.worker("heir", "hall")
        taken = int(heir.wait_line("held "))
        self.assertGreater(taken, token)
        before = len(paused.lines)
        paused.send(signal.SIGCONT)
        self.assertIn(paused.wait_line("lost "), ("deadline", "refused"))
        self.assertEqual(paused.wait_line("released "), "False", "a release after loss changes nothing")
        # A step that had begun when the process was stopped may end; none begins.
        late = [line for line in paused.lines[before:] if line.startswith("step ")]
        self.assertLessEqual(len(late), 1, late)
        self.assertEqual(paused.wait(), 0)
        steps = len(heir.lines)
        wait_for("the heir to work on", lambda: len(heir.lines) > steps + 3)
        async with Client(self.server.url) as client:
            lease = await client.request("GET", "/api/v1/resources/scene/hall/lease")
            assert isinstance(lease, dict)
            self.assertEqual((lease["holder"], lease["token"]), ("heir", taken))

    async def test_a_killed_worker_is_followed_by_another(self) -> None:
        killed = self.worker("killed", "hall")
        token = int(killed.wait_line("held "))
        killed.end(signal.SIGKILL)
        async with Client(self.server.url) as client, Session.open(client, "heir") as session:
            async with await session.acquire("scene", "hall", timeout=60) as guard:
                self.assertGreater(guard.token, token)
                self.assertIsNone(guard.state)
