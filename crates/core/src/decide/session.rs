//! Decisions about sessions and the holders that they belong to.

use super::{Draft, Stop};
use crate::{
    command::{OpenSession, StatusBy},
    event::{Change, Ended, What},
    key::{Document, HolderKey, Name, SessionId},
    ledger::FoundLate,
    limits,
    outcome::{Answer, Refusal, SessionView, within},
    session::{Holder, HolderStatus, Session, SessionOver, Standing},
};

/// How the leases that are attached to a session end with it.
#[derive(Clone, Copy)]
enum Parting {
    /// Their holder asks for it: they are released.
    Released,
    /// Someone else asks for it: they are revoked and held back, unless the holder is known to be fenced off (rule 12).
    Revoked { fenced: bool, reason: &'static str },
}

impl Draft<'_> {
    pub(super) fn open_session(&mut self, ask: &OpenSession) -> Result<Answer, Stop> {
        let OpenSession { id, holder: key, ttl_ms, replace, fenced, follows, registration, metrics } = ask;

        within("ttl_ms", *ttl_ms, limits::TTL_MS_MIN, limits::TTL_MS_MAX)?;
        let capacity = registration.as_ref().and_then(|r| r.capacity);
        if let Some(capacity) = capacity {
            within("capacity", capacity.into(), 1, limits::SESSION_LEASES_MAX.into())?;
        }
        let now = self.now();
        let before = self.ledger.holder(key);
        // The driver's own retry after a lost COMMIT finds its own session, with what is attached to it by now.
        if let Some(session) = self.ledger.session(*id).cloned() {
            self.refuse_unless_own("session", session.by.as_ref())?;
            let is_same = session.holder == *key;
            let view = SessionView { session, holder: before.cloned(), now };
            return if is_same { Ok(Answer::Session(view)) } else { Err(Refusal::Exists.into()) };
        }
        self.refuse_unless_own_holder(before)?;
        self.refuse_if_succeeded(*follows, before)?;
        if let Some(old) = replace {
            self.replace_session(*old, key, *fenced)?;
        }
        if let Some(old) = before.and_then(|h| h.session).filter(|old| Some(*old) != *replace) {
            self.ledger.session(old).ok_or(FoundLate::Session(old))?;
            self.changes.push(Change::SessionStanding { id: old, standing: Standing::Superseded });
        }
        let mut holder = before.cloned().unwrap_or_else(|| new_holder(key, now));
        // A holder that restarts is done draining; only an operator ends maintenance.
        if holder.status == HolderStatus::Draining {
            holder.status = HolderStatus::Active;
        }
        if let Some(registration) = registration {
            holder.registered = true;
            holder.registered_at = now;
            holder.site = registration.site.clone();
            holder.attributes = registration.attributes.clone();
        }
        holder.session = Some(*id);
        holder.heard_at = now;
        let session = Session {
            by: self.by.key().cloned(),
            standing: standing(holder.status),
            capacity,
            metrics: metrics.clone().unwrap_or_default(),
            ..Session::new(*id, key.clone(), *ttl_ms, self.moment)
        };
        self.changes.push(Change::SessionOpened(session.clone()));
        self.changes.push(Change::HolderPut(holder.clone()));
        Ok(Answer::Session(SessionView { session, holder: Some(holder), now }))
    }

    /// A process that comes back after its session has ended does not supersede the one that took its place meanwhile
    /// (rule 13).
    fn refuse_if_succeeded(&self, own: Option<SessionId>, holder: Option<&Holder>) -> Result<(), Stop> {
        let present = holder.and_then(|holder| holder.session);
        let Some((own, present)) = own.zip(present).filter(|(own, present)| own != present) else {
            return Ok(());
        };
        let session = self.ledger.session(present).ok_or(FoundLate::Session(present))?;
        if session.is_live(self.now()) {
            return Err(Refusal::NoSession { session: own, why: SessionOver::Superseded }.into());
        }
        Ok(())
    }

    /// Closes a holder's former session at once. Its leases are revoked, so their resources are held back.
    fn replace_session(&mut self, old: SessionId, holder: &HolderKey, fenced: bool) -> Result<(), Stop> {
        let Some(session) = self.ledger.session(old).filter(|s| s.holder.tenant == holder.tenant) else {
            return Ok(());
        };
        if session.holder.name != holder.name {
            return Err(Refusal::NotYourSession { session: old, holder: holder.name.clone() }.into());
        }
        let is_live = session.is_live(self.now());
        self.refuse_unless_own("session", session.by.as_ref().filter(|_| is_live))?;
        self.leave_all_lines(old)?;
        self.end_leases(old, Parting::Revoked { fenced, reason: "its session was replaced" })?;
        self.changes.push(Change::SessionEnded(old));
        Ok(())
    }

