"""The loss of a session, or of one lease of it."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Generator
from typing import Any, Generic, TypeVar

from . import check
from .errors import Lost

T = TypeVar("T")


class Loss:
    """A loss: declared once, and never taken back."""

    def __init__(self) -> None:
        self.declared: Lost | None = None
        self._event = asyncio.Event()
        self._listeners: set[Callable[[], object]] = set()

    def declare(self, lost: Lost) -> None:
        """Declares it lost. The first reason stands."""
        if self.declared is None:
            self.declared = lost
            self._event.set()
            for listener in list(self._listeners):
                listener()

    async def wait(self) -> Lost:
        """Waits until it is lost."""
        await self._event.wait()
        assert self.declared is not None, "the event is set after the reason"
        return self.declared

    async def interrupt(self, work: Awaitable[T], judge: Callable[[], Lost | None]) -> T:
        """The result of the work. When this is declared or `judge` says so, it is cancelled; once it has ended,
        raises `Lost`.

        `judge` is asked before each step of the work, whether a result or an exception resumes it: after a long pause
        of the process, which no timer has told yet, the work does not get even one step further.
        """
        if not inspect.isawaitable(work):
            raise TypeError(f"work must be awaitable, such as the call of an async function, not {check.kind_of(work)}")
        steps = _Steps(work, judge)
        task: asyncio.Task[T] = asyncio.ensure_future(steps.run())
        listener = steps.stopper(task)
        self._listeners.add(listener)
        if self.declared is not None:
            listener()
        try:
            await asyncio.wait({task})
        finally:
            self._listeners.discard(listener)
            await _cancelled(task)  # if we are cancelled ourselves
            steps.close()
        lost = self.declared or judge()
        if lost is None:
            return task.result()
        cause = None if task.cancelled() else task.exception()
        raise lost.again() from (None if isinstance(cause, Lost) else cause)


async def _cancelled(task: asyncio.Task[T]) -> None:
    """Cancels a task, once more whenever the caller is cancelled meanwhile, and waits until it has ended."""
    interrupted: asyncio.CancelledError | None = None
    while not task.done():
        task.cancel()
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            interrupted = error
    if interrupted is not None:
        raise interrupted


class _Steps(Generic[T]):
    """Runs an awaitable step by step, asking the judge before each."""

    def __init__(self, work: Awaitable[T], judge: Callable[[], Lost | None]) -> None:
        self._work = work
        self._judge = judge
        self._stopped = False

    async def run(self) -> T:
        return await self

    def close(self) -> None:
        """Of work that was stopped before its first step, Python would complain that it was never awaited."""
        if asyncio.iscoroutine(self._work):
            self._work.close()

    def stopper(self, task: asyncio.Task[Any]) -> Callable[[], object]:
        def stop() -> None:
            if not self._stopped:
                self._stopped = True
                task.cancel()

        return stop

    def __await__(self) -> Generator[Any, Any, T]:
        steps = self._work.__await__()
        value: Any = None
        error: BaseException | None = None
        try:
            while True:
                # What is closed cannot wait any more: it cleans up, and that is all.
                if not isinstance(error, GeneratorExit) and self._is_to_stop():
                    try:
                        yield  # until the loop's next round, which brings the cancellation
                    except BaseException as cancelled:
                        error = cancelled
                yielded = steps.send(value) if error is None else steps.throw(error)
                value = error = None
                try:
                    value = yield yielded
                except BaseException as resumed:
                    error = resumed
        except StopIteration as done:
            result: T = done.value
            return result
        finally:
            value = error = None  # an error's trace has this frame

    def _is_to_stop(self) -> bool:
        """Cancels the task before a step that must not be taken.

        The task itself, so that the cancellation is counted: a timeout of the work, which has cancelled the task in the
        same moment, would otherwise take it for its own, and the work would go on after it.
        """
        if self._stopped or self._judge() is None:
            return False
        task = asyncio.current_task()
        assert task is not None, "steps are run by a task"
        self.stopper(task)()
        return True
