"""Runs the commands of a page one after another in one shell, beside a server of its own, and keeps what they print."""

import os
import re
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# The ports that the documents name: of the server, of one that takes over, of a gate, of a service. Free ones are used.
PORTS = ["7070", "7071", "7080", "8000"]
# The folder that they name.
FOLDER = "/tmp/try"
SECONDS_MAX = 60
# Around what a command prints, and behind its code. What programs in the background print later is in between.
BEGIN, END, AFTER = "\x01", "\x02", "\x03"


def binary():
    if given := os.environ.get("SOLEHOLD_BIN"):
        return given
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    for profile in ("debug", "release"):
        if (built := target / profile / "solehold").is_file():
            return str(built)
    raise SystemExit(f"there is no solehold in {target}: run `cargo build --workspace --bins`, or set SOLEHOLD_BIN")


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


def run(blocks):
    """Runs the blocks of a page; returns each command with its output and code, and what went wrong with all."""
    with tempfile.TemporaryDirectory(prefix="solehold-snippets-") as folder:
        ports = {port: free_port() for port in PORTS}
        path = Path(folder) / "bin"
        path.mkdir()
        os.symlink(os.path.abspath(binary()), path / "solehold")
        work = Path(folder) / "work"
        work.mkdir()
        env = {name: value for name, value in os.environ.items() if not name.upper().endswith("_PROXY")}
        env = {name: value for name, value in env.items() if not name.startswith("SOLEHOLD_")}
        env.update(PATH=f"{path}:{env['PATH']}", HOME=str(work), LC_ALL="C.UTF-8", HOSTNAME="host-1")
        server = f"127.0.0.1:{ports[PORTS[0]]}"
        env.update(SOLEHOLD_SERVER=server, SOLEHOLD_LISTEN=server)
        texts = [command.text for block in blocks for command in block.commands]
        serves = any("solehold serve" in text and "--listen" not in text for text in texts)
        text, order = script_of(blocks, not serves)
        script = Path(folder) / "script"
        script.write_text(replaced(text, ports).replace(FOLDER, str(work)))
        # A file and not a pipe: programs in the background keep it open.
        output = Path(folder) / "output"
        with output.open("wb") as writer:
            shell = subprocess.Popen(
                ["bash", script], cwd=work, env=env, stdin=subprocess.DEVNULL, stdout=writer, stderr=writer,
                start_new_session=True,
            )
            problem = None
            try:
                shell.wait(SECONDS_MAX)
            except subprocess.TimeoutExpired:
                problem = f"its commands do not end within {SECONDS_MAX} s"
            finally:
                end(shell)
        text = output.read_text(errors="replace").replace(str(work), FOLDER)
        # What the shell says of programs in the background that were killed.
        text = re.sub(rf"{re.escape(str(script))}: line \d+: +\d+ \w+ .*\n", "", text)
        text = replaced(text, {used: port for port, used in ports.items()})
    found = re.findall(f"{BEGIN}(.*?){END}(\\d+){AFTER}", text, re.DOTALL)
    results = [(command, printed.strip("\n").splitlines(), int(code)) for command, (printed, code) in zip(order, found)]
    if problem is None and len(results) < len(order):
        problem = f"the shell ended before {order[len(results)].text!r}:\n{text[-2000:]}"
    return results, problem


def replaced(text, ports):
    return re.sub(rf"\b({'|'.join(ports)})\b", lambda port: ports[port.group()], text)


def script_of(blocks, needs_server):
    """A script that tells apart what its commands print. Each finds the code of the one before it in `$?`."""
    lines = ["shopt -s expand_aliases", "code=0"]
    if needs_server:
        lines.append("solehold serve > server.log 2>&1 &")
        lines.append("until solehold health > health.log 2>&1; do sleep 0.1; done")
    order = []
    for block in blocks:
        if first := block.marks.get("first"):
            lines.append(f"{{ {first}\n}} > first.log 2>&1")
        for command in block.commands:
            # A script ends with its first failure, and the shell with it. What a console shows may well fail.
            text = command.text if block.language == "console" else f"set -e\n{command.text}\nset +e"
            lines.append(f"printf '{BEGIN}'; (exit $code)\n{text}\ncode=$?; printf '{END}%s{AFTER}' $code")
            order.append(command)
    return "\n".join(lines) + "\n", order


def end(shell):
    """Ends everything that the shell has started."""
    for ending in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(shell.pid, ending)
        except ProcessLookupError:
            break
        until = time.monotonic() + 3
        while time.monotonic() < until and is_there(shell.pid):
            shell.poll()
            time.sleep(0.02)
    shell.wait()


def is_there(group):
    try:
        os.killpg(group, 0)
        return True
    except ProcessLookupError:
        return False


# What differs from run to run: ids, times, how long something took, process numbers.
VARYING = [
    (r"shk_[0-9a-f]+_[0-9a-f]+", "KEY"),
    (r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", "ID"),
    (r"\b[0-9a-f]{16}\b", "ID"),
    (r"\b20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", "TIME"),
    (r'"request_id":"[^"]*"', '"request_id":"ID"'),
    (r'"(ttl_ms|retry_after_ms|uptime_seconds)":\d+', r'"\1":N'),
    # Before spans: it may end like one, as in vm-6152-37078d.
    (r"\b[a-z0-9-]+-[0-9a-f]{6,8}\b", "NODE"),
    (r"\b\d+(\.\d+)? ?(ms|s|m|h|d)\b( \d+(ms|s|m|h)\b)*", "SPAN"),
    (r"\bjust now\b|\bSPAN ago\b", "WHEN"),
    (r"[Pp]rocess \d+|\bpid \d+|^\[\d+\] \d+$", "PROCESS"),
    (r"line \d+: +\d+ ", "line N: PROCESS "),
]


def masked(line):
    for pattern, word in VARYING:
        line = re.sub(pattern, word, line)
    return " ".join(line.split())


def differences(results):
    """Where a page says that something else is printed than was, and commands of scripts that failed."""
    for command, printed, code in results:
        if command.output is None:
            if code != 0:
                yield command.line, f"it ended with {code}:\n" + "\n".join(printed[-20:])
        elif not is_same(command.output, printed):
            said = "\n    ".join(command.output)
            yield command.line, f"{command.text!r} printed\n    " + "\n    ".join(printed) + f"\nand the page says\n    {said}"


def is_same(said, printed):
    """Compares by lines; `...` on a line of its own stands for any number of lines."""
    said = [masked(line) for line in said if line.strip()]
    printed = [masked(line) for line in printed if line.strip()]
    pattern = "".join("(.*\n)*?" if line == "..." else re.escape(line) + "\n" for line in said)
    return re.fullmatch(pattern, "".join(line + "\n" for line in printed)) is not None


def updated(text, results):
    """The page with what was printed in the place of what it said."""
    lines = text.split("\n")
    # From the end, so that earlier numbers of lines stay true.
    for command, printed, _ in reversed(results):
        if command.output is None or is_same(command.output, printed):
            continue
        first = command.line - 1 + len(command.text.split("\n"))
        indent = re.match(r"\s*", lines[command.line - 1]).group()
        blanks = len(command.output) - len("\n".join(command.output).rstrip("\n").split("\n")) if command.output else 0
        end = first + len(command.output)
        kept = [""] * blanks if command.output and not command.output[-1].strip() else []
        lines[first:end] = [f"{indent}{line}".rstrip() for line in printed] + kept
    return "\n".join(lines)
