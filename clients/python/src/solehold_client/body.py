"""The body of an answer, read piece by piece or whole."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Literal

from .limits import PIECE_BYTES_MAX


class Body:
    """What follows the head of an answer."""

    def __init__(self, reader: asyncio.StreamReader, headers: Mapping[str, str], *, is_empty: bool = False) -> None:
        self._reader = reader
        self._is_chunked = "chunked" in headers.get("transfer-encoding", "").lower()
        self._is_over = is_empty
        length = headers.get("content-length")
        # How much is left of the body, or of its present chunk; infinite where the connection's end is the body's.
        self._left: float = 0 if self._is_chunked else float("inf") if length is None else _length(length, 10)
        self._awaited: Literal["size", "end", "trailers"] = "size"

    @property
    def ends_connection(self) -> bool:
        """Whether nothing but the end of the connection ends it."""
        return not self._is_over and self._left == float("inf")

    async def read(self) -> bytes:
        """The next piece; empty at the end."""
        await self._begin_piece()
        if self._is_over:
            return b""
        piece = await self._reader.read(int(min(self._left, PIECE_BYTES_MAX)))
        if not piece:
            if self._left == float("inf"):
                self._is_over = True
                return b""
            raise asyncio.IncompleteReadError(b"", None)
        self._left -= len(piece)
        return piece

    async def read_whole(self, bytes_max: int) -> bytes:
        """All of it, if it is not too large."""
        body = bytearray()
        while True:
            await self._begin_piece()
            if self._left != float("inf") and len(body) + self._left > bytes_max:
                raise ValueError(f"the answer is larger than {bytes_max} bytes")
            piece = await self.read()
            if not piece:
                return bytes(body)
            body += piece
            if len(body) > bytes_max:
                raise ValueError(f"the answer is larger than {bytes_max} bytes")

    async def _begin_piece(self) -> None:
        """Reads what stands between two chunks."""
        while not self._is_over and self._left == 0:
            if not self._is_chunked:
                self._is_over = True
                return
            line = await self._reader.readuntil(b"\r\n")
            if self._awaited == "size":
                self._left = _length(line.partition(b";")[0].decode("latin-1").strip(), 16)
                self._awaited = "end" if self._left else "trailers"
            elif self._awaited == "trailers":
                self._is_over = line == b"\r\n"
            elif line == b"\r\n":
                self._awaited = "size"
            else:
                raise ValueError("a chunk of the answer does not end where it says")


def _length(text: str, radix: int) -> int:
    try:
        length = int(text, radix)
    except ValueError:
        length = -1
    if length < 0:
        raise ValueError("the answer does not say its length")
    return length
