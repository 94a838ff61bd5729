"""Server-sent events: bytes, however they are cut, to frames. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from .limits import FRAME_BYTES_MAX


@dataclass(frozen=True)
class Frame:
    """One frame of a stream."""

    event: str
    data: str


class Decoder:
    """Reads a stream that comes in pieces, with lines that end in any of the three ways.

    >>> decoder = Decoder()
    >>> decoder.push(b": hello\\n\\nevent: note\\nid: 1.7\\ndata: two\\nda")
    []
    >>> decoder.push(b"ta: lines\\r\\n\\r\\n")
    [Frame(event='note', data='two\\nlines')]
    """

    def __init__(self) -> None:
        self._rest = b""
        self._event = "message"
        self._data: list[str] = []
        self._size = 0

    def push(self, piece: bytes) -> list[Frame]:
        """Takes in a piece; gives the frames that it completes. One that is too large raises `ValueError`."""
        text = self._rest + piece
        # A carriage return at the end may be half of a line's end.
        whole = text[:-1] if text.endswith(b"\r") else text
        *lines, rest = whole.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._rest = rest + text[len(whole) :]
        frames = []
        for line in lines:
            self._size += len(line)
            self._check(self._size)
            if line:
                self._take(line.decode(errors="replace"))
            else:
                frames += self._end()
        self._check(self._size + len(self._rest))
        return frames

    def _check(self, size: int) -> None:
        if size > FRAME_BYTES_MAX:
            raise ValueError(f"a frame of the stream has more than {FRAME_BYTES_MAX} bytes")

    def _take(self, line: str) -> None:
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            self._event = value
        elif field == "data":
            self._data.append(value)

    def _end(self) -> list[Frame]:
        frames = [Frame(self._event, "\n".join(self._data))] if self._data else []
        self._event, self._data, self._size = "message", [], 0
        return frames
