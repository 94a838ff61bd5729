//! Runners of a camera pipeline: registered holders with a capacity, a deployment and a session.
//!
//! Registering answers with a `session_id`. A heartbeat that names it renews everything attached to it; one that does
//! not updates the registry only (rule 6).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Number, Value};
use solehold_core::{
    command::Registration,
    key::{Document, Name},
    session::{Holder, HolderStatus, Session},
    time::StoreTime,
};
use uuid::Uuid;

use crate::{
    document::{read, to_document, to_fields},
    field::{Checked, Faults, FieldError},
    leases::LeaseBody,
    limits::{
        CAPACITY_DEFAULT, CAPACITY_MAX, CAPACITY_MIN, LABELS_MAX, RUNNER_SESSION_TTL, RUNNER_SILENCE_MS_MAX,
    },
    page::PageCursor,
    time::Timestamp,
};

/// The field of a runner's metrics with its load by its own count.
const CURRENT_LOAD: &str = "current_load";
/// The field of a runner's metrics with the resources, as `kind/key`, that it does not request at present, and why.
pub const FAILED_RESOURCES: &str = "failed_resources";

/// Registers a runner. Registering it again opens a new session, and ends what it held by its name alone.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RegisterRunner {
    pub runner_id: String,
    /// The key's tenant if not given.
    pub tenant_id: Option<String>,
    pub site_id: Option<String>,
    pub deployment_group: Option<String>,
    pub deployment_version: Option<String>,
    pub host: Option<String>,
    /// The port of its own API, 1 to 65535.
    pub port: Option<i64>,
    /// The port of its metrics, 1 to 65535.
    pub metrics_port: Option<i64>,
    /// How many leases it may hold, 1 to 10000; 16 if not given.
    pub capacity: Option<i64>,
    #[serde(default)]
    pub capabilities: Vec<String>,
    /// Labels to select it by.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// The kinds of resources that are placed on it; all, if none are given.
    #[serde(default)]
    pub kinds: Vec<String>,
    /// Time to live of its session in seconds; 60 if not given.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<f64>))]
    pub session_ttl_seconds: Option<Number>,
    /// Its former session, to be closed at once; otherwise it expires.
    pub replace: Option<Uuid>,
    /// The former incarnation is known to be fenced off, so the next holder need not wait for the deadline of the
    /// replaced session, nor for those of leases that it held by its name alone.
    #[serde(default)]
    pub fenced: bool,
    /// The last session of the process that asks, which comes back after it has ended: refused with
    /// `session_superseded` if another session of this name is live by now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follows: Option<Uuid>,
    /// Any JSON that it reports about itself.
    pub metrics: Option<BTreeMap<String, Value>>,
}

/// A registration that was checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegistrationTerms {
    pub runner: Name,
    /// Time to live of its session.
    pub session_ttl_ms: u64,
    /// The attributes that the registry keeps.
    pub registration: Registration,
    /// Any JSON that it reports about itself.
    pub metrics: Option<Document>,
}

