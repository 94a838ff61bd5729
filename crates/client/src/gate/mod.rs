//! The gate: work that carries an old token is refused (rule 21).
//!
//! ```text
//!   watch ──── snapshot, events ────> Fence (pure: marks) <──── judge: no request, no waiting
//!   head ───── how far is the store? ──^  |     ^
//!   read ───── one resource ──────────────|─────┘  decide: asks the store where judge cannot tell
//!   memory <── marks, before they admit ──┘
//! ```
//! [`Gate::judge`] says at once what is known: [`Verdict::Admit`], [`Verdict::Stale`] or [`Verdict::Undecidable`].
//! [`Gate::decide`] asks the store where that settles it. Work that stays undecidable is held back by a transport that
//! can wait ([`Gate::changed`]), and refused by one that cannot. The watch pushes every grant, so the store is read
//! only for a token that comes before its event, and while the watch is away.
//!
//! Knowledge admits for [`GateOptions::cache_ttl`] after the question that it answers. The store is asked every second
//! how far it is; when the watch has told everything up to there, everything before the question is known. So a gate
//! that was paused, or whose watch hangs, notices: [`Gate::lag`] is the time since the last such question.
//!
//! Several gates have several memories, and this one compares and lets pass in two steps: it is bounded by its lag, not
//! atomic. Where the work ends in a database, compare there (`solehold_sql::fenced`).
//!
//! ```
//! # tokio::runtime::Runtime::new().expect("a runtime").block_on(async {
//! use std::sync::Arc;
//! use solehold_client::{Embedded, ClientSession, SessionConfig, gate::{Gate, GateOptions, Verdict}};
//!
//! let authority = Arc::new(Embedded::open("memory:").await?);
//! let gate = Gate::open(authority.clone(), GateOptions::new(["scene"])?)?;
//! let session = ClientSession::open(authority, SessionConfig::new("tracker-1")).await?;
//! let scene = gate.key("scene", "lobby")?;
//!
//! let first = session.acquire("scene", "lobby").await?;
//! let old = first.token();
//! assert_eq!(gate.decide(&scene, old, None).await, Verdict::Admit);
//! first.release().await?;
//!
//! let second = session.acquire("scene", "lobby").await?;
//! assert_eq!(gate.decide(&scene, second.token(), None).await, Verdict::Admit);
//! assert_eq!(gate.judge(&scene, old, None), Verdict::Stale { newest: second.token() });
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # }).expect("it runs");
//! ```

#[cfg(feature = "tower")]
mod admission;
#[cfg(feature = "engine")]
mod embedded;
#[cfg(feature = "tower")]
mod flights;
mod follow;
mod http;
mod judge;
#[cfg(feature = "tower")]
mod layer;
mod memory;
mod options;
mod source;
mod state;
mod trouble;

pub use solehold_core::fence::{Doubt, Mark, Verdict};

#[cfg(feature = "tower")]
pub use self::{
    admission::{RESOURCE, Refused, SESSION, Shown, TOKEN},
    flights::{Ending, Flight, Flights, FlightsStatus, NotBegun, WasCut, WhenOlder},
    layer::{GateLayer, Gated},
    options::FlightLimits,
};
pub use self::{
    judge::{Gate, GateStatus},
    options::{Fail, GateClock, GateError, GateOptions, MemoryError},
    source::{Frames, NoWatch, Source},
};
