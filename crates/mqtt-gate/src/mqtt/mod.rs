//! The gate for MQTT 3.1.1: `solehold gate mqtt`.
//!
//! ```text
//!   run ── standing: a shard's lease ──> tenure: connect, again and again ──> pump: two connections, one window
//!                    (one gate at a time)         (only while the lease lives)       |
//!                                                  probe: may we write at all?       +── Gate: the newest tokens
//! ```
//!
//! Every shard has two connections, one to read and one to publish. When either is lost, everything that was not
//! acknowledged comes again, and nothing has to be remembered. Each shard subscribes to all topics, and acknowledges
//! at once what other shards look after. That costs the broker a delivery to each shard for every message, and is right
//! on every broker: shared subscriptions hand messages out in turn, and lose the order of a resource.

mod broker;
pub mod check;
mod figures;
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
    broker::{Broker, BrokerError},
    figures::{Figures, Knowledge, Standing},
};
use crate::{
    intake::Intake,
    routes::Routes,
    shards::{SHARD_KIND, Shards},
    topic::Pattern,
};

/// How long a gate stands in line for a shard before it asks again.
const LINE_WAIT: Duration = Duration::from_secs(600);
/// After a failure of the server.
const RETRY: Backoff = Backoff { first: Duration::from_millis(200), cap: Duration::from_secs(2) };

/// What a gate does.
#[derive(Debug, Clone)]
pub struct GateConfig {
    /// Where messages come from and go to.
    pub broker: Broker,
    /// The topics to read.
    pub patterns: Vec<Pattern>,
    /// Whose resources.
    pub tenant: Name,
    /// The kinds of the resources: the first one where topics do not name it.
    pub kinds: Vec<Name>,
    /// The member of a message that has its token.
    pub token_field: String,
    /// Where messages go.
    pub routes: Routes,
    /// Whether retained messages are judged like others, and not refused.
    pub takes_retained: bool,
    /// The largest payload that is not refused.
    pub message_bytes_max: usize,
    /// Payloads that a shard may hold.
    pub held_bytes_max: usize,
    /// All shards.
    pub shards: Shards,
    /// How many of them this gate may hold.
    pub hold: u32,
    /// The name under which it holds them.
    pub holder: String,
    /// How long a gate that was killed keeps its shards.
    pub ttl: Duration,
}

impl GateConfig {
    /// What is wrong with it, if something is.
    pub fn fault(&self) -> Option<String> {
        if self.patterns.is_empty() {
            return Some("there are no topics to read".to_owned());
        }
        if self.kinds.len() != 1
            && let Some(pattern) = self.patterns.iter().find(|pattern| !pattern.names_kind())
        {
            return Some(format!(
                "the topics {pattern} do not name a kind: give one, or write {{kind}} into them"
            ));
        }
        for prefix in [Some(&self.routes.prefix), self.routes.dead_letter.as_ref()].into_iter().flatten() {
            if prefix.is_empty() || prefix.len() > 1_024 || prefix.contains(['+', '#', '\0']) {
                return Some(format!("{prefix:?} is not a topic to publish to"));
            }
            if let Some(pattern) = self.patterns.iter().find(|pattern| pattern.reads_below(prefix)) {
                return Some(format!(
                    "what is published below {prefix} would be read again by {pattern}: choose another prefix"
                ));
            }
        }
        None
    }

    /// Where the gate looks whether what it publishes arrives.
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

/// Why a gate ended by itself.
#[derive(Debug, thiserror::Error)]
pub enum GateError {
    /// It could not register.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Another program opened a session under its name.
    #[error("the gate's session is over: {0}")]
    Over(Lost),
    /// It may not hold its shards.
    #[error("the shards cannot be acquired: {0}")]
    Acquire(AcquireError),
    /// Health and metrics cannot be served.
    #[error("cannot listen on {0}: {1}")]
    Listen(SocketAddr, std::io::Error),
}

/// What all parts of a gate share.
pub(crate) struct Context {
    pub config: GateConfig,
    pub gate: Arc<Gate>,
    pub figures: Arc<Figures>,
    pub ending: watch::Receiver<bool>,
}

/// Runs a gate until `ending` is true, and then gives its shards back.
pub async fn run(
    config: GateConfig,
    authority: Arc<dyn Authority>,
    gate: Arc<Gate>,
    figures: Arc<Figures>,
    ending: watch::Receiver<bool>,
) -> Result<(), GateError> {
    let mut stop = ending.clone();
    let session = tokio::select! {
        session = open(&config, authority) => session?,
        _ = stop.wait_for(|ending| *ending) => return Ok(()),
    };
    tracing::info!(holder = session.holder(), broker = %config.broker, "the gate is registered");
    let context = Context { config, gate, figures, ending };
    let count = context.config.shards.count();
    let slots = context.config.hold.clamp(1, count);
    // Each slot stands for its part of the shards, and holds one of them at a time.
    let slots = (0..slots).map(|slot| {
        let shards = (slot..count).step_by(slots as usize).collect::<Vec<_>>();
        let (context, session) = (&context, &session);
        async move { stand(context, session, &shards).await }
    });
    let ended: Result<Vec<()>, GateError> = join_all(slots).await.into_iter().collect();
    session.close().await;
    ended.map(|_| ())
}

/// Opens the session that the shards are attached to; a server that does not answer is waited for.
async fn open(config: &GateConfig, authority: Arc<dyn Authority>) -> Result<ClientSession, OpenError> {
    let session = SessionConfig { ttl: config.ttl, ..SessionConfig::new(&config.holder) };
    let mut is_told = false;
    loop {
        match ClientSession::open(authority.clone(), session.clone()).await {
            Err(OpenError::Authority(error)) => {
                if !std::mem::replace(&mut is_told, true) {
                    tracing::warn!(%error, "the server is not there yet; waiting for it");
                }
            }
            opened => return opened,
        }
    }
}

/// Holds one of these shards at a time, until the gate is to end.
async fn stand(context: &Context, session: &ClientSession, shards: &[u32]) -> Result<(), GateError> {
    let (mut ending, mut failures) = (context.ending.clone(), 0);
    shards.iter().for_each(|shard| context.figures.stands(*shard, Standing::Waiting));
    while !*ending.borrow() {
        let acquired = tokio::select! {
            acquired = acquire(context, session, shards) => acquired,
            _ = ending.wait_for(|ending| *ending) => return Ok(()),
        };
        let error = match acquired {
            Ok((shard, guard)) => {
                failures = 0;
                tenure::serve(context, shard, guard).await;
                context.figures.stands(shard, Standing::Waiting);
                continue;
            }
            Err(error) => error,
        };
        match error {
            AcquireError::TimedOut { .. } => continue,
            AcquireError::Authority { error, .. } => tracing::debug!(%error, "no shard yet"),
            AcquireError::Refused { refusal, .. } if refusal.is_worth_another_try() => {}
            AcquireError::SessionOver(lost) => return Err(GateError::Over(lost)),
            error => return Err(GateError::Acquire(error)),
        }
        failures += 1;
        tokio::time::sleep(RETRY.wait(failures, rand::random())).await;
    }
    Ok(())
}

/// Stands in line for these shards, until one is granted.
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
    // What the others are granted in the same moment is released when they are dropped.
    select_all(lines).await.0
}
