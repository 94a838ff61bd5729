"""Connections to the servers: failover, and repeats of what is safe to repeat."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from . import wire
from .backoff import Backoff, BackoffConfig
from .clock import Clock, sleep_until
from .errors import SoleholdError, Unavailable, Unknown, from_answer
from .http import AnswerLost, NotSent, Request, Server, Transport
from .wire import Json


@dataclass(frozen=True)
class Call:
    """A request, for any server."""

    method: str
    path: str
    body: Mapping[str, Json] | None = None
    repeatable: bool = True
    """Whether doing it twice is the same as doing it once: by request id, token, lease id or session id."""


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
    ) -> None:
        self._servers = servers
        self._transport = transport
        self._clock = clock
        self._rng = rng
        self._query = "" if tenant is None else "tenant=" + wire.segment(tenant)
        self._backoff = backoff or BackoffConfig()
        self._current = 0

    async def close(self) -> None:
        """Closes its connections."""
        await self._transport.close()

    async def call(self, call: Call, *, timeout: float, until: float, doubts: Doubts | None = None) -> Answer:
        """Asks each server in turn, `timeout` seconds for each, and after a pause again while the tick `until` is
        ahead.

        Raises what the first definite answer says. Without one: `Unknown` if it may have been done, else `Unavailable`.
        """
        doubts = doubts or Doubts()
        backoff = Backoff(self._backoff, self._rng)
        unknown: Unknown | None = None
        failed: SoleholdError
        tried = 0
        while True:
            sent = self._clock.now()
            try:
                return Answer(await self._once(call, timeout), sent, doubts.any)
            except Unknown as error:
                doubts.any = True
                if not call.repeatable:
                    raise
                failed = unknown = error
            except Unavailable as error:
                failed = error
            self._current = (self._current + 1) % len(self._servers)
            tried += 1
            if tried % len(self._servers):
                continue
            again_at = self._clock.now() + backoff.delay(least=failed.retry_after or 0.0)
            if again_at >= until:
                raise unknown or failed
            await sleep_until(self._clock, again_at)

    async def _once(self, call: Call, timeout: float) -> Json:
        server = self._servers[self._current]
        body = None if call.body is None else wire.encode(call.body)
        join = "" if not self._query else "&" if "?" in call.path else "?"
        request = Request(call.method, call.path + join + self._query, body, timeout)
        try:
            response = await self._transport.send(server, request)
        except NotSent as error:
            raise Unavailable(str(error)) from error
        except AnswerLost as error:
            raise Unknown(str(error)) from error
        if response.status >= 300:
            raise from_answer(str(server), response.status, response.body)
        return wire.decode(response.body) if response.body else None
