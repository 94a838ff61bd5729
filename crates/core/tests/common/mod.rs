//! A world to tell stories in: one state, one clock that moves only when the story says so, and short words for
//! commands.
//!
//! ```text
//! let mut w = World::new();
//! w.acquire("ann", "lobby").says("granted #1 for 10000 ms", "lease_acquired");
//! w.wait(10_000);
//! w.acquire("bob", "lobby").says("granted #4 for 10000 ms", "lease_expired lease_stolen lease_acquired");
//! ```
#![allow(dead_code, reason = "each test binary uses its part of the vocabulary")]

use solehold_core::{
    Decision, apply,
    call::{Actor, Call},
    command::{
        Acquire, AskedTenure, Claim, Command, HandOver, OpenSession, Registration, StateWrite, StatusBy,
        Target, Undeclared, Wait,
    },
    decide,
    event::Change,
    key::{Document, HolderKey, LeaseId, Name, RequestKey, ResourceKey, SessionId},
    lease::Declaration,
    ledger::Ledger,
    outcome::{Answer, Outcome},
    session::HolderStatus,
    time::{Moment, Revision, StoreTime, Token},
};
use uuid::Uuid;

/// The tenant of every story that does not name another.
pub const TENANT: &str = "acme";
/// The time to live of every lease and session that does not name another.
pub const TTL_MS: u64 = 10_000;
/// How long a hand-over may take in every story that does not say otherwise.
pub const WITHIN_MS: u64 = 5_000;
/// How long anyone waits in line in every story that does not say otherwise.
pub const WAIT_MS: u64 = 60_000;

pub fn name(text: &str) -> Name {
    Name::new(text).expect("a name")
}

pub fn document(text: &str) -> Document {
    Document::new(text).expect("a document")
}

pub fn key_of(tenant: &str, key: &str) -> ResourceKey {
    ResourceKey::new(name(tenant), name("scene"), name(key))
}

pub fn key(key: &str) -> ResourceKey {
    key_of(TENANT, key)
}

pub fn holder(who: &str) -> HolderKey {
    HolderKey { tenant: name(TENANT), name: name(who) }
}

/// A claim of the lease on a resource, without any proof yet.
pub fn on(what: &str) -> Claim {
    Claim { target: Target::Resource(key(what)), token: None, session: None, holder: None }
}

/// A claim of a lease by its id.
pub fn lease(id: LeaseId) -> Claim {
    let target = Target::Lease { tenant: name(TENANT), id };
    Claim { target, token: None, session: None, holder: None }
}

/// What a claimant can show.
pub trait Proof {
    fn token(self, token: u64) -> Self;
    fn session(self, session: SessionId) -> Self;
    fn holder(self, who: &str) -> Self;
}

impl Proof for Claim {
    fn token(mut self, token: u64) -> Self {
        self.token = Some(Token(token));
        self
    }

    fn session(mut self, session: SessionId) -> Self {
        self.session = Some(session);
        self
    }

    fn holder(mut self, who: &str) -> Self {
        self.holder = Some(name(who));
        self
    }
}

/// A decision as a story tells it: the outcome in words and the names of its events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    pub outcome: String,
    pub events: String,
}

impl Told {
    /// Compares the whole of it.
    #[track_caller]
    pub fn says(&self, outcome: &str, events: &str) {
        assert_eq!((self.outcome.as_str(), self.events.as_str()), (outcome, events));
    }
}

/// The names of a decision's events, in order.
pub fn events(decision: &Decision) -> String {
    let names = decision.changes.iter().filter_map(|change| match change {
        Change::Event(event) => Some(event.name().as_str()),
        _ => None,
    });
    names.collect::<Vec<_>>().join(" ")
}

