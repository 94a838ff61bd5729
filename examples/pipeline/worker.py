#!/usr/bin/env python3
"""A camera worker for `solehold agent`, with the standard library alone.

It "processes" frames of several cameras and writes each with the fencing token to the sink (SINK_URL). The number of the
last frame is its state: the next holder goes on from there. Since the sink refuses old tokens, the
worker does not look at its deadline: with `grace_seconds` it goes on while the control plane is away.

With `--config PATH` it reports which shard it is, by the configuration that the agent writes there.
"""

import argparse
import http.client
import json
import os
import socket
import sys
import threading
import time
from urllib.parse import urlsplit

SINK = urlsplit(os.environ.get("SINK_URL", "http://127.0.0.1:7171"))
FRAME_SECONDS = float(os.environ.get("FRAME_SECONDS", "0.2"))
BEAT_SECONDS = float(os.environ.get("BEAT_SECONDS", "1"))
CHECKPOINT_SECONDS = float(os.environ.get("CHECKPOINT_SECONDS", "5"))
AGAIN_SECONDS = 0.1
NAME = os.environ["SOLEHOLD_WORKER"]


def shard_config(path):
    """The configuration of this shard, as it is now: the agent replaces the file whole."""
    if not path:
        return {}
    with open(path, encoding="utf-8") as file:
        return json.load(file)


class Agent:
    """The connection to the agent: one JSON document per line, either way."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.connect(path)
        self.lock = threading.Lock()

    def say(self, kind, **fields):
        line = json.dumps({"type": kind, **fields}) + "\n"
        with self.lock:
            self.socket.sendall(line.encode())

    def messages(self):
        for line in self.socket.makefile("r", encoding="utf-8"):
            yield json.loads(line)


class Camera(threading.Thread):
    """The work on one camera, from `prepare` or `assign` to `revoke`."""

    def __init__(self, resource, config):
        super().__init__(daemon=True)
        self.resource, self.key = resource, resource.split("/", 1)[1]
        self.config = config or {}
        self.token, self.frame, self.written = None, 0, 0
        self.is_over = threading.Event()
        self.is_fenced = False
        # Here a decoder would be opened as well.
        self.sink = http.client.HTTPConnection(SINK.hostname, SINK.port, timeout=10)

    def prepare(self):
        try:
            self.sink.connect()
        except OSError:
            self.sink.close()

    def begin(self, assignment):
        """What came with the lease replaces what was prepared with."""
        self.config = assignment.get("config") or self.config
        self.frame = (assignment.get("state") or {}).get("frame", 0)
        self.token = assignment["token"]
        self.start()

    def run(self):
        while not self.is_fenced:
            self.process(self.frame + 1)
            if self.is_over.wait(FRAME_SECONDS):
                break
        if not self.is_fenced:
            self.process(self.frame + 1)  # What was in the decoder.
        self.sink.close()

    def process(self, frame):
        """Writes a frame until it is known what became of it; when the work is to end, not for ever."""
        body = {
            "camera": self.key,
            "token": self.token,
            "frame": frame,
            "worker": NAME,
            "config_version": self.config.get("config_version"),
            "zone_version": self.config.get("zone_version"),
        }
        while True:
            try:
                status, answer = self.ask({**body, "token": self.token})
            except (OSError, http.client.HTTPException, ValueError):
                status, answer = 503, {}
                self.sink.close()
            if status == 200:
                self.frame, self.written = answer["frame"], self.written + 1
                return
            if status == 409:
                print(f"{self.resource} token {self.token} is fenced off by {answer['token']}", flush=True)
                self.is_fenced = True
                return
            if self.is_over.wait(AGAIN_SECONDS):
                return

    def ask(self, body):
        self.sink.request("POST", "/frames", json.dumps(body).encode(), {"Content-Type": "application/json"})
        answer = self.sink.getresponse()
        return answer.status, json.loads(answer.read())

    def end(self):
        self.is_over.set()
        if self.is_alive():
            self.join()
        return {"frame": self.frame}


class Worker:
    def __init__(self, config_path):
        self.config_path = config_path
        self.agent = Agent(os.environ["SOLEHOLD_WORKER_SOCKET"])
        self.prepared, self.cameras = {}, {}

    def run(self):
        self.agent.say("ready")
        threading.Thread(target=self.beat, daemon=True).start()
        for message in self.agent.messages():
            handle = getattr(self, f"on_{message['type']}", None)
            if handle:
                handle(message)

    def on_prepare(self, message):
        camera = Camera(message["resource"], message.get("config"))
        camera.prepare()
        self.prepared[message["resource"]] = camera
        self.agent.say("prepared", id=message["id"])

    def on_assign(self, message):
        resource = message["resource"]
        working = self.cameras.get(resource)
        if working and not working.is_fenced:
            working.token = message["token"]  # The lease was won back under another token.
            return
        camera = self.prepared.pop(resource, None) or Camera(resource, None)
        self.cameras[resource] = camera
        camera.begin(message)

    def on_config(self, message):
        for cameras in (self.prepared, self.cameras):
            if message["resource"] in cameras:
                cameras[message["resource"]].config = message["config"]

    def on_revoke(self, message):
        threading.Thread(target=self.end, args=(message,), daemon=True).start()

    def end(self, message):
        camera = self.cameras.pop(message["resource"], None)
        state = camera.end() if camera else None
        self.agent.say("drained", id=message["id"], **({"state": state} if state else {}))

    def on_error(self, message):
        print(f"the agent did not understand: {message['message']}", file=sys.stderr, flush=True)

    def beat(self):
        next_checkpoint = time.monotonic() + CHECKPOINT_SECONDS
        while True:
            cameras = list(self.cameras.values())
            frames = sum(camera.written for camera in cameras)
            stats = {"pid": os.getpid(), "cameras": len(cameras), "frames": frames}
            self.agent.say("heartbeat", stats=stats, resources=self.stats_of(cameras))
            if time.monotonic() >= next_checkpoint:
                next_checkpoint = time.monotonic() + CHECKPOINT_SECONDS
                for camera in cameras:
                    if not camera.is_over.is_set():
                        self.agent.say("state", resource=camera.resource, document={"frame": camera.frame})
            time.sleep(BEAT_SECONDS)

    def stats_of(self, cameras):
        """What is kept with each camera's lease."""
        config = shard_config(self.config_path)
        known = {camera["camera_uuid"] for camera in config.get("cameras", [])}
        shard = {"shard_id": config.get("shard_id"), "model": config.get("model")}
        return {
            camera.resource: {"frames": camera.written, "is_configured": camera.key in known, **shard}
            for camera in cameras
        }


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--config")
    Worker(parser.parse_args().config).run()
