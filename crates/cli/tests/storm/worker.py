"""A worker of the storm: for each of its resources it appends lines of resource, token, CLOCK_BOOTTIME and runner.

It looks at its deadline before each write, and the time of a write is the one that it compared. So whatever the machine
does to it, a write is late only if the deadline or the token was wrong.
"""

import json
import os
import select
import socket
import time

WRITE_EVERY_SECONDS = 0.05
BEAT_EVERY_SECONDS = 1.0

agent = socket.socket(socket.AF_UNIX)
agent.connect(os.environ["SOLEHOLD_WORKER_SOCKET"])
writes = os.open(os.environ["STORM_WRITES"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
runner = os.environ["SOLEHOLD_RUNNER_ID"]
works = {}


def send(kind, **fields):
    agent.sendall((json.dumps({"type": kind, **fields}) + "\n").encode())


def deadline_ns():
    with open(os.environ["SOLEHOLD_LEASE_FILE"], encoding="utf-8") as lines:
        values = dict(line.rstrip("\n").split("=", 1) for line in lines)
    return int(values["SOLEHOLD_DEADLINE_BOOTTIME_MS"]) * 1_000_000


def take(message):
    if message["type"] == "prepare":
        send("prepared", id=message["id"])
    elif message["type"] == "assign":
        works[message["resource"]] = message["token"]
    elif message["type"] == "revoke":
        works.pop(message["resource"], None)
        send("drained", id=message["id"], state={})


def write():
    for resource, token in works.items():
        deadline, now = deadline_ns(), time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        if now < deadline:
            os.write(writes, f"{resource} {token} {now} {runner}\n".encode())


send("ready")
unread, beat_at, write_at = b"", 0.0, 0.0
while True:
    readable, _, _ = select.select([agent], [], [], WRITE_EVERY_SECONDS)
    if readable:
        received = agent.recv(65536)
        if not received:
            break
        *lines, unread = (unread + received).split(b"\n")
        for line in lines:
            take(json.loads(line))
    now = time.monotonic()
    if now >= write_at:
        write()
        write_at = now + WRITE_EVERY_SECONDS
    if now >= beat_at:
        send("heartbeat", stats={"resources": len(works)})
        beat_at = now + BEAT_EVERY_SECONDS
