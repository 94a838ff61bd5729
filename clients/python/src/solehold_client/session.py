"""One incarnation of a holder: a heartbeat on its own connection keeps everything attached to it.

The renewer decides, this drives: it sends when told, tells what came of it, and never waits for long without a look at the clock.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Awaitable, Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, TypeVar

from .acquire import Acquire
from .backoff import Backoff, BackoffConfig
from .client import Client
from .clock import sleep_until
from .errors import Lost, Refused, SoleholdError, Unavailable, Unknown
from .guard import Guard, Hold
from .history import OlderHistory
from .holdings import Holdings
from .limits import STEP_SECONDS_MAX, TTL_SECONDS_MAX, TTL_SECONDS_MIN
from .loss import Loss
from .renewer import Policy, Renewer, Send, Stop
from .wire import Grant, Json, SessionView, segment

T = TypeVar("T")


@dataclass(frozen=True)
class SessionConfig:
    """The holder of a session, and how the session is kept. A second session of a holder ends the first: give each
    process its own name.
    """

    holder: str
    ttl: float = 30.0
    """Seconds that a heartbeat keeps it."""
    policy: Policy = Policy.DEADLINE
    """What to do while renewals fail."""
    replace: str | None = None
    """A former session of this holder, to be closed at once."""
    metrics: Callable[[], Mapping[str, Json]] | None = None
    """What heartbeats report about the holder."""
    backoff: BackoffConfig = field(default_factory=BackoffConfig)
    """How often an acquire asks again."""

    def __post_init__(self) -> None:
        segment(self.holder)
        if not TTL_SECONDS_MIN <= self.ttl <= TTL_SECONDS_MAX:
            raise ValueError(f"a ttl of {self.ttl} s is out of bounds: give {TTL_SECONDS_MIN:g} to {TTL_SECONDS_MAX:g} s")


class Session:
    """An open session. `async with Session.open(...)` closes it, which releases everything attached to it."""

    def __init__(self, client: Client, config: SessionConfig, sent: float, view: SessionView) -> None:
        self.client = client
        self.config = config
        self.session_id = view.session_id
        """Its identity."""
        self._renewer = Renewer(
            config.policy, ttl=view.full_ttl, sent=sent, ttl_left=view.ttl_left, slack=view.slack, rng=client.rng
        )
        self._holdings = Holdings()
        self._holds: dict[str, Hold] = {}
        self._loss = Loss()
        self._wake = asyncio.Event()
        self._channel = client.channel()
        self._settling: set[asyncio.Task[bool]] = set()
        self._beat: asyncio.Task[None] | None = None
        self._driver: asyncio.Task[None] = asyncio.ensure_future(self._drive())

    @staticmethod
    def open(client: Client, holder: str | SessionConfig, *, ttl: float | None = None, policy: Policy | None = None) -> Opening:
        """Opens a session: `async with Session.open(...) as session`, or `session = await Session.open(...)`."""
        config = SessionConfig(holder) if isinstance(holder, str) else holder
        given: dict[str, Any] = {"ttl": ttl, "policy": policy}
        return Opening(client, replace(config, **{name: value for name, value in given.items() if value is not None}))

    @property
    def holder(self) -> str:
        """The name of its holder."""
        return self.config.holder

    @property
    def deadline(self) -> float:
        """The tick of the client's clock at which trust ends, unless a heartbeat comes through before."""
        return self._renewer.deadline

    def is_live(self) -> bool:
        """Whether work under it may go on, by the clock. Once false, it stays false."""
        return self._judge() is None

    def is_in_grace(self) -> bool:
        """Whether the deadline has passed and work goes on by the policy `grace`."""
        return self.is_live() and self.client.clock.now() >= self.deadline

    def unsettled(self) -> int:
        """How many requests have an outcome that is still unknown."""
        return len(self._settling)

    async def lost(self) -> Lost:
        """Waits until it is lost or closed, and returns why."""
        return await self._loss.wait()

    async def acquire(
        self, kind: str, key: str, *, timeout: float | None = None, attributes: Mapping[str, Json] | None = None
    ) -> Guard:
        """Acquires a resource, and asks again while someone holds it: up to `timeout` seconds, forever if None, once
        if 0.

        When the time is up it raises the last refusal. However it ends without a guard, nothing is held.
        """

        async def attempt(acquire: Acquire) -> Grant:
            _, grant = await self.client.acquire(
                kind,
                key,
                holder=self.holder,
                session_id=self.session_id,
                request_id=acquire.request_id,
                attributes=attributes,
                until=acquire.retry_until(),
                doubts=acquire.doubts,
            )
            return grant

        return await Acquire(self, kind, key, timeout, self.config.backoff).run(attempt)

    async def try_acquire(self, kind: str, key: str, *, attributes: Mapping[str, Json] | None = None) -> Guard:
        """Acquires a free resource, or raises `Refused` with its holder."""
        return await self.acquire(kind, key, timeout=0.0, attributes=attributes)

    async def close(self) -> None:
        """Closes it: all its guards are lost, and everything attached to it is released."""
        lost = self._judge()
        self._renewer.closed()
        self._declare()
        for task in [self._driver, *self._settling, *([self._beat] if self._beat else [])]:
            task.cancel()
        try:
            if lost is None or lost.why in ("deadline", "failed"):
                until = min(self.client.clock.now() + self.client.retry_for, self._renewer.ends_at)
                await self.client.close_session(self.session_id, until=until)
        except SoleholdError:
            pass  # it is over, or runs out by itself
        finally:
            await self._channel.close()

    async def __aenter__(self) -> Session:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<Session {self.session_id} of {self.holder} {'live' if self.is_live() else 'lost'}>"

    # The driver.

    async def _drive(self) -> None:
        try:
            while True:
                action = self._renewer.poll(self.client.clock.now())
                if isinstance(action, Stop):
                    break
                if isinstance(action, Send):
                    self._beat = asyncio.ensure_future(self._heartbeat(action.timeout))
                else:
                    await self._pause(action.until)
        finally:
            # Without a driver the deadline would go unnoticed, so its end is the end of the session.
            self._renewer.closed()
            self._declare()
            if self._beat is not None:
                self._beat.cancel()

    async def _heartbeat(self, timeout: float) -> None:
        renewer, client = self._renewer, self.client
        try:
            metrics = None if self.config.metrics is None else self.config.metrics()
            sent, view = await client.heartbeat(self._channel, self.session_id, timeout=timeout, metrics=metrics)
        except (Unavailable, Unknown) as error:
            renewer.failed(client.clock.now(), error.detail, error.retry_after)
        except SoleholdError as error:
            renewer.refused(str(error))
        except Exception as error:  # of the holder's own metrics, or of a transport: no renewal either way
            renewer.failed(client.clock.now(), f"{type(error).__name__}: {error}")
        else:
            self._answered(sent, view)
        finally:
            self._wake.set()

    def _answered(self, sent: float, view: SessionView) -> None:
        history = self.client.history
        try:
            epoch = history.follow(view.epoch)
        except OlderHistory as error:
            self._renewer.set_back(str(error))
            return
        history.keep(view.sealed_cursor)
        # What has ended is told before the others are trusted for longer.
        for lease in self._holdings.take((epoch, view.revision), view.leases):
            if hold := self._holds.pop(lease[0], None):
                hold.reissued = next((token for lease_id, token in view.leases if lease_id == lease[0]), None)
                hold.loss.declare(Lost("ended", f"the lease on {hold.kind}/{hold.key} was ended by someone else"))
        self._renewer.answered(self.client.clock.now(), sent=sent, ttl_left=view.ttl_left, slack=view.slack)

    async def _pause(self, until: float) -> None:
        left = max(0.0, until - self.client.clock.now())
        timer = asyncio.get_running_loop().call_later(min(left, STEP_SECONDS_MAX), self._wake.set)
        try:
            await self._wake.wait()
        finally:
            timer.cancel()
        self._wake.clear()

    def _judge(self) -> Lost | None:
        self._renewer.is_live(self.client.clock.now())
        return self._renewer.lost

    def _declare(self) -> None:
        lost = self._renewer.lost
        if lost is not None:
            self._loss.declare(lost)
            for hold in self._holds.values():
                hold.loss.declare(lost)
            self._holds.clear()

    def _refused(self, error: SoleholdError) -> None:
        """Another request was told that the session is over."""
        self._renewer.refused(str(error))
        self._declare()
        self._wake.set()

    # What guards and acquires ask of it.

    async def _while_live(self, work: Awaitable[T]) -> T:
        return await self._loss.interrupt(work, self._judge)

    def _granted(self, kind: str, key: str, grant: Grant) -> Guard:
        if lost := self._judge():
            raise lost.again()
        try:
            epoch = self.client.history.follow(grant.epoch)
        except OlderHistory as error:
            raise Unknown(str(error)) from error  # what it got is spent
        if not self._holdings.granted(grant.identity, (epoch, grant.revision)):
            raise Refused(f"the lease on {kind}/{key} was ended before its grant arrived", code="lost", token=grant.token)
        hold = Hold(kind, key, grant)
        self._holds[grant.lease_id] = hold
        return Guard(self, hold)

    async def _release(self, hold: Hold, state: Json) -> bool:
        if hold.let_go:
            return False
        lost = hold.loss.declared or self._judge()
        hold.let_go = True
        self._holds.pop(hold.grant.lease_id, None)
        self._holdings.let_go(hold.grant.identity)
        hold.loss.declare(Lost("released", f"{hold.kind}/{hold.key} was released"))
        if hold.reissued is not None:
            # No work is done under the new token, and the session would keep the lease for as long as it lives.
            self._settle(lambda: self._send_release(hold, None))
            return False
        if lost is not None and lost.why not in ("deadline", "failed"):
            return False
        try:
            return await self._send_release(hold, state)
        except (Unavailable, Unknown, asyncio.CancelledError):
            # It would stay held for as long as the session lives.
            self._settle(lambda: self._send_release(hold, state))
            raise

    async def _send_release(self, hold: Hold, state: Json) -> bool:
        return await self.client.release(
            hold.kind,
            hold.key,
            token=hold.grant.token if hold.reissued is None else hold.reissued,
            lease_id=hold.grant.lease_id,
            session_id=self.session_id,
            state=None if state is None else (hold.sequence + 1, state),
            until=min(self.client.clock.now() + self.client.retry_for, self._renewer.ends_at),
        )

    def _settle(self, work: Callable[[], Awaitable[object]]) -> asyncio.Task[bool]:
        """Finds out the outcome of something in the background."""
        task = asyncio.ensure_future(self._until_settled(work))
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)
        return task

    async def _until_settled(self, work: Callable[[], Awaitable[object]]) -> bool:
        backoff = Backoff(self.config.backoff, self.client.rng)
        while self.is_live():  # what hangs on a session that is not renewed runs out by itself
            try:
                await work()
                return True
            except (Unavailable, Unknown):
                await sleep_until(self.client.clock, self.client.clock.now() + backoff.delay())
            except SoleholdError:
                return True  # a definite answer
        return False

    def _guard_dropped(self, loop: asyncio.AbstractEventLoop, hold: Hold) -> None:
        """A guard was dropped without a release, perhaps in another thread, perhaps after the loop."""
        is_over = hold.loss.declared is not None and hold.reissued is None
        if hold.let_go or loop.is_closed() or is_over:
            return
        try:
            loop.call_soon_threadsafe(lambda: self._settle(lambda: self._release(hold, None)))
        except RuntimeError:
            return  # the loop was closed meanwhile; the ttl is the net
        # Last, since a program may turn warnings into errors.
        warnings.warn(f"the guard of {hold.kind}/{hold.key} was dropped without a release", ResourceWarning, stacklevel=2)


class Opening:
    """A session that is about to be opened: await it, or enter it."""

    def __init__(self, client: Client, config: SessionConfig) -> None:
        self._client = client
        self._config = config
        self._session: Session | None = None

    def __await__(self) -> Generator[Any, None, Session]:
        return self._open().__await__()

    async def __aenter__(self) -> Session:
        self._session = await self._open()
        return self._session

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def _open(self) -> Session:
        config = self._config
        metrics = None if config.metrics is None else config.metrics()
        sent, view = await self._client.open_session(
            config.holder, ttl=config.ttl, replace=config.replace, metrics=metrics
        )
        session = Session(self._client, config, sent, view)
        if lost := session._judge():
            await session.close()
            raise Unavailable(f"the session was over before its opening was answered: {lost.detail}")
        return session
