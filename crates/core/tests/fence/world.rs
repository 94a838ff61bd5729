//! A store, a gate that learns of it late, and the script that drives them.

use std::collections::BTreeMap;

use proptest::prelude::*;
use solehold_core::{
    fence::{Doubt, Fence, Mark, MarkLookup, MarkRecord, Rules, Tick, Verdict},
    key::{Name, ResourceKey, SessionId},
    time::{Revision, Token},
};
use uuid::Uuid;

const RESOURCES: usize = 6;
/// The one that is shared; those after it are its slots.
const SHARED: usize = 3;
const TTL: u64 = 10;

pub fn key(resource: usize) -> ResourceKey {
    let name = |text: &str| Name::new(text).expect("a name");
    let whole = resource.min(SHARED);
    let slot = resource - whole;
    ResourceKey::new(name("t"), name("scene"), name(&whole.to_string())).of_slot(slot as u32)
}

fn is_slot(resource: usize) -> bool {
    resource > SHARED
}

/// Those whose leases end before this one's may begin, itself included (rule 29).
fn excluded_by(resource: usize) -> Vec<usize> {
    match resource {
        SHARED => (SHARED..RESOURCES).collect(),
        slot if is_slot(slot) => vec![SHARED, slot],
        other => vec![other],
    }
}

pub fn session(number: u64) -> SessionId {
    SessionId(Uuid::from_u128(u128::from(number) + 1))
}

/// Which token a message carries.
#[derive(Debug, Clone, Copy)]
pub enum Shown {
    /// One of the grants of the resource, counted from the newest.
    Granted(usize),
    /// One that the store has not given.
    Forged(u64),
    Zero,
}

/// Which session a message names.
#[derive(Debug, Clone, Copy)]
pub enum From {
    Nobody,
    Holder,
    Another,
}

#[derive(Debug, Clone, Copy)]
pub enum Step {
    Grant(usize),
    Pending,
    Delete(usize),
    /// The watch tells the next events.
    Tell(usize),
    Snapshot,
    /// The gate asks how far the store is; the answer may be an old one.
    Head,
    Pass(u64),
    Judge(usize, Shown, From),
    /// A message comes, and the store is asked for it.
    Ask(usize, Shown, From),
    Away,
    Save,
    Restart,
    /// The store loses its last grants and goes on as another history.
    SetBack(usize),
    /// An old server answers from the history before.
    AskOldServer(usize),
}

pub fn rules() -> impl Strategy<Value = Rules> {
    (any::<bool>(), any::<bool>(), any::<bool>(), prop_oneof![Just(100usize), 1usize..5]).prop_map(
        |(fail_open, strict, remembers, marks_max)| Rules {
            cache_ttl: TTL,
            fail_open,
            strict,
            remembers,
            marks_max,
        },
    )
}

pub fn steps() -> impl Strategy<Value = Vec<Step>> {
    let resource = 0..RESOURCES;
    let shown = prop_oneof![
        8 => (0usize..3).prop_map(Shown::Granted),
        1 => (1u64..40).prop_map(Shown::Forged),
        1 => Just(Shown::Zero),
    ];
    let from = prop_oneof![2 => Just(From::Nobody), 3 => Just(From::Holder), 1 => Just(From::Another)];
    let message = (resource.clone(), shown, from);
    let step = prop_oneof![
        6 => resource.clone().prop_map(Step::Grant),
        1 => Just(Step::Pending),
        1 => resource.clone().prop_map(Step::Delete),
        6 => (1usize..4).prop_map(Step::Tell),
        2 => Just(Step::Snapshot),
        3 => Just(Step::Head),
        4 => (1u64..8).prop_map(Step::Pass),
        10 => message.clone().prop_map(|(r, shown, from)| Step::Judge(r, shown, from)),
        5 => message.prop_map(|(r, shown, from)| Step::Ask(r, shown, from)),
        1 => Just(Step::Away),
        4 => Just(Step::Save),
        1 => Just(Step::Restart),
        1 => (0usize..4).prop_map(Step::SetBack),
        1 => resource.prop_map(Step::AskOldServer),
    ];
    proptest::collection::vec(step, 1..80)
}

/// A grant of the store, and when the next one followed.
#[derive(Debug, Clone, Copy)]
struct Grant {
    token: u64,
    session: u64,
    /// When it was the newest no longer: there was another, the resource was deleted, or it was lost with its history.
    over_at: Option<u64>,
    /// It is part of the present history.
    is_kept: bool,
}

#[derive(Debug, Clone, Copy)]
enum Event {
    Granted(usize, Mark),
    Pending,
    Deleted(usize),
}

/// What was admitted last of a resource.
#[derive(Debug, Clone, Copy)]
struct Admitted {
    token: u64,
    session: Option<SessionId>,
    /// By a gate that fails open, while the store was away.
    is_open: bool,
}

