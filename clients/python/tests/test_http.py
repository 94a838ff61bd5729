"""The HTTP client against servers that do not behave."""

from __future__ import annotations

import asyncio
import unittest
from collections.abc import Awaitable, Callable

from solehold_client import AnswerLost, Client, HttpTransport, NotSent, Request, Response, Server, Unavailable, Unknown
from solehold_client.errors import BadRequest, Compacted, Forbidden, NoSession, Refused, Superseded, from_answer
from solehold_client.http import within
from solehold_client.limits import HEAD_BYTES_MAX

from .support.server import wait_until

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Case(unittest.IsolatedAsyncioTestCase):
    async def serve(self, handler: Handler) -> Server:
        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.connections += 1
            try:
                await handler(reader, writer)
            except (asyncio.IncompleteReadError, ConnectionError):
                pass
            finally:
                writer.close()

        self.connections = 0
        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        self.addAsyncCleanup(server.wait_closed)
        self.addCleanup(server.close)
        return Server.parse(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/below")

    async def answers(self, *answers: bytes) -> Server:
        """A server that gives these, one a request, and then closes."""
        left = list(answers)

        async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while left:
                self.head = await read_request(reader)
                writer.write(left.pop(0))
                await writer.drain()

        return await self.serve(handler)

    async def send(self, server: Server, *, response_bytes_max: int = 1 << 20) -> Response:
        transport = HttpTransport(headers={"authorization": "Bearer k"}, response_bytes_max=response_bytes_max)
        self.addAsyncCleanup(transport.close)
        return await transport.send(server, Request("POST", "/x", b'{"a":1}', 5.0))


async def read_request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    if b"content-length: 7" in head:
        await reader.readexactly(7)
    return head


def answer(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    head = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(head).encode() + body


class Answers(Case):
    async def test_a_request_has_what_it_needs(self) -> None:
        server = await self.answers(answer(b"{}"))
        self.assertEqual((await self.send(server)).body, b"{}")
        head = self.head.decode()
        self.assertTrue(head.startswith("POST /below/x HTTP/1.1\r\n"), head)
        self.assertIn(f"host: 127.0.0.1:{server.port}\r\n", head)
        self.assertIn("authorization: Bearer k\r\n", head)

    async def test_bodies_of_every_length(self) -> None:
        chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        chunked += b"3;x=y\r\nabc\r\nA\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\n"
        for given, expected in (
            (answer(b""), b""),
            (answer(b"abc"), b"abc"),
            (chunked, b"abc0123456789"),
            (b"HTTP/1.1 103 Early Hints\r\n\r\n" + answer(b"late"), b"late"),
            (b"HTTP/1.0 200 OK\r\n\r\nuntil the end", b"until the end"),
            (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
        ):
            with self.subTest(given=given):
                self.assertEqual((await self.send(await self.answers(given))).body, expected)

    async def test_broken_answers_leave_the_outcome_unknown(self) -> None:
        for given, told in (
            (b"", "closed before"),
            (b"HTTP/1.1 200", "closed before"),
            (answer(b"abcdef")[:-3], "closed before"),
            (b"SMTP ready\r\n\r\n", "not HTTP"),
            (b"HTTP/1.1 banana\r\n\r\n", "not HTTP"),
            (b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n", "length"),
            (b"HTTP/1.1 200 OK\r\nContent-Length: 101\r\n\r\n", "larger than 100"),
            (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFFFF\r\n", "larger than 100"),
            (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"50\r\n" + b"x" * 80 + b"\r\n50\r\n", "larger than"),
            (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", "length"),
            (b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 200, "larger than 100"),
            (b"HTTP/1.1 200 OK\r\nX: " + b"x" * (2 * HEAD_BYTES_MAX) + b"\r\n\r\n", "head of the answer is larger"),
            (b"HTTP/1.1 100 Continue\r\n\r\n" * 20, "interim"),
        ):
            with self.subTest(given=given[:80]):
                with self.assertRaisesRegex(AnswerLost, told):
                    await self.send(await self.answers(given), response_bytes_max=100)

    async def test_nobody_there_means_that_nothing_was_sent(self) -> None:
        server = await self.answers()
        gone = Server(False, "127.0.0.1", 1)
        with self.assertRaises(NotSent):
            await self.send(gone)
        with self.assertRaises(NotSent):
            await self.send(Server(False, "no-such-host.invalid", 80))
        with self.assertRaises(AnswerLost):
            await self.send(server)

    async def test_silence_is_bounded(self) -> None:
        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()

        transport = HttpTransport()
        # A busy machine may not even connect in that time.
        with self.assertRaisesRegex((AnswerLost, NotSent), "no answer from .* within 0.05 s"):
            await transport.send(await self.serve(silent), Request("GET", "/", None, 0.05))
        await transport.close()


class Connections(Case):
    async def test_they_are_kept(self) -> None:
        server = await self.answers(*[answer(b"{}")] * 5)
        transport = HttpTransport()
        for _ in range(5):
            await transport.send(server, Request("GET", "/", None, 5.0))
        self.assertEqual(self.connections, 1)
        await transport.close()

    async def test_one_that_was_closed_meanwhile_is_replaced(self) -> None:
        async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await read_request(reader)
            writer.write(answer(b"{}"))
            await writer.drain()
            await reader.read(1)  # the next request is not answered

        server = await self.serve(once)
        transport = HttpTransport()
        for _ in range(3):
            self.assertEqual((await transport.send(server, Request("GET", "/", None, 5.0))).status, 200)
        self.assertEqual(self.connections, 3)
        await transport.close()

    async def test_one_that_may_be_closed_takes_no_request_that_is_sent_only_once(self) -> None:
        seen: list[bytes] = []

        async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            seen.append(await read_request(reader))
            writer.write(answer(b"{}"))
            await writer.drain()
            seen.append(await read_request(reader))  # and closes without an answer

        transport = HttpTransport()
        server = await self.serve(once)
        await transport.send(server, Request("GET", "/", None, 5.0))
        posted = Request("POST", "/", b"{}", 5.0, repeatable=False)
        self.assertEqual((await transport.send(server, posted)).status, 200)
        self.assertEqual([request[:4] for request in seen], [b"GET ", b"POST"])
        await transport.close()

    async def test_one_whose_request_was_cancelled_is_not_used_again(self) -> None:
        gates = [asyncio.Event(), asyncio.Event()]
        gates[1].set()

        async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            number = self.connections - 1
            await read_request(reader)
            await gates[number].wait()
            writer.write(answer(str(number).encode()))
            await writer.drain()

        server = await self.serve(handler)
        transport = HttpTransport()
        first = asyncio.ensure_future(transport.send(server, Request("GET", "/", None, 5.0)))

        async def is_there() -> bool:
            return self.connections > 0

        await wait_until("the request to come in", is_there)
        first.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await first
        gates[0].set()
        self.assertEqual((await transport.send(server, Request("GET", "/", None, 5.0))).body, b"1")
        await transport.close()

    async def test_within_does_not_swallow_a_cancellation(self) -> None:
        async def quick() -> str:
            return "done"

        waiting = asyncio.ensure_future(within(5.0, quick()))
        await asyncio.sleep(0)
        waiting.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await waiting


class Repeats(Case):
    async def test_only_what_is_safe_is_sent_twice(self) -> None:
        for method, repeatable, asked in (("POST", None, 1), ("POST", True, 2), ("GET", None, 2)):
            server = await self.serve(self.drop_first)
            self.seen = 0
            async with Client(str(server), retry_for=5.0) as client:
                if asked == 1:
                    with self.assertRaises(Unknown):
                        await client.request(method, "/x", repeatable=repeatable)
                else:
                    self.assertEqual(await client.request(method, "/x", repeatable=repeatable), {"n": 2})
            self.assertEqual(self.seen, asked)

    async def drop_first(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        self.seen += 1
        if self.seen > 1:
            writer.write(answer(b'{"n": 2}'))
            await writer.drain()

    async def test_what_was_not_done_is_asked_of_the_next(self) -> None:
        problem = b'{"code": "overloaded", "detail": "too much", "retry_after_ms": 10}'
        busy = await self.answers(answer(problem, status="503 Service Unavailable"))
        idle = await self.answers(answer(b'{"n": 1}'))
        async with Client([str(busy), str(idle)]) as client:
            self.assertEqual(await client.request("POST", "/x"), {"n": 1})

    async def test_a_server_that_is_none_of_ours_proves_nothing(self) -> None:
        server = await self.answers(answer(b"<html>", status="404 Not Found"), answer(b"not json"))
        async with Client(str(server), retry_for=0.0) as client:
            with self.assertRaisesRegex(Unknown, "without a problem document"):
                await client.request("GET", "/x")
            with self.assertRaisesRegex(Unknown, "not JSON"):
                await client.request("GET", "/x", repeatable=False)


class Problems(unittest.TestCase):
    def test_each_has_its_type(self) -> None:
        for status, code, kind in (
            (400, "invalid_field", BadRequest),
            (405, "method_not_allowed", BadRequest),
            (403, "quota_exceeded", Forbidden),
            (404, "no_session", NoSession),
            (404, "session_superseded", Superseded),
            (409, "held", Refused),
            (408, "request_timeout", Unavailable),
            (409, "lost", Refused),
            (410, "compacted", Compacted),
            (429, "too_many_requests", Unavailable),
            (500, "internal", Unknown),
            (503, "overloaded", Unavailable),
            (503, "unavailable", Unavailable),
            (503, "unknown_outcome", Unknown),
        ):
            error = from_answer("s", status, f'{{"code": "{code}", "detail": "d"}}'.encode())
            self.assertIs(type(error), kind, code)
            self.assertEqual((str(error), error.status), (f"{code}: d", status))

    def test_nonsense_is_no_proof(self) -> None:
        for body in (b"", b"[]", b"{}", b'{"code": 5}', b"[" * 100_000):
            self.assertIs(type(from_answer("s", 409, body)), Unknown)
        odd = from_answer("s", 409, b'{"code": "held", "token": "x", "retry_after_ms": -1, "errors": 5}')
        self.assertEqual((odd.token, odd.retry_after, odd.fields), (None, None, ()))


class Urls(unittest.TestCase):
    def test_good_ones(self) -> None:
        for url, shown in (
            ("http://127.0.0.1:7070", "http://127.0.0.1:7070"),
            ("https://solehold.example/", "https://solehold.example:443"),
            ("http://[::1]:80/base/", "http://[::1]:80/base"),
            ("127.0.0.1:7070", "http://127.0.0.1:7070"),
            ("[::1]:7070/", "http://[::1]:7070"),
        ):
            self.assertEqual(str(Server.parse(url)), shown)

    def test_bad_ones_are_named_without_their_secrets(self) -> None:
        odd = ("http://x:99999", "http://x?q=1", "http://x/\r\nX: y", "http://ü")
        for url in ("", "localhost", "x:port", "ftp://x", "http://", "http://[::1", *odd):
            with self.assertRaisesRegex(ValueError, "server .* give HOST:PORT or a URL, as in 127.0.0.1:7070"):
                Server.parse(url)
        for url in ("http://me:hunter2@x", "me:hunter2@x:7070", "http://me:hunter2@x:port"):
            with self.assertRaises(ValueError) as refused:
                Server.parse(url)
            self.assertNotIn("hunter2", str(refused.exception))

    def test_a_client_checks_what_it_is_given(self) -> None:
        with self.assertRaisesRegex(ValueError, "0 servers were given"):
            Client([])
        with self.assertRaisesRegex(ValueError, "a server is empty"):
            Client("http://x,")
        self.assertEqual(repr(Client(["a:1, https://b", "c:3"])), "Client(http://a:1, https://b:443, http://c:3)")
        with self.assertRaisesRegex(ValueError, "timeout"):
            Client("http://x", timeout=0)
        with self.assertRaisesRegex(ValueError, "newline") as refused:
            Client("http://x", key="secret\n")
        self.assertNotIn("secret", str(refused.exception))
