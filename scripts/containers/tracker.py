"""Three trackers, two gates and two servers; a tracker with scenes is killed, then a server, then a gate."""

import json
import time

from project import Project, expect, podman, wait_for


def run(folder):
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
