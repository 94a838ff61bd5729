//! The marks of a gate, and how they are raised.

use std::collections::{HashMap, VecDeque};

use super::{Doubt, Mark, Rules, Tick, Verdict};
use crate::{
    key::{ResourceKey, SessionId},
    time::{Revision, Token},
};

/// Questions for the head of the store that the watch has not caught up with yet; beyond it the oldest are given up.
const PROOFS_MAX: usize = 16;

/// The store's answer about the newest token of a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MarkLookup {
    /// The newest token of the resource, 0 if none was granted.
    Newest(Mark),
    /// The resource does not exist.
    Nothing,
    /// The gate's key may not see it.
    Hidden,
}

/// A change that a gate with a memory has to save.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MarkRecord {
    /// A mark was raised.
    Mark(ResourceKey, Mark),
    /// Marks were dropped: of a resource without one, tokens up to here need a read.
    Floor(Token),
    /// The store has begun another history (rule 23).
    Epoch(u64),
}

/// One resource as the gate knows it.
#[derive(Debug, Clone, Copy)]
struct Entry {
    mark: Mark,
    /// The number of the record that saves it.
    record: u64,
    /// The snapshot that it was seen in or after; none, if only a read or the memory knows it.
    snapshot: Option<u64>,
    /// When the store was last asked for it and confirmed the mark, and in which epoch.
    read: Option<(Tick, u64)>,
    /// The store was read for the present token.
    is_confirmed: bool,
    /// The epoch of the last history that is known to have given this token.
    history: u64,
    /// Of a resource: the highest token that is known to be of an exclusive lease, which fences its slots (rule 29).
    exclusive: Token,
}

impl Entry {
    /// What only refuses until there is news of it.
    fn new(mark: Mark, record: u64) -> Self {
        let exclusive = Token(0);
        Self { mark, record, snapshot: None, read: None, is_confirmed: false, history: 0, exclusive }
    }
}

/// The marks of a gate. Pure: the clock and the store's answers are arguments.
///
/// Each slot of a resource that is shared has a mark of its own, and the mark of the resource is as high as the highest
/// of them: every token fences the exclusive ones before it. A slot is fenced by the tokens of exclusive leases, which
/// are a part of what is known of the resource.
///
/// ```
/// use solehold_core::{fence::*, key::{Name, ResourceKey}, time::*};
///
/// let name = |text: &str| Name::new(text).expect("a short name");
/// let job = ResourceKey::new(name("default"), name("job"), name("nightly"));
/// let mut fence = Fence::new(Rules::default());
/// let now = Tick(0);
/// assert_eq!(fence.admit(&job, Token(7), None, now), Verdict::Undecidable(Doubt::Unknown));
///
/// // The watch begins with a snapshot, and tells of a grant later on.
/// fence.snapshot_begins(1);
/// fence.learn(&job, Mark { token: Token(7), session: None });
/// fence.snapshot_ends(Revision(9), now);
/// assert_eq!(fence.admit(&job, Token(7), None, now), Verdict::Admit);
/// fence.granted(&job, Mark { token: Token(12), session: None });
/// assert_eq!(fence.admit(&job, Token(7), None, now), Verdict::Stale { newest: Token(12) });
/// ```
#[derive(Debug)]
pub struct Fence {
    rules: Rules,
    marks: HashMap<ResourceKey, Entry>,
    floor: Token,
    /// As high as the marks of former histories that were dropped. The present history cannot tell what they were.
    former_floor: Token,
    /// The highest token of former histories that was of an exclusive lease, or was restored and may have been. The
    /// present history may have lost that lease, so that its slots say nothing of it: those below are not admitted.
    former_exclusive: Token,
    /// The highest token that was restored. Whether it was of an exclusive lease is not saved.
    restored: Token,
    epoch: u64,
    /// The snapshot that began last.
    snapshot: u64,
    /// The snapshot that was whole last; none in an epoch that has had none yet.
    whole: Option<u64>,
    /// Everything up to here has been told; none while a snapshot is under way.
    told: Option<Revision>,
    /// Everything that was decided before this time is known.
    proven: Option<Tick>,
    /// The store was asked at this time, and had come this far.
    heads: VecDeque<(Tick, Revision)>,
    /// The store could not be reached; it is not asked again before this time.
    away_until: Option<Tick>,
    /// The store refused the gate, and has told it nothing since.
    is_denied: bool,
    /// The number of the last record.
    records: u64,
    /// Records up to here are saved.
    saved: u64,
    unsaved: Vec<MarkRecord>,
}

