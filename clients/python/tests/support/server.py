"""Real servers, private: a free loopback port, a temporary folder, ended by pid."""

from __future__ import annotations

import asyncio
import ctypes
import glob
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[4]
START_SECONDS_MAX = 60.0
LISTENING = "solehold listening on "


def binary() -> str:
    """The program under test: `SOLEHOLD_BIN`, else what cargo built last for tests, else for release."""
    if given := os.environ.get("SOLEHOLD_BIN"):
        return given
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    for profile in ("debug", "release"):
        if (built := target / profile / "solehold").is_file():
            return str(built)
    raise RuntimeError(f"there is no solehold in {target}: run `cargo build -p solehold`, or set SOLEHOLD_BIN")


def wait_for(what: str, condition: Callable[[], bool], seconds: float = START_SECONDS_MAX) -> None:
    """Waits until it is so. The time is a bound for a broken test, not a measure."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            raise AssertionError(f"not within {seconds:g} s: {what}")
        time.sleep(0.01)


async def wait_until(what: str, condition: Callable[[], Awaitable[bool]], seconds: float = START_SECONDS_MAX) -> None:
    """The same in an event loop, which goes on meanwhile."""
    until = time.monotonic() + seconds
    while not await condition():
        if time.monotonic() > until:
            raise AssertionError(f"not within {seconds:g} s: {what}")
        await asyncio.sleep(0.01)


def free_port() -> int:
    """A port that was free just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def die_with_parent() -> None:
    """For `preexec_fn`: a server does not outlive a test run that was killed."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


class Process:
    """A program with its output, and the signals that tests send it."""

    def __init__(self, command: list[str], *, env: dict[str, str] | None = None, user: int | None = None) -> None:
        ours = {name: value for name, value in os.environ.items() if not name.startswith("SOLEHOLD_")}
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**ours, **(env or {})},
            text=True,
            user=user,
            group=None if user is None else pwd.getpwuid(user).pw_gid,
            extra_groups=None if user is None else [],
            preexec_fn=die_with_parent,
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(line.rstrip("\n"))

    def wait_line(self, prefix: str) -> str:
        """The rest of the first line that begins so."""

        def seen() -> bool:
            if self._process.poll() is not None and not self._reader.is_alive() and not found():
                raise AssertionError(f"{self._process.args!r} ended:\n" + "\n".join(self.lines[-30:]))
            return bool(found())

        def found() -> list[str]:
            return [line for line in self.lines if line.startswith(prefix)]

        wait_for(f"a line that begins with {prefix!r}", seen)
        return found()[0].removeprefix(prefix)

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait(self) -> int:
        code = self._process.wait(START_SECONDS_MAX)
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()
        return code

    def end(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Ends it and waits until it has ended."""
        if self._process.poll() is None:
            self.send(signal.SIGCONT)
            self.send(number)
        self.wait()


class Solehold:
    """A running `solehold serve`."""

    def __init__(self, *args: str, port: int = 0, data_dir: str | None = None) -> None:
        self._folder = tempfile.mkdtemp(prefix="solehold-python-")
        self.data_dir = data_dir or f"{self._folder}/data"
        store = [] if "--engine" in args else ["--data-dir", self.data_dir]
        self.process = Process([binary(), "serve", "--listen", f"127.0.0.1:{port}", *store, *args])
        try:
            self.url = self.process.wait_line(LISTENING).split(" ")[0]
        except BaseException:
            self.stop()
            raise

    def kill(self) -> None:
        """SIGKILL; the data stays."""
        self.process.end()

    def stop(self) -> None:
        """SIGKILL, and the data goes."""
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)


class Postgres:
    """A private PostgreSQL, durable as the server wants it."""

    @staticmethod
    def programs() -> str | None:
        """The folder of its programs, if it is installed."""
        found = sorted(glob.glob("/usr/lib/postgresql/*/bin/postgres"), key=lambda path: int(path.split("/")[4]))
        return os.path.dirname(found[-1]) if found else None

    def __init__(self) -> None:
        programs = self.programs()
        assert programs is not None, "PostgreSQL is not installed"
        self._folder = tempfile.mkdtemp(prefix="solehold-python-pg-")
        user = _postgres_user()
        if user is not None:
            os.chown(self._folder, user, -1)
        data, port = f"{self._folder}/data", free_port()
        made = Process([f"{programs}/initdb", "-D", data, "-U", "postgres", "-A", "trust", "-N", "--locale=C.UTF-8"], user=user)
        if made.wait() != 0:
            raise AssertionError("initdb failed:\n" + "\n".join(made.lines))
        settings = {"listen_addresses": "127.0.0.1", "unix_socket_directories": "", "dynamic_shared_memory_type": "mmap"}
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        self._process = Process([f"{programs}/postgres", "-D", data, "-p", str(port), *options], user=user)
        self.url = f"postgres://postgres@127.0.0.1:{port}/postgres"

        def ready() -> bool:
            with open(f"{data}/postmaster.pid") as file:
                lines = file.read().splitlines()
            return len(lines) > 7 and lines[7].strip() == "ready"

        wait_for("PostgreSQL to be ready", lambda: os.path.exists(f"{data}/postmaster.pid") and ready())

    def stop(self) -> None:
        self._process.end(signal.SIGINT)
        shutil.rmtree(self._folder, ignore_errors=True)


def _postgres_user() -> int | None:
    """PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam("postgres").pw_uid
    except KeyError:
        return pwd.getpwnam("nobody").pw_uid


def python(script: str, *args: str) -> Process:
    """A Python program over this client, in a process of its own."""
    env = {"PYTHONPATH": str(ROOT / "clients/python/src"), "PYTHONUNBUFFERED": "1"}
    return Process([sys.executable, script, *args], env=env)
