//! How a gate judges, and why it cannot be opened.

use std::{fmt, io, path::PathBuf, sync::Arc, time::Duration};

use solehold_clock::{BootClock, Clock};
use solehold_core::{fence::Rules, key::Name};

use crate::authority::{BadName, checked};

const TENANT_DEFAULT: &str = "default";
const KINDS_MAX: usize = 32;

/// What a gate does with what it cannot decide while the store is away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fail {
    /// Nothing is admitted that is not known to be the newest.
    #[default]
    Closed,
    /// A token is admitted unless an equal or newer one speaks against it: work goes on, and a paused holder may go on
    /// with it until the store is back. A store that refuses the gate's key is not away.
    Open,
}

#[derive(Clone)]
pub struct GateClock(pub Arc<dyn Clock>);

impl fmt::Debug for GateClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GateClock")
    }
}

/// How many requests a gate follows at once, running and waiting ones together.
#[cfg(feature = "tower")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlightLimits {
    pub per_resource: usize,
    pub total: usize,
}

#[cfg(feature = "tower")]
impl Default for FlightLimits {
    fn default() -> Self {
        Self { per_resource: 1_000, total: 10_000 }
    }
}

#[derive(Debug, Clone)]
pub struct GateOptions {
    pub kinds: Vec<Name>,
    pub tenant: Name,
    /// How old knowledge may be that admits. It is the longest time for which a superseded holder can still get through
    /// a gate that is cut off.
    pub cache_ttl: Duration,
    /// What to do with what cannot be decided while the store is away.
    pub fail: Fail,
    /// Read the store before a new token is admitted, even if the watch has told of it.
    pub strict: bool,
    /// A file in which marks are kept across restarts. One gate per file.
    pub memory: Option<PathBuf>,
    /// Most resources to keep marks of in memory.
    pub marks_max: usize,
    /// How long one question to the store may take.
    pub refresh_within: Duration,
    #[cfg(feature = "tower")]
    pub flights: FlightLimits,
    pub clock: GateClock,
}

impl GateOptions {
    /// A gate for these kinds that fails closed, with a ttl of 30 s and no memory.
    pub fn new<K: AsRef<str>>(kinds: impl IntoIterator<Item = K>) -> Result<Self, BadName> {
        Ok(Self {
            kinds: kinds.into_iter().map(|kind| checked("kind", kind)).collect::<Result<_, _>>()?,
            tenant: checked("tenant", TENANT_DEFAULT)?,
            cache_ttl: Duration::from_secs(30),
            fail: Fail::Closed,
            strict: false,
            memory: None,
            marks_max: Rules::default().marks_max,
            refresh_within: Duration::from_secs(5),
            #[cfg(feature = "tower")]
            flights: FlightLimits::default(),
            clock: GateClock(Arc::new(BootClock)),
        })
    }

    pub(super) fn check(&self) -> Result<(), GateError> {
        let bad = |why: String| Err(GateError::Options(why));
        if self.kinds.is_empty() || self.kinds.len() > KINDS_MAX {
            return bad(format!("{} kinds are given: name 1 to {KINDS_MAX}", self.kinds.len()));
        }
        if self.cache_ttl.is_zero() || self.refresh_within.is_zero() {
            return bad("cache_ttl and refresh_within must be above 0".to_owned());
        }
        if self.marks_max == 0 {
            return bad("marks_max is 0: nothing could be remembered".to_owned());
        }
        #[cfg(feature = "tower")]
        if self.flights.per_resource == 0 || self.flights.total == 0 {
            return bad("a limit of requests in flight is 0: nothing could pass".to_owned());
        }
        Ok(())
    }

    pub(super) fn rules(&self) -> Rules {
        Rules {
            cache_ttl: u64::try_from(self.cache_ttl.as_nanos()).unwrap_or(u64::MAX),
            fail_open: self.fail == Fail::Open,
            strict: self.strict,
            remembers: self.memory.is_some(),
            marks_max: self.marks_max,
        }
    }

    /// The kind to ask the watch for; none, if it must tell of all.
    pub(super) fn only_kind(&self) -> Option<&Name> {
        if let [only] = self.kinds.as_slice() { Some(only) } else { None }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    #[error("the gate's memory {} cannot be used: {why}", path.display())]
    Io { path: PathBuf, why: io::Error },
    #[error("the gate's memory {} is in use by another gate: give each gate a file of its own", .0.display())]
    InUse(PathBuf),
    /// It says what no gate has written.
    #[error("line {line} of the gate's memory {} cannot be read: restore the file, or remove it and lose the marks", path.display())]
    Damaged { path: PathBuf, line: usize },
}

#[derive(Debug, thiserror::Error)]
pub enum GateError {
    #[error("invalid gate options: {0}")]
    Options(String),
    #[error(transparent)]
    Memory(#[from] MemoryError),
}