impl Fence {
    /// A gate that knows nothing yet.
    pub fn new(rules: Rules) -> Self {
        Self {
            rules,
            marks: HashMap::new(),
            floor: Token(0),
            former_floor: Token(0),
            former_exclusive: Token(0),
            restored: Token(0),
            epoch: 0,
            snapshot: 0,
            whole: None,
            told: None,
            proven: None,
            heads: VecDeque::new(),
            away_until: None,
            is_denied: false,
            records: 0,
            saved: if rules.remembers { 0 } else { u64::MAX },
            unsaved: Vec::new(),
        }
    }

    /// Judges by what is known. None means that the verdict changes the mark: [`Self::admit`] gives it.
    pub fn judge(
        &self,
        key: &ResourceKey,
        token: Token,
        session: Option<SessionId>,
        now: Tick,
    ) -> Option<Verdict> {
        let entry = self.marks.get(key);
        let exclusive = self.fences_slot(key).filter(|exclusive| token < *exclusive);
        let is_older =
            |mark: Mark| token < mark.token || token == mark.token && belongs_to_another(&mark, session);
        let newer = entry.map(|entry| entry.mark).filter(|mark| is_older(*mark)).map(|mark| mark.token);
        if let Some(newest) = newer.max(exclusive) {
            return Some(Verdict::Stale { newest });
        }
        if let Some(doubt) = self.doubt(entry, token, now)
            && !(self.fails_open(key, token, now) && doubt.yields_to_fail_open())
        {
            let is_denied = self.is_denied && doubt.needs_a_read();
            return Some(Verdict::Undecidable(if is_denied { Doubt::Denied } else { doubt }));
        }
        let entry = entry.filter(|entry| entry.mark.token == token)?;
        let binds = entry.mark.session.is_none() && session.is_some();
        if binds || !key.is_slot() && entry.exclusive < token {
            return None;
        }
        let is_saved = entry.record <= self.saved;
        Some(if is_saved { Verdict::Admit } else { Verdict::Undecidable(Doubt::Unsaved) })
    }

    /// Of a slot: the highest token that is known to be of an exclusive lease on its resource, or may have been.
    fn fences_slot(&self, key: &ResourceKey) -> Option<Token> {
        let known = || self.marks.get(&key.whole()).map_or(Token(0), |entry| entry.exclusive);
        key.is_slot().then(|| known().max(self.former_exclusive))
    }

    /// Whether a token is admitted without the store. That of a slot must be known to this gate, or as new as the
    /// newest of the resource: an exclusive lease may have come between.
    fn fails_open(&self, key: &ResourceKey, token: Token, now: Tick) -> bool {
        let is_its = |entry: &Entry| entry.mark.token == token && self.known_since(entry).is_some();
        let is_known = || self.marks.get(key).is_some_and(is_its);
        let is_newest = || self.marks.get(&key.whole()).is_none_or(|entry| token >= entry.mark.token);
        self.rules.fail_open && self.is_away(now) && (!key.is_slot() || is_known() || is_newest())
    }

    /// What speaks against a token that is not stale.
    fn doubt(&self, entry: Option<&Entry>, token: Token, now: Tick) -> Option<Doubt> {
        if token == Token(0) {
            let newest = entry.map_or(Token(0), |entry| entry.mark.token);
            return Some(Doubt::NeverGiven { newest });
        }
        let Some(entry) = entry else {
            return Some(if token <= self.floor { Doubt::Forgotten } else { Doubt::Unknown });
        };
        if token > entry.mark.token {
            return Some(Doubt::Newer { known: entry.mark.token });
        }
        match self.known_since(entry) {
            None => Some(Doubt::Unknown),
            Some(at) if now.since(at) > self.rules.cache_ttl => Some(Doubt::Expired),
            Some(_) if self.rules.strict && !entry.is_confirmed => Some(Doubt::Unconfirmed),
            Some(_) => None,
        }
    }

    /// The latest time at which the mark is known to have been the newest.
    fn known_since(&self, entry: &Entry) -> Option<Tick> {
        let read = entry.read.filter(|(_, epoch)| *epoch == self.epoch).map(|(at, _)| at);
        let is_told = self.whole.is_some_and(|whole| entry.snapshot.is_some_and(|seen| seen >= whole));
        read.max(self.proven.filter(|_| is_told))
    }

