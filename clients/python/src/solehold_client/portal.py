"""An event loop in a thread of its own, and the way into it for programs without one."""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
from typing import Any, TypeVar

T = TypeVar("T")


class Portal:
    """Runs coroutines in its loop, for any number of threads. Heartbeats go out meanwhile, whatever those do."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._pid = os.getpid()
        self._watchers: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=_run, args=(self._loop,), name="solehold-client", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of the work. Interrupted, as by Ctrl-C, it cancels the work and waits until that has ended."""
        done: Future[T] = Future()
        tasks: list[asyncio.Task[T]] = []
        # What the caller has in its context, such as a span, goes for the work.
        context = contextvars.copy_context()

        def begin() -> None:
            tasks.append(context.run(lambda: self._loop.create_task(work)))
            tasks[0].add_done_callback(lambda task: _pass_on(task, done))

        try:
            self._soon(begin)
        except RuntimeError:
            work.close()
            raise
        try:
            return done.result()
        except BaseException:
            if not done.done():
                self._soon(lambda: tasks[0].cancel())
                wait([done])
            raise

    def start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Starts something that goes on in the loop by itself."""

        def begin() -> None:
            task = self._loop.create_task(work())
            self._watchers.add(task)
            task.add_done_callback(self._watchers.discard)

        self._soon(begin)

    def stop(self) -> None:
        """Ends the loop with all that runs in it, and its thread."""
        if os.getpid() != self._pid or self._loop.is_closed():
            return
        try:
            self._loop.call_soon_threadsafe(self._loop.stop)
        except RuntimeError:
            return  # it was closed meanwhile
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _soon(self, call: Callable[[], object]) -> None:
        if os.getpid() != self._pid:
            raise RuntimeError("this client belongs to the process that made it: make another one after a fork")
        if threading.current_thread() is self._thread:
            raise RuntimeError("a call that blocks was made in the client's own thread, and would wait for itself")
        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError as error:
            raise RuntimeError("the client was closed") from error


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.run_until_complete(_cancel_all())
        loop.close()


async def _cancel_all() -> None:
    while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _pass_on(task: asyncio.Task[T], done: Future[T]) -> None:
    if task.cancelled():
        done.set_exception(RuntimeError("it was cancelled: the client was closed, or the wait was interrupted"))
    elif (error := task.exception()) is not None:
        done.set_exception(error)
    else:
        done.set_result(task.result())
