"""HTTP/1.1 over asyncio's streams: kept-alive connections, TLS, bounds, and what a failure means for the outcome.

Everything that this client sends may be sent again (by request id, token, lease id or session id), so a kept connection that
turns out to be closed is replaced, once, by a new one.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

from .limits import CONNECT_SECONDS_MAX, HEAD_BYTES_MAX, IDLE_CONNECTIONS_MAX, INTERIM_ANSWERS_MAX, RESPONSE_BYTES_MAX

T = TypeVar("T")


class NotSent(Exception):
    """The request did not leave: nothing was done."""


class AnswerLost(Exception):
    """The request left, and no complete answer came: it is unknown whether it was done."""


@dataclass(frozen=True)
class Server:
    """One server, from its URL."""

    secure: bool
    host: str
    port: int
    base: str = ""

    @staticmethod
    def parse(url: str) -> Server:
        """Takes `http://host:port`, `https://host`, or either with a path that stands before `/api/v1`."""
        right = "give something like http://127.0.0.1:7070"
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"the server URL {_shown(url)} is not http or https with a host: {right}")
        if parts.username is not None or parts.query or parts.fragment:
            raise ValueError(f"the server URL {_shown(url)} has a user, query or fragment: {right}; the key is given as `key`")
        try:
            port = parts.port
        except ValueError as error:
            raise ValueError(f"the server URL {_shown(url)} has no port from 1 to 65535: {right}") from error
        if any(ord(char) <= 32 or ord(char) > 126 for char in url):
            raise ValueError(f"the server URL {_shown(url)} has characters that are not plain: {right}")
        secure = parts.scheme == "https"
        return Server(secure, parts.hostname, port or (443 if secure else 80), parts.path.rstrip("/"))

    @property
    def authority(self) -> str:
        """Host and port."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        return f"{'https' if self.secure else 'http'}://{self.authority}{self.base}"


def _shown(url: str) -> str:
    """A URL without what may be a password."""
    scheme, separator, rest = url.partition("://")
    return repr(scheme + separator + rest.rpartition("@")[2])


@dataclass(frozen=True)
class Request:
    """A request to a server."""

    method: str
    target: str
    """Path and query, escaped, below the server's base."""
    body: bytes | None
    timeout: float
    """Seconds until the answer counts as lost."""


