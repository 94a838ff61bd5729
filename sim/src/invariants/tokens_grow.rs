//! Every grant of a resource has a greater token than the one before, through every failover (rule 5).

use std::collections::BTreeMap;

use solehold_core::{event::What, key::ResourceKey};

use super::Invariant;
use crate::chronicle::{Happening, Record};

#[derive(Default)]
pub struct TokensGrow {
    last: BTreeMap<ResourceKey, u64>,
}

impl Invariant for TokensGrow {
    fn name(&self) -> &'static str {
        "the tokens of a resource grow"
    }

    fn see(&mut self, record: &Record) -> Result<(), String> {
        let Happening::Committed(_, event) = &record.what else { return Ok(()) };
        let What::Acquired(lease) = &event.what else { return Ok(()) };
        let last = self.last.entry(event.key.clone()).or_default();
        if lease.token.0 <= *last {
            return Err(format!("token {} was granted after token {last}", lease.token));
        }
        *last = lease.token.0;
        Ok(())
    }
}
