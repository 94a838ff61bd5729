"""Which leases a session holds, from grants and lease sets that may arrive in any order (rule 9). Pure."""

from __future__ import annotations

from collections.abc import Set


class Holdings:
    """Grants and sets both carry a revision. A set says nothing about a grant that is newer than itself."""

    def __init__(self) -> None:
        self._held: dict[str, int] = {}
        self._revision = -1
        self._set: Set[str] = frozenset()

    def granted(self, lease_id: str, revision: int) -> bool:
        """Takes in a grant; false if a newer set shows that it has ended since."""
        if revision <= self._revision and lease_id not in self._set:
            return False
        self._held[lease_id] = revision
        return True

    def let_go(self, lease_id: str) -> None:
        """The holder released it."""
        self._held.pop(lease_id, None)

    def take(self, revision: int, lease_ids: Set[str]) -> list[str]:
        """Takes in a set, unless a newer one came before; the leases that it shows to have ended."""
        if revision < self._revision:
            return []
        self._revision, self._set = revision, lease_ids
        ended = [lease_id for lease_id, at in self._held.items() if at <= revision and lease_id not in lease_ids]
        for lease_id in ended:
            del self._held[lease_id]
        return ended
