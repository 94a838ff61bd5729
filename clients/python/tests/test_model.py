"""One script, asked of the model of the authority and of a real server: both answer the same, so that the model
cannot drift.
"""

from __future__ import annotations

import asyncio
import json
import unittest
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from solehold_client import HttpTransport, Request, Response, Server

from .support.model import Authority
from .support.server import START_SECONDS_MAX, Solehold
from .support.virtual import simulate

Ask = Callable[[Request], Awaitable[Response]]
LONG_MS = 300_000
SHORT_MS = 1_000
# Fields that are times, compared within this many milliseconds: the script runs in less, and those that it compares
# are longer.
SLOWNESS_MS = 100_000
TIMES = ("ttl_ms", "retry_after_ms")
# What the model knows of an answer. The rest it does not claim to know.
IDS = ("lease_id", "session_id")
COMPARED = (*IDS, "code", "holder", "token", "full_ttl_ms", "slack_ms", "state", "repeated", "leases", "released")


class Script:
    """Asks, and writes down what was answered: ids by the order in which they came up, tokens by their order in size.
    """

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self.story: list[tuple[str, int, dict[str, Any]]] = []

    async def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Asks once, and writes it down."""
        status, value = await self._answer(method, path, body)
        self.story.append((f"{method} {path.partition('/')[0]} #{len(self.story)}", status, value))
        return value

    async def until(self, status: int, method: str, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Asks again and again until that is the status, and writes down that answer alone."""
        give_up = asyncio.get_running_loop().time() + START_SECONDS_MAX
        while asyncio.get_running_loop().time() < give_up:
            answered, value = await self._answer(method, path, body)
            if answered == status:
                self.story.append((f"{method} {path.partition('/')[0]} at last #{len(self.story)}", answered, value))
                return value
            await asyncio.sleep(0.02)
        raise AssertionError(f"{method} {path} was never answered {status}")

    async def _answer(self, method: str, path: str, body: Mapping[str, Any] | None) -> tuple[int, dict[str, Any]]:
        target = f"/api/v1/{path}"
        response = await self._ask(Request(method, target, None if body is None else json.dumps(body).encode(), 60.0))
        return response.status, json.loads(response.body) if response.body else {}

    def told(self) -> list[tuple[str, int, dict[str, Any]]]:
        """The story as it can be compared."""
        tokens = sorted({token for _, _, value in self.story for token in _tokens(value)})
        ids: dict[str, str] = {}
        return [(what, status, self._plain(value, tokens, ids)) for what, status, value in self.story]

    def _plain(self, value: dict[str, Any], tokens: list[int], ids: dict[str, str]) -> dict[str, Any]:
        plain: dict[str, Any] = {"confirm": "confirm_within_ms" in value} if "lease_id" in value else {}
        if "full_ttl_ms" in value:
            plain |= {"named": "set_cursor" in value, "has_set": "leases" in value}
        for name in COMPARED + TIMES:
            if value.get(name) is None and name != "state":
                continue
            if name in IDS:
                plain[name] = ids.setdefault(value[name], f"{name} {len(ids)}")
            elif name == "token":
                plain[name] = f"token {tokens.index(value[name])}"
            elif name == "leases":
                plain[name] = sorted(str(self._plain(lease, tokens, ids)["token"]) for lease in value[name])
            elif name in TIMES:
                plain[name] = -(-value[name] // SLOWNESS_MS)
            elif name in value:
                plain[name] = value[name]
        return plain


def _tokens(value: dict[str, Any]) -> list[int]:
    tokens = [value["token"]] if value.get("token") is not None else []
    return tokens + [lease["token"] for lease in value.get("leases", [])]


def proof(grant: Mapping[str, Any], session: Mapping[str, Any]) -> dict[str, Any]:
    return {"token": grant["token"], "lease_id": grant["lease_id"], "session_id": session["session_id"]}


async def script(ask: Ask) -> list[tuple[str, int, dict[str, Any]]]:
    """Everything that the model is used for."""
    run = Script(ask)
    one = await run.ask("POST", "sessions", {"holder": "one", "ttl_ms": LONG_MS})
    two = await run.ask("POST", "sessions", {"holder": "two", "ttl_ms": LONG_MS})

    def wants(session: dict[str, Any], request: str, **more: Any) -> dict[str, Any]:
        holder = "one" if session is one else "two"
        return {"holder": holder, "session_id": session["session_id"], "request_id": request, **more}

    # Granted, granted again, refused, kept by a heartbeat, let go, and not let go twice.
    grant = await run.ask("POST", "resources/scene/hall/lease", wants(one, "r1"))
    await run.ask("POST", "resources/scene/hall/lease", wants(one, "r1"))
    await run.ask("POST", "resources/scene/hall/lease", wants(two, "r2"))
    kept = await run.ask("PUT", f"sessions/{one['session_id']}/heartbeat", {})
    # A holder that names the set that it knows gets none, until it has changed.
    known = {"known_set": kept["set_cursor"]}
    await run.ask("PUT", f"sessions/{one['session_id']}/heartbeat", known)
    await run.ask("PUT", f"sessions/{one['session_id']}/heartbeat", known)
    await run.ask("DELETE", "resources/scene/hall/lease", proof(grant, one))
    await run.ask("POST", "resources/scene/hall/lease", wants(one, "r1"))
    await run.ask("PUT", f"sessions/{one['session_id']}/heartbeat", known)
    taken = await run.ask("POST", "resources/scene/hall/lease", wants(two, "r2"))
    await run.ask("DELETE", "resources/scene/hall/lease", {**proof(grant, one)})

    # Cancelled: before it is asked for, and after it is granted.
    await run.ask("POST", "resources/scene/yard/lease/cancel", {"holder": "one", "request_id": "r3"})
    await run.ask("POST", "resources/scene/yard/lease", wants(one, "r3"))
    await run.ask("POST", "resources/scene/hall/lease/cancel", {"holder": "two", "request_id": "r2"})
    await run.ask("PUT", f"sessions/{two['session_id']}/heartbeat", {})
    await run.ask("POST", "resources/lock/l/lease/renew", proof(taken, two))

    # Revoked by force, and held back; the fenced revocation is not.
    grant = await run.ask("POST", "resources/scene/hall/lease", wants(one, "r4"))
    await run.ask("POST", "resources/scene/hall/lease/revoke", {"token": grant["token"]})
    await run.ask("POST", "resources/scene/hall/lease", wants(two, "r5"))
    await run.ask("PUT", f"sessions/{one['session_id']}/heartbeat", {})
    grant = await run.ask("POST", "resources/scene/gate/lease", wants(one, "r6"))
    await run.ask("POST", "resources/scene/gate/lease/revoke", {"token": grant["token"], "fenced": True})
    await run.ask("POST", "resources/scene/gate/lease", wants(two, "r7"))

    # Waiting in line: too short, then served when it is let go, confirmed, and kept; one that is not confirmed lapses.
    lock = await run.ask("POST", "resources/lock/l/lease", wants(one, "r8", wait_ms=1_000))
    await run.ask("POST", "resources/lock/l/lease", wants(two, "r9", wait_ms=100))
    waiting = asyncio.ensure_future(run._answer("POST", "resources/lock/l/lease", wants(two, "r10", wait_ms=30_000)))
    await in_line(run, 1)
    await run.ask("DELETE", "resources/lock/l/lease", proof(lock, one))
    status, granted = await waiting
    run.story.append(("a lock that was waited for", status, granted))
    await run.ask("POST", "resources/lock/l/lease/renew", proof(granted, two))
    await run.ask("PUT", f"sessions/{two['session_id']}/heartbeat", {})
    waiting = asyncio.ensure_future(run._answer("POST", "resources/lock/l/lease", wants(one, "r11", wait_ms=30_000)))
    await in_line(run, 1)
    await run.ask("DELETE", "resources/lock/l/lease", proof(granted, two))
    status, granted = await waiting
    run.story.append(("a lock that is not confirmed", status, granted))
    await run.until(201, "POST", "resources/lock/l/lease", wants(two, "r12", wait_ms=0))
    await run.ask("POST", "resources/lock/l/lease/renew", proof(granted, one))

    # A session that runs out takes its lease along; one that is closed, too.
    short = await run.ask("POST", "sessions", {"holder": "short", "ttl_ms": SHORT_MS})
    mine = {"holder": "short", "session_id": short["session_id"], "request_id": "r13"}
    lapsed = await run.ask("POST", "resources/scene/roof/lease", mine)
    await run.until(201, "POST", "resources/scene/roof/lease", wants(one, "r14"))
    await run.ask("PUT", f"sessions/{short['session_id']}/heartbeat", {})
    await run.ask("DELETE", "resources/scene/roof/lease", proof(lapsed, short))
    await run.ask("DELETE", f"sessions/{one['session_id']}")
    await run.ask("PUT", f"sessions/{one['session_id']}/heartbeat", {})
    grant = await run.ask("POST", "resources/scene/roof/lease", wants(two, "r15"))
    await run.ask("DELETE", "resources/scene/roof/lease", proof(grant, two))
    await run.ask("DELETE", "resources/scene/roof/lease", proof(grant, two))
    return run.told()


async def in_line(run: Script, count: int) -> None:
    """Until so many wait for the lock. The model is not asked: there, everyone is in line by now."""
    while True:
        status, lock = await run._answer("GET", "locks/l", None)
        if status == 404 and lock.get("code") == "no_such_route":
            await asyncio.sleep(0.1)
            return
        if lock.get("waiting") == count:
            return
        await asyncio.sleep(0.01)


class TheModel(unittest.TestCase):
    maxDiff = None

    def test_it_answers_as_the_server_does(self) -> None:
        server = Solehold()
        self.addCleanup(server.stop)

        async def real() -> list[tuple[str, int, dict[str, Any]]]:
            transport, to = HttpTransport(), Server.parse(server.url)
            try:
                return await script(lambda request: transport.send(to, request))
            finally:
                await transport.close()

        told, modelled = asyncio.run(real()), simulate(script(Authority().answer))
        self.assertEqual(len(told), len(modelled))
        drifted = [(ours, theirs) for theirs, ours in zip(told, modelled) if ours != theirs]
        self.assertEqual(drifted, [], "the model's answer, and the server's")