impl RegisterRunner {
    pub fn terms(&self) -> Checked<RegistrationTerms> {
        let mut faults = Faults::default();
        let runner = faults.name("runner_id", &self.runner_id);
        faults.maybe_name("tenant_id", self.tenant_id.as_deref());
        let site = faults.maybe_name("site_id", self.site_id.as_deref());
        for (field, value) in [
            ("deployment_group", &self.deployment_group),
            ("deployment_version", &self.deployment_version),
            ("host", &self.host),
        ] {
            faults.maybe_name(field, value.as_deref());
        }
        let port = faults.port("port", self.port);
        let metrics_port = faults.port("metrics_port", self.metrics_port);
        let capacity = faults.capacity(self.capacity);
        faults.names("capabilities", &self.capabilities);
        faults.names("kinds", &self.kinds);
        faults.labels("labels", &self.labels);
        let ttl = self.session_ttl_seconds.as_ref();
        let ttl = ttl.map_or(Ok(RUNNER_SESSION_TTL.default_ms), |ttl| {
            RUNNER_SESSION_TTL.seconds("session_ttl_seconds", ttl)
        });
        let session_ttl_ms = faults.take(ttl);
        let about = RunnerAttributes {
            deployment_group: self.deployment_group.clone(),
            deployment_version: self.deployment_version.clone(),
            host: self.host.clone(),
            port: port.flatten(),
            metrics_port: metrics_port.flatten(),
            capacity: capacity.unwrap_or(CAPACITY_DEFAULT),
            capabilities: self.capabilities.clone(),
            labels: self.labels.clone(),
            kinds: self.kinds.clone(),
        };
        let attributes = faults.take(to_document("capabilities", &about));
        let metrics = faults.take(metrics_document(self.metrics.as_ref()));
        faults.finish(|| {
            let registration = Registration { site: site?, capacity, attributes: attributes? };
            Some(RegistrationTerms {
                runner: runner?,
                session_ttl_ms: session_ttl_ms?,
                registration,
                metrics: metrics?,
            })
        })
    }
}

impl Faults {
    fn port(&mut self, field: &str, port: Option<i64>) -> Option<Option<u16>> {
        let Some(port) = port else { return Some(None) };
        self.within(field, port, 1, u16::MAX.into());
        u16::try_from(port).ok().map(Some)
    }

    fn capacity(&mut self, capacity: Option<i64>) -> Option<u32> {
        let capacity = capacity.unwrap_or(CAPACITY_DEFAULT.into());
        self.within("capacity", capacity, CAPACITY_MIN.into(), CAPACITY_MAX.into());
        u32::try_from(capacity).ok()
    }

    fn names(&mut self, field: &str, names: &[String]) {
        let count = names.len();
        self.check(count <= LABELS_MAX, field, format!("has {count} entries; it may have {LABELS_MAX}"));
        for (at, name) in names.iter().enumerate().take(LABELS_MAX) {
            self.name(&format!("{field}[{at}]"), name);
        }
    }
}

fn metrics_document(metrics: Option<&BTreeMap<String, Value>>) -> Result<Option<Document>, FieldError> {
    metrics.map(|metrics| to_document("metrics", metrics)).transpose()
}

/// The attributes that a runner registers with. Core does not interpret them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RunnerAttributes {
    pub deployment_group: Option<String>,
    pub deployment_version: Option<String>,
    pub host: Option<String>,
    /// The port of its own API.
    pub port: Option<u16>,
    pub metrics_port: Option<u16>,
    /// How many leases it may hold.
    pub capacity: u32,
    pub capabilities: Vec<String>,
    /// Labels to select it by.
    pub labels: BTreeMap<String, String>,
    /// The kinds of resources that are placed on it; all, if there are none here.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub kinds: Vec<String>,
}

/// The status of a runner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum RunnerStatus {
    /// It may acquire leases.
    Active,
    /// It keeps its leases and gets no new ones.
    #[serde(alias = "drain")]
    Draining,
    /// As `draining`, until an operator changes it.
    Maintenance,
    /// It has not sent a heartbeat for long. This status cannot be set.
    Inactive,
}

impl RunnerStatus {
    /// The status of a registered holder at `now`; `session` is its present one.
    pub fn of(holder: &Holder, session: Option<&Session>, now: StoreTime) -> Self {
        let heard = now < holder.heard_at.plus_ms(RUNNER_SILENCE_MS_MAX);
        if !heard && !session.is_some_and(|session| session.is_live(now)) {
            return Self::Inactive;
        }
        match holder.status {
            HolderStatus::Active => Self::Active,
            HolderStatus::Draining => Self::Draining,
            HolderStatus::Maintenance => Self::Maintenance,
        }
    }
}

/// Sets the status of a runner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PutRunnerStatus {
    /// `active`, `draining` (or `drain`) or `maintenance`.
    pub status: RunnerStatus,
    /// Refuse unless this is the runner's present session: for a runner that speaks of itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<Uuid>,
}

