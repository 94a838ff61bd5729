//! At no moment do two work on a resource, as far as they know: each has a lease that it trusts (rule 4).

use std::time::Duration;

use super::Invariant;
use crate::chronicle::Working;

pub struct OneAtATime;

impl Invariant for OneAtATime {
    fn name(&self) -> &'static str {
        "one works on a resource at a time"
    }

    fn look(&mut self, _at: Duration, working: &[&Working]) -> Result<(), String> {
        for (n, one) in working.iter().enumerate() {
            if let Some(other) = working[n + 1..].iter().find(|other| other.resource == one.resource) {
                return Err(format!(
                    "{} under token {} and {} under token {} both work on {}",
                    one.who, one.token, other.who, other.token, one.resource
                ));
            }
        }
        Ok(())
    }
}
