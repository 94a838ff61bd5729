"""What the answers say, as values. An incomplete answer counts as none: the outcome is then unknown."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Union
from urllib.parse import quote

from .errors import Unknown
from .limits import NAME_BYTES_MAX

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


def path(*names: str) -> str:
    """A path below the base; names are escaped, so a slash within one is `%2F`.

    >>> path("resources", "scene", "hall/7 süd", "lease")
    '/api/v1/resources/scene/hall%2F7%20s%C3%BCd/lease'
    """
    return "/".join([BASE, *(segment(name) for name in names)])


def segment(name: str) -> str:
    """A name as one segment of a path."""
    size = len(name.encode())
    if not 1 <= size <= NAME_BYTES_MAX or name in (".", ".."):
        shown = name if size <= NAME_BYTES_MAX else name[:32] + "..."
        raise ValueError(f"the name {shown!r} has {size} bytes: a name has 1 to {NAME_BYTES_MAX}, and is not '.' or '..'")
    return quote(name, safe="")


def encode(value: Mapping[str, Json]) -> bytes:
    """A body. A value that is not JSON raises `ValueError` or `TypeError`."""
    return json.dumps(dict(value), allow_nan=False, separators=(",", ":")).encode()


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
    )


def session(value: Json) -> SessionView:
    """The answer to an opening or a heartbeat."""
    fields = _Fields(value, "a session")
    leases = fields.get("leases")
    if not isinstance(leases, list):
        raise Unknown("the answer is not a session: `leases` is not a list")
    return SessionView(
        session_id=fields.text("session_id"),
        ttl_left=fields.whole("ttl_ms") / 1000,
        full_ttl=fields.whole("full_ttl_ms") / 1000,
        slack=fields.seconds_or_none("slack_ms"),
        epoch=fields.whole_or_none("epoch"),
        revision=fields.whole("revision"),
        sealed_cursor=fields.text_or_none("sealed_cursor"),
        leases=frozenset(_identity(lease) for lease in leases),
    )


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
