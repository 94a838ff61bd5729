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
#[cfg(feature = "tower")]
mod layer;
mod memory;
mod options;
mod refresh;
mod refreshes;
mod source;
mod state;
mod trouble;

use std::{sync::Arc, time::Duration};

use parking_lot::{Mutex, RwLock};
pub use solehold_core::fence::{Doubt, Mark, Verdict};
use solehold_core::{
    fence::Fence,
    key::{Name, ResourceKey, SessionId},
    time::Token,
};
use tokio::{
    sync::{Notify, watch},
    task::JoinSet,
};

#[cfg(feature = "tower")]
pub use self::{
    admission::{RESOURCE, Refused, SESSION, Shown, TOKEN},
    flights::{Ending, Flight, Flights, FlightsStatus, NotBegun, WasCut, WhenOlder},
    layer::{GateLayer, Gated},
    options::FlightLimits,
};
use self::{memory::Memory, refreshes::Refreshes, state::GateState};
pub use self::{
    options::{Fail, GateClock, GateError, GateOptions, MemoryError},
    source::{Frames, NoWatch, Source},
};
use crate::authority::{BadName, checked};

/// Refuses work that carries an old token. Dropping it ends its watch.
#[derive(Debug)]
pub struct Gate {
    shared: Arc<GateState>,
    /// Requests that its layers have passed on.
    #[cfg(feature = "tower")]
    flights: Arc<Flights>,
    /// Those that keep its knowledge up to date. They end with it.
    _tasks: JoinSet<()>,
}

/// How a gate is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GateStatus {
    /// How many resources it has marks of.
    pub marks: usize,
    /// Of a resource without a mark, tokens up to here need a read of the store.
    pub floor: Token,
    /// The epoch of the history that it follows.
    pub epoch: u64,
    /// Everything is known that was decided longer ago than this; none before the first snapshot.
    pub lag: Option<Duration>,
    /// The store was not reached just now.
    pub is_away: bool,
    /// The store refuses the gate: its key is wrong, has expired or was revoked.
    pub is_denied: bool,
}

impl Gate {
    /// Begins to watch, in the current runtime. It admits nothing before it knows something; [`Self::ready`] waits for
    /// the first snapshot.
    pub fn open(source: Arc<impl Source>, options: GateOptions) -> Result<Self, GateError> {
        options.check()?;
        let mut fence = Fence::new(options.rules());
        #[cfg(feature = "tower")]
        let flights = Arc::new(Flights::new(options.flights, options.clock.clone()));
        let memory = options.memory.as_deref().map(|path| Memory::open(path, &mut fence)).transpose()?;
        let shared = Arc::new(GateState {
            fence: RwLock::new(fence),
            source,
            options,
            refreshes: Refreshes::default(),
            trouble: Mutex::default(),
            changes: watch::Sender::new(0),
            to_save: Notify::new(),
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(follow::watch(shared.clone()));
        tasks.spawn(follow::ask_for_heads(shared.clone()));
        if let Some(memory) = memory {
            tasks.spawn(memory.keep(shared.clone()));
        }
        Ok(Self {
            shared,
            #[cfg(feature = "tower")]
            flights,
            _tasks: tasks,
        })
    }

    /// Requests that its layers have passed on and that are not known to have ended.
    #[cfg(feature = "tower")]
    pub fn flights(&self) -> &Arc<Flights> {
        &self.flights
    }

    /// A resource of the gate's tenant.
    pub fn key(&self, kind: &str, key: &str) -> Result<ResourceKey, BadName> {
        let tenant = self.shared.options.tenant.clone();
        Ok(ResourceKey { tenant, kind: checked("kind", kind)?, key: checked("key", key)? })
    }

    /// The kinds of resources that it is for.
    pub fn kinds(&self) -> &[Name] {
        &self.shared.options.kinds
    }

    /// Why the store was not reached, or refused the gate, when it was last asked; none if it told what it was asked.
    pub fn trouble(&self) -> Option<String> {
        self.shared.trouble.lock().why()
    }

    /// Judges by what is known, at once: no request, and no lock that anyone holds while waiting.
    pub fn judge(&self, key: &ResourceKey, token: Token, session: Option<SessionId>) -> Verdict {
        self.shared.judge(key, token, session)
    }

    /// Judges, and asks the store where that settles it: one question per resource at a time, within
    /// [`GateOptions::refresh_within`].
    pub async fn decide(&self, key: &ResourceKey, token: Token, session: Option<SessionId>) -> Verdict {
        refresh::decide(&self.shared, key, token, session).await
    }

    /// Waits for a change of what is known, from the moment of this call on: take it before [`Self::judge`], so that
    /// nothing is missed in between.
    pub fn changed(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut changes = self.shared.changes.subscribe();
        async move {
            // The gate is gone: nothing will change, so those who wait look once more.
            let _ = changes.changed().await;
        }
    }

    /// Waits until the first snapshot is whole and, for a gate that remembers, saved.
    pub async fn ready(&self) {
        loop {
            let changed = self.changed();
            if self.shared.read().is_ready() {
                return;
            }
            changed.await;
        }
    }

    /// Everything is known that was decided longer ago than this; none before the first snapshot.
    pub fn lag(&self) -> Option<Duration> {
        self.status().lag
    }

    /// How it is doing.
    pub fn status(&self) -> GateStatus {
        let now = self.shared.now();
        let fence = self.shared.read();
        GateStatus {
            marks: fence.marks(),
            floor: fence.floor(),
            epoch: fence.epoch(),
            lag: fence.proven().map(|proven| Duration::from_nanos(now.since(proven))),
            is_away: fence.is_away(now),
            is_denied: fence.is_denied(),
        }
    }
}
