"""When to renew a session, and when its holder must stop. Pure: ticks and randomness are arguments.

    live --(a renewal is answered)--> live, with a later deadline
    live --(the authority refuses)--> lost
    live --(a renewal fails, `immediate`)--> lost
    live --(the deadline passes, and the grace if there is one)--> lost

Lost is for good: an answer that comes after it changes nothing.

A heartbeat without an answer is not given up for that: it may use all of the time that is left. After a while another one is
sent beside it, to another server if there is one. Whichever is answered counts from when it was sent, so a server that is
slow costs no session.

Only the answer to a heartbeat moves trust, and only a heartbeat puts off the next one: that answer alone comes with the full
set of leases. The renewal of a single lease says nothing about the others, one of which may have been revoked since, so the
machine is never told of one.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import ClassVar, Literal

from . import check, trust
from .backoff import Backoff, BackoffConfig
from .errors import Lost

# Heartbeats go out at a third of the ttl or a little earlier, so that those of a fleet spread.
INTERVAL_SHARE = 1 / 3
INTERVAL_JITTER = 0.2
# After this share of the ttl, or this many seconds, another heartbeat is sent beside one that is not answered.
BESIDE_SHARE = INTERVAL_SHARE / 3
BESIDE_SECONDS_MIN = 0.25
# Most heartbeats of a session that are under way at once.
FLIGHTS_MAX = 8
RETRY_SHARE_FIRST = 1 / 200
RETRY_SHARE_MAX = 1 / 12


@dataclass(frozen=True)
class Policy:
    """What to do while renewals fail. A refusal always stops at once.

    `IMMEDIATE` stops at the first renewal that fails. `DEADLINE` tries again until the local deadline, then stops.
    `grace(seconds)` works on for that long after the deadline while the authority is unreachable; it needs a gate that
    refuses old tokens.
    """

    name: Literal["immediate", "deadline", "grace"]
    grace_seconds: float = 0.0

    IMMEDIATE: ClassVar[Policy]
    DEADLINE: ClassVar[Policy]

    @staticmethod
    def grace(seconds: float) -> Policy:
        """Goes on for `seconds` after the deadline while the authority is unreachable."""
        check.seconds("the grace", seconds, lambda grace: 0 < grace < float("inf"), "seconds above 0")
        return Policy("grace", seconds)


Policy.IMMEDIATE = Policy("immediate")
Policy.DEADLINE = Policy("deadline")


@dataclass(frozen=True)
class Send:
    """Send a heartbeat now, and do not wait for it; each server has `timeout` seconds."""

    flight: int
    """Tells it from others."""
    timeout: float
    beside: int
    """How many others are under way: as many servers are being asked already."""


@dataclass(frozen=True)
class Wait:
    """Nothing to do until this tick, or until something happens."""

    until: float


@dataclass(frozen=True)
class Stop:
    """It is lost."""

    lost: Lost


class Renewer:
    """The trust window of one session."""

    def __init__(
        self, policy: Policy, *, ttl: float, sent: float, ttl_left: float, slack: float | None, rng: random.Random
    ) -> None:
        self._policy = policy
        self._ttl = ttl
        self._rng = rng
        self._retries = Backoff(BackoffConfig(first=ttl * RETRY_SHARE_FIRST, cap=ttl * RETRY_SHARE_MAX), rng)
        self._beside_after = max(ttl * BESIDE_SHARE, BESIDE_SECONDS_MIN)
        self._flights: dict[int, float] = {}
        """When the heartbeats were sent that are under way, by their numbers."""
        self._flights_sent = 0
        self._has_news = False
        self._failure = "no renewal was answered"
        self.deadline = trust.deadline(sent, ttl_left, ttl, slack)
        """The tick at which trust in the last answer ends."""
        self.lost: Lost | None = None
        """Why it is lost, once it is."""
        self._next = self._after(sent)

    @property
    def ends_at(self) -> float:
        """The tick at which the work stops if no renewal comes through."""
        return self.deadline + self._policy.grace_seconds

    def is_live(self, now: float) -> bool:
        """Whether the work may go on. Once false, it stays false."""
        return self._judge(now) is None

    def poll(self, now: float) -> Send | Wait | Stop:
        """What to do at this tick."""
        if lost := self._judge(now):
            return Stop(lost)
        due = self._due()
        if now < due:
            return Wait(min(due, self.ends_at))
        beside = len(self._flights)
        self._flights_sent += 1
        self._flights[self._flights_sent] = now
        return Send(self._flights_sent, self._timeout(now, beside), beside)

    def _due(self) -> float:
        """When the next heartbeat is sent: at its time, or beside those that are not answered."""
        if not self._flights:
            return self._next
        # Where one failure is the end, nothing is sent beside a heartbeat.
        most = 1 if self._policy.name == "immediate" else FLIGHTS_MAX
        return max(self._flights.values()) + self._beside_after if len(self._flights) < most else float("inf")

    def _timeout(self, now: float, beside: int) -> float:
        left = self.ends_at - now
        if self._policy.name == "immediate":
            return min(left, self._ttl * INTERVAL_SHARE)
        return left if beside == 0 else min(left, self._beside_after * (FLIGHTS_MAX - 1))

    def answered(self, now: float, *, sent: float, ttl_left: float, slack: float | None) -> None:
        """A heartbeat was answered. A deadline never moves earlier, and those sent before it have nothing more to say."""
        self._flights = {flight: began for flight, began in self._flights.items() if began > sent}
        if self._judge(now) is None:
            self.deadline = max(self.deadline, trust.deadline(sent, ttl_left, self._ttl, slack))
            self._next = now if self._has_news else max(self._next, self._after(sent))
            self._has_news = False
            self._retries.reset()

    def news(self, now: float) -> None:
        """Something has happened to the session: the next heartbeat is sent now. If one is on its way, which may have been
        answered before it happened, another one follows it.
        """
        self._has_news = bool(self._flights)
        self._next = min(self._next, now)

    def failed(self, flight: int, now: float, detail: str, retry_after: float | None = None) -> bool:
        """A heartbeat had no answer, or none that decides anything. False if one that was sent later was answered."""
        if self._flights.pop(flight, None) is None:
            return False
        self._failure = detail
        if self._policy.name == "immediate" and self._judge(now) is None:
            self.lost = Lost("failed", f"a renewal failed, and the policy is to stop at once: {detail}")
        self._next = now + self._retries.delay(least=min(retry_after or 0.0, self._ttl * RETRY_SHARE_MAX))
        return True

    def refused(self, detail: str, code: str = "") -> None:
        """The authority said that the session is over."""
        self.lost = self.lost or Lost("refused", f"the authority refused to renew: {detail}", code)

    def set_back(self, detail: str) -> None:
        """A heartbeat was answered from an older history: nothing of it is used."""
        self.lost = self.lost or Lost("history", detail)

    def closed(self) -> None:
        """The holder closed the session."""
        self.lost = self.lost or Lost("closed", "the session was closed")

    def _judge(self, now: float) -> Lost | None:
        if self.lost is None and now >= self.ends_at:
            self.lost = Lost("deadline", f"the deadline passed without a renewal: {self._failure}")
        return self.lost

    def _after(self, sent: float) -> float:
        return sent + self._ttl * INTERVAL_SHARE * self._rng.uniform(1 - INTERVAL_JITTER, 1.0)
