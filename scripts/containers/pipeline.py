"""Two agents with Python workers; the one that has a camera is killed. The sink counts gaps and repetitions."""

import json
import urllib.request

from project import Project, expect, podman, wait_for


def run(folder):
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
