//! A gate for MQTT lets nothing pass below what it knows, and nothing by knowledge that is older than its ttl: a
//! message with an older token passes for that long at most after a newer one was granted (rule 21).

use std::{collections::BTreeMap, time::Duration};

use solehold_client::ResourceName;
use solehold_core::event::What;

use super::Invariant;
use crate::{
    chronicle::{Happening, Record},
    process::DRIFT_PPM_MAX,
    world::TTL,
};

#[derive(Default)]
pub struct WindowFenced {
    /// The newest token that each gate has been told of, or has let pass.
    known: BTreeMap<(String, ResourceName), u64>,
    /// The tokens of each resource, and when they were granted.
    granted: BTreeMap<ResourceName, Vec<(u64, Duration)>>,
}

impl WindowFenced {
    fn knows(&mut self, who: &str, resource: &ResourceName, token: u64) -> u64 {
        let known = self.known.entry((who.to_owned(), resource.clone())).or_default();
        *known = (*known).max(token);
        *known
    }
}

impl Invariant for WindowFenced {
    fn name(&self) -> &'static str {
        "a gate for MQTT lets nothing pass below what it knows, or by knowledge that is too old"
    }

    fn see(&mut self, record: &Record) -> Result<(), String> {
        match &record.what {
            Happening::Starts => self.known.retain(|(who, _), _| *who != record.who),
            Happening::Told(resource, token) => {
                self.knows(&record.who, resource, *token);
            }
            Happening::Committed(_, event) => {
                let What::Acquired(lease) = &event.what else { return Ok(()) };
                let Ok(resource) = ResourceName::new(event.key.kind.as_str(), event.key.key.as_str()) else {
                    return Ok(());
                };
                self.granted.entry(resource).or_default().push((lease.token.0, record.at));
            }
            Happening::LetPass(message) => {
                let known = self.knows(&record.who, &message.resource, message.token);
                if message.token < known {
                    return Err(format!("{message} passes, though {} knows token {known}", record.who));
                }
                let oldest = TTL + TTL * DRIFT_PPM_MAX as u32 / 1_000_000;
                let mut newer = self.granted.get(&message.resource).into_iter().flatten();
                let newer = newer.find(|(token, at)| *token > message.token && *at + oldest < record.at);
                if let Some((token, at)) = newer {
                    let at = at.as_secs_f64();
                    return Err(format!("{message} passes, and token {token} was granted at {at:.3} s"));
                }
            }
            _ => {}
        }
        Ok(())
    }
}
