//! One source of configuration: everything may be missing, nothing may be unknown.

use std::{
    net::{Ipv4Addr, SocketAddr},
    num::{NonZeroU32, NonZeroU64, NonZeroUsize},
    path::PathBuf,
    str::FromStr,
    time::Duration,
};

use serde::Deserialize;
use solehold_api::limits::{CAPACITY_MAX, CAPACITY_MIN};
use solehold_core::{key::Name, limits};
use solehold_engine::EngineOptions;
use solehold_server::ServerLimits;

use super::relays::RelayLayer;
use crate::{
    engine_url::EngineUrl,
    error::{CommandError, CommandResult, ValueError},
    logs::LogFormat,
    store::StoreOptions,
};

/// What one source says. The fields are the keys of the file.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Layer {
    /// Where to listen.
    pub listen: Option<Address>,
    /// The folder of the embedded engine.
    pub data_dir: Option<PathBuf>,
    /// Another engine.
    pub engine: Option<EngineUrl>,
    /// The name of this node.
    pub node_id: Option<NodeId>,
    /// The longest ttl that may be asked for.
    pub ttl_max: Option<Span>,
    /// What becomes of commits when a standby of PostgreSQL takes over.
    pub failover: Option<Failover>,
    /// How long to wait for PostgreSQL at the start.
    pub store_wait: Option<Span>,
    /// Whether `/metrics` needs a key.
    pub guard_metrics: Option<bool>,
    /// What is logged.
    pub log: LogLayer,
    /// The files for TLS.
    pub tls: TlsLayer,
    /// Bounds.
    pub limits: LimitsLayer,
    /// How long events are kept.
    pub events: EventsLayer,
    /// Where events are relayed to; only a file can say it.
    pub relays: Option<Vec<RelayLayer>>,
}

/// What is logged.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LogLayer {
    /// A level, or directives.
    pub level: Option<String>,
    /// What a line looks like.
    pub format: Option<LogFormat>,
}

/// The files for TLS.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TlsLayer {
    /// The certificate and its chain.
    pub cert: Option<PathBuf>,
    /// The private key.
    pub key: Option<PathBuf>,
    /// Who signs clients' certificates.
    pub client_ca: Option<PathBuf>,
}

/// Bounds of the server.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LimitsLayer {
    /// Requests per second of one key; 0 for no limit.
    pub requests_per_second: Option<u32>,
    /// Requests at once after a pause.
    pub requests_burst: Option<NonZeroU32>,
    /// Most capacity that a runner may register with.
    pub capacity_max: Option<Capacity>,
    /// Open watches at this node.
    pub watches_max: Option<u64>,
    /// Open connections at this node.
    pub connections_max: Option<NonZeroUsize>,
    /// How long a request may take.
    pub request_timeout: Option<Span>,
    /// How long a connection may be idle.
    pub idle_timeout: Option<Span>,
    /// How long requests get to finish at the stop.
    pub shutdown_grace: Option<Span>,
    /// What a tenant may have, unless its own quotas say otherwise.
    pub quotas: QuotasLayer,
}

/// What a tenant may have.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct QuotasLayer {
    /// Resources, declared or held.
    pub resources: Option<u64>,
    /// Live sessions.
    pub sessions: Option<u64>,
    /// Open watches at a node.
    pub watches: Option<u64>,
}

/// How long events are kept.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EventsLayer {
    /// For at least this long.
    pub keep: Option<Span>,
    /// At most this many.
    pub keep_max: Option<NonZeroU64>,
}

/// Takes each field of `$lower` that `$upper` lacks.
macro_rules! fill {
    ($upper:expr, $lower:expr, $($field:ident),+) => {
        $(if $upper.$field.is_none() { $upper.$field = $lower.$field; })+
    };
}

impl Layer {
    /// What no layer may say.
    pub fn check(&self) -> Result<(), ValueError> {
        if self.data_dir.is_some() && self.engine.is_some() {
            return Err("data_dir and engine are both given: give one of them".into());
        }
        Ok(())
    }

    /// This layer, and `lower` where it says nothing.
    pub fn over(mut self, lower: Self) -> CommandResult<Self> {
        self.check().map_err(CommandError::usage)?;
        if self.data_dir.is_none() && self.engine.is_none() {
            (self.data_dir, self.engine) = (lower.data_dir, lower.engine);
        }
        fill!(self, lower, listen, node_id, ttl_max, failover, store_wait, guard_metrics, relays);
        fill!(self.log, lower.log, level, format);
        fill!(self.tls, lower.tls, cert, key, client_ca);
        fill!(self.limits, lower.limits, requests_per_second, requests_burst, watches_max, connections_max);
        fill!(self.limits, lower.limits, capacity_max, request_timeout, idle_timeout, shutdown_grace);
        fill!(self.limits.quotas, lower.limits.quotas, resources, sessions, watches);
        fill!(self.events, lower.events, keep, keep_max);
        Ok(self)
    }
}

/// Writes what is given over what is there.
fn put<T>(to: &mut T, given: Option<impl Into<T>>) {
    if let Some(given) = given {
        *to = given.into();
    }
}

