"""Several acquires, all or none, without deadlock: one request if all are free; else one after the other, in one order."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Optional, Union

from . import check
from .acquire import PASSING, Acquire
from .backoff import Backoff
from .channel import Doubts
from .clock import sleep_until
from .errors import NoSession, Refused, SoleholdError, Unavailable, Unknown
from .guard import Guard, Guards
from .limits import ACQUIRED_TOGETHER_MAX, LEAVE_SECONDS_MAX, SPEND_SECONDS_MAX
from .wire import Grant, Json

if TYPE_CHECKING:
    from .session import Session

Wanted = Union["tuple[str, str]", "tuple[str, str, int | None]"]
"""The kind and the key of a resource, and of how many slots one is wanted if it is shared."""


Shared = tuple[str, str, Optional[int]]
"""The same, with no slots for an exclusive lease."""


def check_wanted(resources: Iterable[Wanted]) -> list[Shared]:
    """The resources, if each has good names and is there once."""
    check.instance("resources", resources, Iterable, "a list such as [('scene', 'hall'), ('scene', 'lobby')]")
    wanted: list[tuple[Any, ...]] = list(resources)
    if not 1 <= len(wanted) <= ACQUIRED_TOGETHER_MAX:
        raise ValueError(f"{len(wanted)} resources were given: give 1 to {ACQUIRED_TOGETHER_MAX}")
    for one in wanted:
        check.instance("a resource", one, tuple, "a kind and a key, such as ('scene', 'hall')")
        if not 2 <= len(one) <= 3:
            raise ValueError(f"a resource has {len(one)} parts: give a kind, a key and, if it is shared, its slots")
        check.name("kind", one[0])
        check.name("key", one[1])
        check.slots(one[2] if len(one) == 3 else None)
    if len({one[:2] for one in wanted}) < len(wanted):
        raise ValueError("a resource was given twice: it would wait for itself")
    return [(one[0], one[1], one[2] if len(one) == 3 else None) for one in wanted]


class AcquireAll:
    """The attempts of several acquires that belong together. Each has a request id of its own, which stays the same
    whether it is asked for with the others or by itself, so that an answer that was lost is found by a repeat.
    """

    def __init__(
        self,
        session: Session,
        wanted: Sequence[Shared],
        until: float,
        attributes: Mapping[str, Json] | None = None,
    ) -> None:
        self.session = session
        self.client = session.client
        self._until = until
        self._attributes = attributes
        self._items = [Acquire(session, kind, key, until, attributes, slots) for kind, key, slots in wanted]
        self._guards: dict[int, Guard] = {}
        """By the place of the resource in the caller's order."""
        self._backoff = Backoff(session.config.backoff, self.client.rng)

    async def run(self) -> Guards:
        """Attempts until all are granted, the time is up, or the authority refuses for a reason that waiting does not
        change. Then nothing is held.
        """
        self.session.check_unsettled(len(self._items))
        try:
            if not await self._together():
                await self._one_by_one()
            return Guards(self._guards[place] for place in range(len(self._items)))
        except Unknown as error:
            if await self._undo():
                raise Unavailable(f"{error.detail}; the requests were cancelled and hold nothing") from None
            raise
        except BaseException:
            await self._undo()
            raise

    def _time_left(self) -> float:
        return max(0.0, self._until - self.client.clock.now())

    async def _together(self) -> bool:
        """Asks for all of them in one step; false if one is in the way and there is time to wait for it."""
        while True:
            try:
                grants = await self.session._while_live(self._ask())
                for place, (item, grant) in enumerate(zip(self._items, grants)):
                    self._guards[place] = self.session._granted(item.kind, item.key, grant)
                return True
            except Refused as error:
                failed: SoleholdError = error
                if isinstance(error, NoSession):
                    self.session._refused(error)
                if error.code not in PASSING:
                    raise
                if error.code in ("request_spent", "lost"):
                    await self._begin_again()
                elif self._time_left() > 0:
                    return False
                delay = self._backoff.delay()
            except (Unavailable, Unknown) as error:
                failed = error
                delay = self._backoff.delay(least=error.retry_after or 0.0)
            left = self._time_left()
            if left <= 0:
                raise failed.with_traceback(None)
            await sleep_until(self.client.clock, self.client.clock.now() + min(delay, left))

    async def _ask(self) -> list[Grant]:
        doubts = Doubts()
        items = [self._said(item) for item in self._items]
        try:
            grants = await self.client.acquire_together(items, timeout=self.client.timeout, doubts=doubts)
            doubts.any = True  # until they are guards, a failure gives them back
            return grants
        except (asyncio.CancelledError, Unknown):
            doubts.any = True  # it was under way
            raise
        finally:
            for item in self._items:
                item.doubts.any |= doubts.any

    def _said(self, item: Acquire) -> dict[str, Json]:
        return {
            "kind": item.kind,
            "key": item.key,
            "holder": self.session.holder,
            "session_id": self.session.session_id,
            "request_id": item.request_id,
            "slots": item.slots,
            "attributes": None if self._attributes is None else dict(self._attributes),
        }

    async def _begin_again(self) -> None:
        """One of the request ids got a lease that has ended: the others may have theirs still. They are given back, and
        it goes on under other request ids.
        """
        await self._undo()  # which goes on in the background if it takes long
        for item in self._items:
            item.request_id = self.client.request_id()
            item.doubts.any = False

    async def _one_by_one(self) -> None:
        """Waits for one after the other. All clients do so in the same order, so none waits for one that waits for it."""
        order = sorted(range(len(self._items)), key=lambda place: (self._items[place].kind, self._items[place].key))
        for place in order:
            self._guards[place] = await self._items[place].run()

    async def _undo(self) -> bool:
        """Releases what was got, and spends the request ids that may have got something. Returns whether nothing is
        known to be held.
        """
        guards, self._guards = self._guards, {}
        releases = [self.session._settle(guard.release) for guard in guards.values()]
        spent = [item.spend() for place, item in enumerate(self._items) if place not in guards]
        tasks = {*releases, *(task for task in spent if task is not None)}
        if not tasks:
            return True
        done, late = await asyncio.wait(tasks, timeout=LEAVE_SECONDS_MAX if releases else SPEND_SECONDS_MAX)
        return not late and all(not task.cancelled() and task.result() for task in done)
