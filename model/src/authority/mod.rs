//! Who decides: the real machine, or a table with a flaw.

mod engine;
mod origins;
mod table;

use solehold_clock::BootTime;

use crate::{
    message::{Ask, Process, Reply, Shown},
    scope::Scope,
    variant::Variant,
};
pub use engine::EngineRows;
pub use origins::OriginRow;
pub use table::TableRow;

/// A request as it reaches the authority.
#[derive(Debug, Clone, Copy)]
pub struct Call {
    pub from: Process,
    pub sent: BootTime,
    pub ask: Ask,
}

/// A lease as the authority has it, live or not.
#[derive(Debug, Clone, Copy)]
pub struct Held {
    pub shown: Shown,
    /// By the authority's clock.
    pub dead_from_ms: u64,
}

/// The authority's rows.
#[derive(Debug, Clone, Hash)]
#[allow(clippy::large_enum_variant, reason = "almost all worlds have the larger one")]
pub enum Rows {
    Engine(EngineRows),
    Table(TableRow),
    Origin(OriginRow),
}

impl Rows {
    pub fn new(scope: &Scope, variant: Variant) -> Self {
        if variant.is_table() {
            Self::Table(TableRow::default())
        } else if variant.is_origin() {
            Self::Origin(OriginRow::default())
        } else {
            Self::Engine(EngineRows::new(scope))
        }
    }

    /// Decides a call at the store's time.
    pub fn decide(&mut self, call: &Call, now_ms: u64, scope: &Scope, variant: Variant) -> Reply {
        match self {
            Self::Engine(rows) => rows.decide(call, now_ms, scope, variant),
            Self::Table(row) => row.decide(call, now_ms, scope, variant),
            Self::Origin(row) => row.decide(call, now_ms, scope, variant),
        }
    }

    /// The lease that there is, live or not.
    pub fn held(&self) -> Option<Held> {
        match self {
            Self::Engine(rows) => rows.held(),
            Self::Table(row) => row.held(),
            Self::Origin(row) => row.held(),
        }
    }

    /// The lease that is live.
    pub fn live(&self, now_ms: u64) -> Option<Shown> {
        self.held().filter(|held| now_ms < held.dead_from_ms).map(|held| held.shown)
    }

    /// The token of a lease that a sweeper would nominate now.
    pub fn expired(&self, now_ms: u64) -> Option<u64> {
        self.held().filter(|held| held.dead_from_ms <= now_ms).map(|held| held.shown.token)
    }

    /// Whether nobody else can get the resource although its lease is not live.
    pub fn is_held_back(&self, now_ms: u64) -> bool {
        match self {
            Self::Engine(rows) => rows.is_held_back(now_ms),
            Self::Table(_) | Self::Origin(_) => false,
        }
    }

    /// Whether the resource could be acquired once everything has run out.
    pub fn is_free_in_the_end(&self, now_ms: u64) -> bool {
        match self {
            Self::Engine(rows) => rows.is_free_in_the_end(now_ms),
            Self::Table(_) | Self::Origin(_) => true,
        }
    }

    /// The number that those who compare tokens are shown when they ask for it.
    pub fn version(&self) -> Option<u64> {
        match self {
            Self::Origin(row) => Some(row.version()),
            Self::Engine(_) | Self::Table(_) => None,
        }
    }
}
