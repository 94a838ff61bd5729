"""A worker for the tests: works on one resource while it holds it, and says each step. Arguments: URL, holder, key,
ttl and, if it is shared, its slots.
"""

from __future__ import annotations

import asyncio
import sys

from solehold_client import Client, Guard, Lost, Session


async def main(url: str, holder: str, key: str, ttl: float, slots: int | None) -> None:
    async with Client(url) as client, Session.open(client, holder, ttl=ttl) as session:
        guard = await session.acquire("scene", key, slots=slots)
        print(f"held {guard.token}")
        try:
            await guard.run(work(guard))
        except Lost as lost:
            print(f"lost {lost.why}")
        print(f"released {await guard.release({'by': holder})}")


async def work(guard: Guard) -> None:
    while True:
        print(f"step {guard.token}")
        await asyncio.sleep(0.01)


asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4]), int(sys.argv[5]) if len(sys.argv) > 5 else None))
