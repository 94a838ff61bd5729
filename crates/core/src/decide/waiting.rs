//! Decisions about waiting in line (rule 15).
//!
//! A free resource never has a waiter who could take it: the step that frees it grants it to the first live waiter, and
//! drops the dead ones ahead. So a later request can never overtake a waiter.

use super::{Draft, Stop};
use crate::{
    command::{Acquire, AskedTenure, Undeclared, Wait},
    event::Change,
    key::{HolderKey, LeaseId, Name, RequestKey, ResourceKey, SessionId},
    lease::{Lease, Resource, Tenure},
    ledger::FoundLate,
    limits,
    outcome::{Answer, Place, Refusal, SessionView, within},
    session::{Session, Standing},
    time::StoreTime,
    waiter::Waiter,
};

impl<'a> Draft<'a> {
    /// Opens a replica's waiting room: a session without a holder, which clients cannot name.
    pub(super) fn open_room(&mut self, id: SessionId, ttl_ms: u64) -> Result<Answer, Stop> {
        within("ttl_ms", ttl_ms, limits::TTL_MS_MIN, limits::TTL_MS_MAX)?;
        let now = self.now();
        if let Some(session) = self.ledger.session(id).cloned() {
            let is_room = session.is_room();
            let view = SessionView { session, holder: None, now };
            return if is_room { Ok(Answer::Session(view)) } else { Err(Refusal::Exists.into()) };
        }
        let name = Name::stored(id.to_string()).unwrap_or_else(|_| Name::rooms());
        let holder = HolderKey { tenant: Name::rooms(), name };
        let session = Session::new(id, holder, ttl_ms, self.moment);
        self.changes.push(Change::SessionOpened(session.clone()));
        Ok(Answer::Session(SessionView { session, holder: None, now }))
    }

    /// Refuses a wait that is too long, or in an unknown room.
    pub(super) fn check_wait(&self, wait: &Wait) -> Result<(), Refusal> {
        within("wait_ms", wait.wait_ms, 1, limits::WAIT_MS_MAX)?;
        self.known_session(&Name::rooms(), wait.room)?;
        Ok(())
    }

    /// Joins the line. A repeat of the same request keeps its place, at whichever replica it asks: it moves to the room
    /// that it asks from, and its former grant id becomes void.
    pub(super) fn wait(
        &mut self,
        ask: &Acquire,
        wait: Wait,
        resource: &mut Resource,
    ) -> Result<Answer, Stop> {
        self.refuse_request_of_another(ask, resource)?;
        let stood = self.stands(ask).cloned();
        if let Some(waiter) = &stood {
            self.refuse_unless_own("place in line", waiter.by.as_ref())?;
        }
        let is_there = match &stood {
            Some(waiter) => self.can_take(waiter, resource)?,
            None => false,
        };
        if !is_there {
            self.refuse_if_full(ask, wait.room, resource, stood.as_ref())?;
            if let Some(dead) = &stood {
                self.leave_line(dead)?;
            }
        }
        let kept = stood.filter(|_| is_there);
        // The exact position in a long line is not known without loading all of it.
        let ahead = self.queued(&resource.key).saturating_sub(u32::from(kept.is_some()));
        let now = self.now();
        let since = kept.as_ref().map_or(now, |waiter| waiter.since);
        let arrival = kept.map_or_else(|| self.moment.next_revision(), |waiter| waiter.arrival);
        let deadline = now.plus_ms(wait.wait_ms);
        self.changes.push(Change::Waits(Waiter {
            key: ask.key.clone(),
            arrival,
            lease: ask.lease,
            holder: ask.holder.clone(),
            by: self.by.key().cloned(),
            tenure: ask.tenure,
            request: ask.request.clone(),
            attributes: ask.attributes.clone(),
            undeclared: ask.undeclared,
            slots: ask.slots,
            room: wait.room,
            since,
            deadline,
        }));
        Ok(Answer::Waiting(Place { lease: ask.lease, arrival, ahead, deadline, now }))
    }

