//! Many gateways on one database: who may start beside whom, which of them serves a key, and who is there.

mod config;

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use serde_json::{Value, json};
use solehold_api::problem::ErrorCode;
use solehold_clock::BootTime;
use solehold_core::route;

pub use self::config::{ClusterConfig, ConfigError, SessionLocksConfig};
use crate::{
    authority::{Authority, AuthorityError, Metrics, Node},
    locks::Locks,
    renewer::Lost,
    session::{AcquireError, ClientSession, Guard, OpenError, SessionConfig, Surroundings},
};

/// The kind of the lock that only one gateway of a database has, where there may be only one.
const GATEWAY_KIND: &str = "gateway";
const GATEWAY_KEY: &str = "alone";
/// The group that gateways announce, so that others recognise them among all sessions.
const GROUP: &str = "gateway";
/// The kind that keys are routed as by default.
const ROUTE_KIND: &str = "session";
/// A gateway that runs alone and dies is missed for this long.
const ALONE_TTL: Duration = Duration::from_secs(15);
/// How long a list of nodes is used before it is read again.
const NODES_FRESH: Duration = Duration::from_secs(1);

const ENABLE_CLUSTER: &str =
    "stop it, or set cluster.enabled and cluster.session_locks.enabled on all of them";
const ENABLE_LOCKS: &str = "nothing would keep the two from working on one session at once; set cluster.session_locks.enabled on all of them, \
     or cluster.allow_multiple_gateways if that is as it should be";

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClusterError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// There is another one, and there may be only one.
    #[error("gateway {other} runs on this database already{when}: {remedy}")]
    AnotherGateway {
        other: String,
        /// Until when, if it is dead.
        when: String,
        remedy: &'static str,
    },
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The authority did not answer whether there is another.
    #[error("cannot tell whether another gateway runs on this database: {0}")]
    Unknown(String),
}

/// A gateway among others, or alone.
///
/// | `enabled` | `allow_multiple_gateways` | `session_locks.enabled` | alone | a second gateway |
/// |---|---|---|---|---|
/// | false | any | any | starts | is refused, and told the other's name |
/// | true | false | false | starts, with a warning | is refused, and told the other's name |
/// | true | true | false | starts, with a warning | starts, with a warning |
/// | true | any | true | starts | starts |
#[derive(Debug)]
pub struct Cluster {
    config: ClusterConfig,
    node_id: String,
    session: ClientSession,
    locks: Option<Locks>,
    alone: Option<Guard>,
    warnings: Vec<String>,
    seen: Mutex<Option<(BootTime, Arc<[Node]>)>>,
}

impl Cluster {
    /// Starts as the configuration says, in the current runtime.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().expect("a runtime").block_on(async {
    /// use std::sync::Arc;
    /// use solehold_client::{Cluster, ClusterConfig, Embedded};
    ///
    /// let authority = Arc::new(Embedded::open("memory:").await?);
    /// let alone = Cluster::start(authority.clone(), ClusterConfig::default()).await?;
    /// let refused = Cluster::start(authority, ClusterConfig::default()).await.expect_err("there is one");
    /// assert!(refused.to_string().contains(alone.node_id()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).expect("it runs");
    /// ```
    pub async fn start(authority: Arc<dyn Authority>, config: ClusterConfig) -> Result<Self, ClusterError> {
        Self::start_in(Surroundings::default(), authority, config).await
    }

    /// The same with time and chance as arguments.
    pub async fn start_in(
        surroundings: Surroundings,
        authority: Arc<dyn Authority>,
        config: ClusterConfig,
    ) -> Result<Self, ClusterError> {
        config.check()?;
        let node_id = config.node_id_or((surroundings.chance.unit() * f64::from(u32::MAX)) as u32);
        let warnings = warnings(&config);
        for warning in &warnings {
            tracing::warn!(node_id, "{warning}");
        }
        let locks = config.lock_config();
        let (ttl, every) = if config.enabled && config.session_locks.enabled {
            (locks.ttl, Some(locks.refresh_interval))
        } else {
            (ALONE_TTL, None)
        };
        let metrics = announced(&Metrics::new());
        let session = SessionConfig { ttl, every, metrics, ..SessionConfig::new(&node_id) };
        if may_be_only_one(&config) {
            refuse_beside(&*authority, &node_id, &config).await?;
        }
        let session = ClientSession::open_in(surroundings, authority, session).await?;
        let alone =
            if may_be_only_one(&config) { Some(take_gateway_lock(&session, &config).await?) } else { None };
        let locks = (config.enabled && config.session_locks.enabled)
            .then(|| Locks::over(session.clone(), config.lock_config()));
        tracing::info!(node_id, cluster = config.enabled, session_locks = locks.is_some(), "gateway started");
        Ok(Self { config, node_id, session, locks, alone, warnings, seen: Mutex::default() })
    }

    /// The name of this node: for health snapshots and logs.
    pub fn node_id(&self) -> &str {
        &self.node_id
    }

    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    pub fn session(&self) -> &ClientSession {
        &self.session
    }

    /// Locks on sessions; none where they are not enabled.
    pub fn locks(&self) -> Option<&Locks> {
        self.locks.as_ref()
    }

    /// Locks a session while a message of it is processed. `None` where session locks are not enabled: then this
    /// process is the only one, or is allowed not to care.
    pub async fn lock_session(&self, session_id: &str) -> Result<Option<Guard>, AcquireError> {
        let Some(locks) = &self.locks else { return Ok(None) };
        Ok(Some(locks.acquire(session_id).await?))
    }

    /// Waits until this gateway must stop: it may run only alone, and no longer knows that it does. Never, where
    /// there may be others.
    pub async fn lost(&self) -> Lost {
        match &self.alone {
            Some(guard) => guard.lost().await,
            None => std::future::pending().await,
        }
    }

