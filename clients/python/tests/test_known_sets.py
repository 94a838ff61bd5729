"""Heartbeats that name the set of leases that the client knows (rule 9), on virtual time."""

from __future__ import annotations

import asyncio
import unittest
from typing import Any, ClassVar
from unittest.mock import patch

from solehold_client import Policy, Unknown
from solehold_client.wire import SessionView, session

from .support.world import TTL, World, WorldCase


class KnownSets(WorldCase):
    def test_a_set_that_is_known_is_not_sent_again_and_a_revoked_lease_is_lost(self) -> None:
        async def work(at: World) -> None:
            session = await at.open()
            one, other = await at.hold(session, "one"), await at.hold(session, "other")
            await asyncio.sleep(100 * TTL)
            self.assertTrue(one.is_live() and other.is_live())
            self.assertEqual(set(at.authority.beats[1:]), {"known"}, "one set, after the grants")
            self.assertGreater(len(at.authority.beats), 200)
            at.authority.revoke("scene/one")
            self.assertEqual((await one.lost()).why, "ended")
            await asyncio.sleep(100 * TTL)
            self.assertTrue(other.is_live())
            self.assertEqual(at.authority.beats.count("set"), 2)
            again = await at.hold(session, "third")
            await asyncio.sleep(10 * TTL)
            self.assertTrue(again.is_live() and other.is_live())
            self.assertEqual(at.authority.beats.count("set"), 3)

        self.run_world(work)

    def test_an_older_server_renews_what_it_does_not_name(self) -> None:
        async def work(at: World) -> None:
            at.authority.is_old = True
            # One renewal that fails would be the end.
            session = await at.open(policy=Policy.IMMEDIATE)
            guard, other = await at.hold(session), await at.hold(session, "other")
            await asyncio.sleep(10 * TTL)
            self.assertEqual(set(at.authority.beats), {"set"}, "it is not shown what it does not know")
            # Servers are replaced one by one, and the session meets both versions.
            for replaced in range(3):
                at.authority.is_old = False
                await asyncio.sleep(10 * TTL)
                self.assertEqual(at.authority.beats[-1], "known")
                at.authority.is_old = True
                await asyncio.sleep(10 * TTL)
                self.assertEqual((at.authority.beats[-1], at.authority.beats.count("refused")), ("set", replaced + 1))
            self.assertTrue(guard.is_live())
            at.authority.revoke("scene/hall")
            self.assertEqual((await guard.lost()).why, "ended")
            self.assertTrue(other.is_live())

        self.run_world(work)

    def test_an_answer_about_another_set_is_none(self) -> None:
        async def work(at: World) -> None:
            session = await at.open()
            guard = await at.hold(session)
            await asyncio.sleep(TTL)
            heartbeat, deadline = at.authority._heartbeat, session.deadline

            def wrong(session_id: str, body: dict[str, Any]) -> dict[str, Any]:
                view = heartbeat(session_id, body)
                view.pop("leases", None)
                return {**view, "revision": view["revision"] + 1}

            with patch.object(at.authority, "_heartbeat", wrong):
                self.assertEqual((await guard.lost()).why, "deadline")
            self.assertEqual(session.deadline, deadline, "it vouches for nothing")

        self.run_world(work)


class Answers(unittest.TestCase):
    """An answer without a set is taken for the set that was named, and for no other."""

    ANSWER: ClassVar[dict[str, Any]] = {
        "session_id": "s",
        "ttl_ms": 3000,
        "full_ttl_ms": 3000,
        "slack_ms": 0,
        "epoch": 2,
        "revision": 7,
        "set_cursor": "2.7",
    }

    def known(self, **other: Any) -> SessionView:
        leases: list[Any] = [{"lease_id": "a", "token": 5}, {"lease_id": "b", "token": 7}]
        return session({**self.ANSWER, "leases": leases, **other})

    def test_the_set_that_was_named_is_kept(self) -> None:
        view = session({**self.ANSWER, "ttl_ms": 2500}, self.known())
        self.assertEqual((view.leases, view.ttl_left), (frozenset({("a", 5), ("b", 7)}), 2.5))

    def test_a_set_that_was_sent_counts(self) -> None:
        self.assertEqual(session({**self.ANSWER, "leases": []}, self.known()).leases, frozenset())

    def test_any_other_is_no_answer(self) -> None:
        others: list[dict[str, Any]] = [
            {"session_id": "t"}, {"epoch": 1}, {"epoch": None}, {"revision": 6}, {"set_cursor": None}, {"set_cursor": "2.6"}
        ]
        for other in others:
            with self.subTest(other), self.assertRaises(Unknown):
                session(self.ANSWER, self.known(**other))
        wrongs: list[dict[str, Any]] = [{}, {"leases": None}, {"leases": {}}, {"leases": 3}]
        for wrong in wrongs:
            with self.subTest(wrong), self.assertRaises(Unknown):
                session({**self.ANSWER, **wrong})
