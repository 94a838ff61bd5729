"""Creates jobs: one command for each match, under the key that keeps the commands of a match in order.

    python produce.py --brokers localhost:9092 --organization acme --match final-2026 video.mp4
    python produce.py --brokers localhost:9092 --organization acme --match final-2026 --cancel
"""

import argparse
import asyncio
import json

from aiokafka import AIOKafkaProducer


async def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("video", nargs="?", help="what the job works on")
    parser.add_argument("--brokers", required=True)
    parser.add_argument("--topic", default="polyvision.jobs.commands")
    parser.add_argument("--organization", required=True)
    parser.add_argument("--match", required=True)
    parser.add_argument("--job", help="the job's id [ORGANIZATION-MATCH]")
    parser.add_argument("--cancel", action="store_true", help="cancel the job instead")
    parser.add_argument("--api-version", default="auto", help="0.9 for Kafka 0.9")
    options = parser.parse_args()
    if not options.video and not options.cancel:
        parser.error("name a video, or give --cancel")

    job_command = {
        "type": "CANCEL" if options.cancel else "CREATE",
        "job_id": options.job or f"{options.organization}-{options.match}",
        "organization_id": options.organization,
        "match_id": options.match,
    }
    if options.video:
        job_command["input"] = {"video": options.video}
    producer = AIOKafkaProducer(
        bootstrap_servers=options.brokers, acks="all", api_version=options.api_version
    )
    await producer.start()
    try:
        sent = await producer.send_and_wait(
            options.topic,
            key=f"{options.organization}:{options.match}".encode(),
            value=json.dumps(job_command).encode(),
        )
        print(f"{job_command['type']} {job_command['job_id']} is at offset {sent.offset} of partition {sent.partition}")
    finally:
        await producer.stop()


asyncio.run(main())