    pub(super) fn heartbeat(
        &mut self,
        tenant: &Name,
        session: SessionId,
        holder: Option<&Name>,
        metrics: Option<&Document>,
    ) -> Result<Answer, Stop> {
        let session = self.renew_session(tenant, session, holder, metrics)?;
        Ok(Answer::Session(SessionView { session, holder: None, now: self.now() }))
    }

    /// Renews a session; a renewal never moves a deadline earlier (rule 1).
    pub(super) fn renew_session(
        &mut self,
        tenant: &Name,
        id: SessionId,
        holder: Option<&Name>,
        metrics: Option<&Document>,
    ) -> Result<Session, Refusal> {
        let at = self.now();
        let mut session = self.known_session(tenant, id)?.clone();
        if let Some(holder) = holder.filter(|h| **h != session.holder.name) {
            return Err(Refusal::NotYourSession { session: id, holder: holder.clone() });
        }
        self.refuse_unless_own("session", session.by.as_ref())?;
        if !session.is_renewable(at) {
            return Err(Refusal::NoSession { session: id, why: SessionOver::Superseded });
        }
        session.deadline = session.deadline.max(at.plus_ms(session.ttl_ms));
        session.renewed_at = at;
        if let Some(metrics) = metrics {
            session.metrics = metrics.clone();
        }
        let deadline = session.deadline;
        let metrics = metrics.cloned();
        self.changes.push(Change::SessionRenewed { id, at, deadline, metrics });
        Ok(session)
    }

    /// A session of that tenant that has not expired.
    pub(super) fn known_session(&self, tenant: &Name, id: SessionId) -> Result<&Session, Refusal> {
        let unknown = Refusal::NoSession { session: id, why: SessionOver::Unknown };
        let session = self.ledger.session(id).filter(|s| s.holder.tenant == *tenant).ok_or(unknown)?;
        if !session.is_live(self.now()) {
            return Err(Refusal::NoSession { session: id, why: SessionOver::Expired });
        }
        Ok(session)
    }

    pub(super) fn close_session(&mut self, tenant: &Name, id: SessionId) -> Result<Answer, Stop> {
        let session = self.known_session(tenant, id)?;
        self.refuse_unless_own("session", session.by.as_ref())?;
        let released = self.close(id, Parting::Released)?;
        Ok(Answer::Closed { released })
    }

    /// Ends a session with everything that is attached to it, and returns how many leases ended.
    fn close(&mut self, id: SessionId, parting: Parting) -> Result<usize, Stop> {
        // First the lines: what it releases is for others.
        self.leave_all_lines(id)?;
        let ended = self.end_leases(id, parting)?;
        self.end_session(id);
        Ok(ended)
    }

    fn end_session(&mut self, id: SessionId) {
        self.changes.push(Change::SessionEnded(id));
        let holder = self.ledger.session(id).and_then(|s| self.ledger.holder(&s.holder));
        match holder.filter(|h| h.session == Some(id)) {
            Some(holder) if holder.registered => {
                self.changes.push(Change::HolderPut(Holder { session: None, ..holder.clone() }));
            }
            Some(holder) => self.changes.push(Change::HolderRemoved(holder.key.clone())),
            None => {}
        }
    }

    /// Ends every lease that is attached to a session, and returns how many.
    fn end_leases(&mut self, id: SessionId, parting: Parting) -> Result<usize, Stop> {
        let keys: Vec<_> = self.ledger.attached_to(id).cloned().collect();
        let mut ended = 0;
        for key in &keys {
            let Some(mut resource) = self.row(key).cloned() else { continue };
            if let Some(pending) = resource.pending.clone().filter(|p| p.session == id) {
                let ended = Ended::of_pending(&pending, "its session was closed");
                self.emit(&mut resource, What::Expired(ended));
            }
            self.settle_wholly(&mut resource)?;
            if resource.lease.as_ref().is_some_and(|l| l.tenure.session() == Some(id)) {
                ended += 1;
                match parting {
                    Parting::Released => self.end(&mut resource, What::Released, |e| {
                        e.reason = Some("its session was closed".to_owned())
                    }),
                    Parting::Revoked { fenced, reason } => {
                        self.end_by_force(&mut resource, fenced, Some(reason.to_owned()))?;
                    }
                }
            }
            self.activate(&mut resource)?;
        }
        Ok(ended)
    }

