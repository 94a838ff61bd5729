"""Session, guard and acquire against a real server with the embedded engine."""

from __future__ import annotations

import asyncio
import copy
import gc
import json
import pickle
import random
import signal
import socket
import tempfile
import traceback
import unittest
import warnings
from collections.abc import Awaitable, Callable
from unittest import mock

from solehold_client import (
    AnswerLost,
    BadRequest,
    Client,
    Guard,
    HttpTransport,
    Lost,
    NotFound,
    Policy,
    Refused,
    Request,
    Response,
    Server,
    Session,
    SessionConfig,
    Transport,
    Unavailable,
    Unknown,
)

from .support.server import Solehold, wait_until

SERVER: Solehold


def setUpModule() -> None:
    global SERVER
    SERVER = Solehold()


def tearDownModule() -> None:
    SERVER.stop()


class Case(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self) -> None:
        self.guards: list[Guard] = []
        self.client = Client(SERVER.url)
        self.addAsyncCleanup(self.client.close)

    async def open(self, holder: str, *, ttl: float = 30.0, policy: Policy = Policy.DEADLINE) -> Session:
        session = await Session.open(self.client, holder, ttl=ttl, policy=policy)
        self.addAsyncCleanup(session.close)
        return session

    async def hold(self, session: Session, kind: str, key: str, *, timeout: float | None = None) -> Guard:
        """A guard that is held until its session is closed."""
        guard = await session.acquire(kind, key, timeout=timeout)
        self.guards.append(guard)
        return guard

    async def holder(self, kind: str, key: str) -> str | None:
        """Who holds it, by the server's word."""
        try:
            resource = await self.client.request("GET", f"/api/v1/resources/{kind}/{key}")
        except NotFound:
            return None
        assert isinstance(resource, dict)
        lease = resource["lease"]
        return str(lease["holder"]) if isinstance(lease, dict) else None