    /// The same as [`Self::judge`], and raises the mark where that is part of the verdict: a session is bound to its
    /// token when it is first shown, an exclusive lease fences slots when its token is, and a gate that fails open
    /// takes a newer token for granted while the store is away.
    pub fn admit(
        &mut self,
        key: &ResourceKey,
        token: Token,
        session: Option<SessionId>,
        now: Tick,
    ) -> Verdict {
        if let Some(verdict) = self.judge(key, token, session, now) {
            return verdict;
        }
        self.raise(key, Mark { token, session });
        self.is_exclusive(key, token);
        let is_saved = self.marks.get(key).is_none_or(|entry| entry.record <= self.saved);
        if is_saved { Verdict::Admit } else { Verdict::Undecidable(Doubt::Unsaved) }
    }

    /// The verdict after the store was asked for this very work, at `asked`, when the work was here already: what it
    /// does not know then, it never gave. None if the answer is from an older history, which is not followed (rule 23).
    pub fn conclude(
        &mut self,
        (key, token, session): (&ResourceKey, Token, Option<SessionId>),
        (answer, epoch): (MarkLookup, Option<u64>),
        asked: Tick,
        now: Tick,
    ) -> Option<Verdict> {
        if !self.follow(epoch.unwrap_or(self.epoch)) {
            return None;
        }
        self.away_until = None;
        // That there is nothing is also said of a tenant that the gate's key is not for.
        self.is_denied &= answer == MarkLookup::Nothing;
        if let MarkLookup::Newest(newest) = answer {
            self.confirm(key, newest, asked);
        }
        Some(match self.admit(key, token, session, now) {
            Verdict::Undecidable(_) if answer == MarkLookup::Hidden => Verdict::Undecidable(Doubt::Hidden),
            Verdict::Undecidable(Doubt::Newer { known }) => {
                Verdict::Undecidable(Doubt::NeverGiven { newest: known })
            }
            Verdict::Undecidable(Doubt::Unknown | Doubt::Forgotten | Doubt::Expired | Doubt::Unconfirmed)
                if answer == MarkLookup::Nothing =>
            {
                Verdict::Undecidable(Doubt::NoSuchResource)
            }
            verdict => verdict,
        })
    }

    /// The store was read for one resource.
    fn confirm(&mut self, key: &ResourceKey, newest: Mark, asked: Tick) {
        self.raise(key, newest);
        let epoch = self.epoch;
        if let Some(entry) = self.marks.get_mut(key).filter(|entry| entry.mark.token == newest.token) {
            entry.read = entry.read.max(Some((asked, epoch)));
            entry.is_confirmed = true;
            entry.history = epoch;
        }
        self.slot_is_present(key, newest.token);
    }

    /// The present history has given the token of a slot, which may be the newest of its resource.
    fn slot_is_present(&mut self, key: &ResourceKey, token: Token) {
        if key.is_slot()
            && let Some(whole) = self.marks.get_mut(&key.whole()).filter(|entry| entry.mark.token == token)
        {
            whole.history = self.epoch;
        }
    }

    /// The watch tells of a lease on a resource, or on one of its slots.
    pub fn granted(&mut self, key: &ResourceKey, mark: Mark) {
        self.learn(key, mark);
        self.is_exclusive(key, mark.token);
    }

    /// A token is of an exclusive lease, unless it is a slot's.
    fn is_exclusive(&mut self, key: &ResourceKey, token: Token) {
        if let Some(entry) = self.marks.get_mut(key).filter(|_| !key.is_slot()) {
            entry.exclusive = entry.exclusive.max(token);
        }
    }

    /// A snapshot tells of the newest token of a resource, which may be one of its slots', or of a slot.
    pub fn learn(&mut self, key: &ResourceKey, mark: Mark) {
        self.raise(key, mark);
        let snapshot = self.snapshot;
        let epoch = self.epoch;
        // A store that has less than was admitted is not believed: the mark stays, and admits nothing by the watch.
        if let Some(entry) = self.marks.get_mut(key).filter(|entry| entry.mark.token == mark.token) {
            (entry.snapshot, entry.history) = (Some(snapshot), epoch);
        }
        self.slot_is_present(key, mark.token);
    }

    /// The watch tells that a resource was deleted: its mark stays, and admits nothing until there is news of it.
    pub fn deleted(&mut self, key: &ResourceKey) {
        if let Some(entry) = self.marks.get_mut(key) {
            (entry.snapshot, entry.read) = (None, None);
        }
    }

