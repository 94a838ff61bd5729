"""Three workers claim rows; the one with most claims is killed. The outbox shows what was done how often."""

import json
import os
import urllib.request

from project import Project, expect, podman, wait_for


def run(folder):
    requests = 300
    # Observations that last: a claim of milliseconds could not be caught.
    os.environ["CHAIN_LATENCY_MS"] = "3000"
    with Project(folder, "reconciler", "--scale", "worker=3") as project:
        sql = project.sql
        wait_for("PostgreSQL is healthy", lambda: project.is_healthy("postgres"))
        url = wait_for("the API has an address", lambda: f"http://{project.address('api')}:8080")
        wait_for("the API responds", lambda: urllib.request.urlopen(f"{url}/healthz", timeout=5).status == 200)
        for number in range(requests):
            request = urllib.request.Request(
                f"{url}/payment-requests",
                json.dumps({"amount": number + 1, "expires_in_seconds": 30}).encode(),
                {"Content-Type": "application/json", "Idempotency-Key": f"order-{number}"},
            )
            with urllib.request.urlopen(request, timeout=30) as answer:
                expect(answer.status == 201, f"request {number} was answered by {answer.status}")

        def claimed():
            return sql(
                "SELECT reconcile_lease_owner, count(*) FROM app.payment_requests"
                " WHERE reconcile_lease_until > clock_timestamp() GROUP BY 1 ORDER BY 2 DESC LIMIT 1"
            )

        def killed():
            """Stops the worker with most claims, and kills it unless it had returned them by then."""
            for owner, _ in claimed():
                [container] = [c for c in project.containers("worker") if owner.startswith(c["Id"][:12])]
                podman("kill", "--signal=STOP", container["Id"])
                [[held]] = sql(
                    "SELECT count(*) FROM app.payment_requests WHERE reconcile_lease_until > clock_timestamp()"
                    f" AND reconcile_lease_owner = '{owner}'"
                )
                if held != "0":
                    project.kill(container)
                    return owner, int(held)
                podman("kill", "--signal=CONT", container["Id"])
            return None

        victim, claims = wait_for("a worker with claims was killed", killed)
        workers = {row[0] for row in sql("SELECT DISTINCT worker_id FROM app.payment_outbox")}
        ended = "status IN ('confirmed', 'expired')"
        wait_for(
            "all requests have ended",
            lambda: sql(f"SELECT count(*) FROM app.payment_requests WHERE {ended}") == [[str(requests)]],
        )
        twice = sql(
            "SELECT payment_request_id, count(*) FROM app.payment_outbox"
            " WHERE to_status IN ('confirmed', 'expired') GROUP BY 1 HAVING count(*) <> 1"
        )
        expect(twice == [], f"ended more than once: {twice}")
        rows = sql("SELECT to_status, count(*) FROM app.payment_outbox GROUP BY 1 ORDER BY 1")
        finals = sum(int(count) for status, count in rows if status in ("confirmed", "expired"))
        expect(finals == requests, f"{requests} requests, and {finals} ends: {rows}")
        workers |= {row[0] for row in sql("SELECT DISTINCT worker_id FROM app.payment_outbox")}
        expect(len(workers - {victim}) == 2, f"the other two did not work: {workers}")
        print(f"  {claims} claims of {victim} were taken over; {requests} requests ended once each: {rows}")
