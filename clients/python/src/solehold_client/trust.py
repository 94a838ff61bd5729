"""How long a holder may trust an answer (rule 4). Pure."""

from __future__ import annotations

from .limits import MARGIN_SECONDS_MIN, MARGIN_SHARE, MARGIN_SHARE_MAX, SLACK_SECONDS_UNKNOWN


def margin(ttl: float, slack: float | None) -> float:
    """What is taken off a ttl: 2 %, at least 100 ms, and the slack of the store's clock; at most half of the ttl.

    >>> margin(30.0, 0.0), margin(1.0, 0.0), margin(30.0, 0.5), margin(1.0, None)
    (0.6, 0.1, 1.1, 0.5)
    """
    own = max(ttl * MARGIN_SHARE, MARGIN_SECONDS_MIN)
    return min(own + (SLACK_SECONDS_UNKNOWN if slack is None else slack), ttl * MARGIN_SHARE_MAX)


def deadline(sent: float, ttl_left: float, ttl: float, slack: float | None) -> float:
    """The tick at which the work has stopped. It counts from before the request was sent: the store gave the time
    later.

    >>> deadline(100.0, 30.0, 30.0, 0.0)
    129.4
    """
    return sent + ttl_left - margin(ttl, slack)