pub struct World {
    rules: Rules,
    fence: Fence,
    now: u64,
    epoch: u64,
    revision: u64,
    grants: BTreeMap<usize, Vec<Grant>>,
    exists: [bool; RESOURCES],
    events: Vec<(u64, Event)>,
    /// The watch has told everything up to here.
    told: Option<(u64, u64)>,
    disk: Vec<MarkRecord>,
    // What the model remembers, across restarts if the gate does.
    admitted: BTreeMap<usize, Admitted>,
    learned: BTreeMap<usize, u64>,
    /// What the store answered, by resource and token.
    confirmed: BTreeMap<usize, u64>,
    pub said: Vec<String>,
}

impl World {
    pub fn new(rules: Rules) -> Self {
        Self {
            rules,
            fence: Fence::new(rules),
            now: 100,
            epoch: 1,
            revision: 0,
            grants: BTreeMap::new(),
            exists: [false; RESOURCES],
            events: Vec::new(),
            told: None,
            disk: Vec::new(),
            admitted: BTreeMap::new(),
            learned: BTreeMap::new(),
            confirmed: BTreeMap::new(),
            said: Vec::new(),
        }
    }

    pub fn take(&mut self, step: Step) {
        match step {
            Step::Grant(r) => self.grant(r),
            Step::Pending => self.event(Event::Pending),
            Step::Delete(SHARED) if self.exists[SHARED + 1..].contains(&true) => {}
            Step::Delete(r) => {
                self.end(r, None);
                self.exists[r] = false;
                self.event(Event::Deleted(r));
            }
            Step::Tell(count) => self.tell(count),
            Step::Snapshot => self.snapshot(),
            Step::Head => {
                assert!(self.fence.head_was(self.epoch, Revision(self.revision), Tick(self.now)));
            }
            Step::Pass(time) => self.now += time,
            Step::Judge(r, shown, from) => {
                let (token, session) = self.message(r, shown, from);
                let is_away = self.fence.is_away(Tick(self.now));
                let verdict = self.fence.admit(&key(r), token, session, Tick(self.now));
                self.judged(r, token, session, verdict, is_away);
            }
            Step::Ask(r, shown, from) => self.ask(r, shown, from),
            Step::Away => self.fence.store_is_away(Tick(self.now + TTL)),
            Step::Save => self.save(),
            Step::Restart => self.restart(),
            Step::SetBack(lost) => self.set_back(lost),
            Step::AskOldServer(r) => self.ask_old_server(r),
        }
    }

    fn event(&mut self, event: Event) {
        self.revision += 1;
        self.events.push((self.revision, event));
    }

    fn end(&mut self, r: usize, lost: Option<u64>) {
        let now = self.now;
        if let Some(last) = self.grants.get_mut(&r).and_then(|grants| grants.last_mut()) {
            last.over_at.get_or_insert(lost.unwrap_or(now));
        }
    }

    fn grant(&mut self, r: usize) {
        for ended in excluded_by(r) {
            self.end(ended, None);
            // A slot is there while it is taken.
            self.exists[ended] &= !is_slot(ended);
        }
        self.exists[r] = true;
        self.exists[SHARED] |= is_slot(r);
        let token = self.revision + 1;
        let mark = Mark { token: Token(token), session: Some(session(token)) };
        self.grants.entry(r).or_default().push(Grant { token, session: token, over_at: None, is_kept: true });
        self.event(Event::Granted(r, mark));
    }

    fn tell(&mut self, count: usize) {
        let Some((epoch, from)) = self.told else { return };
        if epoch != self.epoch {
            // The watch is told that its cursor is of another history.
            return self.snapshot();
        }
        let next: Vec<_> = self.events.iter().filter(|(at, _)| *at > from).take(count).copied().collect();
        for (revision, event) in next {
            match event {
                Event::Granted(r, mark) => {
                    self.fence.granted(&key(r), mark);
                    excluded_by(r).into_iter().for_each(|of| self.has_learned(of, mark.token.0));
                }
                Event::Deleted(r) => self.fence.deleted(&key(r)),
                Event::Pending => {}
            }
            self.fence.told_up_to(Revision(revision));
            self.told = Some((epoch, revision));
        }
    }

    fn has_learned(&mut self, r: usize, token: u64) {
        let learned = self.learned.entry(r).or_default();
        *learned = token.max(*learned);
    }

    /// The newest of a resource or one of its slots.
    fn newest(&self, r: usize) -> Mark {
        let those = if r == SHARED { SHARED..RESOURCES } else { r..r + 1 };
        let kept = |of| {
            let grants = self.grants.get(&of).into_iter().flatten();
            grants.filter(|grant| grant.is_kept).map(move |grant| (grant.token, of, grant.session))
        };
        let (token, of, by) = those.flat_map(kept).max().unwrap_or_default();
        Mark { token: Token(token), session: (token > 0 && of == r).then(|| session(by)) }
    }

