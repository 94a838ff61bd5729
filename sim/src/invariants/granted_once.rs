//! A request is granted at most once, and not at all once it was cancelled (rule 7).

use std::collections::{BTreeMap, BTreeSet};

use solehold_core::event::What;

use super::Invariant;
use crate::chronicle::{Happening, Record};

#[derive(Default)]
pub struct GrantedOnce {
    /// The token of each request that was granted, and the history that granted it: one that has lost everything knows
    /// no request.
    granted: BTreeMap<(u64, String), u64>,
    cancelled: BTreeSet<(u64, String)>,
}

impl Invariant for GrantedOnce {
    fn name(&self) -> &'static str {
        "a request is granted at most once, and never after it was cancelled"
    }

    fn see(&mut self, record: &Record) -> Result<(), String> {
        match &record.what {
            Happening::Cancelled(epoch, request) => {
                self.cancelled.insert((*epoch, request.clone()));
            }
            Happening::Committed(epoch, event) => {
                let What::Acquired(lease) = &event.what else { return Ok(()) };
                let Some(request) = &lease.request else { return Ok(()) };
                let request = (*epoch, request.to_string());
                let token = lease.token.0;
                if self.cancelled.contains(&request) {
                    return Err(format!(
                        "{} was granted token {token} by a request that it cancelled",
                        lease.holder
                    ));
                }
                if let Some(before) = self.granted.insert(request, token) {
                    let holder = &lease.holder;
                    return Err(format!("{holder} was granted token {token} and {before} by one request"));
                }
            }
            _ => {}
        }
        Ok(())
    }
}
