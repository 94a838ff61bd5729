"""The client for programs without asyncio: the same words and rules, in calls that block.

A thread of the client's own renews sessions, so a call that blocks elsewhere holds up no heartbeat. It can also not be
stopped: call `guard.check()` before every effect, and let `guard.on_lost` end what blocks.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TypeVar

from . import check, trace
from .acquire_all import Wanted
from .backoff import BackoffConfig
from .client import Client as AsyncClient
from .clock import Clock
from .elect import Candidate
from .errors import Lost
from .fence import Verdict
from .gate import TENANT_DEFAULT
from .gate import Gate as AsyncGate
from .guard import Guard as AsyncGuard
from .guard import Guards as AsyncGuards
from .http import within
from .kept import KeptSession, log_late_error
from .limits import RESPONSE_BYTES_MAX
from .locks import Locks as AsyncLocks
from .loss import Loss
from .portal import Portal
from .renewer import Policy
from .session import Session as AsyncSession
from .session import SessionConfig
from .watch import Watch as AsyncWatch
from .wire import Event, Json, Snapshot, StateDocument

__all__ = ["Client", "Gate", "Guard", "Guards", "Locks", "Session", "Watch", "elect", "keep_session"]

T = TypeVar("T")


class _Entered:
    """Something that `with` closes."""

    def close(self) -> None:
        """Closes it."""
        raise NotImplementedError

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Client(_Entered):
    """Servers of one Solehold, any of which may answer. Any number of threads may share it; a forked process needs one
    of its own.
    """

    def __init__(
        self,
        urls: str | Sequence[str],
        *,
        key: str | None = None,
        tenant: str | None = None,
        tls: ssl.SSLContext | None = None,
        timeout: float = 5.0,
        retry_for: float = 15.0,
        backoff: BackoffConfig | None = None,
        response_bytes_max: int = RESPONSE_BYTES_MAX,
        traceparent: Callable[[], str | None] = trace.of_opentelemetry,
    ) -> None:
        self._async = AsyncClient(
            urls,
            key=key,
            tenant=tenant,
            tls=tls,
            timeout=timeout,
            retry_for=retry_for,
            backoff=backoff,
            response_bytes_max=response_bytes_max,
            traceparent=traceparent,
        )
        self._portal = Portal()
        # What is attached to sessions of a client that is dropped runs out.
        weakref.finalize(self, self._portal.stop)

    @property
    def clock(self) -> Clock:
        """The clock that deadlines are ticks of."""
        return self._async.clock

    def request(
        self, method: str, path: str, body: Mapping[str, Json] | None = None, *, repeatable: bool | None = None
    ) -> Json:
        """Asks anything, such as `request("PUT", "/api/v1/resources/job/a", {})`."""
        return self._portal.run(self._async.request(method, path, body, repeatable=repeatable))

    def read_state(self, kind: str, key: str) -> StateDocument | None:
        """The state document of a resource, if one was written."""
        return self._portal.run(self._async.read_state(kind, key))

    def watch(
        self, *, cursor: str | None = None, kind: str | None = None, holder: str | None = None, renewals: bool = False
    ) -> Watch:
        """Who owns what, then every change, in order: `for seen in client.watch()`."""
        return Watch(self, self._async.watch(cursor=cursor, kind=kind, holder=holder, renewals=renewals))

    def close(self) -> None:
        """Closes the connections, and ends its thread. Close sessions before."""
        try:
            self._portal.run(self._async.close())
        finally:
            self._portal.stop()

    def __enter__(self) -> Client:
        return self

    def __repr__(self) -> str:
        return repr(self._async)


class Session(_Entered):
    """An open session. `with` closes it, which releases everything attached to it."""

    def __init__(self, client: Client, session: AsyncSession) -> None:
        self.client = client
        self._async = session

    @staticmethod
    def open(
        client: Client, holder: str | SessionConfig, *, ttl: float | None = None, policy: Policy | None = None
    ) -> Session:
        """Opens a session: `with Session.open(...) as session`.

        A session that is lost stays lost, and `on_lost` calls a function then; `keep_session` opens the next one.
        """
        check.instance("client", client, Client, "a solehold_client.sync.Client")
        return Session(client, client._portal.run(AsyncSession.open(client._async, holder, ttl=ttl, policy=policy)))

    @property
    def session_id(self) -> str:
        """Its identity."""
        return self._async.session_id

    @property
    def holder(self) -> str:
        """The name of its holder."""
        return self._async.holder

    @property
    def deadline(self) -> float:
        """The tick of the client's clock at which trust ends, unless a heartbeat comes through before."""
        return self._async.deadline

    def is_live(self) -> bool:
        """Whether work under it may go on, by the clock. Once false, it stays false."""
        return self._async.is_live()

    def lost(self, timeout: float | None = None) -> Lost | None:
        """Waits until it is lost or closed, and returns why; None if it is not within `timeout` seconds."""
        return _wait_for_loss(self.client._portal, self._async._loss, timeout)

    def on_lost(self, function: Callable[[Lost], object]) -> None:
        """Calls the function, in a thread of its own, when the session is lost; not when it is closed."""
        _tell_loss(self.client._portal, self._async._loss, function, unless="closed")

    def acquire(
        self,
        kind: str,
        key: str,
        *,
        timeout: float | None = None,
        attributes: Mapping[str, Json] | None = None,
        slots: int | None = None,
    ) -> Guard:
        """Acquires a resource, and waits in line while someone holds it: up to `timeout` seconds, forever if None, not
        at all if 0. When the time is up it raises the last refusal. With `slots` it is shared by up to that many
        holders.
        """
        acquired = self._async.acquire(kind, key, timeout=timeout, attributes=attributes, slots=slots)
        return Guard(self.client, self.client._portal.run(acquired))

    def try_acquire(
        self, kind: str, key: str, *, attributes: Mapping[str, Json] | None = None, slots: int | None = None
    ) -> Guard:
        """Acquires a free resource, or raises `Refused` with its holder."""
        return self.acquire(kind, key, timeout=0.0, attributes=attributes, slots=slots)

    def acquire_all(
        self,
        resources: Iterable[Wanted],
        *,
        timeout: float | None = None,
        attributes: Mapping[str, Json] | None = None,
    ) -> Guards:
        """Acquires all of the resources or none, each a kind, a key and, if it is shared, its slots: `with
        session.acquire_all([("scene", "hall"), ("gpu", "0", 4)], timeout=10) as guards`.
        """
        acquired = self._async.acquire_all(resources, timeout=timeout, attributes=attributes)
        return Guards(Guard(self.client, guard) for guard in self.client._portal.run(acquired))

    def close(self) -> None:
        """Closes it: all its guards are lost, and everything attached to it is released."""
        self.client._portal.run(self._async.close())

    def __enter__(self) -> Session:
        return self

    def __repr__(self) -> str:
        return repr(self._async)