/// An outcome in words; ids are shortened to `~1`, the order in which the story made them.
fn words(outcome: &Outcome) -> String {
    let told = match outcome {
        Ok(Answer::Granted(g)) => {
            let again = if g.repeated { " again" } else { "" };
            let state =
                g.state.as_ref().map(|s| format!(" with {}", s.document.as_str())).unwrap_or_default();
            let confirm =
                g.lease.confirm_within_ms().map(|ms| format!(", to confirm in {ms}")).unwrap_or_default();
            format!(
                "granted{again} {:?} for {} ms{confirm}{state}",
                g.lease.lease.token,
                g.lease.ttl_left_ms()
            )
        }
        Ok(Answer::GrantedAll(grants)) => format!("granted all {}", grants.len()),
        Ok(Answer::Renewed(g)) => {
            format!("renewed {:?} for {} ms", g.lease.lease.token, g.lease.ttl_left_ms())
        }
        Ok(Answer::Waiting(p)) => {
            format!("waiting behind {} for {} ms", p.ahead, p.deadline.ms_after(p.now))
        }
        Ok(Answer::Left) => "left".to_owned(),
        Ok(Answer::Released(_)) => "released".to_owned(),
        Ok(Answer::Revoked { held_back_ms, .. }) => format!("revoked, held back for {held_back_ms} ms"),
        Ok(Answer::HoldBackLifted) => "hold-back lifted".to_owned(),
        Ok(Answer::Spent) => "spent".to_owned(),
        Ok(Answer::StateWritten(s)) => format!("written {} under {:?}", s.sequence, s.token),
        Ok(Answer::Offered(p)) => format!("offered to {}", p.holder),
        Ok(Answer::Judged { expired }) => format!("judged, expired: {expired}"),
        Ok(Answer::Session(v)) => {
            format!("session of {} for {} ms", v.session.holder.name, v.session.deadline.ms_after(v.now))
        }
        Ok(Answer::Closed { released }) => format!("closed, {released} released"),
        Ok(Answer::Holder(h)) => format!("holder {} is {:?}", h.key.name, h.status),
        Ok(Answer::Declared { created, .. }) => format!("declared, created: {created}"),
        Ok(Answer::HolderRemoved { released, revoked }) => {
            format!("removed, {released} released, {revoked} revoked")
        }
        Ok(Answer::Noted) => "noted".to_owned(),
        Ok(Answer::Removed) => "removed".to_owned(),
        Ok(Answer::Record(r)) => format!("record {}", r.id),
        Ok(Answer::Raised(r)) => format!("raised to {r:?}"),
        Err(refusal) => format!("refused: {refusal}"),
    };
    told.replace("00000000-0000-0000-0000-00000000000", "~")
}

fn open(id: SessionId, who: &str, replace: Option<SessionId>, fenced: bool) -> Command {
    let registration = Registration { site: None, capacity: None, attributes: Document::default() };
    Command::OpenSession(OpenSession {
        id,
        holder: holder(who),
        ttl_ms: TTL_MS,
        replace,
        fenced,
        follows: None,
        registration: Some(registration),
        metrics: None,
    })
}

/// One state and its clock.
#[derive(Debug, Clone)]
pub struct World {
    pub state: Ledger,
    pub moment: Moment,
    /// Who gives the commands from now on.
    pub by: Actor,
    ids: u128,
}

impl World {
    pub fn new() -> Self {
        let moment = Moment { now: StoreTime(1_000_000), revision: Revision(0) };
        Self { state: Ledger::default(), moment, by: Actor::Unnamed, ids: 0 }
    }

    /// Decides a command now, and applies what was decided.
    pub fn run(&mut self, command: &Command) -> Decision {
        let call = Call::new(command.clone(), self.by.clone());
        let decision = decide(&self.state, &call, self.moment).expect("the whole state is here");
        for change in &decision.changes {
            apply(&mut self.state, change);
        }
        self.moment = decision.moment;
        decision
    }

    pub fn told(&mut self, command: Command) -> Told {
        let decision = self.run(&command);
        Told { outcome: words(&decision.outcome), events: events(&decision) }
    }

    pub fn wait(&mut self, ms: u64) {
        self.moment.now = self.moment.now.plus_ms(ms);
    }

    /// An id that nothing had before.
    pub fn fresh(&mut self) -> Uuid {
        self.ids += 1;
        Uuid::from_u128(self.ids)
    }

    /// An acquire as most stories ask it; the rest changes what they are about.
    pub fn asks(&mut self, who: &str, what: &str) -> Acquire {
        Acquire {
            key: key(what),
            lease: LeaseId(self.fresh()),
            holder: name(who),
            tenure: AskedTenure::Own { ttl_ms: TTL_MS },
            request: None,
            attributes: Document::default(),
            undeclared: Undeclared::Allow,
            wait: None,
            slots: None,
            holds_at_most: None,
        }
    }

