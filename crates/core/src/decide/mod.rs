//! `decide`: the one place that judges who may hold what.
//!
//! ```text
//!             Acquire                        deadline passed, judged by Expire or by the next Acquire
//!   (free) ------------> active -----------------------------------------------------> expired
//!      ^                 |  ^  \                                                          |
//!      |  Release        |  |   \ Revoke, forced Delete, replace                          |
//!      +-----------------+  |    +--------> revoked: held back to the old deadline        |
//!      |                    |                                                             |
//!      |      HandOver      |   the holder's release or expiry activates it               |
//!      |  pending ----------+   in the same commit, with a new token                      |
//!      |                    |                                                             |
//!      |  Acquire, waiting  |   the end of a lease grants to the first in line, who has   |
//!      |  in line ----------+   to confirm the grant by a renewal                         |
//!      +----------------------------------------------------------------------------------+
//! ```

mod hand_over;
mod lease;
mod registry;
mod session;
mod sharing;
mod waiting;

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    apply::{apply, to_resource},
    call::{Actor, Call},
    command::{Command, Target},
    event::{Change, Ended, Event, What},
    key::{LeaseId, Name, RequestKey, ResourceKey, SessionId},
    lease::{Lease, Resource, Tenure},
    ledger::{FoundLate, Ledger},
    limits,
    outcome::{Answer, Outcome, Refusal},
    request::SpentRequest,
    session::{Session, Standing},
    time::{Moment, StoreTime, Token},
    waiter::PlaceKey,
};

/// The decision on one command: the answer, and the changes that make it true.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// The answer. A refusal may come with changes: the end of what had already expired.
    pub outcome: Outcome,
    /// What to apply, in order.
    pub changes: Vec<Change>,
    /// The moment for the next command: revisions continue from here.
    pub moment: Moment,
}

/// Decides one call, by nothing but its arguments.
pub fn decide(ledger: &Ledger, call: &Call, moment: Moment) -> Result<Decision, FoundLate> {
    let mut draft = Draft {
        ledger,
        by: &call.by,
        moment,
        changes: Vec::new(),
        left: BTreeSet::new(),
        rows: BTreeMap::new(),
        lease_counts: BTreeMap::new(),
    };
    let outcome = match draft.dispatch(&call.command) {
        Ok(answer) => Ok(answer),
        Err(Stop::Refused(refusal)) => Err(*refusal),
        Err(Stop::Late(late)) => return Err(late),
    };
    if let Some(note) = call.note.as_ref().filter(|_| outcome.is_ok()) {
        draft.changes.push(Change::RecordPut(note.record(moment.now)));
    }
    Ok(Decision { outcome, changes: draft.changes, moment: draft.moment })
}

/// The decisions on several calls, one after the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decisions {
    pub outcomes: Vec<Outcome>,
    /// What they changed, in order; already applied.
    pub changes: Vec<Change>,
    pub moment: Moment,
}

impl Decisions {
    /// The events among the changes, in order of their revisions.
    pub fn events(&self) -> impl Iterator<Item = &Event> {
        self.changes.iter().filter_map(|change| match change {
            Change::Event(event) => Some(event),
            _ => None,
        })
    }
}

/// Decides calls one after the other and applies each to `ledger`, so that the next one sees its changes. After an
/// error `ledger` must be loaded again, since some of the calls may have been applied.
pub fn decide_all<'c>(
    ledger: &mut Ledger,
    calls: impl IntoIterator<Item = &'c Call>,
    mut moment: Moment,
) -> Result<Decisions, FoundLate> {
    let mut outcomes = Vec::new();
    let mut changes = Vec::new();
    for call in calls {
        let decision = decide(ledger, call, moment)?;
        for change in &decision.changes {
            apply(ledger, change);
        }
        outcomes.push(decision.outcome);
        changes.extend(decision.changes);
        moment = decision.moment;
    }
    Ok(Decisions { outcomes, changes, moment })
}

enum Stop {
    Refused(Box<Refusal>),
    Late(FoundLate),
}

impl From<Refusal> for Stop {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(Box::new(refusal))
    }
}

impl From<FoundLate> for Stop {
    fn from(late: FoundLate) -> Self {
        Self::Late(late)
    }
}

struct Draft<'a> {
    ledger: &'a Ledger,
    by: &'a Actor,
    moment: Moment,
    changes: Vec<Change>,
    /// Places in line that this decision has cleared.
    left: BTreeSet<PlaceKey>,
    /// Resources that are waited for or shared, and their slots, as this decision has left them; none for a free slot.
    rows: BTreeMap<ResourceKey, Option<Resource>>,
    /// By how much this decision has changed the number of leases on each session.
    lease_counts: BTreeMap<SessionId, i32>,
}

