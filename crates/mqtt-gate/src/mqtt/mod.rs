//! The gate for MQTT 3.1.1: `solehold gate mqtt`.
//!
//! ```text
//!   run ── waits for a shard's lease ──> tenure: connects and reconnects ──> pump: two connections, one window
//!          (one gate at a time)              (while the lease is held)            |
//!                                             probe: may we write?                +── Gate: the newest tokens
//! ```
//!
//! Every shard has two connections, one to read and one to publish. When either is lost, the broker redelivers all
//! messages that were not acknowledged, so the gate stores nothing. Each shard subscribes to all topics, and
//! acknowledges the messages of other shards at once. That costs the broker one delivery per shard for every message,
//! and is correct on every broker: shared subscriptions hand out messages in turn, and lose the order of a resource.

mod broker;
pub mod check;
mod metrics;
mod probe;
mod pump;
mod tenure;

use std::{collections::HashMap, net::SocketAddr, sync::Arc, time::Duration};

use futures_util::future::{join_all, select_all};
use solehold_client::{
    AcquireError, Authority, ClientSession, Guard, Lost, OpenError, SessionConfig, gate::Gate,
};
use solehold_clock::Backoff;
use solehold_core::key::Name;
use tokio::sync::watch;

pub use self::{
    broker::{Broker, BrokerError, BrokerSettingError},
    metrics::{GateMetrics, Knowledge, ShardStatus},
};
use crate::{
    intake::Intake,
    routes::Routes,
    shards::{SHARD_KIND, Shards},
    topic::Pattern,
};

/// How long a gate waits in line for a shard before it requests it again.
const LINE_WAIT: Duration = Duration::from_secs(600);
/// After a failure of the server.
const RETRY: Backoff = Backoff { first: Duration::from_millis(200), cap: Duration::from_secs(2) };

#[derive(Debug, Clone)]
pub struct GateConfig {
    /// Of publishers and subscribers alike.
    pub broker: Broker,
    pub patterns: Vec<Pattern>,
    pub tenant: Name,
    /// The kinds of the resources; the first one where topics do not name it.
    pub kinds: Vec<Name>,
    /// The JSON member that has the token.
    pub token_field: String,
    /// Where messages are republished.
    pub routes: Routes,
    /// Whether retained messages are judged like others; otherwise they are refused.
    pub takes_retained: bool,
    /// The largest payload that is not refused.
    pub message_bytes_max: usize,
    /// The most bytes of payloads that a shard may hold.
    pub held_bytes_max: usize,
    pub shards: Shards,
    /// The most shards that this gate may hold.
    pub hold: u32,
    /// The name of this gate as a holder of leases.
    pub holder: String,
    /// How long a gate that was killed keeps its shards.
    pub ttl: Duration,
}

impl GateConfig {
    /// Checks that topics and prefixes fit together.
    pub fn check(&self) -> Result<(), GateConfigError> {
        if self.patterns.is_empty() {
            return Err(GateConfigError::NoTopics);
        }
        if self.kinds.len() != 1
            && let Some(pattern) = self.patterns.iter().find(|pattern| !pattern.names_kind())
        {
            return Err(GateConfigError::NoKind(pattern.clone()));
        }
        for prefix in [Some(&self.routes.prefix), self.routes.dead_letter.as_ref()].into_iter().flatten() {
            if prefix.is_empty() || prefix.len() > 1_024 || prefix.contains(['+', '#', '\0']) {
                return Err(GateConfigError::Prefix(prefix.clone()));
            }
            if let Some(pattern) = self.patterns.iter().find(|pattern| pattern.reads_below(prefix)) {
                return Err(GateConfigError::Loop { prefix: prefix.clone(), pattern: pattern.clone() });
            }
        }
        Ok(())
    }

    /// The topics at which a shard checks that its messages arrive.
    pub fn probe_topics(&self, shard: u32) -> Vec<String> {
        let prefixes = [Some(&self.routes.prefix), self.routes.dead_letter.as_ref()].into_iter().flatten();
        prefixes.map(|prefix| format!("{prefix}/solehold-gate-probe/{}", self.shards.id(shard))).collect()
    }

