//! A gate admits nothing below what it was told of (rule 21).

use std::collections::BTreeMap;

use solehold_client::ResourceName;

use super::Invariant;
use crate::chronicle::{Happening, Record};

#[derive(Default)]
pub struct GateKnows {
    told: BTreeMap<ResourceName, u64>,
}

impl Invariant for GateKnows {
    fn name(&self) -> &'static str {
        "a gate admits nothing below what it knows"
    }

    fn see(&mut self, record: &Record) -> Result<(), String> {
        match &record.what {
            Happening::Told(resource, token) if record.who == "gate" => {
                let told = self.told.entry(resource.clone()).or_default();
                *told = (*told).max(*token);
            }
            Happening::Admitted(resource, token) => {
                let told = self.told.get(resource).copied().unwrap_or_default();
                if *token < told {
                    return Err(format!("token {token} on {resource}, though it was told of token {told}"));
                }
            }
            _ => {}
        }
        Ok(())
    }
}
