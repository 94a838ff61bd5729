"""The servers, and what can be asked of them."""

from __future__ import annotations

import asyncio
import math
import random
import ssl
import uuid
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from . import check, trace, wire
from .backoff import BackoffConfig
from .channel import Answer, Call, Channel, Doubts
from .clock import BootClock, Clock
from .errors import BadRequest, NoSession, NotFound, Refused, Unavailable, Unknown
from .history import History, OlderHistory
from .http import HttpTransport, Server, Transport
from .limits import REQUESTS_AT_ONCE_MAX, RESPONSE_BYTES_MAX, SERVERS_MAX, WAITERS_AT_ONCE_MAX
from .news import Newsroom
from .watch import Watch
from .wire import Grant, Json, SessionView, StateDocument


class Client:
    """Servers of one Solehold, any of which may answer: `HOST:PORT` for plain HTTP, or URLs; a list, or with commas
    between.

    `timeout` is how long one server has for one request, `retry_for` how long a request is repeated while no server
    answers. `traceparent` returns that header of a request, or None; by default the current span of OpenTelemetry, if
    the program uses it. Clock, randomness and transport are arguments, so that all of it can be simulated.
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
        clock: Clock | None = None,
        rng: random.Random | None = None,
        transport: Callable[[], Transport] | None = None,
        traceparent: Callable[[], str | None] = trace.of_opentelemetry,
    ) -> None:
        servers = tuple(Server.parse(url) for url in _listed(urls))
        if not 1 <= len(servers) <= SERVERS_MAX:
            raise ValueError(f"{len(servers)} servers were given: give 1 to {SERVERS_MAX}")
        check.seconds("timeout", timeout, lambda timeout: 0 < timeout < float("inf"), "seconds above 0")
        check.seconds("retry_for", retry_for, lambda retry_for: 0 <= retry_for < float("inf"), "0 or more seconds")
        if tenant is not None:
            check.name("tenant", tenant)
        if tls is not None:
            check.instance("tls", tls, ssl.SSLContext, "an ssl.SSLContext")
        self.clock: Clock = clock or BootClock()
        self.rng: random.Random = rng or random.SystemRandom()
        self.timeout = timeout
        self.retry_for = retry_for
        self.backoff = backoff or BackoffConfig()
        self.response_bytes_max = response_bytes_max
        self._servers = servers
        self._tenant = tenant
        headers = _headers(key)

        def http() -> Transport:
            return HttpTransport(
                headers=headers, tls=tls, response_bytes_max=response_bytes_max, traceparent=traceparent
            )

        self._transport = transport or http
        self.history = History()
        """What the client remembers of the store's history, for all its sessions."""
        self._silent: set[Server] = set()
        self._channel = self.channel()
        self._short = asyncio.Semaphore(REQUESTS_AT_ONCE_MAX)
        self._waiters = 0
        self._leaving: set[asyncio.Task[None]] = set()
        self.newsroom = Newsroom(self)
        """Where sessions wait for news."""

    def __repr__(self) -> str:
        return f"Client({', '.join(map(str, self._servers))})"

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connections. Close sessions before; one that is being closed is waited for."""
        try:
            if self._leaving:
                await asyncio.wait(self._leaving)
        finally:
            try:
                await self.newsroom.close()
            finally:
                await self._channel.close()

    def leave(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Starts to close something. Await it by `asyncio.shield`: if the caller is cancelled, it goes on."""
        task = asyncio.ensure_future(work)
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)
        return task

    def channel(self) -> Channel:
        """Another channel to the servers, with connections of its own."""
        return Channel(
            self._servers,
            self._transport(),
            clock=self.clock,
            rng=self.rng,
            tenant=self._tenant,
            backoff=self.backoff,
            silent=self._silent,
        )

    def tick_after(self, seconds: float | None) -> float:
        """The tick that is that far ahead; the end of time, if none is given."""
        return float("inf") if seconds is None else self.clock.now() + seconds

    def request_id(self) -> str:
        """A new name for a request."""
        return f"{self.rng.getrandbits(128):032x}"

    async def request(
        self, method: str, path: str, body: Mapping[str, Json] | None = None, *, repeatable: bool | None = None
    ) -> Json:
        """Asks anything, such as `request("PUT", "/api/v1/resources/job/a", {})`.

        Without an answer, a GET is asked again; anything else only if `repeatable` says that twice is the same as once.
        """
        check.instance("method", method, str, "a string")
        check.instance("path", path, str, "a string")
        check.fields("body", body)
        if not path.startswith("/") or any(ord(char) <= 32 or ord(char) > 126 for char in path):
            raise ValueError(f"the path {path!r} must begin with / and have its special characters escaped")
        call = Call(method, path, body, repeatable=method == "GET" if repeatable is None else repeatable)
        return (await self._ask(call)).value

    def watch(
        self, *, cursor: str | None = None, kind: str | None = None, holder: str | None = None, renewals: bool = False
    ) -> Watch:
        """Who owns what, then every change, in order: `async for seen in client.watch()`.

        Without a cursor it begins with one `Snapshot`; then come `Event`s. With the cursor of an earlier watch it goes
        on after it. A connection that is lost is made again, and nothing is missed or seen twice.
        """
        return Watch(self, self._channel, cursor=cursor, kind=kind, holder=holder, renewals=renewals)

    async def open_session(
        self,
        holder: str,
        *,
        ttl: float,
        replace: str | None = None,
        follows: str | None = None,
        metrics: Mapping[str, Json] | None = None,
        until: float | None = None,
    ) -> tuple[float, SessionView]:
        """Opens a session, and returns the tick before the answered request was sent.

        A repeat finds the session that a lost answer was about, by its id. A client that remembers the store's history
        shows it before anything is asked for: a store that was set back hears of it first.

        `follows` is the last session of the process that comes back: it is refused if the holder has another live one
        by now (rule 13).
        """
        body = _said(
            holder=holder, ttl_ms=round(ttl * 1000), replace=replace, follows=follows, metrics=_copy(metrics)
        )
        session_id = str(uuid.UUID(int=self.rng.getrandbits(128), version=4))
        answer = await self._ask(Call("POST", wire.path("sessions"), body, opens=session_id), until=until)
        view = wire.session(answer.value)
        if self.history.sealed_cursor is not None:
            answer = await self._ask(self._heartbeat(view.session_id, metrics))
            view = wire.session(answer.value)
        try:
            self.history.follow(view.epoch)
        except OlderHistory as error:
            raise Unavailable(str(error)) from error
        self.history.keep(view.sealed_cursor)
        return answer.sent, view

    async def heartbeat(
        self,
        channel: Channel,
        session_id: str,
        *,
        timeout: float,
        beside: int = 0,
        metrics: Mapping[str, Json] | None = None,
        known: SessionView | None = None,
    ) -> tuple[float, SessionView]:
        """Renews a session: asks each server once, over the session's own connections, and `beside` others that are not
        answered yet begins with another server than they did.

        `known` is the newest answer with a set: the server does not send that again while it is the same. What is returned
        has it either way.
        """

        async def ask(known_set: str | None) -> Answer:
            call = self._heartbeat(session_id, metrics, known_set)
            return await channel.call(call, timeout=timeout, until=self.clock.now(), beside=beside)

        known_set = None if known is None else known.set_cursor
        try:
            answer = await ask(known_set)
        except BadRequest as error:
            if known_set is None or all(fault.field != "known_set" for fault in error.fields):
                raise
            # An older server than the one that named the set, as while servers are replaced one by one.
            answer = await ask(None)
        return answer.sent, wire.session(answer.value, known)

    def _heartbeat(self, session_id: str, metrics: Mapping[str, Json] | None, known_set: str | None = None) -> Call:
        body = _said(metrics=_copy(metrics), sealed_cursor=self.history.sealed_cursor, known_set=known_set)
        return Call("PUT", wire.path("sessions", session_id, "heartbeat"), body)

    async def close_session(self, session_id: str, *, until: float, timeout: float) -> None:
        """Closes it: everything attached to it is released."""
        await self._ask(Call("DELETE", wire.path("sessions", session_id)), until=until, timeout=timeout)

    async def acquire(
        self,
        kind: str,
        key: str,
        *,
        holder: str,
        session_id: str,
        request_id: str,
        attributes: Mapping[str, Json] | None = None,
        slots: int | None = None,
        wait: float = 0.0,
        timeout: float | None = None,
        doubts: Doubts | None = None,
    ) -> tuple[float, Grant]:
        """Asks for a resource, and waits in line for it; a repeat under the same request id keeps its place.

        Without a wait, each server is asked once.
        """
        asked = {"holder": holder, "session_id": session_id, "request_id": request_id, "slots": slots}
        body = _said(**asked, attributes=_copy(attributes))
        call = Call("POST", wire.path("resources", kind, key, "lease"), body)
        now = self.clock.now()
        if wait <= 0:
            return _granted(await self._ask(call, until=now, timeout=timeout, doubts=doubts))
        body["wait_ms"] = math.ceil(wait * 1000)
        # Repeated for no longer than the wait itself: the caller comes back for as long as it wants.
        until = now + min(wait, self.retry_for)
        return _granted(await self._channel.call(call, timeout=wait + self.timeout, until=until, doubts=doubts))

    async def acquire_together(self, items: Sequence[Mapping[str, Json]], *, timeout: float, doubts: Doubts) -> list[Grant]:
        """Asks for all of the resources or none, without waiting; each server is asked once. A repeat under the same
        request ids finds what a lost answer was about.
        """
        body: dict[str, Json] = {"items": [_said(**item) for item in items], "all_or_none": True}
        call = Call("POST", wire.path("leases", "batch", "acquire"), body)
        answer = await self._ask(call, until=self.clock.now(), timeout=timeout, doubts=doubts)
        return wire.grants(answer.value, len(items))

    @contextmanager
    def waiter(self) -> Iterator[None]:
        """A slot among the requests of this client that wait in line, or `Unavailable`."""
        if self._waiters >= WAITERS_AT_ONCE_MAX:
            raise Unavailable(f"{WAITERS_AT_ONCE_MAX} tasks of this client wait in line already: ask again later")
        self._waiters += 1
        try:
            yield
        finally:
            self._waiters -= 1

    async def renew(self, kind: str, key: str, *, grant: Grant, session_id: str, until: float) -> tuple[float, Grant]:
        """Renews a lease, and with it its session."""
        proof = _proof(grant.token, grant.lease_id, session_id)
        return _granted(await self._ask(Call("POST", wire.path("resources", kind, key, "lease", "renew"), proof), until=until))

    async def cancel(self, kind: str, key: str, *, holder: str, request_id: str, until: float | None = None) -> None:
        """Spends a request id: it gets nothing from now on, and what it got is released."""
        body = _said(holder=holder, request_id=request_id)
        await self._ask(Call("POST", wire.path("resources", kind, key, "lease", "cancel"), body), until=until)

    async def release(
        self,
        kind: str,
        key: str,
        *,
        token: int,
        lease_id: str,
        session_id: str,
        state: tuple[int, Json] | None = None,
        until: float | None = None,
        timeout: float | None = None,
    ) -> bool:
        """Releases a lease, with a last (sequence, document) if given. False if it was lost before: nothing has
        changed.

        Where answers were lost and what has happened since hides how it went, it is `Unknown`.
        """
        body = _proof(token, lease_id, session_id)
        if state is not None:
            body["state"] = {"sequence": state[0], "document": state[1]}
        doubts = Doubts()
        try:
            call = Call("DELETE", wire.path("resources", kind, key, "lease"), body)
            await self._ask(call, until=until, timeout=timeout, doubts=doubts)
            return True
        except (Refused, NotFound) as error:
            if isinstance(error, Refused) and not (
                isinstance(error, NoSession) or error.code in ("lost", "not_yours")
            ):
                raise
        if not doubts.any:
            return False
        # A repeat finds the lease gone, by our own first attempt or not: how it ended is kept, and so is the last
        # document.
        if state is None:
            return await self._ended_as(lease_id) == "released"
        written = await self.read_state(kind, key)
        there, ours = None if written is None else (written.token, written.sequence), (token, state[0])
        if there is None or there > ours:
            raise Unknown(f"{kind}/{key} may have been released with its last document: it has been written over since")
        return there == ours

    async def write_state(
        self, kind: str, key: str, *, token: int, lease_id: str, session_id: str, sequence: int, document: Json
    ) -> StateDocument:
        """Writes the state document under a live lease."""
        target = wire.path("resources", kind, key, "state")
        body = _proof(token, lease_id, session_id)
        body |= {"sequence": sequence, "document": document}
        doubts = Doubts()
        try:
            return wire.state((await self._ask(Call("PUT", target, body), doubts=doubts)).value)
        except Refused as error:
            if not (doubts.any and error.code == "stale_sequence"):
                raise
            written = wire.state((await self._ask(Call("GET", target))).value)
            if (written.token, written.sequence) != (token, sequence):
                raise
            return written  # by an attempt whose answer was lost

    async def read_state(self, kind: str, key: str) -> StateDocument | None:
        """The state document of a resource, if one was written."""
        try:
            return wire.state((await self._ask(Call("GET", wire.path("resources", kind, key, "state")))).value)
        except NotFound:
            return None

    async def _ended_as(self, lease_id: str) -> str | None:
        try:
            return wire.ended_as((await self._ask(Call("GET", wire.path("leases", lease_id)))).value)
        except NotFound:
            return None

    async def _ask(
        self, call: Call, *, until: float | None = None, timeout: float | None = None, doubts: Doubts | None = None
    ) -> Answer:
        """Asks among the short requests; a `timeout` given here can only shorten that of the client."""
        until = self.clock.now() + self.retry_for if until is None else until
        timeout = self.timeout if timeout is None else min(self.timeout, timeout)
        async with self._short:
            return await self._channel.call(call, timeout=timeout, until=until, doubts=doubts)


