"""Solehold's client for Python: leases with fencing tokens, for asyncio; `solehold_client.sync` is for threads.

Words and rules are those of Solehold: a `Session` is one incarnation of a holder, a `Guard` is one lease that it holds,
a token grows at each change of owner.
"""

from .backoff import BackoffConfig
from .client import Client
from .clock import BootClock, Clock
from .elect import elect
from .enterable import Enterable
from .errors import (
    BadRequest,
    Compacted,
    FieldError,
    Forbidden,
    Lost,
    NoSession,
    NotFound,
    Refused,
    SoleholdError,
    Superseded,
    Unauthorized,
    Unavailable,
    Unknown,
)
from .fence import Mark, Verdict
from .gate import Gate
from .guard import Guard, Guards
from .http import AnswerLost, HttpTransport, NotSent, Request, Response, Server, Stream, Transport
from .kept import keep_session
from .locks import Locks
from .renewer import Policy
from .session import Session, SessionConfig
from .watch import Watch
from .wire import Event, Json, Ownership, Snapshot, StateDocument

__all__ = [
    "AnswerLost",
    "BackoffConfig",
    "BadRequest",
    "BootClock",
    "Client",
    "Clock",
    "Compacted",
    "Enterable",
    "Event",
    "FieldError",
    "Forbidden",
    "Gate",
    "Guard",
    "Guards",
    "HttpTransport",
    "Json",
    "Locks",
    "Lost",
    "Mark",
    "NoSession",
    "NotFound",
    "NotSent",
    "Ownership",
    "Policy",
    "Refused",
    "Request",
    "Response",
    "Server",
    "Session",
    "SessionConfig",
    "Snapshot",
    "SoleholdError",
    "StateDocument",
    "Stream",
    "Superseded",
    "Transport",
    "Unauthorized",
    "Unavailable",
    "Unknown",
    "Verdict",
    "Watch",
    "elect",
    "keep_session",
]
