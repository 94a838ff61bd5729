"""The workers of the video pipeline: Celery tasks that know nothing of the orchestrator. What they get is in
orchestrator.yaml, as `args` and `kwargs` of their stages.

    BROKER=amqp://guest:guest@127.0.0.1:5672// celery -A worker worker

Four settings matter to the orchestrator, and `solehold orchestrator --check` asks for them: results go where the task
says (`rpc://`) and survive a restart of the broker, a task that has begun says so, and a task is acknowledged when it is
done, so that it comes again if its worker dies.

A task may run twice. Its result counts once; what it does elsewhere (a file, a call) must bear that, or go through a
gate. `self.request.id` is the same each time, and `self.request.solehold_attempt` tells attempts apart.
"""

import json
import os
import time

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

# How long a step of the work takes.
STEP_S = float(os.environ.get("STEP_S", "0"))


@worker_ready.connect
def ready(sender, **_):
    print(f"ready {sender.hostname}", flush=True)


def work(task, steps):
    """Stands for the work on a GPU, and says how far it is."""
    for step in range(steps):
        if STEP_S:
            time.sleep(STEP_S)
            task.update_state(state="PROGRESS", meta={"current": step + 1, "total": steps})


@app.task(name="video.decode", bind=True)
def decode(self, job_id, video):
    work(self, 2)
    return {"frames": 250, "of": video}


@app.task(name="video.detect_players", bind=True)
def detect_players(self, job_id, frames):
    work(self, 4)
    return {"players": 22, "in": frames}


@app.task(name="video.detect_ball", bind=True)
def detect_ball(self, job_id, frames):
    work(self, 4)
    return {"balls": 1, "in": frames}


@app.task(name="video.render", bind=True)
def render(self, job_id, title, players, balls):
    work(self, 2)
    return {"url": f"s3://videos/{job_id}.mp4", "title": f"{title}: {players} players, {balls} ball"}
