"""HTTP/1.1 over asyncio's streams: kept-alive connections, TLS, bounds, and what a failure means for the outcome.

Everything that this client sends may be sent again (by request id, token, lease id or session id), so a kept connection that
turns out to be closed is replaced, once, by a new one.
"""

from __future__ import annotations

import asyncio
import ssl
import weakref
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

from . import trace
from .body import Body
from .limits import (
    CONNECT_SECONDS_MAX,
    HEAD_BYTES_MAX,
    IDLE_CONNECTIONS_MAX,
    INTERIM_ANSWERS_MAX,
    RESPONSE_BYTES_MAX,
    SILENCE_SECONDS_MAX,
)

T = TypeVar("T")

# How TLS says that it did not understand.
_TLS_ALERT = b"\x15\x03"
# What OpenSSL says, by version, of an answer that is no TLS.
_PLAIN_REASONS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST")


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
        """Takes `HOST:PORT` for plain HTTP, or a URL, which may have a path that stands before `/api/v1`."""
        right = "give HOST:PORT or a URL, as in 127.0.0.1:7070 or https://solehold.example:7070"
        if not url:
            raise ValueError(f"a server is empty: {right}, with commas between several")
        is_bare = "://" not in url
        try:
            parts = urlsplit(f"http://{url}" if is_bare else url)
            port = parts.port
        except ValueError as error:
            raise ValueError(f"the server {_shown(url)} is not right ({error}): {right}") from error
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"the server {_shown(url)} is not http or https with a host: {right}")
        if parts.username is not None or parts.query or parts.fragment:
            raise ValueError(f"the server {_shown(url)} has a user, query or fragment: {right}; the key is given as `key`")
        if is_bare and port is None:
            raise ValueError(f"the server {_shown(url)} has no port: {right}")
        if any(ord(char) <= 32 or ord(char) > 126 for char in url):
            raise ValueError(f"the server {_shown(url)} has characters that are not plain: {right}")
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
    scheme, separator, rest = url.partition("://") if "://" in url else ("", "", url)
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
    opens: str | None = None
    """The id of the session that it opens."""
    repeatable: bool = True
    """Whether it may be sent again if the connection ends without an answer."""