    fn intake(&self, shard: u32) -> Intake {
        Intake {
            patterns: self.patterns.clone(),
            tenant: self.tenant.clone(),
            kinds: self.kinds.clone(),
            token_field: self.token_field.clone(),
            message_bytes_max: self.message_bytes_max,
            topic_bytes_max: self.routes.topic_bytes_max(),
            takes_retained: self.takes_retained,
            shards: self.shards.clone(),
            shard,
            known: HashMap::new(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GateConfigError {
    #[error("there are no topics to read")]
    NoTopics,
    /// There are several kinds, and this pattern does not name one.
    #[error("the topics {0} do not name a kind: give one, or write {{kind}} into them")]
    NoKind(Pattern),
    /// Messages cannot be published below this prefix.
    #[error("{0:?} is not a topic to publish to")]
    Prefix(String),
    /// The gate would read its own messages.
    #[error("messages published below {prefix} would be read again by {pattern}: choose another prefix")]
    Loop {
        /// Of passed or of refused messages.
        prefix: String,
        /// A pattern that matches below it.
        pattern: Pattern,
    },
}

/// Why a gate ended before it was stopped.
#[derive(Debug, thiserror::Error)]
pub enum GateError {
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Another program opened a session under its name.
    #[error("the session of the gate has ended: {0}")]
    Over(Lost),
    /// It is not allowed to hold its shards.
    #[error("the shards cannot be acquired: {0}")]
    Acquire(AcquireError),
    #[error("cannot listen on {0}: {1}")]
    Listen(SocketAddr, std::io::Error),
}

/// What all shards of a gate share.
pub(crate) struct Context {
    pub config: GateConfig,
    pub gate: Arc<Gate>,
    pub metrics: Arc<GateMetrics>,
    pub ending: watch::Receiver<bool>,
}

/// Runs a gate until `ending` is true, and then releases its shards.
pub async fn run(
    config: GateConfig,
    authority: Arc<dyn Authority>,
    gate: Arc<Gate>,
    metrics: Arc<GateMetrics>,
    ending: watch::Receiver<bool>,
) -> Result<(), GateError> {
    let mut stop = ending.clone();
    let session = tokio::select! {
        session = open(&config, authority) => session?,
        _ = stop.wait_for(|ending| *ending) => return Ok(()),
    };
    tracing::info!(holder = session.holder(), broker = %config.broker, "opened the session of the gate");
    let context = Context { config, gate, metrics, ending };
    let count = context.config.shards.count();
    let slots = context.config.hold.clamp(1, count);
    // Each slot has its part of the shards, and holds one of them at a time.
    let slots = (0..slots).map(|slot| {
        let shards = (slot..count).step_by(slots as usize).collect::<Vec<_>>();
        let context = &context;
        let session = &session;
        async move { hold_shards(context, session, &shards).await }
    });
    let ended: Result<Vec<()>, GateError> = join_all(slots).await.into_iter().collect();
    session.close().await;
    ended.map(|_| ())
}

/// Opens the session that the leases are attached to; retries while the server cannot be reached.
async fn open(config: &GateConfig, authority: Arc<dyn Authority>) -> Result<ClientSession, OpenError> {
    let session = SessionConfig { ttl: config.ttl, ..SessionConfig::new(&config.holder) };
    let mut has_warned = false;
    loop {
        match ClientSession::open(authority.clone(), session.clone()).await {
            Err(OpenError::Authority(error)) => {
                if !has_warned {
                    tracing::warn!(%error, "cannot reach the Solehold server; retrying");
                }
                has_warned = true;
            }
            opened => return opened,
        }
    }
}

/// Holds one of these shards at a time, until the gate ends.
async fn hold_shards(context: &Context, session: &ClientSession, shards: &[u32]) -> Result<(), GateError> {
    let mut ending = context.ending.clone();
    let mut failures = 0;
    shards.iter().for_each(|shard| context.metrics.set_status(*shard, ShardStatus::Waiting));
    while !*ending.borrow() {
        let acquired = tokio::select! {
            acquired = acquire(context, session, shards) => acquired,
            _ = ending.wait_for(|ending| *ending) => return Ok(()),
        };
        let error = match acquired {
            Ok((shard, guard)) => {
                failures = 0;
                tenure::serve(context, shard, guard).await;
                context.metrics.set_status(shard, ShardStatus::Waiting);
                continue;
            }
            Err(error) => error,
        };
        match error {
            AcquireError::TimedOut { .. } => continue,
            AcquireError::Authority { error, .. } => {
                tracing::debug!(%error, "cannot acquire a shard; retrying")
            }
            AcquireError::Refused { refusal, .. } if refusal.is_worth_another_try() => {}
            AcquireError::SessionOver(lost) => return Err(GateError::Over(lost)),
            error => return Err(GateError::Acquire(error)),
        }
        failures += 1;
        tokio::time::sleep(RETRY.wait(failures, rand::random())).await;
    }
    Ok(())
}

/// Waits in line for these shards, until one is granted.
async fn acquire(
    context: &Context,
    session: &ClientSession,
    shards: &[u32],
) -> Result<(u32, Guard), AcquireError> {
    let lines = shards.iter().map(|shard| {
        let key = context.config.shards.id(*shard);
        Box::pin(async move {
            let guard = session.acquire_within(SHARD_KIND, &key, LINE_WAIT).await;
            guard.map(|guard| (*shard, guard))
        })
    });
    // A shard that is granted at the same moment is released when its future is dropped.
    select_all(lines).await.0
}
