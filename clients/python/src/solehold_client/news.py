"""Being told at once: one question for all sessions of a client, which waits at a server until there is news of one.

The word is no proof. It only makes a session send its heartbeat now rather than later, whose answer says what has happened.
Where the servers cannot tell, or cannot be reached, the heartbeat stays what it was.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from . import wire
from .backoff import Backoff, BackoffConfig
from .channel import Answer, Call, Channel
from .clock import sleep_until
from .errors import SoleholdError, Unavailable, Unknown
from .limits import NEWS_SESSIONS_MAX, WAIT_SECONDS_MAX
from .log import LOG

if TYPE_CHECKING:
    from .client import Client

# Sessions that come within this time go into one question.
GATHER_SECONDS = 0.02
# How long the connection is kept while nobody waits.
LINGER_SECONDS = 5.0
# How long to wait after a question that was not answered.
AGAIN = BackoffConfig(first=0.2, cap=10.0)


class Newsroom:
    """The sessions of one client that wait for news."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._waiting: dict[str, tuple[int, asyncio.Future[bool]]] = {}
        self._changed = asyncio.Event()
        """Someone came or went: the question has to be asked anew."""
        self._asking: asyncio.Task[None] | None = None
        self._cursor: str | None = None
        self._can_tell = True
        self._backoff = Backoff(AGAIN, client.rng)

    async def wait(self, session_id: str, revision: int) -> bool:
        """Waits until something has happened to a session whose leases are known as of a revision. False if the servers
        cannot tell.
        """
        if not self._can_tell:
            return False
        word: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting[session_id] = (revision, word)
        self._changed.set()
        if self._asking is None:
            self._asking = asyncio.ensure_future(self._ask())
        try:
            return await word
        finally:
            if session_id in self._waiting and self._waiting[session_id][1] is word:
                del self._waiting[session_id]
                self._changed.set()

    async def close(self) -> None:
        """Ends the question, if one is open. Nobody waits from now on."""
        self._can_tell = False
        if (asking := self._asking) is not None:
            asking.cancel()
            await asyncio.wait({asking})

    async def _ask(self) -> None:
        """Asks for all who wait, until nobody has waited for a while."""
        channel = self._client.channel()
        try:
            while await self._is_needed():
                await self._ask_once(channel)
        except SoleholdError as error:
            LOG.debug("the server sends no notifications; changes are noticed at the next heartbeat: %s", error)
            self._can_tell = False
        finally:
            # Before anything is awaited: a caller that comes from now on starts another one.
            self._asking = None
            for _, word in self._waiting.values():
                if not word.done():
                    word.set_result(self._can_tell)
            self._waiting.clear()
            await channel.close()

    async def _is_needed(self) -> bool:
        """Whether someone waits, now or soon: a session that was told comes back when its heartbeat was answered."""
        await asyncio.sleep(GATHER_SECONDS)
        if not self._waiting:
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._changed.wait(), LINGER_SECONDS)
        self._changed.clear()
        return bool(self._waiting)

    async def _ask_once(self, channel: Channel) -> None:
        try:
            answer = await self._unless_changed(channel)
        except (Unavailable, Unknown) as error:
            LOG.debug("cannot wait for lease changes; retrying: %s", error)
            pause = self._backoff.delay(least=error.retry_after or 0.0)
            await sleep_until(self._client.clock, self._client.tick_after(pause))
            return
        if answer is not None:
            self._backoff.reset()
            self._tell(answer)

    async def _unless_changed(self, channel: Channel) -> Answer | None:
        """The answer to the question, or none if it has to be asked anew."""
        known = list(self._waiting.items())[:NEWS_SESSIONS_MAX]
        body: dict[str, wire.Json] = {
            "sessions": [{"session_id": session_id, "revision": revision} for session_id, (revision, _) in known],
            "from": self._cursor,
            "wait_ms": round(WAIT_SECONDS_MAX * 1000),
        }
        timeout, until = WAIT_SECONDS_MAX + self._client.timeout, self._client.clock.now()
        call = Call("POST", wire.path("sessions", "news"), body)
        question = asyncio.ensure_future(channel.call(call, timeout=timeout, until=until))
        changed = asyncio.ensure_future(self._changed.wait())
        try:
            await asyncio.wait({question, changed}, return_when=asyncio.FIRST_COMPLETED)
            return question.result() if question.done() else None
        finally:
            for task in (question, changed):
                task.cancel()
            await asyncio.gather(question, changed, return_exceptions=True)

    def _tell(self, answer: Answer) -> None:
        sessions, self._cursor = wire.news(answer.value)
        for session_id in sessions:
            if session_id in self._waiting:
                _, word = self._waiting.pop(session_id)
                if not word.done():
                    word.set_result(True)
