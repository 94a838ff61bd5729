"""What a client remembers of the store's history (rule 23). It outlives sessions. Pure.

A store that was restored, or an old server that came back after a failover, answers from an older history: what it says about
leases has been overtaken, so nothing of it is taken up. The epoch tells the two apart. Where a restore brought the epoch back
as well, the sealed cursor does: heartbeats show it, and a store that is behind it knows that it was set back.
"""

from __future__ import annotations


class OlderHistory(Exception):
    """An answer comes from an older history than one that was seen before."""

    def __init__(self, seen: int, told: int) -> None:
        super().__init__(
            f"the store answered from an older history (epoch {told}, but epoch {seen} was seen before): "
            "it was restored, or an old server came back after a failover"
        )
        self.seen = seen
        self.told = told


class History:
    """The highest epoch that was seen, and the last cursor that the store sealed for this client."""

    def __init__(self) -> None:
        self._epoch = 0
        self.sealed_cursor: str | None = None
        """What to show with the next heartbeat."""

    def follow(self, told: int | None) -> int:
        """Judges an answer and gives its epoch. One without an epoch, as from an older server, counts as of the
        present one.

        >>> history = History()
        >>> history.follow(3), history.follow(None)
        (3, 3)
        """
        epoch = self._epoch if told is None else told
        if epoch < self._epoch:
            raise OlderHistory(self._epoch, epoch)
        self._epoch = epoch
        return epoch

    def keep(self, sealed_cursor: str | None) -> None:
        """Keeps the cursor of an answer. The store has been shown the one kept so far, so the new one is not behind
        it.
        """
        if sealed_cursor is not None:
            self.sealed_cursor = sealed_cursor
