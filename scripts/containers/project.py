"""A compose file that podman runs, and what tests of it need.

podman runs health checks by systemd's timers, and podman-compose waits for them only with newer versions of it. So they
are run here, by hand, and containers that start too early are restarted as the compose files say.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

SOON = 180


class Failed(Exception):
    """A check that does not hold."""


def run(*command, check=True, within=120):
    done = subprocess.run(command, capture_output=True, text=True, timeout=within)
    if check and done.returncode:
        raise Failed(f"{' '.join(command)} failed with {done.returncode}: {done.stderr.strip()[-2000:]}")
    return done.stdout


def end_name_server():
    """Ends podman's name server if it has no network left. Version 1.4 stays, and does not listen in the next one."""
    folder = Path("/run/containers/networks/aardvark-dns")
    if [file.name for file in folder.glob("*")] == ["aardvark.pid"]:
        pid = (folder / "aardvark.pid").read_text()
        program = Path("/proc", pid, "comm")
        if program.is_file() and program.read_text().strip() == "aardvark-dns":
            os.kill(int(pid), signal.SIGTERM)


def podman(*arguments, **options):
    return run("podman", *arguments, **options)


def wait_for(what, look, within=SOON):
    """Looks until it is there, and returns it."""
    began = time.monotonic()
    problem = None
    while time.monotonic() - began < within:
        try:
            found = look()
            if found:
                print(f"  {what} after {time.monotonic() - began:.1f} s", flush=True)
                return found
        except (Failed, OSError, ValueError, subprocess.TimeoutExpired) as error:
            problem = error
        time.sleep(0.5)
    raise Failed(f"waited {within} s in vain for: {what}" + (f" (last: {problem})" if problem else ""))


def expect(condition, what):
    if not condition:
        raise Failed(what)


class Project:
    """The containers of one compose file."""

    def __init__(self, folder, example, *up, files=()):
        self.example = example
        self.compose = [
            str(Path(sys.executable).with_name("podman-compose")),
            # A pod would share one host name and one address.
            "--in-pod=false",
            f"--file={folder / (example + '.yaml')}",
            *(f"--file={file}" for file in files),
        ]
        self.up = up

    def __enter__(self):
        end_name_server()  # of a run that was cut off
        print(f"{self.example}: up {' '.join(self.up)}", flush=True)
        try:
            run(*self.compose, "up", "--detach", "--no-build", *self.up, within=600)
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise
        return self

    def __exit__(self, kind, *_):
        if kind:
            for container in self.containers(all=True):
                print(f"---- {container['Names'][0]}: {container['Status']}", file=sys.stderr)
                logs = subprocess.run(
                    ["podman", "logs", "--tail", "12", container["Id"]],
                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                )
                print(logs.stdout, file=sys.stderr, flush=True)
        run(*self.compose, "down", "--volumes", "--timeout", "0", check=False, within=300)
        end_name_server()

    def containers(self, service=None, all=False):
        labels = ["--filter", f"label=io.podman.compose.project=solehold-{self.example}"]
        if service:
            labels += ["--filter", f"label=com.docker.compose.service={service}"]
        return json.loads(podman("ps", "--format=json", *labels, *(["--all"] if all else [])))

    def container(self, service):
        found = self.containers(service)
        if len(found) != 1:
            raise Failed(f"{service} has {len(found)} running containers")
        return found[0]["Id"]

    def address(self, service):
        networks = json.loads(podman("inspect", self.container(service)))[0]["NetworkSettings"]["Networks"]
        return next(iter(networks.values()))["IPAddress"]

    def exec(self, service, *command):
        return podman("exec", self.container(service), *command)

    def sql(self, text):
        """The rows of a query, as lists of texts."""
        found = self.exec("postgres", "psql", "--username=solehold", "-v", "ON_ERROR_STOP=1", "-qAtF,", "-c", text)
        return [line.split(",") for line in found.splitlines()]

    def is_healthy(self, service):
        containers = self.containers(service)
        for container in containers:
            podman("healthcheck", "run", container["Id"])
        return bool(containers)

    def kill(self, container):
        """SIGKILL, and it is not restarted, as after the loss of its machine: after `podman kill` it would be."""
        podman("stop", "--time=0", container["Id"])
        print(f"  killed {container['Names'][0]}", flush=True)
