"""The whole client on virtual time: exact deadlines, sleep of the machine, and a fleet behind a bad network."""

from __future__ import annotations

import asyncio
import os
import random
import sys
import unittest
from dataclasses import dataclass, field

from solehold_client import Guard, Locks, Lost, Policy, Refused, Session, SoleholdError, Unavailable, Unknown

from .support.model import Authority, Link, Refusal
from .support.virtual import VirtualClock, simulate
from .support.world import TTL, World, WorldCase, time, world


class OneWorker(WorldCase):
    def test_an_unreachable_authority_stops_the_work_at_the_deadline(self) -> None:
        async def work(at: World) -> None:
            session = await at.open()
            guard = await at.hold(session)
            await asyncio.sleep(10)
            self.assertTrue(guard.is_live(), "heartbeats keep it")
            at.link.cut = True
            steps: list[float] = []
            with self.assertRaises(Lost) as lost:
                await guard.run(step_forever(at.clock, steps))
            self.assertEqual(lost.exception.why, "deadline")
            self.assertLessEqual(steps[-1], guard.deadline)
            self.assertAlmostEqual(at.clock.now(), guard.deadline, delta=0.001, msg="not before it had to")
            self.assertFalse(guard.is_live())
            held = at.authority.sessions[session.session_id]
            self.assertLess(time(), held.deadline, "the store would have waited longer")

        self.run_world(work)

    def test_answers_that_are_lost_do_not_count(self) -> None:
        async def work(at: World) -> None:
            session = await at.open()
            guard = await at.hold(session)
            at.link.deaf = True
            deadline = guard.deadline
            lost = await guard.lost()
            self.assertEqual(lost.why, "deadline")
            self.assertLessEqual(at.clock.now(), deadline + 0.001)

        self.run_world(work)

    def test_slow_answers_cost_no_session(self) -> None:
        async def work(at: World) -> None:
            session = await at.open()
            guard = await at.hold(session)
            # A round trip takes up to 30 % of the ttl, as it may with a new connection per request.
            at.link.delay_max = TTL * 0.15
            await asyncio.sleep(20 * TTL)
            self.assertTrue(guard.is_live(), guard)

        self.run_world(work)

    def test_immediate_stops_at_the_first_failure(self) -> None:
        async def work(at: World) -> None:
            session = await at.open(policy=Policy.IMMEDIATE)
            guard = await at.hold(session)
            at.link.cut = True
            lost = await guard.lost()
            self.assertEqual(lost.why, "failed")
            self.assertLess(at.clock.now(), guard.deadline - 0.5)

        self.run_world(work)

    def test_grace_works_on_and_recovers(self) -> None:
        async def work(at: World) -> None:
            session = await at.open(policy=Policy.grace(60))
            guard = await at.hold(session)
            at.link.cut = True
            await asyncio.sleep(30)
            self.assertTrue(guard.is_live() and guard.is_in_grace())
            at.link.cut = False
            lost = await guard.lost()
            self.assertEqual(lost.why, "refused", "the authority had given up on it")

        self.run_world(work)

    def test_a_revoked_lease_is_lost_and_its_neighbour_is_not(self) -> None:
        async def work(at: World) -> None:
            session = await at.open()
            one, other = await at.hold(session, "one"), await at.hold(session, "other")
            at.authority.revoke("scene/one")
            lost = await one.lost()
            self.assertEqual(lost.why, "ended")
            self.assertTrue(other.is_live())

        self.run_world(work)

    def test_confirming_one_lease_vouches_for_no_other(self) -> None:
        async def work(at: World) -> None:
            session, other = await at.open(ttl=30), await at.neighbour().open("other", ttl=30)
            revoked, deadline = await at.hold(session), session.deadline
            theirs = await Locks(other).acquire("next")
            waiting = asyncio.ensure_future(Locks(session).acquire("next"))
            await asyncio.sleep(0.3)
            at.authority.revoke("scene/hall")
            # Long after the revocation, and before the next heartbeat could tell of it, the session is renewed.
            await asyncio.sleep(7)
            await theirs.release()
            at.guards.append(await waiting)
            at.link.cut = True
            self.assertEqual(session.deadline, deadline, "no heartbeat was answered")
            async with await other.acquire("scene", "hall") as heir:
                self.assertTrue(heir.is_live())
                self.assertFalse(revoked.is_live(), "two work at once")

        self.run_world(work)

    def test_confirming_a_lease_puts_off_no_heartbeat(self) -> None:
        async def work(at: World) -> None:
            session, other = await at.open(ttl=120), await at.neighbour().open("other", ttl=120)
            guard = await at.hold(session)
            for _ in range(60):
                theirs = await Locks(other).acquire("often")
                waiting = asyncio.ensure_future(Locks(session).acquire("often"))
                await asyncio.sleep(10)
                await theirs.release()
                async with await waiting:
                    pass
            beats = [entry for entry in at.authority.log if entry[1] == f"PUT sessions/{session.session_id}/heartbeat"]
            self.assertTrue(14 <= len(beats) <= 20, f"{len(beats)} heartbeats in ten minutes")
            at.authority.revoke("scene/hall")
            self.assertEqual((await guard.lost()).why, "ended")

        self.run_world(work)

    def test_an_answer_from_an_older_history_ends_every_guard(self) -> None:
        async def work(at: World) -> None:
            at.authority.epoch = 2
            session = await at.open()
            one, other = await at.hold(session, "one"), await at.hold(session, "other")
            await asyncio.sleep(TTL)
            at.authority.epoch = 1
            deadline = session.deadline
            self.assertEqual(((await one.lost()).why, (await other.lost()).why), ("history", "history"))
            self.assertEqual(session.deadline, deadline, "nothing of that answer was taken up")
            with self.assertRaisesRegex(Unavailable, "older history"):
                await at.open("again")
            at.authority.epoch = 3
            self.assertTrue((await at.hold(await at.open("again"), "third")).is_live())

        self.run_world(work)

    def test_a_grant_from_an_older_history_is_not_taken_up_and_is_spent(self) -> None:
        async def work(at: World) -> None:
            at.authority.epoch = 2
            session = await at.open(ttl=60)
            at.authority.epoch = 1
            with self.assertRaises((Unavailable, Unknown)):
                await session.acquire("scene", "hall", timeout=1.0)
            self.assertNotIn("scene/hall", at.authority.leases)
            self.assertTrue(session.is_live(), "the answer may have been under way since before")

        self.run_world(work)

    def test_a_lease_under_another_token_ends_its_guard_and_goes_with_it(self) -> None:
        async def work(at: World) -> None:
            at.authority.epoch = 1
            session = await at.open()
            guard = await at.hold(session)
            # A failover that carried the lease over.
            at.authority.epoch, at.authority.revision = 2, 2**32
            at.authority.leases["scene/hall"].token = 2**32
            self.assertEqual((await guard.lost()).why, "ended")
            await asyncio.sleep(TTL)
            self.assertIn("scene/hall", at.authority.leases, "its work may not have stopped yet")
            self.assertFalse(await guard.release({"last": "word"}))
            await asyncio.sleep(1)
            self.assertNotIn("scene/hall", at.authority.leases, "or the session would keep it for good")
            self.assertTrue(session.is_live())

        self.run_world(work)

    def test_heartbeats_show_the_last_cursor_and_so_does_the_next_session_first(self) -> None:
        async def work(at: World) -> None:
            await at.open()
            await asyncio.sleep(TTL)
            self.assertEqual(set(at.authority.shown), {None})
            at.authority.sealed_cursor = "sealed"
            await asyncio.sleep(TTL)
            self.assertEqual(at.authority.shown[-1], "sealed")
            await at.sessions[0].close()
            at.authority.shown.clear()
            at.authority.sealed_cursor = "other"
            await at.open("next")
            self.assertEqual(at.authority.shown, ["sealed"], "before anything is asked for")
            await asyncio.sleep(TTL)
            self.assertEqual(at.authority.shown[-1], "other")

        self.run_world(work)

    def test_a_machine_that_slept_stops_before_the_next_step(self) -> None:
        async def work(at: World) -> None:
            session = await at.open()
            guard = await at.hold(session)
            steps: list[float] = []
            running = asyncio.ensure_future(guard.run(step_forever(at.clock, steps)))
            await asyncio.sleep(1.0)
            at.clock.suspend(3600)
            woken = time()
            self.assertFalse(guard.is_live())
            told = await guard.lost()
            self.assertLessEqual(time(), woken + 0.1, "no timer of the loop has passed an hour")
            self.assertEqual(told.why, "deadline")
            with self.assertRaises(Lost):
                await running
            self.assertLessEqual(steps[-1], guard.deadline)

        self.run_world(work)

    def test_a_cancelled_acquire_leaves_nothing_held(self) -> None:
        async def work(at: World) -> None:
            session = await at.open()
            at.link.deaf = True  # it is granted, and nobody hears of it
            asking = asyncio.ensure_future(at.hold(session))
            await asyncio.sleep(0.2)
            self.assertIn("scene/hall", at.authority.leases)
            asking.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await asking
            at.link.deaf = False
            await asyncio.sleep(1.0)
            self.assertTrue(session.is_live())
            self.assertNotIn("scene/hall", at.authority.leases)
            self.assertEqual(session.unsettled(), 0)

        self.run_world(work)

    def test_an_acquire_whose_time_is_up_leaves_nothing_held(self) -> None:
        async def work(at: World) -> None:
            session = await at.open(ttl=60)
            at.link.deaf = True
            asking = asyncio.ensure_future(session.acquire("scene", "hall", timeout=1.0))
            await asyncio.sleep(0.2)
            at.link.cut = True
            with self.assertRaises(Unknown):
                await asking
            self.assertIn("scene/hall", at.authority.leases)
            at.link.cut = at.link.deaf = False
            await asyncio.sleep(5.0)
            self.assertNotIn("scene/hall", at.authority.leases)

        self.run_world(work)

    def test_a_repeat_gets_the_same_grant(self) -> None:
        async def work(at: World) -> None:
            session = await at.open()
            at.link.deaf = True
            asking = asyncio.ensure_future(at.hold(session))
            await asyncio.sleep(0.2)
            granted = at.authority.leases["scene/hall"]
            at.link.deaf = False
            guard = await asking
            self.assertEqual((guard.token, guard.lease_id), (granted.token, granted.lease_id))

        self.run_world(work)

    def test_a_release_that_nobody_answers_is_asked_for_again(self) -> None:
        async def work(at: World) -> None:
            session = await at.open(ttl=30)
            guard = await at.hold(session)
            at.link.cut = True
            with self.assertRaises((Unavailable, Unknown)):
                await guard.release()
            self.assertFalse(guard.is_live())
            at.link.cut = False
            await asyncio.sleep(5.0)
            self.assertTrue(session.is_live())
            self.assertNotIn("scene/hall", at.authority.leases)

        self.run_world(work)

    def test_an_acquire_waits_in_line_and_is_woken(self) -> None:
        async def work(at: World) -> None:
            other = await at.neighbour().open("other")
            theirs = await at.hold(other)
            session = await at.open(ttl=30)
            before = len(at.authority.log)
            asking = asyncio.ensure_future(at.hold(session))
            await asyncio.sleep(60)
            asked = [entry for entry in at.authority.log[before:] if entry[1] == "POST resources/scene/hall/lease"]
            self.assertEqual(len(asked), 3, "one request waits for 30 s, and the next is made after 20")
            released = time()
            await theirs.release()
            guard = await asking
            self.assertGreater(guard.token, theirs.token)
            self.assertLess(time() - released, 0.2, "it is told, and does not ask")

        self.run_world(work)

    def test_time_that_is_up_tells_who_holds_it(self) -> None:
        async def work(at: World) -> None:
            other = await at.neighbour().open("other")
            theirs = await at.hold(other)
            session = await at.open()
            for timeout in (0.25, 1.0, 10.0, 65.0):
                began = time()
                with self.assertRaises(Refused) as refused:
                    await session.acquire("scene", "hall", timeout=timeout)
                self.assertTrue(timeout <= time() - began <= timeout + 0.2, f"{time() - began} s instead of {timeout}")
                self.assertEqual((refused.exception.holder, refused.exception.token), ("other", theirs.token))
            began = time()
            with self.assertRaises(Refused):
                await session.try_acquire("scene", "hall")
            self.assertLess(time() - began, 0.1)

        self.run_world(work)

    def test_time_that_is_up_is_up_though_no_server_answers(self) -> None:
        async def work(at: World) -> None:
            session = await at.open(ttl=60)
            at.client.timeout = 10.0
            for trouble in ("closed", "cut", "deaf"):
                setattr(at.link, trouble, True)
                began = time()
                with self.assertRaises((Unavailable, Unknown)):
                    await session.acquire("scene", "hall", timeout=3.0)
                # The server has a little longer, and so has the cancelling of what it may have got.
                self.assertTrue(3.0 <= time() - began <= 5.0, f"{trouble}: {time() - began} s instead of 3")
                setattr(at.link, trouble, False)
            async with session.acquire("scene", "hall", timeout=3.0) as guard:
                self.assertTrue(guard.is_live())

        self.run_world(work)

    def test_a_request_is_repeated_for_as_long_as_it_says(self) -> None:
        async def work(at: World) -> None:
            at.link.closed = True
            for retry_for in (0.0, 0.1, 2.0, 7.0):
                at.client.retry_for = retry_for
                began = time()
                with self.assertRaises(Unavailable):
                    await at.client.request("GET", "/api/v1/nodes")
                self.assertAlmostEqual(time() - began, retry_for, delta=0.01)

        self.run_world(work)

    def test_leaving_does_not_wait_for_a_server_that_is_gone(self) -> None:
        async def work(at: World) -> None:
            at.client.retry_for = 60.0
            for trouble in ("closed", "cut", "deaf"):
                session = await at.open(ttl=600)
                guard = await at.hold(session, trouble)
                setattr(at.link, trouble, True)
                began = time()
                async with guard:
                    pass
                self.assertLessEqual(time() - began, 3.0, f"releasing while {trouble}")
                began = time()
                await session.close()
                self.assertLessEqual(time() - began, 3.0, f"closing while {trouble}")
                setattr(at.link, trouble, False)

        self.run_world(work)

    def test_what_becomes_free_at_the_last_moment_is_had(self) -> None:
        async def work(at: World) -> None:
            session = await at.open(ttl=60)
            at.link.closed = True
            asking = asyncio.ensure_future(session.acquire("scene", "hall", timeout=10.0))
            await asyncio.sleep(9.99)
            at.link.closed = False
            async with await asking as guard:
                self.assertTrue(guard.is_live(), "it is asked for once more when the time is up")

        self.run_world(work)

    def test_an_acquire_under_way_ends_with_its_session(self) -> None:
        async def work(at: World) -> None:
            other = await at.neighbour().open("other")
            await at.hold(other)
            session = await at.open()
            asking = asyncio.ensure_future(at.hold(session))
            await asyncio.sleep(1)
            at.authority.sessions[session.session_id].deadline = time()
            with self.assertRaises((Lost, Refused)):
                await asking
            self.assertFalse(session.is_live())

        self.run_world(work)


