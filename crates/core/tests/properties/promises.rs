//! A history of what holders were promised, kept apart from the machine's own rows: who may work on what until when, by
//! the ttl of what was asked and the times of the renewals that were answered well.

use std::collections::BTreeMap;

use solehold_core::{
    command::{AskedTenure, Command, OpenSession, Target},
    event::{Change, Ended, Event, What},
    key::{HolderKey, LeaseId, Name, ResourceKey, SessionId},
    lease::Lease,
    limits,
    outcome::{Answer, Grant},
    time::{StoreTime, Token},
    waiter::{PlaceKey, Waiter},
};

use crate::step::acquires;

/// How a hold came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    Released,
    Expired,
    /// Ended by another, who said that the holder is fenced off.
    Fenced,
    Revoked,
}

/// The end of a hold.
#[derive(Debug, Clone, Copy)]
pub struct End {
    pub at: StoreTime,
    pub how: How,
    /// Until when its holder had been promised it.
    pub until: StoreTime,
    /// The resource's lock-delay at that time.
    pub lock_delay_ms: u64,
}

/// Time promised to whatever hangs on it.
#[derive(Debug, Clone, Copy)]
pub struct Promise {
    pub ttl_ms: u64,
    pub until: StoreTime,
}

impl Promise {
    fn new(now: StoreTime, ttl_ms: u64) -> Self {
        Self { ttl_ms, until: StoreTime(now.0.saturating_add(ttl_ms)) }
    }

    fn renew(&mut self, now: StoreTime) {
        self.until = self.until.max(Self::new(now, self.ttl_ms).until);
    }

