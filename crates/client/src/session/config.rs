//! Configuration of a session, and why it cannot be opened.

use std::{sync::Arc, time::Duration};

use solehold_clock::{AlarmClock, Backoff, BootClock};
use solehold_core::limits::{TTL_MS_MAX, TTL_MS_MIN};

use crate::{
    authority::{AuthorityError, BadName, Metrics, RefusalReason},
    chance::{Chance, MachineChance},
    renewer::Policy,
};

/// The least pause between two heartbeats.
const EVERY_MIN: Duration = Duration::from_millis(50);

#[derive(Debug, Clone, PartialEq)]
pub struct SessionConfig {
    /// The name of this program. Two programs with one name end each other's sessions.
    pub holder: String,
    /// How long a heartbeat keeps the session alive, 1 s to 24 h. Its leases are free this long after the last
    /// heartbeat.
    pub ttl: Duration,
    /// How often to renew; a third of the ttl if not given. Less than half of the ttl.
    pub every: Option<Duration>,
    pub policy: Policy,
    pub metrics: Metrics,
    /// How long to wait between attempts to open a session and to acquire.
    pub backoff: Backoff,
    /// How long to try to open the first session.
    pub open_timeout: Duration,
}

impl SessionConfig {
    /// A session under that name, with a ttl of 30 s.
    pub fn new(holder: impl Into<String>) -> Self {
        Self {
            holder: holder.into(),
            ttl: Duration::from_secs(30),
            every: None,
            policy: Policy::default(),
            metrics: Metrics::new(),
            backoff: Backoff::default(),
            open_timeout: Duration::from_secs(10),
        }
    }

    /// How often to renew, before jitter.
    pub fn every(&self) -> Duration {
        self.every.unwrap_or(self.ttl / 3)
    }

    pub(super) fn check(&self) -> Result<(), OpenError> {
        let bad = |what: String| Err(OpenError::Config(what));
        let least = Duration::from_millis(TTL_MS_MIN);
        let most = Duration::from_millis(TTL_MS_MAX);
        if self.ttl < least || self.ttl > most {
            return bad(format!("the ttl is {:?}; it must be {least:?} to {most:?}", self.ttl));
        }
        if self.every() < EVERY_MIN {
            return bad(format!(
                "a heartbeat every {:?} is too often: every {EVERY_MIN:?} at most",
                self.every()
            ));
        }
        if self.every() * 2 >= self.ttl {
            return bad(format!(
                "a heartbeat every {:?} is not below half of the ttl, {:?}: one that fails could not be repeated in time",
                self.every(),
                self.ttl
            ));
        }
        Ok(())
    }
}

/// Where time and chance come from.
#[derive(Clone)]
pub struct Surroundings {
    pub clock: Arc<dyn AlarmClock>,
    pub chance: Arc<dyn Chance>,
}

impl Default for Surroundings {
    fn default() -> Self {
        Self { clock: Arc::new(BootClock), chance: Arc::new(MachineChance) }
    }
}

impl std::fmt::Debug for Surroundings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Surroundings")
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    #[error("invalid session configuration: {0}")]
    Config(String),
    #[error(transparent)]
    Name(#[from] BadName),
    #[error("the authority refused to open a session: {0}")]
    Refused(#[from] RefusalReason),
    #[error("cannot open a session: {0}")]
    Authority(#[from] AuthorityError),
}
