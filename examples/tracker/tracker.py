#!/usr/bin/env python3
"""The same tracker with nothing but HTTP calls and Python's standard library.

It acquires free scenes until it has enough, renews them on a timer, stops a scene at once when its renewal fails, and
releases everything when it is told to end. Each message bears the version of its lease, the fencing token.
"""

import argparse
import json
import math
import os
import signal
import socket
import ssl
import struct
import sys
import time
import urllib.error
import urllib.parse
import urllib.request


class Refused(Exception):
    """The server does not accept the key, or is not to be trusted. Asking again would not help."""


class NoAnswer(OSError):
    """The server answered that it cannot answer now."""


class Manager:
    """The server's scene API."""

    def __init__(self, options):
        self.url = options.server.rstrip("/")
        self.holder_id = options.id
        self.ttl_ms = int(options.ttl * 1000)
        self.headers = {"Content-Type": "application/json"}
        if options.api_key:
            self.headers["Authorization"] = f"Bearer {options.api_key}"
        self.tls = ssl.create_default_context()
        if options.ca_cert:
            trust("--ca-cert", options.ca_cert, self.tls)

    def call(self, method, path, body=None):
        """The status and the answer; raises OSError if there is none, and Refused if it is about the key."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}/api/v1{path}", data, self.headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=2, context=self.tls) as answer:
                text = answer.read()
                return answer.status, json.loads(text) if text else None
        except urllib.error.HTTPError as error:
            with error:
                problem = read_problem(error)
            told = f"{problem.get('code', error.code)}: {problem.get('detail', error.reason)}"
            hint = "; check --api-key or SOLEHOLD_API_KEY" if error.code == 401 else ""
            # A quota that is used up is like a scene that is taken: there may be room later.
            if error.code in (401, 403) and problem.get("code") != "quota_exceeded":
                raise Refused(f"the server refuses this tracker: {told}{hint}") from None
            if error.code == 429 or error.code >= 500:
                raise NoAnswer(told) from None
            return error.code, problem
        except urllib.error.URLError as error:
            if isinstance(error.reason, ssl.SSLCertVerificationError):
                why = error.reason.verify_message
                raise Refused(f"the certificate of {self.url} is not trusted ({why}); give --ca-cert FILE") from None
            raise
        except ValueError:
            raise NoAnswer(f"the answer of {self.url} is not JSON") from None

    def free_scenes(self):
        status, scenes = self.call("GET", "/scenes?leased=false")
        if status != 200:
            raise Refused(f"{self.url} answered {status} to a question for scenes: is it a Solehold server?")
        return [scene["scene_id"] for scene in scenes]

    def acquire(self, scene):
        """The version, or None if another tracker was faster."""
        body = {"holder_id": self.holder_id, "ttl_ms": self.ttl_ms}
        status, lease = self.call("POST", f"/scenes/{quoted(scene)}/lease", body)
        return lease["version"] if status == 201 else None

    def renew(self, scene):
        """Whether the scene is still ours. No answer counts as no: another tracker may have taken over."""
        body = {"holder_id": self.holder_id, "ttl_ms": self.ttl_ms}
        try:
            status, _ = self.call("POST", f"/scenes/{quoted(scene)}/lease/renew", body)
        except OSError:
            return False
        return status == 200

    def release(self, scene):
        self.call("DELETE", f"/scenes/{quoted(scene)}/lease", {"holder_id": self.holder_id})


def read_problem(answer):
    """What the server says is wrong; empty if it is no problem document."""
    try:
        problem = json.loads(answer.read())
    except (OSError, ValueError):
        return {}
    return problem if isinstance(problem, dict) else {}


def trust(flag, path, tls):
    try:
        tls.load_verify_locations(path)
    except (OSError, ValueError) as error:
        raise ValueError(f"{flag} {path}: {error}; give a PEM file") from None


def quoted(name):
    return urllib.parse.quote(name, safe="")


class Mqtt:
    """As much of MQTT 3.1.1 as publishing with QoS 1 needs."""

    def __init__(self, options):
        self.host, self.port, self.user, self.password, self.tls = broker_of(options)
        self.client_id = options.id
        self.socket = None
        self.packet_id = 0

    def connect(self):
        self.socket = socket.create_connection((self.host, self.port), timeout=5)
        if self.tls is not None:
            self.socket = self.tls.wrap_socket(self.socket, server_hostname=self.host)
        login = [] if self.user is None else [text(self.user), text(self.password)]
        # A clean session, and that a user and a password follow.
        flags = 0x02 | (0xC0 if login else 0)
        variable = text("MQTT") + bytes([4, flags]) + struct.pack("!H", 60)
        self.socket.sendall(packet(0x10, variable + text(self.client_id) + b"".join(login)))
        kind, body = self.read()
        if kind != 0x20 or body[1] != 0:
            why = ": check its user and password" if kind == 0x20 and body[1] in (4, 5) else ""
            raise OSError(f"the broker refused the connection{why}")

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


def broker_of(options):
    """Host, port, user, password and TLS of the broker. What is wrong is not shown: it may have a password in it."""
    right = "write HOST:PORT, mqtt://HOST or mqtts://USER@HOST:PORT"
    given = options.broker if "://" in options.broker else f"mqtt://{options.broker}"
    try:
        url = urllib.parse.urlsplit(given)
        port = url.port
    except ValueError:
        raise ValueError(f"--broker is not a URL: {right}") from None
    if url.scheme not in ("mqtt", "mqtts") or not url.hostname:
        raise ValueError(f"--broker is not a URL of the scheme mqtt or mqtts with a host: {right}")
    is_tls = url.scheme == "mqtts"
    if options.broker_ca and not is_tls:
        raise ValueError("--broker-ca is for TLS: write --broker mqtts://HOST")
    tls = None
    if is_tls and options.broker_ca:
        # Only this one, and not the system's.
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        trust("--broker-ca", options.broker_ca, tls)
    elif is_tls:
        tls = ssl.create_default_context()
    user, password = (urllib.parse.unquote(part or "") for part in (url.username, url.password))
    if options.broker_password_file:
        with open(options.broker_password_file, encoding="utf-8") as file:
            password = file.read().rstrip("\r\n")
    if password and not user:
        raise ValueError(f"a password for the broker needs a user: {right}")
    return url.hostname, port or (8883 if is_tls else 1883), user or None, password, tls


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
        self.manager = Manager(options)
        self.mqtt = Mqtt(options)
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
        try:
            self.work()
        finally:
            self.release_all()
            self.mqtt.close()
        say(f"tracker {self.options.id} stopped")

    def work(self):
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

    def release_all(self):
        for scene in self.scenes:
            try:
                self.manager.release(scene)
                say(f"scene {scene} has ended: released")
            except (OSError, Refused):
                pass  # It is free when its ttl is over.


def main():
    given = os.environ.get
    parser = argparse.ArgumentParser(description="Follows the objects in scenes, one tracker per scene")
    parser.add_argument("--server", default=given("SOLEHOLD_SERVER", "http://127.0.0.1:7070"))
    key = "also SOLEHOLD_API_KEY, which is better: other users can see the arguments of a process"
    parser.add_argument("--api-key", "--key", default=given("SOLEHOLD_API_KEY"), help=key)
    parser.add_argument("--ca-cert", default=given("SOLEHOLD_CA_CERT"), help="PEM file to trust besides the system's")
    broker = "HOST:PORT or mqtt://HOST:PORT, or mqtts:// with TLS; USER:PASSWORD@ before the host logs in"
    parser.add_argument("--broker", default=given("SOLEHOLD_MQTT_URL", "127.0.0.1:1883"), help=broker)
    parser.add_argument("--broker-password-file", help="read the password of the broker's user from this file")
    parser.add_argument("--broker-ca", help="PEM file to trust for the broker, instead of the system's")
    parser.add_argument("--id", required=True)
    parser.add_argument("--capacity", type=int, default=8)
    parser.add_argument("--ttl", type=float, default=30, help="seconds")
    parser.add_argument("--renew-every", type=float, default=10, help="seconds")
    parser.add_argument("--look-every", type=float, default=1, help="seconds")
    parser.add_argument("--publish-every", type=float, default=0.1, help="seconds")
    try:
        tracker = Tracker(parser.parse_args())
    except (OSError, ValueError) as error:
        parser.error(str(error))

    def end(*_):
        tracker.ending = True

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    try:
        tracker.run()
    except Refused as refused:
        sys.exit(f"tracker: {refused}")


if __name__ == "__main__":
    main()
