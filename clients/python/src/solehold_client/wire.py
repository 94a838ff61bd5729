"""What the answers say, as values. An incomplete answer counts as none: the outcome is then unknown."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Union
from urllib.parse import quote

from . import check
from .errors import Unknown
from .fence import Mark

Json = Union[None, bool, int, float, str, "list[Json]", "dict[str, Json]"]
"""Any JSON value."""

BASE = "/api/v1"


@dataclass(frozen=True)
class StateDocument:
    """The state document of a resource, as written under `token`."""

    token: int
    sequence: int
    document: Json
    written_at: str


@dataclass(frozen=True)
class Grant:
    """A lease as an acquire or renewal got it."""

    lease_id: str
    token: int
    ttl_left: float
    slack: float | None
    epoch: int | None
    revision: int
    state: StateDocument | None
    repeated: bool
    confirm_within: float | None
    """For a grant that was waited for: it lapses unless it is renewed within these seconds (rule 15)."""
    slot: int | None = None
    """Which slot of a shared resource; None if the lease is exclusive (rule 29)."""
    slots: int | None = None
    """Of how many."""

    @property
    def identity(self) -> tuple[str, int]:
        """The id of the lease and its token."""
        return self.lease_id, self.token


@dataclass(frozen=True)
class SessionView:
    """A session, and everything attached to it as of `revision`."""

    session_id: str
    ttl_left: float
    full_ttl: float
    slack: float | None
    epoch: int | None
    revision: int
    sealed_cursor: str | None
    leases: frozenset[tuple[str, int]]
    """The id and the token of each."""
    set_cursor: str | None = None
    """The name of the set, for the next heartbeat; none while it may change as time passes, and from an older server."""


@dataclass(frozen=True)
class Ownership:
    """Who owns a resource, as of a snapshot."""

    tenant: str
    kind: str
    key: str
    token: int
    """The token of the present grant, or of the last one: a gate admits none below it."""
    holder: str | None
    """None if nobody holds it."""
    lease_id: str | None
    session_id: str | None
    ttl_left: float
    """Seconds until the lease expires, unless it is renewed."""
    slot: int | None = None
    """Which of its slots this is, if it is shared."""


@dataclass(frozen=True)
class Snapshot:
    """Who owns what, as of one moment."""

    cursor: str
    resources: tuple[Ownership, ...]


@dataclass(frozen=True)
class Event:
    """One change of a resource or of the lease on it."""

    event_type: str
    """`lease_acquired`, `lease_released`, `lease_expired`, `lease_revoked`, ..."""
    cursor: str
    """The point to go on from, after this change."""
    revision: int
    timestamp: str
    """When it was decided, by the store's clock."""
    tenant: str
    kind: str
    key: str
    holder: str | None
    token: int | None
    lease_id: str | None
    session_id: str | None
    by: str | None
    """The id of the API key that did it, if there was one."""
    details: Mapping[str, Json]
    """What else is known, depending on `event_type`."""
    slot: int | None = None
    """Which of its slots it is about, if it is shared."""

    @property
    def is_renewal(self) -> bool:
        """Renewals are told live to those who ask for them, and have no place in the order of changes (rule 19)."""
        return self.event_type == "lease_renewed"


def path(*names: str) -> str:
    """A path below the base; names are escaped, so a slash within one is `%2F`.

    >>> path("resources", "scene", "hall/7 süd", "lease")
    '/api/v1/resources/scene/hall%2F7%20s%C3%BCd/lease'
    """
    return "/".join([BASE, *(segment(name) for name in names)])


def segment(name: str) -> str:
    """A name as one segment of a path."""
    return quote(check.name("a name in the path", name), safe="")


def encode(value: Mapping[str, Json]) -> bytes:
    """A body. A value that is not JSON raises an error that names its field."""
    try:
        return json.dumps(dict(value), allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError):
        for field, inner in value.items():
            try:
                json.dumps(inner, allow_nan=False)
            except (TypeError, ValueError, RecursionError) as error:
                kind = TypeError if isinstance(error, TypeError) else ValueError
                raise kind(f"{field} cannot be sent as JSON: {error}") from error
        raise


