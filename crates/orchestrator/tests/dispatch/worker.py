"""A Celery worker for the tests. Its tasks know nothing of the orchestrator, but for one that shows what it could know.

    BROKER=redis://127.0.0.1:6379/0 python -m celery -A worker worker --pool solo
"""

import json
import os
import time
from pathlib import Path

from celery import Celery
from celery.signals import worker_ready

app = Celery("video", broker=os.environ["BROKER"], backend="rpc://")
app.conf.update(
    result_persistent=True,
    task_track_started=True,
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
    worker_redirect_stdouts=False,
    broker_connection_retry_on_startup=True,
    broker_transport_options=json.loads(os.environ.get("TRANSPORT_OPTIONS", "{}")),
)
app.conf.update(json.loads(os.environ.get("SETTINGS", "{}")))


@worker_ready.connect
def ready(sender, **_):
    print(f"ready {sender.hostname}", flush=True)


@app.task(name="video.add")
def add(a, b):
    return a + b


@app.task(name="video.length")
def length(values):
    return len(values)


@app.task(name="video.fail")
def fail(file):
    raise FileNotFoundError(file)


@app.task(name="video.nan")
def nan():
    return float("nan")


@app.task(name="video.known", bind=True)
def known(self):
    request = self.request
    return [request.id, request.solehold_job, request.solehold_stage, request.solehold_attempt, request.time_limit]


@app.task(name="video.begin", bind=True)
def begin(self, started, go):
    """Says that it has begun, is halfway, and waits for a file."""
    with open(started, "a") as file:
        file.write(f"{os.getpid()}\n")
    self.update_state(state="PROGRESS", meta={"current": 1, "total": 2})
    while not Path(go).exists():
        time.sleep(0.02)
    return os.getpid()


@app.task(name="video.take")
def take(started, seconds):
    """Takes its time, and leaves a line that it has begun."""
    with open(started, "a") as file:
        file.write(f"{os.getpid()}\n")
    time.sleep(seconds)
    return os.getpid()