class Guard:
    """Holds one resource. `with` releases it, and raises `Lost` if the body outlived the lease without being told."""

    def __init__(self, client: Client, guard: AsyncGuard) -> None:
        self._client = client  # which lives for as long as this does
        self._portal = client._portal
        self._async = guard

    @property
    def kind(self) -> str:
        """What sort of thing is held."""
        return self._async.kind

    @property
    def key(self) -> str:
        """Which one of that sort."""
        return self._async.key

    @property
    def token(self) -> int:
        """The fencing token: larger at each change of owner. Send it along with everything that leaves the process."""
        return self._async.token

    @property
    def lease_id(self) -> str:
        """The identity of the grant."""
        return self._async.lease_id

    @property
    def slot(self) -> int | None:
        """Which slot of a shared resource it holds, from 1 on: a gate judges the token by it. None if it is exclusive."""
        return self._async.slot

    @property
    def slots(self) -> int | None:
        """Of how many slots it holds one. None if it is exclusive."""
        return self._async.slots

    @property
    def deadline(self) -> float:
        """The tick of the client's clock at which trust ends, unless a heartbeat comes through before."""
        return self._async.deadline

    @property
    def state(self) -> StateDocument | None:
        """What the former holder left, or what this one wrote last."""
        return self._async.state

    def is_live(self) -> bool:
        """Whether the work may go on, by the clock. Once false, it stays false."""
        return self._async.is_live()

    def is_in_grace(self) -> bool:
        """Whether the deadline has passed and the work goes on by the policy `grace`."""
        return self._async.is_in_grace()

    def check(self) -> int:
        """The token, or raises `Lost`: call it right before an effect."""
        return self._async.check()

    def lost(self, timeout: float | None = None) -> Lost | None:
        """Waits until it is lost or released, and returns why; None if it is not within `timeout` seconds."""
        return _wait_for_loss(self._portal, self._async._hold.loss, timeout)

    def on_lost(self, function: Callable[[Lost], object]) -> None:
        """Calls the function, in a thread of its own, when the lease is lost; not when it is released.

        It is for ending what blocks: `guard.on_lost(lambda lost: process.terminate())`.
        """
        loss = self._async._hold.loss  # not the guard: one that is dropped is released
        _tell_loss(self._portal, loss, function, unless="released")

    def write_state(self, document: Json) -> StateDocument:
        """Writes the state document: the next holder gets it."""
        return self._portal.run(self._async.write_state(document))

    def release(self, state: Json = None) -> bool:
        """Releases the lease, with a last state document if given; false if it was lost before."""
        return self._portal.run(self._async.release(state))

    def __enter__(self) -> Guard:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._portal.run(self._async.__aexit__(kind, error, trace))

    def __repr__(self) -> str:
        return repr(self._async)


