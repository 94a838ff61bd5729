"""Two gateways over one PostgreSQL; the one with messages in hand is killed. The gateways' own log, which they write
under their tokens, shows who answered what."""

import json
import os
import threading
import time
import urllib.request

from project import SOON, Failed, Project, expect, podman, wait_for

SESSIONS = 12
# Of each session, at least: clients go on until the killed gateway's sessions have been taken over.
MESSAGES = 6

# Messages that a gateway has begun and not answered: the last entries of their sessions.
IN_HAND = """
    SELECT session_id, position, token, node_id FROM gateway.log b
    WHERE step = 'begun' AND node_id LIKE '{}%'
      AND entry = (SELECT max(entry) FROM gateway.log l WHERE l.session_id = b.session_id)
"""
# Entries of a session whose token is smaller than the one before, and replies out of order.
DISORDER = """
    SELECT * FROM (
        SELECT session_id, entry, token, lag(token) OVER (PARTITION BY session_id ORDER BY entry) AS before
        FROM gateway.log) t WHERE token < before
    UNION ALL SELECT * FROM (
        SELECT session_id, entry, position, lag(position) OVER (PARTITION BY session_id ORDER BY entry) AS before
        FROM gateway.log WHERE step = 'answered') t WHERE position <= before
"""


class Client(threading.Thread):
    """Talks in one session: sends a message until it has a reply, to one gateway and the other in turns."""

    def __init__(self, session, urls, is_over):
        super().__init__(daemon=True)
        self.session = session
        self.urls = urls
        self.is_over = is_over
        self.replies = 0
        self.problem = None

    def run(self):
        while not self.is_over.is_set() or self.replies < MESSAGES:
            try:
                self.send(f"m-{self.replies}")
            except Failed as error:
                self.problem = error
                return
            self.replies += 1

    def send(self, name):
        body = json.dumps({"id": name, "text": f"hello {name}"}).encode()
        deadline = time.monotonic() + SOON
        turn = self.replies
        while time.monotonic() < deadline:
            url = f"{self.urls[turn % 2]}/sessions/{self.session}/messages"
            request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
            turn += 1
            try:
                with urllib.request.urlopen(request, timeout=20) as answer:
                    reply = json.load(answer)["reply"]
            except OSError:
                # The same message again, at the other one.
                time.sleep(0.2)
                continue
            if reply != f"you said: hello {name}":
                raise Failed(f"{name} of {self.session} got another message's reply: {reply}")
            return
        raise Failed(f"{name} of {self.session} got no reply")


def run(folder):
    # Messages that take their time: one of milliseconds could not be caught.
    os.environ["GATEWAY_WORK"] = "300ms"
    with Project(folder, "gateway") as project:
        sql = project.sql
        wait_for("PostgreSQL is healthy", lambda: project.is_healthy("postgres"))
        urls = []
        for service in ("gateway-1", "gateway-2"):
            url = wait_for(f"{service} has an address", lambda s=service: f"http://{project.address(s)}:8080")
            wait_for(f"{service} responds", lambda u=url: urllib.request.urlopen(f"{u}/health", timeout=5))
            urls.append(url)

        is_over = threading.Event()
        clients = [Client(f"chat-{number}", urls, is_over) for number in range(SESSIONS)]
        for client in clients:
            client.start()
        wait_for("each session has a reply", lambda: all(client.replies for client in clients))

        victim = project.containers("gateway-1")[0]
        node = victim["Id"][:12]

        def killed():
            """Stops the gateway, and kills it if it had messages in hand."""
            podman("kill", "--signal=STOP", victim["Id"])
            if sql(IN_HAND.format(node)):
                project.kill(victim)
                return True
            podman("kill", "--signal=CONT", victim["Id"])
            return False

        wait_for("a gateway with messages in hand was killed", killed)
        # What was on its way to the database has arrived, or never will.
        wait_for(
            "its connections are closed",
            lambda: sql("SELECT count(DISTINCT client_addr) FROM pg_stat_activity") == [["1"]],
        )
        held = sql(IN_HAND.format(node))
        expect(held, "the gateway had answered all its messages when it was killed")

        def taken_over():
            """Every message that it had begun was answered by the other one, under a larger token."""
            later = sql("SELECT session_id, position, token, node_id FROM gateway.log WHERE step = 'answered'")
            return all(
                any(s == session and p == position and int(t) > int(token) and not n.startswith(node)
                    for s, p, t, n in later)
                for session, position, token, _ in held
            )

        wait_for(f"{len(held)} sessions are taken over", taken_over)
        is_over.set()
        for client in clients:
            client.join(SOON)
            expect(not client.is_alive() and not client.problem, f"{client.session} failed: {client.problem}")

        sent = sum(client.replies for client in clients)
        [[messages, unanswered]] = sql("SELECT count(*), count(*) FILTER (WHERE reply IS NULL) FROM gateway.messages")
        expect((messages, unanswered) == (str(sent), "0"), f"{sent} were sent: {messages}, {unanswered} unanswered")
        nodes = sql("SELECT node_id, count(*) FROM gateway.log WHERE step = 'answered' GROUP BY 1")
        expect(sum(int(count) for _, count in nodes) == sent, f"{sent} messages, answered so often: {nodes}")
        expect(len(nodes) == 2, f"only one gateway took part: {nodes}")
        disorder = sql(DISORDER)
        expect(not disorder, f"answered twice, out of order or under an old token: {disorder}")
        print(f"  {len(held)} sessions of {node} were taken over; {sent} messages were answered once each, in order")
