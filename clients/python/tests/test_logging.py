"""What the client says in the log: trouble once, with what happens next, and never a key."""

from __future__ import annotations

import asyncio
import logging
import socket
import traceback
import unittest

from solehold_client import Client, Locks, Lost, NotFound, Refused, Session, SoleholdError, Unauthorized

from .support.server import Solehold, wait_until

LOGGER = "solehold_client"


class Kept(logging.Handler):
    """Keeps what was said, at every level."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[tuple[str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        trace = "".join(traceback.format_exception(*record.exc_info)) if record.exc_info else ""
        self.said.append((record.levelname, record.getMessage() + trace))

    def with_level(self, level: str) -> list[str]:
        return [text for name, text in self.said if name == level]


class Case(unittest.IsolatedAsyncioTestCase):
    def setUp(self) -> None:
        self.log = Kept()
        logger = logging.getLogger(LOGGER)
        logger.addHandler(self.log)
        self.addCleanup(logger.removeHandler, self.log)
        level = logger.level
        logger.setLevel(logging.DEBUG)
        self.addCleanup(logger.setLevel, level)

    async def until_said(self, text: str) -> None:
        async def is_said() -> bool:
            return any(text in said for _, said in self.log.said)

        await wait_until(f"the log to say {text!r}", is_said)


class Trouble(Case):
    async def test_a_closed_port_is_told_at_once(self) -> None:
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{closed.getsockname()[1]}"
            async with Client(url, retry_for=600.0) as client:
                opening = asyncio.create_task(Session.open(client, "early"))
                await self.until_said(f"no server at {url} (connection refused); asking again for 6")
                self.assertFalse(opening.done())
                opening.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await opening
        self.assertEqual(len(self.log.with_level("WARNING")), 1, self.log.said)

    async def test_an_outage_is_told_when_it_begins_and_when_it_is_over(self) -> None:
        server = Solehold()
        self.addCleanup(server.stop)
        port = int(server.url.rpartition(":")[2])
        async with Client(server.url) as client, Session.open(client, "patient", ttl=30.0) as session:
            async with session.acquire("scene", "hall") as guard:
                server.kill()
                await self.until_said("the session of patient was not renewed")
                again = Solehold(port=port, data_dir=server.data_dir)
                self.addCleanup(again.stop)
                await self.until_said("renewed the session of patient again after ")
                self.assertTrue(guard.is_live())
        (warned,) = self.log.with_level("WARNING")
        self.assertRegex(warned, r"connection refused.*: unless a server answers, it is lost in \d+\.\d s")
        told = [" ".join(text.split(" ")[:2]) for text in self.log.with_level("INFO")]
        self.assertEqual(told, ["opened session", "renewed the", "closed session"])

    async def test_a_loss_is_told_once_with_what_is_lost(self) -> None:
        server = Solehold()
        self.addCleanup(server.stop)
        async with Client(server.url) as client, Session.open(client, "loser", ttl=5.0) as session:
            guards = [await session.acquire("scene", f"hall-{number}") for number in range(7)]
            server.kill()
            with self.assertRaises(Lost):
                await guards[0].run(asyncio.Event().wait())
            await guards[1].lost()
        told = [text for text in self.log.with_level("WARNING") if "session of loser lost with" in text]
        self.assertEqual(len(told), 1)
        self.assertIn(f"lost with scene/hall-0 (token {guards[0].token}), scene/hall-1 ", told[0])
        self.assertIn(", 2 more: the deadline passed", told[0])
        self.assertEqual(len(self.log.with_level("WARNING")), 2, self.log.with_level("WARNING"))

    async def test_a_lease_that_someone_else_ended_is_told(self) -> None:
        server = Solehold()
        self.addCleanup(server.stop)
        async with Client(server.url) as client, Session.open(client, "loser", ttl=2.0) as session:
            guard = await session.acquire("scene", "hall")
            await client.request("POST", "/api/v1/resources/scene/hall/lease/revoke", {"token": guard.token})
            await guard.lost()
        self.assertEqual(
            self.log.with_level("WARNING"), [f"loser lost scene/hall (token {guard.token}): another client ended its lease"]
        )

    async def test_a_server_that_is_gone_is_told_once_however_many_ask(self) -> None:
        gone, there = Solehold(), Solehold()
        for server in (gone, there):
            self.addCleanup(server.stop)
        gone.kill()
        async with Client([gone.url, there.url]) as client:
            await asyncio.gather(*(client.request("GET", "/readyz") for _ in range(20)))
            async with Session.open(client, "one", ttl=3.0) as one, Session.open(client, "other", ttl=3.0) as other:
                first = one.deadline, other.deadline

                async def are_renewed() -> bool:
                    return one.deadline > first[0] and other.deadline > first[1]

                await wait_until("heartbeats, which begin with the first server, too", are_renewed)
        (warned,) = self.log.with_level("WARNING")
        self.assertIn(f"no server at {gone.url} (connection refused); asking {there.url} instead", warned)


class Secrets(Case):
    async def test_no_key_is_ever_logged(self) -> None:
        server = Solehold()
        self.addCleanup(server.stop)
        async with Client(server.url) as client:
            answer = await client.request("POST", "/api/v1/admin/keys", {"name": "test", "role": "admin"})
        assert isinstance(answer, dict)
        secret, wrong = str(answer["key"]), "wrong-" + "s3cret" * 5
        errors: list[SoleholdError] = []
        async with Client(wrong_way(server.url), key=secret, retry_for=0.0) as client:
            errors.append(await self.failed(client))
        async with Client(server.url, key=wrong) as client:
            errors.append(await self.failed(client))
            self.assertIsInstance(errors[-1], Unauthorized)
        async with Client(server.url, key=secret) as client, Session.open(client, "keyed", ttl=2.0) as session:
            async with session.acquire("scene", "hall"), client.watch() as watch:
                await watch.__anext__()
                for failing in (session.try_acquire("scene", "hall"), client.request("GET", "/api/v1/locks/none")):
                    with self.assertRaises((Refused, NotFound)) as refused:
                        await failing
                    errors.append(refused.exception)
                async with Locks(client).acquire("lock"):
                    pass
                server.kill()
                await self.until_said("was not renewed")
        shown = [text for _, text in self.log.said]
        shown += [text for error in errors for text in (str(error), repr(error), *traceback.format_exception(error))]
        self.assertTrue(any("POST" in text for text in shown), "requests are told at the level DEBUG")
        for text in shown:
            self.assertNotIn(secret, text)
            self.assertNotIn(wrong, text)

    async def failed(self, client: Client) -> SoleholdError:
        with self.assertRaises(SoleholdError) as failed:
            await Session.open(client, "keyed")
        return failed.exception


def wrong_way(url: str) -> str:
    """TLS to a port that speaks plain HTTP."""
    return url.replace("http://", "https://")