@dataclass(frozen=True)
class Response:
    """The answer of a server. Names of headers are in lower case."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


class Transport(Protocol):
    """Sends requests to servers. An argument, so that the network can be simulated."""

    async def send(self, server: Server, request: Request) -> Response:
        """Sends it and reads the answer, or raises `NotSent` or `AnswerLost`."""

    async def close(self) -> None:
        """Closes its connections."""


async def within(seconds: float, work: Coroutine[Any, Any, T]) -> T:
    """The result of the work, or `TimeoutError`. Unlike older `asyncio.wait_for`, it never swallows a cancellation."""
    task = asyncio.ensure_future(work)
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
        if done:
            return task.result()
        raise asyncio.TimeoutError
    finally:
        if not task.done():
            task.cancel()
            # The work only closes what it opened; it is awaited so that nothing is left behind.
            await asyncio.wait({task})
        elif not task.cancelled():
            task.exception()


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def usable(self) -> bool:
        return not self.reader.at_eof() and not self.writer.is_closing()

    def close(self) -> None:
        # A closing TLS connection waits for the peer's closing message, which is not needed here.
        self.writer.transport.abort()


class _Unanswered(Exception):
    """The connection ended before the first byte of an answer."""


@dataclass
class _Progress:
    left: bool = False
    """Whether anything of the request may have left."""


class HttpTransport:
    """Connections to any number of servers, kept while they are useful."""

    def __init__(
        self,
        *,
        headers: Mapping[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
        response_bytes_max: int = RESPONSE_BYTES_MAX,
        idle_max: int = IDLE_CONNECTIONS_MAX,
    ) -> None:
        self._headers = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
        self._tls = tls
        self._response_bytes_max = response_bytes_max
        self._idle_max = idle_max
        self._idle: dict[Server, list[_Connection]] = {}
        self._closed = False

    async def send(self, server: Server, request: Request) -> Response:
        progress = _Progress()
        try:
            return await within(request.timeout, self._send(server, request, progress))
        except asyncio.TimeoutError as error:
            failed = AnswerLost if progress.left else NotSent
            raise failed(f"{server}: no answer within {request.timeout:.3g} s") from error
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError, _Unanswered) as error:
            failed = AnswerLost if progress.left else NotSent
            raise failed(f"{server}: {_told(error)}") from error

    async def close(self) -> None:
        self._closed = True
        for connection in [kept for idle in self._idle.values() for kept in idle]:
            connection.close()
        self._idle.clear()
        # Aborted sockets are closed in the loop's next round.
        await asyncio.sleep(0)

    async def _send(self, server: Server, request: Request, progress: _Progress) -> Response:
        kept = self._take(server)
        if kept is not None:
            try:
                return await self._exchange(server, kept, request, progress)
            except (OSError, _Unanswered):
                pass  # the server had closed it
        return await self._exchange(server, await self._connect(server), request, progress)

    def _take(self, server: Server) -> _Connection | None:
        idle = self._idle.get(server, [])
        while idle:
            connection = idle.pop()
            if connection.usable():
                return connection
            connection.close()
        return None

    async def _connect(self, server: Server) -> _Connection:
        tls = None
        if server.secure:
            self._tls = tls = self._tls or ssl.create_default_context()
        opened: list[_Connection] = []

        async def opening() -> None:
            opened.append(_Connection(*await asyncio.open_connection(server.host, server.port, ssl=tls, limit=HEAD_BYTES_MAX)))

        try:
            await within(CONNECT_SECONDS_MAX, opening())
            return opened.pop()
        except asyncio.TimeoutError as error:
            raise ConnectionError(f"no connection within {CONNECT_SECONDS_MAX:.3g} s") from error
        finally:
            for unused in opened:  # cancelled in the moment that it was open
                unused.close()

    async def _exchange(self, server: Server, connection: _Connection, request: Request, progress: _Progress) -> Response:
        keep = False
        try:
            progress.left = True
            connection.writer.write(self._encode(server, request))
            await connection.writer.drain()
            response, keep = await _read_response(connection.reader, request.method, self._response_bytes_max)
            return response
        finally:
            idle = self._idle.setdefault(server, [])
            if keep and not self._closed and connection.usable() and len(idle) < self._idle_max:
                idle.append(connection)
            else:
                connection.close()

    def _encode(self, server: Server, request: Request) -> bytes:
        head = f"{request.method} {server.base}{request.target} HTTP/1.1\r\nhost: {server.authority}\r\n{self._headers}"
        if request.body is not None:
            head += f"content-type: application/json\r\ncontent-length: {len(request.body)}\r\n"
        return f"{head}\r\n".encode("ascii") + (request.body or b"")


def _told(error: Exception) -> str:
    if isinstance(error, (_Unanswered, asyncio.IncompleteReadError)):
        return "the connection was closed before the answer was whole"
    return str(error) or type(error).__name__


async def _read_response(reader: asyncio.StreamReader, method: str, bytes_max: int) -> tuple[Response, bool]:
    """The answer, and whether the connection can be used again."""
    for _ in range(INTERIM_ANSWERS_MAX):
        version, status, headers = await _read_head(reader)
        if status >= 200:
            break
    else:
        raise ValueError(f"more than {INTERIM_ANSWERS_MAX} interim answers")
    keep = version == "HTTP/1.1" and "close" not in headers.get("connection", "").lower()
    if method == "HEAD" or status in (204, 304):
        return Response(status, b"", headers), keep
    if "chunked" in headers.get("transfer-encoding", "").lower():
        return Response(status, await _read_chunks(reader, bytes_max), headers), keep
    if (length := headers.get("content-length")) is not None:
        return Response(status, await reader.readexactly(_length(length, 10, bytes_max)), headers), keep
    return Response(status, await _read_rest(reader, bytes_max), headers), False


async def _read_head(reader: asyncio.StreamReader) -> tuple[str, int, dict[str, str]]:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError as error:
        raise ValueError(f"the head of the answer is larger than {HEAD_BYTES_MAX} bytes") from error
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise
        raise _Unanswered from error
    first, *lines = head.decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    code = rest.partition(" ")[0]
    if not version.startswith("HTTP/1.") or not (len(code) == 3 and code.isdecimal()):
        raise ValueError("the answer is not HTTP/1.1")
    pairs = (line.partition(":") for line in lines if line)
    return version, int(code), {name.strip().lower(): value.strip() for name, _, value in pairs}


def _length(text: str, radix: int, bytes_max: int) -> int:
    try:
        length = int(text, radix)
    except ValueError:
        length = -1
    if length < 0:
        raise ValueError("the answer does not say its length")
    if length > bytes_max:
        raise ValueError(f"the answer is larger than {bytes_max} bytes")
    return length


async def _read_chunks(reader: asyncio.StreamReader, bytes_max: int) -> bytes:
    body = bytearray()
    while True:
        size = (await reader.readuntil(b"\r\n")).partition(b";")[0]
        length = _length(size.decode("latin-1").strip(), 16, bytes_max - len(body))
        if length == 0:
            break
        body += await reader.readexactly(length)
        if await reader.readexactly(2) != b"\r\n":
            raise ValueError("a chunk of the answer does not end where it says")
    while await reader.readuntil(b"\r\n") != b"\r\n":
        pass  # trailers
    return bytes(body)


async def _read_rest(reader: asyncio.StreamReader, bytes_max: int) -> bytes:
    body = bytearray()
    while part := await reader.read(64 * 1024):
        body += part
        if len(body) > bytes_max:
            raise ValueError(f"the answer is larger than {bytes_max} bytes")
    return bytes(body)
