"""One incarnation of a holder: a heartbeat on its own connection keeps everything attached to it.

The renewer decides, this drives: it sends when told, tells what came of it, and never waits for long without a look at the clock.
"""

from __future__ import annotations

import asyncio
import logging
import warnings
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, TypeVar

from . import check
from .acquire import Acquire
from .acquire_all import AcquireAll, Shared, Wanted, check_wanted
from .backoff import Backoff, BackoffConfig
from .client import Client
from .clock import sleep_until
from .enterable import Enterable
from .errors import Lost, Refused, SoleholdError, Unavailable, Unknown
from .guard import Guard, Guards, Hold
from .history import OlderHistory
from .holdings import Holdings
from .limits import LEAVE_SECONDS_MAX, STEP_SECONDS_MAX, TTL_SECONDS_MAX, TTL_SECONDS_MIN, UNSETTLED_MAX
from .log import LOG
from .loss import Loss
from .renewer import Policy, Renewer, Send, Stop
from .wire import Grant, Json, SessionView

T = TypeVar("T")
# How many leases one line of the log names.
SHOWN_MAX = 5
# How long the heartbeat that follows news may take, before news are asked for again.
BEAT_SECONDS_MAX = 1.0


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
        check.name("holder", self.holder)
        right = f"{TTL_SECONDS_MIN:g} to {TTL_SECONDS_MAX:g} seconds"
        check.seconds("ttl", self.ttl, lambda ttl: TTL_SECONDS_MIN <= ttl <= TTL_SECONDS_MAX, right)
        check.instance("policy", self.policy, Policy, "a Policy, such as Policy.DEADLINE")
        if self.replace is not None:
            check.name("replace", self.replace)
        if self.metrics is not None:
            check.function("metrics", self.metrics, "a function that returns a dict")
        check.instance("backoff", self.backoff, BackoffConfig, "a BackoffConfig")

    @staticmethod
    def given(holder: str | SessionConfig, *, ttl: float | None, policy: Policy | None) -> SessionConfig:
        """From a name or a configuration, and what is given beside it."""
        config = holder if isinstance(holder, SessionConfig) else SessionConfig(holder)
        given: dict[str, Any] = {"ttl": ttl, "policy": policy}
        return replace(config, **{name: value for name, value in given.items() if value is not None})


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
        self._beats: set[asyncio.Task[None]] = set()
        self._closing: asyncio.Task[None] | None = None
        self._failing_since: float | None = None
        self._known = view
        """The newest answer, with the set of leases that the next heartbeat names."""
        self._heard = asyncio.Event()
        """A heartbeat was answered."""
        self._listener: asyncio.Task[None] = asyncio.ensure_future(self._listen())
        self._driver: asyncio.Task[None] = asyncio.ensure_future(self._drive())

    @staticmethod
    def open(
        client: Client, holder: str | SessionConfig, *, ttl: float | None = None, policy: Policy | None = None
    ) -> Enterable[Session]:
        """Opens a session: `async with Session.open(...) as session`, or `session = await Session.open(...)`.

        While no server answers it is tried for the client's `retry_for`, which a warning in the log says at once. A
        session that is lost stays lost, and `lost()` returns then; `keep_session` opens the next one.
        """
        check.instance("client", client, Client, "a Client")
        return Enterable(Session._open(client, SessionConfig.given(holder, ttl=ttl, policy=policy)))

    @staticmethod
    async def _open(
        client: Client, config: SessionConfig, *, follows: str | None = None, until: float | None = None
    ) -> Session:
        metrics = None if config.metrics is None else config.metrics()
        sent, view = await client.open_session(
            config.holder, ttl=config.ttl, replace=config.replace, follows=follows, metrics=metrics, until=until
        )
        session = Session(client, config, sent, view)
        if lost := session._judge():
            await session.close()
            raise Unavailable(f"the session was over before its opening was answered: {lost.detail}")
        LOG.info("opened session %s of %s with a ttl of %g s", session.session_id, config.holder, view.full_ttl)
        return session

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

    def check_unsettled(self, asked: int) -> None:
        """Refuses to send so many more requests while too many have an outcome that is still unknown."""
        unsettled = self.unsettled()
        if unsettled + asked > UNSETTLED_MAX:
            what = f"{unsettled} requests of this session have no known outcome"
            raise Unavailable(f"{what}: no new one is sent until some of these are settled")

    async def lost(self) -> Lost:
        """Waits until it is lost or closed, and returns why."""
        return await self._loss.wait()

    def acquire(
        self,
        kind: str,
        key: str,
        *,
        timeout: float | None = None,
        attributes: Mapping[str, Json] | None = None,
        slots: int | None = None,
    ) -> Enterable[Guard]:
        """Acquires a resource, and waits in line while someone holds it: up to `timeout` seconds, forever if None, not
        at all if 0. With `slots` it is shared by up to that many holders, each with a token of its own.

        `async with session.acquire(...) as guard`, or `guard = await session.acquire(...)`. When the time is up it
        raises the last refusal. However it ends without a guard, the line is left and nothing is held.
        """
        check.name("kind", kind)
        check.name("key", key)
        check.timeout(timeout)
        check.fields("attributes", attributes)
        check.slots(slots)
        return Enterable(self._acquire(kind, key, timeout, attributes, slots))

    async def _acquire(
        self, kind: str, key: str, timeout: float | None, attributes: Mapping[str, Json] | None, slots: int | None
    ) -> Guard:
        return await Acquire(self, kind, key, self.client.tick_after(timeout), attributes, slots).run()

    async def try_acquire(
        self, kind: str, key: str, *, attributes: Mapping[str, Json] | None = None, slots: int | None = None
    ) -> Guard:
        """Acquires a free resource, or raises `Refused` with its holder."""
        return await self.acquire(kind, key, timeout=0.0, attributes=attributes, slots=slots)

    def acquire_all(
        self,
        resources: Iterable[Wanted],
        *,
        timeout: float | None = None,
        attributes: Mapping[str, Json] | None = None,
    ) -> Enterable[Guards]:
        """Acquires all of the resources or none: each is a kind and a key, and with a third element, its slots, it is
        shared. Up to 100, each once. It waits up to `timeout` seconds for all of them together, forever if None, not at
        all if 0.

        `async with session.acquire_all(...) as guards`, or `guards = await session.acquire_all(...)`; the guards are in
        the order of the resources. If it waits, it acquires one after the other in one order that is the same for all
        clients, so that two that want the same resources never wait for each other.
        """
        wanted = check_wanted(resources)
        check.timeout(timeout)
        check.fields("attributes", attributes)
        return Enterable(self._acquire_all(wanted, timeout, attributes))

    async def _acquire_all(
        self, wanted: Sequence[Shared], timeout: float | None, attributes: Mapping[str, Json] | None
    ) -> Guards:
        return await AcquireAll(self, wanted, self.client.tick_after(timeout), attributes).run()

    async def close(self) -> None:
        """Closes it: all its guards are lost, and everything attached to it is released. If it is cancelled, it goes on
        in the background.
        """
        if self._closing is None:
            lost = self._judge()
            self._renewer.closed()
            self._declare()
            for task in [self._driver, self._listener, *self._settling, *self._beats]:
                task.cancel()
            self._closing = self.client.leave(self._close(lost))
        await asyncio.shield(self._closing)

    async def _close(self, lost: Lost | None) -> None:
        try:
            # One that was closed without being asked to has lost its driver, as when a program cancels all tasks.
            if lost is None or lost.why in ("deadline", "failed", "closed"):
                until = min(self.client.clock.now() + LEAVE_SECONDS_MAX, self._renewer.ends_at)
                await self.client.close_session(self.session_id, until=until, timeout=LEAVE_SECONDS_MAX)
                LOG.info("closed session %s of %s", self.session_id, self.holder)
        except (Unavailable, Unknown) as error:
            level = logging.WARNING if lost is None else logging.DEBUG
            LOG.log(level, "cannot close the session of %s; it ends when its ttl is over: %s", self.holder, error)
        except SoleholdError as error:
            LOG.debug("the session of %s had ended before it was closed: %s", self.holder, error)
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
                    beat = asyncio.ensure_future(self._heartbeat(action))
                    self._beats.add(beat)
                    beat.add_done_callback(self._beats.discard)
                else:
                    await self._pause(action.until)
        finally:
            # Without a driver the deadline would go unnoticed, so its end is the end of the session.
            self._renewer.closed()
            self._declare()
            self._listener.cancel()
            for beat in self._beats:
                beat.cancel()

    async def _listen(self) -> None:
        """Sends a heartbeat at once when there is news of the session, instead of at its time."""
        while await self.client.newsroom.wait(self.session_id, self._known.revision):
            self._heard.clear()
            self._renewer.news(self.client.clock.now())
            self._wake.set()
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._heard.wait(), BEAT_SECONDS_MAX)

    async def _heartbeat(self, action: Send) -> None:
        renewer, client = self._renewer, self.client
        try:
            metrics = None if self.config.metrics is None else self.config.metrics()
            sent, view = await client.heartbeat(
                self._channel,
                self.session_id,
                timeout=action.timeout,
                beside=action.beside,
                metrics=metrics,
                known=self._known,
            )
        except (Unavailable, Unknown) as error:
            self._failed(action, error.detail, error.retry_after)
        except SoleholdError as error:
            renewer.refused(str(error), error.code)
        except Exception as error:  # of the holder's own metrics, or of a transport: no renewal either way
            self._failed(action, f"{type(error).__name__}: {error}")
        else:
            self._answered(sent, view)
        finally:
            self._wake.set()

    def _failed(self, action: Send, detail: str, retry_after: float | None = None) -> None:
        now = self.client.clock.now()
        counts = self._renewer.failed(action.flight, now, detail, retry_after)
        if counts and self._failing_since is None and self._renewer.is_live(now):
            self._failing_since = now
            left = self._renewer.ends_at - now
            told = "the session of %s was not renewed (%s): unless a server answers, it is lost in %.1f s"
            LOG.warning(told, self.holder, detail, left)

    def _answered(self, sent: float, view: SessionView) -> None:
        history = self.client.history
        try:
            epoch = history.follow(view.epoch)
        except OlderHistory as error:
            self._renewer.set_back(str(error))
            return
        history.keep(view.sealed_cursor)
        if (epoch, view.revision) >= (self._known.epoch or 0, self._known.revision):
            self._known = view
        self._heard.set()
        # What has ended is told before the others are trusted for longer.
        for lease in self._holdings.take((epoch, view.revision), view.leases):
            if hold := self._holds.pop(lease[0], None):
                hold.reissued = next((token for lease_id, token in view.leases if lease_id == lease[0]), None)
                LOG.warning("%s lost %s: another client ended its lease", self.holder, hold)
                hold.loss.declare(Lost("ended", f"the lease on {hold.kind}/{hold.key} was ended by another client"))
        now = self.client.clock.now()
        self._renewer.answered(now, sent=sent, ttl_left=view.ttl_left, slack=view.slack)
        if self._failing_since is not None and self._renewer.is_live(now):
            LOG.info("renewed the session of %s again after %.1f s", self.holder, now - self._failing_since)
            self._failing_since = None

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
            if self._loss.declared is None and lost.why != "closed":
                LOG.warning("session of %s lost with %s: %s", self.holder, _shown(self._holds.values()), lost)
            self._loss.declare(lost)
            for hold in self._holds.values():
                hold.loss.declare(lost)
            self._holds.clear()

    def _refused(self, error: SoleholdError) -> None:
        """Another request was told that the session is over."""
        self._renewer.refused(str(error), error.code)
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
        LOG.debug("%s acquired %s", self.holder, hold)
        return Guard(self, hold)

    async def _release(self, hold: Hold, state: Json, *, within: float | None = None) -> bool:
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
            released = await self._send_release(hold, state, within)
            LOG.debug("%s released %s", self.holder, hold)
            return released
        except (Unavailable, Unknown, asyncio.CancelledError) as error:
            # It would stay held for as long as the session lives.
            if self.is_live():
                told = str(error) or "it was cancelled"
                LOG.warning("%s cannot release %s yet; retrying: %s", self.holder, hold, told)
            self._settle(lambda: self._send_release(hold, state))
            raise

    async def _send_release(self, hold: Hold, state: Json, within: float | None = None) -> bool:
        return await self.client.release(
            hold.kind,
            hold.key,
            token=hold.grant.token if hold.reissued is None else hold.reissued,
            lease_id=hold.grant.lease_id,
            session_id=self.session_id,
            state=None if state is None else (hold.sequence + 1, state),
            until=min(self.client.tick_after(self.client.retry_for if within is None else within), self._renewer.ends_at),
            timeout=within,
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


def _shown(holds: Iterable[Hold]) -> str:
    """What is held, for people; not more than fits into a line."""
    shown = [str(hold) for hold in holds]
    more = [f"{len(shown) - SHOWN_MAX} more"] if len(shown) > SHOWN_MAX else []
    return ", ".join(shown[:SHOWN_MAX] + more) or "nothing that it held"