    /// Leaves, when the work has stopped: another gateway may start at once. Callers that still look at this one see it
    /// as lost.
    pub async fn leave(&self) {
        if let Some(guard) = &self.alone
            && let Err(error) = guard.retire().await
        {
            tracing::debug!(%error, "cannot release the gateway lock; it expires after its ttl");
        }
        self.session.close().await;
    }

    /// Says what others see of this node. `weight` (1 if not given) says how much is routed here, against the others.
    pub fn set_metrics(&self, metrics: &Metrics) {
        self.session.set_metrics(announced(metrics));
    }

    /// All live gateways, this one among them, with what they last reported about themselves. About a second old at
    /// most.
    pub async fn nodes(&self) -> Result<Arc<[Node]>, AuthorityError> {
        let now = self.session.inner().clock().now();
        let seen = self.seen.lock().clone();
        if let Some((at, nodes)) = seen
            && now.since(at) < NODES_FRESH
        {
            return Ok(nodes);
        }
        let nodes: Arc<[Node]> = gateways(&*self.session.inner().authority).await?.into();
        *self.seen.lock() = Some((now, nodes.clone()));
        Ok(nodes)
    }

    /// The live node that should serve a session, by weighted rendezvous hashing: all nodes give the same answer, a
    /// node that leaves moves only its own sessions, and one that joins takes only its share.
    pub async fn route(&self, key: &str) -> Result<Option<String>, AuthorityError> {
        self.route_as(ROUTE_KIND, key).await
    }

    /// The same for keys of another kind.
    pub async fn route_as(&self, kind: &str, key: &str) -> Result<Option<String>, AuthorityError> {
        let nodes = self.nodes().await?;
        let chosen = route::route(kind, key, nodes.iter().map(Node::candidate));
        Ok(chosen.map(|chosen| chosen.name.to_owned()))
    }

    /// What this node says of itself when asked for its health.
    pub fn health(&self) -> Value {
        json!({
            "node_id": self.node_id,
            "cluster": self.config.enabled,
            "session_locks": self.locks.is_some(),
            "session_id": self.session.id().map(|id| id.to_string()),
            "is_live": self.session.is_live(),
        })
    }
}

/// Whether another gateway must not run beside one of this configuration.
fn may_be_only_one(config: &ClusterConfig) -> bool {
    !config.enabled || !config.session_locks.enabled && !config.allow_multiple_gateways
}

fn warnings(config: &ClusterConfig) -> Vec<String> {
    let mut warnings = Vec::new();
    if config.enabled && !config.session_locks.enabled {
        let beside = if config.allow_multiple_gateways { "are allowed" } else { "are refused" };
        warnings.push(format!(
            "cluster.enabled without cluster.session_locks.enabled: nothing keeps two gateways from working on one session at \
             once, and others {beside}"
        ));
    }
    if !config.enabled && (config.allow_multiple_gateways || config.session_locks.enabled) {
        warnings.push(
            "cluster.allow_multiple_gateways and cluster.session_locks have no effect without cluster.enabled"
                .to_owned(),
        );
    }
    warnings
}

/// What a node tells, with what makes it known as a gateway.
fn announced(metrics: &Metrics) -> Metrics {
    let mut metrics = metrics.clone();
    metrics.insert("group".to_owned(), GROUP.into());
    metrics.entry("weight").or_insert_with(|| 1.into());
    metrics
}

async fn gateways(authority: &dyn Authority) -> Result<Vec<Node>, AuthorityError> {
    let mut nodes = authority.nodes().await?;
    nodes.retain(|node| node.group.as_deref() == Some(GROUP));
    Ok(nodes)
}

fn another(other: String, retry_after: Option<Duration>, config: &ClusterConfig) -> ClusterError {
    let dead = |after: Duration| {
        format!(" (if it has died, it is forgotten in {} s)", after.as_millis().div_ceil(1_000))
    };
    let remedy = if config.enabled { ENABLE_LOCKS } else { ENABLE_CLUSTER };
    ClusterError::AnotherGateway { other, when: retry_after.map(dead).unwrap_or_default(), remedy }
}

/// A gateway that must be the only one does not start beside any other, not even one that allows others. A former self
/// of the same name is no other: its session ends when this one's begins.
async fn refuse_beside(
    authority: &dyn Authority,
    node_id: &str,
    config: &ClusterConfig,
) -> Result<(), ClusterError> {
    let nodes = gateways(authority).await.map_err(|error| ClusterError::Unknown(error.to_string()))?;
    match nodes.into_iter().find(|node| node.node_id != node_id) {
        Some(node) => Err(another(node.node_id, Some(Duration::from_millis(node.ttl_ms)), config)),
        None => Ok(()),
    }
}

/// The lock that only one gateway has. What a former self of the same name left of it is waited for.
async fn take_gateway_lock(session: &ClientSession, config: &ClusterConfig) -> Result<Guard, ClusterError> {
    let acquired = session.try_acquire(GATEWAY_KIND, GATEWAY_KEY).await;
    let refusal = match acquired {
        Ok(guard) => return Ok(guard),
        Err(AcquireError::Refused { refusal, .. }) if refusal.code == ErrorCode::Held => refusal,
        Err(error) => return Err(ClusterError::Unknown(error.to_string())),
    };
    match refusal.holder {
        Some(other) if *other != *session.holder() => Err(another(other.into(), refusal.retry_after, config)),
        _ => {
            let acquired = session.acquire(GATEWAY_KIND, GATEWAY_KEY).await;
            acquired.map_err(|error| ClusterError::Unknown(error.to_string()))
        }
    }
}
