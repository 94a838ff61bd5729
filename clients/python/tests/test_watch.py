"""The watch: from a real server across restarts, from servers that do not behave, and its pure parts."""

from __future__ import annotations

import asyncio
import json
import unittest
from typing import Any
from unittest import mock

from solehold_client import (
    BackoffConfig,
    BadRequest,
    Client,
    Compacted,
    Event,
    NotSent,
    Request,
    Response,
    Server,
    Session,
    Snapshot,
    Unavailable,
    Unknown,
    http,
)
from solehold_client.limits import FRAME_BYTES_MAX
from solehold_client.sse import Decoder, Frame
from solehold_client.watch import Follower, Resync, Watch

from .support.server import Solehold
from .test_http import Case


async def next_event(watch: Watch) -> Event:
    seen = await watch.__anext__()
    assert isinstance(seen, Event), seen
    return seen


async def snapshot(watch: Watch) -> Snapshot:
    seen = await watch.__anext__()
    assert isinstance(seen, Snapshot), seen
    return seen


class Watching(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self) -> None:
        self.server = Solehold()
        self.addCleanup(self.server.stop)
        self.client = Client(self.server.url, retry_for=60.0)
        self.addAsyncCleanup(self.client.close)

    async def test_who_owns_what_then_every_change(self) -> None:
        async with Session.open(self.client, "owner") as session, session.acquire("scene", "hall") as guard:
            async with self.client.watch() as watch:
                seen = await snapshot(watch)
                (owned,) = seen.resources
                self.assertEqual((owned.kind, owned.key, owned.holder, owned.token), ("scene", "hall", "owner", guard.token))
                self.assertEqual((owned.lease_id, owned.session_id), (guard.lease_id, session.session_id))
                self.assertTrue(0 < owned.ttl_left <= 30)
                self.assertEqual(watch.cursor, seen.cursor)
                async with session.acquire("scene", "yard") as other:
                    acquired = await next_event(watch)
                released = await next_event(watch)
        told = [(event.event_type, event.key, event.token, event.holder) for event in (acquired, released)]
        self.assertEqual(told, [(f"lease_{what}", "yard", other.token, "owner") for what in ("acquired", "released")])
        self.assertEqual(watch.cursor, released.cursor)
        self.assertGreater(released.revision, acquired.revision)

    async def test_it_resumes_by_cursor_with_no_gaps_and_no_duplicates(self) -> None:
        port = int(self.server.url.rpartition(":")[2])
        seen: list[int] = []
        tokens: list[int] = []
        async with self.client.watch(kind="scene") as watch:
            await snapshot(watch)
            for round in range(3):
                async with Session.open(self.client, "worker") as session:
                    for _ in range(5):
                        async with session.acquire("scene", "hall") as guard:
                            tokens.append(guard.token)
                    async with session.acquire("camera", "not-asked-for"):
                        pass
                    while len(seen) < len(tokens) - 2:  # the rest is under way when the server goes
                        if (event := await next_event(watch)).event_type == "lease_acquired":
                            seen.append(event.token or 0)
                self.server.kill()
                self.server = Solehold(port=port, data_dir=self.server.data_dir)
                self.addCleanup(self.server.stop)
        # Another watch goes on where the first one stood.
        async with self.client.watch(kind="scene", cursor=watch.cursor) as watch:
            while len(seen) < len(tokens):
                if (event := await next_event(watch)).event_type == "lease_acquired":
                    seen.append(event.token or 0)
        self.assertEqual(seen, tokens)

    async def test_renewals_are_told_to_those_who_ask(self) -> None:
        async with self.client.watch(renewals=True, holder="beating") as watch:
            await snapshot(watch)
            async with Session.open(self.client, "beating", ttl=3.0) as session, session.acquire("scene", "hall") as guard:
                acquired = await next_event(watch)
                renewed = await next_event(watch)
                self.assertTrue(renewed.is_renewal and not acquired.is_renewal)
                self.assertEqual((renewed.token, watch.cursor), (guard.token, acquired.cursor))

    async def test_a_cursor_that_is_ahead_is_refused(self) -> None:
        with self.assertRaises(BadRequest):
            await self.client.watch(cursor="1.99999").__anext__()

    async def test_closing_or_breaking_off_leaves_no_connection(self) -> None:
        async for _ in self.client.watch():
            break
        watch = self.client.watch()
        await snapshot(watch)
        await watch.close()
        with self.assertRaises(StopAsyncIteration):
            await watch.__anext__()
        await self.client.close()
        transport = self.client._channel._transport
        assert isinstance(transport, http.HttpTransport)
        self.assertTrue(all(connection.writer.is_closing() for connection in transport._streaming))

    async def test_a_cancelled_read_misses_nothing(self) -> None:
        async with Session.open(self.client, "worker") as session, self.client.watch() as watch:
            await snapshot(watch)
            tokens, seen = [], []
            for number in range(20):
                waiting = asyncio.ensure_future(watch.__anext__())
                for _ in range(number % 7):
                    await asyncio.sleep(0)
                async with session.acquire("scene", "hall") as guard:
                    tokens.append(guard.token)
                waiting.cancel()
                done, _ = await asyncio.wait({waiting})
                if not waiting.cancelled():
                    seen.append(waiting.result())
            while sum(isinstance(event, Event) and event.event_type == "lease_released" for event in seen) < len(tokens):
                seen.append(await watch.__anext__())
        acquired = [event.token for event in seen if isinstance(event, Event) and event.event_type == "lease_acquired"]
        self.assertEqual(acquired, tokens)