    pub fn acquire(&mut self, who: &str, what: &str) -> Told {
        let ask = self.asks(who, what);
        self.told(Command::Acquire(ask))
    }

    pub fn acquire_in(&mut self, session: SessionId, who: &str, what: &str) -> Told {
        let ask = Acquire { tenure: AskedTenure::Session(session), ..self.asks(who, what) };
        self.told(Command::Acquire(ask))
    }

    pub fn request(&mut self, who: &str, what: &str, request: &str) -> Told {
        let ask = Acquire { request: Some(name(request)), ..self.asks(who, what) };
        self.told(Command::Acquire(ask))
    }

    /// Opens a waiting room that lives as long as a story.
    pub fn room(&mut self) -> SessionId {
        self.room_for(100 * TTL_MS)
    }

    pub fn room_for(&mut self, ttl_ms: u64) -> SessionId {
        let id = SessionId(self.fresh());
        self.told(Command::OpenRoom { id, ttl_ms });
        id
    }

    /// Asks to wait in line; the request of a story that names none is the asker's name.
    pub fn waits(&mut self, room: SessionId, who: &str, what: &str) -> Told {
        self.waits_for(room, who, what, WAIT_MS)
    }

    pub fn waits_for(&mut self, room: SessionId, who: &str, what: &str, wait_ms: u64) -> Told {
        let wait = Some(Wait { room, wait_ms });
        let ask = Acquire { request: Some(name(who)), wait, ..self.asks(who, what) };
        self.told(Command::Acquire(ask))
    }

    pub fn waits_in(&mut self, room: SessionId, session: SessionId, who: &str, what: &str) -> Told {
        let wait = Some(Wait { room, wait_ms: WAIT_MS });
        let tenure = AskedTenure::Session(session);
        let ask = Acquire { request: Some(name(who)), wait, tenure, ..self.asks(who, what) };
        self.told(Command::Acquire(ask))
    }

    pub fn leave(&mut self, what: &str, lease: LeaseId) -> Told {
        self.told(Command::LeaveQueue { key: key(what), lease })
    }

    /// The names of those in line, dead or alive, in order.
    pub fn line(&self, what: &str) -> String {
        let key = key(what);
        self.state.waiters_for(&key).map(|w| w.holder.as_str()).collect::<Vec<_>>().join(" ")
    }

    pub fn waiter(&self, who: &str, what: &str) -> LeaseId {
        let key = key(what);
        self.state.waiters_for(&key).find(|w| w.holder == name(who)).expect("it waits").lease
    }

    pub fn cancel(&mut self, who: &str, what: &str, request: &str) -> Told {
        let resource = key(what);
        let holder = name(who);
        let request = name(request);
        self.told(Command::CancelRequest(RequestKey { resource, holder, request }))
    }

    pub fn renew(&mut self, claim: Claim) -> Told {
        self.told(Command::Renew { claim, ttl_ms: None, stats: None })
    }

    pub fn renew_for(&mut self, claim: Claim, ttl_ms: u64) -> Told {
        self.told(Command::Renew { claim, ttl_ms: Some(ttl_ms), stats: None })
    }

    pub fn release(&mut self, claim: Claim) -> Told {
        self.told(Command::Release { claim, state: None })
    }

    pub fn release_leaving(&mut self, claim: Claim, sequence: u64, text: &str) -> Told {
        let state = Some(StateWrite { sequence, document: document(text) });
        self.told(Command::Release { claim, state })
    }

    pub fn write(&mut self, claim: Claim, sequence: u64, text: &str) -> Told {
        self.told(Command::WriteState { claim, write: StateWrite { sequence, document: document(text) } })
    }

    pub fn revoke(&mut self, claim: Claim) -> Told {
        self.told(Command::Revoke { claim, fenced: false, reason: None })
    }

    pub fn revoke_fenced(&mut self, claim: Claim) -> Told {
        self.told(Command::Revoke { claim, fenced: true, reason: None })
    }

    pub fn hand_over(&mut self, what: &str, to: SessionId) -> Told {
        let ask = self.offers(what, to);
        self.told(Command::HandOver(ask))
    }