def decode(body: bytes) -> Json:
    """What an answer says."""
    try:
        value: Json = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Unknown("the answer is not JSON") from error
    return value


def grant(value: Json) -> Grant:
    """The answer to an acquire or a renewal."""
    fields = _Fields(value, "a grant")
    return Grant(
        lease_id=fields.text("lease_id"),
        token=fields.whole("token"),
        ttl_left=fields.whole("ttl_ms") / 1000,
        slack=fields.seconds_or_none("slack_ms"),
        epoch=fields.whole_or_none("epoch"),
        revision=fields.whole("revision"),
        state=None if fields.get("state") is None else state(fields.get("state")),
        repeated=fields.get("repeated") is True,
        confirm_within=fields.seconds_or_none("confirm_within_ms"),
        slot=fields.whole_or_none("slot"),
        slots=fields.whole_or_none("slots"),
    )


def grants(value: Json, count: int) -> list[Grant]:
    """The answer to an acquire of several, all or none: a grant for each."""
    results = _Fields(value, "a list of grants").get("results")
    if not isinstance(results, list) or len(results) != count:
        raise Unknown(f"the answer is not a list of grants: `results` has not {count} of them")
    items = [_Fields(result, "a grant") for result in results]
    if any(item.get("status") != "granted" for item in items):
        raise Unknown("the answer is not a list of grants: not all of them were granted")
    return [grant(item.get("lease")) for item in items]


def session(value: Json, known: SessionView | None = None) -> SessionView:
    """The answer to an opening, or to a heartbeat that named the set of `known`. Without a set it says that this is the set
    still, and must name it as well: nothing else is taken for it.
    """
    fields = _Fields(value, "a session")
    leases = fields.get("leases")
    if leases is not None and not isinstance(leases, list):
        raise Unknown("the answer is not a session: `leases` is not a list")
    view = SessionView(
        session_id=fields.text("session_id"),
        ttl_left=fields.whole("ttl_ms") / 1000,
        full_ttl=fields.whole("full_ttl_ms") / 1000,
        slack=fields.seconds_or_none("slack_ms"),
        epoch=fields.whole_or_none("epoch"),
        revision=fields.whole("revision"),
        sealed_cursor=fields.text_or_none("sealed_cursor"),
        leases=frozenset(_identity(lease) for lease in leases or []),
        set_cursor=fields.text_or_none("set_cursor"),
    )
    if leases is not None:
        return view
    if known is None or known.set_cursor is None or _set_of(view) != _set_of(known):
        raise Unknown("the answer is not a session: `leases` is missing, and it is not about the set that was named")
    return replace(view, leases=known.leases)


def _set_of(view: SessionView) -> tuple[object, ...]:
    return view.session_id, view.epoch, view.revision, view.set_cursor


def news(value: Json) -> tuple[list[str], str | None]:
    """The sessions that something has happened to, and where to go on from."""
    fields = _Fields(value, "news")
    sessions = fields.get("sessions")
    if not isinstance(sessions, list):
        raise Unknown("the answer is not news: `sessions` is not a list")
    return [session_id for session_id in sessions if isinstance(session_id, str)], fields.text_or_none("cursor")


def _identity(value: Json) -> tuple[str, int]:
    fields = _Fields(value, "a lease")
    return fields.text("lease_id"), fields.whole("token")


def state(value: Json) -> StateDocument:
    """A state document."""
    fields = _Fields(value, "a state")
    return StateDocument(
        token=fields.whole("token"),
        sequence=fields.whole("sequence"),
        document=fields.get("document"),
        written_at=fields.text("written_at"),
    )


def ended_as(value: Json) -> str | None:
    """How a lease ended, from the answer about it; none while it is held."""
    fields = _Fields(value, "an answer about a lease")
    return None if fields.get("success") is True else fields.text("status")


def position(cursor: str) -> tuple[int, int]:
    """A cursor as an epoch and a revision, which can be compared.

    >>> position("1.42") < position("2.7")
    True
    """
    epoch, dot, revision = cursor.partition(".")
    if not dot or not all(part.isascii() and part.isdecimal() for part in (epoch, revision)):
        raise ValueError(f"cursor is {cursor[:64]!r}: give one that a watch has told, such as '1.42'")
    return int(epoch), int(revision)