async def step_forever(clock: VirtualClock, steps: list[float]) -> None:
    while True:
        steps.append(clock.now())
        await asyncio.sleep(0.003)


@dataclass
class Fleet:
    """Several workers that want the same resources, each by its own clock and link."""

    seed: int
    authority: Authority = field(default_factory=Authority)
    tokens: dict[str, int] = field(default_factory=dict)
    steps: int = 0
    takeovers: int = 0
    revoked: int = 0

    def step(self, guard: Guard) -> None:
        """The store has not given it to anyone else, and a gate would never have to refuse a token."""
        key = f"{guard.kind}/{guard.key}"
        lease = self.authority.leases.get(key)
        is_held = lease is not None and lease.token == guard.token
        if lease is not None and is_held:
            is_held = self.authority.sessions[lease.session_id].deadline > time()
        is_held_back = lease is None and self.authority.is_held_back(key)
        if not is_held and not is_held_back:
            raise AssertionError(f"{guard!r} worked at {time():.3f} without a lease, seed {self.seed}")
        newest = self.tokens.get(guard.key, 0)
        if guard.token < newest:
            raise AssertionError(f"{guard!r} worked at {time():.3f} after token {newest}, seed {self.seed}")
        self.takeovers += guard.token > newest
        self.tokens[guard.key] = guard.token
        self.steps += 1

    async def worker(self, number: int, policy: Policy, until: float) -> None:
        rng = random.Random(self.seed * 100 + number)
        at = world(authority=self.authority, seed=self.seed * 100 + number, rate=rng.uniform(0.99, 1.01))
        trouble = asyncio.ensure_future(self.trouble(at.link, rng))
        incarnation = 0
        while time() < until:
            incarnation += 1
            try:
                async with Session.open(at.client, f"w{number}-{incarnation}", ttl=TTL, policy=policy) as session:
                    tasks = [self.task(session, random.Random(rng.random()), until) for _ in range(2)]
                    await asyncio.gather(*tasks)
            except SoleholdError:
                await asyncio.sleep(rng.uniform(0, 0.5))
        trouble.cancel()

    async def task(self, session: Session, rng: random.Random, until: float) -> None:
        """One of several tasks of a session: it waits in line for some things, and asks for others again and again."""
        while time() < until and session.is_live():
            try:
                if rng.random() < 0.5:
                    guard = await Locks(session).acquire("third", timeout=5.0)
                else:
                    guard = await session.acquire("scene", rng.choice(["one", "two"]), timeout=5.0)
                async with guard:
                    await guard.run(self.work(guard, rng))
            except SoleholdError:
                await asyncio.sleep(rng.uniform(0, 0.5))

    async def revoke(self, until: float) -> None:
        """Somebody takes leases away by force."""
        rng = random.Random(self.seed)
        while time() < until:
            await asyncio.sleep(rng.uniform(0, 2 * TTL))
            key = rng.choice(["scene/one", "scene/two", "lock/third"])
            if key in self.authority.leases:
                try:
                    self.authority.revoke(key)
                    self.revoked += 1
                except Refusal:
                    pass  # it had run out

    async def work(self, guard: Guard, rng: random.Random) -> None:
        for _ in range(rng.randrange(1, 400)):
            self.step(guard)
            await asyncio.sleep(rng.uniform(0.005, 0.02))

    async def trouble(self, link: Link, rng: random.Random) -> None:
        while True:
            weather = rng.choice(["good", "good", "slow", "slow", "cut", "deaf"])
            link.cut, link.deaf = weather == "cut", weather == "deaf"
            link.delay_max = 0.45 if weather == "slow" else 0.01
            await asyncio.sleep(rng.uniform(0, 6))


