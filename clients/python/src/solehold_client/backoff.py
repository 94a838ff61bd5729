"""How long to wait before asking again. Pure: randomness is an argument."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True)
class BackoffConfig:
    """Delays double from `first` to `cap`, in seconds."""

    first: float = 0.05
    cap: float = 2.0

    def __post_init__(self) -> None:
        if not 0 < self.first <= self.cap < float("inf"):
            raise ValueError(f"a backoff from {self.first} to {self.cap} s makes no sense: 0 < first <= cap")


class Backoff:
    """The delays of one series of attempts. Each is half fixed and half random, so that many clients do not come back
    at the same time.
    """

    def __init__(self, config: BackoffConfig, rng: random.Random) -> None:
        self._config = config
        self._rng = rng
        self._next = config.first

    def reset(self) -> None:
        """Begins anew, after something went well."""
        self._next = self._config.first

    def delay(self, *, least: float = 0.0) -> float:
        """The next delay. `least` is what the authority asked for."""
        whole = self._next
        self._next = min(self._config.cap, whole * 2)
        return max(least, whole * self._rng.uniform(0.5, 1.0))