class Guards(tuple[Guard, ...]):
    """The guards of resources that were acquired together. `with` releases all of them."""

    def __enter__(self) -> Guards:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self:
            self[0]._portal.run(AsyncGuards(guard._async for guard in self).__aexit__(kind, error, trace))


class Locks(_Entered):
    """Locks that are attached to a session: the one given, or one of its own that it opens with a client."""

    def __init__(
        self,
        owner: Client | Session,
        *,
        holder: str | None = None,
        ttl: float = 30.0,
        policy: Policy = Policy.DEADLINE,
    ) -> None:
        self._client = _client_of(owner)
        self._async = AsyncLocks(owner._async, holder=holder, ttl=ttl, policy=policy)

    def acquire(self, name: str, *, timeout: float | None = None, slots: int | None = None) -> Guard:
        """Waits in line for a lock: up to `timeout` seconds, forever if None, not at all if 0. With `slots` it is shared
        by up to that many holders.
        """
        return Guard(self._client, self._client._portal.run(self._async.acquire(name, timeout=timeout, slots=slots)))

    def try_acquire(self, name: str, *, slots: int | None = None) -> Guard:
        """Takes a free lock, or raises `Refused` with its holder."""
        return self.acquire(name, timeout=0.0, slots=slots)

    def acquire_all(self, names: Iterable[str | tuple[str, int | None]], *, timeout: float | None = None) -> Guards:
        """Acquires all of the locks or none, each a name, or a name and its slots."""
        acquired = self._client._portal.run(self._async.acquire_all(names, timeout=timeout))
        return Guards(Guard(self._client, guard) for guard in acquired)

    def close(self) -> None:
        """Closes the session, if it is its own: its locks are released."""
        self._client._portal.run(self._async.close())

    def __enter__(self) -> Locks:
        return self


class Watch(_Entered, Iterator["Snapshot | Event"]):
    """Snapshots and events, as they come: `for seen in client.watch()`."""

    def __init__(self, client: Client, watch: AsyncWatch) -> None:
        self._client = client
        self._async = watch

    @property
    def cursor(self) -> str | None:
        """Where it stands: give it to another watch to go on from here. None before the first snapshot."""
        return self._async.cursor

    def __next__(self) -> Snapshot | Event:
        try:
            return self._client._portal.run(self._async.__anext__())
        except StopAsyncIteration:
            raise StopIteration from None

    def close(self) -> None:
        """Ends it."""
        self._client._portal.run(self._async.close())

    def __enter__(self) -> Watch:
        return self


class Gate(_Entered):
    """Refuses work that carries an old token: `with Gate(client, kinds=["scene"]) as gate`. Any number of threads may
    share it. The arguments are those of `solehold_client.Gate`.
    """

    def __init__(
        self,
        client: Client,
        *,
        kinds: Iterable[str],
        tenant: str = TENANT_DEFAULT,
        cache_ttl: float = 30.0,
        fail_open: bool = False,
        strict: bool = False,
        memory: str | os.PathLike[str] | None = None,
        marks_max: int = 1_000_000,
        refresh_within: float = 5.0,
    ) -> None:
        check.instance("client", client, Client, "a solehold_client.sync.Client")

        async def make() -> AsyncGate:
            return AsyncGate(
                client._async,
                kinds=kinds,
                tenant=tenant,
                cache_ttl=cache_ttl,
                fail_open=fail_open,
                strict=strict,
                memory=memory,
                marks_max=marks_max,
                refresh_within=refresh_within,
            )

        self._portal = client._portal
        self._async = self._portal.run(make())

    @property
    def lag(self) -> float | None:
        """Everything is known that was decided longer ago than these seconds; None before the first snapshot."""
        return self._async.lag

    @property
    def denied(self) -> str | None:
        """What the server said when it refused the gate, such as for its key; None if it does not refuse it."""
        return self._async.denied

    def decide(
        self, kind: str, key: str, token: int, session: str | None = None, *, slot: int | None = None
    ) -> Verdict:
        """Judges, and asks the store where that settles it."""
        return self._portal.run(self._async.decide(kind, key, token, session, slot=slot))

    def judge(
        self, kind: str, key: str, token: int, session: str | None = None, *, slot: int | None = None
    ) -> Verdict:
        """Judges by what is known, without asking the store."""

        async def judge() -> Verdict:
            return self._async.judge(kind, key, token, session, slot=slot)

        return self._portal.run(judge())

    def ready(self, timeout: float | None = None) -> bool:
        """Waits until everything is known, and returns whether it is."""
        check.timeout(timeout)

        async def wait() -> bool:
            if timeout is None:
                await self._async.ready()
                return True
            try:
                await within(timeout, self._async.ready())
            except asyncio.TimeoutError:
                return False
            return True

        return self._portal.run(wait())

    def close(self) -> None:
        """Ends the watch, and lets another gate have the file."""
        self._portal.run(self._async.close())

    def __enter__(self) -> Gate:
        self._portal.run(self._async.__aenter__())
        return self