class Guards(Case):
    async def test_a_resource_is_held_and_let_go(self) -> None:
        session = await self.open("a")
        async with await session.acquire("scene", "süd/7") as guard:
            self.assertTrue(guard.is_live())
            self.assertEqual(guard.check(), guard.token)
            self.assertGreater(guard.deadline, self.client.clock.now())
            self.assertEqual(await self.holder("scene", "s%C3%BCd%2F7"), "a")
        self.assertFalse(guard.is_live())
        self.assertEqual((await guard.lost()).why, "released")
        self.assertIsNone(await self.holder("scene", "s%C3%BCd%2F7"))
        with self.assertRaises(Lost):
            guard.check()

    async def test_an_acquire_is_awaited_entered_or_made_a_task_of(self) -> None:
        session = await self.open("any")
        async with session.acquire("scene", "any") as entered:
            self.assertTrue(entered.is_live())
        async with await session.acquire("scene", "any") as awaited:
            self.assertGreater(awaited.token, entered.token)
        async with await asyncio.create_task(session.acquire("scene", "any")) as by_task:
            self.assertGreater(by_task.token, awaited.token)
        with self.assertRaises(ZeroDivisionError):
            async with session.acquire("scene", "any"):
                raise ZeroDivisionError
        self.assertIsNone(await self.holder("scene", "any"))
        with self.assertWarnsRegex(RuntimeWarning, "never awaited"):
            session.acquire("scene", "any")
            gc.collect()

    async def test_a_refusal_tells_who_holds_it(self) -> None:
        one, other = await self.open("one"), await self.open("other")
        guard = await self.hold(one, "scene", "refused")
        with self.assertRaises(Refused) as refused:
            await other.try_acquire("scene", "refused")
        error = refused.exception
        self.assertEqual((error.code, error.holder, error.token, error.status), ("held", "one", guard.token, 409))
        assert error.retry_after is not None
        self.assertTrue(0 < error.retry_after <= 30)

    async def test_a_release_hands_over_to_one_who_waits(self) -> None:
        one, other = await self.open("one"), await self.open("other")
        guard = await self.hold(one, "scene", "handed")
        waiting = asyncio.ensure_future(other.acquire("scene", "handed"))
        self.assertTrue(await guard.release({"tracks": [1, 2]}))
        next_guard = await waiting
        self.guards.append(next_guard)
        self.assertGreater(next_guard.token, guard.token)
        state = next_guard.state
        assert state is not None
        self.assertEqual((state.document, state.token), ({"tracks": [1, 2]}, guard.token))

    async def test_state_is_written_in_order_and_goes_to_the_next(self) -> None:
        one, other = await self.open("one"), await self.open("other")
        guard = await self.hold(one, "scene", "state")
        self.assertIsNone(guard.state)
        written = await asyncio.gather(*(guard.write_state({"n": n}) for n in range(5)))
        self.assertEqual([state.sequence for state in written], [1, 2, 3, 4, 5])
        self.assertEqual(guard.state, written[-1])
        await guard.write_state(None)
        await guard.release()
        heir = await self.hold(other, "scene", "state")
        assert heir.state is not None
        self.assertEqual((heir.state.document, heir.state.sequence), (None, 6))
        self.assertEqual((await heir.write_state("mine")).sequence, 1, "each token counts by itself")
        with self.assertRaises(Lost):
            await guard.write_state("late")
        self.assertEqual((await self.client.read_state("scene", "state")), heir.state)

    async def test_a_release_after_loss_changes_nothing(self) -> None:
        one, other = await self.open("one", ttl=2.0), await self.open("other")
        guard = await self.hold(one, "scene", "late")
        stop_heartbeats(one)
        heir = await self.hold(other, "scene", "late", timeout=60)
        self.assertFalse(guard.is_live(), "it was dead before another got it")
        self.assertGreater(heir.token, guard.token)
        self.assertFalse(await guard.release({"from": "the grave"}))
        self.assertEqual(await self.holder("scene", "late"), "other")
        self.assertTrue(heir.is_live())
        self.assertIsNone(await self.client.read_state("scene", "late"))

    async def test_run_gives_the_result_or_the_error_of_the_work(self) -> None:
        session = await self.open("runner")
        async with await session.acquire("scene", "run") as guard:
            self.assertEqual(await guard.run(asyncio.sleep(0.01, "done")), "done")
            with self.assertRaises(ZeroDivisionError):
                await guard.run(fail())

    async def test_run_stops_the_work_when_the_lease_is_revoked(self) -> None:
        session = await self.open("runner", ttl=3.0)
        guard = await self.hold(session, "scene", "revoked")
        cleaned: list[str] = []

        async def work() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                cleaned.append("up")

        running = asyncio.ensure_future(guard.run(work()))
        await asyncio.sleep(0)
        await self.client.request("POST", "/api/v1/resources/scene/revoked/lease/revoke", {"token": guard.token})
        with self.assertRaises(Lost) as lost:
            await running
        self.assertEqual((lost.exception.why, cleaned), ("ended", ["up"]))
        self.assertTrue(session.is_live())
        never = asyncio.sleep(0)
        with self.assertRaises(Lost):
            await guard.run(never)

    async def test_a_body_that_outlived_its_lease_hears_of_it(self) -> None:
        session = await self.open("outlived", ttl=2.0)
        with self.assertRaises(Lost) as lost:
            async with await session.acquire("scene", "outlived") as guard:
                stop_heartbeats(session)
                await guard.lost()
        self.assertEqual(lost.exception.why, "deadline")

    async def test_a_loss_that_the_body_handled_is_not_raised_again(self) -> None:
        session = await self.open("handled", ttl=2.0)
        told: list[str] = []
        async with session.acquire("scene", "by-run") as by_run, session.acquire("scene", "by-check") as by_check:
            stop_heartbeats(session)
            try:
                await by_run.run(asyncio.Event().wait())
            except Lost as lost:
                told.append(lost.why)
            try:
                by_check.check()
            except Lost as lost:
                told.append(lost.why)
        self.assertEqual(told, ["deadline", "deadline"])

    async def test_a_loss_of_something_else_tells_nothing_of_this_guard(self) -> None:
        session = await self.open("both", ttl=2.0)
        with self.assertRaises(Lost) as lost:
            async with session.acquire("scene", "inner") as guard:
                with self.assertRaises(Lost):
                    await guard.run(raise_lost())
                stop_heartbeats(session)
                await guard.lost()
        self.assertEqual(lost.exception.why, "deadline")

    async def test_cancelling_run_cancels_the_work(self) -> None:
        session = await self.open("cancelled")
        guard = await self.hold(session, "scene", "cancelled")
        started = asyncio.Event()
        ended: list[str] = []

        async def work() -> None:
            started.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                ended.append("cancelled")
                raise

        running = asyncio.ensure_future(guard.run(work()))
        await started.wait()
        running.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await running
        self.assertEqual(ended, ["cancelled"])
        self.assertTrue(guard.is_live())

    async def test_a_dropped_guard_is_released(self) -> None:
        session, other = await self.open("dropper"), await self.open("other")
        guard: Guard | None = await session.acquire("scene", "dropped")
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            del guard
            gc.collect()
        self.assertIn("scene/dropped was dropped", str(warned[0].message))
        await self.hold(other, "scene", "dropped", timeout=20)

    async def test_a_guard_cannot_be_copied(self) -> None:
        session = await self.open("copier")
        guard = await self.hold(session, "scene", "copied")
        copiers: list[Callable[[Guard], object]] = [copy.copy, copy.deepcopy, pickle.dumps]
        for attempt in copiers:
            with self.assertRaisesRegex(TypeError, "one guard"):
                attempt(guard)