    /// Whether a resource is there, by what its last kept event says.
    fn has_outlived(&self, r: usize) -> bool {
        let last = self.events.iter().rev().find_map(|(_, event)| match event {
            Event::Granted(of, _) if *of == r => Some(true),
            Event::Granted(of, _) if r == SHARED && is_slot(*of) => Some(true),
            Event::Granted(SHARED, _) if is_slot(r) => Some(false),
            Event::Deleted(of) if *of == r => Some(false),
            _ => None,
        });
        last.unwrap_or(false)
    }

    fn snapshot(&mut self) {
        let asked = Tick(self.now);
        assert!(self.fence.snapshot_begins(self.epoch));
        let exists = self.exists;
        for r in (0..RESOURCES).filter(|r| exists[*r]) {
            let mark = self.newest(r);
            self.fence.learn(&key(r), mark);
            self.has_learned(r, mark.token.0);
        }
        self.fence.snapshot_ends(Revision(self.revision), asked);
        self.told = Some((self.epoch, self.revision));
    }

    fn message(&self, r: usize, shown: Shown, from: From) -> (Token, Option<SessionId>) {
        let grants = self.grants.get(&r).map_or(&[][..], Vec::as_slice);
        let grant = match shown {
            Shown::Granted(back) => grants.iter().rev().nth(back),
            _ => None,
        };
        let token = match (grant, shown) {
            (Some(grant), _) => grant.token,
            (None, Shown::Forged(ahead)) => self.revision + ahead,
            (None, Shown::Zero) => 0,
            (None, Shown::Granted(_)) => 1,
        };
        let session = match from {
            From::Nobody => None,
            From::Holder => Some(session(grant.map_or(token, |grant| grant.session))),
            From::Another => Some(session(1 << 40)),
        };
        (Token(token), session)
    }

    fn ask(&mut self, r: usize, shown: Shown, from: From) {
        let (token, session) = self.message(r, shown, from);
        let answer = if self.exists[r] { MarkLookup::Newest(self.newest(r)) } else { MarkLookup::Nothing };
        let asked = Tick(self.now);
        let is_away = false;
        let message = (&key(r), token, session);
        if let MarkLookup::Newest(mark) = answer {
            self.has_learned(r, mark.token.0);
            self.confirmed.insert(r, mark.token.0);
        }
        let verdict = self.fence.conclude(message, (answer, Some(self.epoch)), asked, asked);
        self.judged(r, token, session, verdict.expect("the present history"), is_away);
    }

    fn ask_old_server(&mut self, r: usize) {
        let epoch = self.epoch - 1;
        let asked = Tick(self.now);
        if epoch >= self.fence.epoch() {
            // The gate has not heard of the present history yet, and would believe it.
            return;
        }
        let old = Mark { token: Token(self.revision + 1_000), session: None };
        let answer = (MarkLookup::Newest(old), Some(epoch));
        let verdict = self.fence.conclude((&key(r), old.token, None), answer, asked, asked);
        assert_eq!(verdict, None, "an older history is not followed");
        assert!(!self.fence.head_was(epoch, Revision(0), asked) && !self.fence.snapshot_begins(epoch));
        self.said.push("older_history".to_owned());
    }

    fn save(&mut self) {
        let (records, number) = self.fence.unsaved();
        self.disk.extend(records);
        self.fence.saved_up_to(number);
    }

    fn restart(&mut self) {
        self.fence = Fence::new(self.rules);
        self.told = None;
        self.learned.clear();
        self.confirmed.clear();
        if self.rules.remembers {
            self.disk.iter().cloned().for_each(|record| self.fence.restore(record));
        } else {
            self.admitted.clear();
        }
    }

    /// The last grants are lost, and tokens go on above all that can have been given.
    fn set_back(&mut self, lost: usize) {
        let now = self.now;
        let from = self.events.len().saturating_sub(lost);
        for (revision, event) in self.events.split_off(from) {
            if let Event::Granted(r, _) = event {
                let grants = self.grants.get_mut(&r).expect("granted");
                let grant = grants.iter_mut().find(|grant| grant.token == revision).expect("granted");
                grant.over_at.get_or_insert(now);
                grant.is_kept = false;
            }
        }
        // What is left of a resource is what its last kept event says.
        for r in 0..RESOURCES {
            self.exists[r] = self.has_outlived(r);
            if self.exists[r] {
                let newest = self.newest(r).token.0;
                let grants = self.grants.entry(r).or_default();
                grants.iter_mut().filter(|g| g.token == newest).for_each(|g| g.over_at = None);
            }
        }
        self.epoch += 1;
        self.revision += 10_000;
    }

