"""What went wrong, by what it means for the caller.

A refusal is an outcome: nothing was granted, and it says who holds it. `Unknown` means that nobody knows whether it was
done (rule 8). `Unavailable` means that nothing was done.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class FieldError:
    """What is wrong with one field of a request."""

    field: str
    message: str


class SoleholdError(Exception):
    """Everything that this package raises by itself."""

    def __init__(
        self,
        detail: str,
        *,
        code: str = "",
        status: int | None = None,
        holder: str | None = None,
        token: int | None = None,
        retry_after: float | None = None,
        fields: tuple[FieldError, ...] = (),
        request_id: str | None = None,
    ) -> None:
        super().__init__(f"{code}: {detail}" if code else detail)
        self.detail = detail
        """What happened, to what, and what to do."""
        self.code = code
        """The server's word for it; empty if it did not come from a server."""
        self.status = status
        """The HTTP status, if a server answered."""
        self.holder = holder
        """Who holds the resource now, or gets it next."""
        self.token = token
        """The token of the present or last grant."""
        self.retry_after = retry_after
        """Seconds before which asking again is of no use."""
        self.fields = fields
        """All that is wrong with the request."""
        self.request_id = request_id
        """The server's name for the request, as in its log."""


class BadRequest(SoleholdError):
    """The request is wrong; `fields` says where."""


class Unauthorized(SoleholdError):
    """There was no key, or it is unknown, expired or revoked."""


class Forbidden(SoleholdError):
    """The key may not do this, or a quota is used up (`code` is then `quota_exceeded`)."""


class NotFound(SoleholdError):
    """There is no such thing, or the key may not see it."""


class Refused(SoleholdError):
    """The authority said no: `code` is `held`, `held_back`, `lost`, `not_yours`, `request_spent`, ..."""


class NoSession(Refused):
    """The session is not known, closed or expired."""


class Superseded(NoSession):
    """The session is over because its holder has opened another one."""


class Compacted(SoleholdError):
    """The events after the cursor of a watch are no longer kept: begin again without a cursor, with a snapshot."""


class Unavailable(SoleholdError):
    """No server could be asked, or it did nothing: safe to ask again."""


class Unknown(SoleholdError):
    """It is not known whether it was done."""


Why = Literal["deadline", "failed", "refused", "ended", "history", "released", "closed"]


class Lost(SoleholdError):
    """The lease is no longer held, or not known to be.

    `why` is `deadline` (no renewal came through in time), `failed` (one failed, under the policy `immediate`), `refused`
    (the authority said no), `ended` (someone else ended this lease), `history` (the store was set back to an older history),
    `released` (we let go) or `closed` (the session was closed). `code` is the server's word, where one refused.
    """

    def __init__(self, why: Why, detail: str, code: str = "") -> None:
        super().__init__(detail)
        self.why: Why = why
        self.code = code

    def again(self) -> Lost:
        """The same, to be raised: several callers may learn of one loss, and each needs an exception of its own."""
        return Lost(self.why, self.detail, self.code)


_BY_STATUS: dict[int, type[SoleholdError]] = {
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Refused,
    429: Unavailable,
}
_BY_CODE: dict[str, type[SoleholdError]] = {
    "no_session": NoSession,
    "session_superseded": Superseded,
    "lost": Refused,
    "compacted": Compacted,
    "request_timeout": Unavailable,
    "overloaded": Unavailable,
    "unavailable": Unavailable,
}


def from_answer(server: str, status: int, body: bytes) -> SoleholdError:
    """The problem document of an answer as an exception. Any other body proves nothing."""
    problem = _problem(body)
    code = problem.get("code")
    if not isinstance(code, str) or not code:
        return Unknown(f"{server} answered {status} without a problem document: is it a Solehold server?", status=status)
    kind = _BY_CODE.get(code) or _BY_STATUS.get(status) or (BadRequest if status < 500 else Unknown)
    retry_after_ms = _whole(problem.get("retry_after_ms"))
    return kind(
        _text(problem.get("detail")) or _text(problem.get("title")) or f"{server} answered {status}",
        code=code,
        status=status,
        holder=_text(problem.get("holder")),
        token=_whole(problem.get("token")),
        retry_after=None if retry_after_ms is None else retry_after_ms / 1000,
        fields=_fields(problem.get("errors")),
        request_id=_text(problem.get("request_id")),
    )


def _problem(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _fields(value: object) -> tuple[FieldError, ...]:
    faults = value if isinstance(value, list) else []
    return tuple(
        FieldError(str(fault.get("field", "")), str(fault.get("message", ""))) for fault in faults if isinstance(fault, dict)
    )
