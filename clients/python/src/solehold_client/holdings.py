"""Which leases a session holds, from grants and lease sets that may arrive in any order (rule 9). Pure."""

from __future__ import annotations

from collections.abc import Set

Position = tuple[int, int]
"""Where something stands in the store's history: an epoch, and a revision within it."""
Identity = tuple[str, int]
"""The id of a lease and its token: under another token it is another grant."""


class Holdings:
    """Grants and sets both have a position. A set says nothing about a grant that is newer than itself."""

    def __init__(self) -> None:
        self._held: dict[Identity, Position] = {}
        self._at: Position = (0, -1)
        self._set: Set[Identity] = frozenset()

    def granted(self, lease: Identity, at: Position) -> bool:
        """Takes in a grant; false if a newer set shows that it has ended since."""
        if at <= self._at and lease not in self._set:
            return False
        self._held[lease] = at
        return True

    def let_go(self, lease: Identity) -> None:
        """The holder released it."""
        self._held.pop(lease, None)

    def take(self, at: Position, leases: Set[Identity]) -> list[Identity]:
        """Takes in a set, unless a newer one came before; the leases that it shows to have ended."""
        if at < self._at:
            return []
        self._at, self._set = at, leases
        ended = [lease for lease, granted_at in self._held.items() if granted_at <= at and lease not in leases]
        for lease in ended:
            del self._held[lease]
        return ended
