"""The gate against a real server, and one that goes away."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
import threading
import unittest
from pathlib import Path
from unittest import mock

from solehold_client import Client, Gate, Session
from solehold_client.channel import Answer, Call
from solehold_client.wire import Json

from .support.server import Solehold, wait_until


async def told(gate: Gate, token: int, verdict: str) -> None:
    """Waits for a verdict that comes without anyone asking the store."""

    async def is_so() -> bool:
        return str(gate.judge("scene", "lobby", token)) == verdict

    await wait_until(f"{verdict} for {token}", is_so)


async def is_true(value: bool) -> bool:
    return value


class Gates(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self) -> None:
        self.server = Solehold()
        self.addCleanup(self.server.stop)
        self.client = Client(self.server.url)
        self.addAsyncCleanup(self.client.close)

    async def test_a_paused_holder_is_refused(self) -> None:
        async with (
            Gate(self.client, kinds=["scene"]) as gate,
            Session.open(self.client, "one", ttl=30) as one,
            Session.open(self.client, "two", ttl=30) as two,
        ):
            first = await one.acquire("scene", "lobby")
            self.assertEqual(str(await gate.decide("scene", "lobby", first.token, one.session_id)), "admit")
            await first.release()
            second = await two.acquire("scene", "lobby")
            await told(gate, first.token, f"stale {second.token}")
            self.assertTrue((await gate.decide("scene", "lobby", second.token, two.session_id)).is_admitted)
            other = await gate.decide("scene", "lobby", second.token, one.session_id)
            self.assertEqual(str(other), f"stale {second.token}")
            forged = await gate.decide("scene", "lobby", second.token + 1000)
            self.assertEqual((forged.why, forged.newest, forged.may_pass), ("never_given", second.token, False))
            self.assertEqual((await gate.decide("scene", "nowhere", 1)).why, "no_such_resource")

    async def test_what_cannot_be_known_any_longer_is_not_admitted(self) -> None:
        async with (
            Gate(self.client, kinds=["scene"], cache_ttl=2, refresh_within=1) as closed,
            Gate(self.client, kinds=["scene"], cache_ttl=2, refresh_within=1, fail_open=True) as opened,
            Session.open(self.client, "one", ttl=60) as session,
        ):
            guard = await session.acquire("scene", "lobby")
            for gate in (closed, opened):
                await gate.ready()
                self.assertTrue((await gate.decide("scene", "lobby", guard.token)).is_admitted)
            self.server.process.send(signal.SIGSTOP)
            try:
                await told(closed, guard.token, "undecidable expired")
                self.assertEqual((await closed.decide("scene", "lobby", guard.token)).why, "expired")
                await told(opened, guard.token, "admit")
                self.assertTrue((await opened.decide("scene", "lobby", guard.token + 1)).is_admitted)
                self.assertEqual(str(opened.judge("scene", "lobby", guard.token)), f"stale {guard.token + 1}")
            finally:
                self.server.process.send(signal.SIGCONT)
            await told(closed, guard.token, "admit")

    async def test_a_gate_that_restarts_remembers(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "marks"
            async with Session.open(self.client, "one", ttl=30) as session:
                tokens = []
                async with Gate(self.client, kinds=["scene"], memory=path) as gate:
                    for _ in range(3):
                        guard = await session.acquire("scene", "lobby")
                        self.assertTrue((await gate.decide("scene", "lobby", guard.token)).is_admitted)
                        tokens.append(guard.token)
                        await guard.release()
                    with self.assertRaisesRegex(ValueError, "give each gate a file of its own"):
                        Gate(self.client, kinds=["scene"], memory=path)
            with path.open("a") as file:
                file.write('{"mark":{"ten')  # a crash in the middle of a line
            async with Client("127.0.0.1:1", retry_for=0) as nobody:
                async with Gate(nobody, kinds=["scene"], memory=path) as gate:
                    self.assertEqual(str(gate.judge("scene", "lobby", tokens[1])), f"stale {tokens[2]}")
                    self.assertEqual((await gate.decide("scene", "lobby", tokens[2])).why, "unknown")
            odd = '{"mark":{"token":9,"session":null,"tenant":"default","kind":"scene","key":"a\u2028b"}}'
            path.write_text('{"solehold_gate":1}\n' + odd + "\n")  # as the Rust client writes it
            async with Gate(self.client, kinds=["scene"], memory=path) as gate:
                self.assertEqual(str(gate.judge("scene", "a\u2028b", 8)), "stale 9")
            path.write_text('{"solehold_gate":1}\nnonsense\n{"floor":1}\n')
            with self.assertRaisesRegex(ValueError, "line 2 of the gate's memory"):
                async with Gate(self.client, kinds=["scene"], memory=path):
                    pass

    async def hold_up_saving(self, path: Path) -> tuple[Gate, threading.Event]:
        """A gate whose thread is about to write a mark to its memory, and an event that lets it go on."""
        arrived, go_on = threading.Event(), threading.Event()
        self.addCleanup(go_on.set)
        gate = await Gate(self.client, kinds=["scene"], memory=path).__aenter__()
        self.addAsyncCleanup(gate.close)
        await gate.ready()

        def write(file: int, data: memoryview) -> int:
            arrived.set()
            go_on.wait()
            return os.write(file, data)

        patched = mock.patch("solehold_client.memory.os", wraps=os, write=write)
        patched.start()
        self.addCleanup(patched.stop)
        session = await Session.open(self.client, "one", ttl=60)
        self.addAsyncCleanup(session.close)
        await (await session.acquire("scene", "lobby")).release()
        await wait_until("the thread to write", lambda: is_true(arrived.is_set()))
        return gate, go_on

    async def test_a_gate_that_is_closed_while_it_saves_writes_to_no_other_file(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "marks"
            gate, go_on = await self.hold_up_saving(path)
            closing = asyncio.ensure_future(gate.close())
            ended, _ = await asyncio.wait({closing}, timeout=0.5)
            # If it does not wait for the thread, these get the numbers of the descriptors that it closed.
            others = [open(Path(folder) / f"other-{number}", "w+b") for number in range(20)]
            go_on.set()
            await closing
            await asyncio.get_running_loop().shutdown_default_executor()
            written = [other.seek(0, os.SEEK_END) for other in others]
            for other in others:
                other.close()
            self.assertEqual((written, ended), ([0] * 20, set()))
            self.assertIn('"key":"lobby"', path.read_text())

    async def test_a_gate_whose_closing_is_cancelled_still_gives_its_file_back(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "marks"
            gate, go_on = await self.hold_up_saving(path)
            closing = asyncio.ensure_future(gate.close())
            await asyncio.sleep(0)
            closing.cancel()
            await asyncio.sleep(0)
            closing.cancel()
            go_on.set()
            with self.assertRaises(asyncio.CancelledError):
                await closing

            async def is_free() -> bool:
                try:
                    await Gate(self.client, kinds=["scene"], memory=path).close()
                except ValueError:
                    return False
                return True

            await wait_until("the file to be free", is_free, seconds=10)

    def held_back_questions(self, gate: Gate) -> tuple[list[str], asyncio.Event]:
        """The resources that the store was asked for and has answered, and an event without which no answer arrives."""
        asked: list[str] = []
        answers = asyncio.Event()
        call = gate._channel.call

        async def held_back(question: Call, *, timeout: float, until: float) -> Answer:
            if not question.path.startswith("/api/v1/resources/"):
                return await call(question, timeout=timeout, until=until)
            try:
                return await call(question, timeout=timeout, until=until)
            finally:
                asked.append(question.path.rpartition("/")[2])
                await answers.wait()

        gate._channel.call = held_back  # type: ignore[assignment]
        return asked, answers

    async def test_one_question_serves_all_decisions_that_waited_for_it(self) -> None:
        async with (
            Gate(self.client, kinds=["scene"], strict=True) as gate,
            Session.open(self.client, "one", ttl=60) as session,
            session.acquire("scene", "lobby") as guard,
        ):
            await told(gate, guard.token, "undecidable unconfirmed")
            asked, answers = self.held_back_questions(gate)
            answers.set()
            verdicts = await asyncio.gather(*(gate.decide("scene", "lobby", guard.token) for _ in range(50)))
            self.assertEqual({str(verdict) for verdict in verdicts}, {"admit"})
            self.assertLessEqual(len(asked), 2)
            verdicts = await asyncio.gather(*(gate.decide("scene", "lobby", guard.token + 1) for _ in range(50)))
            self.assertEqual({verdict.why for verdict in verdicts}, {"never_given"})
            self.assertLessEqual(len(asked), 4)
            self.assertFalse(gate._refreshes.under_way, "nothing is kept of questions that were answered")

    async def test_a_question_that_was_sent_before_a_decision_arrived_does_not_settle_it(self) -> None:
        async with (
            Gate(self.client, kinds=["scene"], strict=True) as gate,
            Session.open(self.client, "one", ttl=60) as session,
        ):
            await gate.ready()
            asked, answers = self.held_back_questions(gate)
            early = asyncio.ensure_future(gate.decide("scene", "lobby", 1_000_000))
            await wait_until("the first question", lambda: is_true(len(asked) == 1))
            async with session.acquire("scene", "lobby") as guard:
                await told(gate, guard.token, "undecidable unconfirmed")
                late = asyncio.ensure_future(gate.decide("scene", "lobby", guard.token))
                await wait_until("both to wait", lambda: is_true(gate._refreshes.under_way["scene", "lobby", 0].tasks == 2))
                answers.set()
                self.assertEqual((str(await late), asked), ("admit", ["lobby", "lobby"]))
                self.assertEqual((await early).why, "never_given")

    async def test_a_watch_that_lags_does_not_make_the_store_away(self) -> None:
        gate = Gate(self.client, kinds=["scene"], fail_open=True, refresh_within=1)
        async with gate, Session.open(self.client, "one", ttl=60) as session:
            await gate.ready()
            for task in gate._tasks:  # neither the watch nor a question for the head
                task.cancel()
            verdict = await gate.decide("scene", "nowhere", 7)
            self.assertEqual((verdict.word, verdict.may_pass), ("undecidable", True))
            self.assertFalse(gate._fence.is_away(self.client.clock.now()), "it has answered")
            async with session.acquire("scene", "lobby") as guard:
                self.assertTrue((await gate.decide("scene", "lobby", guard.token)).is_admitted)

    async def test_a_gate_whose_key_is_refused_does_not_fail_open(self) -> None:
        async with Session.open(self.client, "one", ttl=60) as session, session.acquire("scene", "lobby") as guard:
            token = guard.token
        made = await self.client.request("POST", "/api/v1/admin/keys", {"name": "admin", "role": "admin"})
        assert isinstance(made, dict)
        for key in (None, "wrong"):
            with self.assertLogs("solehold_client", "ERROR") as logged:
                async with (
                    Client(self.server.url, key=key) as client,
                    Gate(client, kinds=["scene"], fail_open=True, refresh_within=1) as gate,
                ):
                    await wait_until("the refusal", lambda: is_true(gate.denied is not None))
                    for shown in (token, token + 1000):
                        self.assertEqual(str(await gate.decide("scene", "lobby", shown)), "undecidable denied")
                    self.assertRegex(str(gate.denied), "unauthorized")
            self.assertEqual(len(logged.output), 1, logged.output)
        async with Client(self.server.url, key=str(made["key"])) as admin:
            only: Json = [{"kind": "scene", "key_prefix": "lob"}]
            made = await admin.request("POST", "/api/v1/admin/keys", {"name": "gate", "role": "reader", "only": only})
            assert isinstance(made, dict)
        async with (
            Client(self.server.url, key=str(made["key"])) as client,
            Gate(client, kinds=["scene"], fail_open=True) as gate,
        ):
            await gate.ready()
            for _ in range(3):
                self.assertEqual(str(await gate.decide("scene", "cellar", 1)), "undecidable hidden")
                self.assertEqual((await gate.decide("scene", "lobby", token + 1000)).may_pass, False)
            self.assertIsNone(gate.denied)

    async def test_odd_arguments_are_named(self) -> None:
        with self.assertRaisesRegex(ValueError, "0 kinds were given"):
            Gate(self.client, kinds=[])
        with self.assertRaisesRegex(ValueError, "cache_ttl is 0"):
            Gate(self.client, kinds=["scene"], cache_ttl=0)
