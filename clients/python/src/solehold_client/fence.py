"""The gate's judgement (rule 21): whether work that carries a token may still take effect. Pure.

A mark is the newest token of a resource that was admitted or learned of, and the session that it was granted to. What is not
known admits nothing. Marks are never lowered and never dropped by age: when there are too many, those with the lowest tokens
are dropped, and the floor is raised to the highest of them. Knowledge is as old as the question that it answers.

Each slot of a resource that is shared has a mark of its own, and the mark of the resource is as high as the highest of
them: every token fences the exclusive ones before it. A slot is fenced by the tokens of exclusive leases, which are a
part of what is known of the resource.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

Key = tuple[str, str, int]
"""The kind and the key of a resource, and one of its slots, from 1 on; 0 for an exclusive lease. Tokens of different
slots do not fence each other, but those of a slot and of an exclusive lease do (rule 29)."""

# Questions for the head of the store that the watch has not caught up with yet; beyond it the oldest are given up.
PROOFS_MAX = 16


@dataclass(frozen=True)
class Mark:
    """The newest token that is known, and the session that it was granted to, if that is known."""

    token: int
    session: str | None = None


@dataclass(frozen=True)
class Verdict:
    """What a gate says: `admit`, `stale` or `undecidable`."""

    word: str
    why: str = ""
    """Why it is undecidable: `unknown`, `forgotten`, `newer`, `expired`, `unconfirmed`, `unsaved`, `denied` (the server
    refuses the gate's key), `hidden` (the key may not see the resource), `no_such_resource` or `never_given`."""
    newest: int | None = None
    """The newest token that is known, where that is the reason."""

    @property
    def is_admitted(self) -> bool:
        """Whether the work may take effect."""
        return self.word == "admit"

    @property
    def may_pass(self) -> bool:
        """Whether waiting may settle it. If not, the work is better refused."""
        return self.word == "undecidable" and self.why not in ("no_such_resource", "never_given")

    @property
    def needs_a_read(self) -> bool:
        """Whether a read of the store may settle it."""
        return self.may_pass and self.why not in ("unsaved", "denied")

    def __str__(self) -> str:
        return " ".join([self.word, *([self.why] if self.why else []), *([] if self.newest is None else [str(self.newest)])])


ADMIT = Verdict("admit")


@dataclass(frozen=True)
class Rules:
    """How a gate judges."""

    cache_ttl: float = 30.0
    """How old knowledge may be that admits."""
    fail_open: bool = False
    """Whether a token that is not below the mark is admitted while the store is away."""
    strict: bool = False
    """Whether the store is read before a new token is admitted, even if the watch has told of it."""
    remembers: bool = False
    """Whether a mark admits only when it has been saved."""
    marks_max: int = 1_000_000
    """Most marks that are kept in memory."""


@dataclass(frozen=True)
class Record:
    """What a gate that remembers has to save: one of a mark, a floor and an epoch."""

    key: Key | None = None
    mark: Mark | None = None
    floor: int | None = None
    epoch: int | None = None


@dataclass(frozen=True)
class _Entry:
    mark: Mark
    record: int
    snapshot: int | None = None
    read: tuple[float, int] | None = None
    confirmed: bool = False
    history: int = 0
    """The epoch of the last history that is known to have given this token."""
    exclusive: int = 0
    """Of a resource: the highest token that is known to be of an exclusive lease, which fences its slots."""


class Fence:
    """The marks of a gate. The clock and the store's answers are arguments."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.floor = 0
        """Of a resource without a mark, tokens up to here need a read of the store."""
        self.epoch = 0
        """The history that is followed (rule 23)."""
        self.proven: float | None = None
        """Everything that was decided before this tick is known."""
        self.told: int | None = None
        """The watch has told everything up to this revision; None while a snapshot is under way."""
        # As high as the marks of former histories that were dropped. The present history cannot tell what they were.
        self._former_floor = 0
        # The highest token of former histories that was of an exclusive lease, or was restored and may have been. The
        # present history may have lost that lease, so that its slots say nothing of it: those below are not admitted.
        self._former_exclusive = 0
        # The highest token that was restored. Whether it was of an exclusive lease is not saved.
        self._restored = 0
        self._marks: dict[Key, _Entry] = {}
        self._snapshot = 0
        self._whole: int | None = None
        self._heads: deque[tuple[float, int]] = deque()
        self._away_until: float | None = None
        self.is_denied = False
        """The store refused the gate, and has told it nothing since."""
        self._records = 0
        self._saved: float = 0 if rules.remembers else float("inf")
        self._unsaved: list[Record] = []

    def __len__(self) -> int:
        return len(self._marks)

    @property
    def is_ready(self) -> bool:
        """Whether a snapshot is whole, and everything is saved."""
        return self._whole is not None and self._records <= self._saved

    def judge(self, key: Key, token: int, session: str | None, now: float) -> Verdict:
        """The verdict. It raises the mark where that is part of it: a session is bound to its token when it is first
        shown, an exclusive lease fences slots when its token is, and a gate that fails open takes a newer token for
        granted while the store is away.
        """
        entry = self._marks.get(key)
        newer = self._newer(key, entry, token, session)
        if newer is not None:
            return Verdict("stale", newest=newer)
        doubt = self._doubt(entry, token, now)
        if doubt is not None:
            yields = doubt.why in ("unknown", "newer", "expired", "unconfirmed")
            if not (self._fails_open(key, token, now) and yields):
                return Verdict("undecidable", "denied") if self.is_denied and doubt.needs_a_read else doubt
        binds = entry is not None and entry.mark.session is None and session is not None
        fences_slots = _is_slot(key) or (entry is not None and entry.exclusive >= token)
        if entry is None or entry.mark.token != token or binds or not fences_slots:
            self._raise(key, Mark(token, session))
            self._raise_exclusive(key, token)
            entry = self._marks[key]
        return ADMIT if entry.record <= self._saved else Verdict("undecidable", "unsaved")

    def _newer(self, key: Key, entry: _Entry | None, token: int, session: str | None) -> int | None:
        """The newest token that fences this one; None if none is known."""
        newer = []
        if entry is not None:
            mark = entry.mark
            other = token == mark.token and None not in (mark.session, session) and mark.session != session
            if token < mark.token or other:
                newer.append(mark.token)
        if _is_slot(key):
            whole = self._marks.get(_whole(key))
            exclusive = max(self._former_exclusive, 0 if whole is None else whole.exclusive)
            if token < exclusive:
                newer.append(exclusive)
        return max(newer, default=None)

    def _fails_open(self, key: Key, token: int, now: float) -> bool:
        """Whether a token is admitted without the store. That of a slot must be known to this gate, or as new as the
        newest of the resource: an exclusive lease may have come between.
        """
        if not (self.rules.fail_open and self.is_away(now)):
            return False
        entry = self._marks.get(key)
        is_known = entry is not None and entry.mark.token == token and self._known_since(entry) is not None
        whole = self._marks.get(_whole(key))
        return not _is_slot(key) or is_known or whole is None or token >= whole.mark.token

    def _doubt(self, entry: _Entry | None, token: int, now: float) -> Verdict | None:
        if token == 0:
            return Verdict("undecidable", "never_given", 0 if entry is None else entry.mark.token)
        if entry is None:
            return Verdict("undecidable", "forgotten" if token <= self.floor else "unknown")
        if token > entry.mark.token:
            return Verdict("undecidable", "newer", entry.mark.token)
        since = self._known_since(entry)
        if since is None:
            return Verdict("undecidable", "unknown")
        if now - since > self.rules.cache_ttl:
            return Verdict("undecidable", "expired")
        if self.rules.strict and not entry.confirmed:
            return Verdict("undecidable", "unconfirmed")
        return None

    def _known_since(self, entry: _Entry) -> float | None:
        """The latest tick at which the mark is known to have been the newest."""
        known = []
        if entry.read is not None and entry.read[1] == self.epoch:
            known.append(entry.read[0])
        is_told = self._whole is not None and entry.snapshot is not None and entry.snapshot >= self._whole
        if is_told and self.proven is not None:
            known.append(self.proven)
        return max(known, default=None)

    def conclude(
        self,
        key: Key,
        token: int,
        session: str | None,
        answer: Mark | None,
        epoch: int | None,
        asked: float,
        now: float,
        *,
        hidden: bool = False,
    ) -> Verdict | None:
        """The verdict after the store was asked for this very work, at `asked`, when the work was here already: what it
        does not know then, it never gave. `hidden` says that the gate's key may not see the resource. None if the answer
        is from an older history, which is not followed.
        """
        if not self.follow(self.epoch if epoch is None else epoch):
            return None
        self._away_until = None
        # That there is nothing is also said of a tenant that the gate's key is not for.
        self.is_denied = self.is_denied and answer is None and not hidden
        if answer is not None:
            self._raise(key, answer)
            entry = self._marks[key]
            if entry.mark.token == answer.token:
                read = max(entry.read or (asked, self.epoch), (asked, self.epoch))
                self._marks[key] = replace(entry, read=read, confirmed=True, history=self.epoch)
            self._slot_is_present(key, answer.token)
        verdict = self.judge(key, token, session, now)
        if hidden and verdict.word == "undecidable":
            return Verdict("undecidable", "hidden")
        if verdict.why == "newer":
            return Verdict("undecidable", "never_given", verdict.newest)
        if answer is None and verdict.why in ("unknown", "forgotten", "expired", "unconfirmed"):
            return Verdict("undecidable", "no_such_resource")
        return verdict

    def granted(self, key: Key, mark: Mark) -> None:
        """The watch tells of a lease on a resource, or on one of its slots."""
        self.learn(key, mark)
        self._raise_exclusive(key, mark.token)

    def _raise_exclusive(self, key: Key, token: int) -> None:
        """A token is of an exclusive lease, unless it is a slot's."""
        entry = self._marks[key]
        if not _is_slot(key) and entry.exclusive < token:
            self._marks[key] = replace(entry, exclusive=token)

    def learn(self, key: Key, mark: Mark) -> None:
        """A snapshot tells of the newest token of a resource, which may be one of its slots', or of a slot."""
        self._raise(key, mark)
        entry = self._marks[key]
        # A store that has less than was admitted is not believed: the mark stays, and admits nothing by the watch.
        if entry.mark.token == mark.token:
            self._marks[key] = replace(entry, snapshot=self._snapshot, history=self.epoch)
        self._slot_is_present(key, mark.token)

    def _slot_is_present(self, key: Key, token: int) -> None:
        """The present history has given the token of a slot, which may be the newest of its resource."""
        whole = self._marks.get(_whole(key)) if _is_slot(key) else None
        if whole is not None and whole.mark.token == token:
            self._marks[_whole(key)] = replace(whole, history=self.epoch)

    def deleted(self, key: Key) -> None:
        """The watch tells that a resource was deleted: its mark stays, and admits nothing until there is news of it."""
        if key in self._marks:
            self._marks[key] = replace(self._marks[key], snapshot=None, read=None)

    def follow(self, epoch: int) -> bool:
        """Takes over the epoch of an answer; False if it is from an older history (rule 23)."""
        if epoch > self.epoch:
            self.epoch = epoch
            self._former_floor = self.floor
            exclusive = max((entry.exclusive for entry in self._marks.values()), default=0)
            self._former_exclusive = max(self._former_exclusive, exclusive, self._restored)
            self._whole = self.told = self.proven = None
            self._heads.clear()
            self._snapshot += 1
            self._record(Record(epoch=epoch))
        return epoch == self.epoch

    def snapshot_begins(self, epoch: int) -> bool:
        """A snapshot begins. False if it is from an older history."""
        if not self.follow(epoch):
            return False
        self._snapshot += 1
        self.told = None
        self.is_denied = False
        return True

    def snapshot_ends(self, up_to: int, asked: float) -> None:
        """The snapshot, asked for at a tick, is whole up to a revision. Resources that were not in it are unknown."""
        self._whole = self._snapshot
        self.proven = asked if self.proven is None else max(self.proven, asked)
        self.told_up_to(up_to)

    def told_up_to(self, revision: int) -> None:
        """The watch has told everything up to a revision of the present epoch."""
        self.told = revision if self.told is None else max(self.told, revision)
        self.is_denied = False
        self._prove()

    def _prove(self) -> None:
        """What was decided before a question is known when the watch has told everything up to the answer."""
        while self._heads and self.told is not None and self._heads[0][1] <= self.told:
            asked, _ = self._heads.popleft()
            self.proven = asked if self.proven is None else max(self.proven, asked)

    def head_was(self, epoch: int, head: int, asked: float) -> bool:
        """The store was asked how far it is. As soon as the watch has told everything up to there, everything that was
        decided before the question is known. False if the answer is from an older history.
        """
        if not self.follow(epoch):
            return False
        # Whether it tells the gate anything else is not known by this: how far it is, it tells everyone.
        self._away_until = None
        if len(self._heads) == PROOFS_MAX:
            self._heads.popleft()
        self._heads.append((asked, head))
        self._prove()
        return True

    def store_is_away(self, until: float) -> None:
        """The store could not be reached, and need not be asked again before that tick."""
        self._away_until = until

    def store_denies(self) -> None:
        """The store answered, and refuses the gate: its key is wrong, has expired or was revoked. It is not away, and the
        gate admits nothing without it, even if it fails open.
        """
        self.is_denied = True

    def is_away(self, now: float) -> bool:
        """Whether the store was not reached just now, and had not refused the gate before."""
        return not self.is_denied and self._away_until is not None and now < self._away_until

    def restore(self, record: Record) -> None:
        """Takes over what was saved before a restart, in the same order."""
        if record.epoch is not None:
            self.follow(record.epoch)
            # The same epoch again: marks of former histories were dropped.
            self._former_floor = self.floor
        elif record.floor is not None:
            self.floor = max(self.floor, record.floor)
        elif record.key is not None and record.mark is not None:
            self._restored = max(self._restored, record.mark.token)
            old = self._marks.get(record.key)
            if old is None or _raised(old.mark, record.mark) is not None:
                self._marks[record.key] = _Entry(record.mark, 0, history=self.epoch)

    def unsaved(self) -> tuple[list[Record], int]:
        """What has to be saved, and the number to give to `saved_up_to` when it is."""
        records, self._unsaved = self._unsaved, []
        return records, self._records

    def saved_up_to(self, record: int) -> None:
        """Records up to this number are saved."""
        self._saved = max(self._saved, record)

    def records(self) -> list[Record]:
        """Everything that a gate that restarts must know, in order."""
        former, present = [Record(floor=self._former_floor)], [Record(epoch=self.epoch), Record(floor=self.floor)]
        for key, entry in self._marks.items():
            (former if self._is_former(entry) else present).append(Record(key=key, mark=entry.mark))
        return former + present

    def _raise(self, key: Key, to: Mark) -> None:
        """Raises a mark, with a slot's that of its resource; never lowers one."""
        if _is_slot(key):
            self._raise_one(_whole(key), Mark(to.token))
        self._raise_one(key, to)

    def _raise_one(self, key: Key, to: Mark) -> None:
        old = self._marks.get(key)
        if old is None:
            # What a former history had, and was dropped, may have been above what this one has.
            mark = Mark(self._former_floor) if to.token < self._former_floor else to
            if len(self._marks) >= self.rules.marks_max:
                self._compact()
        else:
            raised = _raised(old.mark, to)
            if raised is None:
                return
            mark = raised
        record = self._record(Record(key=key, mark=mark))
        if old is not None and old.mark.token == mark.token:
            self._marks[key] = replace(old, mark=mark, record=record)
        else:
            # What was known of the former token says nothing of this one.
            self._marks[key] = _Entry(mark, record, exclusive=0 if old is None else old.exclusive)

    def _record(self, record: Record) -> int:
        if not self.rules.remembers:
            return 0
        self._unsaved.append(record)
        self._records += 1
        return self._records

    def _compact(self) -> None:
        """Drops the marks with the lowest tokens, an eighth of them."""
        tokens = sorted(entry.mark.token for entry in self._marks.values())
        if not tokens:
            return
        self.floor = max(self.floor, tokens[len(tokens) // 8])
        dropped = [entry for entry in self._marks.values() if entry.mark.token <= self.floor]
        former = max((entry.mark.token for entry in dropped if self._is_former(entry)), default=0)
        self._marks = {key: entry for key, entry in self._marks.items() if entry.mark.token > self.floor}
        self._record(Record(floor=self.floor))
        if former > self._former_floor:
            self._former_floor = former
            self._record(Record(epoch=self.epoch))

    def _is_former(self, entry: _Entry) -> bool:
        """Whether the present history is not known to have given this token."""
        return entry.history < self.epoch


def _is_slot(key: Key) -> bool:
    return key[2] > 0


def _whole(key: Key) -> Key:
    """The resource that a slot is of."""
    kind, name, _ = key
    return kind, name, 0


def _raised(mark: Mark, by: Mark) -> Mark | None:
    """A mark after another was seen; None if it stays as it is."""
    binds = by.token == mark.token and mark.session is None and by.session is not None
    return by if by.token > mark.token or binds else None
