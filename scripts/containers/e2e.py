"""Runs compose files with podman, kills containers, and checks by the examples' own evidence that the work went on:
nothing twice, nothing lost, nothing stale. scripts/e2e-containers calls it.

podman runs health checks by systemd's timers, and podman-compose waits for them only with newer versions of it. So they
are run here, by hand, and containers that start too early are restarted as the compose files say.
"""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
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

    def is_healthy(self, service):
        containers = self.containers(service)
        for container in containers:
            podman("healthcheck", "run", container["Id"])
        return bool(containers)

    def kill(self, container):
        """SIGKILL, and it is not restarted, as after the loss of its machine: after `podman kill` it would be."""
        podman("stop", "--time=0", container["Id"])
        print(f"  killed {container['Names'][0]}", flush=True)


def reconciler(folder):
    """Three workers claim rows; the one with most claims is killed. The outbox shows what was done how often."""
    requests = 300
    # Observations that last: a claim of milliseconds could not be caught.
    os.environ["CHAIN_LATENCY_MS"] = "3000"
    with Project(folder, "reconciler", "--scale", "worker=3") as project:

        def sql(text):
            found = project.exec("postgres", "psql", "--username=solehold", "-AtF,", "-c", text)
            return [line.split(",") for line in found.splitlines()]

        wait_for("PostgreSQL is healthy", lambda: project.is_healthy("postgres"))
        url = wait_for("the API has an address", lambda: f"http://{project.address('api')}:8080")
        wait_for("the API responds", lambda: urllib.request.urlopen(f"{url}/healthz", timeout=5).status == 200)
        for number in range(requests):
            request = urllib.request.Request(
                f"{url}/payment-requests",
                json.dumps({"amount": number + 1, "expires_in_seconds": 30}).encode(),
                {"Content-Type": "application/json", "Idempotency-Key": f"order-{number}"},
            )
            with urllib.request.urlopen(request, timeout=30) as answer:
                expect(answer.status == 201, f"request {number} was answered by {answer.status}")

        def claimed():
            return sql(
                "SELECT reconcile_lease_owner, count(*) FROM app.payment_requests"
                " WHERE reconcile_lease_until > clock_timestamp() GROUP BY 1 ORDER BY 2 DESC LIMIT 1"
            )

        def killed():
            """Stops the worker with most claims, and kills it unless it had returned them by then."""
            for owner, _ in claimed():
                [container] = [c for c in project.containers("worker") if owner.startswith(c["Id"][:12])]
                podman("kill", "--signal=STOP", container["Id"])
                [[held]] = sql(
                    "SELECT count(*) FROM app.payment_requests WHERE reconcile_lease_until > clock_timestamp()"
                    f" AND reconcile_lease_owner = '{owner}'"
                )
                if held != "0":
                    project.kill(container)
                    return owner, int(held)
                podman("kill", "--signal=CONT", container["Id"])
            return None

        victim, claims = wait_for("a worker with claims was killed", killed)
        workers = {row[0] for row in sql("SELECT DISTINCT worker_id FROM app.payment_outbox")}
        ended = "status IN ('confirmed', 'expired')"
        wait_for(
            "all requests have ended",
            lambda: sql(f"SELECT count(*) FROM app.payment_requests WHERE {ended}") == [[str(requests)]],
        )
        twice = sql(
            "SELECT payment_request_id, count(*) FROM app.payment_outbox"
            " WHERE to_status IN ('confirmed', 'expired') GROUP BY 1 HAVING count(*) <> 1"
        )
        expect(twice == [], f"ended more than once: {twice}")
        rows = sql("SELECT to_status, count(*) FROM app.payment_outbox GROUP BY 1 ORDER BY 1")
        finals = sum(int(count) for status, count in rows if status in ("confirmed", "expired"))
        expect(finals == requests, f"{requests} requests, and {finals} ends: {rows}")
        workers |= {row[0] for row in sql("SELECT DISTINCT worker_id FROM app.payment_outbox")}
        expect(len(workers - {victim}) == 2, f"the other two did not work: {workers}")
        print(f"  {claims} claims of {victim} were taken over; {requests} requests ended once each: {rows}")


