//! A session never has more leases than its holder has registered for, however it came by them.

use std::collections::BTreeMap;

use solehold_core::{event::What, key::LeaseId};

use super::Invariant;
use crate::chronicle::{Happening, Record};

#[derive(Default)]
pub struct Capacity {
    /// What each holder has registered for.
    most: BTreeMap<String, u32>,
    /// The leases of each session, and who its holder is.
    held: BTreeMap<String, Vec<LeaseId>>,
}

impl Invariant for Capacity {
    fn name(&self) -> &'static str {
        "no session has more leases than its capacity"
    }

    fn see(&mut self, record: &Record) -> Result<(), String> {
        let event = match &record.what {
            Happening::Registers(most) => {
                self.most.insert(record.who.clone(), *most);
                return Ok(());
            }
            Happening::Committed(_, event) => event,
            _ => return Ok(()),
        };
        match &event.what {
            What::Acquired(lease) => {
                let Some(session) = lease.tenure.session() else { return Ok(()) };
                let held = self.held.entry(session.to_string()).or_default();
                held.push(lease.id);
                let Some(most) = self.most.get(lease.holder.as_str()) else { return Ok(()) };
                if held.len() > *most as usize {
                    return Err(format!("{} has {} leases, and room for {most}", lease.holder, held.len()));
                }
            }
            What::Released(ended) | What::Expired(ended) | What::Revoked(ended) | What::Stolen(ended) => {
                self.held.values_mut().for_each(|held| held.retain(|lease| *lease != ended.lease));
            }
            _ => {}
        }
        Ok(())
    }
}