    /// Takes over the epoch of an answer; false if it is from an older history, which is not followed (rule 23). What
    /// is known of the former history only refuses from now on.
    pub fn follow(&mut self, epoch: u64) -> bool {
        if epoch > self.epoch {
            self.epoch = epoch;
            self.former_floor = self.floor;
            let exclusive = self.marks.values().map(|entry| entry.exclusive).max().unwrap_or_default();
            self.former_exclusive = self.former_exclusive.max(exclusive).max(self.restored);
            (self.whole, self.told, self.proven) = (None, None, None);
            self.heads.clear();
            // What is told from now on is of the next snapshot.
            self.snapshot += 1;
            self.record(MarkRecord::Epoch(epoch));
        }
        epoch == self.epoch
    }

    /// A snapshot begins. What was known stays until it is whole. False if it is from an older history.
    pub fn snapshot_begins(&mut self, epoch: u64) -> bool {
        let is_followed = self.follow(epoch);
        if is_followed {
            self.snapshot += 1;
            self.told = None;
            self.is_denied = false;
        }
        is_followed
    }

    /// The snapshot is whole, up to a revision; it was asked for at `asked`. Resources that were not in it are unknown.
    pub fn snapshot_ends(&mut self, up_to: Revision, asked: Tick) {
        self.whole = Some(self.snapshot);
        self.proven = self.proven.max(Some(asked));
        self.told_up_to(up_to);
    }

    /// The watch has told everything up to a revision of the present epoch.
    pub fn told_up_to(&mut self, revision: Revision) {
        self.told = self.told.max(Some(revision));
        self.is_denied = false;
        self.prove();
    }

    /// What was decided before a question is known when the watch has told everything up to the answer.
    fn prove(&mut self) {
        let told = self.told;
        while let Some((asked, _)) = self.heads.pop_front_if(|(_, head)| Some(*head) <= told) {
            self.proven = self.proven.max(Some(asked));
        }
    }

    /// The store was asked at `asked` how far it is. As soon as the watch has told everything up to there, everything
    /// that was decided before `asked` is known. False if the answer is from an older history.
    pub fn head_was(&mut self, epoch: u64, head: Revision, asked: Tick) -> bool {
        if !self.follow(epoch) {
            return false;
        }
        // Whether it tells the gate anything else is not known by this: how far it is, it tells everyone.
        self.away_until = None;
        if self.heads.len() == PROOFS_MAX {
            self.heads.pop_front();
        }
        self.heads.push_back((asked, head));
        self.prove();
        true
    }

    /// The store could not be reached. It need not be asked again before `until`.
    pub fn store_is_away(&mut self, until: Tick) {
        self.away_until = Some(until);
    }

    /// The store answered, and refuses the gate: its key is wrong, has expired or was revoked. It is not away, and the
    /// gate admits nothing without it, even if it fails open.
    pub fn store_denies(&mut self) {
        self.is_denied = true;
    }

    /// Whether the store refused the gate when it was last asked for more than how far it is.
    pub fn is_denied(&self) -> bool {
        self.is_denied
    }

    /// Whether the store was not reached just now, and had not refused the gate before.
    pub fn is_away(&self, now: Tick) -> bool {
        !self.is_denied && self.away_until.is_some_and(|until| now < until)
    }

    /// Takes over what was saved before a restart, in the same order. It is saved already.
    pub fn restore(&mut self, record: MarkRecord) {
        match record {
            MarkRecord::Epoch(epoch) => {
                self.follow(epoch);
                // The same epoch again: marks of former histories were dropped.
                self.former_floor = self.floor;
            }
            MarkRecord::Floor(floor) => self.floor = self.floor.max(floor),
            MarkRecord::Mark(key, mark) => {
                let history = self.epoch;
                self.restored = self.restored.max(mark.token);
                let entry = Entry { history, ..Entry::new(mark, 0) };
                let kept = self.marks.entry(key).or_insert(entry);
                if let Some(mark) = raised(kept.mark, mark) {
                    (kept.mark, kept.history) = (mark, history);
                }
            }
        }
    }

    /// What has to be saved, and the number to give to [`Self::saved_up_to`] when it is.
    pub fn unsaved(&mut self) -> (Vec<MarkRecord>, u64) {
        (std::mem::take(&mut self.unsaved), self.records)
    }

    /// Records up to this number are saved.
    pub fn saved_up_to(&mut self, record: u64) {
        self.saved = self.saved.max(record);
    }