    /// A hand-over, to be told.
    pub fn offers(&mut self, what: &str, to: SessionId) -> HandOver {
        HandOver::new(key(what), LeaseId(self.fresh()), to, WITHIN_MS)
    }

    pub fn expire(&mut self, what: &str) -> Told {
        self.told(Command::Expire { key: key(what) })
    }

    pub fn declare(&mut self, what: &str, lock_delay_ms: u64) -> Told {
        let declaration = Declaration { lock_delay_ms, ..Declaration::default() };
        self.told(Command::Declare { key: key(what), declaration, only_new: false })
    }

    pub fn delete(&mut self, what: &str) -> Told {
        self.told(Command::Delete { key: key(what), force: false, fenced: false })
    }

    pub fn delete_by_force(&mut self, what: &str, fenced: bool) -> Told {
        self.told(Command::Delete { key: key(what), force: true, fenced })
    }

    /// Opens a session of a registered holder; its story must go well.
    pub fn opens(&mut self, who: &str) -> SessionId {
        self.replaces(who, None, false).0
    }

    pub fn replaces(&mut self, who: &str, replace: Option<SessionId>, fenced: bool) -> (SessionId, Told) {
        let id = SessionId(self.fresh());
        let told = self.told(open(id, who, replace, fenced));
        (id, told)
    }

    /// Opens another session as a process that has had one.
    pub fn comes_back(&mut self, who: &str, last: SessionId) -> (SessionId, Told) {
        let id = SessionId(self.fresh());
        let mut command = open(id, who, None, false);
        if let Command::OpenSession(OpenSession { follows, .. }) = &mut command {
            *follows = Some(last);
        }
        (id, self.told(command))
    }

    pub fn reopens(&mut self, id: SessionId, who: &str) -> Told {
        self.told(open(id, who, None, false))
    }

    pub fn heartbeat(&mut self, session: SessionId) -> Told {
        self.told(Command::Heartbeat { tenant: name(TENANT), session, holder: None, metrics: None })
    }

    pub fn close(&mut self, session: SessionId) -> Told {
        self.told(Command::CloseSession { tenant: name(TENANT), session })
    }

    pub fn status(&mut self, who: &str, status: HolderStatus) -> Told {
        self.told(Command::SetStatus { holder: holder(who), status, by: StatusBy::Operator })
    }

    /// A holder drains itself.
    pub fn drains(&mut self, who: &str, session: Option<SessionId>) -> Told {
        let status = HolderStatus::Draining;
        let by = StatusBy::Itself(session);
        self.told(Command::SetStatus { holder: holder(who), status, by })
    }

    /// Removes a holder by its name alone.
    pub fn removes(&mut self, who: &str) -> Told {
        self.told(Command::RemoveHolder { holder: holder(who), session: None })
    }

    /// Removes a holder, with its session as proof.
    pub fn removes_with(&mut self, who: &str, session: SessionId) -> Told {
        self.told(Command::RemoveHolder { holder: holder(who), session: Some(session) })
    }

    /// Opens a session that may hold so many leases.
    pub fn opens_with_capacity(&mut self, who: &str, capacity: u32) -> SessionId {
        let id = SessionId(self.fresh());
        let mut command = open(id, who, None, false);
        if let Command::OpenSession(OpenSession { registration: Some(registration), .. }) = &mut command {
            registration.capacity = Some(capacity);
        }
        self.told(command);
        id
    }

    pub fn request_in(&mut self, session: SessionId, who: &str, what: &str, request: &str) -> Told {
        let tenure = AskedTenure::Session(session);
        let ask = Acquire { tenure, request: Some(name(request)), ..self.asks(who, what) };
        self.told(Command::Acquire(ask))
    }

    /// The id of the lease that is on a resource now.
    pub fn lease_on(&self, what: &str) -> LeaseId {
        let resource = self.state.resource(&key(what)).expect("the resource has a row");
        resource.lease.as_ref().expect("it has a lease").id
    }

    pub fn pending_on(&self, what: &str) -> LeaseId {
        let resource = self.state.resource(&key(what)).expect("the resource has a row");
        resource.pending.as_ref().expect("it is pending").id
    }
}