impl Layer {
    /// How the store is opened.
    pub fn store_options(&self) -> Result<StoreOptions, ValueError> {
        let ttl_max_ms =
            self.ttl_max.map(|Span(longest)| u64::try_from(longest.as_millis()).unwrap_or(u64::MAX));
        let least = limits::TTL_MS_MIN;
        let most = limits::TTL_MS_MAX;
        if ttl_max_ms.is_some_and(|ms| !(least..=most).contains(&ms)) {
            return Err("ttl_max must be between 1s and 1day".into());
        }
        Ok(StoreOptions { ttl_max_ms, failover: self.failover.unwrap_or_default() })
    }
}

impl LimitsLayer {
    /// Writes what is given over `limits`.
    pub fn apply(self, limits: &mut ServerLimits) {
        put(&mut limits.requests_per_second, self.requests_per_second);
        put(&mut limits.requests_burst, self.requests_burst);
        put(&mut limits.capacity_max, self.capacity_max.map(|Capacity(most)| most));
        put(&mut limits.watches_max, self.watches_max);
        put(&mut limits.connections_max, self.connections_max);
        put(&mut limits.request_timeout, self.request_timeout);
        put(&mut limits.idle_timeout, self.idle_timeout);
        put(&mut limits.shutdown_grace, self.shutdown_grace);
        put(&mut limits.quotas.resources, self.quotas.resources);
        put(&mut limits.quotas.sessions, self.quotas.sessions);
        put(&mut limits.quotas.watches, self.quotas.watches);
    }
}

impl EventsLayer {
    /// Writes what is given over the engine's retention.
    pub fn apply(self, engine: &mut EngineOptions) {
        let keep_ms = self.keep.map(|Span(keep)| u64::try_from(keep.as_millis()).unwrap_or(u64::MAX));
        put(&mut engine.retention.events_ms, keep_ms);
        put(&mut engine.retention.events_max, self.keep_max);
    }
}

/// A value that is written as a string.
macro_rules! text {
    ($type:ident) => {
        impl TryFrom<String> for $type {
            type Error = ValueError;
            fn try_from(text: String) -> Result<Self, ValueError> {
                text.parse()
            }
        }
    };
}

/// An address to listen on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Address(pub SocketAddr);
text!(Address);

impl FromStr for Address {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        if let Some(port) = text.strip_prefix("localhost:").and_then(|port| port.parse().ok()) {
            return Ok(Self((Ipv4Addr::LOCALHOST, port).into()));
        }
        let address = text.parse().map_err(|_| {
            format!(
                "{text:?} is not an address to listen on; write IP:PORT, as in 127.0.0.1:7070 or [::]:7070"
            )
        })?;
        Ok(Self(address))
    }
}

/// The capacity of a runner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "u32")]
pub struct Capacity(pub u32);

impl TryFrom<u32> for Capacity {
    type Error = ValueError;

    fn try_from(capacity: u32) -> Result<Self, ValueError> {
        if (CAPACITY_MIN..=CAPACITY_MAX).contains(&capacity) {
            return Ok(Self(capacity));
        }
        Err(format!("{capacity} is not a capacity of a runner, {CAPACITY_MIN} to {CAPACITY_MAX}").into())
    }
}

impl FromStr for Capacity {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let number = text.parse::<u32>().map_err(|_| format!("{text:?} is not a whole number"))?;
        number.try_into()
    }
}

/// A duration as people write it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Span(pub Duration);
text!(Span);

impl FromStr for Span {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let span = humantime::parse_duration(text).map_err(|_| {
            format!("{text:?} is not a time; write a number with its unit, as in 500ms, 30s, 5m, 2h or 7days")
        })?;
        Ok(Self(span))
    }
}

impl From<Span> for Duration {
    fn from(span: Span) -> Self {
        span.0
    }
}

/// Whether commits can be lost when a standby of PostgreSQL takes over.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum Failover {
    #[default]
    Lossy,
    Lossless,
}
text!(Failover);

#[cfg(feature = "postgres")]
impl From<Failover> for solehold_engine::postgres::Failover {
    fn from(failover: Failover) -> Self {
        match failover {
            Failover::Lossy => Self::Lossy,
            Failover::Lossless => Self::Lossless,
        }
    }
}

impl FromStr for Failover {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        match text {
            "lossy" => Ok(Self::Lossy),
            "lossless" => Ok(Self::Lossless),
            _ => Err(format!(
                "{text:?} is not a kind of failover; write lossless if only standbys that every commit waits for are \
                 ever promoted, and lossy otherwise"
            )
            .into()),
        }
    }
}

/// The name of a node.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct NodeId(pub String);
text!(NodeId);

impl FromStr for NodeId {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let name = Name::new(text).map_err(|error| format!("the node's name {error}"))?;
        // It is the value of a response header, too.
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(
                format!("{text:?} is not a node's name; write ASCII without spaces, as in rack-7").into()
            );
        }
        Ok(Self(name.to_string()))
    }
}
