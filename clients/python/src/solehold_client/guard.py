"""A lease that is held, as a value: while the guard is live, the work may go on."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn, TypeVar

from .errors import Lost, SoleholdError, Unavailable, Unknown
from .limits import LEAVE_SECONDS_MAX
from .loss import Loss
from .wire import Grant, Json, StateDocument

if TYPE_CHECKING:
    from .session import Session

T = TypeVar("T")


@dataclass(eq=False)
class Hold:
    """What a guard and its session share about one lease. It outlives a guard that was dropped."""

    kind: str
    key: str
    grant: Grant
    loss: Loss = field(default_factory=Loss)
    sequence: int = 0
    """The last sequence number of a state write under this token."""
    let_go: bool = False
    reissued: int | None = None
    """Another token that the store gave the lease: this one is no longer valid, and no work is done under the new
    one.
    """

    def __str__(self) -> str:
        return f"{self.kind}/{self.key} (token {self.grant.token})"


class Guard:
    """Holds one resource. It cannot be copied; `async with` releases it, and so, a little later, does dropping it.

    A guard is for stopping early. What makes a late write harmless is a gate that looks at `token`.
    """

    def __init__(self, session: Session, hold: Hold) -> None:
        self._session = session
        self._hold = hold
        self._writing = asyncio.Lock()
        state = hold.grant.state
        if state is not None and state.token == hold.grant.token:
            hold.sequence = state.sequence
        self._state = state
        self._told = False
        """Whether the loss was raised: then the guard's user has handled it, or passes it on."""
        self._dropped = weakref.finalize(self, session._guard_dropped, asyncio.get_running_loop(), hold)
        self._dropped.atexit = False

    @property
    def kind(self) -> str:
        """What sort of thing is held."""
        return self._hold.kind

    @property
    def key(self) -> str:
        """Which one of that sort."""
        return self._hold.key

    @property
    def token(self) -> int:
        """The fencing token: larger at each change of owner. Send it along with everything that leaves the process."""
        return self._hold.grant.token

    @property
    def lease_id(self) -> str:
        """The identity of the grant."""
        return self._hold.grant.lease_id

    @property
    def slot(self) -> int | None:
        """Which slot of a shared resource it holds, from 1 on: a gate judges the token by it. None if it is exclusive."""
        return self._hold.grant.slot

    @property
    def slots(self) -> int | None:
        """Of how many slots it holds one. None if it is exclusive."""
        return self._hold.grant.slots

    @property
    def deadline(self) -> float:
        """The tick of the client's clock at which trust ends, unless a heartbeat comes through before."""
        return self._session.deadline

    @property
    def state(self) -> StateDocument | None:
        """What the former holder left, or what this one wrote last."""
        return self._state

    def is_live(self) -> bool:
        """Whether the work may go on, by the clock. Once false, it stays false."""
        return self._judge() is None

    def is_in_grace(self) -> bool:
        """Whether the deadline has passed and the work goes on by the policy `grace`."""
        return self.is_live() and self._session.is_in_grace()

    def check(self) -> int:
        """The token, or raises `Lost`: call it right before an effect."""
        if lost := self._judge():
            self._told = True
            raise lost.again()
        return self.token

    async def lost(self) -> Lost:
        """Waits until it is lost or released, and returns why."""
        return await self._hold.loss.wait()

    async def run(self, work: Awaitable[T]) -> T:
        """The result of the work, which is cancelled when the lease is lost; then, once it has ended, raises `Lost`.

        What it awaits is interrupted; tasks that it started by itself and calls that block are its own affair. The
        lease is judged before each step, also before one that an exception resumes, such as a timeout: if the lease was
        lost meanwhile, the work gets a `CancelledError` in place of that result or exception, may clean up, and is
        waited for.
        """
        try:
            return await self._hold.loss.interrupt(work, self._judge)
        except Lost:
            self._told = self._told or self._judge() is not None
            raise

    async def write_state(self, document: Json) -> StateDocument:
        """Writes the state document: the next holder gets it."""
        async with self._writing:
            self.check()
            hold = self._hold
            hold.sequence += 1
            self._state = await self._session.client.write_state(
                hold.kind,
                hold.key,
                token=hold.grant.token,
                lease_id=hold.grant.lease_id,
                session_id=self._session.session_id,
                sequence=hold.sequence,
                document=document,
            )
            return self._state

    async def release(self, state: Json = None) -> bool:
        """Releases the lease, with a last state document if given; false if it was lost before, and then nothing has
        changed.

        If no server says what became of it (`Unknown`, `Unavailable`), the session asks on.
        """
        self._dropped.detach()
        return await self._session._release(self._hold, state)

    async def __aenter__(self) -> Guard:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Releases it. A body that ended well under a guard that was lost meanwhile raises `Lost`, unless it was raised
        within the body: then the body has handled it.
        """
        lost = None if self._hold.let_go or self._told else self._judge()
        self._dropped.detach()
        try:
            await self._session._release(self._hold, None, within=LEAVE_SECONDS_MAX)
        except (Unavailable, Unknown):
            pass  # the session asks on, and the ttl is the net
        except SoleholdError:
            if error is None and lost is None:
                raise
        if error is None and lost is not None:
            raise lost.again()

    def __repr__(self) -> str:
        live = "live" if self.is_live() else "lost"
        return f"<Guard {self.kind}/{self.key} token={self.token} {live}>"

    def __copy__(self) -> NoReturn:
        raise TypeError("a guard cannot be copied: one lease has one guard")

    def __deepcopy__(self, memo: object) -> NoReturn:
        self.__copy__()

    def __reduce__(self) -> NoReturn:
        self.__copy__()

    def _judge(self) -> Lost | None:
        return self._hold.loss.declared or self._session._judge()


class Guards(tuple[Guard, ...]):
    """The guards of resources that were acquired together, in the order in which they were asked for. `async with`
    releases all of them.
    """

    async def __aenter__(self) -> Guards:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Releases them, as each guard by itself would; raises the first failure."""
        ends = await asyncio.gather(*(guard.__aexit__(kind, error, trace) for guard in self), return_exceptions=True)
        for failed in ends:
            if failed is not None:
                raise failed