class Scripted:
    """A transport whose streams are scripted: pieces, or that nobody is there."""

    def __init__(self, *streams: list[str] | None) -> None:
        self.streams = list(streams)
        self.targets: list[str] = []
        self.open: list[ScriptedStream] = []

    async def send(self, server: Server, request: Request) -> Response:
        raise NotSent("only streams")

    async def stream(self, server: Server, request: Request) -> ScriptedStream:
        self.targets.append(request.target)
        pieces = self.streams.pop(0)
        if pieces is None:
            raise NotSent("nobody there")
        self.open.append(ScriptedStream(pieces))
        return self.open[-1]

    async def close(self) -> None:
        pass


class ScriptedStream:
    """A read that is cancelled loses what was under way, as it may happen to any."""

    status = 200

    def __init__(self, pieces: list[str]) -> None:
        self._pieces = pieces
        self.is_closed = False

    async def read(self) -> bytes:
        piece = self._pieces.pop(0)
        if piece == "never":
            await asyncio.Event().wait()
        return piece.encode()

    def close(self) -> None:
        self.is_closed = True


class Interrupted(unittest.IsolatedAsyncioTestCase):
    def client(self, transport: Scripted) -> Client:
        backoff = BackoffConfig(first=0.001, cap=0.001)
        return Client("http://scripted", retry_for=0.0, backoff=backoff, transport=lambda: transport)

    async def test_a_cancelled_read_is_made_again_from_the_cursor(self) -> None:
        transport = Scripted([event("1.6", "a"), "never"], [event("1.7", "b")])
        watch = self.client(transport).watch(cursor="1.5")
        await next_event(watch)
        waiting = asyncio.ensure_future(watch.__anext__())
        await asyncio.sleep(0)
        waiting.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await waiting
        self.assertTrue(transport.open[0].is_closed)
        self.assertEqual((await next_event(watch)).key, "b")
        self.assertEqual(transport.targets, [f"/api/v1/watch?from={at}" for at in ("1.5", "1.6")])

    async def test_a_watch_that_has_begun_goes_on_however_long_nobody_answers(self) -> None:
        transport = Scripted([event("1.6", "a"), ""], *[None] * 20, [event("1.7", "b")])
        watch = self.client(transport).watch(cursor="1.5")
        self.assertEqual([(await next_event(watch)).key for _ in range(2)], ["a", "b"])
        self.assertEqual(len(transport.targets), 22)
        with self.assertRaises(Unavailable):
            await self.client(Scripted(None)).watch(cursor="1.5").__anext__()


