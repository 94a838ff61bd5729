"""An event loop whose time jumps to the next timer instead of waiting for it."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Jumping(selectors.SelectSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.on_round: Callable[[], bool] = lambda: False

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self.on_round():
            return []
        if timeout is None:
            raise AssertionError("every task waits, and nothing will ever happen")
        self.now += max(0.0, timeout)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """Deterministic: the same program, the same run."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now

    def on_round(self, call: Callable[[], bool]) -> None:
        """Calls it before each round. True means that it has made something happen, for which no time passes."""
        self._jumping.on_round = call


class VirtualClock:
    """A worker's own clock: it may run fast or slow, and it counts on while the worker sleeps."""

    def __init__(self, *, rate: float = 1.0, offset: float = 1000.0) -> None:
        self._rate = rate
        self._offset = offset

    def now(self) -> float:
        return self._offset + asyncio.get_running_loop().time() * self._rate

    def suspend(self, seconds: float) -> None:
        """The machine slept: this clock went on, the loop's timers did not."""
        self._offset += seconds


def simulate(work: Coroutine[Any, Any, T]) -> T:
    """Runs it on virtual time."""
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(work)
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
