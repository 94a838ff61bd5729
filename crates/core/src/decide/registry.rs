//! Decisions about resources, records and the revision.

use super::{Draft, Stop};
use crate::{
    command::Over,
    event::{Change, Ended, What},
    key::{Document, Name, ResourceKey},
    lease::{Declaration, Lease, Resource},
    limits,
    outcome::{Answer, Refusal, within},
    record::Record,
    time::Revision,
};

impl Draft<'_> {
    pub(super) fn declare(
        &mut self,
        key: &ResourceKey,
        declaration: &Declaration,
        only_new: bool,
    ) -> Result<Answer, Stop> {
        within("lock_delay_ms", declaration.lock_delay_ms, 0, limits::LOCK_DELAY_MS_MAX)?;
        self.refuse_unless_in_scope(key)?;
        let found = self.ledger.resource(key).cloned();
        let mut resource = found.unwrap_or_else(|| Resource::new(key.clone(), self.now()));
        let created = resource.declared.is_none();
        if only_new && !created {
            return Err(Refusal::Exists.into());
        }
        if resource.declared.as_deref() != Some(declaration) {
            // What ran out before this did so under the former lock-delay, whether or not it was swept (rule 11).
            self.settle(&mut resource)?;
            if !self.changes.is_empty() && resource.is_forgettable(self.now()) {
                resource = Resource::new(key.clone(), self.now());
            }
            self.emit(&mut resource, What::Declared(declaration.clone()));
        }
        Ok(Answer::Declared { resource, created })
    }

    pub(super) fn delete(&mut self, key: &ResourceKey, force: bool, fenced: bool) -> Result<Answer, Stop> {
        self.refuse_unless_in_scope(key)?;
        let mut resource = self.ledger.resource(key).ok_or_else(|| Refusal::NoResource(key.clone()))?.clone();
        let reason = Some("its resource was deleted".to_owned());
        if resource.declared.is_none() {
            return self.delete_undeclared(resource, fenced, &reason);
        }
        self.settle_wholly(&mut resource)?;
        // What may be refused comes before anything is changed.
        let slots = self.slots(key)?;
        for row in slots.values().chain([&resource]) {
            match &row.lease {
                Some(Lease { holder, token, .. }) if !force => {
                    return Err(Refusal::InUse { holder: holder.clone(), token: *token }.into());
                }
                Some(lease) => self.refuse_unless_own("lease", lease.by.as_ref())?,
                None if fenced && self.free_at(row)? > self.now() => {
                    self.refuse_unless_own("hold-back", row.held_back_by.as_ref())?
                }
                None => {}
            }
        }
        for mut slot in slots.into_values() {
            self.end_for_deletion(&mut slot, fenced, &reason)?;
        }
        self.end_for_deletion(&mut resource, fenced, &reason)?;
        resource.taken = self.slots(key)?.len() as u32;
        if let Some(pending) = resource.pending.clone() {
            self.emit(&mut resource, What::Expired(Ended::of_pending(&pending, "its resource was deleted")));
        }
        self.emit(&mut resource, What::Deleted);
        self.activate(&mut resource)?;
        Ok(Answer::Removed)
    }

    /// Ends a lease by force, or lifts a hold-back.
    fn end_for_deletion(
        &mut self,
        row: &mut Resource,
        fenced: bool,
        reason: &Option<String>,
    ) -> Result<(), Stop> {
        if row.lease.is_some() {
            self.end_by_force(row, fenced, reason.clone())?;
        } else if fenced {
            self.lift_hold_back(row, reason)?;
        }
        Ok(())
    }

    /// An undeclared, free resource may have a hold-back, which is all that can be deleted of it.
    fn delete_undeclared(
        &mut self,
        mut resource: Resource,
        fenced: bool,
        reason: &Option<String>,
    ) -> Result<Answer, Stop> {
        if !fenced || !self.lift_hold_back(&mut resource, reason)? {
            return Err(Refusal::NoResource(resource.key).into());
        }
        self.activate(&mut resource)?;
        Ok(Answer::Removed)
    }

    /// Who changed something else need not be able to touch what it applies to: no row changes.
    pub(super) fn note_config(&mut self, key: &ResourceKey, details: &Document) -> Result<Answer, Stop> {
        let found = self.ledger.resource(key).filter(|resource| resource.declared.is_some());
        let mut resource = found.ok_or_else(|| Refusal::NoResource(key.clone()))?.clone();
        self.settle(&mut resource)?;
        self.emit(&mut resource, What::ConfigChanged(details.clone()));
        Ok(Answer::Noted)
    }

    pub(super) fn put_record(&mut self, record: &Record, over: &Over) -> Result<Answer, Stop> {
        let (collection, id) = record.key();
        match (over, self.ledger.record(&collection, &id)) {
            (Over::Nothing, Some(_)) => return Err(Refusal::Exists.into()),
            (Over::Document(_), None) => return Err(Refusal::NoRecord { collection, id }.into()),
            (Over::Document(read), Some(found)) if found.document != *read => {
                return Err(Refusal::RecordChanged { collection, id }.into());
            }
            _ => {}
        }
        self.changes.push(Change::RecordPut(record.clone()));
        Ok(Answer::Record(record.clone()))
    }

    pub(super) fn remove_record(&mut self, collection: &Name, id: &Name) -> Result<Answer, Stop> {
        let collection = collection.clone();
        let id = id.clone();
        if self.ledger.record(&collection, &id).is_none() {
            return Err(Refusal::NoRecord { collection, id }.into());
        }
        self.changes.push(Change::RecordRemoved { collection, id });
        Ok(Answer::Removed)
    }

    pub(super) fn raise_revision(&mut self, above: Revision) -> Result<Answer, Stop> {
        let most =
            limits::REVISION_MAX.min(self.moment.revision.0.saturating_add(limits::REVISION_RAISE_MAX));
        within("token", above.0, 0, most)?;
        if above > self.moment.revision {
            self.moment.revision = above;
            self.changes.push(Change::RevisionRaised(above));
        }
        Ok(Answer::Raised(self.moment.revision))
    }
}