class Misbehaving(Case):
    """Streams that end badly."""

    async def streams(self, *streams: str) -> Client:
        answers = [f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n{stream}".encode() for stream in streams]
        self.targets: list[str] = []
        left = list(answers)

        async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.targets.append((await reader.readuntil(b"\r\n\r\n")).decode().split(" ")[1])
            writer.write(left.pop(0))
            await writer.drain()

        client = Client(str(await self.serve(handler)), retry_for=0.0)
        self.addAsyncCleanup(client.close)
        return client

    async def test_a_snapshot_that_was_cut_off_begins_anew(self) -> None:
        part = frame("snapshot", cursor="1.5", resources=[owned("a")], more=True)
        whole = part + frame("snapshot", cursor="1.5", resources=[owned("b")], more=False)
        client = await self.streams(part, part[:-5], whole + event("1.6", "b"))
        watch = client.watch()
        self.assertEqual([resource.key for resource in (await snapshot(watch)).resources], ["a", "b"])
        self.assertEqual((await next_event(watch)).key, "b")
        self.assertEqual(self.targets, ["/below/api/v1/watch"] * 3)

    async def test_what_was_seen_is_not_seen_again(self) -> None:
        begin = frame("snapshot", cursor="1.5", resources=[], more=False)
        client = await self.streams(
            begin + event("1.6", "a") + frame("progress", cursor="1.9", timestamp="t"),
            event("1.8", "late") + event("1.10", "b") + frame("resync", cursor="1.10", reason="slow"),
            event("2.1", "c"),
        )
        watch = client.watch(kind="scene")
        await snapshot(watch)
        self.assertEqual([(await next_event(watch)).key for _ in range(3)], ["a", "b", "c"])
        self.assertEqual(self.targets[1:], [f"/below/api/v1/watch?from={at}&kind=scene" for at in ("1.9", "1.10")])

    async def test_what_is_no_longer_kept_is_told(self) -> None:
        client = await self.streams(event("1.6", "a") + frame("compacted", floor="1.20"))
        watch = client.watch(cursor="1.5")
        self.assertEqual((await next_event(watch)).key, "a")
        with self.assertRaisesRegex(Compacted, "after 1.6 are no longer kept, only those after 1.20"):
            await watch.__anext__()

    async def test_nonsense_is_told(self) -> None:
        odd = frame("snapshot", cursor="1.1", resources=5)
        for stream in ("event: event\ndata: {\n\n", event("banana", "a"), frame("event"), odd):
            client = await self.streams(stream)
            with self.assertRaises(Unknown):
                await client.watch(cursor="1.5").__anext__()

    async def test_a_snapshot_is_bounded(self) -> None:
        client = await self.streams(frame("snapshot", cursor="1.5", resources=[owned("a" * 5000)], more=True))
        client.response_bytes_max = 4000
        with self.assertRaisesRegex(Unknown, "larger than 4000 bytes: watch one kind"):
            await client.watch().__anext__()

    async def test_silence_is_noticed(self) -> None:
        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + (event("1.6", "a").encode() if self.connections > 1 else b""))
            await reader.read()

        client = Client(str(await self.serve(silent)))
        self.addAsyncCleanup(client.close)
        with mock.patch.object(http, "SILENCE_SECONDS_MAX", 0.2):
            self.assertEqual((await next_event(client.watch(cursor="1.5"))).key, "a")

    async def test_nobody_there_is_unavailable_at_first(self) -> None:
        async with Client("http://127.0.0.1:1", retry_for=0.0) as client:
            with self.assertRaisesRegex(Unavailable, "no server at http://127.0.0.1:1 "):
                await client.watch().__anext__()


def frame(name: str, **data: Any) -> str:
    return f"event: {name}\nid: x\ndata: {json.dumps(data)}\n\n"


def owned(key: str) -> dict[str, Any]:
    return {"tenant": "t", "kind": "scene", "key": key, "token": 3, "holder": None, "ttl_ms": 0}


def event(cursor: str, key: str) -> str:
    told = {"tenant": "t", "kind": "scene", "key": key, "revision": 6, "timestamp": "t"}
    return frame("event", event_type="lease_acquired", cursor=cursor, details={"x": 1}, **told)


class Pure(unittest.TestCase):
    def test_however_a_stream_is_cut_the_frames_are_the_same(self) -> None:
        stream = (
            ": hello\r\nevent: event\r\nid: 1.2\r\ndata: {\"söhne\":\r\ndata:  \"数\"}\r\n\r\n"
            ":\n\ndata\n\nevent: progress\rid:1.3\rdata:x\r\rretry: 5\nevent: lost\n\ndata: unfinished\n"
        ).encode()
        expected = [Frame("event", '{"söhne":\n "数"}'), Frame("message", ""), Frame("progress", "x")]
        for size in range(1, len(stream) + 1):
            decoder = Decoder()
            pieces = [stream[at : at + size] for at in range(0, len(stream), size)]
            self.assertEqual([frame for piece in pieces for frame in decoder.push(piece)], expected, size)

    def test_a_frame_is_bounded(self) -> None:
        line = b"data: " + b"x" * (1024 * 1024)
        for end in (b"", b"\n"):
            decoder = Decoder()
            with self.assertRaisesRegex(ValueError, f"more than {FRAME_BYTES_MAX} bytes"):
                for _ in range(6):
                    decoder.push(line + end)

    def test_sorts_of_frames_that_came_later_tell_nothing(self) -> None:
        follower = Follower("1.5")
        self.assertIsNone(follower.take(Frame("omen", "{")))
        self.assertIsNone(follower.take(Frame("progress", '{"cursor": "1.3"}')))
        self.assertEqual(follower.cursor, "1.5")
        with self.assertRaises(Resync):
            follower.take(Frame("resync", "{}"))
