//! One source of configuration: everything may be missing, nothing may be unknown.

use std::{
    net::{Ipv4Addr, SocketAddr},
    num::{NonZeroU32, NonZeroU64, NonZeroUsize},
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};

use secrecy::SecretString;
use serde::Deserialize;
use solehold_api::limits::{CAPACITY_MAX, CAPACITY_MIN};
use solehold_client::{HttpConfig, transport};
use solehold_core::{key::Name, limits};
use solehold_engine::EngineOptions;
use solehold_server::ServerLimits;

use super::{relays::RelayLayer, variables::Variables};
use crate::{
    engine_url::EngineUrl,
    error::{CommandError, CommandResult, ValueError},
    files,
    logs::LogFormat,
    store::StoreOptions,
};

/// Sections of the configuration. The fields are the keys of the file, each with the variable that says the same.
macro_rules! layers {
    ($(
        $(#[$doc:meta])*
        $layer:ident {
            $($key:ident: $type:ty = $variable:literal,)*
            $(; $($section:ident: $inner:ident,)*)?
            $(; only in the file: $only:ident: $only_type:ty)?
        }
    )*) => {
        /// The variables that [`Layer::from_variables`] reads.
        pub const VARIABLES: &[&str] = &[$($($variable,)*)*];
        $(
            $(#[$doc])*
            #[derive(Debug, Clone, Default, PartialEq, Deserialize)]
            #[serde(default, deny_unknown_fields)]
            pub struct $layer {
                $(pub $key: Option<$type>,)*
                $($(pub $section: $inner,)*)?
                $(pub $only: Option<$only_type>,)?
            }

            impl $layer {
                /// Takes each key that this one lacks from `lower`.
                fn fill(&mut self, lower: Self) {
                    $(self.$key = self.$key.take().or(lower.$key);)*
                    $($(self.$section.fill(lower.$section);)*)?
                    $(self.$only = self.$only.take().or(lower.$only);)?
                }

                fn read(variables: &Variables) -> CommandResult<Self> {
                    Ok(Self {
                        $($key: variables.get($variable)?,)*
                        $($($section: $inner::read(variables)?,)*)?
                        $($only: None,)?
                    })
                }
            }
        )*
    };
}

layers! {
    /// What one source says.
    Layer {
        listen: Address = "SOLEHOLD_LISTEN",
        data_dir: PathBuf = "SOLEHOLD_DATA_DIR",
        engine: EngineUrl = "SOLEHOLD_ENGINE",
        node_id: NodeId = "SOLEHOLD_NODE_ID",
        ttl_max: Span = "SOLEHOLD_TTL_MAX",
        failover: Failover = "SOLEHOLD_FAILOVER",
        store_wait: Span = "SOLEHOLD_STORE_WAIT",
        guard_metrics: bool = "SOLEHOLD_GUARD_METRICS",
        ;
        log: LogLayer,
        tls: TlsLayer,
        limits: LimitsLayer,
        events: EventsLayer,
        orchestrator: OrchestratorLayer,
        ; only in the file: relays: Vec<RelayLayer>
    }
    LogLayer {
        level: String = "SOLEHOLD_LOG_LEVEL",
        format: LogFormat = "SOLEHOLD_LOG_FORMAT",
    }
    TlsLayer {
        cert: PathBuf = "SOLEHOLD_TLS_CERT",
        key: PathBuf = "SOLEHOLD_TLS_KEY",
        client_ca: PathBuf = "SOLEHOLD_TLS_CLIENT_CA",
    }
    LimitsLayer {
        requests_per_second: u32 = "SOLEHOLD_LIMITS_REQUESTS_PER_SECOND",
        requests_burst: NonZeroU32 = "SOLEHOLD_LIMITS_REQUESTS_BURST",
        capacity_max: Capacity = "SOLEHOLD_LIMITS_CAPACITY_MAX",
        watches_max: u64 = "SOLEHOLD_LIMITS_WATCHES_MAX",
        connections_max: NonZeroUsize = "SOLEHOLD_LIMITS_CONNECTIONS_MAX",
        request_timeout: Span = "SOLEHOLD_LIMITS_REQUEST_TIMEOUT",
        idle_timeout: Span = "SOLEHOLD_LIMITS_IDLE_TIMEOUT",
        shutdown_grace: Span = "SOLEHOLD_LIMITS_SHUTDOWN_GRACE",
        ;
        quotas: QuotasLayer,
    }
    /// What a tenant may have, unless its own quotas say otherwise.
    QuotasLayer {
        resources: u64 = "SOLEHOLD_LIMITS_QUOTAS_RESOURCES",
        sessions: u64 = "SOLEHOLD_LIMITS_QUOTAS_SESSIONS",
        watches: u64 = "SOLEHOLD_LIMITS_QUOTAS_WATCHES",
    }
    /// The orchestrator whose jobs the dashboard shows.
    OrchestratorLayer {
        url: String = "SOLEHOLD_ORCHESTRATOR",
        key_file: PathBuf = "SOLEHOLD_ORCHESTRATOR_KEY_FILE",
        ca_cert: PathBuf = "SOLEHOLD_ORCHESTRATOR_CA_CERT",
    }
    /// How long events are kept.
    EventsLayer {
        keep: Span = "SOLEHOLD_EVENTS_KEEP",
        keep_max: NonZeroU64 = "SOLEHOLD_EVENTS_KEEP_MAX",
    }
}

impl Layer {
    /// What the variables say.
    pub fn from_variables(variables: &Variables) -> CommandResult<Self> {
        let layer = Self::read(variables)?;
        layer.check().map_err(|what| CommandError::usage(format!("the SOLEHOLD_ variables: {what}")))?;
        Ok(layer)
    }

    /// What no layer may say.
    pub fn check(&self) -> Result<(), ValueError> {
        if self.data_dir.is_some() && self.engine.is_some() {
            return Err("data_dir and engine are both given: give one of them".into());
        }
        Ok(())
    }

    /// This layer, and `lower` where it says nothing.
    pub fn over(mut self, mut lower: Self) -> CommandResult<Self> {
        self.check().map_err(CommandError::usage)?;
        if self.data_dir.is_some() || self.engine.is_some() {
            lower.data_dir = None;
            lower.engine = None;
        }
        self.fill(lower);
        Ok(self)
    }

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

/// Writes what is given over what is there.
fn put<T>(to: &mut T, given: Option<impl Into<T>>) {
    if let Some(given) = given {
        *to = given.into();
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

impl OrchestratorLayer {
    /// How to connect to it; none, if no URL is given. The files are read now.
    pub fn settle(self) -> CommandResult<Option<HttpConfig>> {
        let Some(url) = self.url else {
            let given = [("key-file", &self.key_file), ("ca-cert", &self.ca_cert)];
            return match given.iter().find(|(_, file)| file.is_some()) {
                Some((name, _)) => Err(CommandError::usage(format!(
                    "--orchestrator-{name} needs --orchestrator URL: which orchestrator is it for?"
                ))),
                None => Ok(None),
            };
        };
        transport::server_urls([&url])
            .map_err(|error| CommandError::usage(format!("--orchestrator: {error}")))?;
        let api_key = self.key_file.as_deref().map(key_in).transpose()?;
        let ca_certs = self
            .ca_cert
            .as_deref()
            .map(|path| files::certificates("--orchestrator-ca-cert", path))
            .transpose()?;
        Ok(Some(HttpConfig { api_key, ca_certs, ..HttpConfig::new([url]) }))
    }
}

fn key_in(path: &Path) -> CommandResult<SecretString> {
    let option = "--orchestrator-key-file";
    let key = files::secret(option, path)?;
    if !key.bytes().all(|byte| byte.is_ascii_graphic()) {
        let why = "the file must have one key, as in http.api_key of the orchestrator";
        return Err(files::invalid(option, path, &why));
    }
    Ok(SecretString::from(key))
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
