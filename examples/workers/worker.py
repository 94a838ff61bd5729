#!/usr/bin/env python3
"""A worker for `solehold agent` with the standard library alone.

It counts, once per second and resource, and prints each number with the fencing token. A real worker would process
frames, and show the token to whatever it writes to. The count is its state: the next holder goes on
from there. docs/guides/workers.md describes what is said over the socket.
"""

import json
import os
import socket
import sys
import threading
import time

BEAT_EVERY_SECONDS = 5.0
WORK_EVERY_SECONDS = float(os.environ.get("WORK_EVERY_SECONDS", "1"))


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


class Work(threading.Thread):
    """The work on one resource."""

    def __init__(self, assignment):
        super().__init__(daemon=True)
        self.resource = assignment["resource"]
        self.token = assignment["token"]
        self.count = (assignment.get("state") or {}).get("count", 0)
        self.is_over = threading.Event()

    def run(self):
        while not self.is_over.wait(WORK_EVERY_SECONDS):
            if time.clock_gettime(time.CLOCK_BOOTTIME) * 1000 >= deadline_ms():
                continue  # No renewal came in time: somebody else may hold it by now.
            self.count += 1
            print(f"{self.resource} token {self.token} count {self.count}", flush=True)

    def stop(self):
        self.is_over.set()
        if self.is_alive():
            self.join()
        return {"count": self.count}


def deadline_ms():
    """Until when the leases are ours. The keeper keeps this file up to date, whatever the agent does."""
    with open(os.environ["SOLEHOLD_LEASE_FILE"], encoding="utf-8") as lines:
        values = dict(line.rstrip("\n").split("=", 1) for line in lines)
    return int(values["SOLEHOLD_DEADLINE_BOOTTIME_MS"])


def beat(agent, works):
    while True:
        agent.say("heartbeat", stats={"resources": len(works), "count": sum(work.count for work in works.values())})
        for work in list(works.values()):
            agent.say("state", resource=work.resource, document={"count": work.count})
        time.sleep(BEAT_EVERY_SECONDS)


def main():
    agent, works = Agent(os.environ["SOLEHOLD_WORKER_SOCKET"]), {}
    agent.say("ready")
    threading.Thread(target=beat, args=(agent, works), daemon=True).start()
    for message in agent.messages():
        if message["type"] == "prepare":
            agent.say("prepared", id=message["id"])  # Here a decoder would be opened.
        elif message["type"] == "assign" and message["resource"] in works:
            works[message["resource"]].token = message["token"]  # With grace, a lease may be won back under another.
        elif message["type"] == "assign":
            works[message["resource"]] = work = Work(message)
            work.start()
        elif message["type"] == "revoke":
            work = works.pop(message["resource"], None)
            agent.say("drained", id=message["id"], state=work.stop() if work else None)
        elif message["type"] == "error":
            print(f"the agent did not understand: {message['message']}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