impl PutRunnerStatus {
    pub fn wanted(self) -> Checked<HolderStatus> {
        match self.status {
            RunnerStatus::Active => Ok(HolderStatus::Active),
            RunnerStatus::Draining => Ok(HolderStatus::Draining),
            RunnerStatus::Maintenance => Ok(HolderStatus::Maintenance),
            RunnerStatus::Inactive => {
                let message = "cannot be set to inactive; drain the runner, or delete it";
                Err(vec![FieldError::new("status", message)])
            }
        }
    }
}

/// A runner was registered: the runner as it is in the registry, and its new session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RegisteredRunner {
    /// Always true.
    pub success: bool,
    pub runner_id: String,
    pub tenant_id: String,
    /// Empty if it gave none.
    pub site_id: String,
    pub registered_at: Timestamp,
    pub last_heartbeat: Timestamp,
    /// The attributes that it registered with.
    #[serde(flatten)]
    pub about: RunnerAttributes,
    pub status: RunnerStatus,
    /// Its load by its own count, if it registered with one; otherwise as `held`.
    pub current_load: u64,
    /// How many leases are held under its name, those of a former session that have not expired included.
    #[serde(default)]
    pub held: u64,
    /// The metrics that it reported.
    pub metrics: BTreeMap<String, Value>,
    /// The cameras that it holds by its name alone: none, if it was registered before. Not there for a runner that
    /// registers with `kinds` and takes no cameras.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub assigned_cameras: Option<Vec<String>>,
    /// Its session: name it on acquire and heartbeat, and one heartbeat renews everything but a grant that was waited
    /// for and has not been renewed itself yet (`confirm_within_ms`).
    pub session_id: Uuid,
    /// Milliseconds until the session expires.
    pub ttl_ms: u64,
    /// When the session expires by the store's clock, unless it is renewed.
    pub expires_at: Timestamp,
    /// The epoch of the store's history.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<u64>,
    /// The revision at which this was read.
    pub revision: u64,
    /// The store's position in its history, sealed by the store. Send it with the next heartbeat.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sealed_cursor: Option<String>,
}

impl RegisteredRunner {
    pub fn of(runner: Runner, session: &Session, now: StoreTime) -> Self {
        Self {
            success: true,
            runner_id: runner.runner_id,
            tenant_id: runner.tenant_id,
            site_id: runner.site_id,
            registered_at: runner.registered_at,
            last_heartbeat: runner.last_heartbeat,
            about: runner.about,
            status: runner.status,
            current_load: runner.current_load,
            held: runner.held,
            metrics: runner.metrics,
            assigned_cameras: None,
            session_id: session.id.0,
            ttl_ms: session.deadline.ms_after(now),
            expires_at: session.deadline.into(),
            epoch: None,
            revision: session.lease_revision.0,
            sealed_cursor: None,
        }
    }
}

/// A runner's heartbeat.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct HeartbeatRunner {
    /// Its session: everything attached to it is renewed. Without it only the registry is updated.
    pub session_id: Option<Uuid>,
    /// Any JSON that it reports about itself.
    pub metrics: Option<BTreeMap<String, Value>>,
    /// Its load by its own count; kept with the metrics.
    pub current_load: Option<u64>,
    /// The last `sealed_cursor` that this runner received: a store that is behind it knows that it was set back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sealed_cursor: Option<String>,
}

impl HeartbeatRunner {
    pub fn metrics(&self) -> Checked<Option<Document>> {
        let load = self.current_load.map(|load| (CURRENT_LOAD.to_owned(), load.into()));
        let told = match (&self.metrics, load) {
            (metrics, Some(load)) => {
                Some(metrics.clone().unwrap_or_default().into_iter().chain([load]).collect())
            }
            (metrics, None) => metrics.clone(),
        };
        metrics_document(told.as_ref()).map_err(|fault| vec![fault])
    }
}

