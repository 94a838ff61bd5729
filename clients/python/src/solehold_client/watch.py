"""The watch: who owns what, then every change, in the one order of all changes (rule 18).

`Follower` decides what is new, `Watch` drives: it connects, reads, and connects again from the last cursor.
"""

from __future__ import annotations

import json
from collections import deque
from types import TracebackType
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from . import check, wire
from .backoff import Backoff
from .channel import Call, Channel
from .clock import sleep_until
from .errors import Compacted, Unavailable, Unknown
from .http import AnswerLost, Stream
from .limits import RESPONSE_BYTES_MAX
from .log import LOG
from .sse import Decoder, Frame
from .wire import Event, Ownership, Snapshot, position

if TYPE_CHECKING:
    from .client import Client


class Resync(Exception):
    """The server ends the stream, since this reader fell behind: it goes on from its cursor."""


class Follower:
    """What a reader has seen, and so what is new to it. Pure."""

    def __init__(self, cursor: str | None, *, snapshot_bytes_max: int = RESPONSE_BYTES_MAX) -> None:
        self.cursor = cursor
        """Everything up to here has been seen."""
        self._snapshot_bytes_max = snapshot_bytes_max
        self._parts: list[Ownership] = []
        self._bytes = 0

    def begin(self) -> None:
        """A new connection: a snapshot that was not whole begins anew."""
        self._parts, self._bytes = [], 0

    def take(self, frame: Frame) -> Snapshot | Event | None:
        """What a frame tells that is new. Sorts of frames that came later than this reader tell nothing."""
        if frame.event == "event":
            return self._event(wire.event(_read(frame)))
        if frame.event == "snapshot":
            return self._snapshot(frame)
        if frame.event == "progress":
            cursor = wire.cursor_of(_read(frame))
            if self.cursor is None or position(cursor) > position(self.cursor):
                self.cursor = cursor
        elif frame.event == "compacted":
            floor = wire.cursor_of(_read(frame), "floor")
            told = f"the events after {self.cursor} are no longer kept, only those after {floor}: begin without a cursor"
            raise Compacted(told, code="compacted")
        elif frame.event == "resync":
            raise Resync
        return None

    def _event(self, event: Event) -> Event | None:
        if event.is_renewal:  # it has the cursor of the change before it, and is never repeated
            return event
        if self.cursor is not None and position(event.cursor) <= position(self.cursor):
            return None  # seen before the connection was lost
        self.cursor = event.cursor
        return event

    def _snapshot(self, frame: Frame) -> Snapshot | None:
        cursor, resources, more = wire.snapshot_part(_read(frame))
        self._bytes += len(frame.data)
        if self._bytes > self._snapshot_bytes_max:
            raise Unknown(f"the snapshot is larger than {self._snapshot_bytes_max} bytes: watch one kind of resource")
        self._parts += resources
        if more:
            return None
        self.cursor = cursor
        whole, self._parts = tuple(self._parts), []
        return Snapshot(cursor, whole)


class Watch:
    """Snapshots and events, as they come: `async for seen in client.watch()`.

    It goes on until it is closed, however often the connection is lost. It raises `Compacted` if the server no longer
    has what came after its cursor, and what the server says if it refuses.
    """

    def __init__(
        self,
        client: Client,
        channel: Channel,
        *,
        cursor: str | None = None,
        kind: str | None = None,
        holder: str | None = None,
        renewals: bool = False,
    ) -> None:
        if cursor is not None:
            check.instance("cursor", cursor, str, "a string, such as '1.42'")
            position(cursor)
        for argument, value in (("kind", kind), ("holder", holder)):
            if value is not None:
                check.name(argument, value)
        self._client = client
        self._channel = channel
        self._query = {"kind": kind, "holder": holder, "renewals": "true" if renewals else None}
        self._follower = Follower(cursor, snapshot_bytes_max=client.response_bytes_max)
        self._frames: deque[Frame] = deque()
        self._decoder = Decoder()
        self._stream: Stream | None = None
        self._is_begun = False
        self._is_closed = False

    @property
    def cursor(self) -> str | None:
        """Where it stands: give it to another watch to go on from here. None before the first snapshot."""
        return self._follower.cursor

    def __aiter__(self) -> Watch:
        return self

    async def __anext__(self) -> Snapshot | Event:
        try:
            while not self._is_closed:
                if not self._frames:
                    await self._read()
                elif seen := self._take(self._frames.popleft()):
                    return seen
        except BaseException:
            # Cancelled, too: part of what was under way may be lost, and comes again from the cursor.
            self._hang_up()
            raise
        raise StopAsyncIteration

    async def close(self) -> None:
        """Ends it."""
        self._is_closed = True
        self._hang_up()

    async def __aenter__(self) -> Watch:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _take(self, frame: Frame) -> Snapshot | Event | None:
        try:
            return self._follower.take(frame)
        except Resync:
            self._interrupted("this reader fell behind")
            return None

    async def _read(self) -> None:
        """Reads one piece of the stream; connects before, if need be."""
        stream = self._stream or await self._connect()
        try:
            piece = await stream.read()
            self._frames.extend(self._decoder.push(piece))
            if not piece:
                self._interrupted("the server ended it")
        except AnswerLost as error:
            self._interrupted(str(error))
        except ValueError as error:
            raise Unknown(str(error)) from error

    def _interrupted(self, why: str) -> None:
        self._hang_up()
        if not self._is_closed:
            LOG.warning("watch interrupted (%s); reconnecting from %s", why, self.cursor or "the start")

    async def _connect(self) -> Stream:
        """The first time for as long as a request is repeated, and after that for as long as it takes."""
        query = {name: value for name, value in {"from": self._follower.cursor, **self._query}.items() if value is not None}
        call = Call("GET", wire.path("watch") + ("?" + urlencode(query) if query else ""))
        self._follower.begin()
        self._decoder = Decoder()
        client, backoff = self._client, Backoff(self._client.backoff, self._client.rng)
        while True:
            try:
                until = client.tick_after(client.retry_for)
                self._stream = await self._channel.stream(call, timeout=client.timeout, until=until)
                break
            except (Unavailable, Unknown) as error:
                if not self._is_begun:
                    raise
                await sleep_until(client.clock, client.tick_after(backoff.delay(least=error.retry_after or 0.0)))
        if self._is_begun:
            LOG.info("watch reconnected; continuing from %s", self.cursor or "the start")
        self._is_begun = True
        return self._stream

    def _hang_up(self) -> None:
        self._frames.clear()
        if self._stream is not None:
            self._stream.close()
            self._stream = None


def _read(frame: Frame) -> wire.Json:
    try:
        value: wire.Json = json.loads(frame.data)
    except (ValueError, RecursionError) as error:
        raise Unknown(f"a frame {frame.event!r} of the watch is not JSON") from error
    return value
