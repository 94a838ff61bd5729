"""A model of the authority by its rules, behind a network that delays, loses and cuts off. For virtual time only.

`test_model.py` runs one script against it and against a real server: what it answers is what the server answers.
"""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from solehold_client import AnswerLost, NotSent, Request, Response, Server, Stream

CONFIRM_SECONDS = 2.0
# How often it is looked at whether someone in line can be served.
SWEEP_SECONDS = 0.05


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
    confirm_until: float = float("inf")
    """It was waited for, and lapses then (rule 15)."""


@dataclass(eq=False)
class _Waiter:
    session_id: str
    request_id: str
    calls: int = 0
    granted: bool = False


class Refusal(Exception):
    """An answer that is a problem document."""

    def __init__(self, status: int, code: str, **more: Any) -> None:
        super().__init__(code)
        self.status = status
        self.problem = {"code": code, "detail": code, "status": status, **more}


@dataclass
class Authority:
    """Sessions, leases, lines and tokens by one clock: that of the loop."""

    slack_ms: int = 0
    epoch: int | None = None
    sealed_cursor: str | None = None
    revision: int = 0
    sessions: dict[str, _Session] = field(default_factory=dict)
    leases: dict[str, _Lease] = field(default_factory=dict)
    lines: dict[str, list[_Waiter]] = field(default_factory=dict)
    held_back: dict[str, tuple[float, int]] = field(default_factory=dict)
    """Until when nobody gets what was taken from its holder by force (rule 12), and under which token that held it."""
    spent: set[str] = field(default_factory=set)
    shown: list[str | None] = field(default_factory=list)
    """The sealed cursors that heartbeats have shown."""
    is_old: bool = False
    """It is of a version that names no sets, and refuses a heartbeat that does."""
    beats: list[str] = field(default_factory=list)
    """How heartbeats were answered: `set`, `known` without one, or `refused`."""
    log: list[tuple[float, str]] = field(default_factory=list)
    """What was asked, and when."""

    async def answer(self, request: Request) -> Response:
        parts = [unquote(part) for part in request.target.split("/")[3:]]
        body = json.loads(request.body or b"{}")
        self.log.append((_now(), f"{request.method} {'/'.join(parts)}"))
        try:
            status, value = await self._route(request.method, parts, body)
        except Refusal as refusal:
            return Response(refusal.status, json.dumps(refusal.problem).encode())
        return Response(status, b"" if value is None else json.dumps(value).encode())

    async def _route(self, method: str, parts: list[str], body: dict[str, Any]) -> tuple[int, Any]:
        match (method, *parts):
            case ("POST", "sessions"):
                return 201, self._open(body)
            case ("PUT", "sessions", session_id, "heartbeat"):
                self.shown.append(body.get("sealed_cursor"))
                return 200, self._heartbeat(session_id, body)
            case ("DELETE", "sessions", session_id):
                return 200, self._close(session_id)
            case ("POST", "resources", kind, key, "lease"):
                return await self._acquire_in_line(f"{kind}/{key}", body)
            case ("POST", "resources", kind, key, "lease", "renew"):
                return 200, self._renew(f"{kind}/{key}", body)
            case ("DELETE", "resources", kind, key, "lease"):
                self._release(f"{kind}/{key}", body)
                return 204, None
            case ("POST", "resources", kind, key, "lease", "cancel"):
                self._cancel(f"{kind}/{key}", body["request_id"])
                return 204, None
            case ("POST", "resources", kind, key, "lease", "revoke"):
                return 200, {"lease_id": self.revoke(f"{kind}/{key}", fenced=body.get("fenced") is True)}
        raise Refusal(404, "no_such_route")

    def revoke(self, key: str, *, fenced: bool = False) -> str:
        """Somebody ends a lease by force: nobody gets the resource before its holder must have stopped (rule 12)."""
        lease = self._held(key)
        if lease is None:
            raise Refusal(404, "not_found")
        if not fenced:
            self.held_back[key] = (self.sessions[lease.session_id].deadline, lease.token)
        self._end(key)
        return lease.lease_id

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

    def _heartbeat(self, session_id: str, body: dict[str, Any]) -> dict[str, Any]:
        if self.is_old and "known_set" in body:
            self.beats.append("refused")
            raise Refusal(400, "invalid_field", errors=[{"field": "known_set", "message": "is not a field"}])
        session = self.live(session_id)
        session.deadline = max(session.deadline, _now() + session.ttl)
        view = self._view(session_id)
        is_known = "known_set" in body and body["known_set"] == view.get("set_cursor")
        self.beats.append("known" if is_known else "set")
        if is_known:
            del view["leases"]
        return view

    def _close(self, session_id: str) -> dict[str, Any]:
        session = self.live(session_id)
        held = [key for key, lease in list(self.leases.items()) if lease.session_id == session_id and self._held(key) is lease]
        session.deadline = _now()
        for key in held:
            self._end(key)
        return {"session_id": session_id, "released": len(held)}

    def _acquire(self, key: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        self.live(body["session_id"])
        lease = self._held(key)
        if lease is not None and lease.request_id == body["request_id"]:
            return 200, self._grant(lease, repeated=True)
        if body["request_id"] in self.spent:
            raise Refusal(409, "request_spent")
        self._refuse_unless_free(key)
        return 201, self._grant(self._hold(key, body["session_id"], body["request_id"]), repeated=False)

    async def _acquire_in_line(self, key: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        until = _now() + body.get("wait_ms", 0) / 1000
        try:
            return self._acquire(key, body)
        except Refusal as refusal:
            if refusal.problem["code"] not in ("held", "held_back") or until <= _now():
                raise
        line = self.lines.setdefault(key, [])
        waiter = next((waiter for waiter in line if waiter.request_id == body["request_id"]), None)
        if waiter is None:
            waiter = _Waiter(body["session_id"], body["request_id"])
            line.append(waiter)
        waiter.calls += 1
        while not waiter.granted and waiter in line and _now() < until:
            await asyncio.sleep(min(SWEEP_SECONDS, until - _now()))
            self._serve(key)
        waiter.calls -= 1
        if not waiter.granted and waiter.calls == 0 and waiter in line:
            line.remove(waiter)  # the last of its calls has left the line
        # Granted, spent meanwhile, or refused because it came late.
        status, grant = self._acquire(key, body)
        return status if not waiter.granted else 201, {**grant, "repeated": False}

    def _serve(self, key: str) -> None:
        """The first in line who can take it gets what is free, and must confirm it."""
        line = self.lines.get(key, [])
        while self._held(key) is None and line and not self.is_held_back(key):
            waiter = line.pop(0)
            if self.sessions[waiter.session_id].deadline > _now() and waiter.request_id not in self.spent:
                waiter.granted = True
                self._hold(key, waiter.session_id, waiter.request_id).confirm_until = _now() + CONFIRM_SECONDS

    def _hold(self, key: str, session_id: str, request_id: str) -> _Lease:
        self.revision += 1
        self.sessions[session_id].revision = self.revision
        lease = _Lease(f"l{self.revision}", self.revision, session_id, request_id)
        self.leases[key] = lease
        return lease

    def _refuse_unless_free(self, key: str) -> None:
        if (lease := self._held(key)) is not None:
            holder = self.sessions[lease.session_id]
            left = round((holder.deadline - _now()) * 1000)
            raise Refusal(409, "held", holder=holder.holder, token=lease.token, retry_after_ms=left)
        if self.is_held_back(key):
            until, token = self.held_back[key]
            raise Refusal(409, "held_back", token=token, retry_after_ms=round((until - _now()) * 1000))

    def is_held_back(self, key: str) -> bool:
        """Whether it was taken from its holder by force, who may still work."""
        return key in self.held_back and self.held_back[key][0] > _now()

    def _renew(self, key: str, body: dict[str, Any]) -> dict[str, Any]:
        """Renewing a lease renews its session (rule 9)."""
        lease = self._proven(key, body)
        lease.confirm_until = float("inf")
        session = self.sessions[lease.session_id]
        session.deadline = max(session.deadline, _now() + session.ttl)
        return self._grant(lease, repeated=False)

    def _release(self, key: str, body: dict[str, Any]) -> None:
        self._proven(key, body)
        self._end(key)

    def _proven(self, key: str, body: dict[str, Any]) -> _Lease:
        lease = self._held(key)
        if lease is None or (lease.lease_id, lease.token) != (body["lease_id"], body["token"]):
            raise Refusal(409, "lost", token=body["token"])
        return lease

    def _cancel(self, key: str, request_id: str) -> None:
        self.spent.add(request_id)
        line = self.lines.get(key, [])
        line[:] = [waiter for waiter in line if waiter.request_id != request_id]
        lease = self._held(key)
        if lease is not None and lease.request_id == request_id:
            self._end(key)

    def _held(self, key: str) -> _Lease | None:
        lease = self.leases.get(key)
        if lease is not None and min(self.sessions[lease.session_id].deadline, lease.confirm_until) <= _now():
            self._end(key)
            return self.leases.get(key)
        return lease

    def _end(self, key: str) -> None:
        lease = self.leases.pop(key)
        self.revision += 1
        self.spent.add(lease.request_id)
        self.sessions[lease.session_id].revision = self.revision
        self._serve(key)

    def _left_ms(self, session_id: str) -> int:
        return int((self.sessions[session_id].deadline - _now()) * 1000)

    def _confirm_ms(self, lease: _Lease) -> int:
        return int((min(lease.confirm_until, _now() + 86_400) - _now()) * 1000)

    def _history(self) -> dict[str, Any]:
        told = {"epoch": self.epoch, "sealed_cursor": self.sealed_cursor}
        return {name: value for name, value in told.items() if value is not None}

    def _grant(self, lease: _Lease, *, repeated: bool) -> dict[str, Any]:
        grant = {
            "lease_id": lease.lease_id,
            "session_id": lease.session_id,
            "holder": self.sessions[lease.session_id].holder,
            "token": lease.token,
            "ttl_ms": min(self._left_ms(lease.session_id), self._confirm_ms(lease)),
            "slack_ms": self.slack_ms,
            "revision": self.revision,
            "state": None,
            "repeated": repeated,
        }
        if lease.confirm_until < float("inf"):
            grant["confirm_within_ms"] = self._confirm_ms(lease)
        return grant if self.epoch is None else {**grant, "epoch": self.epoch}

    def _view(self, session_id: str) -> dict[str, Any]:
        session = self.sessions[session_id]
        leases = [lease for key, lease in list(self.leases.items()) if lease.session_id == session_id]
        # A set can be named once nothing of it lapses by itself.
        is_named = not self.is_old and all(lease.confirm_until == float("inf") for lease in leases)
        return {
            "session_id": session_id,
            "holder": session.holder,
            "ttl_ms": self._left_ms(session_id),
            "full_ttl_ms": round(session.ttl * 1000),
            "slack_ms": self.slack_ms,
            "revision": session.revision,
            "leases": [{"lease_id": lease.lease_id, "token": lease.token} for lease in leases],
            **({"set_cursor": f"{self.epoch or 0}.{session.revision}"} if is_named else {}),
            **self._history(),
        }


@dataclass
class Link:
    """The way of one worker to the authority. It may be cut on its way there, or on its way back."""

    authority: Authority
    rng: random.Random
    delay_max: float = 0.01
    closed: bool = False
    """No server listens: every request is refused at once."""
    cut: bool = False
    deaf: bool = False
    """Requests arrive, answers do not."""
    forgets: bool = False
    """What is given up on its way there does not arrive."""

    def transport(self) -> SimulatedTransport:
        return SimulatedTransport(self)


class SimulatedTransport:
    """A request that was given up on may still arrive."""

    def __init__(self, link: Link) -> None:
        self._link = link

    async def send(self, server: Server, request: Request) -> Response:
        link = self._link
        if link.closed or (link.cut and link.rng.random() < 0.5):
            raise NotSent("no route")
        answered: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        delivery = asyncio.ensure_future(self._deliver(request, answered))
        _DELIVERIES.add(delivery)
        delivery.add_done_callback(_DELIVERIES.discard)
        try:
            await asyncio.wait({answered}, timeout=request.timeout)
        except asyncio.CancelledError:
            answered.cancel()
            raise
        if not answered.done():
            answered.cancel()
            raise AnswerLost("timed out")
        return answered.result()

    async def stream(self, server: Server, request: Request) -> Stream:
        raise NotSent("the model has no watch")

    async def close(self) -> None:
        pass

    async def _deliver(self, request: Request, answered: asyncio.Future[Response]) -> None:
        link = self._link
        await asyncio.sleep(link.rng.uniform(0, link.delay_max))
        if link.cut or (link.forgets and answered.cancelled()):
            return
        try:
            response = await link.authority.answer(request)
        except Exception as error:  # a fault of the model's own
            if not answered.done():
                answered.set_exception(error)
            raise
        await asyncio.sleep(link.rng.uniform(0, link.delay_max))
        if not link.cut and not link.deaf and not answered.done():
            answered.set_result(response)


_DELIVERIES: set[asyncio.Task[None]] = set()


def _now() -> float:
    return asyncio.get_running_loop().time()
