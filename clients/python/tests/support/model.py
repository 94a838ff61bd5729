"""A model of the authority by its rules, behind a network that delays, loses and cuts off. For virtual time only."""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from solehold_client import AnswerLost, NotSent, Request, Response, Server


@dataclass
class _Session:
    holder: str
    ttl: float
    deadline: float
    revision: int


@dataclass
class _Lease:
    lease_id: str
    token: int
    session_id: str
    request_id: str


class Refusal(Exception):
    """An answer that is a problem document."""

    def __init__(self, status: int, code: str, **more: Any) -> None:
        super().__init__(code)
        self.status = status
        self.problem = {"code": code, "detail": code, "status": status, **more}


@dataclass
class Authority:
    """Sessions, leases and tokens by one clock: that of the loop."""

    slack_ms: int = 0
    revision: int = 0
    sessions: dict[str, _Session] = field(default_factory=dict)
    leases: dict[str, _Lease] = field(default_factory=dict)
    spent: set[str] = field(default_factory=set)
    log: list[tuple[float, str]] = field(default_factory=list)
    """What was asked, and when."""

    def answer(self, request: Request) -> Response:
        parts = [unquote(part) for part in request.target.split("/")[3:]]
        body = json.loads(request.body or b"{}")
        self.log.append((_now(), f"{request.method} {'/'.join(parts)}"))
        try:
            status, value = self._route(request.method, parts, body)
        except Refusal as refusal:
            return Response(refusal.status, json.dumps(refusal.problem).encode())
        return Response(status, b"" if value is None else json.dumps(value).encode())

    def _route(self, method: str, parts: list[str], body: dict[str, Any]) -> tuple[int, Any]:
        if parts == ["sessions"]:
            return 201, self._open(body)
        if parts[0] == "sessions" and method == "PUT":
            return 200, self._heartbeat(parts[1])
        if parts[0] == "sessions" and method == "DELETE":
            return 200, self._close(parts[1])
        if parts[0] == "resources" and parts[3:] == ["lease"]:
            key = "/".join(parts[1:3])
            if method == "POST":
                return 201, self._acquire(key, body)
            self._release(key, body)
            return 204, None
        if parts[0] == "resources" and parts[3:] == ["lease", "cancel"]:
            self._cancel("/".join(parts[1:3]), body["request_id"])
            return 204, None
        raise Refusal(404, "no_such_route")

    def revoke(self, key: str) -> None:
        """Somebody ends a lease."""
        self._end(key)

    def live(self, session_id: str) -> _Session:
        session = self.sessions.get(session_id)
        if session is None or session.deadline <= _now():
            raise Refusal(404, "no_session")
        return session

    def _open(self, body: dict[str, Any]) -> dict[str, Any]:
        session_id = f"s{len(self.sessions)}"
        ttl = body["ttl_ms"] / 1000
        self.sessions[session_id] = _Session(body["holder"], ttl, _now() + ttl, self.revision)
        return self._view(session_id)

    def _heartbeat(self, session_id: str) -> dict[str, Any]:
        session = self.live(session_id)
        session.deadline = max(session.deadline, _now() + session.ttl)
        return self._view(session_id)

    def _close(self, session_id: str) -> dict[str, Any]:
        session = self.live(session_id)
        for key in [key for key, lease in self.leases.items() if lease.session_id == session_id]:
            self._end(key)
        session.deadline = _now()
        return {"session_id": session_id}

    def _acquire(self, key: str, body: dict[str, Any]) -> dict[str, Any]:
        session = self.live(body["session_id"])
        lease = self._held(key)
        if lease is not None and lease.request_id == body["request_id"]:
            return self._grant(lease, repeated=True)
        if body["request_id"] in self.spent:
            raise Refusal(409, "request_spent")
        if lease is not None:
            holder = self.sessions[lease.session_id]
            left = round((holder.deadline - _now()) * 1000)
            raise Refusal(409, "held", holder=holder.holder, token=lease.token, retry_after_ms=left)
        self.revision += 1
        session.revision = self.revision
        lease = _Lease(f"l{self.revision}", self.revision, body["session_id"], body["request_id"])
        self.leases[key] = lease
        return self._grant(lease, repeated=False)

    def _release(self, key: str, body: dict[str, Any]) -> None:
        lease = self._held(key)
        if lease is None or lease.lease_id != body["lease_id"]:
            raise Refusal(409, "lost")
        self._end(key)

    def _cancel(self, key: str, request_id: str) -> None:
        self.spent.add(request_id)
        lease = self._held(key)
        if lease is not None and lease.request_id == request_id:
            self._end(key)

    def _held(self, key: str) -> _Lease | None:
        lease = self.leases.get(key)
        if lease is not None and self.sessions[lease.session_id].deadline <= _now():
            self._end(key)
            return None
        return lease

    def _end(self, key: str) -> None:
        lease = self.leases.pop(key)
        self.revision += 1
        self.spent.add(lease.request_id)
        self.sessions[lease.session_id].revision = self.revision

    def _left_ms(self, session_id: str) -> int:
        return int((self.sessions[session_id].deadline - _now()) * 1000)

    def _grant(self, lease: _Lease, *, repeated: bool) -> dict[str, Any]:
        return {
            "lease_id": lease.lease_id,
            "token": lease.token,
            "ttl_ms": self._left_ms(lease.session_id),
            "slack_ms": self.slack_ms,
            "revision": self.revision,
            "state": None,
            "repeated": repeated,
        }

    def _view(self, session_id: str) -> dict[str, Any]:
        session = self.sessions[session_id]
        leases = [lease for lease in self.leases.values() if lease.session_id == session_id]
        return {
            "session_id": session_id,
            "ttl_ms": self._left_ms(session_id),
            "full_ttl_ms": round(session.ttl * 1000),
            "slack_ms": self.slack_ms,
            "revision": session.revision,
            "leases": [{"lease_id": lease.lease_id} for lease in leases],
        }


@dataclass
class Link:
    """The way of one worker to the authority. It may be cut on its way there, or on its way back."""

    authority: Authority
    rng: random.Random
    delay_max: float = 0.01
    cut: bool = False
    deaf: bool = False
    """Requests arrive, answers do not."""

    def transport(self) -> SimulatedTransport:
        return SimulatedTransport(self)


class SimulatedTransport:
    """A request that was given up on may still arrive."""

    def __init__(self, link: Link) -> None:
        self._link = link

    async def send(self, server: Server, request: Request) -> Response:
        link = self._link
        if link.cut and link.rng.random() < 0.5:
            raise NotSent("no route")
        answered: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        delivery = asyncio.ensure_future(self._deliver(request, answered))
        _DELIVERIES.add(delivery)
        delivery.add_done_callback(_DELIVERIES.discard)
        await asyncio.wait({answered}, timeout=request.timeout)
        if not answered.done():
            answered.cancel()
            raise AnswerLost("timed out")
        return answered.result()

    async def close(self) -> None:
        pass

    async def _deliver(self, request: Request, answered: asyncio.Future[Response]) -> None:
        link = self._link
        await asyncio.sleep(link.rng.uniform(0, link.delay_max))
        if link.cut:
            return
        response = link.authority.answer(request)
        await asyncio.sleep(link.rng.uniform(0, link.delay_max))
        if not link.cut and not link.deaf and not answered.done():
            answered.set_result(response)


_DELIVERIES: set[asyncio.Task[None]] = set()


def _now() -> float:
    return asyncio.get_running_loop().time()