    /// Ends a dead session once nothing is attached to it; its leases are nominated one by one, at a bounded rate. Its
    /// loaded places in line are given up.
    pub(super) fn expire_session(&mut self, id: SessionId) -> Result<Answer, Stop> {
        let Some(session) = self.ledger.session(id).filter(|s| !s.is_live(self.now())) else {
            return Ok(Answer::Judged { expired: false });
        };
        let left = self.leave_lines(id)?;
        if left == session.waiting as usize && self.ledger.attached_to(id).next().is_none() {
            self.end_session(id);
        }
        Ok(Answer::Judged { expired: !self.changes.is_empty() })
    }

    pub(super) fn heard_of(&mut self, key: &HolderKey, metrics: Option<&Document>) -> Result<Answer, Stop> {
        let mut holder = self.registered(key)?.clone();
        self.refuse_unless_own_holder(Some(&holder))?;
        holder.heard_at = self.now();
        if let Some(metrics) = metrics {
            holder.metrics = metrics.clone();
        }
        self.changes.push(Change::HolderPut(holder.clone()));
        Ok(Answer::Holder(holder))
    }

    pub(super) fn set_status(
        &mut self,
        key: &HolderKey,
        status: HolderStatus,
        by: StatusBy,
    ) -> Result<Answer, Stop> {
        let known = self.registered(key)?.clone();
        self.refuse_unless_own_holder(Some(&known))?;
        if let StatusBy::Itself(proof) = by {
            if let Some(session) = proof.filter(|id| known.session != Some(*id)) {
                return Err(Refusal::NoSession { session, why: SessionOver::Superseded }.into());
            }
            if known.status == HolderStatus::Maintenance {
                return Ok(Answer::Holder(known));
            }
        }
        let holder = Holder { status, ..known };
        if let Some(id) = holder.session {
            self.ledger.session(id).ok_or(FoundLate::Session(id))?;
            self.changes.push(Change::SessionStanding { id, standing: standing(status) });
        }
        self.changes.push(Change::HolderPut(holder.clone()));
        Ok(Answer::Holder(holder))
    }

    /// Removes a holder. A name alone is not proof (rule 6): without its session's id this may be anyone's request, and
    /// the holder may work until its deadline.
    pub(super) fn remove_holder(
        &mut self,
        key: &HolderKey,
        proof: Option<SessionId>,
    ) -> Result<Answer, Stop> {
        let holder = self.registered(key)?;
        self.refuse_unless_own_holder(Some(holder))?;
        let present = holder.session;
        if let Some(id) = proof {
            let session = self.known_session(&key.tenant, id)?;
            if session.holder != *key {
                return Err(Refusal::NotYourSession { session: id, holder: key.name.clone() }.into());
            }
            if present != Some(id) {
                return Err(Refusal::NoSession { session: id, why: SessionOver::Superseded }.into());
            }
        }
        let mut released = 0;
        let mut revoked = 0;
        if let Some(id) = present {
            self.ledger.session(id).ok_or(FoundLate::Session(id))?;
            if proof.is_some() {
                released = self.close(id, Parting::Released)?;
            } else {
                let reason = "its holder was removed";
                revoked = self.close(id, Parting::Revoked { fenced: false, reason })?;
            }
        }
        self.changes.push(Change::HolderRemoved(key.clone()));
        Ok(Answer::HolderRemoved { released, revoked })
    }

    /// Refuses to touch a holder that works by another key: one whose present session is live and belongs to that key.
    fn refuse_unless_own_holder(&self, holder: Option<&Holder>) -> Result<(), Stop> {
        let Some(id) = holder.and_then(|h| h.session) else { return Ok(()) };
        let session = self.ledger.session(id).ok_or(FoundLate::Session(id))?;
        let is_live = session.is_live(self.now());
        Ok(self.refuse_unless_own("holder", session.by.as_ref().filter(|_| is_live))?)
    }

    fn registered(&self, key: &HolderKey) -> Result<&Holder, Refusal> {
        self.ledger.holder(key).filter(|h| h.registered).ok_or_else(|| Refusal::NoHolder(key.name.clone()))
    }
}

fn standing(status: HolderStatus) -> Standing {
    match status {
        HolderStatus::Active => Standing::Current,
        HolderStatus::Draining | HolderStatus::Maintenance => Standing::Draining,
    }
}

fn new_holder(key: &HolderKey, now: crate::time::StoreTime) -> Holder {
    Holder {
        key: key.clone(),
        registered: false,
        session: None,
        status: HolderStatus::Active,
        registered_at: now,
        heard_at: now,
        site: None,
        attributes: Document::default(),
        metrics: Document::default(),
    }
}