def _listed(urls: str | Sequence[str]) -> list[str]:
    """The servers of a list, each of which may be several with commas between, as in SOLEHOLD_SERVER."""
    check.instance("urls", urls, (str, Sequence), "a URL, or a list of URLs")
    lists = [urls] if isinstance(urls, str) else list(urls)
    for several in lists:
        check.instance("a server", several, str, "a string such as '127.0.0.1:7070'")
    return [one.strip() for several in lists for one in several.split(",")]


def _headers(key: str | None) -> dict[str, str]:
    headers = {"accept": "application/json", "user-agent": "solehold-client-python"}
    if key is not None:
        check.instance("key", key, str, "a string")
        if not key or any(ord(char) <= 32 or ord(char) > 126 for char in key):
            raise ValueError("the key is empty or has characters that no key has: check for a stray newline")
        headers["authorization"] = f"Bearer {key}"
    return headers


def _said(**fields: Json) -> dict[str, Json]:
    return {name: value for name, value in fields.items() if value is not None}


def _copy(fields: Mapping[str, Json] | None) -> Json:
    return None if fields is None else dict(fields)


def _proof(token: int, lease_id: str, session_id: str) -> dict[str, Json]:
    return {"token": token, "lease_id": lease_id, "session_id": session_id}


def _granted(answer: Answer) -> tuple[float, Grant]:
    return answer.sent, wire.grant(answer.value)
