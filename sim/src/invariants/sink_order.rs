//! Behind a gate no write of an older grant follows one of a newer (rule 21).

use std::collections::BTreeMap;

use solehold_client::ResourceName;

use super::Invariant;
use crate::chronicle::{Happening, Record};

#[derive(Default)]
pub struct SinkOrder {
    newest: BTreeMap<ResourceName, u64>,
}

impl Invariant for SinkOrder {
    fn name(&self) -> &'static str {
        "the fenced sink takes no write of an older grant after one of a newer"
    }

    fn see(&mut self, record: &Record) -> Result<(), String> {
        let Happening::Admitted(resource, token) = &record.what else { return Ok(()) };
        let newest = self.newest.entry(resource.clone()).or_default();
        if token < newest {
            return Err(format!("token {token} after token {newest} on {resource}"));
        }
        *newest = *token;
        Ok(())
    }
}
