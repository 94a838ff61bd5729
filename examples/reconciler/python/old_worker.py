"""A worker as teams write it by hand, which the guide "moving row claims" replaces: two lease columns, the worker's own
clock, and the owner's name as the only guard. Nothing here knows of epochs or of Solehold.

    old_worker.py --database-url postgres://... --node-url http://127.0.0.1:8080/node
"""

import argparse
import datetime
import os
import signal
import threading

import psycopg
from psycopg.rows import namedtuple_row

from reconciler import LIMITS, Unreachable, ask, setting, verdict

CLAIM = """
WITH open AS (
    SELECT id FROM app.payment_requests
    WHERE status IN ('pending', 'detected', 'reorged')
      AND (reconcile_lease_until IS NULL OR reconcile_lease_until <= %(now)s)
    ORDER BY created_at, id LIMIT %(limit)s FOR UPDATE SKIP LOCKED
)
UPDATE app.payment_requests p SET reconcile_lease_owner = %(owner)s, reconcile_lease_until = %(until)s
FROM open WHERE p.id = open.id
RETURNING p.id, p.status, p.address, p.created_at, p.expires_at
"""
TRANSITION = """
UPDATE app.payment_requests
SET status = %s, reconcile_lease_owner = NULL, reconcile_lease_until = NULL, updated_at = now()
WHERE id = %s AND status = %s AND reconcile_lease_owner = %s
"""
# The table of the example wants an epoch; a worker like this one has none.
OUTBOX = """INSERT INTO app.payment_outbox (payment_request_id, from_status, to_status, epoch, worker_id)
    VALUES (%s, %s, %s, 0, %s)"""


def cycle(connection, node_url, worker, lease):
    now = datetime.datetime.now(datetime.timezone.utc)
    until = now + datetime.timedelta(seconds=lease)
    claimed = connection.execute(CLAIM, {"now": now, "until": until, "limit": 20, "owner": worker}).fetchall()
    for row in claimed:
        try:
            seen = ask(node_url, row.address, max(0, int((now - row.created_at).total_seconds() * 1000)))
        except Unreachable:
            continue
        to = verdict(row.status, seen, now >= row.expires_at)
        if to is None:
            continue
        with connection.transaction():
            if connection.execute(TRANSITION, [to, row.id, row.status, worker]).rowcount == 1:
                connection.execute(OUTBOX, [row.id, row.status, to, worker])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--database-url", default=os.environ.get("DATABASE_URL"))
    parser.add_argument("--node-url", default="http://127.0.0.1:8080/node")
    args = parser.parse_args()
    worker, lease = setting("WORKER_ID", "old"), float(setting("LEASE_SECONDS", "30"))
    poll = float(setting("POLL_INTERVAL_SECONDS", "15"))
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    print(f"reconciler running as {worker}", flush=True)
    while not stopped.is_set():
        try:
            options = {"autocommit": True, "row_factory": namedtuple_row, "options": LIMITS}
            with psycopg.connect(args.database_url, **options) as connection:
                while not stopped.is_set():
                    cycle(connection, args.node_url, worker, lease)
                    stopped.wait(poll)
        except psycopg.Error as error:
            print(f"cycle failed: {error}", flush=True)
            stopped.wait(poll)
    print("reconciler stopped", flush=True)


if __name__ == "__main__":
    main()
