"""The gate: work that carries an old token is refused (rule 21).

`Gate.judge` says at once what is known; `Gate.decide` asks the store where that settles it. What stays undecidable is held back
by a transport that can wait (`Gate.changed`), and refused by one that cannot. The watch pushes every grant, so the store is
read only for a token that comes before its event, and while the watch is away.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING

from . import check, wire
from .backoff import Backoff, BackoffConfig
from .channel import Call
from .errors import Compacted, Forbidden, NotFound, SoleholdError, Unavailable, Unknown
from .fence import Fence, Key, Mark, Rules, Verdict
from .http import within
from .limits import GATE_KINDS_MAX
from .log import LOG
from .memory import Memory
from .refresh import Refreshes, Told
from .watch import Watch
from .wire import Event, Ownership, Snapshot, position

if TYPE_CHECKING:
    from .client import Client

# How often the store is asked how far it is.
HEAD_SECONDS = 1.0
# How long the store counts as away after it was not reached, besides the time that the next question may take.
AWAY_SECONDS = 2.0
# How often a refusal of the gate is logged while it lasts.
LOG_SECONDS = 60.0
# How long to wait before another attempt.
AGAIN = BackoffConfig(first=0.1, cap=5.0)
TENANT_DEFAULT = "default"


class Gate:
    """Refuses work that carries an old token: `async with Gate(client, kinds=["scene"]) as gate`.

    It fails closed: what cannot be decided is not admitted, unless `fail_open` says so for the time while the store is away.
    A server that refuses the gate's key is not away: see `denied`.
    `memory` is a file in which marks are kept across restarts. `strict` reads the store before a new token is admitted.
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
        check.instance("kinds", kinds, Iterable, "a list of kinds, such as ['scene']")
        self._kinds = [check.name("a kind", kind) for kind in ([kinds] if isinstance(kinds, str) else kinds)]
        if not 1 <= len(self._kinds) <= GATE_KINDS_MAX:
            raise ValueError(f"{len(self._kinds)} kinds were given: give 1 to {GATE_KINDS_MAX}")
        above = "seconds above 0"
        check.seconds("cache_ttl", cache_ttl, lambda ttl: ttl > 0, above)
        check.seconds("refresh_within", refresh_within, lambda within: within > 0, above)
        check.instance("marks_max", marks_max, int, "a whole number above 0")
        if marks_max < 1:
            raise ValueError(f"marks_max is {marks_max}: nothing could be remembered")
        rules = Rules(cache_ttl, fail_open, strict, memory is not None, marks_max)
        self._client = client
        self._tenant = check.name("tenant", tenant)
        self._within = refresh_within
        self._fence = Fence(rules)
        self._memory = None if memory is None else Memory(memory, tenant)
        self._channel = client.channel()
        self._watch: Watch | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._closing: asyncio.Task[None] | None = None
        self._changes: set[asyncio.Future[None]] = set()
        self._to_save = asyncio.Event()
        self._refreshes = Refreshes(self._newest)
        self._denial: str | None = None
        self._logged: float | None = None

    async def __aenter__(self) -> Gate:
        if self._memory is not None:
            try:
                self._memory.restore(self._fence)
            except BaseException:
                self._memory.close()
                raise
            self._tasks.append(asyncio.ensure_future(self._keep(self._memory)))
        self._tasks += [asyncio.ensure_future(self._follow()), asyncio.ensure_future(self._ask_for_heads())]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends the watch, and lets another gate have the file, when what is being saved is saved. If it is cancelled,
        it goes on in the background.
        """
        if self._closing is None:
            self._closing = self._client.leave(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._channel.close()
        if self._memory is not None:
            await asyncio.to_thread(self._memory.close)

    @property
    def lag(self) -> float | None:
        """Everything is known that was decided longer ago than these seconds; None before the first snapshot."""
        return None if self._fence.proven is None else self._client.clock.now() - self._fence.proven

    @property
    def denied(self) -> str | None:
        """What the server said when it refused the gate, such as for its key; None if it does not refuse it. Until that is
        mended nothing is admitted that needs the server, even if the gate fails open.
        """
        return self._denial if self._fence.is_denied else None

    def judge(
        self, kind: str, key: str, token: int, session: str | None = None, *, slot: int | None = None
    ) -> Verdict:
        """Judges by what is known, at once. Work under a shared hold is judged by its `slot`."""
        return self._judge((kind, key, check.slot(slot)), token, session)

    def _judge(self, key: Key, token: int, session: str | None) -> Verdict:
        before = len(self._fence)
        verdict = self._fence.judge(key, token, session, self._client.clock.now())
        if verdict.why == "unsaved" or len(self._fence) != before:
            self._to_save.set()
        return verdict

    async def decide(
        self, kind: str, key: str, token: int, session: str | None = None, *, slot: int | None = None
    ) -> Verdict:
        """Judges, and asks the store where that settles it: one question serves all decisions that waited for it. Work
        under a shared hold is judged by its `slot`.
        """
        of = (kind, key, check.slot(slot))
        arrived = self._client.clock.now()
        verdict = self._judge(of, token, session)
        if verdict.needs_a_read and not self._fence.is_away(arrived):
            try:
                told = await within(self._within, self._refreshes.ask(of, arrived))
            except (SoleholdError, asyncio.TimeoutError) as error:
                self._failed(error)
                verdict = self._judge(of, token, session)
            else:
                verdict = await self._conclude(of, token, session, told)
        if verdict.why == "unsaved":
            await self._until(lambda: self._judge(of, token, session).why != "unsaved")
            verdict = self._judge(of, token, session)
        return verdict

    def changed(self) -> asyncio.Future[None]:
        """Something to wait for: the next change of what is known, from this call on. Take it before `judge`, so that
        nothing is missed in between.
        """
        change: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._changes.add(change)
        change.add_done_callback(self._changes.discard)
        return change

    async def ready(self) -> None:
        """Waits until the first snapshot is whole and saved."""
        while not self._fence.is_ready:
            await self.changed()

    async def _conclude(self, key: Key, token: int, session: str | None, told: Told) -> Verdict:
        """The verdict by what the store said."""
        if told.mark is None and not told.hidden and self._fence.told is not None:
            # The store knows an undeclared resource, and a slot, only while it is held. The watch knows it longer.
            if not await self._until(lambda: self._fence.proven is not None and self._fence.proven >= told.asked):
                return self._judge(key, token, session)
        now = self._client.clock.now()
        mark, epoch, hidden = told.mark, told.epoch, told.hidden
        verdict = self._fence.conclude(key, token, session, mark, epoch, told.asked, now, hidden=hidden)
        self._has_changed()
        return self._judge(key, token, session) if verdict is None else verdict

    async def _newest(self, key: Key) -> Told:
        kind, name, slot = key
        asked = self._client.clock.now()
        try:
            answer = await self._channel.call(Call("GET", wire.path("resources", kind, name)), timeout=self._within, until=asked)
        except NotFound:
            return Told(asked, None, None)
        except Forbidden:
            return Told(asked, None, None, hidden=True)
        return Told(answer.sent, *wire.newest(answer.value, slot))

    async def _until(self, holds: Callable[[], bool]) -> bool:
        """Waits for something that changes only with what is known, but not for ever. Returns whether it holds."""

        async def wait() -> None:
            while True:
                change = self.changed()
                if holds():
                    change.cancel()
                    return
                await change

        with suppress(asyncio.TimeoutError):
            await within(self._within, wait())
        return holds()

    def _has_changed(self) -> None:
        self._to_save.set()
        for change in list(self._changes):
            if not change.done():
                change.set_result(None)

    def _failed(self, error: BaseException) -> None:
        """The store refuses the gate, or was not reached."""
        if _is_denial(error):
            self._denial = str(error)
            self._fence.store_denies()
            now = self._client.clock.now()
            if self._logged is None or now - self._logged >= LOG_SECONDS:
                self._logged = now
                LOG.error("the server refuses the gate; check its API key; refusing tokens that it cannot judge: %s", error)
            return
        LOG.debug("the gate cannot reach the store: %s", error)
        self._fence.store_is_away(self._client.clock.now() + AWAY_SECONDS + self._within)

    async def _follow(self) -> None:
        """Watches, however often the connection is lost."""
        backoff = Backoff(AGAIN, self._client.rng)
        while True:
            asked = self._client.clock.now()
            kind = self._kinds[0] if len(self._kinds) == 1 else None
            try:
                async with self._client.watch(kind=kind) as watch:
                    async for seen in watch:
                        backoff.reset()
                        if not self._take(watch, seen, asked):
                            break
            except Compacted:
                continue
            except SoleholdError as error:
                LOG.debug("gate watch interrupted; reconnecting: %s", error)
                if _is_denial(error):
                    self._failed(error)
            self._watch = None
            await asyncio.sleep(backoff.delay())

    def _take(self, watch: Watch, seen: Snapshot | Event, asked: float) -> bool:
        """What the watch tells; False if it is from another history than was begun."""
        epoch, revision = position(seen.cursor)
        if isinstance(seen, Snapshot):
            if not self._fence.snapshot_begins(epoch):
                return False
            for owned in filter(self._is_ours, seen.resources):
                self._fence.learn((owned.kind, owned.key, owned.slot or 0), Mark(owned.token, owned.session_id))
            self._fence.snapshot_ends(revision, asked)
            self._watch = watch
        else:
            if epoch != self._fence.epoch or self._fence.told is None:
                return False
            key = (seen.kind, seen.key, seen.slot or 0)
            if seen.event_type == "resource_deleted":
                self._fence.deleted(key)
            elif seen.token is not None and self._is_ours(seen):
                self._fence.granted(key, Mark(seen.token, seen.session_id))
            self._fence.told_up_to(revision)
        self._has_changed()
        return True

    def _is_ours(self, seen: Ownership | Event) -> bool:
        return seen.tenant == self._tenant and seen.kind in self._kinds

    async def _ask_for_heads(self) -> None:
        """When the watch has told everything up to where the store was, everything before the question is known."""
        while True:
            try:
                now = self._client.clock.now()
                answer = await self._channel.call(Call("GET", "/readyz"), timeout=self._within, until=now)
                epoch, head = position(wire.cursor_of(answer.value))
                if not self._fence.head_was(epoch, head, answer.sent):
                    LOG.warning("gate ignores the store: it answers from an older history")
                    self._fence.store_is_away(now + AWAY_SECONDS + self._within)
                if self._watch is not None and self._watch.cursor is not None:
                    # Marks of progress move the cursor without being told.
                    at, revision = position(self._watch.cursor)
                    if at == self._fence.epoch and self._fence.told is not None:
                        self._fence.told_up_to(revision)
            except SoleholdError as error:
                self._failed(error)
            self._has_changed()
            await asyncio.sleep(HEAD_SECONDS)

    async def _keep(self, memory: Memory) -> None:
        """Saves what there is to save."""
        backoff = Backoff(AGAIN, self._client.rng)
        waiting = []
        while True:
            await self._to_save.wait()
            self._to_save.clear()
            records, number = self._fence.unsaved()
            waiting += records
            if not waiting:
                continue
            whole = self._fence.records() if memory.is_long(len(self._fence)) else None
            try:
                await asyncio.to_thread(memory.save, list(waiting), whole)
            except OSError as error:
                LOG.error("cannot save the gate's marks; refusing new tokens until it works: %s", error)
                self._to_save.set()
                await asyncio.sleep(backoff.delay())
                continue
            backoff.reset()
            waiting.clear()
            self._fence.saved_up_to(number)
            self._has_changed()


def _is_denial(error: BaseException) -> bool:
    """Whether a server, or something in front of it, answered and refuses the gate."""
    if not isinstance(error, SoleholdError):
        return False
    return not isinstance(error, (Unavailable, Unknown)) or error.status in (401, 403)
