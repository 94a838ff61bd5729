"""A worker without asyncio, for the tests. Arguments: URL, what to do."""

from __future__ import annotations

import os
import signal
import sys

from solehold_client import Lost
from solehold_client.sync import Client, Session


def hold(session: Session) -> None:
    """Works, and checks before each step, as after a pause of the process."""
    with session.acquire("scene", "hall") as guard:
        print(f"held {guard.token}")
        try:
            while True:
                print(f"step {guard.check()}")
                guard.lost(timeout=0.01)
        except Lost as lost:
            print(f"lost {lost.why}")


def wait(session: Session) -> None:
    """Waits for what someone else holds, until it is interrupted, and goes on with something else."""
    try:
        session.acquire("scene", "hall")
    except KeyboardInterrupt:
        print(f"left {session.is_live()}")
    session.lost()


def fork(session: Session) -> None:
    """Uses the client in a child of this process."""
    child = os.fork()
    if child == 0:
        try:
            session.acquire("scene", "hall")
        except RuntimeError as error:
            print(f"child {error}", flush=True)
        os._exit(0)
    os.waitpid(child, 0)
    with session.acquire("scene", "hall") as guard:
        print(f"parent {guard.is_live()}")


def main(url: str, what: str) -> None:
    with Client(url) as client, Session.open(client, f"sync-{what}", ttl=3) as session:
        {"hold": hold, "wait": wait, "fork": fork}[what](session)


signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell would ignore it
try:
    main(sys.argv[1], sys.argv[2])
except KeyboardInterrupt:
    print("interrupted")
