//! The gate itself: judges a token, and reads its resource from the store where that settles it.

use std::{sync::Arc, time::Duration};

use parking_lot::{Mutex, RwLock};
use solehold_core::{
    fence::{Doubt, Fence, MarkLookup, Tick, Verdict},
    key::{Name, ResourceKey, SessionId},
    time::Token,
};
use tokio::{
    sync::{Notify, watch},
    task::JoinSet,
};

#[cfg(feature = "tower")]
use super::flights::Flights;
use super::{
    follow,
    memory::Memory,
    options::{GateError, GateOptions},
    source::Source,
    state::{GateState, Refreshes, Told},
};
use crate::authority::{AuthorityError, BadName, checked};

/// Refuses work that carries an old token. Dropping it ends its watch.
#[derive(Debug)]
pub struct Gate {
    shared: Arc<GateState>,
    /// Requests that its layers have passed on.
    #[cfg(feature = "tower")]
    pub(super) flights: Arc<Flights>,
    /// Those that keep its knowledge up to date. They end with it.
    _tasks: JoinSet<()>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GateStatus {
    pub marks: usize,
    /// Of a resource without a mark, tokens up to here need a read of the store.
    pub floor: Token,
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
        Ok(ResourceKey::new(tenant, checked("kind", kind)?, checked("key", key)?))
    }

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
        decide(&self.shared, key, token, session).await
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

async fn decide(shared: &GateState, key: &ResourceKey, token: Token, session: Option<SessionId>) -> Verdict {
    let arrived = shared.now();
    let mut verdict = shared.judge(key, token, session);
    let Verdict::Undecidable(doubt) = verdict else { return verdict };
    let within = shared.options.refresh_within;
    if doubt.needs_a_read() && !shared.read().is_away(arrived) {
        verdict = match tokio::time::timeout(within, ask(shared, key, arrived)).await {
            Ok(Ok(told)) => conclude(shared, (key, token, session), told, within).await,
            Ok(Err(AuthorityError::Denied { why, .. })) => {
                follow::is_denied(shared, &why);
                shared.judge(key, token, session)
            }
            Ok(Err(_)) | Err(_) => {
                follow::is_away(shared);
                shared.judge(key, token, session)
            }
        };
    }
    if verdict == Verdict::Undecidable(Doubt::Unsaved) {
        verdict = when_saved(shared, (key, token, session), within).await;
    }
    verdict
}

/// The store's answer to a question that was asked after `arrived`.
async fn ask(shared: &GateState, key: &ResourceKey, arrived: Tick) -> Result<Told, AuthorityError> {
    let place = shared.refreshes.join(key);
    let mut last = place.last.lock().await;
    if let Some(told) = last.filter(|told| told.0 >= arrived) {
        return Ok(told);
    }
    // The semaphore is never closed.
    let _permit = shared.refreshes.permits.acquire().await;
    let asked = shared.now();
    let (answer, epoch) = shared.source.newest(key).await?;
    *last = Some((asked, answer, epoch));
    Ok((asked, answer, epoch))
}

async fn conclude(
    shared: &GateState,
    message: (&ResourceKey, Token, Option<SessionId>),
    (asked, answer, epoch): Told,
    within: Duration,
) -> Verdict {
    let (key, token, session) = message;
    // The server lists an undeclared resource only while it is held; the watch still has its mark.
    if answer == MarkLookup::Nothing && shared.read().told().is_some() {
        let caught_up = until(shared, || shared.read().proven() >= Some(asked));
        if tokio::time::timeout(within, caught_up).await.is_err() {
            return shared.judge(key, token, session);
        }
    }
    if answer != MarkLookup::Nothing {
        shared.trouble.lock().is_told();
    }
    let verdict = shared.write().conclude(message, (answer, epoch), asked, shared.now());
    shared.has_changed();
    verdict.unwrap_or_else(|| {
        follow::older(shared, epoch.unwrap_or_default());
        shared.judge(key, token, session)
    })
}

/// The verdict when what was raised has been saved.
async fn when_saved(
    shared: &GateState,
    (key, token, session): (&ResourceKey, Token, Option<SessionId>),
    within: Duration,
) -> Verdict {
    let unsaved = Verdict::Undecidable(Doubt::Unsaved);
    let is_saved = until(shared, || shared.judge(key, token, session) != unsaved);
    // If not in time, it is as undecidable as before.
    let _ = tokio::time::timeout(within, is_saved).await;
    shared.judge(key, token, session)
}

/// Waits until something holds that changes only with what is known.
async fn until(shared: &GateState, mut holds: impl FnMut() -> bool) {
    let mut changes = shared.changes.subscribe();
    while !holds() {
        if changes.changed().await.is_err() {
            return;
        }
    }
}