    /// Everything that a gate that restarts must know, in order.
    pub fn records(&self) -> impl Iterator<Item = MarkRecord> {
        let marks = |is_former: bool| {
            let those = self.marks.iter().filter(move |(_, entry)| self.is_former(entry) == is_former);
            those.map(|(key, entry)| MarkRecord::Mark(key.clone(), entry.mark))
        };
        let former = [MarkRecord::Floor(self.former_floor)].into_iter().chain(marks(true));
        let present =
            [MarkRecord::Epoch(self.epoch), MarkRecord::Floor(self.floor)].into_iter().chain(marks(false));
        former.chain(present)
    }

    /// Whether a snapshot is whole, and everything is saved.
    pub fn is_ready(&self) -> bool {
        self.whole.is_some() && self.records <= self.saved
    }

    pub fn mark(&self, key: &ResourceKey) -> Option<Mark> {
        self.marks.get(key).map(|entry| entry.mark)
    }

    /// The number of marks.
    pub fn marks(&self) -> usize {
        self.marks.len()
    }

    /// Of a resource without a mark, tokens up to here need a read of the store.
    pub fn floor(&self) -> Token {
        self.floor
    }

    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// How far the watch has told, in the present epoch; none before the first snapshot is whole.
    pub fn told(&self) -> Option<Revision> {
        self.told
    }

    /// Everything that was decided before this time is known.
    pub fn proven(&self) -> Option<Tick> {
        self.proven
    }

    /// Raises a mark, with a slot's that of its resource; never lowers one.
    fn raise(&mut self, key: &ResourceKey, to: Mark) {
        if key.is_slot() {
            self.raise_one(&key.whole(), Mark { token: to.token, session: None });
        }
        self.raise_one(key, to);
    }

    fn raise_one(&mut self, key: &ResourceKey, to: Mark) {
        let old = self.marks.get(key).copied();
        let mark = match old {
            // What a former history had, and was dropped, may have been above what this one has.
            None if to.token < self.former_floor => Mark { token: self.former_floor, session: None },
            None => to,
            Some(old) => match raised(old.mark, to) {
                None => return,
                Some(mark) => mark,
            },
        };
        if old.is_none() && self.marks.len() >= self.rules.marks_max {
            self.compact();
        }
        let record = self.record(MarkRecord::Mark(key.clone(), mark));
        let entry = match old {
            Some(old) if old.mark.token == mark.token => Entry { mark, record, ..old },
            // What was known of the former token says nothing of this one.
            _ => Entry { exclusive: old.map_or(Token(0), |old| old.exclusive), ..Entry::new(mark, record) },
        };
        self.marks.insert(key.clone(), entry);
    }

    /// The number of a new record.
    fn record(&mut self, record: MarkRecord) -> u64 {
        if !self.rules.remembers {
            return 0;
        }
        self.unsaved.push(record);
        self.records += 1;
        self.records
    }

    /// Drops the marks with the lowest tokens, an eighth of them.
    fn compact(&mut self) {
        if self.marks.is_empty() {
            return;
        }
        let mut tokens: Vec<Token> = self.marks.values().map(|entry| entry.mark.token).collect();
        let some = tokens.len() / 8;
        let (_, highest_dropped, _) = tokens.select_nth_unstable(some);
        let floor = self.floor.max(*highest_dropped);
        let dropped = self.marks.values().filter(|entry| entry.mark.token <= floor);
        let former = dropped.filter(|entry| self.is_former(entry)).map(|entry| entry.mark.token).max();
        self.marks.retain(|_, entry| entry.mark.token > floor);
        self.floor = floor;
        self.record(MarkRecord::Floor(floor));
        if former > Some(self.former_floor) {
            self.former_floor = former.unwrap_or(self.former_floor);
            self.record(MarkRecord::Epoch(self.epoch));
        }
    }

    /// Whether the present history is not known to have given this token.
    fn is_former(&self, entry: &Entry) -> bool {
        entry.history < self.epoch
    }
}

/// Whether a token is known to belong to another session than the one that shows it.
fn belongs_to_another(mark: &Mark, shown: Option<SessionId>) -> bool {
    mark.session.zip(shown).is_some_and(|(of, shown)| of != shown)
}

/// A mark after another was seen; none if it stays as it is.
fn raised(mark: Mark, by: Mark) -> Option<Mark> {
    let binds = by.token == mark.token && mark.session.is_none() && by.session.is_some();
    (by.token > mark.token || binds).then_some(by)
}
