"""A coroutine whose result is awaited or entered."""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

T = TypeVar("T", bound=AbstractAsyncContextManager[Any])


class Enterable(Coroutine[Any, Any, T]):
    """What `Session.open` and `acquire` return: `async with acquire(...) as guard`, or `guard = await acquire(...)`.

    It is a coroutine like any other, so tasks can be made of it.
    """

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self._work = work
        self._entered: T | None = None

    def __await__(self) -> Generator[Any, Any, T]:
        return self._work.__await__()

    def send(self, value: Any) -> Any:
        """One step, for the event loop."""
        return self._work.send(value)

    def throw(self, *error: Any) -> Any:
        """One step, for the event loop."""
        return self._work.throw(*error)

    def close(self) -> None:
        """Gives it up before it has begun."""
        self._work.close()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(f"{name}: this is only about to happen; `await` it, or enter it by `async with`")

    async def __aenter__(self) -> T:
        self._entered = await self._work
        await self._entered.__aenter__()
        return self._entered

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._entered is not None, "it was entered before"
        await self._entered.__aexit__(kind, error, trace)
