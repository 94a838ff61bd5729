"""The whole client on virtual time: exact deadlines, sleep of the machine, and a fleet behind a bad network."""

from __future__ import annotations

import asyncio
import random
import unittest
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from solehold_client import Client, Guard, Lost, Policy, Refused, Session, SoleholdError, Unavailable, Unknown

from .support.model import Authority, Link
from .support.virtual import VirtualClock, simulate

TTL = 3.0


@dataclass
class World:
    """One worker, and its way to the authority."""

    authority: Authority
    link: Link
    clock: VirtualClock
    client: Client
    sessions: list[Session] = field(default_factory=list)
    guards: list[Guard] = field(default_factory=list)

    async def open(self, holder: str = "w", *, ttl: float = TTL, policy: Policy = Policy.DEADLINE) -> Session:
        """A session that is closed when the test ends."""
        session = await Session.open(self.client, holder, ttl=ttl, policy=policy)
        self.sessions.append(session)
        return session

    async def hold(self, session: Session, key: str = "hall") -> Guard:
        """A guard that is held until its session is closed."""
        guard = await session.acquire("scene", key)
        self.guards.append(guard)
        return guard

    def neighbour(self) -> World:
        """Another worker at the same authority."""
        return world(authority=self.authority, seed=2, sessions=self.sessions)


def world(
    *, authority: Authority | None = None, seed: int = 1, rate: float = 1.0, sessions: list[Session] | None = None
) -> World:
    authority = authority or Authority()
    link = Link(authority, random.Random(seed))
    clock = VirtualClock(rate=rate, offset=1000.0 * seed)
    client = Client(
        "http://model", timeout=0.5, retry_for=2.0, clock=clock, rng=random.Random(seed), transport=link.transport
    )
    return World(authority, link, clock, client, [] if sessions is None else sessions)


def time() -> float:
    return asyncio.get_running_loop().time()


class OneWorker(unittest.TestCase):
    def run_world(self, work: Callable[[World], Awaitable[None]]) -> None:
        async def whole() -> None:
            at = world()
            try:
                await work(at)
            finally:
                for session in at.sessions:
                    await session.close()

        simulate(whole())

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

    def test_acquiring_backs_off_and_knows_when_the_lease_runs_out(self) -> None:
        async def work(at: World) -> None:
            other = await at.neighbour().open("other")
            theirs = await at.hold(other)
            session = await at.open(ttl=30)
            before = len(at.authority.log)
            asking = asyncio.ensure_future(at.hold(session))
            await asyncio.sleep(60)
            asked = [entry for entry in at.authority.log[before:] if entry[1] == "POST resources/scene/hall/lease"]
            self.assertTrue(30 <= len(asked) <= 75, f"asked {len(asked)} times in a minute, about every second and a half")
            await theirs.release()
            guard = await asking
            self.assertGreater(guard.token, theirs.token)

        self.run_world(work)

    def test_time_that_is_up_tells_who_holds_it(self) -> None:
        async def work(at: World) -> None:
            other = await at.neighbour().open("other")
            theirs = await at.hold(other)
            session = await at.open()
            began = time()
            with self.assertRaises(Refused) as refused:
                await session.acquire("scene", "hall", timeout=10.0)
            self.assertTrue(8 <= time() - began <= 10)
            self.assertEqual((refused.exception.holder, refused.exception.token), ("other", theirs.token))
            with self.assertRaises(Refused):
                await session.try_acquire("scene", "hall")

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

    def step(self, guard: Guard) -> None:
        """The store has not let go of it yet, and a gate would never have to refuse a token."""
        lease = self.authority.leases.get(f"scene/{guard.key}")
        if lease is None or lease.token != guard.token or self.authority.sessions[lease.session_id].deadline <= time():
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
                    while time() < until:
                        key = rng.choice(["one", "two"])
                        async with await session.acquire("scene", key, timeout=5.0) as guard:
                            await guard.run(self.work(guard, rng))
            except SoleholdError as error:
                if isinstance(error, Lost) and error.why == "ended":
                    raise AssertionError(f"nobody ended it, seed {self.seed}") from error
                await asyncio.sleep(rng.uniform(0, 0.5))
        trouble.cancel()

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


class Fleets(unittest.TestCase):
    def test_no_token_ever_works_after_a_newer_one(self) -> None:
        takeovers = 0
        for seed in range(1, 9):
            policy = Policy.IMMEDIATE if seed % 4 == 0 else Policy.DEADLINE
            fleet = Fleet(seed)

            async def whole(fleet: Fleet = fleet, policy: Policy = policy) -> None:
                await asyncio.gather(*(fleet.worker(number, policy, 60.0) for number in range(3)))

            simulate(whole())
            self.assertGreater(fleet.steps, 500, f"seed {seed}")
            takeovers += fleet.takeovers
        self.assertGreater(takeovers, 60)
