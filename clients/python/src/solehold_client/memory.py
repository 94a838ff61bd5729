"""The file in which a gate keeps its marks across restarts, in the same format as that of the Rust client.

One JSON object per line, appended and synced. A line that was cut off at the end by a crash was never relied on, and is
dropped; any other line that cannot be read is an error.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
from collections.abc import Sequence
from pathlib import Path

from .fence import Fence, Mark, Record

TITLE = '{"solehold_gate":1}\n'
# The file is replaced when it has more lines than this, and several per mark.
LINES_MIN = 10_000


class Memory:
    """The file, locked for as long as the gate is there. One gate per file.

    A thread that saves cannot be stopped, so closing waits for it: a descriptor that was closed may be another file's.
    """

    def __init__(self, path: str | os.PathLike[str], tenant: str) -> None:
        self._path = Path(path)
        self._tenant = tenant
        self._lock = open(f"{self._path}.lock", "ab")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.close()
            raise ValueError(f"the gate's memory {path} is in use by another gate: give each gate a file of its own") from error
        self._file = open(self._path, "a+b")
        self._lines = 0
        self._in_use = threading.Lock()

    def restore(self, fence: Fence) -> None:
        """Takes over what the file says, and writes it anew."""
        self._file.seek(0)
        # Bytes: a string is also split at characters that a key may have, such as U+2028.
        lines = [line.decode(errors="replace") for line in self._file.read().splitlines(keepends=True)]
        if lines and lines[0] != TITLE:
            raise self._damaged(1)
        for number, line in enumerate(lines[1:], 2):
            record = _decode(line)
            if record is None:
                if number == len(lines):
                    break
                raise self._damaged(number)
            fence.restore(record)
        self._replace(fence.records())

    def _damaged(self, line: int) -> ValueError:
        told = "restore the file, or remove it and lose the marks"
        return ValueError(f"line {line} of the gate's memory {self._path} cannot be read: {told}")

    def is_long(self, marks: int) -> bool:
        """Whether the file has grown to several lines per mark, and is better replaced."""
        return self._lines > max(LINES_MIN, 4 * marks)

    def save(self, records: Sequence[Record], whole: Sequence[Record] | None) -> None:
        """Saves records, or replaces the file by everything. Blocks."""
        with self._in_use:
            if self._lock.closed:
                raise ValueError(f"the gate's memory {self._path} was closed")
            if whole is not None:
                return self._replace(whole)
            self._write(self._file.fileno(), "".join(self._encode(record) for record in records))
            self._lines += len(records)

    def _replace(self, records: Sequence[Record]) -> None:
        path = Path(f"{self._path}.new")
        file = open(path, "w+b")
        try:
            self._write(file.fileno(), TITLE + "".join(self._encode(record) for record in records))
            os.replace(path, self._path)
            folder = os.open(self._path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except BaseException:
            file.close()
            raise
        self._file.close()
        self._file, self._lines = file, len(records)

    @staticmethod
    def _write(file: int, text: str) -> None:
        end = os.lseek(file, 0, os.SEEK_END)
        try:
            rest = memoryview(text.encode())
            while rest:
                rest = rest[os.write(file, rest) :]
            os.fsync(file)
        except OSError:
            os.ftruncate(file, end)
            raise

    def _encode(self, record: Record) -> str:
        if record.epoch is not None:
            line: dict[str, object] = {"epoch": record.epoch}
        elif record.floor is not None:
            line = {"floor": record.floor}
        else:
            assert record.key is not None and record.mark is not None
            kind, key, slot = record.key
            mark: dict[str, object] = {"token": record.mark.token, "session": record.mark.session}
            mark.update(tenant=self._tenant, kind=kind, key=key, **({"slot": slot} if slot else {}))
            line = {"mark": mark}
        return json.dumps(line, separators=(",", ":")) + "\n"

    def close(self) -> None:
        """Lets another gate have the file, when what is being saved is saved. Blocks."""
        with self._in_use:
            self._file.close()
            self._lock.close()


def _decode(line: str) -> Record | None:
    """What a line says; None if it cannot be read."""
    try:
        if not line.endswith("\n"):
            return None
        value = json.loads(line)
        if "mark" not in value:
            return Record(floor=value.get("floor"), epoch=value.get("epoch")) if value else None
        mark = value["mark"]
        key = (mark["kind"], mark["key"], int(mark.get("slot") or 0))
        return Record(key=key, mark=Mark(int(mark["token"]), mark["session"]))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
