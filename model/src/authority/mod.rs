//! Who decides: the real machine, or a table with a flaw.

mod engine;
mod table;

use solehold_clock::BootTime;

use crate::{
    message::{Ask, GrantId, Process, Reply},
    scope::Scope,
    variant::Variant,
};
pub use engine::EngineRows;
pub use table::TableRow;

/// A request as it reaches the authority.
#[derive(Debug, Clone, Copy)]
pub struct Call {
    pub from: Process,
    pub sent: BootTime,
    pub ask: Ask,
}

/// The authority's rows.
#[derive(Debug, Clone, Hash)]
#[allow(clippy::large_enum_variant, reason = "almost all worlds have the larger one")]
pub enum Rows {
    Engine(EngineRows),
    Table(TableRow),
}

impl Rows {
    pub fn new(scope: &Scope, variant: Variant) -> Self {
        if variant.is_table() {
            Self::Table(TableRow::default())
        } else {
            Self::Engine(EngineRows::new(scope))
        }
    }

    /// Decides a call at the store's time.
    pub fn decide(&mut self, call: &Call, now_ms: u64, scope: &Scope, variant: Variant) -> Reply {
        match self {
            Self::Engine(rows) => rows.decide(call, now_ms, scope, variant),
            Self::Table(row) => row.decide(call, now_ms, variant),
        }
    }

    /// The grant that the resource has now, live or not, and its token.
    pub fn granted(&self) -> Option<(GrantId, u64)> {
        match self {
            Self::Engine(rows) => rows.granted(),
            Self::Table(row) => row.granted(),
        }
    }

    /// The token of a lease that a sweeper would nominate now.
    pub fn expired(&self, now_ms: u64) -> Option<u64> {
        match self {
            Self::Engine(rows) => rows.expired(now_ms),
            Self::Table(row) => row.expired(now_ms),
        }
    }

    /// Whether nobody else can get the resource while a holder trusts this token.
    pub fn protects(&self, token: u64, now_ms: u64) -> bool {
        match self {
            Self::Engine(rows) => rows.protects(token, now_ms),
            Self::Table(_) => true,
        }
    }

    /// Whether the resource could be acquired once everything has run out.
    pub fn is_free_in_the_end(&self, now_ms: u64) -> bool {
        match self {
            Self::Engine(rows) => rows.is_free_in_the_end(now_ms),
            Self::Table(_) => true,
        }
    }
}
