"""Asking the store for one resource: one question per resource at a time, and not too many at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from .fence import Key, Mark
from .limits import REQUESTS_AT_ONCE_MAX


@dataclass(frozen=True)
class Told:
    """What the store said of a resource."""

    asked: float
    """The tick before the question was sent."""
    mark: Mark | None
    epoch: int | None
    hidden: bool = False
    """The gate's key may not see it."""


@dataclass
class _Place:
    """The tasks that want to know of one resource. The one that holds the lock asks."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    tasks: int = 0
    last: Told | None = None


class Refreshes:
    """The questions that are under way. One serves all tasks that had come before it was sent; a task that comes later
    needs the next one, since an answer is as old as its question.
    """

    def __init__(self, newest: Callable[[Key], Awaitable[Told]]) -> None:
        self.under_way: dict[Key, _Place] = {}
        """By resource."""
        self._newest = newest
        self._at_once = asyncio.Semaphore(REQUESTS_AT_ONCE_MAX)

    async def ask(self, key: Key, arrived: float) -> Told:
        """The store's answer to a question that was sent at the tick `arrived` or later."""
        place = self.under_way.setdefault(key, _Place())
        place.tasks += 1
        try:
            async with place.lock:
                told = place.last
                if told is None or told.asked < arrived:
                    async with self._at_once:
                        told = place.last = await self._newest(key)
                return told
        finally:
            place.tasks -= 1
            if not place.tasks:
                del self.under_way[key]  # the last one takes the answer along