class Sessions(Case):
    async def test_heartbeats_keep_it_past_its_ttl(self) -> None:
        session = await self.open("beating", ttl=3.0)
        guard = await self.hold(session, "scene", "beating")
        first = guard.deadline
        other = await self.open("other")
        with self.assertRaises(Refused):
            await other.acquire("scene", "beating", timeout=4.0)
        self.assertTrue(guard.is_live())
        self.assertGreater(guard.deadline, first + 1.0)

    async def test_closing_releases_everything(self) -> None:
        async with Session.open(self.client, "closing", ttl=30) as session:
            guards = [await session.acquire("scene", f"closing-{n}") for n in range(3)]
        self.assertEqual([(await guard.lost()).why for guard in guards], ["closed"] * 3)
        self.assertEqual([await self.holder("scene", f"closing-{n}") for n in range(3)], [None] * 3)
        self.assertEqual((await session.lost()).why, "closed")
        with self.assertRaises(Lost):
            await session.acquire("scene", "closing-1")
        await session.close()

    async def test_another_session_of_the_holder_ends_it(self) -> None:
        former = await self.open("twin", ttl=3.0)
        guard = await self.hold(former, "scene", "twin")
        latter = await self.open("twin", ttl=3.0)
        self.assertEqual((await guard.lost()).why, "refused")
        heir = await self.hold(latter, "scene", "twin", timeout=30)
        self.assertGreater(heir.token, guard.token)

    async def test_a_former_session_can_be_replaced_at_once(self) -> None:
        former = await self.open("phoenix", ttl=300.0)
        await self.hold(former, "scene", "phoenix")
        stop_heartbeats(former)
        async with Session.open(self.client, SessionConfig("phoenix", replace=former.session_id)) as latter:
            with self.assertRaises(Refused) as refused:
                await latter.try_acquire("scene", "phoenix")
            self.assertEqual(refused.exception.code, "held_back", "until its old deadline: nobody knows that it stopped")

    async def test_metrics_are_shown_among_the_nodes(self) -> None:
        config = SessionConfig("metered", metrics=lambda: {"load": 7})
        async with Session.open(self.client, config):
            nodes = await self.client.request("GET", "/api/v1/nodes")
            self.assertIn('"load": 7', json.dumps(nodes))

    async def test_wrong_values_are_named(self) -> None:
        for ttl in (0.5, 100_000.0, float("nan")):
            with self.assertRaisesRegex(ValueError, "ttl is .*: give 1 to 86400 seconds"):
                SessionConfig("w", ttl=ttl)
        with self.assertRaisesRegex(ValueError, "1 to 255"):
            SessionConfig("")
        session = await self.open("strict")
        with self.assertRaisesRegex(ValueError, "name"):
            await session.acquire("scene", "x" * 256)
        with self.assertRaisesRegex(ValueError, "timeout"):
            await session.acquire("scene", "x", timeout=-1)


class Opening(Case):
    """A session whose opening was repeated."""

    async def test_a_repeat_finds_the_session_that_a_lost_answer_was_about(self) -> None:
        transport = self.client._channel._transport
        send, opened = transport.send, list[str]()

        async def lossy(server: Server, request: Request) -> Response:
            response = await send(server, request)
            if request.opens is not None:
                opened.append(json.loads(response.body)["session_id"])
                if len(opened) == 1:
                    raise AnswerLost("this test loses an answer")
            return response

        with mock.patch.object(transport, "send", lossy):
            session = await self.open("repeats")
        self.assertEqual(opened, [session.session_id] * 2)


