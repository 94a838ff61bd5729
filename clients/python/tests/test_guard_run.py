"""Work under a guard, on virtual time: no step is taken after the lease was lost, and the work is waited for."""

from __future__ import annotations

import asyncio
import sys
import unittest
from collections.abc import Awaitable, Callable
from contextlib import suppress

from solehold_client import Lost
from solehold_client.loss import _Steps

from .support.virtual import simulate
from .support.world import World, time, world


def run_world(work: Callable[[World], Awaitable[None]]) -> None:
    async def whole() -> None:
        at = world()
        try:
            await work(at)
        finally:
            for session in at.sessions:
                await session.close()

    simulate(whole())


class Resumed(unittest.TestCase):
    """The machine sleeps for an hour just before the wait of the work ends by an exception."""

    FAILS_AT = 1.0123
    SLEEPS_AT = FAILS_AT - 1e-6

    def lose(self, wait: Callable[[], Awaitable[object]], failure: type[BaseException]) -> tuple[int, int]:
        """How many effects the work has when its wait has failed, and how often it cleans up."""
        effects: list[float] = []
        cleanups: list[float] = []

        async def work(at: World) -> None:
            guard = await at.hold(await at.open())

            async def waits() -> None:
                try:
                    await wait()
                except failure:
                    effects.append(at.clock.now())
                finally:
                    await asyncio.sleep(0.001)
                    cleanups.append(at.clock.now())

            asyncio.get_running_loop().call_at(self.SLEEPS_AT, at.clock.suspend, 3600)
            with self.assertRaises(Lost) as lost:
                await guard.run(waits())
            self.assertEqual(lost.exception.why, "deadline")

        run_world(work)
        return len(effects), len(cleanups)

    def test_a_step_that_an_exception_resumes_is_judged(self) -> None:
        async def fails() -> None:
            loop = asyncio.get_running_loop()
            failed: asyncio.Future[None] = loop.create_future()
            loop.call_at(self.FAILS_AT, failed.set_exception, ConnectionError("the camera hung up"))
            await failed

        self.assertEqual(self.lose(fails, ConnectionError), (0, 1))

    def test_a_timeout_of_the_work_does_not_take_the_loss_for_its_own(self) -> None:
        async def times_out() -> None:
            if sys.version_info < (3, 11):
                self.skipTest("asyncio.timeout_at is newer")
            else:
                async with asyncio.timeout_at(self.FAILS_AT):
                    await asyncio.Event().wait()

        self.assertEqual(self.lose(times_out, TimeoutError), (0, 1))

    def test_a_wait_that_is_limited_does_not_take_the_loss_for_its_own(self) -> None:
        async def times_out() -> None:
            await asyncio.wait_for(asyncio.Event().wait(), self.FAILS_AT - time())

        self.assertEqual(self.lose(times_out, asyncio.TimeoutError), (0, 1))


class Ended(unittest.TestCase):
    def test_work_that_is_closed_after_the_loss_still_cleans_up(self) -> None:
        """As Python does with the tasks of a loop that is gone."""

        async def work(at: World) -> None:
            guard = await at.hold(await at.open())
            cleaned: list[bool] = []

            async def waits() -> None:
                try:
                    await asyncio.Event().wait()
                finally:
                    cleaned.append(True)

            steps = _Steps(waits(), guard._judge).run()
            steps.send(None)
            at.clock.suspend(3600)
            steps.close()
            self.assertEqual(cleaned, [True])

        run_world(work)

    def test_work_that_is_cancelled_twice_is_still_waited_for(self) -> None:
        async def work(at: World) -> None:
            guard = await at.hold(await at.open())
            ended: list[float] = []

            async def waits() -> None:
                try:
                    await asyncio.Event().wait()
                finally:
                    with suppress(asyncio.CancelledError):
                        await asyncio.sleep(1.0)
                    await asyncio.sleep(1.0)
                    ended.append(time())

            running = asyncio.ensure_future(guard.run(waits()))
            for _ in range(2):
                await asyncio.sleep(0.1)
                running.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await running
            self.assertEqual(len(ended), 1, "the lease is kept until the work has ended")
            self.assertTrue(guard.is_live())

        run_world(work)