impl Draft<'_> {
    fn dispatch(&mut self, command: &Command) -> Result<Answer, Stop> {
        match command {
            Command::Acquire(acquire) => self.acquire(acquire),
            Command::AcquireAll(all) => self.acquire_all(all),
            Command::Renew { claim, ttl_ms, stats } => self.renew(claim, *ttl_ms, stats.as_ref()),
            Command::Release { claim, state } => self.release(claim, state.as_ref()),
            Command::Revoke { claim, fenced, reason } => self.revoke(claim, *fenced, reason.clone()),
            Command::CancelRequest(request) => self.cancel_request(request),
            Command::LeaveQueue { key, lease } => self.leave_queue(key, *lease),
            Command::WriteState { claim, write } => self.write_state(claim, write),
            Command::HandOver(ask) => self.hand_over(ask),
            Command::Expire { key } => self.expire(key),
            Command::OpenSession(ask) => self.open_session(ask),
            Command::OpenRoom { id, ttl_ms } => self.open_room(*id, *ttl_ms),
            Command::Heartbeat { tenant, session, holder, metrics } => {
                self.heartbeat(tenant, *session, holder.as_ref(), metrics.as_ref())
            }
            Command::CloseSession { tenant, session } => self.close_session(tenant, *session),
            Command::ExpireSession(session) => self.expire_session(*session),
            Command::HeardOf { holder, metrics } => self.heard_of(holder, metrics.as_ref()),
            Command::SetStatus { holder, status, by } => self.set_status(holder, *status, *by),
            Command::RemoveHolder { holder, session } => self.remove_holder(holder, *session),
            Command::Declare { key, declaration, only_new } => self.declare(key, declaration, *only_new),
            Command::Delete { key, force, fenced } => self.delete(key, *force, *fenced),
            Command::NoteConfig { key, details } => self.note_config(key, details),
            Command::PutRecord { record, over } => self.put_record(record, over),
            Command::RemoveRecord { collection, id } => self.remove_record(collection, id),
            Command::RaiseRevision { above } => self.raise_revision(*above),
        }
    }

    fn now(&self) -> StoreTime {
        self.moment.now
    }

    /// Gives an event its revision, and applies it to `resource` so that the decision can continue from there.
    fn emit(&mut self, resource: &mut Resource, what: What) {
        // An event caused by time names no key.
        let by = if matches!(what, What::Expired(_)) { None } else { self.by.key().cloned() };
        self.emit_by(resource, what, by);
    }

    fn emit_by(&mut self, resource: &mut Resource, what: What, by: Option<Name>) {
        let revision = self.moment.next_revision();
        let mut event =
            Event { revision, at: self.now(), key: resource.key.clone(), by, holder_session: None, what };
        event.holder_session = event.present_holder(resource);
        to_resource(resource, &event);
        if let Some((id, change)) = event.lease_count_change() {
            *self.lease_counts.entry(id).or_default() += change;
        }
        self.changes.push(Change::Event(event));
        self.remember(resource);
    }

    /// Grants what `by` has asked for: the token is the revision of the event (rule 5).
    fn grant(&mut self, resource: &mut Resource, mut lease: Lease, by: Option<Name>) {
        lease.token = Token(self.moment.revision.next().0);
        self.emit_by(resource, What::Acquired(lease), by);
    }

    /// Refuses to touch what belongs to another key (rule 26).
    fn refuse_unless_own(&self, what: &'static str, owner: Option<&Name>) -> Result<(), Refusal> {
        match owner.filter(|_| !self.by.may_act_for(owner)) {
            Some(key) => Err(Refusal::OtherKeys { what, key: key.clone() }),
            None => Ok(()),
        }
    }

    /// Refuses to touch a resource that the key is not for (rule 26).
    fn refuse_unless_in_scope(&self, key: &ResourceKey) -> Result<(), Refusal> {
        if self.by.may_touch(key) { Ok(()) } else { Err(Refusal::OutOfScope(key.clone())) }
    }

    /// The key that a lease belongs to which `by` asks for.
    fn owner_of(&self, tenure: &Tenure, by: Option<&Name>) -> Option<Name> {
        match tenure {
            Tenure::Own { .. } => by.cloned(),
            Tenure::Session(id) => self.ledger.session(*id).and_then(|session| session.by.clone()),
        }
    }

    /// Ends the lease on a resource, if there is one, and spends its request id.
    fn end(&mut self, resource: &mut Resource, how: fn(Ended) -> What, shape: impl FnOnce(&mut Ended)) {
        let Some(lease) = resource.lease.clone() else { return };
        let mut ended = Ended::of(&lease);
        shape(&mut ended);
        if let Some(request) = lease.request {
            let request = RequestKey { resource: resource.key.whole(), holder: lease.holder, request };
            self.spend(request, lease.by, false);
        }
        self.emit(resource, how(ended));
    }

    /// Spends a request id, which counts for the key `by`.
    fn spend(&mut self, request: RequestKey, by: Option<Name>, cancelled: bool) {
        let until = self.now().plus_ms(limits::REQUEST_KEPT_MS);
        let spent = SpentRequest { until, by, cancelled };
        self.changes.push(Change::RequestSpent { request, spent });
    }

    /// Brings a resource up to date with the time: a pending lease lapses, a lease expires, and the next holder is
    /// granted the resource. Reads and acquires judge by time, never by whether the sweeper ran (rule 11).
    fn settle(&mut self, resource: &mut Resource) -> Result<(), Stop> {
        if resource.key.is_slot() {
            return if self.settle_slot(resource)? { self.activate(resource) } else { Ok(()) };
        }
        let now = self.now();
        let free_at = self.free_at(resource)?;
        // If its turn came before its deadline it is granted, however late that is noticed.
        let has_lapsed = |deadline: StoreTime| now >= deadline && free_at >= deadline;
        if let Some(pending) = resource.pending.clone().filter(|p| has_lapsed(p.deadline)) {
            self.emit(resource, What::Expired(Ended::of_pending(&pending, "not granted in time")));
        }
        if let Some(lease) = &resource.lease {
            let deadline = self.ledger.deadline_of(lease)?;
            if now < deadline || (resource.pending.is_some() && now < free_at) {
                return Ok(());
            }
            self.run_out(resource, free_at);
        }
        self.activate(resource)
    }

    /// When a resource becomes free by time alone.
    fn free_at(&self, resource: &Resource) -> Result<StoreTime, Stop> {
        Ok(match &resource.lease {
            Some(lease) => self.ledger.deadline_of(lease)?.plus_ms(self.lock_delay_ms(resource)?),
            None => resource.held_back_until.unwrap_or_default(),
        })
    }

    /// As [`Self::settle`], but an expired lease does not stay for the sake of a pending one, so that a lease that is
    /// left is live. For commands that end the lease, and must not treat an expired one as released.
    fn settle_wholly(&mut self, resource: &mut Resource) -> Result<(), Stop> {
        self.settle(resource)?;
        if let Some(lease) = &resource.lease {
            let deadline = self.ledger.deadline_of(lease)?;
            if self.now() >= deadline {
                self.run_out(resource, deadline.plus_ms(resource.lock_delay_ms()));
            }
        }
        Ok(())
    }

    /// Ends an expired lease; the resource is held back until `free_at` (rule 12).
    fn run_out(&mut self, resource: &mut Resource, free_at: StoreTime) {
        let now = self.now();
        self.end(resource, What::Expired, |e| e.held_back_until = Some(free_at).filter(|at| *at > now));
    }

    /// Grants a free resource to the lease that is pending (rule 16), or else to the first in line (rule 15). What a
    /// slot has become free for is decided by the line of its resource (rule 29).
    fn activate(&mut self, resource: &mut Resource) -> Result<(), Stop> {
        if resource.key.is_slot() {
            return self.activate(&mut self.whole(&resource.key)?);
        }
        self.settle_slots(resource)?;
        let now = self.now();
        if resource.lease.is_some() || resource.held_back_until.is_some_and(|until| until > now) {
            return Ok(());
        }
        let Some(pending) = resource.pending.clone() else { return self.grant_first_in_line(resource) };
        let session = self.ledger.session(pending.session).ok_or(FoundLate::Session(pending.session))?;
        let is_able = session.standing == Standing::Current && session.is_live(now);
        if !is_able || self.refuse_if_at_capacity(session).is_err() {
            let why = if is_able { "its session is at capacity" } else { "its session is over" };
            self.emit(resource, What::Expired(Ended::of_pending(&pending, why)));
            return self.grant_first_in_line(resource);
        }
        let by = session.by.clone();
        let tenure = Tenure::Session(pending.session);
        let lease = Lease::new(pending.id, pending.holder, by.clone(), tenure, pending.attributes, now);
        self.grant(resource, lease, by);
        Ok(())
    }

    /// Refuses if a session is at its capacity, counting what this decision has granted and ended.
    fn refuse_if_at_capacity(&self, session: &Session) -> Result<(), Refusal> {
        let capacity = session.capacity.unwrap_or(limits::SESSION_LEASES_MAX);
        let change = self.lease_counts.get(&session.id).copied().unwrap_or(0);
        if session.lease_count.saturating_add_signed(change) >= capacity {
            return Err(Refusal::AtCapacity { session: session.id, capacity });
        }
        Ok(())
    }

    /// The resource that a target means, and the lease id if it was named by that.
    fn target(&self, target: &Target) -> Result<(&Resource, Option<LeaseId>), Refusal> {
        match target {
            Target::Resource(key) => {
                self.refuse_unless_in_scope(key)?;
                let resource = self.ledger.resource(key).ok_or_else(|| Refusal::NoResource(key.clone()))?;
                Ok((resource, None))
            }
            Target::Lease { tenant, id } => {
                let key = self.ledger.resource_of(*id).filter(|key| key.tenant == *tenant);
                let resource = key.and_then(|key| self.ledger.resource(key)).ok_or(Refusal::NoLease(*id))?;
                self.refuse_unless_in_scope(&resource.key)?;
                Ok((resource, Some(*id)))
            }
        }
    }
}
