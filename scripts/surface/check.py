"""Starts a server with keys, lets schemathesis check every operation of its description, and sees to it that the
check was worth something: every operation was reached and has succeeded, and most good calls did."""

import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
LISTENING = "solehold listening on "
METHODS = {"get", "put", "post", "patch", "delete"}

CASES_MIN = 5_000
# Of the calls that are meant to be good, this share must succeed. Others name what does not exist, or is held.
DONE_SHARE_MIN = 0.5
# A store that is in use takes no import, so that a good one is refused.
NEVER_DONE = {"POST /api/v1/admin/import"}


def built(program):
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    for profile in ("debug", "release"):
        if (found := target / profile / program).is_file():
            return str(found)
    sys.exit(f"there is no {program} in {target}: run `make build`")


def start_orchestrator(folder):
    """A real orchestrator with a job and a letter, the options of a server that shows them, and the id of the job."""
    program = built("examples/orchestrator_world")
    process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    started = process.stdout.readline()
    if not started:
        sys.exit(f"the orchestrator did not start: it ended with {process.wait()}")
    at = json.loads(started)
    job = {"job_id": "video-17", "organization_id": "acme"}
    unknown = {**job, "job_id": "video-9"}
    for command in ({**job, "type": "CREATE", "input": {}}, {**unknown, "type": "CANCEL"}):
        request = {"partition": 0, "key": f"acme:{command['job_id']}", "command": command}
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        process.stdout.readline()
    for path, is_there in (("/jobs/video-17", bool), ("/letters", lambda page: page["letters"])):
        wait_for(at["url"] + path, at["key"], is_there)
    key_file = Path(folder) / "orchestrator-key"
    key_file.write_text(at["key"])
    return process, ["--orchestrator", at["url"], "--orchestrator-key-file", str(key_file)], job["job_id"]


def wait_for(url, key, is_there):
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {key}"})
    until = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                if is_there(json.load(answer)):
                    return
        except urllib.error.HTTPError as refusal:
            if refusal.code != 404:
                raise
        if time.monotonic() > until:
            sys.exit(f"{url} does not show what was sent")
        time.sleep(0.05)


def start(folder, key, options):
    """A server over an empty folder, and its address."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("SOLEHOLD_")}
    # The description says what any server may allow; this one allows all of it.
    ours.update(SOLEHOLD_BOOTSTRAP_KEY=key, SOLEHOLD_TTL_MAX="1day")
    program = os.environ.get("SOLEHOLD_BIN") or built("solehold")
    command = [program, "serve", "--data-dir", f"{folder}/data", "--listen", "127.0.0.1:0", "--log-level", "error"]
    command += options
    server = subprocess.Popen(command, env=ours, stdout=subprocess.PIPE, text=True)
    for line in server.stdout:
        if line.startswith(LISTENING):
            return server, line.removeprefix(LISTENING).split()[0]
    sys.exit(f"the server did not start: it ended with {server.wait()}")


def run(folder, url, key, job, more):
    """Runs schemathesis; returns whether it found nothing, and what was called how often."""
    counts = Path(folder) / "counts.json"
    env = {**os.environ, "SURFACE_URL": url, "SURFACE_KEY": key, "SURFACE_COUNTS": str(counts), "SURFACE_JOB": job}
    env.update(SCHEMATHESIS_HOOKS="hooks", PYTHONPATH=str(HERE), PYTHONDONTWRITEBYTECODE="1")
    program = Path(sys.executable).parent / "schemathesis"
    command = [program, "--config-file", HERE / "schemathesis.toml", "run", f"{url}/api/v1/openapi.json"]
    # Without a filter the description itself is left out.
    command += ["--checks", "all", "--header", f"Authorization: Bearer {key}", *(more or ["--include-path-regex", "^/"])]
    found_nothing = subprocess.run(command, env=env, cwd=folder).returncode == 0
    return found_nothing, json.loads(counts.read_text()) if counts.exists() else {}


def operations(url):
    with urllib.request.urlopen(f"{url}/api/v1/openapi.json", timeout=30) as answer:
        paths = json.load(answer)["paths"]
    return {f"{method.upper()} {path}" for path, item in paths.items() for method in METHODS & item.keys()}


def shortcomings(described, counts):
    """Why the check would not have found what is wrong."""
    total = {word: sum(of.get(word, 0) for of in counts.values()) for word in ("all", "good", "done")}
    share = total["done"] / max(total["good"], 1)
    print(f"{total['all']} calls of {len(counts)} operations; {total['done']} of {total['good']} good ones succeeded")
    if total["all"] < CASES_MIN:
        yield f"there were {total['all']} calls, and there must be {CASES_MIN}"
    if share < DONE_SHARE_MIN:
        yield f"{share:.0%} of the good calls succeeded, and {DONE_SHARE_MIN:.0%} must"
    for label in sorted(described - counts.keys()):
        yield f"{label} was never called"
    for label in sorted(described - NEVER_DONE):
        if label in counts and not counts[label].get("done"):
            yield f"{label} never succeeded: let scripts/surface/stage.py make what it needs"


def main():
    key = f"surface-{secrets.token_hex(16)}"
    with tempfile.TemporaryDirectory(prefix="solehold-surface-") as folder:
        orchestrator, options, job = start_orchestrator(folder)
        try:
            server, url = start(folder, key, options)
            try:
                described = operations(url)
                found_nothing, counts = run(folder, url, key, job, sys.argv[1:])
            finally:
                server.terminate()
                server.wait()
        finally:
            # It ends what it has started.
            orchestrator.stdin.close()
            orchestrator.wait()
    problems = list(shortcomings(described, counts)) if len(sys.argv) == 1 else []
    for problem in problems:
        print(f"the check is not whole: {problem}", file=sys.stderr)
    sys.exit(0 if found_nothing and not problems else 1)


if __name__ == "__main__":
    main()