/// Removes a runner.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RemoveRunner {
    /// Its session, as proof that the runner itself says so: what is attached to it is released at once. Without it,
    /// that is revoked, and nobody can acquire it before the runner's deadline has passed.
    pub session_id: Option<Uuid>,
}

/// A runner was removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RemovedRunner {
    /// Always true.
    pub success: bool,
    pub runner_id: String,
    /// How many leases were released with it: all that it held, if its session was named.
    pub released: usize,
    /// How many leases it no longer has, released or revoked: by the pipeline's name for it.
    pub leases_released: usize,
    /// How many leases were revoked, because its session was not named: their resources are held back until the
    /// deadline that the runner had.
    pub revoked: usize,
}

/// The answer to a runner's heartbeat.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RunnerHeartbeat {
    /// Always true.
    pub success: bool,
    pub runner_id: String,
    pub status: RunnerStatus,
    /// The session that was renewed; null if none was given.
    pub session_id: Option<Uuid>,
    /// Milliseconds until the session expires.
    pub ttl_ms: Option<u64>,
    /// The epoch of the store's history. An answer with a lower one than was seen before comes from an older history:
    /// take up nothing of it, and treat the session's leases as lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<u64>,
    /// The revision of the set below: never apply an older set over a newer grant. Compare the epoch first.
    pub revision: u64,
    /// The store's position in its history, sealed by the store. Send it with the next heartbeat.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sealed_cursor: Option<String>,
    /// Everything that it holds; what is not here it does not hold.
    pub leases: Vec<LeaseBody>,
}

/// A runner in the registry.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Runner {
    pub runner_id: String,
    pub tenant_id: String,
    /// Empty if it gave none.
    pub site_id: String,
    pub registered_at: Timestamp,
    /// When its last heartbeat arrived.
    pub last_heartbeat: Timestamp,
    /// The attributes that it registered with.
    #[serde(flatten)]
    pub about: RunnerAttributes,
    pub status: RunnerStatus,
    /// Its load by its own count, if its last heartbeat had one; otherwise as `held`.
    pub current_load: u64,
    /// How many leases are held under its name, in its session, a former one or none.
    #[serde(default)]
    pub held: u64,
    /// The metrics that it last reported.
    pub metrics: BTreeMap<String, Value>,
    /// Its session, if it is active.
    pub session_id: Option<Uuid>,
    /// Milliseconds until the session expires.
    pub ttl_ms: Option<u64>,
}

impl Runner {
    /// A registered holder at a time, which holds `held` leases; `session` is its present one.
    pub fn of(holder: &Holder, session: Option<&Session>, held: u64, now: StoreTime) -> Self {
        let live = session.filter(|session| session.is_live(now));
        let heard = session.map_or(holder.heard_at, |session| session.renewed_at.max(holder.heard_at));
        // By name or by session: the later word counts.
        let by_session = session.filter(|s| s.renewed_at >= holder.heard_at).map(|s| to_fields(&s.metrics));
        let metrics = by_session.unwrap_or_else(|| to_fields(&holder.metrics));
        Self {
            runner_id: holder.key.name.to_string(),
            tenant_id: holder.key.tenant.to_string(),
            site_id: holder.site.as_ref().map(ToString::to_string).unwrap_or_default(),
            registered_at: holder.registered_at.into(),
            last_heartbeat: heard.into(),
            about: read(&holder.attributes).unwrap_or_default(),
            status: RunnerStatus::of(holder, session, now),
            current_load: metrics.get(CURRENT_LOAD).and_then(Value::as_u64).unwrap_or(held),
            held,
            metrics,
            session_id: live.map(|session| session.id.0),
            ttl_ms: live.map(|session| session.deadline.ms_after(now)),
        }
    }
}

/// A page of runners.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RunnerList {
    pub runners: Vec<Runner>,
    /// Where the next page begins; null on the last.
    pub next: Option<PageCursor>,
}

#[cfg(test)]
mod tests;
