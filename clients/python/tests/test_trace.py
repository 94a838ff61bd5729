"""The `traceparent` header: from a hook, or from OpenTelemetry where the program uses it."""

from __future__ import annotations

import asyncio
import contextvars
import sys
import types
import unittest
from unittest import mock

from solehold_client import Client, sync, trace

SPAN = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


class Heads:
    """A server that keeps the heads of requests, and answers each with an empty object."""

    def __init__(self) -> None:
        self.heads: list[str] = []
        self.url = ""

    async def start(self) -> asyncio.Server:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        return server

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            self.heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
            writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}")
            await writer.drain()
        finally:
            writer.close()


class TraceTest(unittest.IsolatedAsyncioTestCase):
    async def sent(self, **options: object) -> str | None:
        """The header of a request that a client sends."""
        heads = Heads()
        async with await heads.start():
            async with Client(heads.url, retry_for=0.0, **options) as client:  # type: ignore[arg-type]
                with self.assertRaises(Exception):
                    await client.read_state("job", "a")
        lines = [line for line in heads.heads[0].splitlines() if line.startswith("traceparent: ")]
        return lines[0].removeprefix("traceparent: ") if lines else None

    async def test_a_hook_gives_the_header(self) -> None:
        self.assertEqual(await self.sent(traceparent=lambda: SPAN), SPAN)
        self.assertIsNone(await self.sent(traceparent=lambda: None))
        for odd in ["", "nonsense", f"{SPAN}\r\nx-injected: 1", SPAN.upper()]:
            self.assertIsNone(await self.sent(traceparent=lambda odd=odd: odd), odd)

    async def test_without_opentelemetry_there_is_no_header(self) -> None:
        with mock.patch.dict(sys.modules):
            sys.modules.pop("opentelemetry.trace", None)
            self.assertIsNone(await self.sent())

    async def test_the_current_span_of_opentelemetry_is_sent(self) -> None:
        """Its programming interface, as version 1 has it: the package is not needed for this test."""
        context = types.SimpleNamespace(
            trace_id=0x4BF92F3577B34DA6A3CE929D0E0E4736, span_id=0x00F067AA0BA902B7, trace_flags=1, is_valid=True
        )
        span = types.SimpleNamespace(get_span_context=lambda: context)
        module = types.ModuleType("opentelemetry.trace")
        module.get_current_span = lambda: span  # type: ignore[attr-defined]
        with mock.patch.dict(sys.modules, {"opentelemetry.trace": module}):
            self.assertEqual(await self.sent(), SPAN)
            context.is_valid = False
            self.assertIsNone(await self.sent())

    async def test_the_context_of_a_caller_reaches_the_loop_of_the_synchronous_client(self) -> None:
        current: contextvars.ContextVar[str | None] = contextvars.ContextVar("current", default=None)
        heads = Heads()

        def ask() -> None:
            current.set(SPAN)
            with sync.Client(heads.url, retry_for=0.0, traceparent=current.get) as client, self.assertRaises(Exception):
                client.read_state("job", "a")

        async with await heads.start():
            await asyncio.to_thread(ask)
        self.assertIn(f"traceparent: {SPAN}\r\n", heads.heads[0])


class HeaderTest(unittest.TestCase):
    def test_a_header_ends_its_line(self) -> None:
        self.assertEqual(trace.header(lambda: SPAN), f"traceparent: {SPAN}\r\n")