    /// The place of the same request in line, if it has one.
    fn stands(&self, ask: &Acquire) -> Option<&'a Waiter> {
        let by_request = ask.request.as_ref().and_then(|request| {
            let resource = ask.key.clone();
            let holder = ask.holder.clone();
            self.ledger.waiter_of_request(&RequestKey { resource, holder, request: request.clone() })
        });
        let by_lease = || self.ledger.waiter_of_lease(ask.lease).filter(|w| w.key == ask.key);
        by_request.or_else(by_lease).filter(|waiter| !self.left.contains(&waiter.place()))
    }

    fn refuse_if_full(
        &self,
        ask: &Acquire,
        room: SessionId,
        resource: &Resource,
        leaves: Option<&Waiter>,
    ) -> Result<(), Refusal> {
        let refuse = |waiting, where_| Err(Refusal::QueueFull { waiting, where_ });
        let leaves_line = u32::from(leaves.is_some());
        if self.queued(&resource.key).saturating_sub(leaves_line) >= limits::WAITERS_MAX {
            return refuse(limits::WAITERS_MAX, "for the resource");
        }
        let own = match ask.tenure {
            AskedTenure::Own { .. } => None,
            AskedTenure::Session(id) => Some((id, "on the session")),
        };
        for (id, where_) in [(room, "at this replica")].into_iter().chain(own) {
            let leaves_here = u32::from(leaves.is_some_and(|w| w.sessions().any(|s| s == id)));
            let waiting = self.ledger.session(id).map_or(0, |s| s.waiting);
            if waiting.saturating_sub(leaves_here) >= limits::SESSION_WAITERS_MAX {
                return refuse(limits::SESSION_WAITERS_MAX, where_);
            }
        }
        Ok(())
    }

    /// How many are in line, without those that this decision has dropped.
    pub(super) fn queued(&self, key: &ResourceKey) -> u32 {
        let queued = self.ledger.resource(key).map_or(0, |r| r.queued);
        if self.left.is_empty() {
            return queued;
        }
        let from = (key.clone(), crate::time::Revision(0));
        let left = self.left.range(from..).take_while(|(k, _)| k == key).count();
        queued.saturating_sub(left as u32)
    }

    pub(super) fn leave_queue(&mut self, key: &ResourceKey, lease: LeaseId) -> Result<Answer, Stop> {
        self.refuse_unless_in_scope(key)?;
        let mut resource = self.ledger.resource(key).ok_or(Refusal::NoLease(lease))?.clone();
        self.settle(&mut resource)?;
        let is_live = |deadline: StoreTime| self.now() < deadline;
        if let Some(row) = self.with_id(&resource, lease)?
            && let Some(held) = &row.lease
            && is_live(self.ledger.deadline_of(held)?)
        {
            self.refuse_unless_own("lease", held.by.as_ref())?;
            return Ok(Answer::Granted(self.view(&row, true)?));
        }
        let waiter = self.ledger.waiter_of_lease(lease).filter(|w| w.key == *key);
        let waiter = waiter.filter(|w| !self.left.contains(&w.place())).ok_or(Refusal::NoLease(lease))?;
        self.refuse_unless_own("place in line", waiter.by.as_ref())?;
        self.leave_line(waiter)?;
        self.serve_line(key)?;
        Ok(Answer::Left)
    }

    /// Clears a place in line. The sessions that it is attached to count their waiters, so they must be loaded.
    pub(super) fn leave_line(&mut self, waiter: &Waiter) -> Result<(), Stop> {
        for id in waiter.sessions() {
            self.ledger.session(id).ok_or(FoundLate::Session(id))?;
        }
        if self.left.insert(waiter.place()) {
            let key = waiter.key.clone();
            let arrival = waiter.arrival;
            let at = self.now();
            self.changes.push(Change::WaitEnded { key, arrival, at });
        }
        Ok(())
    }

    /// Clears the loaded places in line that are attached to a session, and returns how many. Those behind them may get
    /// what they stood in the way of, once all of them are gone.
    pub(super) fn leave_lines(&mut self, id: SessionId) -> Result<usize, Stop> {
        let ledger = self.ledger;
        let its: Vec<_> = ledger.waiters_on(id).filter(|w| ledger.resource(&w.key).is_some()).collect();
        for waiter in &its {
            self.leave_line(waiter)?;
        }
        for waiter in &its {
            self.serve_line(&waiter.key)?;
        }
        Ok(its.len())
    }

    /// Clears all places in line that are attached to a session.
    pub(super) fn leave_all_lines(&mut self, id: SessionId) -> Result<(), Stop> {
        let left = self.leave_lines(id)?;
        let waiting = self.ledger.session(id).map_or(0, |s| s.waiting);
        if left < waiting as usize { Err(FoundLate::WaitersOn(id).into()) } else { Ok(()) }
    }

    /// Grants a free resource to the first in line who can take it; dead waiters ahead are dropped. Of those who share
    /// it each gets a slot, as long as there are any.
    pub(super) fn grant_first_in_line(&mut self, resource: &mut Resource) -> Result<(), Stop> {
        while let Some(waiter) = self.first_in_line(&resource.key)? {
            if !self.can_take(waiter, resource)? {
                self.leave_line(waiter)?;
                resource.queued = self.queued(&resource.key);
                continue;
            }
            if !self.has_room(resource, waiter.slots)? {
                return Ok(());
            }
            let now = self.now();
            let (tenure, ttl_ms) = match waiter.tenure {
                AskedTenure::Own { ttl_ms } => {
                    (Tenure::Own { ttl_ms, deadline: now.plus_ms(ttl_ms) }, ttl_ms)
                }
                AskedTenure::Session(id) => {
                    (Tenure::Session(id), self.ledger.session(id).map_or(0, |s| s.ttl_ms))
                }
            };
            let owner = self.owner_of(&tenure, waiter.by.as_ref());
            let attributes = waiter.attributes.clone();
            let mut lease = Lease::new(waiter.lease, waiter.holder.clone(), owner, tenure, attributes, now);
            lease.confirm_by = Some(now.plus_ms(limits::CONFIRM_MS.min(ttl_ms)));
            lease.request = waiter.request.clone();
            lease.slots = waiter.slots;
            // The grant comes first: a row that has neither lease nor line would be forgotten in between.
            let by = waiter.by.clone();
            match waiter.slots {
                Some(_) => drop(self.grant_slot(resource, lease, by)?),
                None => self.grant(resource, lease, by),
            }
            self.leave_line(waiter)?;
            resource.queued = self.queued(&resource.key);
            if waiter.slots.is_none() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// The first in line, if there is a line.
    fn first_in_line(&self, key: &ResourceKey) -> Result<Option<&'a Waiter>, Stop> {
        if self.queued(key) == 0 {
            return Ok(None);
        }
        let mut loaded = self.ledger.waiters_for(key);
        let first = loaded.find(|w| !self.left.contains(&w.place()));
        match first.filter(|waiter| self.ledger.knows_all_before(waiter)) {
            Some(waiter) => Ok(Some(waiter)),
            None => Err(FoundLate::Line(key.clone()).into()),
        }
    }

    /// Whether a waiter is live and can take the resource. A draining or full session takes nothing.
    fn can_take(&self, waiter: &Waiter, resource: &Resource) -> Result<bool, Stop> {
        let now = self.now();
        let session = |id| self.ledger.session(id).ok_or(FoundLate::Session(id));
        let is_present = session(waiter.room)?.is_live(now) && now < waiter.deadline;
        let is_able = match waiter.tenure {
            AskedTenure::Own { .. } => true,
            AskedTenure::Session(id) => {
                let session = session(id)?;
                session.is_live(now)
                    && session.standing == Standing::Current
                    && self.refuse_if_at_capacity(session).is_ok()
            }
        };
        let is_wanted = resource.declared.is_some() || waiter.undeclared == Undeclared::Allow;
        Ok(is_present && is_able && is_wanted)
    }
}