def elect(
    owner: Client | Session,
    role: str,
    lead: Callable[[Guard], T],
    *,
    holder: str | None = None,
    ttl: float = 30.0,
    policy: Policy = Policy.DEADLINE,
) -> T:
    """Waits to be elected, leads, and stands again whenever it lost the role, until `lead` returns by itself; then the
    role is released, and its result returned.

    `lead` cannot be stopped from outside: it calls `guard.check()` before every effect, and lets the `Lost` through.
    What it returns after the role was lost does not count.
    """
    client = _client_of(owner)
    check.function("lead", lead, "a function that takes the guard of its term")
    candidate = Candidate(owner._async, role, holder=holder, ttl=ttl, policy=policy)
    try:
        while True:
            with Guard(client, client._portal.run(candidate.stand())) as guard:
                try:
                    result = lead(guard)
                    guard.check()
                    return result
                except Lost as lost:
                    candidate.deposed(guard._async, lost)
    finally:
        client._portal.run(candidate.close())


def keep_session(
    client: Client,
    holder: str | SessionConfig,
    work: Callable[[Session], T],
    *,
    ttl: float | None = None,
    policy: Policy | None = None,
    on_lost: Callable[[Lost], object] | None = None,
) -> T:
    """Opens a session and calls `work(session)`. Whenever the session is lost, as in an outage, it opens the next one
    and calls `work` again, until `work` returns by itself; then the session is closed, and the result returned.

    `work` cannot be stopped from outside: it calls `guard.check()` before every effect, and lets the `Lost` through.
    `on_lost` is called at once, in a thread of its own, for ending what blocks. What `work` returns or raises after its
    session was lost does not count. While no server answers, opening is tried for as long as it takes. It ends with an
    error that `work` raises under a live session, with what the server says if it refuses to open one, and with `Lost`
    if the holder has opened a session elsewhere.
    """
    check.instance("client", client, Client, "a solehold_client.sync.Client")
    check.function("work", work, "a function that takes the session")
    kept = KeptSession(client._async, holder=holder, ttl=ttl, policy=policy)
    try:
        while True:
            session = Session(client, client._portal.run(kept.live(until=float("inf"))))
            if on_lost is not None:
                session.on_lost(on_lost)
            try:
                result = work(session)
                if session.is_live():
                    return result
            except Exception as error:
                if session.is_live():
                    raise
                log_late_error(session._async, error)
    finally:
        client._portal.run(kept.close())


def _client_of(owner: Client | Session) -> Client:
    check.instance("owner", owner, (Client, Session), "a Client or a Session of solehold_client.sync")
    return owner if isinstance(owner, Client) else owner.client


def _tell_loss(portal: Portal, loss: Loss, function: Callable[[Lost], object], *, unless: str) -> None:
    """Calls the function in a thread of its own when something is lost, unless it was given up for that reason."""
    check.function("function", function, "a function that takes the loss")

    async def tell() -> None:
        lost = await loss.wait()
        if lost.why != unless:
            threading.Thread(target=function, args=(lost,), name="solehold-lost", daemon=True).start()

    portal.start(tell)


def _wait_for_loss(portal: Portal, loss: Loss, timeout: float | None) -> Lost | None:
    check.timeout(timeout)

    async def wait() -> Lost | None:
        if timeout is None:
            return await loss.wait()
        try:
            return await within(timeout, loss.wait())
        except asyncio.TimeoutError:
            return None

    return portal.run(wait())