@dataclass(frozen=True)
class Response:
    """The answer of a server. Names of headers are in lower case."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


class Stream(Protocol):
    """An answer whose body is read while it is being written."""

    status: int

    async def read(self) -> bytes:
        """The next piece of the body, empty at its end, or raises `AnswerLost`."""

    def close(self) -> None:
        """Closes its connection."""


class Transport(Protocol):
    """Sends requests to servers. An argument, so that the network can be simulated."""

    async def send(self, server: Server, request: Request) -> Response:
        """Sends it and reads the answer, or raises `NotSent` or `AnswerLost`."""

    async def stream(self, server: Server, request: Request) -> Stream:
        """Sends it and reads the head of the answer, or raises `NotSent` or `AnswerLost`."""

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


class _SpeaksTls(ValueError):
    """The answer to a plain request is a TLS alert."""


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
        traceparent: Callable[[], str | None] = trace.of_opentelemetry,
    ) -> None:
        self._headers = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
        self._tls = tls
        self._response_bytes_max = response_bytes_max
        self._idle_max = idle_max
        self._traceparent = traceparent
        self._idle: dict[Server, list[_Connection]] = {}
        self._streaming: weakref.WeakSet[_Connection] = weakref.WeakSet()
        self._closed = False

    async def send(self, server: Server, request: Request) -> Response:
        progress = _Progress()
        with _failures(server, progress, request.timeout):
            return await within(request.timeout, self._send(server, request, progress))

    async def stream(self, server: Server, request: Request) -> Stream:
        progress = _Progress()
        with _failures(server, progress, request.timeout):
            return await within(request.timeout, self._stream(server, request, progress))

    async def close(self) -> None:
        self._closed = True
        for connection in [*self._streaming, *(kept for idle in self._idle.values() for kept in idle)]:
            connection.close()
        self._idle.clear()
        # Aborted sockets are closed in the loop's next round.
        await asyncio.sleep(0)

    async def _stream(self, server: Server, request: Request, progress: _Progress) -> Stream:
        """On a connection of its own: one that was kept has nothing to offer to a request that lasts."""
        connection = await self._connect(server)
        self._streaming.add(connection)
        try:
            progress.left = True
            connection.writer.write(self._encode(server, request))
            await connection.writer.drain()
            status, _, body, _ = await _read_answer(connection.reader, request.method)
        except BaseException:
            connection.close()
            raise
        return _HttpStream(server, status, body, connection)

    async def _send(self, server: Server, request: Request, progress: _Progress) -> Response:
        # A connection that was kept may end without an answer, and what was sent on it may have been done all the same.
        kept = self._take(server) if request.repeatable else None
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
            status, headers, body, can_keep = await _read_answer(connection.reader, request.method)
            response = Response(status, await body.read_whole(self._response_bytes_max), headers)
            keep = can_keep
            return response
        finally:
            idle = self._idle.setdefault(server, [])
            if keep and not self._closed and connection.usable() and len(idle) < self._idle_max:
                idle.append(connection)
            else:
                connection.close()

    def _encode(self, server: Server, request: Request) -> bytes:
        head = f"{request.method} {server.base}{request.target} HTTP/1.1\r\nhost: {server.authority}\r\n{self._headers}"
        head += trace.header(self._traceparent)
        if request.opens is not None:
            head += f"idempotency-key: {request.opens}\r\n"
        if request.body is not None:
            head += f"content-type: application/json\r\ncontent-length: {len(request.body)}\r\n"
        return f"{head}\r\n".encode("ascii") + (request.body or b"")


class _HttpStream:
    """A stream on a connection of its own, which ends with it, even if it is dropped."""

    def __init__(self, server: Server, status: int, body: Body, connection: _Connection) -> None:
        self.status = status
        self._server = server
        self._body = body
        self._connection = connection
        self._dropped = weakref.finalize(self, _abandon, asyncio.get_running_loop(), connection)
        self._dropped.atexit = False

    async def read(self) -> bytes:
        with _failures(self._server, _Progress(left=True), SILENCE_SECONDS_MAX):
            return await within(SILENCE_SECONDS_MAX, self._body.read())

    def close(self) -> None:
        self._dropped.detach()
        self._connection.close()


def _abandon(loop: asyncio.AbstractEventLoop, connection: _Connection) -> None:
    """Perhaps in another thread, perhaps after the loop."""
    if not loop.is_closed():
        with suppress(RuntimeError):  # it was closed meanwhile
            loop.call_soon_threadsafe(connection.close)


@contextmanager
def _failures(server: Server, progress: _Progress, seconds: float) -> Iterator[None]:
    """Says what a failure means for the outcome, which server it was, and what would be right."""
    try:
        yield
    except asyncio.TimeoutError as error:
        failed = AnswerLost if progress.left else NotSent
        raise failed(f"no answer from {server} within {seconds:.3g} s") from error
    except (OSError, EOFError, ValueError, asyncio.LimitOverrunError, _Unanswered) as error:
        if told := _not_understood(server, error):
            raise NotSent(told) from error
        if progress.left:
            raise AnswerLost(_lost(server, error)) from error
        reason = "connection refused" if isinstance(error, ConnectionRefusedError) else str(error) or type(error).__name__
        raise NotSent(f"no server at {server} ({reason})") from error


def _not_understood(server: Server, error: Exception) -> str | None:
    """What is wrong about a connection that both ends have not agreed on: nothing was done by it."""
    if isinstance(error, _SpeaksTls):
        return f"{server}: this port speaks TLS; write https://{server.authority}"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate of {server} is not trusted ({error.verify_message}): give `tls` a context that trusts it"
    if isinstance(error, ssl.SSLError) and error.reason in _PLAIN_REASONS:
        return f"{server}: this port speaks plain HTTP; write http://{server.authority}"
    return None


def _lost(server: Server, error: Exception) -> str:
    if isinstance(error, (_Unanswered, asyncio.IncompleteReadError)):
        return f"the connection to {server} was closed before the answer was whole"
    return f"{server}: {error or type(error).__name__}"


async def _read_answer(reader: asyncio.StreamReader, method: str) -> tuple[int, dict[str, str], Body, bool]:
    """Status, headers and body of the answer, and whether the connection can be used again afterwards."""
    for _ in range(INTERIM_ANSWERS_MAX):
        version, status, headers = await _read_head(reader)
        if status >= 200:
            break
    else:
        raise ValueError(f"more than {INTERIM_ANSWERS_MAX} interim answers")
    body = Body(reader, headers, is_empty=method == "HEAD" or status in (204, 304))
    is_kept = version == "HTTP/1.1" and "close" not in headers.get("connection", "").lower()
    return status, headers, body, is_kept and not body.ends_connection


async def _read_head(reader: asyncio.StreamReader) -> tuple[str, int, dict[str, str]]:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError as error:
        raise ValueError(f"the head of the answer is larger than {HEAD_BYTES_MAX} bytes") from error
    except asyncio.IncompleteReadError as error:
        if error.partial.startswith(_TLS_ALERT):
            raise _SpeaksTls from error
        if error.partial:
            raise
        raise _Unanswered from error
    first, *lines = head.decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    code = rest.partition(" ")[0]
    if not version.startswith("HTTP/1.") or not (len(code) == 3 and code.isdecimal()):
        raise ValueError("the answer is not HTTP/1.1: is it a Solehold server?")
    pairs = (line.partition(":") for line in lines if line)
    return version, int(code), {name.strip().lower(): value.strip() for name, _, value in pairs}