# Seeds that have found something once, run first: what each has found stands beside it.
KEPT: list[int] = []


class Fleets(unittest.TestCase):
    """`SOLEHOLD_SEED=n` runs that fleet alone, which is the one that a failure names."""

    def test_no_token_ever_works_after_a_newer_one(self) -> None:
        asked = os.environ.get("SOLEHOLD_SEED")
        fresh = random.SystemRandom().randrange(2**32)
        seeds = [*KEPT, *range(1, 7), *range(fresh, fresh + 4)] if asked is None else [int(asked)]
        takeovers = revoked = 0
        for seed in seeds:
            fleet = self.run_fleet(seed)
            takeovers += fleet.takeovers
            revoked += fleet.revoked
        if asked is None:
            self.assertGreater(takeovers, 60)
            self.assertGreater(revoked, 40)

    def run_fleet(self, seed: int) -> Fleet:
        policy = Policy.IMMEDIATE if seed % 4 == 0 else Policy.DEADLINE
        fleet = Fleet(seed)

        async def whole() -> None:
            workers = (fleet.worker(number, policy, 60.0) for number in range(3))
            await asyncio.gather(*workers, fleet.revoke(60.0))

        try:
            simulate(whole())
            self.assertGreater(fleet.steps, 300)
        except BaseException:
            print(f"to see it again: SOLEHOLD_SEED={seed} clients/python/test tests.test_simulation.Fleets", file=sys.stderr)
            raise
        return fleet
