"""Connections to the servers: failover, and repeats of what is safe to repeat."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from . import wire
from .backoff import Backoff, BackoffConfig
from .clock import Clock, sleep_until
from .errors import SoleholdError, Unavailable, Unknown, from_answer
from .http import AnswerLost, NotSent, Request, Server, Stream, Transport
from .limits import PIECE_BYTES_MAX
from .log import LOG
from .wire import Json

T = TypeVar("T")


@dataclass(frozen=True)
class Call:
    """A request, for any server."""

    method: str
    path: str
    body: Mapping[str, Json] | None = None
    repeatable: bool = True
    """Whether doing it twice is the same as doing it once: by request id, token, lease id or session id."""
    opens: str | None = None
    """The id of the session that it opens, by which any server can tell a repeat."""


@dataclass(frozen=True)
class Answer:
    """The answer to a call."""

    value: Json
    sent: float
    """The tick before the attempt that was answered."""
    doubtful: bool
    """Whether an earlier attempt of the same call had an unknown outcome, so that this may be an answer to a repeat."""


class Doubts:
    """Remembers, for the caller, that some attempt may have been done without an answer."""

    def __init__(self) -> None:
        self.any = False


class Channel:
    """Asks one server at a time, and stays with the one that answered."""

    def __init__(
        self,
        servers: Sequence[Server],
        transport: Transport,
        *,
        clock: Clock,
        rng: random.Random,
        tenant: str | None = None,
        backoff: BackoffConfig | None = None,
        silent: set[Server] | None = None,
    ) -> None:
        self._servers = servers
        self._transport = transport
        self._clock = clock
        self._rng = rng
        self._query = "" if tenant is None else "tenant=" + wire.segment(tenant)
        self._backoff = backoff or BackoffConfig()
        self._current = 0
        self._silent = set() if silent is None else silent
        """Those that did not answer last, as was said in the log."""

    async def close(self) -> None:
        """Closes its connections."""
        await self._transport.close()

    async def call(
        self, call: Call, *, timeout: float, until: float, doubts: Doubts | None = None, beside: int = 0
    ) -> Answer:
        """Asks each server in turn, `timeout` seconds for each, and after a pause again, for the last time at the tick
        `until`. It begins with the one that answered last, or `beside` servers after it.

        Raises what the first definite answer says. Without one: `Unknown` if it may have been done, else `Unavailable`.
        """
        request = self._request(call, timeout)
        known = doubts or Doubts()

        async def once(server: Server) -> Answer:
            sent = self._clock.now()
            response = await self._transport.send(server, request)
            if response.status >= 300:
                raise from_answer(str(server), response.status, response.body)
            return Answer(wire.decode(response.body) if response.body else None, sent, known.any)

        return await self._ask(call, once, until, known, beside)

    async def stream(self, call: Call, *, timeout: float, until: float) -> Stream:
        """The same for an answer that is read while it is being written."""
        request = self._request(call, timeout)

        async def once(server: Server) -> Stream:
            stream = await self._transport.stream(server, request)
            if stream.status < 300:
                return stream
            try:
                body = bytearray()
                while len(body) < PIECE_BYTES_MAX and (piece := await stream.read()):
                    body += piece
                raise from_answer(str(server), stream.status, bytes(body))
            finally:
                stream.close()

        return await self._ask(call, once, until, Doubts())

    def _request(self, call: Call, timeout: float) -> Request:
        body = None if call.body is None else wire.encode(call.body)
        join = "" if not self._query else "&" if "?" in call.path else "?"
        return Request(call.method, call.path + join + self._query, body, timeout, call.opens, call.repeatable)

    async def _ask(
        self, call: Call, once: Callable[[Server], Awaitable[T]], until: float, doubts: Doubts, beside: int = 0
    ) -> T:
        backoff = Backoff(self._backoff, self._rng)
        at = (self._current + beside) % len(self._servers)
        unknown: Unknown | None = None
        failed: SoleholdError
        tried = 0
        while True:
            server = self._servers[at]
            try:
                answer = await self._once(call, server, once)
                self._answered(at)
                return answer
            except Unknown as error:
                doubts.any = True
                if not call.repeatable:
                    raise
                failed = unknown = error
            except Unavailable as error:
                failed = error
            except SoleholdError:
                self._answered(at)
                raise
            following = (at + 1) % len(self._servers)
            if self._current == at:
                self._current = following
            at = following
            tried += 1
            if tried % len(self._servers):
                self._failed(server, failed, f"asking {self._servers[at]} instead")
                continue
            now = self._clock.now()
            # Where the server asks for more time than there is, asking again is of no use.
            if now >= until or now + (failed.retry_after or 0.0) > until:
                # From here on: how the connection failed is in the message, and not for dozens of lines in the trace.
                raise (unknown or failed).with_traceback(None)
            self._failed(server, failed, "asking again" if until == float("inf") else f"asking again for {until - now:.3g} s")
            await sleep_until(self._clock, min(until, now + backoff.delay(least=failed.retry_after or 0.0)))

    async def _once(self, call: Call, server: Server, once: Callable[[Server], Awaitable[T]]) -> T:
        began = self._clock.now()
        told = "answered"
        try:
            return await once(server)
        except NotSent as error:
            told = "not sent"
            raise Unavailable(str(error)) from None
        except AnswerLost as error:
            told = "no answer"
            raise Unknown(str(error)) from None
        except SoleholdError as error:
            told = error.code or str(error)
            raise
        except BaseException:
            told = "given up"
            raise
        finally:
            LOG.debug("%s %s%s: %s after %.1f ms", call.method, server, call.path, told, (self._clock.now() - began) * 1000)

    def _failed(self, server: Server, failed: SoleholdError, next_step: str) -> None:
        """A failure that this handles. Said once, not for each of perhaps hundreds of calls."""
        if server not in self._silent:
            self._silent.add(server)
            told = str(failed) if str(server) in str(failed) else f"{server}: {failed}"
            LOG.warning("%s; %s", told, next_step)

    def _answered(self, at: int) -> None:
        self._current, server = at, self._servers[at]
        if server in self._silent:
            self._silent.discard(server)
            LOG.info("server %s is answering again", server)
