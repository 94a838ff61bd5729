"""The loop that a consumer of Kafka is often given: check a mark in Redis, do the work, set the mark, commit.

It stands here as a control, beside the orchestrator and under the same kills, to show what the order of these steps
costs. It follows the design that it is taken from as closely as a program can:

    if await redis.get(key): return
    await create_celery_tasks(job_id)
    await redis.setex(key, 86400 * 7, "1")
    await consumer.commit()

Killed after the work and before the mark, it does the work again. Paused past its session anywhere before the mark, it
works beside its successor. And since the mark knows only the job, a CANCEL that follows its CREATE is taken for a
repetition.

A test can hold it at a window (`--hold work` stops it after the work of the first job, before its mark), to kill or
pause it there. `--count N` ends it after N messages and prints how long they took. SIGTERM ends it after the message
that it is at.
"""

import argparse
import asyncio
import json
import signal
import time

import redis.asyncio as redis_client
from aiokafka import AIOKafkaConsumer

GROUP = "polyvision-orchestrator"


async def create_celery_tasks(redis, job_id, command):
    """The work: tasks for workers. In Redis, where a test can count them."""
    await redis.rpush("tasks", f"{command} {job_id}")


async def window(name, job_id, redis, hold):
    """A place where a process can be killed or paused. It goes on when Redis has the key `go`."""
    if name == hold:
        print(f"held after {name} of {job_id}", flush=True)
        while not await redis.get("go"):
            await asyncio.sleep(0.02)


async def handle_job_command(message, consumer, redis, hold):
    command = json.loads(message.value)
    job_id = command["job_id"]
    idempotency_key = f"job:processed:{job_id}"

    # Check if already processed
    if await redis.get(idempotency_key):
        print(f"skipped {command['command']} {job_id}", flush=True)
        await consumer.commit()
        return
    await window("check", job_id, redis, hold)

    # Process job
    await create_celery_tasks(redis, job_id, command["command"])
    await window("work", job_id, redis, hold)

    # Mark as processed (7-day TTL)
    await redis.setex(idempotency_key, 86400 * 7, "1")
    await window("mark", job_id, redis, hold)

    # Commit offset
    await consumer.commit()


async def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--brokers", required=True)
    parser.add_argument("--redis", required=True)
    parser.add_argument("--topic", default="polyvision.jobs.commands")
    parser.add_argument("--session-timeout-ms", type=int, default=10_000)
    parser.add_argument("--api-version", default="auto", help="0.9 for Kafka 0.9")
    parser.add_argument("--hold", choices=["check", "work", "mark"])
    parser.add_argument("--count", type=int)
    options = parser.parse_args()

    redis = redis_client.from_url(options.redis)
    consumer = AIOKafkaConsumer(
        options.topic,
        bootstrap_servers=options.brokers,
        group_id=GROUP,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=options.session_timeout_ms,
        heartbeat_interval_ms=options.session_timeout_ms // 3,
        api_version=options.api_version,
    )
    await consumer.start()
    busy, is_ending = asyncio.Lock(), asyncio.Event()

    async def end():
        is_ending.set()
        async with busy:
            await consumer.stop()

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: asyncio.ensure_future(end()))
    print("ready", flush=True)
    handled, began = 0, None
    async for message in consumer:
        began = began or time.monotonic()
        async with busy:
            if is_ending.is_set():
                break
            await handle_job_command(message, consumer, redis, options.hold)
        handled += 1
        if handled == options.count:
            print(f"handled {handled} in {time.monotonic() - began:.3f} s", flush=True)
            break
    await consumer.stop()


asyncio.run(main())