def tracker(folder):
    """Three trackers, two gates and two servers; a tracker with scenes is killed, then a server, then a gate."""
    scenes = 6
    # With `--scale worker=3`, podman-compose forgets how many gates the file asks for.
    replicas = folder / "replicas.yaml"
    replicas.write_text("services: {worker: {deploy: {mode: replicated, replicas: 3}}}\n")
    with Project(folder, "tracker", files=[replicas]) as project:
        for service in ("postgres", "mosquitto", "server-1", "server-2", "gate"):
            wait_for(f"{service} is healthy", lambda service=service: project.is_healthy(service))
        expect(len(project.containers("gate")) == 2, "there are no two gates")

        def solehold(*command):
            any_worker = project.containers("worker")[0]["Id"]
            return json.loads(podman("exec", any_worker, "with-secrets", "solehold", "--json", *command))

        def owners():
            leases = solehold("lease", "ls", "--kind", "scene")["leases"]
            return {lease["key"]: (lease["holder"], lease["token"]) for lease in leases}

        def spread(holders):
            held = owners()
            names = {holder for holder, _ in held.values()}
            return held if len(held) == scenes and len(names) == holders else None

        def counts():
            """Messages and stale messages of each scene that passed the gate, as analytics counted them last."""
            found = {}
            for line in podman("logs", "--tail", str(scenes), project.container("analytics")).splitlines():
                scene, _, rest = line.partition(": ")
                words = rest.replace(",", "").split()
                if len(words) == 8:
                    found[scene] = (int(words[2]), int(words[7]))
            return found

        def more_than(before):
            """Every scene has several messages more."""
            after = counts()
            grown = [scene for scene in after if after[scene][0] > before.get(scene, (0, 0))[0] + 5]
            return after if len(grown) == scenes else None

        def tracks():
            """The ids of the tracks of each scene, from messages that passed the gate."""
            lines = project.exec(
                "mosquitto", "mosquitto_sub", "-t", "gated/scenescape/data/scene/+/+", "-C", "60", "-W", "20"
            )
            messages = [json.loads(line) for line in lines.splitlines()]
            found = {}
            for message in messages:
                ids = {thing["id"] for thing in message["data"]["objects"]}
                found.setdefault(message["scene_id"], set()).update(ids)
            return found if len(found) == scenes else None

        before = wait_for("three trackers have all scenes", lambda: spread(3))
        seen = wait_for("messages of all scenes pass the gate", lambda: more_than({}))
        ids = wait_for("the tracks of all scenes", tracks)

        victim = before["scene-01"][0]
        held = {scene for scene, (holder, _) in before.items() if holder == victim}
        [container] = [c for c in project.containers("worker") if victim.endswith(c["Id"][:12])]
        project.kill(container)
        after = wait_for("two trackers have all scenes", lambda: spread(2))
        for scene in held:
            expect(after[scene][0] != victim, f"{scene} still belongs to {victim}")
            expect(after[scene][1] > before[scene][1], f"the token of {scene} did not grow: {before} {after}")
        seen = counts()
        seen = wait_for("messages of all scenes again", lambda: more_than(seen))
        now = wait_for("the tracks of all scenes again", tracks)
        expect(now == ids, f"tracks changed with their tracker: {ids} {now}")

        [lease] = solehold("lease", "ls", "--kind", "gate")["leases"]
        [active] = [c for c in project.containers("gate") if c["Id"][:12] in lease["holder"]]
        project.kill(project.containers("server-1")[0])
        project.kill(active)
        seen = counts()
        seen = wait_for("messages of all scenes by one server and one gate", lambda: more_than(seen))
        # Longer than the ttl of 30 s: without the other server the leases would have run out.
        later = time.monotonic() + 40
        wait_for("more than a ttl has passed", lambda: time.monotonic() > later, within=60)
        expect({s: t for s, (_, t) in owners().items()} == {s: t for s, (_, t) in after.items()},
               "scenes changed hands when a server was killed")
        seen = wait_for("messages of all scenes still", lambda: more_than(seen))
        stale = {scene: stale for scene, (_, stale) in seen.items() if stale}
        expect(not stale, f"stale messages passed the gate: {stale}")
        total = sum(messages for messages, _ in seen.values())
        print(f"  {len(held)} scenes of {victim} were taken over, {total} messages passed the gate, none was stale")


def pipeline(folder):
    """Two agents with Python workers; the one that has a camera is killed. The sink counts gaps and repetitions."""
    cameras = 6
    with Project(folder, "pipeline", "--scale", "agent=2") as project:
        for service in ("postgres", "server-1", "server-2", "agent"):
            wait_for(f"{service} is healthy", lambda service=service: project.is_healthy(service))
        url = wait_for("the sink has an address", lambda: f"http://{project.address('sink')}:7171")

        def marks():
            with urllib.request.urlopen(f"{url}/marks", timeout=5) as answer:
                return {mark["camera"]: mark for mark in json.load(answer)["marks"]}

        def beyond(before):
            """Every camera has several frames more."""
            after = marks()
            grown = [c for c in after if after[c]["frame"] > before.get(c, {"frame": 0})["frame"] + 5]
            return after if len(grown) == cameras else None

        def owners():
            leases = json.loads(
                podman(
                    "exec", "--env=SOLEHOLD_API_KEY_FILE=/run/secrets/solehold-key",
                    "--env=SOLEHOLD_SERVER=server-1:7070,server-2:7070", project.containers("agent")[0]["Id"],
                    "with-secrets", "solehold", "--json", "lease", "ls", "--kind=camera", "--tenant=acme",
                )
            )["leases"]
            return {lease["key"]: lease["holder"] for lease in leases}

        def spread(agents):
            held = owners()
            return held if len(held) == cameras and len(set(held.values())) == agents else None

        before = wait_for("two agents have all cameras", lambda: spread(2))
        frames = wait_for("frames of all cameras", lambda: beyond({}))
        victim = before["cam-1"]
        moved = {camera for camera, holder in before.items() if holder == victim}
        [container] = [c for c in project.containers("agent") if victim.startswith(c["Id"][:12])]
        project.kill(container)
        wait_for("one agent has all cameras", lambda: spread(1))
        frames_then = marks()
        after = wait_for("frames of all cameras again", lambda: beyond(frames_then))
        for camera in moved:
            expect(after[camera]["token"] > frames[camera]["token"], f"the token of {camera} did not grow")
        gaps = {camera: mark["gaps"] for camera, mark in after.items() if mark["gaps"]}
        expect(not gaps, f"frames were lost: {gaps}")
        total = sum(mark["frame"] for mark in after.values())
        print(f"  {len(moved)} cameras of {victim} were taken over; {total} frames without a gap")


def main():
    folder = Path(sys.argv[1])
    examples = {"reconciler": reconciler, "tracker": tracker, "pipeline": pipeline}
    for name in sys.argv[2:]:
        if name not in examples:
            sys.exit(f"there is no test of {name} in containers: choose from {', '.join(examples)}")
    for name in sys.argv[2:]:
        try:
            examples[name](folder)
        except Failed as error:
            sys.exit(f"{name} failed: {error}")
        print(f"{name}: passed", flush=True)


os.environ.setdefault("PODMAN_COMPOSE_WARNING_LOGS", "false")
main()