    /// Rule 3: what was live keeps the time that it had left, and at least the grace or its ttl.
    fn restart(&mut self, stopped_at: StoreTime, gap_ms: u64, now: StoreTime, grace_ms: u64) {
        if self.until > stopped_at {
            let kept = Self::new(self.until, gap_ms).until;
            self.until = kept.max(Self::new(now, self.ttl_ms.min(grace_ms)).until);
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub enum Tenure {
    Own(Promise),
    Session(SessionId),
}

/// One grant.
#[derive(Debug, Clone)]
pub struct Hold {
    pub lease: LeaseId,
    pub token: Token,
    pub holder: Name,
    /// Of how many slots it is, if it is shared.
    pub slots: Option<u32>,
    pub tenure: Tenure,
    /// It was waited for, and ends then unless it is confirmed.
    pub confirm_by: Option<StoreTime>,
    pub end: Option<End>,
}

#[derive(Debug, Clone, Default)]
pub struct Promises {
    pub holds: BTreeMap<ResourceKey, Vec<Hold>>,
    pub sessions: BTreeMap<SessionId, Promise>,
    /// The session that each holder opened last.
    pub last_opened: BTreeMap<HolderKey, SessionId>,
    pub lock_delays: BTreeMap<ResourceKey, u64>,
    /// What those in line asked for.
    pub waiting: BTreeMap<PlaceKey, Waiter>,
}

impl Promises {
    /// Until when a hold was promised, as of now.
    pub fn until(&self, hold: &Hold) -> StoreTime {
        match (&hold.end, hold.tenure) {
            (Some(end), _) => end.until,
            (None, Tenure::Own(promise)) => confirmed(hold, promise.until),
            (None, Tenure::Session(id)) => confirmed(hold, self.sessions[&id].until),
        }
    }

    /// The hold of a resource that has not ended, if there is one.
    pub fn open_hold(&self, key: &ResourceKey) -> Option<&Hold> {
        self.holds.get(key).and_then(|holds| holds.iter().rev().find(|h| h.end.is_none()))
    }

    /// All holds of a resource, of the whole and of its slots.
    pub fn holds_of(&self, key: &ResourceKey) -> impl Iterator<Item = (&ResourceKey, &Hold)> {
        let of = self.holds.range(key.whole()..=key.of_slot(u32::MAX));
        of.flat_map(|(key, holds)| holds.iter().map(move |hold| (key, hold)))
    }

    /// Nobody was promised anything for longer than this.
    pub fn latest(&self) -> StoreTime {
        let of_sessions = self.sessions.values().map(|promise| promise.until);
        let of_holds = self.holds.values().flatten().map(|hold| self.until(hold));
        of_sessions.chain(of_holds).max().unwrap_or_default()
    }

    pub fn learn(
        &mut self,
        command: &Command,
        changes: &[Change],
        outcome: Result<&Answer, ()>,
        now: StoreTime,
    ) {
        for change in changes {
            match change {
                Change::Event(event) => self.learn_event(command, event),
                Change::Waits(waiter) => drop(self.waiting.insert(waiter.place(), waiter.clone())),
                Change::WaitEnded { key, arrival, .. } => {
                    self.waiting.remove(&(key.clone(), *arrival));
                }
                Change::SessionOpened(session) if session.is_room() => {
                    self.sessions.insert(session.id, Promise::new(now, session.ttl_ms));
                    self.last_opened.insert(session.holder.clone(), session.id);
                }
                Change::SessionOpened(session) => {
                    let Command::OpenSession(OpenSession { ttl_ms, id, holder, .. }) = command else {
                        panic!("{command:?} opened session {}", session.id)
                    };
                    self.sessions.insert(*id, Promise::new(now, *ttl_ms));
                    self.last_opened.insert(holder.clone(), *id);
                }
                _ => {}
            }
        }
        match (command, outcome) {
            (Command::Heartbeat { session, .. }, Ok(_)) => self.renew_session(*session, now),
            (Command::Renew { ttl_ms, claim, .. }, Ok(Answer::Renewed(grant))) => {
                self.renew(grant, *ttl_ms, now);
                // A name alone confirms nothing.
                let is_by_id = matches!(claim.target, Target::Lease { .. });
                if is_by_id || claim.token.is_some() || claim.session.is_some() {
                    let holds = self.holds.get_mut(&grant.lease.key);
                    holds.and_then(|holds| holds.last_mut()).expect("it is held").confirm_by = None;
                }
            }
            _ => {}
        }
    }

    fn renew_session(&mut self, id: SessionId, now: StoreTime) {
        self.sessions.get_mut(&id).expect("a renewed session was opened").renew(now);
    }

    fn renew(&mut self, grant: &Grant, ttl_ms: Option<u64>, now: StoreTime) {
        let holds = self.holds.get_mut(&grant.lease.key).expect("a renewed lease was granted");
        let hold = holds.last_mut().expect("a renewed lease was granted");
        assert_eq!(hold.lease, grant.lease.lease.id, "the last grant is the one that is renewed");
        match &mut hold.tenure {
            Tenure::Own(promise) => {
                promise.ttl_ms = ttl_ms.unwrap_or(promise.ttl_ms);
                promise.renew(now);
            }
            Tenure::Session(id) => {
                let id = *id;
                self.renew_session(id, now);
            }
        }
    }

    pub fn learn_event(&mut self, command: &Command, event: &Event) {
        match &event.what {
            What::Acquired(lease) => {
                let waited =
                    self.waiting.values().find(|w| w.lease == lease.id && w.key == event.key.whole());
                let ttl_ms = waited.map(|w| match w.tenure {
                    AskedTenure::Own { ttl_ms } => ttl_ms,
                    AskedTenure::Session(id) => self.sessions[&id].ttl_ms,
                });
                let confirm_ms = ttl_ms.map(|ttl_ms| ttl_ms.min(limits::CONFIRM_MS));
                let hold = Hold {
                    confirm_by: confirm_ms.map(|ms| Promise::new(event.at, ms).until),
                    lease: lease.id,
                    token: lease.token,
                    holder: lease.holder.clone(),
                    slots: lease.slots,
                    tenure: tenure(command, waited, lease, event.at),
                    end: None,
                };
                self.holds.entry(event.key.clone()).or_default().push(hold);
            }
            What::Released(ended) => self.end(event, ended, How::Released),
            What::Expired(ended) => self.end(event, ended, How::Expired),
            What::Revoked(ended) if is_fenced(command) => self.end(event, ended, How::Fenced),
            What::Revoked(ended) => self.end(event, ended, How::Revoked),
            What::HoldBackLifted { token, .. } => {
                assert!(is_fenced(command), "{command:?} lifts a hold-back");
                let holds = self.holds.get_mut(&event.key).into_iter().flatten();
                let held = holds.last().expect("only what was held is held back");
                let end = held.end.as_mut().expect("only what has ended is held back");
                assert!(held.token == *token && end.until.plus_ms(end.lock_delay_ms) > event.at);
                (end.how, end.at) = (How::Fenced, event.at);
            }
            What::Declared(declaration) => {
                self.lock_delays.insert(event.key.clone(), declaration.lock_delay_ms);
            }
            What::Deleted => {
                self.lock_delays.remove(&event.key);
            }
            What::Pending(_) | What::Stolen(_) | What::StateChanged(_) | What::ConfigChanged(_) => {}
        }
    }

    fn end(&mut self, event: &Event, ended: &Ended, how: How) {
        if ended.token.is_none() {
            return;
        }
        let lock_delay_ms = self.lock_delays.get(&event.key.whole()).copied().unwrap_or(0);
        let until = self.open_hold(&event.key).map(|hold| self.until(hold)).expect("only what is held ends");
        let holds = self.holds.get_mut(&event.key).expect("only what is held ends");
        let hold = holds.last_mut().expect("only what is held ends");
        assert_eq!((hold.lease, Some(hold.token)), (ended.lease, ended.token), "the last grant is what ends");
        hold.end = Some(End { at: event.at, how, until, lock_delay_ms });
    }

    pub fn restart(&mut self, stopped_at: StoreTime, gap_ms: u64, now: StoreTime, grace_ms: u64) {
        for session in self.sessions.values_mut() {
            session.restart(stopped_at, gap_ms, now, grace_ms);
        }
        for hold in self.holds.values_mut().flatten().filter(|h| h.end.is_none()) {
            if let Some(by) = hold.confirm_by.as_mut().filter(|by| **by > stopped_at) {
                *by = Promise::new(*by, gap_ms).until.max(now);
            }
            if let Tenure::Own(promise) = &mut hold.tenure {
                promise.restart(stopped_at, gap_ms, now, grace_ms);
            }
        }
        // Nor does the time pass for which a resource is held back, or for which anyone waits.
        let ends = self.holds.values_mut().flatten().filter_map(|h| h.end.as_mut());
        for end in ends.filter(|end| matches!(end.how, How::Revoked | How::Expired)) {
            if end.until.plus_ms(end.lock_delay_ms) > stopped_at {
                end.until = Promise::new(end.until, gap_ms).until;
            }
        }
        for waiter in self.waiting.values_mut().filter(|w| w.deadline > stopped_at) {
            waiter.deadline = Promise::new(waiter.deadline, gap_ms).until;
        }
    }
}

/// An unconfirmed hold ends early.
fn confirmed(hold: &Hold, until: StoreTime) -> StoreTime {
    hold.confirm_by.map_or(until, |by| by.min(until))
}

/// What a grant hangs on, by what was asked, or by the session that it was offered to.
fn tenure(command: &Command, waited: Option<&Waiter>, lease: &Lease, at: StoreTime) -> Tenure {
    if let Some(waiter) = waited {
        return match waiter.tenure {
            AskedTenure::Own { ttl_ms } => Tenure::Own(Promise::new(at, ttl_ms)),
            AskedTenure::Session(id) => Tenure::Session(id),
        };
    }
    match acquires(command).iter().find(|ask| ask.lease == lease.id).map(|ask| ask.tenure) {
        Some(AskedTenure::Own { ttl_ms }) => Tenure::Own(Promise::new(at, ttl_ms)),
        Some(AskedTenure::Session(id)) => Tenure::Session(id),
        None => Tenure::Session(lease.tenure.session().expect("what was pending hangs on a session")),
    }
}

fn is_fenced(command: &Command) -> bool {
    matches!(
        command,
        Command::Revoke { fenced: true, .. }
            | Command::Delete { fenced: true, .. }
            | Command::OpenSession(OpenSession { fenced: true, .. })
    )
}