class LastWords(Case):
    """What is said about a last document whose answer was lost: the truth, or that nobody knows."""

    async def leave(self, key: str, meanwhile: Callable[[Guard], Awaitable[None]], *, before: bool) -> bool:
        """Releases with a document; the first answer is lost, and something happens before or after that attempt."""
        session = await self.open("leaver")
        first = await session.acquire("scene", key)
        self.assertTrue(await first.release("first"))
        guard = await session.acquire("scene", key)
        send, attempts = self.client._channel._transport.send, 0

        async def lossy(server: Server, request: Request) -> Response:
            nonlocal attempts
            if request.method != "DELETE":
                return await send(server, request)
            attempts += 1
            if attempts == 1 and before:
                await meanwhile(guard)
            response = await send(server, request)
            if attempts == 1:
                if not before:
                    await meanwhile(guard)
                raise AnswerLost("this test loses an answer")
            return response

        with mock.patch.object(self.client._channel._transport, "send", lossy):
            return await guard.release("last")

    async def test_a_word_that_was_taken_is_never_called_lost(self) -> None:
        async def nothing(_: Guard) -> None:
            pass

        self.assertTrue(await self.leave("taken", nothing, before=False))
        state = await self.client.read_state("scene", "taken")
        assert state is not None
        self.assertEqual(state.document, "last")

    async def test_a_word_that_was_not_taken_is_never_called_taken(self) -> None:
        async def revoke(guard: Guard) -> None:
            path = "/api/v1/resources/scene/refused-word/lease/revoke"
            await self.client.request("POST", path, {"token": guard.token, "fenced": True})

        self.assertFalse(await self.leave("refused-word", revoke, before=True))
        state = await self.client.read_state("scene", "refused-word")
        assert state is not None
        self.assertEqual(state.document, "first")

    async def test_a_word_that_was_written_over_is_unknown(self) -> None:
        async def write_over(_: Guard) -> None:
            heir = await self.hold(await self.open("heir"), "scene", "over")
            await heir.write_state("next")

        with self.assertRaises(Unknown):
            await self.leave("over", write_over, before=False)


class Acquiring(Case):
    async def test_a_cancelled_acquire_leaves_nothing_held(self) -> None:
        one, other = await self.open("one"), await self.open("other")
        rng = random.Random(7)
        for n in range(20):
            key = f"cancelled-{n}"
            asking = asyncio.ensure_future(one.acquire("scene", key))
            for _ in range(rng.randrange(12)):
                await asyncio.sleep(0)
            if not asking.cancel():
                await asking.result().release()
                continue
            with self.assertRaises(asyncio.CancelledError):
                await asking
            guard = await self.hold(other, "scene", key, timeout=20)
            await guard.release()
        self.assertTrue(one.is_live())

    async def test_it_waits_in_line_by_one_request(self) -> None:
        one, other, third = await self.open("one"), await self.open("other"), await self.open("third")
        guard = await self.hold(one, "scene", "line")
        with mock.patch.object(self.client, "acquire", wraps=self.client.acquire) as asked:
            early = asyncio.ensure_future(other.acquire("scene", "line"))
            await self.until_waiting("scene", "line", 1)
            late = asyncio.ensure_future(third.acquire("scene", "line", timeout=60))
            await self.until_waiting("scene", "line", 2)
            await guard.release()
            async with await early as first:
                self.assertFalse(late.done(), "first come, first served")
            async with await late as second:
                self.assertGreater(second.token, first.token)
            self.assertEqual(asked.call_count, 2, "each asked once, and was told")

    async def until_waiting(self, kind: str, key: str, count: int) -> None:
        async def are_there() -> bool:
            resource = await self.client.request("GET", f"/api/v1/resources/{kind}/{key}")
            return isinstance(resource, dict) and resource["waiting"] == count

        await wait_until(f"{count} in line for {kind}/{key}", are_there)

    async def test_it_never_gives_up_before_its_time(self) -> None:
        one, other = await self.open("one"), await self.open("other")
        await self.hold(one, "scene", "timed")
        for timeout in (0.05, 0.3, 1.0):
            began = self.client.clock.now()
            with self.assertRaises(Refused):
                await other.acquire("scene", "timed", timeout=timeout)
            self.assertGreaterEqual(self.client.clock.now() - began, timeout)

    async def test_two_tasks_of_one_session_exclude_each_other(self) -> None:
        session = await self.open("tasks")
        inside = most = 0

        async def work() -> None:
            nonlocal inside, most
            async with await session.acquire("scene", "tasks"):
                inside += 1
                most = max(most, inside)
                await asyncio.sleep(0)
                inside -= 1

        await asyncio.gather(*(work() for _ in range(8)))
        self.assertEqual(most, 1)

    async def test_many_at_once(self) -> None:
        session = await self.open("many")
        guards = await asyncio.gather(*(session.acquire("scene", f"many-{n}") for n in range(100)))
        self.assertEqual(len({guard.token for guard in guards}), 100)
        await asyncio.gather(*(guard.release() for guard in guards))


