#!/usr/bin/env python3
"""The same tracker with nothing but HTTP calls and Python's standard library.

It acquires free scenes until it has enough, renews them on a timer, stops a scene at once when its renewal fails, and
releases everything when it is told to end. Each message bears the version of its lease, the fencing token.
"""

import argparse
import json
import math
import signal
import socket
import struct
import sys
import time
import urllib.error
import urllib.request


class Manager:
    """The server's scene API."""

    def __init__(self, url, holder_id, ttl_ms):
        self.url = url
        self.holder_id = holder_id
        self.ttl_ms = ttl_ms

    def call(self, method, path, body=None):
        """The status and the answer; raises OSError if there is none."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.url}/api/v1{path}", data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=2) as answer:
                text = answer.read()
                return answer.status, json.loads(text) if text else None
        except urllib.error.HTTPError as error:
            return error.code, None

    def free_scenes(self):
        status, scenes = self.call("GET", "/scenes?leased=false")
        return [scene["scene_id"] for scene in scenes] if status == 200 else []

    def acquire(self, scene):
        """The version, or None if another tracker was faster."""
        body = {"holder_id": self.holder_id, "ttl_ms": self.ttl_ms}
        status, lease = self.call("POST", f"/scenes/{scene}/lease", body)
        return lease["version"] if status == 201 else None

    def renew(self, scene):
        """Whether the scene is still ours. No answer counts as no: another tracker may have taken over."""
        body = {"holder_id": self.holder_id, "ttl_ms": self.ttl_ms}
        try:
            status, _ = self.call("POST", f"/scenes/{scene}/lease/renew", body)
        except OSError:
            return False
        return status == 200

    def release(self, scene):
        self.call("DELETE", f"/scenes/{scene}/lease", {"holder_id": self.holder_id})


class Mqtt:
    """As much of MQTT 3.1.1 as publishing with QoS 1 needs."""

    def __init__(self, host, port, client_id):
        self.address = (host, port)
        self.client_id = client_id
        self.socket = None
        self.packet_id = 0

    def connect(self):
        self.socket = socket.create_connection(self.address, timeout=5)
        variable = text("MQTT") + bytes([4, 2]) + struct.pack("!H", 60)
        self.socket.sendall(packet(0x10, variable + text(self.client_id)))
        kind, body = self.read()
        if kind != 0x20 or body[1] != 0:
            raise OSError("the broker refused the connection")

    def publish(self, topic, payload):
        """Waits until the broker has it; connects again once if it must."""
        for attempt in (1, 2):
            try:
                if self.socket is None:
                    self.connect()
                self.packet_id = self.packet_id % 65535 + 1
                body = text(topic) + struct.pack("!H", self.packet_id) + payload
                self.socket.sendall(packet(0x32, body))
                while True:
                    kind, answer = self.read()
                    if kind == 0x40 and answer == struct.pack("!H", self.packet_id):
                        return
            except OSError:
                self.close()
                if attempt == 2:
                    raise

    def read(self):
        head = self.exactly(1)[0]
        length, shift = 0, 0
        while True:
            byte = self.exactly(1)[0]
            length |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return head & 0xF0, self.exactly(length)

    def exactly(self, count):
        data = b""
        while len(data) < count:
            part = self.socket.recv(count - len(data))
            if not part:
                raise OSError("the broker closed the connection")
            data += part
        return data

    def close(self):
        if self.socket is not None:
            self.socket.close()
            self.socket = None


def text(value):
    data = value.encode()
    return struct.pack("!H", len(data)) + data


def packet(kind, body):
    length, head = len(body), bytes([kind])
    while True:
        byte, length = length % 128, length // 128
        head += bytes([byte | (128 if length else 0)])
        if not length:
            return head + body


def objects():
    """Where the objects of every scene are now: each goes round in a circle of its own."""
    turn = time.time() % 6 / 6 * 2 * math.pi
    return [{"id": str(n), "at": {"x": n * 10 + math.cos(turn + n), "y": math.sin(turn + n)}} for n in range(5)]


def say(line):
    print(line, flush=True)


class Tracker:
    def __init__(self, options):
        self.options = options
        self.manager = Manager(options.server, options.id, int(options.ttl * 1000))
        host, port = options.broker.rsplit(":", 1)
        self.mqtt = Mqtt(host, int(port), options.id)
        self.scenes = {}
        self.sequence = 0
        self.ending = False

    def startup(self):
        """Acquires until it has enough; a server that is away is waited for, longer after each failure."""
        pause, attempt = 0.2, 0
        while not self.ending:
            try:
                self.take_free_scenes()
                say(f"tracker {self.options.id} has {len(self.scenes)} scenes")
                return
            except OSError:
                attempt += 1
                say(f"no server yet, attempt {attempt}: again in {int(pause * 1000)} ms")
                time.sleep(pause)
                pause = min(pause * 2, 5)

    def take_free_scenes(self):
        if len(self.scenes) >= self.options.capacity:
            return
        for scene in self.manager.free_scenes():
            if len(self.scenes) >= self.options.capacity:
                return
            version = self.manager.acquire(scene)
            if version is not None:
                self.scenes[scene] = version

    def renew_all(self):
        for scene in list(self.scenes):
            if not self.manager.renew(scene):
                del self.scenes[scene]
                say(f"scene {scene} has ended: lost")

    def publish_all(self):
        self.sequence += 1
        for scene, version in self.scenes.items():
            message = {"scene_id": scene, "sequence": self.sequence, "tracker": self.options.id}
            message.update({"data": {"objects": objects()}, "_version": version})
            try:
                self.mqtt.publish(f"scenescape/data/scene/{scene}/person", json.dumps(message).encode())
            except OSError as error:
                print(f"not published: {error}", file=sys.stderr, flush=True)
                return

    def run(self):
        self.startup()
        renewed = looked = time.monotonic()
        while not self.ending:
            now = time.monotonic()
            if now - renewed >= self.options.renew_every:
                renewed = now
                self.renew_all()
            if now - looked >= self.options.look_every:
                looked = now
                try:
                    self.take_free_scenes()
                except OSError:
                    pass  # Idle until the server is back.
            self.publish_all()
            time.sleep(self.options.publish_every)
        for scene in self.scenes:
            try:
                self.manager.release(scene)
                say(f"scene {scene} has ended: released")
            except OSError:
                pass  # It is free when its ttl is over.
        say(f"tracker {self.options.id} stopped")


def main():
    parser = argparse.ArgumentParser(description="Follows the objects in scenes, one tracker per scene")
    parser.add_argument("--server", default="http://127.0.0.1:7070")
    parser.add_argument("--broker", default="127.0.0.1:1883", help="HOST:PORT")
    parser.add_argument("--id", required=True)
    parser.add_argument("--capacity", type=int, default=8)
    parser.add_argument("--ttl", type=float, default=30, help="seconds")
    parser.add_argument("--renew-every", type=float, default=10, help="seconds")
    parser.add_argument("--look-every", type=float, default=1, help="seconds")
    parser.add_argument("--publish-every", type=float, default=0.1, help="seconds")
    tracker = Tracker(parser.parse_args())

    def end(*_):
        tracker.ending = True

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    tracker.run()


if __name__ == "__main__":
    main()