def cursor_of(value: Json, name: str = "cursor") -> str:
    """The cursor of a frame."""
    cursor = _Fields(value, "a frame of a watch").text(name)
    try:
        position(cursor)
    except ValueError as error:
        raise Unknown(f"a frame of the watch has a wrong cursor: {error}") from error
    return cursor


def event(value: Json) -> Event:
    """A frame `event`."""
    fields = _Fields(value, "an event")
    details = fields.get("details")
    return Event(
        event_type=fields.text("event_type"),
        cursor=cursor_of(value),
        revision=fields.whole("revision"),
        timestamp=fields.text("timestamp"),
        tenant=fields.text("tenant"),
        kind=fields.text("kind"),
        key=fields.text("key"),
        holder=fields.text_or_none("holder"),
        token=fields.whole_or_none("token"),
        lease_id=fields.text_or_none("lease_id"),
        session_id=fields.text_or_none("session_id"),
        by=fields.text_or_none("by"),
        details=details if isinstance(details, dict) else {},
        slot=fields.whole_or_none("slot"),
    )


def snapshot_part(value: Json) -> tuple[str, list[Ownership], bool]:
    """A frame `snapshot`: its cursor, a part of who owns what, and whether another part follows."""
    fields = _Fields(value, "a snapshot")
    resources = fields.get("resources")
    if not isinstance(resources, list):
        raise Unknown("the answer is not a snapshot: `resources` is not a list")
    return cursor_of(value), [_ownership(resource) for resource in resources], fields.get("more") is True


def newest(value: Json, slot: int = 0) -> tuple[Mark | None, int | None]:
    """The newest token of a resource that was read, or of one of its slots, and the epoch of the answer. A slot without
    a holder is not shown.
    """
    fields = _Fields(value, "a resource")
    if slot:
        shared = fields.get("shared")
        leases = [_Fields(lease, "a lease") for lease in (shared if isinstance(shared, list) else [])]
        held = next((lease for lease in leases if lease.whole_or_none("slot") == slot), None)
        mark = None if held is None else Mark(held.whole("token"), held.text_or_none("session_id"))
        return mark, fields.whole_or_none("epoch")
    lease = fields.get("lease")
    session = None if lease is None else _Fields(lease, "a lease").text_or_none("session_id")
    return Mark(fields.whole("last_token"), session), fields.whole_or_none("epoch")


def _ownership(value: Json) -> Ownership:
    fields = _Fields(value, "who owns a resource")
    return Ownership(
        tenant=fields.text("tenant"),
        kind=fields.text("kind"),
        key=fields.text("key"),
        token=fields.whole("token"),
        holder=fields.text_or_none("holder"),
        lease_id=fields.text_or_none("lease_id"),
        session_id=fields.text_or_none("session_id"),
        ttl_left=fields.whole("ttl_ms") / 1000,
        slot=fields.whole_or_none("slot"),
    )


class _Fields:
    """Reads an object, and names what is missing."""

    def __init__(self, value: Json, what: str) -> None:
        if not isinstance(value, dict):
            raise Unknown(f"the answer is not {what}: it is not an object")
        self._value: dict[str, Any] = value
        self._what = what

    def get(self, name: str) -> Json:
        value: Json = self._value.get(name)
        return value

    def text(self, name: str) -> str:
        value = self._value.get(name)
        if not isinstance(value, str):
            raise Unknown(f"the answer is not {self._what}: `{name}` is not a string")
        return value

    def whole(self, name: str) -> int:
        value = self._value.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise Unknown(f"the answer is not {self._what}: `{name}` is not a whole number")
        return value

    def text_or_none(self, name: str) -> str | None:
        return None if self._value.get(name) is None else self.text(name)

    def whole_or_none(self, name: str) -> int | None:
        return None if self._value.get(name) is None else self.whole(name)

    def seconds_or_none(self, name: str) -> float | None:
        return None if self._value.get(name) is None else self.whole(name) / 1000