    /// The promises.
    fn judged(
        &mut self,
        r: usize,
        token: Token,
        session: Option<SessionId>,
        verdict: Verdict,
        is_away: bool,
    ) {
        self.said.push(match verdict {
            Verdict::Undecidable(doubt) => doubt.as_str().to_owned(),
            Verdict::Stale { .. } => "stale".to_owned(),
            Verdict::Admit => "admit".to_owned(),
        });
        let admitted = self.admitted.get(&r).copied();
        if let Verdict::Stale { newest } = verdict {
            assert!(newest >= token, "{newest} does not make {token} stale");
        }
        if verdict != Verdict::Admit {
            return;
        }
        assert!(token.0 > 0, "no grant has the token 0");
        let is_open = self.rules.fail_open && is_away;
        // The token of a slot that is shown without the slot counts as the resource's own: it fences the others.
        let has_it =
            |of: usize| self.grants.get(&of).into_iter().flatten().any(|grant| grant.token == token.0);
        let is_a_slots = r == SHARED && (SHARED + 1..RESOURCES).any(has_it);
        let was_dropped = token <= self.fence.floor();
        if let Some(before) = admitted {
            assert!(token.0 >= before.token, "{token} was admitted after {}", before.token);
            let is_another =
                token.0 == before.token && before.session.zip(session).is_some_and(|(a, b)| a != b);
            // The session was believed, and is forgotten: then the store's word counts.
            let was_a_guess = (before.is_open || is_a_slots) && was_dropped;
            assert!(!is_another || was_a_guess, "{token} was admitted from two sessions");
        }
        let later = excluded_by(r).into_iter().filter(|of| *of != r).filter_map(|of| self.admitted.get(&of));
        let later =
            later.filter(|admitted| !(admitted.is_open && was_dropped)).map(|admitted| admitted.token);
        let later = later.max().unwrap_or_default();
        assert!(token.0 >= later, "{token} was admitted after {later}, which excludes it");
        let learned = self.learned.get(&r).copied().unwrap_or_default();
        assert!(token.0 >= learned || was_dropped, "{token} was admitted though {learned} was learned");
        if !is_open && !is_a_slots {
            let grant = self.grants.get(&r).and_then(|of| of.iter().find(|grant| grant.token == token.0));
            let grant = grant.unwrap_or_else(|| panic!("{token} was never given"));
            let is_recent = grant.over_at.is_none_or(|over| over + TTL >= self.now);
            assert!(is_recent, "{token} was over at {:?}, and it is {}", grant.over_at, self.now);
            if self.rules.strict {
                let confirmed = self.confirmed.get(&r).copied();
                let known = admitted.map(|before| before.token);
                let is_read = confirmed >= Some(token.0) || known == Some(token.0);
                assert!(is_read, "{token} was admitted by a strict gate that has read {confirmed:?}");
            }
        }
        if self.rules.remembers {
            let is_saved = self.disk.iter().any(
                |record| matches!(record, MarkRecord::Mark(of, mark) if *of == key(r) && mark.token == token),
            );
            assert!(is_saved, "{token} was admitted before it was saved");
        }
        let same = admitted.filter(|before| before.token == token.0);
        let session = session.or(same.and_then(|before| before.session));
        let is_open = is_open || same.is_some_and(|before| before.is_open);
        self.admitted.insert(r, Admitted { token: token.0, session, is_open });
    }

    /// After all that, a new grant is admitted as soon as the gate has asked, and its predecessor refused.
    pub fn can_still_decide(mut self) {
        // Above everything that was made up and taken for granted while the store was away.
        self.revision += 1_000;
        for r in [0, SHARED + 1, SHARED + 2, SHARED, SHARED + 1] {
            self.grant(r);
            let (token, of) = self.message(r, Shown::Granted(0), From::Holder);
            for _ in 0..2 {
                self.ask(r, Shown::Granted(0), From::Holder);
                self.save();
            }
            let verdict = self.fence.admit(&key(r), token, of, Tick(self.now));
            assert_eq!(verdict, Verdict::Admit, "the newest token is admitted");
            for excluded in excluded_by(r) {
                let verdict = self.fence.admit(&key(excluded), Token(token.0 - 1), None, Tick(self.now));
                let is_refused = match verdict {
                    Verdict::Stale { .. } | Verdict::Undecidable(Doubt::NeverGiven { .. }) => true,
                    // There was no room for the mark.
                    Verdict::Undecidable(Doubt::Forgotten) => self.rules.marks_max < RESOURCES,
                    Verdict::Undecidable(_) | Verdict::Admit => false,
                };
                assert!(is_refused, "{verdict}");
            }
        }
    }
}