class Asking(Case):
    async def test_problems_are_typed(self) -> None:
        with self.assertRaises(BadRequest) as bad:
            await self.client.request("POST", "/api/v1/sessions", {"holder": "", "ttl_ms": 3})
        self.assertEqual([fault.field for fault in bad.exception.fields], ["holder", "ttl_ms"])
        self.assertIsNotNone(bad.exception.request_id)
        with self.assertRaises(NotFound) as missing:
            await self.client.request("GET", "/api/v1/nothing")
        self.assertEqual(missing.exception.code, "no_such_route")
        with self.assertRaisesRegex(ValueError, "escaped"):
            await self.client.request("GET", "/api/v1/a b")

    async def test_what_is_not_served_is_unavailable(self) -> None:
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{closed.getsockname()[1]}"
            async with Client(url, retry_for=0.2) as client:
                told = rf"^no server at {url} \(connection refused\)$"
                with self.assertRaisesRegex(Unavailable, told) as unavailable:
                    await Session.open(client, "nobody")
        shown = "".join(traceback.format_exception(unavailable.exception))
        self.assertNotIn("Traceback", shown, "people need not read how the connection failed")

    async def test_an_answer_that_is_too_large_is_not_read(self) -> None:
        async with Client(SERVER.url, response_bytes_max=100, retry_for=0.0) as client:
            with self.assertRaisesRegex(Unknown, "larger than 100 bytes"):
                await client.request("GET", "/api/v1/openapi.json")

    async def test_another_server_is_asked_when_one_is_gone(self) -> None:
        server = Solehold()
        self.addCleanup(server.stop)
        async with Client([server.url, SERVER.url]) as client:
            await client.request("GET", "/readyz")
            server.kill()
            await client.request("GET", "/readyz")

    async def test_heartbeats_have_a_connection_of_their_own(self) -> None:
        made: list[HttpTransport] = []

        def transport() -> Transport:
            made.append(HttpTransport())
            return made[-1]

        async with Client(SERVER.url, transport=transport) as client:
            async with Session.open(client, "own"), Session.open(client, "own-2"):
                # The client's own, one of each session, and one on which both wait for news.
                self.assertEqual(len(made), 4)


class Killed(unittest.IsolatedAsyncioTestCase):
    async def test_a_guard_of_a_killed_server_is_lost_and_the_data_is_not(self) -> None:
        with tempfile.TemporaryDirectory(prefix="solehold-python-") as folder:
            server = Solehold(data_dir=f"{folder}/data")
            self.addCleanup(server.stop)
            async with Client(server.url, retry_for=0.5) as client:
                async with Session.open(client, "mourner", ttl=2.0) as session:
                    guard = await session.acquire("scene", "hall")
                    steps: list[float] = []
                    server.kill()
                    with self.assertRaises(Lost):
                        await guard.run(work_on(client, steps))
                    self.assertEqual((await guard.lost()).why, "deadline")
                    self.assertTrue(steps, "it worked on until then")
            again = Solehold(data_dir=f"{folder}/data")
            self.addCleanup(again.stop)
            async with Client(again.url) as client, Session.open(client, "heir", ttl=5.0) as session:
                async with await session.acquire("scene", "hall", timeout=60) as heir:
                    self.assertGreater(heir.token, guard.token)

    async def test_a_stopped_server_does_not_hold_up_the_deadline(self) -> None:
        server = Solehold()
        self.addCleanup(server.stop)
        async with Client(server.url, timeout=30.0, retry_for=0.0) as client:
            session = await Session.open(client, "hung", ttl=2.0)
            guard = await session.acquire("scene", "hall")
            server.process.send(signal.SIGSTOP)
            self.assertEqual((await guard.lost()).why, "deadline")
            server.process.send(signal.SIGCONT)
            await session.close()


def stop_heartbeats(session: Session) -> None:
    """As if every heartbeat of this session were lost."""

    async def lose(*_: object, **__: object) -> None:
        raise Unavailable("this test loses heartbeats")

    session._channel.call = lose  # type: ignore[assignment]


async def raise_lost() -> None:
    raise Lost("ended", "of another guard")


async def fail() -> None:
    raise ZeroDivisionError


async def work_on(client: Client, steps: list[float]) -> None:
    while True:
        steps.append(client.clock.now())
        await asyncio.sleep(0.001)
