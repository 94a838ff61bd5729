"""Arguments that are wrong are named, in the words of the one who gave them."""

from __future__ import annotations

import asyncio
import unittest
from collections.abc import Callable
from typing import Any

from solehold_client import BackoffConfig, Client, Locks, Policy, Session, SessionConfig, elect, keep_session, sync

from .support.virtual import simulate
from .support.world import world

URL = "http://127.0.0.1:7070"


def wrong(value: Any) -> Any:
    """A value that mypy would refuse, as a program without types may give it."""
    return value


class Arguments(unittest.TestCase):
    def refuses(self, kind: type[Exception], told: str, call: Callable[[], object]) -> None:
        with self.subTest(told), self.assertRaisesRegex(kind, told):
            call()

    def test_of_a_client(self) -> None:
        for given in (None, 7070, {URL}):
            self.refuses(TypeError, "^urls must be a URL, or a list of URLs, not ", lambda: Client(wrong(given)))
        self.refuses(TypeError, "^a server must be a string such as .*, not int$", lambda: Client(wrong([7070])))
        self.refuses(TypeError, "^timeout must be a number of seconds, not str", lambda: Client(URL, timeout=wrong("5")))
        self.refuses(ValueError, "^timeout is 0: give seconds above 0$", lambda: Client(URL, timeout=0))
        self.refuses(ValueError, "^retry_for is nan: give 0 or more", lambda: Client(URL, retry_for=float("nan")))
        self.refuses(TypeError, "^key must be a string, not bytes$", lambda: Client(URL, key=wrong(b"secret")))
        self.refuses(TypeError, "^tenant must be a string, not int$", lambda: Client(URL, tenant=wrong(7)))
        self.refuses(TypeError, "^tls must be an ssl.SSLContext, not bool$", lambda: Client(URL, tls=wrong(True)))
        self.refuses(TypeError, "^urls must be", lambda: sync.Client(wrong(None)))

    def test_of_a_session(self) -> None:
        client = Client(URL)
        self.refuses(TypeError, "^client must be a Client, not str$", lambda: Session.open(wrong(URL), "w"))
        self.refuses(TypeError, "^client must be a solehold_client.sync.Client", lambda: sync.Session.open(wrong(client), "w"))
        self.refuses(TypeError, "^holder must be a string, not None$", lambda: Session.open(client, wrong(None)))
        self.refuses(ValueError, "^holder is '', which has 0 bytes: a name has 1 to 255", lambda: Session.open(client, ""))
        self.refuses(TypeError, "^ttl must be a number of seconds, not str: give 1 to", lambda: SessionConfig("w", wrong("30")))
        self.refuses(TypeError, "^ttl must be a number of seconds, not bool", lambda: Session.open(client, "w", ttl=True))
        self.refuses(ValueError, "^ttl is 0: give 1 to 86400 seconds$", lambda: Session.open(client, "w", ttl=0))
        self.refuses(TypeError, "^policy must be a Policy, such as .*, not str$", lambda: SessionConfig("w", policy=wrong("x")))
        self.refuses(TypeError, "^metrics must be a function.*, not dict$", lambda: SessionConfig("w", metrics=wrong({})))
        self.refuses(TypeError, "^backoff must be a BackoffConfig, not float$", lambda: SessionConfig("w", backoff=wrong(0.5)))
        self.refuses(ValueError, "backoff from 0 to 1", lambda: BackoffConfig(0, 1))
        self.refuses(TypeError, "^the grace must be a number of seconds, not None", lambda: Policy.grace(wrong(None)))

    def test_of_acquire_and_guard(self) -> None:
        async def whole() -> None:
            session = await world().open()
            acquire: Callable[..., object] = session.acquire
            self.refuses(TypeError, "^kind must be a string, not int$", lambda: acquire(7, "hall"))
            self.refuses(TypeError, "^key must be a string, not int$", lambda: acquire("scene", 7))
            self.refuses(ValueError, "^key is 'xxx.*', which has 256 bytes", lambda: acquire("scene", "x" * 256))
            self.refuses(ValueError, "^key is '..'", lambda: acquire("scene", ".."))
            self.refuses(ValueError, "^key is not text that can be sent", lambda: acquire("scene", "\ud800"))
            self.refuses(TypeError, "^timeout must be a number of seconds, not str", lambda: acquire("scene", "x", timeout="10"))
            self.refuses(ValueError, "^timeout is -1: give seconds, 0 to ask once", lambda: acquire("scene", "x", timeout=-1))
            self.refuses(TypeError, "^attributes must be a dict, not list$", lambda: acquire("scene", "x", attributes=[]))
            self.refuses(TypeError, "^a key of attributes must be", lambda: acquire("scene", "x", attributes={1: 2}))
            forgotten: Any = session.acquire("scene", "hall")
            self.refuses(AttributeError, "^token: this is only about to happen; `await` it", lambda: forgotten.token)
            forgotten.close()
            async with session.acquire("scene", "hall") as guard:
                for document, told in (({1, 2}, "set"), (float("nan"), "[Oo]ut of range"), (b"x", "bytes")):
                    with self.assertRaisesRegex((TypeError, ValueError), f"^document cannot be sent as JSON: .*{told}"):
                        await guard.write_state(wrong(document))
                with self.assertRaisesRegex(TypeError, "^work must be awaitable, .* not function$"):
                    await guard.run(wrong(lambda: None))
            self.refuses(TypeError, "^owner must be a Client or a Session, not str$", lambda: Locks(wrong(URL)))
            self.refuses(TypeError, "^name must be a string, not None$", lambda: Locks(session).acquire(wrong(None)))
            for role, lead, told in ((None, asyncio.sleep, "role must be a string"), ("r", None, "lead must be a function")):
                with self.assertRaisesRegex(TypeError, told):
                    await elect(session, wrong(role), wrong(lead))
            client = session.client
            for call, told in (
                (keep_session(wrong(URL), "w", wrong(asyncio.sleep)), "client must be a Client, not str"),
                (keep_session(client, "w", wrong(None)), "work must be a function that takes the session"),
                (keep_session(client, "w", wrong(lambda _: 7)), "work must be awaitable, .* not int"),
                (keep_session(client, "w", wrong(print), on_lost=wrong(7)), "on_lost must be a function that takes the loss"),
            ):
                with self.subTest(told), self.assertRaisesRegex(TypeError, told):
                    await call
            await session.close()

        simulate(whole())

    def test_of_a_watch(self) -> None:
        client = Client(URL)
        self.refuses(TypeError, "^cursor must be a string, such as '1.42', not float$", lambda: client.watch(cursor=wrong(1.42)))
        for cursor in ("", "7", "1.x", "1.-2", "²."):
            self.refuses(ValueError, "^cursor is .*: give one that a watch has told", lambda: client.watch(cursor=cursor))
        self.refuses(TypeError, "^kind must be a string, not int$", lambda: client.watch(kind=wrong(7)))
