"""Reconciles payment requests with the chain over the SQL functions of their table.

    reconciler.py --database-url postgres://... --node-url http://127.0.0.1:8080/node

Run as many as you like, beside those in Rust; PAYMENT_REQUEST_RECONCILER_WORKER_ID and so on are the same variables.
"""

import argparse
import concurrent.futures
import json
import os
import signal
import socket
import threading
import time
import urllib.parse
import urllib.request

import psycopg
from psycopg.rows import namedtuple_row

CHAIN = "simulated"
# What a process that is paused in the middle of a transaction can cost the others.
LIMITS = "-c idle_in_transaction_session_timeout=5s -c lock_timeout=5s"
CLAIM = "SELECT * FROM app.payment_requests_claim(%s, %s, %s)"
COMPLETE = "SELECT id, outcome FROM app.payment_requests_complete_all(%s, %s, %s, %s, %s)"
DEFER = "SELECT id, outcome FROM app.payment_requests_defer_all(%s, %s, %s, %s, %s)"
FAIL = "SELECT id, outcome FROM app.payment_requests_fail_all(%s, %s, %s, %s, %s, 0)"
RELEASE = "SELECT id, outcome FROM app.payment_requests_release_all(%s, %s, %s)"
OUTBOX = """INSERT INTO app.payment_outbox (payment_request_id, from_status, to_status, epoch, worker_id)
    VALUES (%s, %s, %s, %s, %s)"""


class Unreachable(Exception):
    """The node gives no usable answer, which says nothing about the payment."""


def setting(name, default):
    return os.environ.get(f"PAYMENT_REQUEST_RECONCILER_{name}", default)


def ask(node_url, address, age_ms):
    """What the chain knows of a payment: unknown, in_block or final."""
    try:
        url = f"{node_url}/{urllib.parse.quote(address)}?age_ms={age_ms}"
        with urllib.request.urlopen(url, timeout=1) as response:
            answer = json.load(response)
        if answer["address"] != address:
            raise Unreachable(f"the node answered about {answer['address']}")
        return answer["seen"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Unreachable(f"{type(error).__name__}: {error}") from error


def verdict(status, seen, is_late):
    """The next status, or None. A payment that arrived counts even after the deadline."""
    if seen == "final":
        return "confirmed"
    if status == "detected":
        return "reorged" if seen == "unknown" else None
    return "detected" if seen == "in_block" else "expired" if is_late else None


class Reconciler:
    def __init__(self, database_url, node_url):
        self.database_url = database_url
        self.node_url = node_url
        self.worker = setting("WORKER_ID", f"{socket.gethostname()}-{os.getpid()}")
        self.poll = float(setting("POLL_INTERVAL_SECONDS", "15"))
        self.lease = float(setting("LEASE_SECONDS", "30"))
        self.batch = int(setting("BATCH_SIZE", "100"))
        self.stopped = threading.Event()
        self.threads = concurrent.futures.ThreadPoolExecutor(16)

    def observe(self, row):
        if row.chain != CHAIN:
            return "fail", f"there is no chain {row.chain!r} here"
        try:
            # Both times are the database's.
            age_ms = max(0, int((row.claimed_at - row.created_at).total_seconds() * 1000))
            seen = ask(self.node_url, row.address, age_ms)
        except Unreachable:
            return "restore", None
        to = verdict(row.claim_state, seen, row.claimed_at >= row.expires_at)
        return ("complete", to) if to else ("reset", None)

    def cycle(self, connection):
        # Counted from before the claim is sent: observations end before another worker may begin.
        deadline = time.monotonic() + 0.8 * self.lease
        rows = connection.execute(CLAIM, [self.worker, self.batch, self.lease]).fetchall()
        futures = [(row, self.threads.submit(self.observe, row)) for row in rows]
        concurrent.futures.wait([future for _, future in futures], max(0, deadline - time.monotonic()))
        results = {kind: [] for kind in ("complete", "reset", "restore", "fail", "release")}
        for row, future in futures:
            kind, detail = ("release", None) if future.cancel() or not future.done() else future.result()
            results[kind].append((row, detail))
        self.settle(connection, results)
        return len(rows)

    def settle(self, connection, results):
        """All results in one transaction, with the outbox. The functions check each claim, and say which were lost."""

        def call(sql, chosen, *more):
            rows = [row for row, _ in chosen]
            proofs = [self.worker, [row.claim_id for row in rows], [row.claim_epoch for row in rows]]
            outcomes = {done.id: done.outcome for done in connection.execute(sql, [*proofs, *more])} if rows else {}
            return [(row, detail) for row, detail in chosen if outcomes[row.claim_id] == "done"]

        with connection.transaction():
            moved = results["complete"]
            done = call(COMPLETE, moved, [row.claim_state for row, _ in moved], [to for _, to in moved])
            effects = [(row.claim_id, row.claim_state, to, row.claim_epoch, self.worker) for row, to in done]
            connection.cursor().executemany(OUTBOX, effects)
            for attempts in ("reset", "restore"):
                call(DEFER, results[attempts], [self.poll] * len(results[attempts]), attempts)
            hopeless = results["fail"]
            call(FAIL, hopeless, [reason for _, reason in hopeless], [0.0] * len(hopeless))
            call(RELEASE, results["release"])
        if moved:
            print(f"reconciler cycle: moved={len(done)} lost={len(moved) - len(done)}", flush=True)

    def run(self):
        while not self.stopped.is_set():
            try:
                options = {"autocommit": True, "row_factory": namedtuple_row, "options": LIMITS}
                with psycopg.connect(self.database_url, **options) as connection:
                    while not self.stopped.is_set():
                        if self.cycle(connection) < self.batch:
                            self.stopped.wait(self.poll)
            except psycopg.Error as error:
                # Whatever was not committed is claimed again when its lease has run out.
                print(f"cycle failed: {error}", flush=True)
                self.stopped.wait(self.poll)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--database-url", default=os.environ.get("DATABASE_URL"))
    parser.add_argument("--node-url", default="http://127.0.0.1:8080/node")
    args = parser.parse_args()
    reconciler = Reconciler(args.database_url, args.node_url)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: reconciler.stopped.set())
    print(f"reconciler running as {reconciler.worker}", flush=True)
    reconciler.run()
    print("reconciler stopped", flush=True)


if __name__ == "__main__":
    main()
